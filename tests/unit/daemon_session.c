/* The protocol of one connection: every row of the state table, credits, order, releases, leases,
 * identities, starting points, commits. The world and its clock are fake. */
#include "daemon/loader.h"
#include "daemon_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct world world;

static int set_up(void **state) {
    (void)state;
    world_init(&world, true);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    world_deinit(&world);
    return 0;
}

/* Reads the next message as a Response; returns its status and checks its stream. */
static uint32_t read_status(struct world_session *at, uint32_t stream, char text[256]) {
    const struct world_sent *sent = world_read(at);
    assert_non_null(sent);
    assert_int_equal(sent->type, FRAME_RESPONSE);
    assert_int_equal(sent->stream, stream);
    Ttrpc__Response *response = ttrpc__response__unpack(NULL, sent->count, sent->bytes);
    assert_non_null(response);
    uint32_t code = response->status == NULL ? 0 : (uint32_t)response->status->code;
    (void)snprintf(text, 256, "%s", response->status == NULL ? "" : response->status->message);
    ttrpc__response__free_unpacked(response, NULL);
    return code;
}

static void expect_status(struct world_session *at, uint32_t stream, enum status status) {
    char text[256];
    uint32_t code = read_status(at, stream, text);
    if (code != (uint32_t)status) {
        fail_msg("status %u, not %s: %s", code, status_name(status), text);
    }
}

static void expect_refusal(struct world_session *at, uint32_t stream, enum status status,
                           const char *word) {
    char text[256];
    assert_int_equal(read_status(at, stream, text), status);
    if (strstr(text, word) == NULL) {
        fail_msg("'%s' is not in: %s", word, text);
    }
}

static void expect_silence(struct world_session *at) {
    assert_null(world_read(at));
}

static Ballast__V1__StreamResponse *read_event(struct world_session *at) {
    const struct world_sent *sent = world_read(at);
    assert_non_null(sent);
    assert_int_equal(sent->type, FRAME_DATA);
    assert_true(at->session.stream == 0 || sent->stream == at->session.stream);
    return ballast__v1__stream_response__unpack(NULL, sent->count, sent->bytes);
}

static void expect_batch(struct world_session *at, uint64_t step, uint32_t index) {
    Ballast__V1__StreamResponse *event = read_event(at);
    assert_int_equal(event->event_case, BALLAST__V1__STREAM_RESPONSE__EVENT_BATCH);
    assert_int_equal(event->batch->id->step, step);
    assert_int_equal(event->batch->id->index, index);
    assert_int_equal(event->batch->id->dp, at->session.member->place.dp);
    assert_int_equal(event->batch->plan_digest.data[0], (uint8_t)(step + 1));
    ballast__v1__stream_response__free_unpacked(event, NULL);
}

static void expect_end_of_step(struct world_session *at, uint64_t step) {
    Ballast__V1__StreamResponse *event = read_event(at);
    assert_int_equal(event->event_case, BALLAST__V1__STREAM_RESPONSE__EVENT_END_OF_STEP);
    assert_int_equal(event->end_of_step->step, step);
    assert_int_equal(event->end_of_step->plan_digest.len, PLAN_DIGEST_BYTES);
    ballast__v1__stream_response__free_unpacked(event, NULL);
}

static void expect_end_of_data(struct world_session *at, uint64_t step) {
    Ballast__V1__StreamResponse *event = read_event(at);
    assert_int_equal(event->event_case, BALLAST__V1__STREAM_RESPONSE__EVENT_END_OF_DATA);
    assert_int_equal(event->end_of_data->step, step);
    ballast__v1__stream_response__free_unpacked(event, NULL);
}

struct hello {
    Ballast__V1__HelloRequest request;
    Ballast__V1__Rank rank;
    Ballast__V1__Part parts[2];
};

static void hello_init(struct hello *hello, uint32_t dp, uint32_t cp) {
    ballast__v1__hello_request__init(&hello->request);
    ballast__v1__rank__init(&hello->rank);
    hello->rank.dp = dp;
    hello->rank.cp = cp;
    hello->parts[0] = BALLAST__V1__PART__PART_TOKENS;
    hello->parts[1] = BALLAST__V1__PART__PART_LABELS;
    hello->request.protocol_min = 1;
    hello->request.protocol_max = 1;
    hello->request.rank = &hello->rank;
    hello->request.n_parts = 2;
    hello->request.parts = hello->parts;
    hello->request.client = (char *)"test 1";
}

static uint32_t say_hello(struct world_session *at, const struct hello *hello) {
    return world_call(at, SESSION_LOADER, "Hello", 0, &hello->request.base);
}

static struct world_session *bound(uint32_t i, uint32_t dp, uint32_t cp) {
    struct world_session *at = world_connect(&world, i);
    struct hello hello;
    hello_init(&hello, dp, cp);
    expect_status(at, say_hello(at, &hello), STATUS_OK);
    return at;
}

static struct world_session *streaming_from(uint32_t i, uint32_t dp, uint32_t cp, uint32_t credits,
                                            uint64_t step, uint32_t index) {
    struct world_session *at = bound(i, dp, cp);
    Ballast__V1__BatchId from = BALLAST__V1__BATCH_ID__INIT;
    from.step = step;
    from.dp = dp;
    from.index = index;
    world_call(at, SESSION_LOADER, "Stream", FRAME_REMOTE_OPEN, NULL);
    world_stream(at, credits, &from);
    return at;
}

static struct world_session *streaming(uint32_t i, uint32_t dp, uint32_t cp, uint32_t credits) {
    struct world_session *at = bound(i, dp, cp);
    world_call(at, SESSION_LOADER, "Stream", FRAME_REMOTE_OPEN, NULL);
    world_stream(at, credits, NULL);
    return at;
}

static uint32_t commit(struct world_session *at, uint64_t step) {
    Ballast__V1__CommitRequest request = BALLAST__V1__COMMIT_REQUEST__INIT;
    request.step = step;
    return world_call(at, SESSION_LOADER, "Commit", 0, &request.base);
}

/* State table */

static void the_table_allows_the_rows_of_the_diagram_and_no_other(void **state) {
    static const bool allowed[6][6] = {
        [SESSION_NEW] = {[SESSION_BOUND] = true, [SESSION_CLOSED] = true},
        [SESSION_BOUND] = {[SESSION_OPENING] = true, [SESSION_CLOSED] = true},
        [SESSION_OPENING] =
            {[SESSION_STREAMING] = true, [SESSION_BOUND] = true, [SESSION_CLOSED] = true},
        [SESSION_STREAMING] =
            {[SESSION_ENDED] = true, [SESSION_BOUND] = true, [SESSION_CLOSED] = true},
        [SESSION_ENDED] = {[SESSION_BOUND] = true, [SESSION_CLOSED] = true},
    };
    (void)state;
    for (unsigned from = 0; from < 6; from++) {
        for (unsigned to = 0; to < 6; to++) {
            assert_int_equal(session_may_move((enum session_state)from, (enum session_state)to),
                             allowed[from][to]);
        }
    }
}

static void every_state_is_reached_by_its_event(void **state) {
    struct hello hello;
    (void)state;
    world.end = 1;
    struct world_session *at = world_connect(&world, 0);
    assert_int_equal(at->session.state, SESSION_NEW);
    hello_init(&hello, 0, 0);
    say_hello(at, &hello);
    assert_int_equal(at->session.state, SESSION_BOUND);
    uint32_t stream = world_call(at, SESSION_LOADER, "Stream", FRAME_REMOTE_OPEN, NULL);
    assert_int_equal(at->session.state, SESSION_OPENING);
    world_stream(at, 2, NULL);
    assert_int_equal(at->session.state, SESSION_STREAMING);
    world_pump(&world);
    assert_int_equal(at->session.state, SESSION_ENDED);
    world_frame(at, stream, FRAME_DATA, FRAME_REMOTE_CLOSED | FRAME_NO_DATA, NULL, 0);
    assert_int_equal(at->session.state, SESSION_BOUND);
    session_deinit(&at->session, world.now_ns);
    assert_int_equal(at->session.state, SESSION_CLOSED);
    session_deinit(&at->session, world.now_ns);
    assert_int_equal(world_frame(at, 9, FRAME_REQUEST, 0, (const uint8_t *)"x", 1), -EPROTO);
}

static void a_stream_may_be_closed_in_every_state_that_has_one(void **state) {
    (void)state;
    for (int opened = 0; opened < 3; opened++) {
        world.end = opened == 2 ? 0 : UINT64_MAX;
        struct world_session *at = bound(0, 0, 0);
        uint32_t stream = world_call(at, SESSION_LOADER, "Stream", FRAME_REMOTE_OPEN, NULL);
        if (opened > 0) {
            world_stream(at, 0, NULL);
        }
        world_pump(&world);
        if (opened == 2) {
            expect_end_of_data(at, 0);
        }
        world_frame(at, stream, FRAME_DATA, FRAME_REMOTE_CLOSED | FRAME_NO_DATA, NULL, 0);
        expect_status(at, stream, STATUS_OK);
        assert_int_equal(at->session.state, SESSION_BOUND);
        assert_false(at->session.member->streaming);
        world_call(at, SESSION_LOADER, "Stream", FRAME_REMOTE_OPEN, NULL);
        assert_int_equal(at->session.state, SESSION_OPENING);
    }
}

