/* libballast against a scripted daemon that behaves: order, credits, columns, steps, commits, the
 * end of data, timeouts, and how the caller may misuse it. */
#include "client_world.h"

#include "client/ballast.h"
#include "client/deadline.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct ballast_options options_for(const struct fake *fake) {
    struct ballast_options options = BALLAST_OPTIONS_INIT;
    options.socket = fake->path;
    options.connect_timeout_ms = 30000;
    return options;
}

static struct ballast *open_client(const struct ballast_options *options) {
    struct ballast *client = NULL;
    int code = ballast_open(options, &client);
    if (code < 0) {
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
    assert_int_equal(ballast_step(client), step);
    return batch;
}

static void expect_columns(struct ballast *client, const struct ballast_batch *batch) {
    int32_t tokens[WORLD_ROWS], labels[WORLD_ROWS], positions[WORLD_ROWS];
    int64_t wide[WORLD_ROWS];
    assert_int_equal(batch->rows, WORLD_ROWS);
    assert_int_equal(
        ballast_gather(client, batch, BALLAST_TOKENS, BALLAST_INT32, tokens, WORLD_ROWS),
        WORLD_ROWS);
    assert_int_equal(
        ballast_gather(client, batch, BALLAST_LABELS, BALLAST_INT32, labels, WORLD_ROWS),
        WORLD_ROWS);
    assert_int_equal(
        ballast_gather(client, batch, BALLAST_POSITIONS, BALLAST_INT32, positions, WORLD_ROWS),
        WORLD_ROWS);
    assert_int_equal(ballast_gather(client, batch, BALLAST_LABELS, BALLAST_INT64, wide, WORLD_ROWS),
                     WORLD_ROWS);
    static const uint32_t rows[WORLD_ROWS] = {0, 1, 6, 7};
    static const int32_t expected_positions[WORLD_ROWS] = {0, 1, 1, 2};
    for (uint32_t i = 0; i < WORLD_ROWS; i++) {
        assert_int_equal(tokens[i], world_token(batch->step, batch->index, rows[i]));
        assert_int_equal(labels[i], world_token(batch->step, batch->index, rows[i] + 1));
        assert_int_equal(wide[i], labels[i]);
        assert_int_equal(positions[i], expected_positions[i]);
    }
}

static void serve_three_steps(struct fake *fake) {
    struct world_memory *memory = fake->context;
    uint32_t stream = world_serve(fake, memory, 3, 0, 4);
    for (uint64_t step = 3; step < 6; step++) {
        world_serve_step(fake, stream, memory, step);
    }
    world_send_end_of_data(fake, stream, 6);
}

static void a_rank_gets_every_batch_in_order_and_the_end(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    const struct ballast_batch *batch = NULL;
    uint8_t digest[16];
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, serve_three_steps, &memory);
    struct ballast_options options = options_for(&fake);
    struct ballast *client = open_client(&options);
    for (uint64_t step = 3; step < 6; step++) {
        memset(digest, (int)(step + 1), sizeof digest);
        for (uint32_t index = 0; index < WORLD_MICRO_BATCHES; index++) {
            batch = next_batch(client, step, index);
            expect_columns(client, batch);
            assert_memory_equal(batch->plan_digest, digest, sizeof digest);
            assert_int_equal(ballast_release(client, batch), 0);
        }
        assert_int_equal(ballast_next(client, -1, &batch), BALLAST_END_OF_STEP);
        assert_int_equal(ballast_step(client), step);
        assert_memory_equal(ballast_digest(client), digest, sizeof digest);
        assert_int_equal(ballast_commit(client, step), 0);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ballast_next(client, -1, &batch), BALLAST_END_OF_DATA);
        assert_int_equal(ballast_step(client), 6);
    }
    ballast_close(client);
    fake_stop(&fake);
    world_memory_destroy(&memory);
}

static void serve_two_batches(struct fake *fake) {
    struct world_memory *memory = fake->context;
    struct frame_header header;
    const uint8_t *data;
    uint32_t stream = world_serve(fake, memory, 3, 0, 2);
    world_send_batch(fake, stream, memory, 3, 0);
    world_send_batch(fake, stream, memory, 3, 1);
    while (fake_receive(fake, &header, &data)) {
    }
}

