/* The call channel against a scripted daemon: calls, refusals, one stream, and every way in which
 * the other side can fail. */
#include "client_fake.h"

#include "client/call.h"
#include "client/deadline.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const char loader[] = "ballast.v1.Loader";
static const char admin[] = "ballast.v1.Admin";

static struct call_channel *open_channel(const struct fake *fake) {
    struct call_channel *channel = NULL;
    struct error error = {0};
    assert_int_equal(call_open(fake->path, 0, &channel, &error), 0);
    return channel;
}

static int ping(struct call_channel *channel, int timeout_ms, struct error *error) {
    Ballast__V1__PingRequest request = BALLAST__V1__PING_REQUEST__INIT;
    ProtobufCMessage *response = NULL;
    struct arena arena;
    arena_init(&arena, 1u << 16);
    int code = call_unary(channel, loader, "Ping", &request.base,
                          &ballast__v1__ping_response__descriptor, &arena, &response, timeout_ms,
                          error);
    assert_true((code == 0) == (response != NULL));
    arena_deinit(&arena);
    return code;
}

static void serve_commit(struct fake *fake) {
    uint32_t stream;
    fake_accept(fake);
    Ballast__V1__CommitRequest *request = fake_request(
        fake, "Commit", &ballast__v1__commit_request__descriptor, &stream);
    Ballast__V1__CommitResponse response = BALLAST__V1__COMMIT_RESPONSE__INIT;
    response.durable_step = request->step + 1;
    fake_respond(fake, stream, &response.base);
}

static void a_call_is_answered(void **state) {
    (void)state;
    struct fake fake;
    struct arena arena;
    struct error error = {0};
    ProtobufCMessage *message = NULL;
    arena_init(&arena, 1u << 16);
    fake_start(&fake, serve_commit, NULL);
    struct call_channel *channel = open_channel(&fake);
    Ballast__V1__CommitRequest request = BALLAST__V1__COMMIT_REQUEST__INIT;
    request.step = 41;
    assert_int_equal(call_unary(channel, loader, "Commit", &request.base,
                                &ballast__v1__commit_response__descriptor, &arena, &message, -1,
                                &error),
                     0);
    assert_int_equal(((Ballast__V1__CommitResponse *)message)->durable_step, 42);
    call_close(channel);
    fake_stop(&fake);
    arena_deinit(&arena);
}

static void refuse_twice(struct fake *fake) {
    uint32_t stream;
    fake_accept(fake);
    (void)fake_request(fake, "Ping", &ballast__v1__ping_request__descriptor, &stream);
    fake_refuse(fake, stream, STATUS_ALREADY_EXISTS, "rank (0, 0, 1, 0) is served already");
    (void)fake_request(fake, "Ping", &ballast__v1__ping_request__descriptor, &stream);
    fake_refuse(fake, stream, STATUS_UNIMPLEMENTED, "");
    (void)fake_request(fake, "Ping", &ballast__v1__ping_request__descriptor, &stream);
    fake_refuse(fake, stream, (enum status)99, "odd");
    (void)fake_request(fake, "Ping", &ballast__v1__ping_request__descriptor, &stream);
    Ballast__V1__PingResponse response = BALLAST__V1__PING_RESPONSE__INIT;
    fake_respond(fake, stream, &response.base);
}

static void a_refusal_is_the_errno_of_its_status_and_the_daemons_sentence(void **state) {
    (void)state;
    struct fake fake;
    struct error error = {0};
    fake_start(&fake, refuse_twice, NULL);
    struct call_channel *channel = open_channel(&fake);
    assert_int_equal(ping(channel, -1, &error), -EEXIST);
    assert_string_equal(error.text, "rank (0, 0, 1, 0) is served already");
    assert_int_equal(error.code, -EEXIST);
    assert_int_equal(ping(channel, -1, &error), -ENOSYS);
    assert_string_equal(error.text, status_sentence(STATUS_UNIMPLEMENTED));
    assert_int_equal(ping(channel, -1, &error), -EPROTO);
    assert_string_equal(error.text, "odd");
    assert_int_equal(ping(channel, -1, &error), 0);
    call_close(channel);
    fake_stop(&fake);
}

static void answer_late(struct fake *fake) {
    uint32_t first, second;
    Ballast__V1__PingResponse response = BALLAST__V1__PING_RESPONSE__INIT;
    fake_accept(fake);
    (void)fake_request(fake, "Ping", &ballast__v1__ping_request__descriptor, &first);
    (void)fake_request(fake, "Ping", &ballast__v1__ping_request__descriptor, &second);
    fake_refuse(fake, first, STATUS_INTERNAL, "too late");
    fake_respond(fake, second, &response.base);
}

