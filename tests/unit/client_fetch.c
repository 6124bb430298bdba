/* Batches that are fetched over the connection: the message is read by hand as protobuf would, what
 * is gathered is what the ring would have had, and a fetch that fails leaves no trace. */
#include "client_world.h"

#include "client/ballast.h"
#include "proto/payload.h"

#include <errno.h>
#include <semaphore.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void expect_payload(const uint8_t *message, size_t bytes, int code, size_t at,
                           size_t count) {
    const uint8_t *payload;
    size_t got;
    assert_int_equal(payload_find(message, bytes, &payload, &got), code);
    if (code == 0) {
        assert_int_equal(got, count);
        assert_true(count == 0 || payload == message + at);
    }
}

#define EXPECT(code, at, count, ...)                                                               \
    do {                                                                                           \
        const uint8_t message[] = {__VA_ARGS__};                                                   \
        expect_payload(message, sizeof message, code, at, count);                                  \
    } while (0)

static void a_payload_is_found_whatever_fields_stand_around_it(void **state) {
    (void)state;
    expect_payload(NULL, 0, 0, 0, 0);
    EXPECT(0, 2, 3, 0x0a, 3, 'a', 'b', 'c');
    EXPECT(0, 2, 0, 0x0a, 0);
    EXPECT(0, 4, 1, 0x10, 0x05, 0x0a, 1, 'a');                    /* varint */
    EXPECT(0, 2, 1, 0x0a, 1, 'a', 0x1a, 2, 0x0a, 1);              /* bytes */
    EXPECT(0, 11, 1, 0x21, 0, 1, 2, 3, 4, 5, 6, 7, 0x0a, 1, 'a'); /* fixed64 */
    EXPECT(0, 7, 1, 0x25, 0, 1, 2, 3, 0x0a, 1, 'a');              /* fixed32 */
    EXPECT(0, 4, 1, 0x8a, 0x00, 0x81, 0x00, 'a');                 /* padded */
}

static void a_message_that_does_not_hold_what_it_says_is_refused(void **state) {
    (void)state;
    EXPECT(-EPROTO, 0, 0, 0x0a);
    EXPECT(-EPROTO, 0, 0, 0x0a, 2, 'a');
    EXPECT(-EPROTO, 0, 0, 0x0a, 0x80);
    EXPECT(-EPROTO, 0, 0, 0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 'a');
    EXPECT(-EPROTO, 0, 0, 0x0a, 1, 'a', 0x0a, 1, 'b'); /* twice */
    EXPECT(-EPROTO, 0, 0, 0x08, 1);                    /* a number instead */
    EXPECT(-EPROTO, 0, 0, 0x0b, 0x0c);                 /* a group */
    EXPECT(-EPROTO, 0, 0, 0x02, 1, 'a');               /* field 0 */
    EXPECT(-EPROTO, 0, 0, 0x21, 1, 2, 3);
}

static void the_reader_agrees_with_protobuf(void **state) {
    uint8_t bytes[300], packed[320];
    (void)state;
    for (size_t count = 0; count <= sizeof bytes; count += 1 + count / 3) {
        Ballast__V1__FetchResponse response = BALLAST__V1__FETCH_RESPONSE__INIT;
        memset(bytes, (int)count, count);
        response.payload = (ProtobufCBinaryData){count, bytes};
        size_t size = protobuf_c_message_pack(&response.base, packed);
        expect_payload(packed, size, 0, size - count, count);
    }
}

static void a_head_is_protobufs_and_read_back_from_its_beginning(void **state) {
    static const uint32_t counts[] = {0, 1, 127, 128, 16383, 16384, 262144, 1u << 20};
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        uint8_t head[PAYLOAD_HEAD_BYTES_MAX + 1];
        Ballast__V1__FetchResponse response = BALLAST__V1__FETCH_RESPONSE__INIT;
        size_t bytes = payload_write_head(counts[i], head);
        response.payload.len = counts[i];
        size_t whole = bytes + counts[i];
        if (counts[i] > 0) { /* protobuf leaves an empty one out */
            assert_int_equal(whole, protobuf_c_message_get_packed_size(&response.base));
            assert_int_equal(payload_read_head(head, bytes, whole), bytes);
        }
        for (size_t have = 0; have < bytes; have++) {
            assert_int_equal(payload_read_head(head, have, whole), 0);
        }
        assert_int_equal(payload_read_head(head, bytes, whole + 1), 0); /* a field follows */
    }
}

