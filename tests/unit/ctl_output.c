/* What people read: tables, units, summaries. */
#include "client/ctl/summary.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct table_column columns[] = {
    {"NAME", TABLE_LEFT, 0},
    {"DOCS", TABLE_RIGHT, 0},
    {"AGE", TABLE_RIGHT, 0},
};

/* What the table prints; the caller frees. */
static char *printed(struct table *table) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    table_print(table, out);
    assert_int_equal(fclose(out), 0);
    return text;
}

static void expect_printed(struct table *table, const char *expected) {
    char *text = printed(table);
    assert_string_equal(text, expected);
    free(text);
}

static void row(struct table *table, const char *name, const char *docs, const char *age) {
    table_cell(table, "%s", name);
    table_cell(table, "%s", docs);
    table_cell(table, "%s", age);
}

static void table_aligns_text_left_and_numbers_right(void **state) {
    (void)state;
    struct table table;
    table_init(&table, columns, 3);
    row(&table, "books", "7", "3");
    row(&table, "man", "12345", "-");
    expect_printed(&table, "NAME    DOCS  AGE\n"
                           "books      7    3\n"
                           "man    12345    -\n");
    table_deinit(&table);
}

static void table_prints_an_empty_cell_as_a_dash(void **state) {
    (void)state;
    struct table table;
    table_init(&table, columns, 3);
    row(&table, "books", "", "");
    expect_printed(&table, "NAME   DOCS  AGE\nbooks     -    -\n");
    table_deinit(&table);
}

static void table_without_rows_is_its_titles(void **state) {
    (void)state;
    struct table table;
    table_init(&table, columns, 3);
    expect_printed(&table, "NAME  DOCS  AGE\n");
    table_deinit(&table);
}

static void table_prints_its_titles_once(void **state) {
    (void)state;
    static const struct table_column wide[] = {{"STEP", TABLE_RIGHT, 6}, {"X", TABLE_RIGHT, 3}};
    struct table table;
    table_init(&table, wide, 2);
    table_cell(&table, "%d", 1);
    table_cell(&table, "%d", 2);
    expect_printed(&table, "  STEP    X\n     1    2\n");
    table_cell(&table, "%d", 10);
    table_cell(&table, "%d", 20);
    expect_printed(&table, "    10   20\n");
    table_deinit(&table);
}

static void table_counts_characters_and_not_bytes(void **state) {
    (void)state;
    struct table table;
    table_init(&table, columns, 3);
    row(&table, "gr\xc3\xbc\xc3\x9f", "1", "2");
    row(&table, "abcde", "1", "2");
    expect_printed(&table, "NAME   DOCS  AGE\n"
                           "gr\xc3\xbc\xc3\x9f      1    2\n"
                           "abcde     1    2\n");
    table_deinit(&table);
}

static size_t longest_line(const char *text) {
    size_t longest = 0;
    while (*text != '\0') {
        size_t line = strcspn(text, "\n");
        longest = line > longest ? line : longest;
        text += line + (text[line] == '\n');
    }
    return longest;
}

static void table_on_a_terminal_is_never_wider_than_80_columns(void **state) {
    (void)state;
    char name[200];
    for (size_t length = 1; length < sizeof name; length++) {
        struct table table;
        memset(name, 'n', length);
        name[length] = '\0';
        table_init(&table, columns, 3);
        table.columns_max = TABLE_COLUMNS;
        row(&table, name, "1", "2");
        char *text = printed(&table);
        assert_true(longest_line(text) <= TABLE_COLUMNS);
        assert_int_equal(strstr(text, "...") != NULL, length > 80 - 4 - 3 - 2 * 2);
        free(text);
        table_deinit(&table);
    }
}

static void table_shortens_its_widest_text_column(void **state) {
    (void)state;
    static const struct table_column two[] = {{"NAME", TABLE_LEFT, 0}, {"VALUE", TABLE_LEFT, 0}};
    char value[121];
    char *text;
    struct table table;
    memset(value, 'v', 120);
    value[120] = '\0';
    table_init(&table, two, 2);
    table.columns_max = TABLE_COLUMNS;
    table_cell(&table, "daemon.state_dir");
    table_cell(&table, "%s", value);
    text = printed(&table);
    assert_non_null(strstr(text, "daemon.state_dir  vvv"));
    assert_int_equal(longest_line(text), 80);
    free(text);
    table_deinit(&table);
}

