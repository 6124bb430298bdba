/* A connection's output with a socket that takes little: whatever each write takes, all that was
 * asked for comes, and the loop never goes to sleep over it. Server, connection and loop are real;
 * plans and slots are one of each. */
#include "daemon/loader.h"
#include "daemon/server.h"
#include "daemon_world.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#define PAYLOAD_BYTES ((1u << 20) + 17)
#define INPUT_BYTES   (8u << 20)
#define CALLS_MANY    12000u
#define CALLS_FEW     20u
#define IDLE_TURNS    3u

/* What uv_try_write does when it is called for the nth time. */
enum fault { FAULT_NONE, FAULT_AGAIN, FAULT_BYTE, FAULT_HALF, FAULTS };

static struct {
    enum fault fault;
    unsigned nth, calls;
} socket_fault;

static struct {
    uv_loop_t loop;
    uv_prepare_t turn;
    struct server server;
    struct config config;
    struct world world;
    struct metrics metrics;
    uint8_t *payload;
    bool dirty;
    char folder[64];
} here;

/* The peer: what it has still to send, and what came. */
static struct {
    int fd;
    uint8_t *output;
    size_t output_used, output_sent;
    uint8_t *input;
    size_t input_used;
    size_t appetite; /* bytes that it reads in a turn */
    uint32_t stream; /* next */
} peer;

int __real_uv_try_write(uv_stream_t *stream, const uv_buf_t *buffers, unsigned count);
int __wrap_uv_try_write(uv_stream_t *stream, const uv_buf_t *buffers, unsigned count);
int __wrap_uv_try_write(uv_stream_t *stream, const uv_buf_t *buffers, unsigned count) {
    enum fault fault = ++socket_fault.calls == socket_fault.nth ? socket_fault.fault : FAULT_NONE;
    uv_buf_t part = buffers[0];
    switch (fault) {
    case FAULT_AGAIN:
        return UV_EAGAIN;
    case FAULT_BYTE:
        part.len = 1;
        return __real_uv_try_write(stream, &part, 1);
    case FAULT_HALF:
        part.len = (part.len + 1) / 2;
        return __real_uv_try_write(stream, &part, 1);
    default:
        return __real_uv_try_write(stream, buffers, count);
    }
}

/* World */

static enum session_answer one_plan(struct session *session, uint64_t step,
                                    const struct step_plan **plan, struct error *error) {
    static struct micro_batch micro_batches[WORLD_DP * WORLD_PER_STEP];
    static struct document document = {.length = 8, .document_length = 8};
    static struct rank_shard shards[WORLD_CP];
    static struct fragment fragments[1];
    static struct step_plan made;
    (void)session;
    (void)error;
    made = (struct step_plan){.step = step,
                              .dp = WORLD_DP,
                              .pp = 1,
                              .cp = WORLD_CP,
                              .tp = 1,
                              .micro_batch_count = WORLD_DP * WORLD_PER_STEP,
                              .micro_batches = micro_batches,
                              .documents = &document,
                              .shards = shards,
                              .fragments = fragments};
    for (uint32_t i = 0; i < made.micro_batch_count; i++) {
        micro_batches[i] = (struct micro_batch){
            .dp = i / WORLD_PER_STEP, .index = i % WORLD_PER_STEP, .document_count = 1};
    }
    *plan = &made;
    return step == 0 ? SESSION_READY : SESSION_WAITS;
}

static enum session_answer one_slot(struct session *session, const struct step_plan *plan,
                                    uint32_t micro_batch, bool last, struct session_batch *batch,
                                    struct error *error) {
    (void)session;
    (void)plan;
    (void)micro_batch;
    (void)last;
    (void)error;
    *batch = (struct session_batch){.slot = 0, .payload_bytes = 16, .slot_generation = 1};
    return SESSION_READY;
}

static const uint8_t *one_payload(struct session *session, uint32_t slot, uint64_t generation,
                                  uint64_t *bytes) {
    (void)session;
    (void)slot;
    (void)generation;
    *bytes = PAYLOAD_BYTES;
    return here.payload;
}

static void nothing(struct session *session) {
    (void)session;
}

static void nothing_of(struct session *session, uint32_t number) {
    (void)session;
    (void)number;
}

static void nothing_waited(struct session *session, uint64_t ns) {
    (void)session;
    (void)ns;
}

/* The loop's turn, as the daemon has it. */

