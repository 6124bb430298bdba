/* libballast goes to another step: Seek, Import and Export over reconnects, what another rank's
 * Seek does to this one, and agreement over ranks. */
#include "client_world.h"

#include "client/ballast.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct ballast *open_client(const struct fake *fake) {
    struct ballast_options options = BALLAST_OPTIONS_INIT;
    struct ballast *client = NULL;
    options.socket = fake->path;
    options.connect_timeout_ms = 30000;
    if (ballast_open(&options, &client) < 0) {
        fail_msg("ballast_open: %s", ballast_error(client));
    }
    return client;
}

static const struct ballast_batch *next_batch(struct ballast *client, uint64_t step,
                                              uint32_t index) {
    const struct ballast_batch *batch = NULL;
    int event = ballast_next(client, -1, &batch);
    if (event != BALLAST_BATCH) {
        fail_msg("event %d: %s", event, ballast_error(client));
    }
    assert_int_equal(batch->step, step);
    assert_int_equal(batch->index, index);
    return batch;
}

static void expect_sentence(const struct ballast *client, const char *word) {
    if (strstr(ballast_error(client), word) == NULL) {
        fail_msg("'%s' is not in: %s", word, ballast_error(client));
    }
}

static void receive_until_gone(struct fake *fake) {
    struct frame_header header;
    const uint8_t *data;
    while (fake_receive(fake, &header, &data)) {
    }
}

static struct world_memory memory;
static struct fake fake;

static void begin(void (*script)(struct fake *fake)) {
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, script, &memory);
}

static void finish(struct ballast *client) {
    ballast_close(client);
    fake_stop(&fake);
    world_memory_destroy(&memory);
}

/* Answers a Seek; the digest is that of the world's batches. */
static void answer_seek(struct fake *at, uint64_t step, uint64_t generation) {
    uint8_t digest[16];
    uint32_t call;
    Ballast__V1__SeekResponse response = BALLAST__V1__SEEK_RESPONSE__INIT;
    Ballast__V1__SeekRequest *request = fake_request(at, "Seek",
                                                     &ballast__v1__seek_request__descriptor, &call);
    FAKE_CHECK(request->step == step);
    memset(digest, (int)(step + 1), sizeof digest);
    response.next_step = step;
    response.generation = generation;
    response.plan_digest = (ProtobufCBinaryData){sizeof digest, digest};
    fake_respond(at, call, &response.base);
}

/* A stream at (step, 0), with `credits`, on the connection that there is. */
static uint32_t serve_again(struct fake *at, uint64_t step, uint32_t credits) {
    uint32_t stream;
    Ballast__V1__StreamRequest *request = world_stream(at, &stream);
    FAKE_CHECK(request->from != NULL && request->from->step == step && request->from->index == 0);
    FAKE_CHECK(request->credits == credits);
    return stream;
}

static void seek_on_one_connection(struct fake *at) {
    uint32_t stream = world_serve(at, &memory, 3, 0, 4);
    world_send_batch(at, stream, &memory, 3, 0);
    world_send_batch(at, stream, &memory, 3, 1);
    answer_seek(at, 1, 2);
    fake_refuse(at, stream, STATUS_ABORTED, "this rank sought step 1");
    stream = serve_again(at, 1, 3);
    Ballast__V1__StreamRequest *release = fake_stream_request(at, stream);
    FAKE_CHECK(release->credits == 1 && release->n_released == 0);
    world_send_batch(at, stream, &memory, 1, 0);
    receive_until_gone(at);
}

static void after_a_seek_the_next_batch_is_the_first_of_its_step(void **state) {
    struct ballast_job job;
    (void)state;
    begin(seek_on_one_connection);
    struct ballast *client = open_client(&fake);
    const struct ballast_batch *old = next_batch(client, 3, 0);
    assert_int_equal(ballast_seek(client, 1, 0), 0);
    assert_int_equal(ballast_job(client, &job), 0);
    assert_int_equal(job.generation, 2);
    assert_int_equal(job.generation_step, 1);
    const struct ballast_batch *none = NULL;
    assert_int_equal(ballast_next(client, 0, &none), 0);
    assert_int_equal(ballast_release(client, old), 0);
    (void)next_batch(client, 1, 0);
    finish(client);
}

/* The daemon is back in generation 2, which somebody began at step 1, and is sought there. */
static void come_back(struct fake *at, const char *by) {
    Ballast__V1__HelloResponse hello;
    fake_accept(at);
    world_hello_init(&hello, at);
    hello.generation = 2;
    hello.generation_step = 1;
    hello.generation_by = (char *)by;
    world_greet(at, &hello);
    world_pass(at, &memory);
    answer_seek(at, 1, 2);
    uint32_t stream = serve_again(at, 1, 4);
    world_send_batch(at, stream, &memory, 1, 0);
    receive_until_gone(at);
}

