/* How a daemon's address is written, what is said first over TCP, and what of [listen] may stand
 * together. */
#include "config_world.h"
#include "daemon/tcp_rules.h"
#include "proto/address.h"
#include "proto/preface.h"
#include "proto/tls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define TOKEN "0123456789abcdef"

static void addresses_are_paths_or_hosts_with_ports(void **state) {
    static const struct {
        const char *text;
        enum address_kind kind;
        const char *host;
        uint16_t port;
    } rows[] = {
        {"/run/b.sock", ADDRESS_UNIX, "/run/b.sock", 0},
        {"unix:/run/b.sock", ADDRESS_UNIX, "/run/b.sock", 0},
        {"b.sock", ADDRESS_UNIX, "b.sock", 0},
        {"tcp:127.0.0.1:7411", ADDRESS_TCP, "127.0.0.1", 7411},
        {"tcp:[::1]:65535", ADDRESS_TCP, "::1", 65535},
        {"tls:loader.example:1", ADDRESS_TLS, "loader.example", 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct address address;
        struct error error;
        assert_int_equal(address_parse(rows[i].text, &address, &error), 0);
        assert_int_equal(address.kind, rows[i].kind);
        assert_string_equal(address.host, rows[i].host);
        assert_int_equal(address.port, rows[i].port);
    }
}

static void what_is_no_address_is_refused_with_the_forms_there_are(void **state) {
    static const char *const texts[] = {
        "tcp:",        "tcp:host",     "tcp:host:",     "tcp:host:0",   "tcp:host:65536",
        "tcp::1",      "tcp:::1:7411", "tcp:[::1:7411", "tcp:[::1]",    "tls:a b:1",
        "tls:h:7411x", "tls:[]:1",     "tcp:h/x:1",     "tcp:[::1]x:1", "tcp:host:000001",
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct address address;
        struct error error = {0};
        if (address_parse(texts[i], &address, &error) != -EINVAL) {
            fail_msg("'%s' is taken", texts[i]);
        }
        assert_non_null(strstr(error.text, "tcp:HOST:PORT"));
    }
}

static void loopback_is_a_literal_of_it(void **state) {
    static const struct {
        const char *text;
        bool loopback;
    } rows[] = {{"127.0.0.1:1", true},  {"127.9.9.9:1", true}, {"[::1]:1", true},
                {"0.0.0.0:1", false},   {"10.0.0.1:1", false}, {"[::]:1", false},
                {"localhost:1", false}, {"128.0.0.1:1", false}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct address address = {.kind = ADDRESS_TCP};
        assert_int_equal(address_parse_host(rows[i].text, &address), 0);
        assert_int_equal(address_is_loopback(&address), rows[i].loopback);
    }
}

static void a_preface_is_read_as_it_was_written_whatever_follows(void **state) {
    char preface[PREFACE_BYTES_MAX + 4];
    const uint8_t *token;
    size_t count;
    (void)state;
    size_t bytes = preface_write(TOKEN, preface);
    memcpy(preface + bytes, "next", 4);
    for (size_t have = 0; have < bytes; have++) {
        assert_int_equal(preface_read((const uint8_t *)preface, have, &token, &count), 0);
    }
    for (size_t have = bytes; have < bytes + 4; have++) {
        assert_int_equal(preface_read((const uint8_t *)preface, have, &token, &count), bytes);
        assert_true(preface_token_is(token, count, TOKEN));
    }
    assert_false(preface_token_is(token, count, TOKEN "0"));
    assert_false(preface_token_is(token, count, "0123456789abcdee"));
    assert_false(preface_token_is(token, 0, ""));
}

static void other_bytes_are_no_preface_as_soon_as_they_differ(void **state) {
    char longest[PREFACE_BYTES_MAX + 2] = "ballast/1 bearer ";
    static const char *const texts[] = {"G", "\x01", "ballast/2", "ballast/1 bearer short\n",
                                        "ballast/1 bearer 0123456789abcdef \n"};
    const uint8_t *token;
    size_t count;
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        assert_int_equal(preface_read((const uint8_t *)texts[i], strlen(texts[i]), &token, &count),
                         -EPROTO);
    }
    memset(longest + 17, 'x', PREFACE_TOKEN_BYTES_MAX + 1);
    assert_int_equal(preface_read((const uint8_t *)longest, PREFACE_BYTES_MAX, &token, &count),
                     -EPROTO);
}

static const char *write_token(const char *text, mode_t mode) {
    static char path[128];
    (void)snprintf(path, sizeof path, "%s/token", world_folder());
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    (void)fputs(text, file);
    (void)fclose(file);
    assert_int_equal(chmod(path, mode), 0);
    return path;
}