/* A daemon that has no data socket for this client. */

static uint32_t serve_without_slab(struct fake *fake, uint64_t step) {
    Ballast__V1__HelloResponse hello;
    uint32_t stream;
    fake_accept(fake);
    world_hello_init(&hello, fake);
    hello.data_path = (char *)"";
    world_greet(fake, &hello);
    Ballast__V1__StreamRequest *request = world_stream(fake, &stream);
    FAKE_CHECK(request->from != NULL && request->from->step == step && request->from->index == 0);
    return stream;
}

static uint32_t take_fetch(struct fake *fake, uint64_t step, uint32_t index) {
    uint32_t call;
    Ballast__V1__FetchRequest *request = fake_request(
        fake, "Fetch", &ballast__v1__fetch_request__descriptor, &call);
    FAKE_CHECK(request->id->step == step && request->id->index == index);
    return call;
}

/* Sends the slot in two pieces and an empty one; `cut` bytes too few. */
static void send_slot(struct fake *fake, uint32_t call, struct world_memory *memory, uint64_t step,
                      uint32_t index, size_t cut) {
    Ballast__V1__FetchResponse piece = BALLAST__V1__FETCH_RESPONSE__INIT;
    uint64_t slot = (step * WORLD_MICRO_BATCHES + index) % WORLD_SLOTS;
    uint8_t *payload = memory->bytes + slot * WORLD_SLOT_BYTES + MAPPING_SLOT_HEADER_BYTES;
    size_t bytes = (WORLD_TOKENS + 1) * 2, first = 7;
    piece.payload = (ProtobufCBinaryData){first, payload};
    fake_send(fake, call, &piece.base);
    piece.payload = (ProtobufCBinaryData){0, payload};
    fake_send(fake, call, &piece.base);
    piece.payload = (ProtobufCBinaryData){bytes - first - cut, payload + first};
    fake_send(fake, call, &piece.base);
    fake_send_frame(fake, &(struct frame_header){.stream = call, .type = FRAME_RESPONSE}, NULL);
}

static void answer_fetch(struct fake *fake, struct world_memory *memory, uint64_t step,
                         uint32_t index, size_t cut) {
    send_slot(fake, take_fetch(fake, step, index), memory, step, index, cut);
}

static void expect_tokens(struct ballast *client, const struct ballast_batch *batch) {
    static const uint32_t rows[WORLD_ROWS] = {0, 1, 6, 7};
    int32_t tokens[WORLD_ROWS], labels[WORLD_ROWS];
    assert_int_equal(
        ballast_gather(client, batch, BALLAST_TOKENS, BALLAST_INT32, tokens, WORLD_ROWS),
        WORLD_ROWS);
    assert_int_equal(
        ballast_gather(client, batch, BALLAST_LABELS, BALLAST_INT32, labels, WORLD_ROWS),
        WORLD_ROWS);
    for (uint32_t i = 0; i < WORLD_ROWS; i++) {
        assert_int_equal(tokens[i], world_token(batch->step, batch->index, rows[i]));
        assert_int_equal(labels[i], world_token(batch->step, batch->index, rows[i] + 1));
    }
}

struct scene {
    struct fake fake;
    struct world_memory memory;
    struct ballast *client;
};

static void begin(struct scene *scene, void (*script)(struct fake *fake), uint32_t transport) {
    struct ballast_options options = BALLAST_OPTIONS_INIT;
    world_memory_create(&scene->memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&scene->fake, script, &scene->memory);
    options.socket = scene->fake.path;
    options.transport = transport;
    options.connect_timeout_ms = 30000;
    assert_int_equal(ballast_open(&options, &scene->client), 0);
}

static void end(struct scene *scene) {
    ballast_close(scene->client);
    fake_stop(&scene->fake);
    world_memory_destroy(&scene->memory);
}

static void serve_fetches(struct fake *fake) {
    struct world_memory *memory = fake->context;
    uint32_t stream = serve_without_slab(fake, 3);
    world_send_batch(fake, stream, memory, 3, 0);
    world_send_batch(fake, stream, memory, 3, 1);
    answer_fetch(fake, memory, 3, 0, 0);
    answer_fetch(fake, memory, 3, 1, 0);
    world_expect_release(fake, stream, 3, 0);
    world_expect_release(fake, stream, 3, 1);
}