static void die_before_the_answer(struct fake *at) {
    uint32_t call;
    (void)world_serve(at, &memory, 3, 0, 4);
    (void)fake_request(at, "Seek", &ballast__v1__seek_request__descriptor, &call);
    fake_hang_up(at);
    come_back(at, "rank dp 0");
}

static void a_seek_whose_answer_was_lost_is_asked_again(void **state) {
    (void)state;
    begin(die_before_the_answer);
    struct ballast *client = open_client(&fake);
    assert_int_equal(ballast_seek(client, 1, 0), 0);
    (void)next_batch(client, 1, 0);
    finish(client);
}

/* Another rank has sought step 1; the daemon ends the stream, and later greets in generation 2. */
static void move_on(struct fake *at) {
    uint32_t stream = world_serve(at, &memory, 3, 0, 4);
    fake_refuse(at, stream, STATUS_ABORTED, "rank dp 0, pp 0, cp 1, tp 0 sought step 1");
    receive_until_gone(at);
    come_back(at, "rank dp 0, pp 0, cp 1, tp 0");
}

static void a_rank_that_was_left_behind_is_told_until_it_seeks_too(void **state) {
    const struct ballast_batch *batch = NULL;
    struct ballast_job job;
    (void)state;
    begin(move_on);
    struct ballast *client = open_client(&fake);
    assert_int_equal(ballast_next(client, -1, &batch), -ESTALE);
    expect_sentence(client, "cp 1, tp 0 sought step 1");
    assert_int_equal(ballast_job(client, &job), 0);
    assert_int_equal(job.generation_step, 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ballast_next(client, -1, &batch), -ESTALE);
        expect_sentence(client, "rank dp 0, pp 0, cp 1, tp 0 sought step 1");
    }
    assert_int_equal(ballast_seek(client, job.generation_step, 0), 0);
    (void)next_batch(client, 1, 0);
    finish(client);
}

/* The commit's answer is lost; meanwhile another rank has sought step 1. */
static void move_on_in_a_commit(struct fake *at) {
    Ballast__V1__HelloResponse hello;
    uint32_t call;
    (void)world_serve(at, &memory, 3, 0, 4);
    (void)fake_request(at, "Commit", &ballast__v1__commit_request__descriptor, &call);
    fake_hang_up(at);
    fake_accept(at);
    world_hello_init(&hello, at);
    hello.generation = 2;
    hello.generation_step = 1;
    hello.generation_by = (char *)"rank dp 3";
    world_greet(at, &hello);
    world_pass(at, &memory);
    receive_until_gone(at);
}

static void a_commit_is_not_repeated_in_another_generation(void **state) {
    (void)state;
    begin(move_on_in_a_commit);
    struct ballast *client = open_client(&fake);
    assert_int_equal(ballast_commit(client, 2), -ESTALE);
    expect_sentence(client, "rank dp 3 sought step 1");
    finish(client);
}

static void refuse_and_serve(struct fake *at) {
    uint32_t call;
    uint32_t stream = world_serve(at, &memory, 3, 0, 4);
    (void)fake_request(at, "Seek", &ballast__v1__seek_request__descriptor, &call);
    fake_refuse(at, call, STATUS_FAILED_PRECONDITION, "rank A sought 5, rank B seeks 6");
    (void)fake_request(at, "Seek", &ballast__v1__seek_request__descriptor, &call);
    fake_refuse(at, call, STATUS_OUT_OF_RANGE, "the data ends");
    world_send_batch(at, stream, &memory, 3, 0);
    receive_until_gone(at);
}

static void a_refused_seek_says_why_and_changes_nothing(void **state) {
    (void)state;
    begin(refuse_and_serve);
    struct ballast *client = open_client(&fake);
    assert_int_equal(ballast_seek(client, 6, 0), -EBUSY);
    expect_sentence(client, "rank A sought 5, rank B seeks 6");
    assert_int_equal(ballast_seek(client, 600, 0), -ERANGE);
    (void)next_batch(client, 3, 0);
    finish(client);
}