static void units_are_short_and_rounded_down(void **state) {
    (void)state;
    assert_string_equal(units_count(0).text, "0");
    assert_string_equal(units_count(9999).text, "9999");
    assert_string_equal(units_count(10000).text, "10.0K");
    assert_string_equal(units_count(131072).text, "131K");
    assert_string_equal(units_count(999999).text, "999K");
    assert_string_equal(units_count(1050000).text, "1.05M");
    assert_string_equal(units_count(UINT64_MAX).text, "18.4E");
    assert_string_equal(units_bytes(0).text, "0 B");
    assert_string_equal(units_bytes(1023).text, "1023 B");
    assert_string_equal(units_bytes(1024).text, "1.00 KiB");
    assert_string_equal(units_bytes(12900000).text, "12.3 MiB");
    assert_string_equal(units_bytes(UINT64_MAX).text, "15.9 EiB");
    assert_string_equal(units_time(999).text, "999 ns");
    assert_string_equal(units_time(1234567).text, "1.23 ms");
    assert_string_equal(units_time(UINT64_MAX).text, "18446744073 s");
    assert_string_equal(units_age(999).text, "0s");
    assert_string_equal(units_age(60000).text, "1m");
    assert_string_equal(units_age(3600000).text, "1h00m");
    assert_string_equal(units_age(4 * 86400000ull).text, "4d");
    assert_string_equal(units_ratio(1000000).text, "1.000");
    assert_string_equal(units_ratio(1023999).text, "1.023");
    assert_string_equal(units_share(512345).text, "51.2%");
    assert_string_equal(units_milli(853).text, "0.853");
    assert_string_equal(units_digest((const uint8_t *)"\x01\xff", 2).text, "01ff");
    assert_string_equal(units_digest((const uint8_t *)"0123456789", 10).text, "3031323334353637");
}

static void summary_of_nothing_is_zero(void **state) {
    (void)state;
    struct summary sum;
    summary_of(NULL, 0, NULL, &sum);
    assert_int_equal(sum.steps, 0);
    assert_int_equal(sum.total_ppm_worst, 0);
}

static void summary_takes_means_and_nearest_ranks(void **state) {
    (void)state;
    struct step_figures steps[100];
    uint64_t scratch[100];
    struct summary sum;
    for (uint64_t i = 0; i < 100; i++) {
        steps[i] = (struct step_figures){
            .tokens = i % 2 == 0 ? 900 : 1100,
            .total_ppm = 1000000 + 1000 * ((i * 37) % 100),
            .attention_ppm = 2000000,
            .context_ppm = 1000000 + i,
            .delay_mean_milli = i,
            .delay_max = 5,
            .plan_ns = 100 - i,
        };
    }
    summary_of(steps, 100, scratch, &sum);
    assert_int_equal(sum.steps, 100);
    assert_int_equal(sum.tokens, 100000);
    assert_int_equal(sum.tokens_cv_ppm, 100000); /* deviation 100 of 1000 */
    assert_int_equal(sum.total_ppm_mean, 1049500);
    assert_int_equal(sum.total_ppm_p99, 1098000);
    assert_int_equal(sum.total_ppm_worst, 1099000);
    assert_int_equal(sum.attention_ppm_mean, 2000000);
    assert_int_equal(sum.context_ppm_mean, 1000049);
    assert_int_equal(sum.delay_mean_milli, 99); /* the last: it counts from step 0 */
    assert_int_equal(sum.delay_max, 5);
    assert_int_equal(sum.plan_ns_p50, 50);
    assert_int_equal(sum.plan_ns_p99, 99);
}

static void summary_of_equal_steps_has_no_spread(void **state) {
    (void)state;
    struct step_figures steps[3] = {
        {.tokens = UINT32_MAX}, {.tokens = UINT32_MAX}, {.tokens = UINT32_MAX}};
    uint64_t scratch[3];
    struct summary sum;
    summary_of(steps, 3, scratch, &sum);
    assert_int_equal(sum.tokens_cv_ppm, 0);
    summary_of(steps, 1, scratch, &sum);
    assert_int_equal(sum.tokens_cv_ppm, 0);
    assert_int_equal(sum.total_ppm_p99, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_aligns_text_left_and_numbers_right),
        cmocka_unit_test(table_prints_an_empty_cell_as_a_dash),
        cmocka_unit_test(table_without_rows_is_its_titles),
        cmocka_unit_test(table_prints_its_titles_once),
        cmocka_unit_test(table_counts_characters_and_not_bytes),
        cmocka_unit_test(table_on_a_terminal_is_never_wider_than_80_columns),
        cmocka_unit_test(table_shortens_its_widest_text_column),
        cmocka_unit_test(units_are_short_and_rounded_down),
        cmocka_unit_test(summary_of_nothing_is_zero),
        cmocka_unit_test(summary_takes_means_and_nearest_ranks),
        cmocka_unit_test(summary_of_equal_steps_has_no_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