/* Hello */

static void hello_answers_the_identity_of_the_job(void **state) {
    struct hello hello;
    (void)state;
    struct world_session *at = world_connect(&world, 0);
    hello_init(&hello, 1, 1);
    say_hello(at, &hello);
    const struct world_sent *sent = world_read(at);
    Ttrpc__Response *response = ttrpc__response__unpack(NULL, sent->count, sent->bytes);
    Ballast__V1__HelloResponse *job = ballast__v1__hello_response__unpack(
        NULL, response->payload.len, response->payload.data);
    assert_int_equal(job->protocol, 1);
    assert_string_equal(job->daemon, "ballastd test");
    assert_int_equal(job->job_digest.len, 16);
    assert_memory_equal(job->job_digest.data, world.job.job_digest, 16);
    assert_int_equal(job->mesh->dp, WORLD_DP);
    assert_int_equal(job->mesh->cp, WORLD_CP);
    assert_int_equal(job->micro_batches, WORLD_PER_STEP);
    assert_int_equal(job->tokens_max, 64);
    assert_int_equal(job->token_bytes, 2);
    assert_int_equal(job->data_token.len, SESSION_TOKEN_BYTES);
    assert_int_equal(job->slab_bytes, 32768);
    assert_int_equal(job->generation, 9);
    assert_string_equal(job->data_path, "/run/b.sock.data");
    ballast__v1__hello_response__free_unpacked(job, NULL);
    ttrpc__response__free_unpacked(response, NULL);
}

static void hello_refuses_what_does_not_fit_this_daemon(void **state) {
    uint8_t other[16] = {9};
    struct hello hello;
    (void)state;
    world_deinit(&world);
    world_init(&world, false);
    struct world_session *at = world_connect(&world, 0);

    hello_init(&hello, 0, 0);
    hello.request.protocol_min = 2;
    hello.request.protocol_max = 3;
    expect_refusal(at, say_hello(at, &hello), STATUS_FAILED_PRECONDITION, "protocol 1");
    hello_init(&hello, 0, 7);
    expect_refusal(at, say_hello(at, &hello), STATUS_INVALID_ARGUMENT, "cp 7");
    hello_init(&hello, 5, 0);
    expect_refusal(at, say_hello(at, &hello), STATUS_INVALID_ARGUMENT, "dp 5");
    hello_init(&hello, 1, 0);
    expect_refusal(at, say_hello(at, &hello), STATUS_FAILED_PRECONDITION, "of this node are 0");
    hello_init(&hello, 0, 0);
    hello.request.rank = NULL;
    expect_refusal(at, say_hello(at, &hello), STATUS_INVALID_ARGUMENT, "no rank");
    hello_init(&hello, 0, 0);
    hello.parts[0] = (Ballast__V1__Part)9;
    expect_refusal(at, say_hello(at, &hello), STATUS_INVALID_ARGUMENT, "part");
    hello_init(&hello, 0, 0);
    hello.request.job_digest = (ProtobufCBinaryData){5, other};
    expect_refusal(at, say_hello(at, &hello), STATUS_INVALID_ARGUMENT, "16");
    hello.request.job_digest = (ProtobufCBinaryData){16, other};
    expect_refusal(at, say_hello(at, &hello), STATUS_FAILED_PRECONDITION, "another job");
    assert_int_equal(at->session.state, SESSION_NEW);

    hello.request.job_digest = (ProtobufCBinaryData){16, world.job.job_digest};
    expect_status(at, say_hello(at, &hello), STATUS_OK);
    expect_refusal(at, say_hello(at, &hello), STATUS_FAILED_PRECONDITION, "already");
}

static void a_live_identity_stays_with_the_first_and_passes_on_when_it_leaves(void **state) {
    struct hello hello;
    (void)state;
    struct world_session *first = bound(0, 0, 1);
    struct world_session *second = world_connect(&world, 1);
    hello_init(&hello, 0, 1);
    expect_refusal(second, say_hello(second, &hello), STATUS_ALREADY_EXISTS, "pid 100");
    assert_true(first->session.member->connected);
    session_deinit(&first->session, world.now_ns);
    expect_status(second, say_hello(second, &hello), STATUS_OK);
}

static void a_data_token_is_good_once(void **state) {
    uint8_t token[SESSION_TOKEN_BYTES];
    (void)state;
    struct world_session *at = world_connect(&world, 0);
    memset(token, 0, sizeof token);
    assert_false(session_use_token(&at->session, token));
    at = bound(0, 0, 0);
    assert_false(session_use_token(&at->session, token));
    memset(token, 0x5a, sizeof token);
    assert_true(session_use_token(&at->session, token));
    assert_false(session_use_token(&at->session, token));
}

/* Stream */

static void batches_come_in_order_on_credit_and_ends_of_steps_cost_none(void **state) {
    (void)state;
    struct world_session *at = streaming(0, 0, 0, 2);
    world_pump(&world);
    expect_batch(at, 0, 0);
    expect_batch(at, 0, 1);
    expect_end_of_step(at, 0);
    expect_silence(at);
    assert_int_equal(at->session.member->credits, 0);
    world_stream(at, 1, NULL);
    world_pump(&world);
    expect_batch(at, 1, 0);
    expect_silence(at);
}

static void a_rank_receives_its_part_of_a_pool_and_no_other(void **state) {
    (void)state;
    static const struct {
        uint32_t dp, cp;
        size_t met;
    } ranks[] = {{0, 0, 1}, {0, 1, 0}, {1, 0, 0}, {1, 1, 1}};
    world.pooled = true;
    for (uint32_t i = 0; i < 4; i++) {
        struct world_session *at = streaming(i, ranks[i].dp, ranks[i].cp, 1);
        world_pump(&world);
        Ballast__V1__StreamResponse *event = read_event(at);
        const Ballast__V1__PoolPart *part = event->batch->pool;
        assert_non_null(part);
        assert_int_equal(part->worker, ranks[i].dp * WORLD_CP + ranks[i].cp);
        assert_int_equal(part->n_tiles, ranks[i].met);
        assert_int_equal(part->n_transfers, ranks[i].met);
        ballast__v1__stream_response__free_unpacked(event, NULL);
    }
}

static void a_stream_without_from_starts_at_the_first_uncommitted_step(void **state) {
    (void)state;
    world.roster.committed_step = 6;
    struct world_session *at = streaming(0, 1, 0, 1);
    world_pump(&world);
    expect_batch(at, 6, 0);
}

static void from_may_ask_for_any_kept_step_and_for_the_end_alone(void **state) {
    (void)state;
    world.roster.committed_step = 4;
    world.progress.oldest_step = 3;
    world.progress.plannable_step = 9;
    struct world_session *at = streaming_from(0, 0, 0, 1, 3, 1);
    world_pump(&world);
    expect_batch(at, 3, 1);
    expect_end_of_step(at, 3);
    expect_silence(at);
    at = streaming_from(1, 0, 1, 0, 9, WORLD_PER_STEP);
    world_pump(&world);
    expect_end_of_step(at, 9);
    expect_silence(at);
}

/* Two, one, then three a replica and step. */
static const struct roster_span spans[] = {
    {.step = 0, .position = 0, .micro_batches = 2},
    {.step = 2, .position = 4, .micro_batches = 1},
    {.step = 3, .position = 5, .micro_batches = 3},
};

static void batches_are_numbered_over_steps_of_different_sizes(void **state) {
    (void)state;
    static const uint64_t firsts[] = {0, 2, 4, 5, 8, 11};
    roster_set_spans(&world.roster, spans, 3);
    for (uint64_t step = 0; step < 6; step++) {
        assert_int_equal(roster_place(&world.roster, step, 0), firsts[step]);
        uint32_t count = roster_micro_batches(&world.roster, step);
        for (uint32_t index = 0; index < count; index++) {
            assert_int_equal(roster_step_of(&world.roster, firsts[step] + index), step);
        }
        assert_int_equal(roster_place(&world.roster, step, count),
                         roster_place(&world.roster, step + 1, 0));
    }
}

static void a_stream_goes_on_over_steps_of_different_sizes(void **state) {
    (void)state;
    roster_set_spans(&world.roster, spans, 3);
    world.planned = 4;
    world.empty = true; /* no slots: more is sent than they are */
    struct world_session *at = streaming(0, 0, 0, 8);
    world_pump(&world);
    for (uint64_t step = 0; step < 4; step++) {
        uint32_t count = roster_micro_batches(&world.roster, step);
        for (uint32_t index = 0; index < count; index++) {
            expect_batch(at, step, index);
        }
        Ballast__V1__StreamResponse *event = read_event(at);
        assert_int_equal(event->event_case, BALLAST__V1__STREAM_RESPONSE__EVENT_END_OF_STEP);
        assert_int_equal(event->end_of_step->micro_batches, count);
        ballast__v1__stream_response__free_unpacked(event, NULL);
    }
    expect_silence(at);
    struct world_session *other = streaming_from(1, 0, 1, 0, 2, 2);
    expect_refusal(other, other->next_stream - 2, STATUS_OUT_OF_RANGE, "step 2 has 1");
}

