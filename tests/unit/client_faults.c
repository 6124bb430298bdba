/* libballast against a scripted daemon that dies, comes back, changes its mind or talks nonsense.
 */
#include "client_world.h"

#include "client/ballast.h"
#include "client/client.h"
#include "client/deadline.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct ballast *open_client(const struct fake *fake, int connect_timeout_ms) {
    struct ballast_options options = BALLAST_OPTIONS_INIT;
    struct ballast *client = NULL;
    options.socket = fake->path;
    options.connect_timeout_ms = connect_timeout_ms;
    int code = ballast_open(&options, &client);
    if (code < 0) {
        fail_msg("ballast_open: %s", ballast_error(client));
    }
    return client;
}

static void expect_tokens(struct ballast *client, const struct ballast_batch *batch) {
    static const uint32_t rows[WORLD_ROWS] = {0, 1, 6, 7};
    int32_t tokens[WORLD_ROWS];
    assert_int_equal(
        ballast_gather(client, batch, BALLAST_TOKENS, BALLAST_INT32, tokens, WORLD_ROWS),
        WORLD_ROWS);
    for (uint32_t i = 0; i < WORLD_ROWS; i++) {
        assert_int_equal(tokens[i], world_token(batch->step, batch->index, rows[i]));
    }
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
    expect_tokens(client, batch);
    return batch;
}

static void receive_until_gone(struct fake *fake) {
    struct frame_header header;
    const uint8_t *data;
    while (fake_receive(fake, &header, &data)) {
    }
}

static void finish(struct ballast *client, struct fake *fake, struct world_memory *memory) {
    ballast_close(client);
    fake_stop(fake);
    world_memory_destroy(memory);
}

/* Gives out (3, 0) and (3, 1), dies, and comes back with other memory. The new daemon first thinks
 * that the old connection lives. */
static void die_after_two_batches(struct fake *fake) {
    struct world_memory *memory = fake->context;
    struct world_memory second;
    uint32_t call, stream = world_serve(fake, memory, 3, 0, 4);
    world_send_batch(fake, stream, memory, 3, 0);
    world_send_batch(fake, stream, memory, 3, 1);
    fake_hang_up(fake);
    fake_accept(fake);
    Ballast__V1__HelloRequest *hello = fake_request(fake, "Hello",
                                                    &ballast__v1__hello_request__descriptor, &call);
    FAKE_CHECK(hello->job_digest.len == 16);
    fake_refuse(fake, call, STATUS_ALREADY_EXISTS, "this rank is served already");
    world_memory_create(&second, WORLD_SLOTS * WORLD_SLOT_BYTES);
    stream = world_serve(fake, &second, 3, 2, 2);
    world_send_end_of_step(fake, stream, 3);
    world_send_batch(fake, stream, &second, 4, 0);
    Ballast__V1__StreamRequest *request = fake_stream_request(fake, stream);
    FAKE_CHECK(request->credits == 1);
    FAKE_CHECK(request->n_released == 0);
    world_expect_release(fake, stream, 4, 0);
    receive_until_gone(fake);
    world_memory_destroy(&second);
}

static void a_rank_goes_on_at_the_right_batch_when_the_daemon_comes_back(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    const struct ballast_batch *batch = NULL;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, die_after_two_batches, &memory);
    struct ballast *client = open_client(&fake, 30000);
    const struct ballast_batch *first = next_batch(client, 3, 0);
    const struct ballast_batch *second = next_batch(client, 3, 1);
    assert_int_equal(ballast_next(client, -1, &batch), BALLAST_END_OF_STEP);
    assert_int_equal(ballast_step(client), 3);
    expect_tokens(client, first);
    expect_tokens(client, second);
    const struct ballast_batch *third = next_batch(client, 4, 0);
    assert_int_equal(ballast_release(client, first), 0);
    assert_int_equal(ballast_release(client, third), 0);
    finish(client, &fake, &memory);
}

/* What a trainer was told of memory. */
struct registered {
    int answer; /* to the next one */
    const void *now[2];
    int maps, unmaps;
};

static int note_map(void *context, const void *address, size_t bytes) {
    struct registered *registered = context;
    assert_int_equal(bytes, WORLD_SLOTS * WORLD_SLOT_BYTES);
    assert_in_range(registered->maps, 0, 1);
    registered->now[registered->maps++] = address;
    return registered->answer;
}

static void note_unmap(void *context, const void *address, size_t bytes) {
    struct registered *registered = context;
    assert_int_equal(bytes, WORLD_SLOTS * WORLD_SLOT_BYTES);
    assert_true(address == registered->now[0] || address == registered->now[1]);
    assert_int_equal(*(const volatile uint8_t *)address, *(const volatile uint8_t *)address);
    registered->unmaps++;
}