static void a_rank_without_a_slab_gathers_what_was_fetched(void **state) {
    struct scene scene;
    const struct ballast_batch *batches[2];
    (void)state;
    begin(&scene, serve_fetches, BALLAST_TRANSPORT_AUTO);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(ballast_next(scene.client, -1, &batches[i]), BALLAST_BATCH);
        assert_int_equal(batches[i]->index, i);
    }
    for (uint32_t i = 0; i < 2; i++) { /* both are held, each with its own bytes */
        expect_tokens(scene.client, batches[i]);
        assert_int_equal(ballast_release(scene.client, batches[i]), 0);
    }
    end(&scene);
}

/* Too few bytes, then the connection is closed midway, then the batch comes whole. */
static void serve_broken_fetches(struct fake *fake) {
    struct world_memory *memory = fake->context;
    uint32_t call, stream = serve_without_slab(fake, 3);
    world_send_batch(fake, stream, memory, 3, 0);
    answer_fetch(fake, memory, 3, 0, 2);
    stream = serve_without_slab(fake, 3);
    world_send_batch(fake, stream, memory, 3, 0);
    (void)fake_request(fake, "Fetch", &ballast__v1__fetch_request__descriptor, &call);
    stream = serve_without_slab(fake, 3);
    world_send_batch(fake, stream, memory, 3, 0);
    answer_fetch(fake, memory, 3, 0, 0);
}

static void a_fetch_that_breaks_is_fetched_again_or_told_never_half_given(void **state) {
    struct scene scene;
    const struct ballast_batch *batch = NULL;
    (void)state;
    begin(&scene, serve_broken_fetches, BALLAST_TRANSPORT_AUTO);
    assert_int_equal(ballast_next(scene.client, -1, &batch), -EPROTO);
    assert_non_null(strstr(ballast_error(scene.client), "16 of the 18 bytes"));
    assert_int_equal(ballast_next(scene.client, -1, &batch), BALLAST_BATCH);
    assert_int_equal(batch->step, 3);
    assert_int_equal(batch->index, 0);
    expect_tokens(scene.client, batch);
    end(&scene);
}

static void send_hashed(struct fake *fake, uint32_t stream, struct world_memory *memory,
                        uint64_t change) {
    struct world_batch batch;
    world_batch_init(&batch, memory, 3, 0);
    batch.message.payload_hash = change + XXH3_64bits(memory->bytes + batch.message.slab_offset +
                                                          MAPPING_SLOT_HEADER_BYTES,
                                                      batch.message.slab_bytes);
    world_send(fake, stream, &batch);
    world_batch_free(&batch);
}

static void serve_hashes_fetched(struct fake *fake) {
    for (uint64_t change = 1; change < 2; change--) {
        uint32_t stream = serve_without_slab(fake, 3);
        send_hashed(fake, stream, fake->context, change);
        answer_fetch(fake, fake->context, 3, 0, 0);
    }
}

static void serve_hashes_shared(struct fake *fake) {
    for (uint64_t change = 1; change < 2; change--) {
        uint32_t stream = world_serve(fake, fake->context, 3, 0, 4);
        send_hashed(fake, stream, fake->context, change);
    }
}

static void bytes_that_do_not_hash_as_told_are_not_given_out(void **state) {
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        struct scene scene;
        const struct ballast_batch *batch = NULL;
        begin(&scene, shared ? serve_hashes_shared : serve_hashes_fetched, BALLAST_TRANSPORT_AUTO);
        assert_int_equal(ballast_next(scene.client, -1, &batch), -EBADMSG);
        assert_non_null(strstr(ballast_error(scene.client), "damaged on the way"));
        assert_int_equal(ballast_next(scene.client, -1, &batch), BALLAST_BATCH);
        expect_tokens(scene.client, batch);
        end(&scene);
    }
}

/* The data socket's file is gone, as where only the control socket was mounted. */
static void serve_absent_socket(struct fake *fake) {
    Ballast__V1__HelloResponse hello;
    uint32_t stream;
    fake_accept(fake);
    world_hello_init(&hello, fake);
    unlink(fake->data_path);
    world_greet(fake, &hello);
    (void)world_stream(fake, &stream);
    world_send_batch(fake, stream, fake->context, 3, 0);
    answer_fetch(fake, fake->context, 3, 0, 0);
}

