/* Loader.Fetch as a pure step: whole payloads in order, one message at a time, no further than the
 * peer has read, and no byte of a slot that is no longer held. The world and its clock are fake. */
#include "daemon_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PAYLOAD_BYTES ((3u << 20) + 17)

static struct world world;
static uint8_t *payload;

static int set_up(void **state) {
    (void)state;
    world_init(&world, true);
    payload = malloc(PAYLOAD_BYTES);
    assert_non_null(payload);
    for (uint32_t i = 0; i < PAYLOAD_BYTES; i++) {
        payload[i] = (uint8_t)(i * 2654435761u >> 13);
    }
    world.payload = payload;
    world.payload_bytes = PAYLOAD_BYTES;
    world.slot_generation = 1; /* of step 0 */
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    world_deinit(&world);
    free(payload);
    return 0;
}

/* A rank of replica 0 that was sent micro-batches 0 and 1 of step 0; everything was read. */
static struct world_session *holding(uint32_t i) {
    struct world_session *at = world_connect(&world, i);
    Ballast__V1__HelloRequest hello = BALLAST__V1__HELLO_REQUEST__INIT;
    Ballast__V1__Rank rank = BALLAST__V1__RANK__INIT;
    Ballast__V1__Part part = BALLAST__V1__PART__PART_TOKENS;
    rank.cp = i;
    hello.protocol_min = hello.protocol_max = 1;
    hello.rank = &rank;
    hello.n_parts = 1;
    hello.parts = &part;
    world_call(at, SESSION_LOADER, "Hello", 0, &hello.base);
    world_call(at, SESSION_LOADER, "Stream", FRAME_REMOTE_OPEN, NULL);
    world_stream(at, 2, NULL);
    session_pump(&at->session, world.now_ns);
    assert_int_equal(at->session.held_count, 2);
    at->read = at->sent_count;
    return at;
}

static uint32_t fetch(struct world_session *at, uint64_t step, uint32_t index) {
    Ballast__V1__FetchRequest request = BALLAST__V1__FETCH_REQUEST__INIT;
    Ballast__V1__BatchId id = BALLAST__V1__BATCH_ID__INIT;
    id.step = step;
    id.index = index;
    request.id = &id;
    return world_call(at, SESSION_LOADER, "Fetch", FRAME_REMOTE_CLOSED, &request.base);
}

static void pump(struct world_session *at) {
    at->again = false;
    session_pump(&at->session, world.now_ns);
}

/* Reads the stream's messages that were sent; compares them with the payload from `done` on. */
static uint64_t expect_pieces(struct world_session *at, uint32_t stream, uint64_t done) {
    while (at->read < at->sent_count && at->sent[at->read].type == FRAME_DATA) {
        const struct world_sent *sent = world_read(at);
        Ballast__V1__FetchResponse *piece = ballast__v1__fetch_response__unpack(NULL, sent->count,
                                                                                sent->bytes);
        assert_non_null(piece);
        assert_int_equal(sent->stream, stream);
        assert_in_range(piece->payload.len, 1, 1u << 20);
        assert_true(done + piece->payload.len <= PAYLOAD_BYTES);
        assert_memory_equal(piece->payload.data, payload + done, piece->payload.len);
        done += piece->payload.len;
        ballast__v1__fetch_response__free_unpacked(piece, NULL);
    }
    return done;
}

static void expect_status(struct world_session *at, uint32_t stream, enum status status,
                          const char *word) {
    const struct world_sent *sent = world_read(at);
    assert_non_null(sent);
    assert_int_equal(sent->type, FRAME_RESPONSE);
    assert_int_equal(sent->stream, stream);
    Ttrpc__Response *response = ttrpc__response__unpack(NULL, sent->count, sent->bytes);
    assert_non_null(response);
    assert_int_equal(response->status == NULL ? STATUS_OK : response->status->code, status);
    assert_true(status == STATUS_OK || strstr(response->status->message, word) != NULL);
    ttrpc__response__free_unpacked(response, NULL);
}

static void a_fetch_brings_the_whole_payload_in_order_then_ends_well(void **state) {
    struct world_session *at = holding(0);
    uint32_t stream = fetch(at, 0, 1);
    uint64_t done = 0;
    (void)state;
    for (uint32_t turns = 0; at->session.fetch_count > 0; turns++) {
        assert_in_range(turns, 0, 10);
        assert_true(at->again);
        pump(at);
        done = expect_pieces(at, stream, done);
    }
    assert_int_equal(done, PAYLOAD_BYTES);
    expect_status(at, stream, STATUS_OK, "");
    assert_null(world_read(at));
    assert_int_equal(at->session.held_count, 2); /* fetched is not released */
}

static void one_turn_sends_no_more_than_its_share(void **state) {
    struct world_session *at = holding(0);
    uint32_t stream = fetch(at, 0, 0);
    (void)state;
    pump(at);
    assert_in_range(expect_pieces(at, stream, 0), 1, 1u << 20);
    assert_true(at->again);
}

static void a_peer_that_does_not_read_gets_nothing_more(void **state) {
    struct world_session *at = holding(0);
    uint32_t stream = fetch(at, 0, 0);
    (void)state;
    at->congested = true;
    pump(at);
    assert_null(world_read(at));
    assert_false(at->again); /* what drains will pump */
    at->congested = false;
    pump(at);
    assert_true(expect_pieces(at, stream, 0) > 0);
}

