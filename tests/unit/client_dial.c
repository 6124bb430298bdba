/* Connecting over TCP and TLS to who does not answer: the caller is back when it wants to be, the
 * try goes on where it was, and the sentence says what to look at. A listener whose queue is full
 * lets the kernel drop connects, as a firewall does. */
#include "client/deadline.h"
#include "client/link.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define TOKEN     "0123456789abcdef0123456789abcdef"
#define FILLERS   8u
#define PATIENT   60000 /* ms, of a link */
#define QUEUED_MS 100

/* Nobody's: no handshake gets as far as to look at it. */
static const char certificate[] =
    "-----BEGIN CERTIFICATE-----\n"
    "MIIBbjCCARWgAwIBAgIUUQ0Rh4hvpPKkpGiQL3L14kWOrOEwCgYIKoZIzj0EAwIw\n"
    "DDEKMAgGA1UEAwwBYTAgFw0yNjExMzAwMDE3NTdaGA8yMTI2MTEwNjAwMTc1N1ow\n"
    "DDEKMAgGA1UEAwwBYTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABBak2tHHTFEV\n"
    "XRTwa9hk+bgmPao33yEKOE3YNhqCB+Rlz05emdHaH9Bh8BQiW1kR2o2+FfKnZi55\n"
    "XYRYkSXus12jUzBRMB0GA1UdDgQWBBScrO5GfvPF2Sxjg0HgO3t6kHBzMjAfBgNV\n"
    "HSMEGDAWgBScrO5GfvPF2Sxjg0HgO3t6kHBzMjAPBgNVHRMBAf8EBTADAQH/MAoG\n"
    "CCqGSM49BAMCA0cAMEQCICDDtFRbhAyHsJT0uqnOOBWXPaNT2awZCTNr6RfqnjOb\n"
    "AiBDW5KiZbSPrFyP73owmyjzb/KgCIKdbXpIxiKY+c60rA==\n"
    "-----END CERTIFICATE-----\n";

static struct {
    char folder[32], token[64], authority[64];
    int listener;
    uint16_t port;
    int fillers[FILLERS];
} here;

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0 && fclose(file) == 0);
    assert_int_equal(chmod(path, 0600), 0);
}

static int connect_to_listener(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(here.port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    (void)connect(fd, (struct sockaddr *)&address, sizeof address);
    return fd;
}

static int set_up(void **state) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t bytes = sizeof address;
    (void)state;
    (void)snprintf(here.folder, sizeof here.folder, "/tmp/client_dial-XXXXXX");
    assert_non_null(mkdtemp(here.folder));
    (void)snprintf(here.token, sizeof here.token, "%s/token", here.folder);
    (void)snprintf(here.authority, sizeof here.authority, "%s/ca.pem", here.folder);
    write_file(here.token, TOKEN "\n");
    write_file(here.authority, certificate);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    here.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(here.listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(here.listener, 0), 0);
    assert_int_equal(getsockname(here.listener, (struct sockaddr *)&address, &bytes), 0);
    here.port = ntohs(address.sin_port);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    (void)close(here.listener);
    (void)unlink(here.token);
    (void)unlink(here.authority);
    (void)rmdir(here.folder);
    return 0;
}

static void fill_queue(void) {
    for (unsigned i = 0; i < FILLERS; i++) {
        here.fillers[i] = connect_to_listener();
    }
    (void)deadline_poll(-1, 0, deadline_in_ms(QUEUED_MS));
}

static void drop_fillers(void) {
    for (unsigned i = 0; i < FILLERS; i++) {
        (void)close(here.fillers[i]);
    }
}

static void link_to(struct link *link, const char *scheme, int connect_timeout_ms) {
    struct link_options options = {.parts = BALLAST_PART_TOKENS,
                                   .connect_timeout_ms = connect_timeout_ms};
    (void)snprintf(options.address, sizeof options.address, "%s:127.0.0.1:%u", scheme, here.port);
    (void)snprintf(options.credentials.token_file, DIAL_FILE_BYTES, "%s", here.token);
    if (strcmp(scheme, "tls") == 0) {
        (void)snprintf(options.credentials.ca, DIAL_FILE_BYTES, "%s", here.authority);
    }
    link_init(link, &options);
}