static int open_registering(const struct fake *fake, struct registered *registered,
                            struct ballast **client) {
    struct ballast_options options = BALLAST_OPTIONS_INIT;
    options.socket = fake->path;
    options.map = note_map;
    options.unmap = note_unmap;
    options.map_context = registered;
    options.prefault = 1;
    return ballast_open(&options, client);
}

static void memory_is_registered_once_a_mapping_and_until_no_batch_lies_in_it(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    struct registered registered = {0};
    const struct ballast_batch *batch = NULL;
    struct ballast *client;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, die_after_two_batches, &memory);
    assert_int_equal(open_registering(&fake, &registered, &client), 0);
    assert_int_equal(registered.maps, 1);
    const struct ballast_batch *first = next_batch(client, 3, 0);
    const struct ballast_batch *second = next_batch(client, 3, 1);
    assert_int_equal(ballast_next(client, -1, &batch), BALLAST_END_OF_STEP);
    const struct ballast_batch *third = next_batch(client, 4, 0);
    assert_int_equal(registered.maps, 2);
    assert_int_equal(ballast_release(client, first), 0);
    assert_int_equal(ballast_release(client, third), 0);
    expect_tokens(client, second);
    assert_int_equal(registered.unmaps, 0);
    finish(client, &fake, &memory);
    assert_int_equal(registered.unmaps, 2);
}

static void pass_memory(struct fake *fake) {
    Ballast__V1__HelloResponse hello;
    world_hello_init(&hello, fake);
    fake_accept(fake);
    world_greet(fake, &hello);
    world_pass(fake, fake->context);
    receive_until_gone(fake);
}

static void memory_that_cannot_be_registered_ends_the_open(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    struct registered registered = {.answer = 7};
    struct ballast *client;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, pass_memory, &memory);
    assert_int_equal(open_registering(&fake, &registered, &client), -ECANCELED);
    assert_non_null(strstr(ballast_error(client), "answered 7"));
    assert_int_equal(registered.unmaps, 0);
    finish(client, &fake, &memory);
}

/* Dies at once, `context` times, before it sends a single event; the last time not at all. */
struct deaths {
    struct world_memory *memory;
    int count;
};

static void die_again_and_again(struct fake *fake) {
    const struct deaths *deaths = fake->context;
    for (int i = 0; i < deaths->count; i++) {
        uint32_t stream = world_serve(fake, deaths->memory, 3, 0, 4);
        if (i % 3 == 0) {
            static const uint8_t half[] = {0, 0, 1, 0, 0, 0, 0, 3, 3, 0, 42};
            fake_send_raw(fake, half, sizeof half);
        } else if (i % 3 == 1) {
            fake_refuse(fake, stream, STATUS_UNAVAILABLE, "the daemon is stopping");
        }
        fake_hang_up(fake);
    }
    uint32_t stream = world_serve(fake, deaths->memory, 3, 0, 4);
    world_send_batch(fake, stream, deaths->memory, 3, 0);
    receive_until_gone(fake);
}

static void half_frames_hang_ups_and_stops_lose_nothing(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    struct deaths deaths = {&memory, 5};
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, die_again_and_again, &deaths);
    struct ballast *client = open_client(&fake, 30000);
    (void)next_batch(client, 3, 0);
    finish(client, &fake, &memory);
}

/* Serves once, then never again. */
static void die_for_good(struct fake *fake) {
    (void)world_serve(fake, fake->context, 3, 0, 4);
    close(fake->listener);
    fake->listener = -1;
    unlink(fake->path);
    fake_hang_up(fake);
}

/* From now on, so that a busy machine has all the time for the first greeting. The window is open
 * still: a greeting does not close it. */
static void give_up_after(struct ballast *client, int connect_timeout_ms) {
    client->link.options.connect_timeout_ms = connect_timeout_ms;
    client->link.window_ns = deadline_now_ns();
    client->link.give_up_ns = deadline_in_ms(connect_timeout_ms);
}