static void streams_end_where_the_mesh_does(void **state) {
    (void)state;
    world.job.end_step = 1;
    world.job.next_mesh = "from step 1 on the mesh is another";
    struct world_session *at = streaming(0, 0, 0, 8);
    uint32_t stream = at->session.stream;
    world_pump(&world);
    expect_batch(at, 0, 0);
    expect_batch(at, 0, 1);
    expect_end_of_step(at, 0);
    expect_refusal(at, stream, STATUS_FAILED_PRECONDITION, "from step 1 on the mesh is another");
    assert_int_equal(at->session.state, SESSION_BOUND);
    world.roster.committed_step = 1; /* all have: the daemon is about to serve the next mesh */
    struct hello hello;
    hello_init(&hello, 0, 1);
    at = world_connect(&world, 1);
    expect_refusal(at, say_hello(at, &hello), STATUS_UNAVAILABLE, "connect again");
}

static void steps_of_the_mesh_before_are_not_served(void **state) {
    (void)state;
    world.job.begin_step = 5;
    world.roster.committed_step = 6;
    world.progress.oldest_step = 3;
    world.progress.plannable_step = 9;
    struct world_session *at = streaming_from(0, 0, 0, 1, 4, 0);
    expect_refusal(at, at->next_stream - 2, STATUS_OUT_OF_RANGE, "served from step 5 on");
}

/* All leases end between two looks at the clock: that of the rank which had gone on is the last. */
static void the_members_that_were_live_last_count_when_none_is(void **state) {
    (void)state;
    struct world_session *at = streaming(0, 0, 0, 4);
    world_pump(&world);
    commit(at, 0);
    world.now_ns += WORLD_SECOND_NS;
    session_deinit(&at->session, world.now_ns);
    assert_false(roster_advance(&world.roster, world.now_ns));
    world.now_ns += 1000 * WORLD_SECOND_NS;
    assert_true(roster_advance(&world.roster, world.now_ns));
    assert_int_equal(world.roster.committed_step, 1);
    assert_false(roster_advance(&world.roster, world.now_ns));
}

static void from_outside_what_is_kept_ends_the_stream_out_of_range(void **state) {
    const struct {
        uint64_t step;
        uint32_t index;
        const char *word;
    } cases[] = {{2, 0, "oldest is 3"}, {10, 0, "up to 9"}, {5, WORLD_PER_STEP + 1, "has 2"}};
    (void)state;
    world.roster.committed_step = 4;
    world.progress.oldest_step = 3;
    world.progress.plannable_step = 9;
    for (uint32_t i = 0; i < 3; i++) {
        struct world_session *at = streaming_from(0, 0, 0, 1, cases[i].step, cases[i].index);
        expect_refusal(at, at->next_stream - 2, STATUS_OUT_OF_RANGE, cases[i].word);
        assert_int_equal(at->session.state, SESSION_BOUND);
    }
}

static void from_of_another_replica_or_on_a_later_message_is_refused(void **state) {
    Ballast__V1__BatchId from = BALLAST__V1__BATCH_ID__INIT;
    (void)state;
    struct world_session *at = bound(0, 1, 0);
    uint32_t stream = world_call(at, SESSION_LOADER, "Stream", FRAME_REMOTE_OPEN, NULL);
    world_stream(at, 1, &from);
    expect_refusal(at, stream, STATUS_INVALID_ARGUMENT, "replica 0");
    at = streaming(0, 0, 0, 0);
    stream = at->session.stream;
    world_stream(at, 0, &from);
    expect_refusal(at, stream, STATUS_INVALID_ARGUMENT, "first message");
}

static void more_credits_than_allowed_end_the_stream(void **state) {
    (void)state;
    struct world_session *at = streaming(0, 0, 0, 8);
    uint32_t stream = at->session.stream;
    world_stream(at, 1, NULL);
    expect_refusal(at, stream, STATUS_RESOURCE_EXHAUSTED, "limits.credits = 8");
    at = streaming(0, 0, 0, 1);
    stream = at->session.stream;
    world_stream(at, UINT32_MAX, NULL);
    expect_refusal(at, stream, STATUS_RESOURCE_EXHAUSTED, "limits.credits = 8");
}

static void a_stream_needs_a_rank_and_a_rank_has_one(void **state) {
    (void)state;
    struct world_session *at = world_connect(&world, 0);
    uint32_t stream = world_call(at, SESSION_LOADER, "Stream", FRAME_REMOTE_OPEN, NULL);
    expect_refusal(at, stream, STATUS_FAILED_PRECONDITION, "Hello");
    at = streaming(0, 0, 0, 0);
    stream = world_call(at, SESSION_LOADER, "Stream", FRAME_REMOTE_OPEN, NULL);
    expect_refusal(at, stream, STATUS_FAILED_PRECONDITION, "one Stream");
    assert_int_equal(at->session.state, SESSION_STREAMING);
}

static void the_first_message_may_travel_in_the_request(void **state) {
    Ballast__V1__StreamRequest request = BALLAST__V1__STREAM_REQUEST__INIT;
    (void)state;
    struct world_session *at = bound(0, 0, 0);
    request.credits = 1;
    world_call(at, SESSION_LOADER, "Stream", FRAME_REMOTE_OPEN, &request.base);
    world_pump(&world);
    expect_batch(at, 0, 0);
}

static void the_end_of_data_comes_once_after_the_last_step(void **state) {
    (void)state;
    world.end = 1;
    struct world_session *at = streaming(0, 0, 0, 5);
    world_pump(&world);
    expect_batch(at, 0, 0);
    expect_batch(at, 0, 1);
    expect_end_of_step(at, 0);
    expect_end_of_data(at, 1);
    world_pump(&world);
    expect_silence(at);
    world_release(at, 0, 0);
    assert_int_equal(at->session.held_count, 1);
    world.progress.durable_step = 1;
    world.progress.durable_changes = UINT64_MAX;
    uint32_t stream = commit(at, 0);
    world_pump(&world);
    expect_status(at, stream, STATUS_OK);
}

static void a_batch_that_is_not_ready_is_waited_for_and_the_wait_is_measured(void **state) {
    (void)state;
    world.planned = 0;
    struct world_session *at = streaming(0, 0, 0, 1);
    world_pump(&world);
    expect_silence(at);
    assert_int_equal(at->session.member->waiting_ns, world.now_ns);
    world.now_ns += 3000;
    world.planned = 1;
    world.slots = SESSION_WAITS;
    world_pump(&world);
    expect_silence(at);
    world.now_ns += 4000;
    world.slots = SESSION_READY;
    world_pump(&world);
    expect_batch(at, 0, 0);
    assert_int_equal(at->waited_ns, 7000);
    assert_int_equal(at->session.member->waiting_ns, 0);
}