static void a_batch_says_what_the_plan_says(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    struct ballast_job job;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, serve_two_batches, &memory);
    struct ballast_options options = options_for(&fake);
    options.credits = 2;
    struct ballast *client = open_client(&options);
    assert_int_equal(ballast_job(client, &job), 0);
    assert_memory_equal(job.job_digest, "the job of tests", 16);
    assert_int_equal(job.cp, WORLD_CP);
    assert_int_equal(job.next_step, 3);
    assert_int_equal(job.micro_batches, WORLD_MICRO_BATCHES);
    assert_int_equal(job.token_bytes, 2);
    const struct ballast_batch *batch = next_batch(client, 3, 0);
    assert_int_equal(batch->document_count, 2);
    assert_int_equal(batch->documents[1].document, 9);
    assert_int_equal(batch->documents[1].offset, 4);
    assert_int_equal(batch->documents[1].document_length, 8);
    assert_int_equal(batch->fragment_count, 2);
    assert_int_equal(batch->fragments[1].document, 1);
    assert_int_equal(batch->fragments[1].row, 2);
    assert_int_equal(batch->loss_denominator, 16);
    assert_int_equal(batch->label_tokens, 14);
    assert_int_equal(batch->pad_rows, 0);
    ballast_close(client);
    fake_stop(&fake);
    world_memory_destroy(&memory);
}

static void misuse_is_an_error_with_a_sentence(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    int32_t rows[WORLD_ROWS];
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, serve_two_batches, &memory);
    struct ballast_options options = options_for(&fake);
    options.credits = 2;
    options.parts = BALLAST_PART_TOKENS;
    struct ballast *client = open_client(&options);
    const struct ballast_batch *first = next_batch(client, 3, 0), *batch = NULL;
    struct ballast_batch other = *first;
    assert_int_equal(ballast_gather(client, &other, BALLAST_TOKENS, BALLAST_INT32, rows, 4),
                     -EINVAL);
    assert_int_equal(ballast_gather(client, first, BALLAST_TOKENS, BALLAST_INT32, rows, 3),
                     -ENOBUFS);
    assert_string_equal(ballast_error(client), "4 rows do not fit a buffer of 3");
    assert_int_equal(ballast_gather(client, first, BALLAST_LABELS, BALLAST_INT32, rows, 4),
                     -EINVAL);
    assert_string_equal(ballast_error(client), "labels were not among options.parts");
    assert_int_equal(ballast_gather(client, first, BALLAST_TOKENS, (enum ballast_type)3, rows, 4),
                     -EINVAL);
    assert_int_equal(ballast_gather(client, first, BALLAST_POSITIONS, BALLAST_INT32, rows, 4), 4);
    assert_int_equal(ballast_release(client, &other), -EINVAL);
    const struct ballast_batch *second = next_batch(client, 3, 1);
    assert_int_equal(ballast_release(client, first), 0);
    assert_int_equal(ballast_release(client, first), -EINVAL);
    assert_int_equal(ballast_release(client, second), 0);
    assert_int_equal(ballast_next(client, 0, &batch), 0);
    assert_null(batch);
    ballast_close(client);
    fake_stop(&fake);
    world_memory_destroy(&memory);
}

static void serve_one_of_step(struct fake *fake) {
    struct world_memory *memory = fake->context;
    struct frame_header header;
    const uint8_t *data;
    uint32_t stream = world_serve(fake, memory, 3, 0, 1);
    world_send_batch(fake, stream, memory, 3, 0);
    while (fake_receive(fake, &header, &data)) {
    }
}

static void holding_every_batch_is_said_and_not_waited_for(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    const struct ballast_batch *batch = NULL;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, serve_one_of_step, &memory);
    struct ballast_options options = options_for(&fake);
    options.credits = 1;
    struct ballast *client = open_client(&options);
    const struct ballast_batch *first = next_batch(client, 3, 0);
    assert_int_equal(ballast_next(client, -1, &batch), -EBUSY);
    assert_non_null(strstr(ballast_error(client), "release one"));
    expect_columns(client, first);
    ballast_close(client);
    fake_stop(&fake);
    world_memory_destroy(&memory);
}