static void the_next_piece_waits_until_the_socket_took_the_one_before(void **state) {
    struct world_session *at = holding(0);
    uint32_t stream = fetch(at, 0, 0);
    (void)state;
    at->narrow = true;
    pump(at);
    uint64_t done = expect_pieces(at, stream, 0);
    assert_in_range(done, 1, 256u << 10);
    assert_false(at->again); /* what drains will pump */
    pump(at);
    assert_int_equal(expect_pieces(at, stream, done), 2 * done);
}

static void fetches_of_a_connection_follow_one_another(void **state) {
    struct world_session *at = holding(0);
    uint32_t first = fetch(at, 0, 1), second = fetch(at, 0, 0);
    uint64_t done = 0;
    (void)state;
    while (at->session.fetch_count == 2) {
        pump(at);
        done = expect_pieces(at, first, done);
    }
    expect_status(at, first, STATUS_OK, "");
    done = expect_pieces(at, second, 0);
    while (at->session.fetch_count > 0) {
        pump(at);
        done = expect_pieces(at, second, done);
    }
    assert_int_equal(done, PAYLOAD_BYTES);
    expect_status(at, second, STATUS_OK, "");
}

static void a_release_midway_ends_the_fetch_with_a_status(void **state) {
    struct world_session *at = holding(0);
    uint32_t stream = fetch(at, 0, 0);
    (void)state;
    pump(at);
    (void)expect_pieces(at, stream, 0);
    world_release(at, 0, 0);
    expect_status(at, stream, STATUS_CANCELLED, "no longer held");
    pump(at);
    assert_null(world_read(at));
}

static void a_slot_of_another_generation_ends_the_fetch_before_its_bytes(void **state) {
    struct world_session *at = holding(0);
    uint32_t stream = fetch(at, 0, 0);
    (void)state;
    pump(at);
    (void)expect_pieces(at, stream, 0);
    world.slot_generation = 2;
    pump(at);
    expect_status(at, stream, STATUS_DATA_LOSS, "another batch");
    assert_null(world_read(at));
}

static void another_generation_of_the_job_ends_the_fetch(void **state) {
    struct world_session *at = holding(0);
    uint32_t stream = fetch(at, 0, 0);
    (void)state;
    pump(at);
    (void)expect_pieces(at, stream, 0);
    world.generation.number++;
    session_abort(&at->session, world.now_ns);
    assert_int_equal(at->session.fetch_count, 0);
    assert_int_equal(at->session.held_count, 0);
    bool told = false;
    for (const struct world_sent *sent = world_read(at); sent != NULL; sent = world_read(at)) {
        told |= sent->stream == stream && sent->type == FRAME_RESPONSE;
    }
    assert_true(told);
}

static void a_fetch_of_what_is_not_held_is_refused(void **state) {
    struct world_session *at = holding(0);
    (void)state;
    expect_status(at, fetch(at, 0, 7), STATUS_NOT_FOUND, "not held");
    world_release(at, 0, 1);
    expect_status(at, fetch(at, 0, 1), STATUS_NOT_FOUND, "released");
    expect_status(at, world_call(at, SESSION_LOADER, "Fetch", 0, NULL), STATUS_INVALID_ARGUMENT,
                  "names no batch");
}

static void a_fetch_without_hello_is_refused(void **state) {
    struct world_session *at = world_connect(&world, 0);
    (void)state;
    expect_status(at, fetch(at, 0, 0), STATUS_FAILED_PRECONDITION, "Hello");
}

static void fetches_of_a_connection_are_bounded(void **state) {
    struct world_session *at = holding(0);
    (void)state;
    for (uint32_t i = 0; i < SESSION_FETCHES_MAX; i++) {
        (void)fetch(at, 0, 0);
    }
    assert_null(world_read(at));
    expect_status(at, fetch(at, 0, 0), STATUS_RESOURCE_EXHAUSTED, "already");
}

static void a_fetch_with_a_timeout_ends_at_it(void **state) {
    struct world_session *at = holding(0);
    uint32_t stream = fetch(at, 0, 0);
    (void)state;
    at->session.fetches[0].deadline_ns = world.now_ns + 1;
    pump(at);
    assert_true(expect_pieces(at, stream, 0) > 0);
    world.now_ns++;
    pump(at);
    expect_status(at, stream, STATUS_DEADLINE_EXCEEDED, "in time");
}

static void an_end_of_the_session_forgets_its_fetches(void **state) {
    struct world_session *at = holding(0);
    (void)state;
    (void)fetch(at, 0, 0);
    session_deinit(&at->session, world.now_ns);
    assert_int_equal(at->session.fetch_count, 0);
    assert_null(world_read(at));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_fetch_brings_the_whole_payload_in_order_then_ends_well),
        TEST(one_turn_sends_no_more_than_its_share),
        TEST(a_peer_that_does_not_read_gets_nothing_more),
        TEST(the_next_piece_waits_until_the_socket_took_the_one_before),
        TEST(fetches_of_a_connection_follow_one_another),
        TEST(a_release_midway_ends_the_fetch_with_a_status),
        TEST(a_slot_of_another_generation_ends_the_fetch_before_its_bytes),
        TEST(another_generation_of_the_job_ends_the_fetch),
        TEST(a_fetch_of_what_is_not_held_is_refused),
        TEST(a_fetch_without_hello_is_refused),
        TEST(fetches_of_a_connection_are_bounded),
        TEST(a_fetch_with_a_timeout_ends_at_it),
        TEST(an_end_of_the_session_forgets_its_fetches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