static void a_daemon_that_stays_away_is_given_up_after_the_timeout(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    const struct ballast_batch *batch = NULL;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, die_for_good, &memory);
    struct ballast *client = open_client(&fake, 30000);
    pthread_join(fake.thread, NULL);
    fake.script = NULL;
    give_up_after(client, 300);
    assert_int_equal(ballast_next(client, 0, &batch), 0);
    assert_int_equal(ballast_fd(client), -1);
    int64_t begin_ns = deadline_now_ns();
    assert_int_equal(ballast_next(client, -1, &batch), -ECONNREFUSED);
    assert_true(deadline_now_ns() - begin_ns < (int64_t)30000 * 1000000);
    assert_non_null(strstr(ballast_error(client), "tried for 300 ms: no daemon listens on"));
    begin_ns = deadline_now_ns();
    assert_int_equal(ballast_commit(client, 3), -ECONNREFUSED);
    assert_true(deadline_now_ns() - begin_ns >= 300 * 1000000);
    close(fake.data_listener);
    unlink(fake.data_path);
    finish(client, &fake, &memory);
}

/* Accepts, and says nothing any more. */
static void fall_silent(struct fake *fake) {
    (void)world_serve(fake, fake->context, 3, 0, 4);
    fake_hang_up(fake);
    fake_accept(fake);
    receive_until_gone(fake);
}

static void a_daemon_that_does_not_greet_is_a_timeout(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    const struct ballast_batch *batch = NULL;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, fall_silent, &memory);
    struct ballast *client = open_client(&fake, 30000);
    give_up_after(client, 500);
    assert_int_equal(ballast_next(client, -1, &batch), -ETIMEDOUT);
    assert_non_null(strstr(ballast_error(client), "did not answer within 500 ms"));
    finish(client, &fake, &memory);
}

/* The window ends in a try that has lasted so long, after one that was refused. */
static void expect_given_up(int64_t lasted_ms, int code, const char *sentence) {
    struct fake fake;
    struct world_memory memory;
    const struct ballast_batch *batch = NULL;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, fall_silent, &memory);
    struct ballast *client = open_client(&fake, 30000);
    while (client->link.state != LINK_GREETING) {
        assert_int_equal(ballast_next(client, 10, &batch), 0);
    }
    struct link *link = &client->link;
    error_set(&link->loss, -EAGAIN, "this step has another mesh");
    link->begun_ns = deadline_now_ns() - lasted_ms * 1000000;
    link->give_up_ns = deadline_now_ns();
    link->window_ns = link->give_up_ns - INT64_C(30000000000);
    assert_int_equal(ballast_next(client, -1, &batch), code);
    assert_non_null(strstr(ballast_error(client), sentence));
    finish(client, &fake, &memory);
}

static void who_is_refused_to_the_end_is_told_why_also_in_the_midst_of_a_try(void **state) {
    (void)state;
    expect_given_up(0, -EAGAIN, "tried for 30000 ms: this step has another mesh");
    expect_given_up(1000, -ETIMEDOUT, "did not answer within 30000 ms");
}

struct told {
    unsigned count;
    char sentence[512];
};

static void note_told(void *context, const char *sentence) {
    struct told *told = context;
    told->count++;
    (void)snprintf(told->sentence, sizeof told->sentence, "%s", sentence);
}

static int open_telling(const char *path, int connect_timeout_ms, int waiting_after_ms,
                        struct told *told) {
    struct ballast_options options = BALLAST_OPTIONS_INIT;
    struct ballast *client = NULL;
    options.socket = path;
    options.connect_timeout_ms = connect_timeout_ms;
    options.waiting = note_told;
    options.waiting_context = told;
    options.waiting_after_ms = waiting_after_ms;
    int code = ballast_open(&options, &client);
    ballast_close(client);
    return code;
}

static void who_waits_for_the_daemon_is_told_once_for_what(void **state) {
    (void)state;
    struct told told = {0};
    assert_int_equal(open_telling("/nonexistent/sock", 120, 40, &told), -ECONNREFUSED);
    assert_int_equal(told.count, 1);
    assert_non_null(strstr(told.sentence, "waiting for the daemon since "));
    assert_non_null(strstr(told.sentence, " s, for 0 s at most"));
    assert_non_null(
        strstr(told.sentence, "no daemon listens on /nonexistent/sock; start ballastd"));
    told = (struct told){0};
    assert_int_equal(open_telling("/nonexistent/sock", 0, 40, &told), -ECONNREFUSED);
    assert_int_equal(told.count, 0);
}

static void greet_late(struct fake *fake) {
    fake_accept(fake);
    receive_until_gone(fake);
}

static void a_silent_daemon_is_told_of_too(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    struct told told = {0};
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, greet_late, &memory);
    assert_int_equal(open_telling(fake.path, 120, 40, &told), -ETIMEDOUT);
    assert_int_equal(told.count, 1);
    assert_non_null(strstr(told.sentence, "takes connections and does not answer"));
    finish(NULL, &fake, &memory);
}