static void where_the_data_socket_is_not_there_batches_are_fetched(void **state) {
    struct scene scene;
    const struct ballast_batch *batch = NULL;
    (void)state;
    begin(&scene, serve_absent_socket, BALLAST_TRANSPORT_AUTO);
    assert_int_equal(ballast_next(scene.client, -1, &batch), BALLAST_BATCH);
    expect_tokens(scene.client, batch);
    end(&scene);
}

/* Between the polls of a foreign event loop a fetch waits, and other calls go through. */
static sem_t asked;

static void serve_slowly(struct fake *fake) {
    uint32_t call, commit, stream = serve_without_slab(fake, 3);
    Ballast__V1__CommitResponse response = BALLAST__V1__COMMIT_RESPONSE__INIT;
    Ballast__V1__FetchResponse piece = BALLAST__V1__FETCH_RESPONSE__INIT;
    struct world_memory *memory = fake->context;
    world_send_batch(fake, stream, memory, 3, 0);
    uint64_t slot = 3 * WORLD_MICRO_BATCHES % WORLD_SLOTS;
    (void)fake_request(fake, "Fetch", &ballast__v1__fetch_request__descriptor, &call);
    (void)sem_post(&asked);
    (void)fake_request(fake, "Commit", &ballast__v1__commit_request__descriptor, &commit);
    piece.payload = (ProtobufCBinaryData){(WORLD_TOKENS + 1) * 2, memory->bytes +
                                                                      slot * WORLD_SLOT_BYTES +
                                                                      MAPPING_SLOT_HEADER_BYTES};
    fake_send(fake, call, &piece.base);
    fake_send_frame(fake, &(struct frame_header){.stream = call, .type = FRAME_RESPONSE}, NULL);
    fake_respond(fake, commit, &response.base);
}

static void a_fetch_goes_on_where_a_timeout_left_it(void **state) {
    struct scene scene;
    const struct ballast_batch *batch = NULL;
    (void)state;
    assert_int_equal(sem_init(&asked, 0, 0), 0);
    begin(&scene, serve_slowly, BALLAST_TRANSPORT_FETCH);
    while (sem_trywait(&asked) != 0) {
        assert_int_equal(ballast_next(scene.client, 20, &batch), 0);
    }
    assert_int_equal(ballast_commit(scene.client, 2), 0);
    assert_int_equal(ballast_next(scene.client, -1, &batch), BALLAST_BATCH);
    expect_tokens(scene.client, batch);
    end(&scene);
}

/* While the rank works on one batch, the next is fetched; the end of the step behind it waits. */

static sem_t ahead_done;

static void serve_ahead(struct fake *fake) {
    struct world_memory *memory = fake->context;
    uint32_t stream = serve_without_slab(fake, 3);
    world_send_batch(fake, stream, memory, 3, 0);
    world_send_batch(fake, stream, memory, 3, 1);
    world_send_end_of_step(fake, stream, 3);
    answer_fetch(fake, memory, 3, 0, 0);
    answer_fetch(fake, memory, 3, 1, 0); /* without a call of the rank in between */
    (void)sem_post(&ahead_done);
    fake_refuse(fake, stream, STATUS_DATA_LOSS, "the disk is gone");
}

static void await_ahead(void) {
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 30;
    assert_int_equal(sem_timedwait(&ahead_done, &until), 0);
}

static void the_next_batch_is_fetched_while_the_rank_works_on_one(void **state) {
    struct scene scene;
    const struct ballast_batch *batches[2];
    (void)state;
    assert_int_equal(sem_init(&ahead_done, 0, 0), 0);
    begin(&scene, serve_ahead, BALLAST_TRANSPORT_AUTO);
    assert_int_equal(ballast_next(scene.client, -1, &batches[0]), BALLAST_BATCH);
    await_ahead();
    expect_tokens(scene.client, batches[0]);
    assert_int_equal(ballast_next(scene.client, 0, &batches[1]), BALLAST_BATCH);
    assert_int_equal(batches[1]->waited_us, 0);
    expect_tokens(scene.client, batches[1]);
    for (uint32_t i = 0; i < 2; i++) { /* the end of the step was read by then */
        assert_int_equal(ballast_release(scene.client, batches[i]), 0);
    }
    assert_int_equal(ballast_next(scene.client, -1, &batches[0]), BALLAST_END_OF_STEP);
    assert_int_equal(ballast_step(scene.client), 3);
    assert_int_equal(ballast_next(scene.client, -1, &batches[0]), -EIO);
    assert_string_equal(ballast_error(scene.client), "the disk is gone");
    end(&scene);
}

