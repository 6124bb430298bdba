/* Log lines as entries of journald: the fields, and the datagram. */
#include "daemon/journal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <syslog.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void expect_entry(const char *text, size_t bytes, const char *wanted) {
    char out[512];
    size_t count = journal_entry(LOG_INFO, "session", text, out, bytes);
    assert_int_equal(count, strlen(wanted));
    assert_memory_equal(out, wanted, count);
}

#define COMMON "PRIORITY=6\nSYSLOG_IDENTIFIER=ballastd\nCOMPONENT=session\n"

static void pairs_of_a_line_are_fields(void **state) {
    (void)state;
    expect_entry("rank left dp=0 step=12", 512,
                 "MESSAGE=rank left dp=0 step=12\n" COMMON "DP=0\nSTEP=12\n");
    expect_entry("a=  b_1=x=y", 512, "MESSAGE=a=  b_1=x=y\n" COMMON "A=\nB_1=x=y\n");
}

static void what_only_looks_like_a_pair_is_none(void **state) {
    (void)state;
    expect_entry("plan.window=8 Step=3 =4 _x=1 2x=1 lone", 512,
                 "MESSAGE=plan.window=8 Step=3 =4 _x=1 2x=1 lone\n" COMMON);
    expect_entry("", 512, "MESSAGE=\n" COMMON);
}

static void a_value_in_quotes_is_one_field_whatever_it_holds(void **state) {
    (void)state;
    expect_entry("x client=\"my job uid=0\" uid=7", 512,
                 "MESSAGE=x client=\"my job uid=0\" uid=7\n" COMMON "CLIENT=my job uid=0\nUID=7\n");
    expect_entry("x a=\"\" b=\" c=1", 512, "MESSAGE=x a=\"\" b=\" c=1\n" COMMON "A=\nB=\"\nC=1\n");
}

static void a_field_that_does_not_fit_is_left_out_whole(void **state) {
    (void)state;
    const char *whole = "MESSAGE=x step=1 dp=0\n" COMMON "STEP=1\n";
    expect_entry("x step=1 dp=0", strlen(whole) + 1, whole);
    expect_entry("x step=1 dp=0", 24, "MESSAGE=x step=1 dp=0\n");
}

static void an_event_kind_has_one_id_whatever_its_pairs(void **state) {
    (void)state;
    char id[33], other[33], out[128] = "A=1\n";
    journal_message_id("session", "rank connected", id);
    assert_int_equal(strspn(id, "0123456789abcdef"), 32);
    assert_string_equal(id, "3b3f46d089d9e7e699d476608e5f963a"); /* people's filters have it */
    journal_message_id("session", "rank connected dp=0 pp=0", other);
    assert_string_equal(other, id);
    journal_message_id("session", "rank connected again dp=0", other);
    assert_string_not_equal(other, id);
    journal_message_id("daemon", "rank connected", other);
    assert_string_not_equal(other, id);
    assert_int_equal(journal_add_id("session", "rank connected dp=%u", out, 4, sizeof out), 48);
    assert_memory_equal(out, "A=1\nMESSAGE_ID=", 15);
    assert_memory_equal(out + 15, id, 32);
    assert_int_equal(journal_add_id("session", "rank connected", out, 4, 40), 4);
}

static void an_entry_is_one_datagram_and_a_missing_journal_is_an_error(void **state) {
    (void)state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char got[64];
    (void)snprintf(address.sun_path, sizeof address.sun_path, "/tmp/ballast-journal.%d", getpid());
    assert_int_equal(journal_send(address.sun_path, "A=1\n", 4), -ENOENT);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(journal_send(address.sun_path, "A=1\n", 4), 0);
    assert_int_equal(recv(fd, got, sizeof got, 0), 4);
    assert_memory_equal(got, "A=1\n", 4);
    (void)close(fd);
    (void)unlink(address.sun_path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_of_a_line_are_fields),
        cmocka_unit_test(what_only_looks_like_a_pair_is_none),
        cmocka_unit_test(a_value_in_quotes_is_one_field_whatever_it_holds),
        cmocka_unit_test(a_field_that_does_not_fit_is_left_out_whole),
        cmocka_unit_test(an_event_kind_has_one_id_whatever_its_pairs),
        cmocka_unit_test(an_entry_is_one_datagram_and_a_missing_journal_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