/* Commits step 3 acknowledged, then a daemon that was killed; then the job goes to another step. */
static void forget_the_commit(struct fake *fake) {
    struct world_memory *memory = fake->context;
    Ballast__V1__CommitResponse committed = BALLAST__V1__COMMIT_RESPONSE__INIT;
    Ballast__V1__SeekResponse sought = BALLAST__V1__SEEK_RESPONSE__INIT;
    Ballast__V1__HelloResponse greeting;
    uint32_t call;
    (void)world_serve(fake, memory, 3, 0, 4);
    (void)fake_request(fake, "Commit", &ballast__v1__commit_request__descriptor, &call);
    fake_respond(fake, call, &committed.base);
    fake_hang_up(fake);
    fake_accept(fake);
    Ballast__V1__HelloRequest *hello = fake_request(fake, "Hello",
                                                    &ballast__v1__hello_request__descriptor, &call);
    FAKE_CHECK(hello->committed_step == 4 && hello->generation == 1);
    world_hello_init(&greeting, fake);
    fake_respond(fake, call, &greeting.base);
    world_pass(fake, memory);
    (void)fake_request(fake, "Seek", &ballast__v1__seek_request__descriptor, &call);
    sought.next_step = 1;
    sought.generation = 2;
    fake_respond(fake, call, &sought.base);
    fake_hang_up(fake);
    fake_accept(fake);
    hello = fake_request(fake, "Hello", &ballast__v1__hello_request__descriptor, &call);
    FAKE_CHECK(hello->committed_step == 0);
    receive_until_gone(fake);
}

static void a_greeting_says_what_was_acknowledged_in_this_generation(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    const struct ballast_batch *batch = NULL;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, forget_the_commit, &memory);
    struct ballast *client = open_client(&fake, 300);
    assert_int_equal(ballast_commit(client, 3), 0);
    assert_int_equal(ballast_seek(client, 1, 0), 0);
    assert_int_equal(ballast_next(client, -1, &batch), -ETIMEDOUT);
    finish(client, &fake, &memory);
}

static void hang_up_on_commit(struct fake *fake) {
    struct world_memory *memory = fake->context;
    Ballast__V1__HelloResponse hello;
    Ballast__V1__CommitResponse response = BALLAST__V1__COMMIT_RESPONSE__INIT;
    uint32_t call;
    (void)world_serve(fake, memory, 3, 0, 4);
    (void)fake_request(fake, "Commit", &ballast__v1__commit_request__descriptor, &call);
    fake_accept(fake);
    world_hello_init(&hello, fake);
    world_greet(fake, &hello);
    world_pass(fake, memory);
    Ballast__V1__CommitRequest *request = fake_request(
        fake, "Commit", &ballast__v1__commit_request__descriptor, &call);
    FAKE_CHECK(request->step == 2);
    fake_respond(fake, call, &response.base);
    (void)fake_request(fake, "Commit", &ballast__v1__commit_request__descriptor, &call);
    fake_refuse(fake, call, STATUS_OUT_OF_RANGE, "step 77 was not planned");
    uint32_t stream;
    FAKE_CHECK(world_stream(fake, &stream)->from->step == 3);
    world_send_batch(fake, stream, memory, 3, 0);
    receive_until_gone(fake);
}

static void a_commit_is_repeated_until_it_is_answered(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, hang_up_on_commit, &memory);
    struct ballast *client = open_client(&fake, 30000);
    assert_int_equal(ballast_commit(client, 2), 0);
    assert_int_equal(ballast_commit(client, 77), -ERANGE);
    assert_string_equal(ballast_error(client), "step 77 was not planned");
    (void)next_batch(client, 3, 0);
    finish(client, &fake, &memory);
}

/* The slot of (3, 1) is reused between the message and the reading; then the step goes on, and
 * comes again from (3, 1). */
static void reuse_the_slot(struct fake *fake) {
    struct world_memory *memory = fake->context;
    struct world_batch batch;
    Ballast__V1__StreamResponse event = BALLAST__V1__STREAM_RESPONSE__INIT;
    uint32_t stream = world_serve(fake, memory, 3, 0, 4);
    world_send_batch(fake, stream, memory, 3, 0);
    world_batch_init(&batch, memory, 3, 1);
    batch.message.slot_generation--;
    event.event_case = BALLAST__V1__STREAM_RESPONSE__EVENT_BATCH;
    event.batch = &batch.message;
    fake_send(fake, stream, &event.base);
    world_batch_free(&batch);
    world_send_end_of_step(fake, stream, 3);
    world_send_batch(fake, stream, memory, 4, 0);
    receive_until_gone(fake);
    stream = world_serve(fake, memory, 3, 1, 3);
    world_send_batch(fake, stream, memory, 3, 1);
    world_send_end_of_step(fake, stream, 3);
    world_send_batch(fake, stream, memory, 4, 0);
    receive_until_gone(fake);
}