static void a_rank_that_times_its_waits_is_believed(void **state) {
    (void)state;
    Ballast__V1__StreamRequest request = BALLAST__V1__STREAM_REQUEST__INIT;
    uint64_t waited_ns[] = {0, 5000, 70, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    struct world_session *at = bound(0, 0, 0);
    request.credits = 2;
    request.reports_waits = true;
    world_call(at, SESSION_LOADER, "Stream", FRAME_REMOTE_OPEN, &request.base);
    world.now_ns += 4000;
    world_pump(&world);
    expect_batch(at, 0, 0);
    assert_int_equal(at->session.member->waits, 0);
    request.credits = 0;
    request.waited_ns = waited_ns;
    request.n_waited_ns = 3;
    world_send_stream(at, &request);
    assert_int_equal(at->session.member->waits, 3);
    assert_int_equal(at->session.member->waited_ns, 5070);
    assert_int_equal(at->session.member->waited_ns_max, 5000);
    assert_int_equal(at->waited_ns, 70);
    request.n_waited_ns = sizeof waited_ns / sizeof waited_ns[0];
    world_send_stream(at, &request);
    assert_int_equal(at->session.member->waits, 3 + world.job.credits_max);
}

static void lost_tokens_end_the_streams_that_need_them_with_the_reason(void **state) {
    (void)state;
    world.lost_step = 1;
    struct world_session *at = streaming(0, 0, 0, 3);
    uint32_t stream = at->session.stream;
    world_pump(&world);
    expect_batch(at, 0, 0);
    expect_batch(at, 0, 1);
    expect_end_of_step(at, 0);
    expect_refusal(at, stream, STATUS_DATA_LOSS, "books.bin");
    assert_int_equal(at->session.state, SESSION_BOUND);
    world.lost_step = UINT64_MAX;
    world_call(at, SESSION_LOADER, "Stream", FRAME_REMOTE_OPEN, NULL);
    world_stream(at, 1, NULL);
    assert_int_equal(world.opened, 2);
}

static void nothing_is_sent_while_output_is_congested(void **state) {
    (void)state;
    struct world_session *at = streaming(0, 0, 0, 2);
    at->congested = true;
    world_pump(&world);
    expect_silence(at);
    at->congested = false;
    world_pump(&world);
    expect_batch(at, 0, 0);
}

static void answers_are_refused_while_too_many_wait_to_be_read(void **state) {
    (void)state;
    struct world_session *at = world_connect(&world, 0);
    at->crowded = true;
    expect_refusal(at, world_call(at, SESSION_LOADER, "Ping", 0, NULL), STATUS_RESOURCE_EXHAUSTED,
                   "try again");
    at->crowded = false;
    expect_status(at, world_call(at, SESSION_LOADER, "Ping", 0, NULL), STATUS_OK);
}

static void a_rank_without_tokens_or_documents_needs_no_slot(void **state) {
    struct hello hello;
    (void)state;
    world.empty = true;
    struct world_session *at = world_connect(&world, 0);
    hello_init(&hello, 0, 0);
    hello.parts[0] = hello.parts[1] = BALLAST__V1__PART__PART_PLAN;
    expect_status(at, say_hello(at, &hello), STATUS_OK);
    assert_false(at->session.subscribed);
    world_call(at, SESSION_LOADER, "Stream", FRAME_REMOTE_OPEN, NULL);
    world_stream(at, 1, NULL);
    world_pump(&world);
    Ballast__V1__StreamResponse *event = read_event(at);
    assert_int_equal(event->batch->slab_bytes, 0);
    ballast__v1__stream_response__free_unpacked(event, NULL);
    assert_int_equal(at->session.held_count, 0);
}

/* Holds */

static void releases_give_back_once_and_only_what_this_connection_was_sent(void **state) {
    (void)state;
    struct world_session *at = streaming(0, 0, 0, 2);
    world_pump(&world);
    assert_int_equal(world.holds, 2);
    world_release(at, 7, 0);
    world_release(at, 0, 5);
    assert_int_equal(world.holds, 2);
    world_release(at, 0, 0);
    world_release(at, 0, 0);
    assert_int_equal(world.holds, 1);
    session_deinit(&at->session, world.now_ns);
    assert_int_equal(world.holds, 0);
}

static void a_commit_releases_what_its_steps_hold(void **state) {
    (void)state;
    struct world_session *at = streaming(0, 0, 0, 3);
    world_pump(&world);
    assert_int_equal(world.holds, 3);
    commit(at, 0);
    assert_int_equal(world.holds, 1);
}

static void a_batch_sent_on_two_streams_of_a_connection_is_held_once(void **state) {
    Ballast__V1__BatchId from = BALLAST__V1__BATCH_ID__INIT;
    (void)state;
    struct world_session *at = streaming(0, 0, 0, 2);
    world_pump(&world);
    for (int again = 0; again < 5; again++) {
        world_frame(at, at->session.stream, FRAME_DATA, FRAME_REMOTE_CLOSED | FRAME_NO_DATA, NULL,
                    0);
        world_call(at, SESSION_LOADER, "Stream", FRAME_REMOTE_OPEN, NULL);
        world_stream(at, 2, &from);
        world_pump(&world);
        assert_int_equal(world.holds, 2);
    }
}

static void nobody_runs_further_ahead_of_a_slower_rank_than_the_slots_reach(void **state) {
    (void)state;
    struct world_session *slow = streaming(0, 0, 0, 0);
    struct world_session *fast = streaming(1, 0, 1, 8);
    struct world_session *other = streaming(2, 1, 0, 8);
    world_pump(&world);
    expect_batch(fast, 0, 0);
    expect_batch(fast, 0, 1);
    expect_end_of_step(fast, 0);
    expect_batch(fast, 1, 0);
    expect_silence(fast);
    assert_true(fast->session.member->held_back);
    assert_int_equal(other->session.member->credits, 4);
    expect_silence(slow);
    world_stream(slow, 1, NULL);
    world_pump(&world);
    expect_batch(slow, 0, 0);
    expect_batch(fast, 1, 1);
}

/* Two ranks are live, of two replicas; the first is `slow`, and the other has got two steps. */
static struct world_session *leading(struct world_session **slow) {
    world.now_ns += 61 * WORLD_SECOND_NS; /* of others, leases are over */
    world.roster.lead_steps = 2;
    *slow = streaming(0, 0, 0, 0);
    struct world_session *fast = streaming(1, 1, 0, 4);
    world_pump(&world);
    for (uint64_t step = 0; step < 2; step++) {
        expect_batch(fast, step, 0);
        expect_batch(fast, step, 1);
        expect_end_of_step(fast, step);
        commit(fast, step);
    }
    world_stream(fast, 2, NULL);
    world_pump(&world);
    return fast;
}

static void nobody_runs_further_ahead_of_the_slowest_commit_than_lead_steps(void **state) {
    (void)state;
    struct world_session *slow;
    struct world_session *fast = leading(&slow);
    const struct member *member = fast->session.member;
    expect_silence(fast);
    assert_int_equal(member->leading_ns, world.now_ns);
    assert_ptr_equal(roster_leader(&world.roster), member);
    assert_ptr_equal(roster_awaited(&world.roster, member, world.now_ns), slow->session.member);
    assert_int_equal(roster_behind(slow->session.member, member), 2);
    world.now_ns += 5 * WORLD_SECOND_NS;
    world_stream(slow, 2, NULL);
    world_pump(&world);
    expect_silence(fast); /* was given, is not committed */
    commit(slow, 0);
    world_pump(&world);
    expect_batch(fast, 2, 0);
    expect_batch(fast, 2, 1);
    expect_end_of_step(fast, 2);
    assert_null(roster_leader(&world.roster));
    assert_int_equal(roster_led_ns(member, world.now_ns), 5 * WORLD_SECOND_NS);
}

static void a_silent_rank_is_cut_when_one_that_leads_waits_for_it(void **state) {
    (void)state;
    struct world_session *slow;
    struct world_session *fast = leading(&slow);
    world.now_ns += 59 * WORLD_SECOND_NS;
    assert_int_equal(session_tick(&slow->session, world.now_ns), 0);
    world.now_ns += 2 * WORLD_SECOND_NS;
    assert_int_equal(session_tick(&fast->session, world.now_ns), 0);
    assert_int_equal(session_tick(&slow->session, world.now_ns), -ETIMEDOUT);
    session_deinit(&slow->session, world.now_ns);
    world_pump(&world);
    expect_batch(fast, 2, 0);
}

static void ranks_that_never_commit_wait_for_themselves_and_are_not_cut(void **state) {
    (void)state;
    world.now_ns += 61 * WORLD_SECOND_NS;
    world.roster.lead_steps = 2;
    struct world_session *at = streaming(0, 0, 0, 4);
    world_pump(&world);
    world_stream(at, 2, NULL);
    world_pump(&world);
    const struct member *member = at->session.member;
    assert_int_equal(member->step, 2);
    assert_ptr_equal(roster_awaited(&world.roster, member, world.now_ns), member);
    world.now_ns += 61 * WORLD_SECOND_NS;
    assert_int_equal(session_tick(&at->session, world.now_ns), 0);
    commit(at, 0);
    world_pump(&world);
    assert_int_equal(member->step, 3);
}

static void a_rank_that_begins_at_a_later_step_keeps_nobody_waiting_for_those_before(void **state) {
    (void)state;
    world.now_ns += 61 * WORLD_SECOND_NS;
    world.roster.lead_steps = 2;
    struct world_session *late = streaming_from(0, 0, 0, 2, 5, 0);
    struct world_session *other = streaming_from(1, 1, 0, 2, 0, 0);
    world_pump(&world);
    expect_silence(late);
    assert_ptr_equal(roster_awaited(&world.roster, late->session.member, world.now_ns),
                     other->session.member);
    session_deinit(&other->session, world.now_ns);
    world.now_ns += 61 * WORLD_SECOND_NS;
    world_call(late, SESSION_LOADER, "Ping", 0, NULL);
    late->read = late->sent_count;
    world_pump(&world);
    expect_batch(late, 5, 0);
}

/* Commits */

static void a_commit_is_answered_when_its_step_is_durable(void **state) {
    (void)state;
    struct world_session *at = streaming(0, 0, 0, 4);
    world_pump(&world);
    at->read = at->sent_count;
    uint32_t first = commit(at, 0);
    uint32_t second = commit(at, 1);
    world_pump(&world);
    expect_silence(at);
    world.progress.durable_step = 1;
    world.progress.durable_changes = world.roster.changes;
    world_pump(&world);
    expect_status(at, first, STATUS_OK);
    expect_silence(at);
    world.progress.durable_step = 2;
    world_pump(&world);
    expect_status(at, second, STATUS_OK);
}

static void a_commit_is_answered_when_the_store_knows_that_the_rank_made_it(void **state) {
    (void)state;
    world_deinit(&world);
    world_init(&world, false);
    struct world_session *a = streaming(0, 0, 0, 2);
    struct world_session *b = streaming(1, 0, 1, 2);
    world_pump(&world);
    a->read = a->sent_count;
    b->read = b->sent_count;
    world.progress.durable_step = 5;
    uint32_t of_a = commit(a, 0);
    uint64_t change_of_a = world.roster.changes;
    world_pump(&world);
    expect_silence(a);
    assert_int_equal(world.roster.committed_step, 0);
    uint32_t of_b = commit(b, 0);
    assert_int_equal(world.roster.committed_step, 1);
    world.progress.durable_changes = change_of_a;
    world_pump(&world);
    expect_status(a, of_a, STATUS_OK);
    expect_silence(b);
    world.progress.durable_changes = world.roster.changes;
    world_pump(&world);
    expect_status(b, of_b, STATUS_OK);
    expect_silence(a);
}

static void while_the_disk_is_full_commits_are_refused_unless_they_are_durable(void **state) {
    (void)state;
    struct world_session *a = streaming(0, 0, 0, 2);
    world_pump(&world);
    a->read = a->sent_count;
    uint32_t of_a = commit(a, 0);
    world_pump(&world);
    expect_silence(a);
    world.progress.full = true;
    world_pump(&world);
    expect_refusal(a, of_a, STATUS_RESOURCE_EXHAUSTED,
                   "step 0 is noted but not durable: the disk of the state directory is full");
    of_a = commit(a, 0);
    world_pump(&world);
    expect_refusal(a, of_a, STATUS_RESOURCE_EXHAUSTED, "then commit again");
    world.progress.durable_step = 1;
    world.progress.durable_changes = world.roster.changes;
    of_a = commit(a, 0);
    world_pump(&world);
    expect_status(a, of_a, STATUS_OK);
}

static void only_delivered_steps_can_be_committed(void **state) {
    (void)state;
    struct world_session *at = bound(0, 0, 0);
    expect_refusal(at, commit(at, 0), STATUS_OUT_OF_RANGE, "not delivered");
    at = streaming(1, 0, 1, 1);
    world_pump(&world);
    at->read = at->sent_count;
    expect_refusal(at, commit(at, 0), STATUS_OUT_OF_RANGE, "its next is 0");
    expect_refusal(at, commit(at, UINT64_MAX), STATUS_OUT_OF_RANGE, "not delivered");
    at = world_connect(&world, 2);
    expect_refusal(at, commit(at, 0), STATUS_FAILED_PRECONDITION, "Hello");
}

static void a_rank_that_reconnects_may_commit_what_it_was_given_before(void **state) {
    (void)state;
    world.progress.durable_step = 5;
    world.progress.durable_changes = UINT64_MAX;
    struct world_session *at = streaming(0, 0, 0, 2);
    world_pump(&world);
    session_deinit(&at->session, world.now_ns);
    at = bound(0, 0, 0);
    uint32_t stream = commit(at, 0);
    world_pump(&world);
    expect_status(at, stream, STATUS_OK);
}

static void a_rank_whose_lease_ended_may_commit_what_it_was_given_before(void **state) {
    (void)state;
    world.progress.durable_step = 5;
    world.progress.durable_changes = UINT64_MAX;
    (void)bound(1, 0, 1); /* the slower one */
    struct world_session *at = streaming(0, 0, 0, 2);
    world_pump(&world);
    session_deinit(&at->session, world.now_ns);
    world.now_ns += 61 * WORLD_SECOND_NS;
    at = bound(0, 0, 0);
    uint32_t stream = commit(at, 0);
    world_pump(&world);
    expect_status(at, stream, STATUS_OK);
    expect_status(at, commit(at, 1), STATUS_OUT_OF_RANGE);
    session_deinit(&at->session, world.now_ns); /* what was acknowledged stays, too */
    world.now_ns += 61 * WORLD_SECOND_NS;
    assert_int_equal(world.roster.committed_step, 0);
    assert_int_equal(bound(0, 0, 0)->session.member->committed_step, 1);
}

static void after_a_restart_a_rank_may_commit_what_it_says_it_was_given(void **state) {
    (void)state;
    world.progress.claimable_step = 7;
    world.progress.durable_step = 7;
    world.progress.durable_changes = UINT64_MAX;
    struct world_session *at = bound(0, 0, 0);
    expect_status(at, commit(at, 7), STATUS_OUT_OF_RANGE);
    uint32_t stream = commit(at, 6);
    world_pump(&world);
    expect_status(at, stream, STATUS_OK);
    assert_int_equal(at->session.member->committed_step, 7);
    at = streaming(1, 0, 1, 0);
    expect_status(at, commit(at, 5), STATUS_OUT_OF_RANGE);
}

/* Greets as (dp, cp) with a claim; the member's committed_step then. */
static uint64_t greet_claiming(uint32_t dp, uint32_t cp, uint64_t committed_step,
                               uint64_t generation) {
    struct world_session *at = world_connect(&world, 0);
    struct hello hello;
    hello_init(&hello, dp, cp);
    hello.request.committed_step = committed_step;
    hello.request.generation = generation;
    expect_status(at, say_hello(at, &hello), STATUS_OK);
    uint64_t known = at->session.member->committed_step;
    session_deinit(&at->session, world.now_ns);
    return known;
}

static void after_a_restart_a_greeting_says_what_was_acknowledged_to_the_rank(void **state) {
    (void)state;
    world.progress.claimable_step = 7;
    assert_int_equal(greet_claiming(0, 0, 8, 9), 0); /* nobody can have been given step 7 */
    assert_int_equal(greet_claiming(0, 0, 5, 8), 0); /* of another generation */
    world.progress.moving = true;
    assert_int_equal(greet_claiming(0, 0, 5, 9), 0);
    world.progress.moving = false;
    assert_int_equal(greet_claiming(0, 0, 5, 9), 5);
    assert_int_equal(greet_claiming(0, 0, 4, 9), 5);
    assert_int_equal(world.roster.committed_step, 0);
    assert_int_equal(greet_claiming(0, 1, 6, 9), 6);
    assert_int_equal(greet_claiming(1, 0, 6, 9), 6);
    assert_int_equal(world.roster.committed_step, 0);
    assert_int_equal(greet_claiming(1, 1, 6, 9), 6);
    assert_int_equal(world.roster.committed_step, 5);
    world.job.end_step = 6;
    assert_int_equal(greet_claiming(0, 0, 7, 9), 5); /* of another mesh */
}

/* A step has two micro-batches: what is said of a third is ignored. */
static void commit_measured(struct world_session *at, uint64_t step, uint64_t first,
                            uint64_t second, uint64_t expert) {
    Ballast__V1__CommitRequest request = BALLAST__V1__COMMIT_REQUEST__INIT;
    Ballast__V1__Measured times[3], *measured[3];
    uint64_t experts[2] = {expert, 10};
    for (uint32_t i = 0; i < 3; i++) {
        ballast__v1__measured__init(&times[i]);
        times[i].index = i;
        times[i].attention_ns = 7;
        times[i].expert_tokens = experts;
        times[i].n_expert_tokens = expert > 0 ? 2 : 0;
        measured[i] = &times[i];
    }
    times[0].total_ns = first;
    times[1].total_ns = second;
    times[2].total_ns = 99999;
    request.step = step;
    request.n_measured = 3;
    request.measured = measured;
    world_call(at, SESSION_LOADER, "Commit", 0, &request.base);
}

static void expect_measured(uint64_t step, uint64_t total_ppm, uint64_t attention_ppm,
                            uint64_t expert_ppm) {
    assert_non_null(measured_find(&world.measured, step));
    struct measured_ratios ratios = measured_ratios(&world.measured, step);
    assert_int_equal(ratios.total_ppm, total_ppm);
    assert_int_equal(ratios.attention_ppm, attention_ppm);
    assert_int_equal(ratios.expert_ppm, expert_ppm);
}

static void measured_times_become_ratios_when_a_step_is_complete(void **state) {
    (void)state;
    struct world_session *a = streaming(0, 0, 0, 4);
    struct world_session *b = streaming(1, 1, 0, 4);
    struct world_session *c = streaming(2, 1, 1, 4);
    world_pump(&world);
    commit_measured(a, 0, 100, 100, 0);
    expect_measured(0, 0, 0, 0);
    commit_measured(b, 0, 100, 60, 0);
    expect_measured(0, 1111111, 1000000, 0);
    commit_measured(b, 0, 900, 900, 5); /* again: the first report counts */
    expect_measured(0, 1111111, 1000000, 0);
    commit_measured(c, 0, 100, 100, 0);
    expect_measured(0, 1000000, 1000000, 0);
    commit_measured(a, 1, 500, 0, 0);
    expect_measured(1, 0, 0, 0);
    assert_null(measured_newest(&world.measured, 0));
    assert_int_equal(measured_newest(&world.measured, 1)->step, 0);
    assert_int_equal(measured_newest(&world.measured, 2)->step, 1);
}

static void the_fullest_expert_stands_beside_the_mean_of_all(void **state) {
    (void)state;
    struct world_session *a = streaming(0, 0, 0, 4);
    struct world_session *b = streaming(1, 1, 0, 4);
    world_pump(&world);
    commit_measured(a, 0, 1, 1, 30);
    expect_measured(0, 0, 0, 1500000); /* 30 of the mean of 30 and 10 */
    commit_measured(b, 0, 1, 1, 10);
    expect_measured(0, 1000000, 1000000, 2000000); /* of 30, 10, 10 and 10 */
    commit_measured(a, 1, 1, 1, UINT64_MAX);
    expect_measured(1, 0, 0, 1999999);
    assert_true(measured_find(&world.measured, 0)->plan.known);
}

static void a_step_is_forgotten_for_a_newer_one_in_its_place(void **state) {
    (void)state;
    struct measured *measured = &world.measured;
    assert_true(measured_begin(measured, 3, 0));
    measured_add_times(measured, 3, 0, 0, 5, 5);
    assert_false(measured_begin(measured, 3, 0));
    assert_true(measured_begin(measured, 3, 1));
    assert_true(measured_begin(measured, 3 + MEASURED_STEPS, 0));
    assert_false(measured_begin(measured, 3, 2));
    assert_null(measured_find(measured, 3));
    expect_measured(3 + MEASURED_STEPS, 0, 0, 0);
    assert_null(measured_newest(measured, 3 + MEASURED_STEPS));
}

static void what_was_planned_is_noted_when_a_step_is_given(void **state) {
    (void)state;
    struct measured *measured = &world.measured;
    struct step_plan plan = {
        .dp = 2, .step = 3, .micro_batch_count = 2, .balance = {.total_ppm = 1200000}};
    struct micro_batch micro_batches[2] = {{.tokens = 5}, {.tokens = 9}};
    plan.micro_batches = micro_batches;
    plan.tokens = 14;
    measured_give(measured, &plan);
    assert_null(measured_find(measured, 3));
    plan.step += MEASURED_STEPS - 1;
    measured_give(measured, &plan); /* others are far ahead */
    assert_true(measured_begin(measured, 3, 0));
    assert_int_equal(measured_find(measured, 3)->plan.balance.total_ppm, 1200000);
    assert_int_equal(measured_find(measured, 3)->plan.input_ppm,
                     1285714); /* 9 of the mean of 5 and 9 */
    plan.step = 4 + MEASURED_STEPS;
    measured_give(measured, &plan);
    plan.step = 4;
    measured_give(measured, &plan);
    assert_true(measured_begin(measured, 4, 0));
    assert_false(measured_find(measured, 4)->plan.known);
    assert_true(measured_begin(measured, 4 + MEASURED_STEPS, 0));
    assert_true(measured_find(measured, 4 + MEASURED_STEPS)->plan.known);
    measured_rewind(measured);
    assert_true(measured_begin(measured, 4 + MEASURED_STEPS, 0));
    assert_false(measured_find(measured, 4 + MEASURED_STEPS)->plan.known);
}

static void a_commit_that_takes_longer_than_its_timeout_says_so(void **state) {
    uint8_t frame[128];
    Ttrpc__Request request = TTRPC__REQUEST__INIT;
    (void)state;
    struct world_session *at = streaming(0, 0, 0, 2);
    world_pump(&world);
    at->read = at->sent_count;
    request.service = (char *)SESSION_LOADER;
    request.method = (char *)"Commit";
    request.timeout_nano = 1000;
    size_t bytes = protobuf_c_message_pack(&request.base, frame);
    world_frame(at, at->next_stream, FRAME_REQUEST, 0, frame, bytes);
    world_pump(&world);
    expect_silence(at);
    world.now_ns += 1000;
    world_pump(&world);
    expect_status(at, at->next_stream, STATUS_DEADLINE_EXCEEDED);
}

static void unanswered_commits_are_bounded(void **state) {
    (void)state;
    struct world_session *at = streaming(0, 0, 0, 2);
    world_pump(&world);
    at->read = at->sent_count;
    for (uint32_t i = 0; i < SESSION_COMMITS_MAX; i++) {
        commit(at, 0);
    }
    expect_status(at, commit(at, 0), STATUS_RESOURCE_EXHAUSTED);
}

/* Leases */

static void a_stop_of_the_daemon_is_nobodys_silence(void **state) {
    (void)state;
    struct world_session *gone = bound(1, 1, 1);
    struct member *left = gone->session.member;
    session_deinit(&gone->session, world.now_ns);
    struct world_session *stuck = streaming(0, 0, 0, 2);
    struct world_session *other = streaming(2, 0, 1, 8);
    world_pump(&world);
    world_release(other, 0, 0);
    world_release(other, 0, 1);
    world_pump(&world);
    assert_true(other->session.member->held_back);
    uint64_t stopped_ns = world.now_ns;
    world.now_ns += 300 * WORLD_SECOND_NS;
    roster_forgive(&world.roster, stopped_ns, 300 * WORLD_SECOND_NS);
    session_forgive(&stuck->session, 300 * WORLD_SECOND_NS, world.now_ns);
    session_forgive(&stuck->session, 300 * WORLD_SECOND_NS, world.now_ns); /* never beyond now */
    assert_int_equal(session_tick(&stuck->session, world.now_ns), 0);
    assert_true(roster_live(left, world.now_ns));
    world.now_ns += 61 * WORLD_SECOND_NS;
    assert_int_equal(session_tick(&stuck->session, world.now_ns), -ETIMEDOUT);
    assert_false(roster_live(left, world.now_ns));
    roster_forgive(&world.roster, world.now_ns, 300 * WORLD_SECOND_NS);
    assert_false(roster_live(left, world.now_ns)); /* it was over before */
}

static void a_silent_rank_is_cut_when_others_wait_for_it_and_not_before(void **state) {
    (void)state;
    struct world_session *stuck = streaming(0, 0, 0, 2);
    world_pump(&world);
    uint32_t stream = stuck->session.stream;
    stuck->read = stuck->sent_count;
    world.now_ns += 61 * WORLD_SECOND_NS;
    assert_int_equal(session_tick(&stuck->session, world.now_ns), 0);
    struct world_session *other = streaming(1, 0, 1, 8);
    world_pump(&world);
    world_release(other, 0, 0);
    world_release(other, 0, 1);
    world_pump(&world);
    assert_true(other->session.member->held_back);
    assert_int_equal(session_tick(&other->session, world.now_ns), 0);
    assert_int_equal(session_tick(&stuck->session, world.now_ns), -ETIMEDOUT);
    expect_refusal(stuck, stream, STATUS_DEADLINE_EXCEEDED, "other ranks");
    session_deinit(&stuck->session, world.now_ns);
    assert_false(roster_live(roster_member(&world.roster, &(struct rank_place){0}), world.now_ns));
    assert_int_equal(roster_position(&world.roster, other->session.member), 5);
    world_pump(&world);
    assert_int_equal(roster_position(&world.roster, other->session.member), 6);
}

static void a_rank_that_speaks_keeps_its_lease(void **state) {
    (void)state;
    struct world_session *slow = streaming(0, 0, 0, 1);
    struct world_session *other = streaming(1, 0, 1, 8);
    world_pump(&world);
    for (int i = 0; i < 5; i++) {
        world.now_ns += 50 * WORLD_SECOND_NS;
        world_call(slow, SESSION_LOADER, "Ping", 0, NULL);
        assert_int_equal(session_tick(&slow->session, world.now_ns), 0);
        assert_int_equal(session_tick(&other->session, world.now_ns), 0);
    }
}

static void a_rank_that_does_not_read_is_cut_after_its_lease(void **state) {
    (void)state;
    struct world_session *at = streaming(0, 0, 0, 2);
    at->congested = true;
    world.now_ns += 59 * WORLD_SECOND_NS;
    assert_int_equal(session_tick(&at->session, world.now_ns), 0);
    session_drained(&at->session, world.now_ns);
    world.now_ns += 59 * WORLD_SECOND_NS;
    assert_int_equal(session_tick(&at->session, world.now_ns), 0);
    world.now_ns += 2 * WORLD_SECOND_NS;
    assert_int_equal(session_tick(&at->session, world.now_ns), -ETIMEDOUT);
}

static void a_connection_that_says_nothing_is_closed(void **state) {
    (void)state;
    struct world_session *at = world_connect(&world, 0);
    world.now_ns += SESSION_HANDSHAKE_NS;
    assert_int_equal(session_tick(&at->session, world.now_ns), 0);
    world.now_ns++;
    assert_int_equal(session_tick(&at->session, world.now_ns), -ETIMEDOUT);
    at = bound(1, 0, 0);
    world.now_ns += 10 * SESSION_HANDSHAKE_NS;
    assert_int_equal(session_tick(&at->session, world.now_ns), 0);
}

static void committed_step_waits_for_every_live_rank_and_passes_dead_ones(void **state) {
    (void)state;
    world.progress.durable_step = 100;
    world.progress.durable_changes = UINT64_MAX;
    struct world_session *a = streaming(0, 0, 0, 4);
    struct world_session *b = streaming(1, 0, 1, 4);
    world_pump(&world);
    commit(a, 1);
    commit(b, 0);
    assert_int_equal(world.roster.committed_step, 0);
    world.now_ns += 60 * WORLD_SECOND_NS;
    assert_true(roster_advance(&world.roster, world.now_ns));
    assert_int_equal(world.roster.committed_step, 1);
    session_deinit(&b->session, world.now_ns);
    assert_false(roster_advance(&world.roster, world.now_ns));
    world.now_ns += 60 * WORLD_SECOND_NS;
    assert_true(roster_advance(&world.roster, world.now_ns));
    assert_int_equal(world.roster.committed_step, 2);
}

/* Calls and frames */

static void unknown_and_unreadable_calls_are_answered_and_the_connection_stays(void **state) {
    (void)state;
    struct world_session *at = world_connect(&world, 0);
    expect_refusal(at, world_call(at, SESSION_LOADER, "Frobnicate\n", 0, NULL),
                   STATUS_UNIMPLEMENTED, "Frobnicate?");
    expect_status(at, world_call(at, SESSION_LOADER, "Guess", 0, NULL), STATUS_UNIMPLEMENTED);
    expect_refusal(at, world_call(at, "ballast.v2.Loader", "Ping", 0, NULL), STATUS_UNIMPLEMENTED,
                   "ballast.v2.Loader");
    assert_int_equal(
        world_frame(at, at->next_stream, FRAME_REQUEST, 0, (const uint8_t *)"\xff\xff", 2), 0);
    expect_refusal(at, at->next_stream, STATUS_INVALID_ARGUMENT, "ttrpc");
    at->next_stream += 2;
    expect_status(at, world_call(at, SESSION_LOADER, "Ping", 0, NULL), STATUS_OK);
}

static void an_unreadable_stream_message_ends_the_stream(void **state) {
    (void)state;
    struct world_session *at = streaming(0, 0, 0, 0);
    uint32_t stream = at->session.stream;
    assert_int_equal(world_frame(at, stream, FRAME_DATA, 0, (const uint8_t *)"\xff\xff", 2), 0);
    expect_status(at, stream, STATUS_INVALID_ARGUMENT);
    assert_int_equal(world_frame(at, stream, FRAME_DATA, 0, (const uint8_t *)"\xff\xff", 2), 0);
    expect_silence(at);
}

static void broken_frames_are_answered_and_close_the_connection(void **state) {
    const uint8_t data[] = "x";
    (void)state;
    struct world_session *at = world_connect(&world, 0);
    assert_int_equal(world_frame(at, 2, FRAME_REQUEST, 0, data, 1), -EPROTO);
    expect_refusal(at, 2, STATUS_INVALID_ARGUMENT, "odd");
    assert_int_equal(world_frame(at, 9, FRAME_DATA, 0, data, 1), -EPROTO);
    expect_refusal(at, 9, STATUS_INVALID_ARGUMENT, "not opened");
    assert_int_equal(world_frame(at, 1, FRAME_RESPONSE, 0, data, 1), -EPROTO);
    expect_status(at, 1, STATUS_INVALID_ARGUMENT);
    world_call(at, SESSION_LOADER, "Ping", 0, NULL);
    expect_status(at, 1, STATUS_OK);
    assert_int_equal(world_frame(at, 1, FRAME_REQUEST, 0, data, 1), -EPROTO);
    expect_refusal(at, 1, STATUS_INVALID_ARGUMENT, "rise");
    session_bad_frame(&at->session, &(struct frame_header){.stream = 3}, -EMSGSIZE, "too long");
    expect_refusal(at, 3, STATUS_RESOURCE_EXHAUSTED, "too long");
}

static void services_are_for_the_peers_that_may_call_them(void **state) {
    struct session_peer peer = {.pid = 1, .uid = 65534};
    (void)state;
    struct world_session *at = world_connect(&world, 0);
    session_init(&at->session, &world.world, at, &peer, world.now_ns);
    expect_refusal(at, world_call(at, SESSION_LOADER, "Ping", 0, NULL), STATUS_PERMISSION_DENIED,
                   "uid 65534");
    expect_refusal(at, world_call(at, SESSION_ADMIN, "Status", 0, NULL), STATUS_PERMISSION_DENIED,
                   "uid 65534");
    assert_int_equal(at->admin_stream, 0);
    at = world_connect(&world, 1);
    uint32_t stream = world_call(at, SESSION_ADMIN, "Status", 0, NULL);
    assert_int_equal(at->admin_stream, stream);
    assert_string_equal(at->admin_method, "Status");
    at->session.admin_calls = SESSION_ADMIN_CALLS_MAX;
    expect_status(at, world_call(at, SESSION_ADMIN, "Plan", 0, NULL), STATUS_RESOURCE_EXHAUSTED);
}

static void a_refused_peer_is_told_on_its_first_call(void **state) {
    struct session_peer peer = {.refusal = STATUS_RESOURCE_EXHAUSTED, .refusal_text = "too many"};
    (void)state;
    struct world_session *at = world_connect(&world, 0);
    session_init(&at->session, &world.world, at, &peer, world.now_ns);
    assert_int_equal(world_frame(at, 1, FRAME_REQUEST, 0, (const uint8_t *)"x", 1), -EPROTO);
    expect_refusal(at, 1, STATUS_RESOURCE_EXHAUSTED, "too many");
}

/* Generations */

static uint32_t seek(struct world_session *at, uint64_t step, uint64_t generation) {
    Ballast__V1__SeekRequest request = BALLAST__V1__SEEK_REQUEST__INIT;
    request.step = step;
    request.generation = generation;
    return world_call(at, SESSION_LOADER, "Seek", 0, &request.base);
}

static void seek_import_and_export_are_passed_on_of_ranks_and_administrators(void **state) {
    struct session_peer peer = {.pid = 1, .uid = 7, .may_serve = true};
    uint8_t blob[3] = {1, 2, 3};
    Ballast__V1__ImportRequest import = BALLAST__V1__IMPORT_REQUEST__INIT;
    Ballast__V1__ExportRequest export = BALLAST__V1__EXPORT_REQUEST__INIT;
    (void)state;
    struct world_session *at = bound(0, 0, 1);
    uint32_t stream = seek(at, 12, 3);
    assert_int_equal(at->seek_stream, stream);
    assert_int_equal(at->seek_step, 12);
    assert_int_equal(at->seek_least, 3);
    import.state = (ProtobufCBinaryData){sizeof blob, blob};
    stream = world_call(at, SESSION_LOADER, "Import", 0, &import.base);
    assert_int_equal(at->seek_stream, stream);
    assert_int_equal(at->seek_step, sizeof blob);
    export.step = 4;
    stream = world_call(at, SESSION_LOADER, "Export", 0, &export.base);
    assert_int_equal(at->export_stream, stream);
    at = world_connect(&world, 1);
    stream = seek(at, 5, 0);
    assert_int_equal(at->seek_stream, stream);
    session_init(&at->session, &world.world, at, &peer, world.now_ns);
    at->next_stream = 1;
    expect_refusal(at, seek(at, 5, 0), STATUS_FAILED_PRECONDITION, "Hello");
    at = bound(2, 0, 0);
    expect_refusal(at, seek(at, UINT64_MAX, 0), STATUS_INVALID_ARGUMENT, "no such");
    world.progress.full = true;
    at = bound(3, 1, 0);
    expect_refusal(at, seek(at, 5, 0), STATUS_RESOURCE_EXHAUSTED, "state directory is full");
    world.progress.stopping = true;
    expect_status(at, seek(at, 5, 0), STATUS_UNAVAILABLE);
}

static void a_generation_ends_streams_commits_and_holds_of_the_one_before(void **state) {
    (void)state;
    struct world_session *seeker = streaming(0, 0, 0, 2);
    struct world_session *other = streaming(1, 0, 1, 2);
    uint32_t stream = other->session.stream;
    world_pump(&world);
    seeker->read = seeker->sent_count;
    other->read = other->sent_count;
    assert_int_equal(world.holds, 4);
    uint32_t of_seeker = seeker->session.stream;
    uint32_t committed = commit(other, 0);
    world_begin(&world, seeker, 5);
    expect_refusal(seeker, of_seeker, STATUS_ABORTED, "step 5");
    expect_refusal(other, stream, STATUS_ABORTED,
                   "rank dp 0, pp 0, cp 0, tp 0 (pid 100) sought step 5");
    expect_refusal(other, committed, STATUS_ABORTED, "generation 10");
    assert_int_equal(world.holds, 0);
    assert_int_equal(world.roster.committed_step, 5);
    assert_int_equal(other->session.state, SESSION_BOUND);
    expect_refusal(other, commit(other, 0), STATUS_ABORTED, "seek that step too");
    world_call(other, SESSION_LOADER, "Stream", FRAME_REMOTE_OPEN, NULL);
    world_stream(other, 1, NULL);
    expect_refusal(other, other->next_stream - 2, STATUS_ABORTED, "of generation 9");
}

static void ranks_join_by_seek_or_by_hello_and_stream_and_go_on_together(void **state) {
    (void)state;
    struct world_session *seeker = bound(0, 0, 0);
    struct world_session *late = bound(1, 0, 1);
    world_begin(&world, seeker, 5);
    assert_int_equal(generation_seek(&world.generation, &world.roster, late->session.member, 5, 0),
                     GENERATION_JOINS);
    session_join(&late->session);
    world_call(late, SESSION_LOADER, "Stream", FRAME_REMOTE_OPEN, NULL);
    world_stream(late, 1, NULL);
    world_pump(&world);
    expect_batch(late, 5, 0);
    struct world_session *fresh = streaming(2, 1, 0, 1);
    world_pump(&world);
    expect_batch(fresh, 5, 0);
    assert_int_equal(fresh->session.member->generation, 10);
    expect_refusal(late, commit(late, 5), STATUS_OUT_OF_RANGE, "its next is 5");
}

static void a_seek_elsewhere_is_refused_while_others_have_joined(void **state) {
    (void)state;
    struct world_session *seeker = bound(0, 0, 0);
    struct world_session *other = bound(1, 0, 1);
    const struct generation *generation = &world.generation;
    const struct roster *roster = &world.roster;
    assert_int_equal(generation_seek(generation, roster, other->session.member, 0, 0),
                     GENERATION_OPENS);
    world_begin(&world, seeker, 5);
    const struct member *joined = seeker->session.member;
    const struct member *not_yet = other->session.member;
    (void)streaming(2, 1, 1, 0);
    const struct member *by_stream = world.sessions[2].session.member;
    assert_int_equal(generation_seek(generation, roster, by_stream, 6, 0), GENERATION_REFUSED);
    session_deinit(&world.sessions[2].session, world.now_ns);
    assert_int_equal(generation_seek(generation, roster, not_yet, 6, 0), GENERATION_REFUSED);
    assert_int_equal(generation_seek(generation, roster, NULL, 6, 0), GENERATION_REFUSED);
    assert_int_equal(generation_seek(generation, roster, not_yet, 5, 10), GENERATION_JOINS);
    assert_int_equal(generation_seek(generation, roster, not_yet, 5, 11), GENERATION_OPENS);
    assert_int_equal(generation_seek(generation, roster, joined, 6, 0), GENERATION_OPENS);
    session_deinit(&seeker->session, world.now_ns);
    assert_int_equal(generation_seek(generation, roster, not_yet, 6, 0), GENERATION_OPENS);
}

static void a_generation_closes_when_its_first_step_is_committed_by_all(void **state) {
    (void)state;
    struct world_session *seeker = bound(0, 0, 0);
    struct world_session *other = bound(1, 0, 1);
    const struct member *late = other->session.member;
    world_begin(&world, seeker, 5);
    world_call(seeker, SESSION_LOADER, "Stream", FRAME_REMOTE_OPEN, NULL);
    world_stream(seeker, 2, NULL);
    world_pump(&world);
    commit(seeker, 5);
    assert_int_equal(seeker->session.member->committed_step, 6);
    assert_int_equal(generation_seek(&world.generation, &world.roster, late, 5, 0),
                     GENERATION_JOINS);
    uint64_t changes = world.roster.changes;
    session_rejoin(&seeker->session);
    assert_int_equal(seeker->session.member->committed_step, 5);
    assert_int_equal(world.roster.changes, changes + 1);
    session_rejoin(&seeker->session);
    assert_int_equal(world.roster.changes, changes + 1);
    assert_int_equal(seeker->session.state, SESSION_BOUND);
    world.roster.committed_step = 6;
    assert_int_equal(generation_seek(&world.generation, &world.roster, late, 5, 0),
                     GENERATION_OPENS);
    assert_int_equal(generation_seek(&world.generation, &world.roster, late, 9, 0),
                     GENERATION_OPENS);
}

static void while_a_generation_is_stored_the_old_one_stands_still(void **state) {
    (void)state;
    struct world_session *at = streaming(0, 0, 0, 2);
    world_pump(&world);
    at->read = at->sent_count;
    world.progress.moving = true;
    world_stream(at, 2, NULL);
    world_pump(&world);
    expect_silence(at);
    uint32_t committed = commit(at, 0);
    world.progress.durable_step = 9;
    world.progress.full = true;
    world_pump(&world);
    expect_silence(at);
    assert_int_equal(world.roster.committed_step, 0);
    struct world_session *seeker = bound(1, 0, 1);
    uint32_t stream = at->session.stream;
    world.progress.moving = false;
    world_begin(&world, seeker, 7);
    expect_refusal(at, stream, STATUS_ABORTED, "step 7");
    expect_refusal(at, committed, STATUS_ABORTED, "step 7");
}

static void a_stopping_daemon_begins_nothing_new(void **state) {
    (void)state;
    struct world_session *at = streaming(0, 0, 0, 2);
    world.progress.stopping = true;
    world_pump(&world);
    expect_silence(at);
    struct world_session *late = bound(1, 0, 1);
    uint32_t stream = world_call(late, SESSION_LOADER, "Stream", FRAME_REMOTE_OPEN, NULL);
    world_stream(late, 1, NULL);
    expect_status(late, stream, STATUS_UNAVAILABLE);
}

static void a_client_s_name_is_logged_with_its_blanks_and_without_tricks(void **state) {
    static const struct {
        const char *name, *value;
    } cases[] = {{"rank", "rank"},
                 {"", ""},
                 {"my trainer", "\"my trainer\""},
                 {"a\" uid=0\n", "\"a? uid=0?\""}};
    char value[SESSION_NAME_BYTES + 2], longest[2 * SESSION_NAME_BYTES] = "";
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        session_value(cases[i].name, value);
        assert_string_equal(value, cases[i].value);
    }
    memset(longest, ' ', sizeof longest - 1);
    session_value(longest, value);
    assert_int_equal(strlen(value), SESSION_NAME_BYTES + 1);
    assert_int_equal(value[strlen(value) - 1], '"');
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(the_table_allows_the_rows_of_the_diagram_and_no_other),
        TEST(every_state_is_reached_by_its_event),
        TEST(a_stream_may_be_closed_in_every_state_that_has_one),
        TEST(hello_answers_the_identity_of_the_job),
        TEST(hello_refuses_what_does_not_fit_this_daemon),
        TEST(a_live_identity_stays_with_the_first_and_passes_on_when_it_leaves),
        TEST(a_client_s_name_is_logged_with_its_blanks_and_without_tricks),
        TEST(a_data_token_is_good_once),
        TEST(a_rank_receives_its_part_of_a_pool_and_no_other),
        TEST(batches_come_in_order_on_credit_and_ends_of_steps_cost_none),
        TEST(a_stream_without_from_starts_at_the_first_uncommitted_step),
        TEST(from_may_ask_for_any_kept_step_and_for_the_end_alone),
        TEST(batches_are_numbered_over_steps_of_different_sizes),
        TEST(a_stream_goes_on_over_steps_of_different_sizes),
        TEST(streams_end_where_the_mesh_does),
        TEST(steps_of_the_mesh_before_are_not_served),
        TEST(the_members_that_were_live_last_count_when_none_is),
        TEST(from_outside_what_is_kept_ends_the_stream_out_of_range),
        TEST(from_of_another_replica_or_on_a_later_message_is_refused),
        TEST(more_credits_than_allowed_end_the_stream),
        TEST(a_stream_needs_a_rank_and_a_rank_has_one),
        TEST(the_first_message_may_travel_in_the_request),
        TEST(the_end_of_data_comes_once_after_the_last_step),
        TEST(a_batch_that_is_not_ready_is_waited_for_and_the_wait_is_measured),
        TEST(a_rank_that_times_its_waits_is_believed),
        TEST(lost_tokens_end_the_streams_that_need_them_with_the_reason),
        TEST(nothing_is_sent_while_output_is_congested),
        TEST(answers_are_refused_while_too_many_wait_to_be_read),
        TEST(a_rank_without_tokens_or_documents_needs_no_slot),
        TEST(releases_give_back_once_and_only_what_this_connection_was_sent),
        TEST(a_commit_releases_what_its_steps_hold),
        TEST(a_batch_sent_on_two_streams_of_a_connection_is_held_once),
        TEST(nobody_runs_further_ahead_of_a_slower_rank_than_the_slots_reach),
        TEST(nobody_runs_further_ahead_of_the_slowest_commit_than_lead_steps),
        TEST(a_silent_rank_is_cut_when_one_that_leads_waits_for_it),
        TEST(ranks_that_never_commit_wait_for_themselves_and_are_not_cut),
        TEST(a_rank_that_begins_at_a_later_step_keeps_nobody_waiting_for_those_before),
        TEST(a_commit_is_answered_when_its_step_is_durable),
        TEST(a_commit_is_answered_when_the_store_knows_that_the_rank_made_it),
        TEST(while_the_disk_is_full_commits_are_refused_unless_they_are_durable),
        TEST(only_delivered_steps_can_be_committed),
        TEST(a_rank_that_reconnects_may_commit_what_it_was_given_before),
        TEST(a_rank_whose_lease_ended_may_commit_what_it_was_given_before),
        TEST(after_a_restart_a_rank_may_commit_what_it_says_it_was_given),
        TEST(after_a_restart_a_greeting_says_what_was_acknowledged_to_the_rank),
        TEST(measured_times_become_ratios_when_a_step_is_complete),
        TEST(the_fullest_expert_stands_beside_the_mean_of_all),
        TEST(a_step_is_forgotten_for_a_newer_one_in_its_place),
        TEST(what_was_planned_is_noted_when_a_step_is_given),
        TEST(a_commit_that_takes_longer_than_its_timeout_says_so),
        TEST(unanswered_commits_are_bounded),
        TEST(a_stop_of_the_daemon_is_nobodys_silence),
        TEST(a_silent_rank_is_cut_when_others_wait_for_it_and_not_before),
        TEST(a_rank_that_speaks_keeps_its_lease),
        TEST(a_rank_that_does_not_read_is_cut_after_its_lease),
        TEST(a_connection_that_says_nothing_is_closed),
        TEST(committed_step_waits_for_every_live_rank_and_passes_dead_ones),
        TEST(unknown_and_unreadable_calls_are_answered_and_the_connection_stays),
        TEST(an_unreadable_stream_message_ends_the_stream),
        TEST(broken_frames_are_answered_and_close_the_connection),
        TEST(services_are_for_the_peers_that_may_call_them),
        TEST(a_refused_peer_is_told_on_its_first_call),
        TEST(seek_import_and_export_are_passed_on_of_ranks_and_administrators),
        TEST(a_generation_ends_streams_commits_and_holds_of_the_one_before),
        TEST(ranks_join_by_seek_or_by_hello_and_stream_and_go_on_together),
        TEST(a_seek_elsewhere_is_refused_while_others_have_joined),
        TEST(a_generation_closes_when_its_first_step_is_committed_by_all),
        TEST(while_a_generation_is_stored_the_old_one_stands_still),
        TEST(a_stopping_daemon_begins_nothing_new),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