static void a_token_is_the_first_line_of_a_file_that_others_cannot_read(void **state) {
    char token[PREFACE_TOKEN_BYTES_MAX + 1];
    struct error error;
    (void)state;
    assert_int_equal(preface_load_token(write_token(TOKEN "\nmore\n", 0600), token, &error), 0);
    assert_string_equal(token, TOKEN);
    assert_int_equal(preface_load_token(write_token(TOKEN, 0640), token, &error), 0);
    assert_int_equal(preface_load_token(write_token(TOKEN, 0644), token, &error), -EACCES);
    assert_non_null(strstr(error.text, "chmod o="));
    assert_int_equal(preface_load_token(write_token("short\n", 0600), token, &error), -EINVAL);
    assert_int_equal(preface_load_token(write_token("with a blank in it\n", 0600), token, &error),
                     -EINVAL);
    assert_int_equal(preface_load_token("/nowhere/token", token, &error), -ENOENT);
    (void)remove(write_token("", 0600));
}

static void expect_refused(const char *listen, const char *key, const char *says) {
    char text[1024];
    struct config *config = NULL;
    struct error error = {0};
    (void)snprintf(text, sizeof text, "[dataset books]\npath = books\n[listen]\n%s", listen);
    if (world_load(text, NULL, 0, &config, &error) != -EINVAL) {
        fail_msg("taken: %s", listen);
    }
    assert_non_null(strstr(error.text, key));
    if (strstr(error.text, says) == NULL) {
        fail_msg("'%s' does not say '%s'", error.text, says);
    }
}

#define TLS_KEYS "certificate = c.pem\nkey = k.pem\nca = a.pem\n"

static void plain_text_off_loopback_is_refused_by_name(void **state) {
    (void)state;
    expect_refused("tcp = 0.0.0.0:7411\ntoken_file = t\n", "listen.tcp = 0.0.0.0:7411",
                   "loopback only");
    expect_refused("tcp = 10.1.2.3:7411\ntoken_file = t\n", "listen.tcp", "for TLS");
    expect_refused("tcp = [::]:7411\ntoken_file = t\n", "listen.tcp", "loopback only");
}

static void loopback_without_a_token_is_refused(void **state) {
    (void)state;
    expect_refused("tcp = 127.0.0.1:7411\n", "listen.tcp", "set listen.token_file");
    config_destroy(world_config("[dataset books]\npath = books\n[listen]\n"
                                "tcp = [::1]:7411\nadmin_token_file = t\n"));
}

static void tls_needs_its_three_files_and_somebody_to_serve(void **state) {
    (void)state;
    if (!tls_available()) {
        expect_refused("tcp = 10.1.2.3:7411\nserve_names = a\n" TLS_KEYS, "listen.tcp",
                       "this build has no TLS");
        return;
    }
    expect_refused("tcp = 10.1.2.3:7411\nserve_names = a\ncertificate = c\nkey = k\n", "listen.ca",
                   "belong together");
    expect_refused("tcp = 10.1.2.3:7411\nserve_names = a\nca = c\n", "listen.certificate",
                   "belong together");
    expect_refused("tcp = 10.1.2.3:7411\n" TLS_KEYS, "listen.serve_names", "nobody may connect");
    config_destroy(world_config("[dataset books]\npath = books\n[listen]\n"
                                "tcp = 10.1.2.3:7411\nadmin_names = a,b.example\n" TLS_KEYS));
}

static void a_build_without_tls_names_what_is_missing(void **state) {
    struct config *config = world_config("[dataset books]\npath = books\n");
    const char *key = NULL;
    char reason[TCP_REASON_BYTES];
    (void)state;
    (void)snprintf(config->listen.tcp, sizeof config->listen.tcp, "10.1.2.3:1");
    (void)snprintf(config->listen.ca, sizeof config->listen.ca, "a.pem");
    assert_int_equal(tcp_check(config, false, &key, reason), -EINVAL);
    assert_non_null(strstr(reason, "no TLS"));
    assert_non_null(strstr(reason, "libssl-dev"));
    config_destroy(config);
}

static bool is(const void *context, const char *name) {
    return strcmp(context, name) == 0;
}

static void a_list_of_names_is_asked_one_by_one(void **state) {
    (void)state;
    assert_true(tcp_any_name("a", is, "a"));
    assert_true(tcp_any_name("x,,a.b,c", is, "a.b"));
    assert_false(tcp_any_name("", is, ""));
    assert_false(tcp_any_name(",,", is, ""));
    assert_false(tcp_any_name("ab,ba", is, "a"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_paths_or_hosts_with_ports),
        cmocka_unit_test(what_is_no_address_is_refused_with_the_forms_there_are),
        cmocka_unit_test(loopback_is_a_literal_of_it),
        cmocka_unit_test(a_preface_is_read_as_it_was_written_whatever_follows),
        cmocka_unit_test(other_bytes_are_no_preface_as_soon_as_they_differ),
        cmocka_unit_test(a_token_is_the_first_line_of_a_file_that_others_cannot_read),
        cmocka_unit_test(plain_text_off_loopback_is_refused_by_name),
        cmocka_unit_test(loopback_without_a_token_is_refused),
        cmocka_unit_test(tls_needs_its_three_files_and_somebody_to_serve),
        cmocka_unit_test(a_build_without_tls_names_what_is_missing),
        cmocka_unit_test(a_list_of_names_is_asked_one_by_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