static void export_and_import(struct fake *at) {
    static uint8_t blob[] = "a state";
    uint32_t call;
    Ballast__V1__ExportResponse exported = BALLAST__V1__EXPORT_RESPONSE__INIT;
    Ballast__V1__ImportResponse imported = BALLAST__V1__IMPORT_RESPONSE__INIT;
    (void)world_serve(at, &memory, 3, 0, 4);
    Ballast__V1__ExportRequest *export = fake_request(
        at, "Export", &ballast__v1__export_request__descriptor, &call);
    FAKE_CHECK(export->step == 4);
    exported.state = (ProtobufCBinaryData){sizeof blob, blob};
    fake_respond(at, call, &exported.base);
    Ballast__V1__ImportRequest *import = fake_request(
        at, "Import", &ballast__v1__import_request__descriptor, &call);
    FAKE_CHECK(import->state.len == sizeof blob && memcmp(import->state.data, blob, 8) == 0);
    FAKE_CHECK(import->generation == 9);
    imported.next_step = 4;
    imported.generation = 9;
    fake_respond(at, call, &imported.base);
    uint32_t stream = serve_again(at, 4, 4);
    world_send_batch(at, stream, &memory, 4, 0);
    receive_until_gone(at);
}

static void an_exported_state_is_borrowed_and_imported_as_it_was(void **state) {
    const void *exported = NULL;
    uint8_t copy[64];
    size_t bytes = 0;
    (void)state;
    begin(export_and_import);
    struct ballast *client = open_client(&fake);
    assert_int_equal(ballast_export(client, 4, &exported, &bytes), 0);
    assert_int_equal(bytes, 8);
    memcpy(copy, exported, bytes);
    assert_int_equal(ballast_import(client, copy, bytes, 9), 0);
    (void)next_batch(client, 4, 0);
    finish(client);
}

/* Agreement: an all-gather of copies of this rank's record, some of them changed. */
struct gathering {
    uint32_t ranks;
    uint32_t odd[2]; /* ranks that differ; UINT32_MAX: none */
    size_t at;       /* byte that differs */
    int code;
};

static int gather(void *context, const void *mine, size_t bytes, void *all) {
    const struct gathering *gathering = context;
    uint8_t *out = all;
    for (uint32_t i = 0; i < gathering->ranks; i++) {
        memcpy(out + i * bytes, mine, bytes);
        if (i == gathering->odd[0] || i == gathering->odd[1]) {
            out[i * bytes + gathering->at] ^= 1;
        }
    }
    return gathering->code;
}

static void serve_a_batch(struct fake *at) {
    uint32_t stream = world_serve(at, &memory, 3, 0, 4);
    world_send_batch(at, stream, &memory, 3, 0);
    receive_until_gone(at);
}

static void ranks_that_differ_are_named_by_majority(void **state) {
    struct gathering gathering = {.ranks = 8, .odd = {UINT32_MAX, UINT32_MAX}};
    static const size_t places[] = {0, 8, 16}; /* generation, step, digest */
    static const char *const words[] = {"generation 0, step 3", "generation 1, step 2",
                                        "digest 05040404"};
    (void)state;
    begin(serve_a_batch);
    struct ballast *client = open_client(&fake);
    (void)next_batch(client, 3, 0);
    assert_int_equal(ballast_agree(client, 8, gather, &gathering), 0);
    for (int i = 0; i < 3; i++) {
        gathering.at = places[i];
        gathering.odd[0] = 5;
        gathering.odd[1] = UINT32_MAX;
        assert_int_equal(ballast_agree(client, 8, gather, &gathering), -EBADMSG);
        expect_sentence(client, "rank 5 of 8 differs from the majority");
        expect_sentence(client, words[i]);
        expect_sentence(client, "rank 0 generation 1, step 3, digest 04040404");
        gathering.odd[1] = 7;
        assert_int_equal(ballast_agree(client, 8, gather, &gathering), -EBADMSG);
        expect_sentence(client, "rank 5, 7 of 8 differ");
    }
    gathering.ranks = 2;
    gathering.odd[0] = 0;
    assert_int_equal(ballast_agree(client, 2, gather, &gathering), -EBADMSG);
    expect_sentence(client, "from most others");
    gathering.code = -EIO;
    assert_int_equal(ballast_agree(client, 2, gather, &gathering), -EIO);
    gathering.code = 7;
    assert_int_equal(ballast_agree(client, 2, gather, &gathering), -EIO);
    assert_int_equal(ballast_agree(client, 0, gather, &gathering), -EINVAL);
    finish(client);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(after_a_seek_the_next_batch_is_the_first_of_its_step),
        cmocka_unit_test(a_seek_whose_answer_was_lost_is_asked_again),
        cmocka_unit_test(a_rank_that_was_left_behind_is_told_until_it_seeks_too),
        cmocka_unit_test(a_commit_is_not_repeated_in_another_generation),
        cmocka_unit_test(a_refused_seek_says_why_and_changes_nothing),
        cmocka_unit_test(an_exported_state_is_borrowed_and_imported_as_it_was),
        cmocka_unit_test(ranks_that_differ_are_named_by_majority),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