static void a_batch_whose_slot_was_reused_is_stale_and_comes_again(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    const struct ballast_batch *stale = NULL, *later = NULL;
    int32_t rows[WORLD_ROWS];
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, reuse_the_slot, &memory);
    struct ballast *client = open_client(&fake, 30000);
    assert_int_equal(ballast_release(client, next_batch(client, 3, 0)), 0);
    assert_int_equal(ballast_next(client, -1, &stale), BALLAST_BATCH);
    assert_int_equal(ballast_next(client, -1, &later), BALLAST_END_OF_STEP);
    later = next_batch(client, 4, 0);
    assert_int_equal(ballast_gather(client, stale, BALLAST_POSITIONS, BALLAST_INT32, rows, 4), 4);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ballast_gather(client, stale, BALLAST_TOKENS, BALLAST_INT32, rows, 4),
                         -ESTALE);
        assert_non_null(strstr(ballast_error(client), "it comes again"));
    }
    assert_int_equal(ballast_release(client, later), 0);
    (void)next_batch(client, 3, 1);
    assert_int_equal(ballast_next(client, -1, &later), BALLAST_END_OF_STEP);
    (void)next_batch(client, 4, 0);
    assert_int_equal(ballast_release(client, stale), 0);
    finish(client, &fake, &memory);
}

/* What a daemon must not send where (3, 1) comes next. After each the client must be back at the
 * same place. */
static void send_out_of_turn(struct fake *fake, uint32_t stream, struct world_memory *memory,
                             unsigned fault) {
    struct world_batch batch;
    Ballast__V1__StreamResponse event = BALLAST__V1__STREAM_RESPONSE__INIT;
    world_batch_init(&batch, memory, 3, 1);
    event.event_case = BALLAST__V1__STREAM_RESPONSE__EVENT_BATCH;
    event.batch = &batch.message;
    switch (fault) {
    case 0:
        batch.id.index = 0;
        break;
    case 1:
        batch.id.index = 2;
        break;
    case 2:
        batch.id.step = 4;
        break;
    case 3:
        batch.id.dp = 1;
        break;
    case 4:
        batch.message.id = NULL;
        break;
    case 5:
        world_send_end_of_step(fake, stream, 3);
        break;
    case 6:
        world_send_end_of_data(fake, stream, 3);
        break;
    case 7:
        batch.digest[3] ^= 1; /* a plan that changed midway */
        break;
    case 8:
        event.event_case = BALLAST__V1__STREAM_RESPONSE__EVENT__NOT_SET;
        break;
    default:
        abort();
    }
    if (fault != 5 && fault != 6) {
        fake_send(fake, stream, &event.base);
    }
    world_batch_free(&batch);
}

enum { OUT_OF_TURN_FAULTS = 9 };

static void serve_out_of_turn(struct fake *fake) {
    struct world_memory *memory = fake->context;
    uint32_t stream = world_serve(fake, memory, 3, 0, 4);
    world_send_batch(fake, stream, memory, 3, 0);
    for (unsigned fault = 0; fault < OUT_OF_TURN_FAULTS; fault++) {
        send_out_of_turn(fake, stream, memory, fault);
        receive_until_gone(fake);
        stream = world_serve(fake, memory, 3, 1, 3);
    }
    world_send_batch(fake, stream, memory, 3, 1);
    receive_until_gone(fake);
}

static void nothing_but_the_next_event_is_taken(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    const struct ballast_batch *batch = NULL;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, serve_out_of_turn, &memory);
    struct ballast *client = open_client(&fake, 30000);
    (void)next_batch(client, 3, 0);
    for (unsigned fault = 0; fault < OUT_OF_TURN_FAULTS; fault++) {
        assert_int_equal(ballast_next(client, -1, &batch), -EPROTO);
        assert_true(strlen(ballast_error(client)) > 10);
        assert_int_equal(ballast_step(client), 3);
    }
    (void)next_batch(client, 3, 1);
    finish(client, &fake, &memory);
}