static void a_late_answer_is_not_taken_for_another(void **state) {
    (void)state;
    struct fake fake;
    struct error error = {0};
    fake_start(&fake, answer_late, NULL);
    struct call_channel *channel = open_channel(&fake);
    assert_int_equal(ping(channel, 1, &error), -ETIMEDOUT);
    assert_non_null(strstr(error.text, "did not answer Ping within 1 ms"));
    assert_int_equal(ping(channel, -1, &error), 0);
    call_close(channel);
    fake_stop(&fake);
}

static void never_answer(struct fake *fake) {
    struct frame_header header;
    const uint8_t *data;
    fake_accept(fake);
    while (fake_receive(fake, &header, &data)) {
    }
}

static void a_timeout_is_neither_early_nor_much_too_late(void **state) {
    (void)state;
    struct fake fake;
    struct error error = {0};
    fake_start(&fake, never_answer, NULL);
    struct call_channel *channel = open_channel(&fake);
    int64_t begin = deadline_now_ns();
    assert_int_equal(ping(channel, 30, &error), -ETIMEDOUT);
    int64_t took = deadline_now_ns() - begin;
    assert_true(took >= 30 * 1000000);
    assert_true(took < 30000 * (int64_t)1000000);
    call_close(channel);
    fake_stop(&fake);
}

/* Sends stream messages around a unary answer, then ends the stream. */
static void stream_around_a_call(struct fake *fake) {
    uint32_t stream, call;
    Ballast__V1__EndOfStep end = BALLAST__V1__END_OF_STEP__INIT;
    Ballast__V1__StreamResponse event = BALLAST__V1__STREAM_RESPONSE__INIT;
    Ballast__V1__PingResponse response = BALLAST__V1__PING_RESPONSE__INIT;
    event.event_case = BALLAST__V1__STREAM_RESPONSE__EVENT_END_OF_STEP;
    event.end_of_step = &end;
    fake_accept(fake);
    (void)fake_request(fake, "Stream", &ballast__v1__ping_request__descriptor, &stream);
    FAKE_CHECK(fake_stream_request(fake, stream)->credits == 3);
    (void)fake_request(fake, "Ping", &ballast__v1__ping_request__descriptor, &call);
    for (end.step = 0; end.step < 5; end.step++) {
        fake_send(fake, stream, &event.base);
    }
    fake_respond(fake, call, &response.base);
    fake_send(fake, stream, &event.base);
    fake_refuse(fake, stream, STATUS_ABORTED, "generation 2 has begun");
    fake_hang_up(fake);
}

static void stream_messages_are_kept_in_order_while_a_call_waits(void **state) {
    (void)state;
    struct fake fake;
    struct arena arena;
    struct error error = {0};
    Ballast__V1__StreamRequest request = BALLAST__V1__STREAM_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    request.credits = 3;
    arena_init(&arena, 1u << 16);
    fake_start(&fake, stream_around_a_call, NULL);
    struct call_channel *channel = open_channel(&fake);
    assert_int_equal(call_stream_open(channel, loader, "Stream", &error), 0);
    assert_int_equal(call_stream_send(channel, &request.base, &error), 0);
    assert_int_equal(ping(channel, -1, &error), 0);
    for (uint64_t step = 0; step <= 5; step++) {
        assert_int_equal(call_stream_next(channel, &ballast__v1__stream_response__descriptor,
                                          &arena, &message, -1, &error),
                         1);
        Ballast__V1__StreamResponse *event = (Ballast__V1__StreamResponse *)message;
        assert_int_equal(event->end_of_step->step, step);
    }
    assert_int_equal(call_stream_next(channel, &ballast__v1__stream_response__descriptor, &arena,
                                      &message, -1, &error),
                     -ESTALE);
    assert_string_equal(error.text, "generation 2 has begun");
    assert_int_equal(call_stream_send(channel, &request.base, &error), -EPIPE);
    int code = ping(channel, -1, &error);
    assert_true(code == -EPIPE || code == -ECONNRESET); /* whichever side is faster */
    call_close(channel);
    fake_stop(&fake);
    arena_deinit(&arena);
}

static void an_idle_stream_times_out(void **state) {
    (void)state;
    struct fake fake;
    struct error error = {0};
    fake_start(&fake, never_answer, NULL);
    struct call_channel *channel = open_channel(&fake);
    assert_int_equal(call_stream_open(channel, loader, "Stream", &error), 0);
    for (int timeout_ms = 0; timeout_ms < 3; timeout_ms++) {
        ProtobufCMessage *message = NULL;
        assert_int_equal(call_stream_next(channel, &ballast__v1__stream_response__descriptor, NULL,
                                          &message, timeout_ms, &error),
                         0);
        assert_null(message);
    }
    call_close(channel);
    fake_stop(&fake);
}

struct raw {
    const uint8_t *bytes;
    size_t count;
};

