/* What monitoring reads: the text format, the histograms, the addresses, and that it is bounded. */
#include "daemon/metrics_address.h"
#include "daemon/process.h"
#include "daemon/scrape.h"

#include "daemon/exposition.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void a_family_is_announced_and_its_samples_follow(void **state) {
    (void)state;
    char text[512], labels[EXPOSITION_LABELS_BYTES] = "";
    struct exposition out;
    exposition_init(&out, text, sizeof text);
    exposition_single(&out, "a_total", "counter", "Some.", 7, 0);
    exposition_family(&out, "b", "gauge", "Others.");
    exposition_label(labels, "x", "1");
    exposition_label(labels, "y", "2");
    exposition_sample(&out, labels, 1500000, 6);
    assert_string_equal(text, "# HELP a_total Some.\n# TYPE a_total counter\na_total 7\n"
                              "# HELP b Others.\n# TYPE b gauge\nb{x=\"1\",y=\"2\"} 1.5\n");
    assert_int_equal(out.used, strlen(text));
}

static void figures_are_scaled_without_loss(void **state) {
    (void)state;
    const struct {
        uint64_t value;
        uint32_t decimals;
        const char *text;
    } cases[] = {{0, 9, "x 0\n"},
                 {1, 9, "x 0.000000001\n"},
                 {1000000000, 9, "x 1\n"},
                 {20500000000, 9, "x 20.5\n"},
                 {UINT64_MAX, 9, "x 18446744073.709551615\n"},
                 {UINT64_MAX, 0, "x 18446744073709551615\n"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[64];
        struct exposition out;
        exposition_init(&out, text, sizeof text);
        out.family = "x";
        exposition_sample(&out, "", cases[i].value, cases[i].decimals);
        assert_string_equal(text, cases[i].text);
    }
}

static void label_values_are_escaped_and_cut_whole(void **state) {
    (void)state;
    char labels[EXPOSITION_LABELS_BYTES] = "";
    char longest[2 * EXPOSITION_LABELS_BYTES];
    exposition_label(labels, "a", "q\" b\\ n\n");
    assert_string_equal(labels, "a=\"q\\\" b\\\\ n\\n\"");
    for (size_t bytes = 0; bytes < sizeof longest; bytes++) {
        memset(longest, '"', bytes);
        longest[bytes] = '\0';
        labels[0] = '\0';
        exposition_label(labels, "a", longest);
        size_t length = strlen(labels);
        assert_true(length < sizeof labels);
        assert_int_equal(length % 2, 0); /* a=" and every escape whole and " */
        assert_int_equal(labels[length - 1], '"');
    }
}

static void histograms_are_cumulative_and_end_with_inf(void **state) {
    (void)state;
    static struct histogram histogram;
    char text[4096];
    struct exposition out;
    uint64_t before = 0, sum = 0;
    for (uint32_t i = 0; i < HISTOGRAM_BOUNDS; i++) {
        assert_true(histogram_bounds_ns[i] > before);
        before = histogram_bounds_ns[i];
        histogram_observe(&histogram, before);
        histogram_observe(&histogram, before + 1);
        sum += 2 * before + 1;
    }
    histogram_observe(NULL, 1);
    exposition_init(&out, text, sizeof text);
    exposition_family(&out, "t_seconds", "histogram", "Time.");
    exposition_histogram(&out, "rank=\"0\"", &histogram);
    assert_non_null(strstr(text, "t_seconds_bucket{rank=\"0\",le=\"0.00005\"} 1\n"));
    assert_non_null(strstr(text, "t_seconds_bucket{rank=\"0\",le=\"0.0001\"} 3\n"));
    assert_non_null(strstr(text, "t_seconds_bucket{rank=\"0\",le=\"30\"} 35\n"));
    assert_non_null(strstr(text, "t_seconds_bucket{rank=\"0\",le=\"+Inf\"} 36\n"));
    assert_non_null(strstr(text, "t_seconds_count{rank=\"0\"} 36\n"));
    assert_int_equal(histogram.sum_ns, sum);
}

static void what_does_not_fit_is_left_out_by_whole_lines(void **state) {
    (void)state;
    static struct histogram histogram;
    char whole[4096], text[4096];
    struct exposition out;
    exposition_init(&out, whole, sizeof whole);
    exposition_family(&out, "t_seconds", "histogram", "Time.");
    exposition_histogram(&out, "", &histogram);
    for (size_t bytes = 1; bytes <= out.used; bytes++) {
        struct exposition cut;
        exposition_init(&cut, text, bytes);
        exposition_family(&cut, "t_seconds", "histogram", "Time.");
        exposition_histogram(&cut, "", &histogram);
        assert_true(cut.full);
        assert_true(cut.used < bytes && strlen(text) == cut.used);
        assert_memory_equal(text, whole, cut.used);
        assert_true(cut.used == 0 || text[cut.used - 1] == '\n');
    }
}

static struct daemon *scraped_daemon(uint32_t ranks) {
    struct daemon *daemon = calloc(1, sizeof *daemon);
    const struct rank_place mesh = {.dp = 1, .pp = 1, .cp = ranks, .tp = 1};
    const uint8_t local = 1;
    assert_non_null(daemon);
    daemon->metrics = calloc(1, sizeof *daemon->metrics);
    daemon->config = calloc(1, sizeof *daemon->config);
    assert_non_null(daemon->config);
    daemon->end_step = UINT64_MAX;
    assert_non_null(daemon->metrics);
    assert_int_equal(roster_init(&daemon->roster, &mesh, &local, 1, 1, 0, 0), 0);
    return daemon;
}

static void scraped_free(struct daemon *daemon) {
    roster_deinit(&daemon->roster);
    free(daemon->metrics);
    free(daemon->config);
    free(daemon);
}

static void a_node_of_any_size_fits_the_buffer(void **state) {
    (void)state;
    char *text = malloc(SCRAPE_BYTES);
    assert_non_null(text);
    for (uint32_t ranks = 1; ranks <= 4096; ranks *= 8) {
        struct daemon *daemon = scraped_daemon(ranks);
        memset((void *)daemon->metrics, 0x7f, sizeof *daemon->metrics); /* the longest figures */
        size_t bytes = scrape(daemon, text);
        assert_true(bytes < SCRAPE_BYTES / 2);
        assert_int_equal(text[bytes - 1], '\n');
        assert_non_null(strstr(text, "process_start_time_seconds "));
        assert_int_equal(strstr(text, "rank=\"others\"") != NULL, ranks > METRICS_RANKS_MAX);
        scraped_free(daemon);
    }
    free(text);
}

static void a_rank_beyond_those_told_apart_counts_with_the_last(void **state) {
    (void)state;
    static struct metrics metrics;
    assert_ptr_equal(metrics_rank(&metrics, 3), &metrics.ranks[3]);
    assert_ptr_equal(metrics_rank(&metrics, METRICS_RANKS_MAX + 5),
                     &metrics.ranks[METRICS_RANKS_MAX - 1]);
}

static void only_sockets_of_this_machine_are_listened_on(void **state) {
    (void)state;
    static const char *const good[] = {"127.0.0.1:9464", "127.8.9.10:1", "[::1]:65535",
                                       "unix:/run/m.sock"};
    static const char *const bad[] = {"",
                                      "off",
                                      "0.0.0.0:9464",
                                      "10.0.0.1:9464",
                                      "::1:9464",
                                      "[::]:9464",
                                      "[::1]",
                                      "localhost:9464",
                                      "127.0.0.1",
                                      ":9464",
                                      "127.0.0.1:0",
                                      "127.0.0.1:65536",
                                      "[127.0.0.1]:9464",
                                      "unix:relative",
                                      "unix:",
                                      "127.0.0.1:+1",
                                      "[",
                                      "]:1",
                                      "[]:1",
                                      "127.0.0.1:9464 "};
    struct metrics_address address;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(metrics_address_parse(good[i], &address), 0);
    }
    assert_string_equal(address.path, "/run/m.sock");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(metrics_address_parse(bad[i], &address), -EINVAL);
    }
}

static void the_process_knows_its_own_use(void **state) {
    (void)state;
    struct process_usage before, after;
    process_usage(&before);
    int fd = dup(STDERR_FILENO);
    process_usage(&after);
    assert_true(after.cpu_ns >= before.cpu_ns && after.resident_bytes > 0);
    assert_int_equal(after.descriptors, before.descriptors + 1);
    assert_true(after.virtual_bytes >= after.resident_bytes && after.threads >= 1);
    assert_true(after.start_ms > 1500000000000u);
    (void)close(fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_family_is_announced_and_its_samples_follow),
        cmocka_unit_test(figures_are_scaled_without_loss),
        cmocka_unit_test(label_values_are_escaped_and_cut_whole),
        cmocka_unit_test(histograms_are_cumulative_and_end_with_inf),
        cmocka_unit_test(what_does_not_fit_is_left_out_by_whole_lines),
        cmocka_unit_test(a_node_of_any_size_fits_the_buffer),
        cmocka_unit_test(a_rank_beyond_those_told_apart_counts_with_the_last),
        cmocka_unit_test(only_sockets_of_this_machine_are_listened_on),
        cmocka_unit_test(the_process_knows_its_own_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