/* The end of step 3 with another digest than its batches had; then the right one. */
static void end_a_step_wrongly(struct fake *fake) {
    struct world_memory *memory = fake->context;
    uint8_t digest[16] = {0};
    Ballast__V1__EndOfStep end = BALLAST__V1__END_OF_STEP__INIT;
    Ballast__V1__StreamResponse event = BALLAST__V1__STREAM_RESPONSE__INIT;
    event.event_case = BALLAST__V1__STREAM_RESPONSE__EVENT_END_OF_STEP;
    event.end_of_step = &end;
    uint32_t stream = world_serve(fake, memory, 3, 0, 4);
    world_send_batch(fake, stream, memory, 3, 0);
    world_send_batch(fake, stream, memory, 3, 1);
    end.step = 3;
    end.plan_digest.data = digest;
    for (size_t bytes = 15; bytes <= 16; bytes++) {
        end.plan_digest.len = bytes;
        fake_send(fake, stream, &event.base);
        receive_until_gone(fake);
        stream = world_serve(fake, memory, 3, 2, 2);
    }
    world_send_end_of_step(fake, stream, 3);
    receive_until_gone(fake);
}

static void the_end_of_a_step_must_have_the_digest_of_its_batches(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    const struct ballast_batch *batch = NULL;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, end_a_step_wrongly, &memory);
    struct ballast *client = open_client(&fake, 30000);
    (void)next_batch(client, 3, 0);
    (void)next_batch(client, 3, 1);
    assert_int_equal(ballast_next(client, -1, &batch), -EPROTO);
    assert_int_equal(ballast_next(client, -1, &batch), -EPROTO);
    assert_string_equal(ballast_error(client), "the daemon changed its plan of step 3 midway");
    assert_int_equal(ballast_next(client, -1, &batch), BALLAST_END_OF_STEP);
    finish(client, &fake, &memory);
}

/* One field of batch (3, 0) made impossible. */
enum { IMPOSSIBLE_FAULTS = 19 };

static void spoil(struct world_batch *batch, unsigned fault) {
    Ballast__V1__Document *document = batch->plan.documents[1];
    Ballast__V1__RankShard *shard = batch->sharding.ranks[0];
    switch (fault) {
    case 0:
        batch->message.plan = NULL;
        break;
    case 1:
        batch->plan.sharding = NULL;
        break;
    case 2:
        batch->message.plan_digest.len = 8;
        break;
    case 3:
        batch->sharding.n_ranks = 1;
        break;
    case 4:
        document->length = 0;
        break;
    case 5:
        document->offset = UINT32_MAX;
        break;
    case 6:
        batch->plan.tokens++;
        break;
    case 7:
        document->length = document->document_length = UINT32_MAX;
        document->offset = 0;
        batch->plan.tokens = 5 + (uint64_t)UINT32_MAX;
        break;
    case 8:
        shard->fragments[1]->document = 2;
        break;
    case 9:
        shard->fragments[1]->start = 2;
        break;
    case 10:
        shard->fragments[0]->length = 0;
        break;
    case 11:
        shard->fragments[0]->start = UINT32_MAX;
        break;
    case 12:
        shard->rows = 3;
        break;
    case 13:
        shard->pad_rows = 1;
        break;
    case 14:
        shard->rows = UINT64_MAX;
        shard->pad_rows = UINT64_MAX - WORLD_ROWS;
        break;
    case 15:
        batch->message.slab_bytes -= 2;
        break;
    case 16:
        batch->message.slab_offset = UINT64_MAX - 63;
        break;
    case 17:
        batch->message.slab_offset = WORLD_SLOTS * WORLD_SLOT_BYTES - 64;
        break;
    case 18:
        batch->message.slab_offset += 2;
        break;
    default:
        abort();
    }
}

static void serve_the_impossible(struct fake *fake) {
    struct world_memory *memory = fake->context;
    uint32_t stream = world_serve(fake, memory, 3, 0, 4);
    for (unsigned fault = 0; fault < IMPOSSIBLE_FAULTS; fault++) {
        struct world_batch batch;
        Ballast__V1__StreamResponse event = BALLAST__V1__STREAM_RESPONSE__INIT;
        world_batch_init(&batch, memory, 3, 0);
        spoil(&batch, fault);
        event.event_case = BALLAST__V1__STREAM_RESPONSE__EVENT_BATCH;
        event.batch = &batch.message;
        fake_send(fake, stream, &event.base);
        world_batch_free(&batch);
        receive_until_gone(fake);
        stream = world_serve(fake, memory, 3, 0, 4);
    }
    world_send_batch(fake, stream, memory, 3, 0);
    receive_until_gone(fake);
}

static void an_impossible_batch_is_refused_by_name(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    const struct ballast_batch *batch = NULL;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, serve_the_impossible, &memory);
    struct ballast *client = open_client(&fake, 30000);
    for (unsigned fault = 0; fault < IMPOSSIBLE_FAULTS; fault++) {
        assert_int_equal(ballast_next(client, -1, &batch), -EPROTO);
        assert_non_null(strstr(ballast_error(client), "the daemon sent an impossible batch: "));
    }
    (void)next_batch(client, 3, 0);
    finish(client, &fake, &memory);
}