/* What was fetched ahead belongs to a connection; the next one brings it anew. */
static void serve_the_second_anew(struct fake *fake) {
    struct world_memory *memory = fake->context;
    uint32_t stream;
    Ballast__V1__StreamRequest *request;
    Ballast__V1__HelloResponse hello;
    fake_accept(fake);
    world_hello_init(&hello, fake);
    hello.data_path = (char *)"";
    world_greet(fake, &hello);
    request = world_stream(fake, &stream);
    FAKE_CHECK(request->from->step == 3 && request->from->index == 1);
    FAKE_CHECK(request->credits == 3); /* one batch is held, the one that was coming is not */
    world_send_batch(fake, stream, memory, 3, 1);
    answer_fetch(fake, memory, 3, 1, 0);
}

static void serve_ahead_then_hang_up(struct fake *fake) {
    struct world_memory *memory = fake->context;
    uint32_t stream = serve_without_slab(fake, 3);
    world_send_batch(fake, stream, memory, 3, 0);
    world_send_batch(fake, stream, memory, 3, 1);
    answer_fetch(fake, memory, 3, 0, 0);
    (void)take_fetch(fake, 3, 1);
    fake_hang_up(fake);
    (void)sem_post(&ahead_done);
    serve_the_second_anew(fake);
}

/* The client learns that it cannot ask for more while it looks ahead. */
static void serve_deaf(struct fake *fake) {
    struct world_memory *memory = fake->context;
    uint32_t stream = serve_without_slab(fake, 3);
    world_send_batch(fake, stream, memory, 3, 0);
    world_send_batch(fake, stream, memory, 3, 1);
    uint32_t call = take_fetch(fake, 3, 0);
    FAKE_CHECK(shutdown(fake->connection, SHUT_RD) == 0);
    send_slot(fake, call, memory, 3, 0, 0);
    (void)sem_post(&ahead_done);
    serve_the_second_anew(fake);
}

static void second_comes_again(void (*script)(struct fake *fake)) {
    struct scene scene;
    const struct ballast_batch *batches[2];
    assert_int_equal(sem_init(&ahead_done, 0, 0), 0);
    begin(&scene, script, BALLAST_TRANSPORT_AUTO);
    assert_int_equal(ballast_next(scene.client, -1, &batches[0]), BALLAST_BATCH);
    await_ahead();
    expect_tokens(scene.client, batches[0]);
    assert_int_equal(ballast_next(scene.client, -1, &batches[1]), BALLAST_BATCH);
    expect_tokens(scene.client, batches[1]);
    expect_tokens(scene.client, batches[0]);
    end(&scene);
}

static void a_batch_that_was_coming_comes_again_over_the_next_connection(void **state) {
    (void)state;
    second_comes_again(serve_ahead_then_hang_up);
}

static void a_batch_that_could_not_be_asked_for_comes_over_the_next_connection(void **state) {
    (void)state;
    second_comes_again(serve_deaf);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_payload_is_found_whatever_fields_stand_around_it),
        cmocka_unit_test(a_message_that_does_not_hold_what_it_says_is_refused),
        cmocka_unit_test(the_reader_agrees_with_protobuf),
        cmocka_unit_test(a_head_is_protobufs_and_read_back_from_its_beginning),
        cmocka_unit_test(a_rank_without_a_slab_gathers_what_was_fetched),
        cmocka_unit_test(a_fetch_that_breaks_is_fetched_again_or_told_never_half_given),
        cmocka_unit_test(bytes_that_do_not_hash_as_told_are_not_given_out),
        cmocka_unit_test(where_the_data_socket_is_not_there_batches_are_fetched),
        cmocka_unit_test(a_fetch_goes_on_where_a_timeout_left_it),
        cmocka_unit_test(the_next_batch_is_fetched_while_the_rank_works_on_one),
        cmocka_unit_test(a_batch_that_was_coming_comes_again_over_the_next_connection),
        cmocka_unit_test(a_batch_that_could_not_be_asked_for_comes_over_the_next_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