static void touched(void *context) {
    (void)context;
    here.dirty = true;
}

static void turn(uv_prepare_t *prepare) {
    (void)prepare;
    while (here.dirty) {
        here.dirty = false;
        server_pump(&here.server, uv_hrtime());
    }
}

static void open_server(void) {
    struct error error = {0};
    here.server = (struct server){.loop = &here.loop,
                                  .config = &here.config,
                                  .world = &here.world.world,
                                  .slab_fd = -1,
                                  .metrics = &here.metrics,
                                  .touched = touched};
    (void)uv_loop_init(&here.loop);
    (void)uv_prepare_init(&here.loop, &here.turn);
    (void)uv_prepare_start(&here.turn, turn);
    if (server_open(&here.server, &error) < 0) {
        fail_msg("%s", error.text);
    }
}

static int set_up(void **state) {
    (void)state;
    memset(&here.metrics, 0, sizeof here.metrics);
    (void)snprintf(here.folder, sizeof here.folder, "/tmp/daemon_conn-XXXXXX");
    assert_non_null(mkdtemp(here.folder));
    here.config = (struct config){.connections_max = 4};
    (void)snprintf(here.config.socket_path, sizeof here.config.socket_path, "%s/b.sock",
                   here.folder);
    world_init(&here.world, true);
    struct session_ops *ops = &here.world.ops;
    ops->send = conn_send, ops->send_payload = conn_send_payload, ops->again = conn_again;
    ops->congested = conn_congested, ops->crowded = conn_crowded;
    ops->plan = one_plan, ops->take = one_slot, ops->payload = one_payload;
    ops->release = nothing_of, ops->opened = nothing_of;
    ops->waited = nothing_waited, ops->closed = nothing;
    here.payload = malloc(PAYLOAD_BYTES);
    for (uint32_t i = 0; i < PAYLOAD_BYTES; i++) {
        here.payload[i] = (uint8_t)(i * 2654435761u >> 13);
    }
    peer.output = malloc(INPUT_BYTES);
    peer.input = malloc(INPUT_BYTES);
    open_server();
    return 0;
}

static void close_all(uv_handle_t *handle, void *context) {
    (void)context;
    if (!uv_is_closing(handle)) {
        uv_close(handle, NULL);
    }
}

static int tear_down(void **state) {
    (void)state;
    server_close(&here.server);
    (void)uv_run(&here.loop, UV_RUN_NOWAIT);
    (void)uv_run(&here.loop, UV_RUN_NOWAIT);
    server_deinit(&here.server);
    uv_walk(&here.loop, close_all, NULL);
    (void)uv_run(&here.loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&here.loop), 0);
    world_deinit(&here.world);
    free(here.payload);
    free(peer.output);
    free(peer.input);
    (void)rmdir(here.folder);
    return 0;
}

/* Peer */