static void serve_more_than_asked(struct fake *fake) {
    struct world_memory *memory = fake->context;
    uint32_t stream = world_serve(fake, memory, 3, 0, 4);
    for (uint64_t step = 3; step < 6; step++) {
        world_send_batch(fake, stream, memory, step, 0);
        world_send_batch(fake, stream, memory, step, 1);
        world_send_end_of_step(fake, stream, step);
    }
    receive_until_gone(fake);
}

static void a_daemon_that_sends_without_credit_is_refused(void **state) {
    (void)state;
    struct fake fake;
    struct world_memory memory;
    const struct ballast_batch *batch = NULL;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, serve_more_than_asked, &memory);
    struct ballast *client = open_client(&fake, 30000);
    for (uint64_t step = 3; step < 5; step++) {
        (void)next_batch(client, step, 0);
        (void)next_batch(client, step, 1);
        assert_int_equal(ballast_next(client, -1, &batch), BALLAST_END_OF_STEP);
    }
    int code = ballast_next(client, -1, &batch);
    assert_true(code == -EPROTO || code == -EBUSY);
    finish(client, &fake, &memory);
}

/* After a first connection, greetings that are another job's, another mesh's, another width's. */
static void change_the_job(struct fake *fake) {
    struct world_memory *memory = fake->context;
    Ballast__V1__HelloResponse hello;
    Ballast__V1__Mesh mesh = BALLAST__V1__MESH__INIT;
    uint8_t digest[16] = {0};
    mesh.dp = 2;
    mesh.pp = mesh.tp = 1;
    mesh.cp = WORLD_CP;
    (void)world_serve(fake, memory, 3, 0, 4);
    for (int change = 0; change < 3; change++) {
        fake_accept(fake);
        world_hello_init(&hello, fake);
        if (change == 0) {
            hello.job_digest.data = digest;
        } else if (change == 1) {
            hello.mesh = &mesh;
        } else {
            hello.token_bytes = 4;
        }
        world_greet(fake, &hello);
        receive_until_gone(fake);
    }
    uint32_t stream = world_serve(fake, memory, 3, 0, 4);
    world_send_batch(fake, stream, memory, 3, 0);
    receive_until_gone(fake);
}

static void another_job_is_refused_and_named(void **state) {
    (void)state;
    static const char *const names[] = {"the daemon's job", "the daemon's mesh",
                                        "the daemon's token width"};
    struct fake fake;
    struct world_memory memory;
    const struct ballast_batch *batch = NULL;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, change_the_job, &memory);
    struct ballast *client = open_client(&fake, 30000);
    for (int change = 0; change < 3; change++) {
        assert_int_equal(ballast_next(client, -1, &batch), -EINVAL);
        assert_non_null(strstr(ballast_error(client), names[change]));
    }
    (void)next_batch(client, 3, 0);
    finish(client, &fake, &memory);
}

/* Greetings that make no sense to a client that opens. */
static void greet_badly(struct fake *fake) {
    Ballast__V1__HelloResponse hello;
    for (int fault = 0; fault < 9; fault++) {
        Ballast__V1__Mesh mesh = BALLAST__V1__MESH__INIT;
        uint8_t token[3] = {0};
        mesh.dp = mesh.pp = mesh.tp = mesh.cp = 1;
        world_hello_init(&hello, fake);
        hello.protocol = fault == 0 ? 2 : hello.protocol;
        hello.job_digest.len = fault == 1 ? 15 : hello.job_digest.len;
        hello.mesh = fault == 2 ? NULL : hello.mesh;
        hello.mesh = fault == 3 ? &mesh : hello.mesh;
        hello.micro_batches = fault == 4 ? 0 : hello.micro_batches;
        hello.token_bytes = fault == 5 ? 3 : hello.token_bytes;
        hello.tokens_max = fault == 6 ? UINT64_MAX : hello.tokens_max;
        if (fault == 7) {
            hello.data_token = (ProtobufCBinaryData){sizeof token, token};
        }
        hello.data_path = fault == 8 ? "" : hello.data_path;
        fake_accept(fake);
        world_greet(fake, &hello);
        receive_until_gone(fake);
    }
    uint32_t call;
    fake_accept(fake);
    (void)fake_request(fake, "Hello", &ballast__v1__hello_request__descriptor, &call);
    fake_refuse(fake, call, STATUS_ALREADY_EXISTS, "rank (0, 0, 1, 0) is served already");
    receive_until_gone(fake);
}