static void timeouts_are_kept_and_waiting_adds_up(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    const struct ballast_batch *batch = NULL;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, serve_two_batches, &memory);
    struct ballast_options options = options_for(&fake);
    options.credits = 2;
    struct ballast *client = open_client(&options);
    (void)next_batch(client, 3, 0);
    const struct ballast_batch *second = next_batch(client, 3, 1);
    assert_int_equal(ballast_release(client, second), 0);
    for (int timeout_ms = 0; timeout_ms <= 20; timeout_ms += 10) {
        int64_t begin_ns = deadline_now_ns();
        assert_int_equal(ballast_next(client, timeout_ms, &batch), 0);
        int64_t took_ns = deadline_now_ns() - begin_ns;
        assert_true(took_ns >= (int64_t)timeout_ms * 1000000);
        assert_true(took_ns < (int64_t)30000 * 1000000);
    }
    ballast_close(client);
    fake_stop(&fake);
    world_memory_destroy(&memory);
}

/* A batch goes out only when the client has waited in vain twice: it says so by a commit; another
 * when it has told how long it waited. */
static void serve_a_late_batch(struct fake *fake) {
    struct world_memory *memory = fake->context;
    struct frame_header header;
    const uint8_t *data;
    uint32_t call, stream = world_serve(fake, memory, 3, 0, 4);
    (void)fake_request(fake, "Commit", &ballast__v1__commit_request__descriptor, &call);
    world_send_batch(fake, stream, memory, 3, 0);
    Ballast__V1__CommitResponse response = BALLAST__V1__COMMIT_RESPONSE__INIT;
    fake_respond(fake, call, &response.base);
    Ballast__V1__StreamRequest *release = fake_stream_request(fake, stream);
    if (release->n_waited_ns == 1 && release->waited_ns[0] >= 15000000) {
        world_send_batch(fake, stream, memory, 3, 1);
    }
    while (fake_receive(fake, &header, &data)) {
    }
}

static void waits_cover_the_calls_that_timed_out_and_are_reported_with_the_release(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    const struct ballast_batch *batch = NULL;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, serve_a_late_batch, &memory);
    struct ballast_options options = options_for(&fake);
    struct ballast *client = open_client(&options);
    assert_int_equal(ballast_next(client, 7, &batch), 0);
    assert_int_equal(ballast_next(client, 8, &batch), 0);
    assert_int_equal(ballast_commit(client, 2), 0);
    batch = next_batch(client, 3, 0);
    assert_true(batch->waited_us >= 15000);
    assert_int_equal(ballast_release(client, batch), 0);
    (void)next_batch(client, 3, 1);
    ballast_close(client);
    fake_stop(&fake);
    world_memory_destroy(&memory);
}

static void serve_a_measured_commit(struct fake *fake) {
    struct frame_header header;
    const uint8_t *data;
    uint32_t call;
    (void)world_serve(fake, fake->context, 3, 0, 4);
    const Ballast__V1__CommitRequest *request = fake_request(
        fake, "Commit", &ballast__v1__commit_request__descriptor, &call);
    FAKE_CHECK(request->step == 2 && request->n_measured == 2);
    FAKE_CHECK(request->measured[0]->index == 1 && request->measured[0]->attention_ns == 50 &&
               request->measured[0]->total_ns == 70 && request->measured[0]->n_expert_tokens == 2 &&
               request->measured[0]->expert_tokens[1] == 9);
    FAKE_CHECK(request->measured[1]->index == 0 && request->measured[1]->attention_ns == 0 &&
               request->measured[1]->total_ns == UINT64_MAX &&
               request->measured[1]->n_expert_tokens == 0);
    Ballast__V1__CommitResponse response = BALLAST__V1__COMMIT_RESPONSE__INIT;
    fake_respond(fake, call, &response.base);
    while (fake_receive(fake, &header, &data)) {
    }
}

static void measured_times_travel_with_the_commit(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    const uint64_t tokens[] = {8, 9};
    const struct ballast_measured measured[] = {
        {.index = 1, .attention_ns = 50, .total_ns = 70, .expert_tokens = tokens, .experts = 2},
        {.index = 0, .total_ns = UINT64_MAX}};
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, serve_a_measured_commit, &memory);
    struct ballast_options options = options_for(&fake);
    struct ballast *client = open_client(&options);
    assert_int_equal(ballast_commit_measured(client, 2, measured, 2), 0);
    ballast_close(client);
    fake_stop(&fake);
    world_memory_destroy(&memory);
}