/* Answers any request with the given bytes and hangs up. */
static void answer_raw(struct fake *fake) {
    const struct raw *raw = fake->context;
    struct frame_header header;
    const uint8_t *data;
    fake_accept(fake);
    FAKE_CHECK(fake_receive(fake, &header, &data));
    fake_send_raw(fake, raw->bytes, raw->count);
    fake_hang_up(fake);
}

static int ping_answered_by(const uint8_t *bytes, size_t count, struct error *error) {
    struct fake fake;
    struct raw raw = {bytes, count};
    fake_start(&fake, answer_raw, &raw);
    struct call_channel *channel = open_channel(&fake);
    int code = ping(channel, -1, error);
    if (code < 0) {
        assert_true(ping(channel, -1, NULL) < 0);
    }
    call_close(channel);
    fake_stop(&fake);
    return code;
}

static void half_an_answer_is_a_broken_connection(void **state) {
    (void)state;
    struct error error = {0};
    uint8_t answer[FRAME_HEADER_BYTES + 2] = {0};
    struct frame_header header = {.length = 2, .stream = 1, .type = FRAME_RESPONSE};
    frame_header_encode(&header, answer);
    answer[FRAME_HEADER_BYTES] = 0x12; /* field 2, payload, of no bytes */
    assert_int_equal(ping_answered_by(answer, sizeof answer, &error), 0);
    for (size_t count = 0; count < sizeof answer; count++) {
        assert_int_equal(ping_answered_by(answer, count, &error), -EPIPE);
        assert_string_equal(error.text, "the daemon closed the connection");
    }
}

static void frames_that_no_daemon_sends_end_the_connection(void **state) {
    (void)state;
    static const struct frame_header bad[] = {
        {.length = UINT32_MAX, .stream = 1, .type = FRAME_RESPONSE},
        {.length = FRAME_DATA_BYTES_MAX + 1, .stream = 1, .type = FRAME_RESPONSE},
        {.length = 0, .stream = 1, .type = 9},
        {.length = 0, .stream = 1, .type = FRAME_RESPONSE, .flags = 0x40},
        {.length = 0, .stream = 2, .type = FRAME_RESPONSE},
        {.length = 0, .stream = 3, .type = FRAME_RESPONSE},
        {.length = 0, .stream = 0, .type = FRAME_DATA},
        {.length = 0, .stream = 1, .type = FRAME_DATA},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct error error = {0};
        uint8_t bytes[FRAME_HEADER_BYTES];
        frame_header_encode(&bad[i], bytes);
        int expected = bad[i].length > FRAME_DATA_BYTES_MAX ? -EMSGSIZE : -EPROTO;
        assert_int_equal(ping_answered_by(bytes, sizeof bytes, &error), expected);
        assert_true(error.text[0] != '\0');
    }
}

static void an_answer_that_does_not_unpack_is_a_protocol_error(void **state) {
    (void)state;
    struct error error = {0};
    uint8_t bytes[FRAME_HEADER_BYTES + 3] = {0};
    struct frame_header header = {.length = 3, .stream = 1, .type = FRAME_RESPONSE};
    frame_header_encode(&header, bytes);
    memset(bytes + FRAME_HEADER_BYTES, 0xff, 3);
    assert_int_equal(ping_answered_by(bytes, sizeof bytes, &error), -EPROTO);
    assert_non_null(strstr(error.text, "does not unpack"));
}

static void a_request_larger_than_a_frame_is_refused_here(void **state) {
    (void)state;
    struct fake fake;
    struct arena arena;
    struct error error = {0};
    ProtobufCMessage *response = NULL;
    arena_init(&arena, 1u << 16);
    fake_start(&fake, serve_commit, NULL);
    struct call_channel *channel = open_channel(&fake);
    Ballast__V1__ImportRequest import = BALLAST__V1__IMPORT_REQUEST__INIT;
    import.state.len = FRAME_DATA_BYTES_MAX;
    import.state.data = calloc(1, import.state.len);
    assert_int_equal(call_unary(channel, loader, "Import", &import.base,
                                &ballast__v1__import_response__descriptor, &arena, &response, -1,
                                &error),
                     -EMSGSIZE);
    Ballast__V1__CommitRequest commit = BALLAST__V1__COMMIT_REQUEST__INIT;
    assert_int_equal(call_unary(channel, loader, "Commit", &commit.base,
                                &ballast__v1__commit_response__descriptor, &arena, &response, -1,
                                &error),
                     0);
    free(import.state.data);
    call_close(channel);
    fake_stop(&fake);
    arena_deinit(&arena);
}