static void a_greeting_is_judged_before_anything_is_believed(void **state) {
    (void)state;
    static const int expected[] = {-EPROTO, -EPROTO, -EPROTO, -EINVAL,     -EPROTO,
                                   -EPROTO, -EPROTO, -EPROTO, -EOPNOTSUPP, -EEXIST};
    struct fake fake;
    struct world_memory memory;
    world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    fake_start(&fake, greet_badly, NULL);
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        struct ballast_options options = BALLAST_OPTIONS_INIT;
        struct ballast *client = NULL;
        options.socket = fake.path;
        options.cp = 1;
        options.transport = BALLAST_TRANSPORT_SHARED;
        assert_int_equal(ballast_open(&options, &client), expected[i]);
        assert_true(strlen(ballast_error(client)) > 10);
        ballast_close(client);
    }
    finish(NULL, &fake, &memory);
}

/* Memory that could be cut short or written by others is not mapped; nor is what is no memory. */
static void pass_bad_memory(struct fake *fake) {
    Ballast__V1__HelloResponse hello;
    for (int fault = 0; fault < 4; fault++) {
        struct world_memory memory;
        world_memory_create(&memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
        world_hello_init(&hello, fake);
        if (fault == 0) {
            close(memory.fd);
            memory.fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
            FAKE_CHECK(ftruncate(memory.fd, WORLD_SLOTS * WORLD_SLOT_BYTES) == 0);
        } else if (fault == 1) {
            hello.slab_bytes++;
        } else if (fault == 2) {
            close(memory.fd);
            memory.fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        }
        fake_accept(fake);
        world_greet(fake, &hello);
        if (fault < 3) {
            world_pass(fake, &memory);
        } else {
            uint8_t token[MAPPING_TOKEN_BYTES];
            int fd = accept4(fake->data_listener, NULL, NULL, SOCK_CLOEXEC);
            FAKE_CHECK(recv(fd, token, sizeof token, MSG_WAITALL) == (ssize_t)sizeof token);
            FAKE_CHECK(send(fd, "x", 1, MSG_NOSIGNAL) == 1);
            close(fd);
        }
        receive_until_gone(fake);
        world_memory_destroy(&memory);
    }
}

static void memory_without_its_seals_is_not_mapped(void **state) {
    (void)state;
    static const char *const sentences[] = {"not sealed", "shorter", "not sealed", "descriptor"};
    struct fake fake;
    fake_start(&fake, pass_bad_memory, NULL);
    for (int fault = 0; fault < 4; fault++) {
        struct ballast_options options = BALLAST_OPTIONS_INIT;
        struct ballast *client = NULL;
        options.socket = fake.path;
        assert_int_equal(ballast_open(&options, &client), -EPROTO);
        assert_non_null(strstr(ballast_error(client), sentences[fault]));
        ballast_close(client);
    }
    fake_stop(&fake);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_goes_on_at_the_right_batch_when_the_daemon_comes_back),
        cmocka_unit_test(memory_is_registered_once_a_mapping_and_until_no_batch_lies_in_it),
        cmocka_unit_test(memory_that_cannot_be_registered_ends_the_open),
        cmocka_unit_test(half_frames_hang_ups_and_stops_lose_nothing),
        cmocka_unit_test(a_daemon_that_stays_away_is_given_up_after_the_timeout),
        cmocka_unit_test(a_daemon_that_does_not_greet_is_a_timeout),
        cmocka_unit_test(who_is_refused_to_the_end_is_told_why_also_in_the_midst_of_a_try),
        cmocka_unit_test(who_waits_for_the_daemon_is_told_once_for_what),
        cmocka_unit_test(a_silent_daemon_is_told_of_too),
        cmocka_unit_test(a_greeting_says_what_was_acknowledged_in_this_generation),
        cmocka_unit_test(a_commit_is_repeated_until_it_is_answered),
        cmocka_unit_test(a_batch_whose_slot_was_reused_is_stale_and_comes_again),
        cmocka_unit_test(nothing_but_the_next_event_is_taken),
        cmocka_unit_test(the_end_of_a_step_must_have_the_digest_of_its_batches),
        cmocka_unit_test(an_impossible_batch_is_refused_by_name),
        cmocka_unit_test(a_daemon_that_sends_without_credit_is_refused),
        cmocka_unit_test(another_job_is_refused_and_named),
        cmocka_unit_test(a_greeting_is_judged_before_anything_is_believed),
        cmocka_unit_test(memory_without_its_seals_is_not_mapped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