static void a_foreign_loop_polls_and_takes_until_nothing_is_left(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    const struct ballast_batch *batch = NULL;
    uint32_t taken = 0;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, serve_two_batches, &memory);
    struct ballast_options options = options_for(&fake);
    options.credits = 2;
    struct ballast *client = open_client(&options);
    while (taken < 2) {
        struct pollfd poll_fd = {.fd = ballast_fd(client), .events = POLLIN};
        assert_true(poll_fd.fd >= 0);
        assert_int_equal(poll(&poll_fd, 1, 60000), 1);
        while (ballast_next(client, 0, &batch) == BALLAST_BATCH) {
            expect_columns(client, batch);
            assert_int_equal(ballast_release(client, batch), 0);
            taken++;
        }
    }
    ballast_close(client);
    fake_stop(&fake);
    world_memory_destroy(&memory);
}

static void after_fork_the_child_is_refused(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, serve_two_batches, &memory);
    struct ballast_options options = options_for(&fake);
    options.credits = 2;
    struct ballast *client = open_client(&options);
    pid_t child = fork();
    if (child == 0) {
        const struct ballast_batch *batch = NULL;
        bool refused = ballast_next(client, 0, &batch) == -EINVAL &&
                       strstr(ballast_error(client), "after fork") != NULL &&
                       ballast_commit(client, 3) == -EINVAL;
        ballast_close(client);
        _exit(refused ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    expect_columns(client, next_batch(client, 3, 0));
    ballast_close(client);
    fake_stop(&fake);
    world_memory_destroy(&memory);
}

static void serve_the_end_of_a_step(struct fake *fake) {
    struct world_memory *memory = fake->context;
    struct frame_header header;
    const uint8_t *data;
    uint32_t stream = world_serve(fake, memory, 9, WORLD_MICRO_BATCHES, 4);
    world_send_end_of_step(fake, stream, 9);
    world_send_batch(fake, stream, memory, 10, 0);
    while (fake_receive(fake, &header, &data)) {
    }
}

static void a_rank_may_start_where_only_the_end_of_a_step_is_due(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    const struct ballast_batch *batch = NULL;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, serve_the_end_of_a_step, &memory);
    struct ballast_options options = options_for(&fake);
    options.from_step = 9;
    options.from_index = WORLD_MICRO_BATCHES;
    struct ballast *client = open_client(&options);
    assert_int_equal(ballast_next(client, -1, &batch), BALLAST_END_OF_STEP);
    assert_int_equal(ballast_step(client), 9);
    expect_columns(client, next_batch(client, 10, 0));
    ballast_close(client);
    fake_stop(&fake);
    world_memory_destroy(&memory);
}

/* No data socket is used, and no slot comes with the batch. */
static void serve_a_plan(struct fake *fake) {
    struct world_memory *memory = fake->context;
    struct frame_header header;
    const uint8_t *data;
    uint32_t call, stream;
    Ballast__V1__HelloResponse hello;
    struct world_batch batch;
    Ballast__V1__StreamResponse event = BALLAST__V1__STREAM_RESPONSE__INIT;
    fake_accept(fake);
    Ballast__V1__HelloRequest *request = fake_request(
        fake, "Hello", &ballast__v1__hello_request__descriptor, &call);
    FAKE_CHECK(request->n_parts == 1);
    FAKE_CHECK(request->parts[0] == BALLAST__V1__PART__PART_PLAN);
    world_hello_init(&hello, fake);
    fake_respond(fake, call, &hello.base);
    (void)world_stream(fake, &stream);
    world_batch_init(&batch, memory, 3, 0);
    batch.message.slab_bytes = 0;
    event.event_case = BALLAST__V1__STREAM_RESPONSE__EVENT_BATCH;
    event.batch = &batch.message;
    fake_send(fake, stream, &event.base);
    world_batch_free(&batch);
    while (fake_receive(fake, &header, &data)) {
    }
}

static void a_middle_stage_needs_the_plan_alone(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    int32_t rows[WORLD_ROWS];
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, serve_a_plan, &memory);
    struct ballast_options options = options_for(&fake);
    options.parts = BALLAST_PART_PLAN;
    struct ballast *client = open_client(&options);
    const struct ballast_batch *batch = next_batch(client, 3, 0);
    assert_int_equal(ballast_gather(client, batch, BALLAST_POSITIONS, BALLAST_INT32, rows, 4), 4);
    assert_int_equal(rows[3], 2);
    assert_int_equal(ballast_gather(client, batch, BALLAST_TOKENS, BALLAST_INT32, rows, 4),
                     -EINVAL);
    ballast_close(client);
    fake_stop(&fake);
    world_memory_destroy(&memory);
}