/* Advances for `ms`, and is back by then, give or take a busy machine. */
static int advance(struct link *link, int ms, struct error *error) {
    int64_t begin_ns = deadline_now_ns();
    int code = link_advance(link, deadline_in_ms(ms), error);
    assert_in_range(deadline_now_ns() - begin_ns, 0, (ms + 10000) * INT64_C(1000000));
    return code;
}

static void a_connect_that_nobody_answers_ends_with_its_window(void **state) {
    struct link link;
    struct error error = {0};
    (void)state;
    fill_queue();
    link_to(&link, "tcp", 300);
    assert_int_equal(advance(&link, 2500, &error), -ETIMEDOUT);
    if (strstr(error.text, "tried for 300 ms: 127.0.0.1 port") == NULL ||
        strstr(error.text, "does not answer a connect") == NULL) {
        fail_msg("%s", error.text);
    }
    link_deinit(&link);
    drop_fillers();
}

/* What comes over the connection, when it comes, is the preface and Hello. */
static void expect_greeting(struct link *link, int fd) {
    char bytes[512] = {0};
    size_t used = 0;
    struct error error = {0};
    int64_t deadline = deadline_in_ms(30000);
    while (used < 200 && memmem(bytes, used, "Hello", 5) == NULL) {
        assert_true(deadline_now_ns() < deadline);
        assert_int_equal(advance(link, 10, &error), 0);
        ssize_t got = recv(fd, bytes + used, sizeof bytes - used, MSG_DONTWAIT);
        used += got > 0 ? (size_t)got : 0;
    }
    assert_non_null(memmem(bytes, used, TOKEN, strlen(TOKEN)));
}

static void a_caller_is_back_in_time_and_the_connect_goes_on(void **state) {
    struct link link;
    struct error error = {0};
    int fds[FILLERS + 1];
    unsigned taken = 0;
    (void)state;
    fill_queue();
    link_to(&link, "tcp", PATIENT);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(advance(&link, 20, &error), 0);
        assert_int_equal(link.state, LINK_DIALING);
        assert_int_equal(link_fd(&link), -1);
    }
    int dialing = link.dialed.fd;
    drop_fillers();
    while (link.state == LINK_DIALING) { /* until the kernel asks again, in 1 s */
        if (taken < FILLERS && deadline_poll(here.listener, POLLIN, deadline_in_ms(10)) == 1) {
            fds[taken++] = accept(here.listener, NULL, NULL);
        }
        assert_int_equal(advance(&link, 20, &error), 0);
    }
    assert_int_equal(call_fd(link.channel), dialing); /* the same try */
    while (taken <= FILLERS && deadline_poll(here.listener, POLLIN, deadline_in_ms(50)) == 1) {
        fds[taken++] = accept(here.listener, NULL, NULL);
    }
    expect_greeting(&link, fds[taken - 1]);
    link_deinit(&link);
    for (unsigned i = 0; i < taken; i++) {
        (void)close(fds[i]);
    }
}

static void a_caller_is_back_in_time_while_a_handshake_waits(void **state) {
    struct link link;
    struct error error = {0};
    (void)state;
    if (!tls_available()) {
        skip();
    }
    link_to(&link, "tls", PATIENT); /* the queue takes it, nobody says anything */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(advance(&link, 20, &error), 0);
        assert_int_equal(link.state, LINK_DIALING);
        assert_int_equal(link.dialed.phase, DIAL_SHAKING);
    }
    link_deinit(&link);
    (void)close(accept(here.listener, NULL, NULL)); /* its place in the queue is free */
    link_to(&link, "tls", 200);
    assert_int_equal(advance(&link, 2500, &error), -ETIMEDOUT);
    if (strstr(error.text, "TLS handshake") == NULL) {
        fail_msg("%s", error.text);
    }
    link_deinit(&link);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_connect_that_nobody_answers_ends_with_its_window),
        TEST(a_caller_is_back_in_time_and_the_connect_goes_on),
        TEST(a_caller_is_back_in_time_while_a_handshake_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