static void without_a_daemon_opening_says_what_to_do(void **state) {
    (void)state;
    struct fake fake;
    struct error error = {0};
    struct call_channel *channel = NULL;
    fake_prepare(&fake);
    assert_int_equal(call_open(fake.path, 0, &channel, &error), -ECONNREFUSED);
    char expected[256];
    (void)snprintf(
        expected, sizeof expected,
        "no daemon listens on %s; start ballastd, or name its socket (--socket, BALLAST_SOCKET)",
        fake.path);
    assert_string_equal(error.text, expected);
    int64_t begin = deadline_now_ns();
    assert_int_equal(call_open(fake.path, 25, &channel, &error), -ECONNREFUSED);
    assert_true(deadline_now_ns() - begin >= 25 * 1000000);
    assert_null(channel);
    fake_stop(&fake);
}

static void a_stale_or_wrong_socket_file_is_no_daemon(void **state) {
    (void)state;
    struct fake fake;
    struct error error = {0};
    struct call_channel *channel = NULL;
    fake_prepare(&fake);
    int fd = open(fake.path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(call_open(fake.path, 0, &channel, &error), -ECONNREFUSED);
    unlink(fake.path);
    char longer[200];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_int_equal(call_open(longer, -1, &channel, &error), -ENAMETOOLONG);
    fake_stop(&fake);
}

static void *listen_soon(void *argument) {
    struct fake *fake = argument;
    fake_listen(fake);
    fake_accept(fake);
    return NULL;
}

static void opening_waits_for_a_daemon_that_is_still_starting(void **state) {
    (void)state;
    struct fake fake;
    struct error error = {0};
    struct call_channel *channel = NULL;
    pthread_t thread;
    fake_prepare(&fake);
    assert_int_equal(pthread_create(&thread, NULL, listen_soon, &fake), 0);
    assert_int_equal(call_open(fake.path, 30000, &channel, &error), 0);
    pthread_join(thread, NULL);
    call_close(channel);
    fake_stop(&fake);
}

static void status_stays_usable_after_a_stream_ended(struct fake *fake) {
    uint32_t stream;
    fake_accept(fake);
    (void)fake_request(fake, "Stream", &ballast__v1__ping_request__descriptor, &stream);
    struct frame_header empty = {
        .stream = stream, .type = FRAME_DATA, .flags = FRAME_NO_DATA | FRAME_REMOTE_CLOSED};
    fake_send_frame(fake, &empty, NULL);
    Ballast__V1__PingResponse nothing = BALLAST__V1__PING_RESPONSE__INIT;
    fake_respond(fake, stream, &nothing.base);
    (void)fake_request(fake, "Status", &ballast__v1__status_request__descriptor, &stream);
    Ballast__V1__StatusResponse response = BALLAST__V1__STATUS_RESPONSE__INIT;
    response.state = "serving";
    fake_respond(fake, stream, &response.base);
}

static void a_stream_that_ends_without_a_reason_leaves_the_connection(void **state) {
    (void)state;
    struct fake fake;
    struct arena arena;
    struct error error = {0};
    ProtobufCMessage *message = NULL;
    arena_init(&arena, 1u << 16);
    fake_start(&fake, status_stays_usable_after_a_stream_ended, NULL);
    struct call_channel *channel = open_channel(&fake);
    assert_int_equal(call_stream_open(channel, loader, "Stream", &error), 0);
    assert_int_equal(call_stream_next(channel, &ballast__v1__stream_response__descriptor, &arena,
                                      &message, -1, &error),
                     -EPIPE);
    assert_string_equal(error.text, "the daemon ended the stream");
    Ballast__V1__StatusRequest request = BALLAST__V1__STATUS_REQUEST__INIT;
    assert_int_equal(call_unary(channel, admin, "Status", &request.base,
                                &ballast__v1__status_response__descriptor, &arena, &message, -1,
                                &error),
                     0);
    assert_string_equal(((Ballast__V1__StatusResponse *)message)->state, "serving");
    call_close(channel);
    fake_stop(&fake);
    arena_deinit(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_is_answered),
        cmocka_unit_test(a_refusal_is_the_errno_of_its_status_and_the_daemons_sentence),
        cmocka_unit_test(a_late_answer_is_not_taken_for_another),
        cmocka_unit_test(a_timeout_is_neither_early_nor_much_too_late),
        cmocka_unit_test(stream_messages_are_kept_in_order_while_a_call_waits),
        cmocka_unit_test(an_idle_stream_times_out),
        cmocka_unit_test(half_an_answer_is_a_broken_connection),
        cmocka_unit_test(frames_that_no_daemon_sends_end_the_connection),
        cmocka_unit_test(an_answer_that_does_not_unpack_is_a_protocol_error),
        cmocka_unit_test(a_request_larger_than_a_frame_is_refused_here),
        cmocka_unit_test(without_a_daemon_opening_says_what_to_do),
        cmocka_unit_test(a_stale_or_wrong_socket_file_is_no_daemon),
        cmocka_unit_test(opening_waits_for_a_daemon_that_is_still_starting),
        cmocka_unit_test(a_stream_that_ends_without_a_reason_leaves_the_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