static void peer_connect(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%s/b.sock", here.folder);
    peer.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(peer.fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(fcntl(peer.fd, F_SETFL, O_NONBLOCK), 0);
    peer.output_used = peer.output_sent = peer.input_used = 0;
    peer.appetite = INPUT_BYTES;
    peer.stream = 1;
}

/* The connection and what it holds are gone before the next peer comes. */
static void peer_leave(void) {
    (void)close(peer.fd);
    for (int turns = 0; turns < 1000 && here.server.conn_count > 0; turns++) {
        (void)uv_run(&here.loop, UV_RUN_NOWAIT);
    }
    assert_int_equal(here.server.conn_count, 0);
    (void)uv_run(&here.loop, UV_RUN_NOWAIT);
}

static void peer_append(uint32_t stream, enum frame_type type, uint8_t flags,
                        const ProtobufCMessage *message) {
    const struct frame_header header = {
        .length = (uint32_t)protobuf_c_message_get_packed_size(message),
        .stream = stream,
        .type = (uint8_t)type,
        .flags = flags};
    assert_true(peer.output_used + FRAME_HEADER_BYTES + header.length <= INPUT_BYTES);
    frame_header_encode(&header, peer.output + peer.output_used);
    (void)protobuf_c_message_pack(message, peer.output + peer.output_used + FRAME_HEADER_BYTES);
    peer.output_used += FRAME_HEADER_BYTES + header.length;
}

static uint32_t peer_call(const char *method, uint8_t flags, const ProtobufCMessage *message) {
    uint8_t payload[512];
    Ttrpc__Request request = TTRPC__REQUEST__INIT;
    uint32_t stream = peer.stream;
    request.service = (char *)SESSION_LOADER;
    request.method = (char *)method;
    if (message != NULL) {
        request.payload.data = payload;
        request.payload.len = protobuf_c_message_pack(message, payload);
    }
    peer.stream += 2;
    peer_append(stream, FRAME_REQUEST, flags, &request.base);
    return stream;
}

/* A rank that is given both micro-batches of step 0. */
static void peer_hello(void) {
    Ballast__V1__HelloRequest hello = BALLAST__V1__HELLO_REQUEST__INIT;
    Ballast__V1__Rank rank = BALLAST__V1__RANK__INIT;
    Ballast__V1__Part part = BALLAST__V1__PART__PART_TOKENS;
    Ballast__V1__StreamRequest request = BALLAST__V1__STREAM_REQUEST__INIT;
    hello.protocol_min = hello.protocol_max = 1;
    hello.rank = &rank;
    hello.n_parts = 1;
    hello.parts = &part;
    request.credits = 2;
    (void)peer_call("Hello", FRAME_REMOTE_CLOSED, &hello.base);
    uint32_t stream = peer_call("Stream", FRAME_REMOTE_OPEN, NULL);
    peer_append(stream, FRAME_DATA, 0, &request.base);
}

static bool peer_write(void) {
    ssize_t sent = 0;
    if (peer.output_sent < peer.output_used) {
        sent = send(peer.fd, peer.output + peer.output_sent, peer.output_used - peer.output_sent,
                    MSG_NOSIGNAL);
        assert_true(sent > 0 || errno == EAGAIN);
        peer.output_sent += sent > 0 ? (size_t)sent : 0;
    }
    return sent > 0;
}

static bool peer_read(void) {
    size_t room = INPUT_BYTES - peer.input_used;
    ssize_t got = recv(peer.fd, peer.input + peer.input_used,
                       room < peer.appetite ? room : peer.appetite, 0);
    assert_true(got > 0 || (got < 0 && errno == EAGAIN));
    peer.input_used += got > 0 ? (size_t)got : 0;
    return got > 0;
}

/* Lets peer and loop talk until neither has anything to do: no descriptor ready, no timer due. */
static void converse(void) {
    unsigned idle = 0;
    while (idle < IDLE_TURNS) {
        bool moved = peer_write();
        (void)uv_run(&here.loop, UV_RUN_NOWAIT);
        moved |= peer_read();
        idle = moved || uv_backend_timeout(&here.loop) == 0 ? 0 : idle + 1;
    }
}

/* What came for a stream */

struct came {
    uint32_t responses;
    uint64_t bytes; /* of payloads, compared with the slot's */
};

static void came_data(struct came *came, const uint8_t *data, size_t count) {
    Ballast__V1__FetchResponse *piece = ballast__v1__fetch_response__unpack(NULL, count, data);
    assert_non_null(piece);
    assert_true(came->bytes + piece->payload.len <= PAYLOAD_BYTES);
    assert_memory_equal(piece->payload.data, here.payload + came->bytes, piece->payload.len);
    came->bytes += piece->payload.len;
    ballast__v1__fetch_response__free_unpacked(piece, NULL);
}

/* Of `stream`, or responses of all streams for 0; every frame is whole. */
static struct came what_came(uint32_t stream) {
    struct came came = {0};
    size_t at = 0;
    while (at < peer.input_used) {
        struct frame_header header;
        assert_true(peer.input_used - at >= FRAME_HEADER_BYTES);
        frame_header_decode(peer.input + at, &header);
        assert_int_equal(frame_header_check(&header, NULL), 0);
        at += FRAME_HEADER_BYTES;
        assert_true(header.length <= peer.input_used - at);
        bool wanted = stream == 0 || header.stream == stream;
        if (wanted && header.type == FRAME_RESPONSE) {
            came.responses++;
        } else if (wanted && stream != 0 && header.type == FRAME_DATA) {
            came_data(&came, peer.input + at, header.length);
        }
        at += header.length;
    }
    return came;
}

static uint32_t peer_fetch(uint32_t index) {
    Ballast__V1__FetchRequest request = BALLAST__V1__FETCH_REQUEST__INIT;
    Ballast__V1__BatchId id = BALLAST__V1__BATCH_ID__INIT;
    id.index = index;
    request.id = &id;
    return peer_call("Fetch", FRAME_REMOTE_CLOSED, &request.base);
}

/* Two batches are fetched between other calls. */
static void fetch_and_expect_all(void) {
    peer_connect();
    peer_hello();
    converse();
    uint32_t first = peer_fetch(0), ping = peer_call("Ping", FRAME_REMOTE_CLOSED, NULL);
    uint32_t second = peer_fetch(1);
    converse();
    struct came a = what_came(first), b = what_came(second);
    if (a.bytes != PAYLOAD_BYTES || b.bytes != PAYLOAD_BYTES || a.responses != 1 ||
        b.responses != 1 || what_came(ping).responses != 1) {
        fail_msg("the loop sleeps with %lu and %lu of %u bytes sent, write %u of fault %d",
                 (unsigned long)a.bytes, (unsigned long)b.bytes, PAYLOAD_BYTES, socket_fault.nth,
                 (int)socket_fault.fault);
    }
    peer_leave();
}

static void a_fetch_goes_on_when_the_peer_reads_little_at_a_time(void **state) {
    static const size_t appetites[] = {700, 4096, 65536};
    (void)state;
    socket_fault.nth = 0;
    for (size_t i = 0; i < sizeof appetites / sizeof *appetites; i++) {
        peer_connect();
        peer_hello();
        peer.appetite = appetites[i];
        converse();
        uint32_t stream = peer_fetch(0);
        converse();
        assert_int_equal(what_came(stream).bytes, PAYLOAD_BYTES);
        assert_int_equal(what_came(stream).responses, 1);
        peer_leave();
    }
}

static void expect_all_answers(void) {
    uint32_t answers = what_came(0).responses;
    if (answers != (peer.stream - 1) / 2) {
        fail_msg("the loop sleeps with %u of %u calls answered, write %u of fault %d", answers,
                 (peer.stream - 1) / 2, socket_fault.nth, (int)socket_fault.fault);
    }
    peer_leave();
}

/* More answers than a connection may have waiting: it stops reading, and goes on when they leave.
 */
static void call_without_reading(void) {
    peer_connect();
    for (uint32_t i = 0; i < CALLS_MANY; i++) {
        (void)peer_call("NoSuchCallOfThisService", FRAME_REMOTE_CLOSED, NULL);
    }
    for (int turns = 0; turns < 40; turns++) {
        (void)peer_write();
        (void)uv_run(&here.loop, UV_RUN_NOWAIT);
    }
    assert_false(here.server.conns[0]->reading); /* this is what the test is about */
    converse();
    expect_all_answers();
}

/* The output of others fills the server: every answer has to leave before the next call is read. */
static void call_among_others(void) {
    here.server.output_bytes += SERVER_OUTPUT_BYTES + 1;
    peer_connect();
    for (uint32_t i = 0; i < CALLS_FEW; i++) {
        (void)peer_call("Ping", FRAME_REMOTE_CLOSED, NULL);
    }
    converse();
    expect_all_answers();
    here.server.output_bytes -= SERVER_OUTPUT_BYTES + 1;
}

/* Once for every write there is and everything that it may do. */
static void for_every_write(void (*talk)(void)) {
    unsigned writes = 1;
    for (int fault = FAULT_AGAIN; fault < FAULTS; fault++) {
        for (unsigned nth = 1; nth <= writes; nth++) {
            socket_fault.fault = (enum fault)fault;
            socket_fault.nth = nth;
            socket_fault.calls = 0;
            talk();
            writes = socket_fault.calls;
        }
    }
    assert_in_range(writes, 4, 1000);
    socket_fault.nth = 0;
}

static void a_fetch_goes_on_whatever_each_write_takes(void **state) {
    (void)state;
    for_every_write(fetch_and_expect_all);
}

static void a_congested_connection_goes_on_whatever_each_write_takes(void **state) {
    (void)state;
    for_every_write(call_without_reading);
}

static void calls_are_answered_one_by_one_while_others_fill_the_server(void **state) {
    (void)state;
    for_every_write(call_among_others);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_fetch_goes_on_whatever_each_write_takes),
        TEST(a_fetch_goes_on_when_the_peer_reads_little_at_a_time),
        TEST(a_congested_connection_goes_on_whatever_each_write_takes),
        TEST(calls_are_answered_one_by_one_while_others_fill_the_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