/* An empty micro-batch at the end of data: no documents, no slot, rows of padding. */
static void serve_padding(struct fake *fake) {
    struct world_memory *memory = fake->context;
    struct frame_header header;
    const uint8_t *data;
    struct world_batch batch;
    Ballast__V1__StreamResponse event = BALLAST__V1__STREAM_RESPONSE__INIT;
    uint32_t stream = world_serve(fake, memory, 3, 0, 4);
    world_batch_make(&batch, NULL, 0, NULL, 0, 2, 2, WORLD_CP, 0);
    batch.id.step = 3;
    event.event_case = BALLAST__V1__STREAM_RESPONSE__EVENT_BATCH;
    event.batch = &batch.message;
    fake_send(fake, stream, &event.base);
    world_batch_free(&batch);
    while (fake_receive(fake, &header, &data)) {
    }
}

static void an_empty_micro_batch_is_all_padding(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    int64_t rows[2] = {7, 7};
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, serve_padding, &memory);
    struct ballast_options options = options_for(&fake);
    struct ballast *client = open_client(&options);
    const struct ballast_batch *batch = next_batch(client, 3, 0);
    assert_int_equal(batch->rows, 2);
    assert_int_equal(batch->pad_rows, 2);
    assert_int_equal(ballast_gather(client, batch, BALLAST_TOKENS, BALLAST_INT64, rows, 2), 2);
    assert_true(rows[0] == 0 && rows[1] == 0);
    assert_int_equal(ballast_gather(client, batch, BALLAST_LABELS, BALLAST_INT64, rows, 2), 2);
    assert_true(rows[0] == -100 && rows[1] == -100);
    ballast_close(client);
    fake_stop(&fake);
    world_memory_destroy(&memory);
}

static void bad_options_are_named(void **state) {
    (void)state;
    struct ballast *client = NULL;
    struct ballast_options options = BALLAST_OPTIONS_INIT;
    options.socket = "/nonexistent/ballast.sock";
    options.connect_timeout_ms = 0;
    options.credits = 0;
    assert_int_equal(ballast_open(&options, &client), -EINVAL);
    assert_non_null(strstr(ballast_error(client), "credits"));
    assert_int_equal(ballast_job(client, &(struct ballast_job){0}), -ENOTCONN);
    assert_int_equal(ballast_fd(client), -1);
    ballast_close(client);
    options.credits = 4;
    options.parts = 8;
    assert_int_equal(ballast_open(&options, &client), -EINVAL);
    assert_non_null(strstr(ballast_error(client), "parts"));
    ballast_close(client);
    options.parts = BALLAST_PART_PLAN;
    options.size--;
    assert_int_equal(ballast_open(&options, &client), -EINVAL);
    assert_non_null(strstr(ballast_error(client), "BALLAST_OPTIONS_INIT"));
    ballast_close(client);
    options.size++;
    assert_int_equal(ballast_open(&options, &client), -ECONNREFUSED);
    assert_non_null(strstr(ballast_error(client), "no daemon listens on /nonexistent"));
    ballast_close(client);
    ballast_close(NULL);
    assert_string_equal(ballast_error(NULL), "out of memory");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_gets_every_batch_in_order_and_the_end),
        cmocka_unit_test(a_batch_says_what_the_plan_says),
        cmocka_unit_test(misuse_is_an_error_with_a_sentence),
        cmocka_unit_test(holding_every_batch_is_said_and_not_waited_for),
        cmocka_unit_test(timeouts_are_kept_and_waiting_adds_up),
        cmocka_unit_test(waits_cover_the_calls_that_timed_out_and_are_reported_with_the_release),
        cmocka_unit_test(measured_times_travel_with_the_commit),
        cmocka_unit_test(a_foreign_loop_polls_and_takes_until_nothing_is_left),
        cmocka_unit_test(after_fork_the_child_is_refused),
        cmocka_unit_test(a_rank_may_start_where_only_the_end_of_a_step_is_due),
        cmocka_unit_test(a_middle_stage_needs_the_plan_alone),
        cmocka_unit_test(an_empty_micro_batch_is_all_padding),
        cmocka_unit_test(bad_options_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
