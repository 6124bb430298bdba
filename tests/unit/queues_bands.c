/* Outlier bands by example: each point the contract settles, by hand. */
#include "queues/bands.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const struct bands_options options = {
    .length_min = {100, 200, 400},
    .bands = 3,
    .group = 2,
    .age_max = 8,
    .release = BANDS_RELEASE_ONCE,
};

static void bands_take_a_length_at_its_threshold(void **state) {
    (void)state;
    assert_int_equal(bands_of(&options, 1), BAND_NONE);
    assert_int_equal(bands_of(&options, 99), BAND_NONE);
    assert_int_equal(bands_of(&options, 100), 0);
    assert_int_equal(bands_of(&options, 199), 0);
    assert_int_equal(bands_of(&options, 200), 1);
    assert_int_equal(bands_of(&options, 400), 2);
    assert_int_equal(bands_of(&options, UINT32_MAX), 2);
}

static void bands_without_thresholds_make_nothing_wait(void **state) {
    (void)state;
    struct bands_options none = options;
    none.bands = 0;
    assert_int_equal(bands_of(&none, UINT32_MAX), BAND_NONE);
    assert_int_equal(bands_decide(&none, NULL, NULL, 0, 5, NULL), 0);
}

static void bands_release_the_first_arrivals_of_a_full_band_alone(void **state) {
    (void)state;
    const uint32_t lengths[] = {150, 250, 120, 199, 450};
    const uint64_t nominal[] = {3, 3, 4, 5, 5};
    uint8_t verdicts[5];
    assert_int_equal(bands_decide(&options, lengths, nominal, 5, 5, verdicts), 2);
    const uint8_t expected[] = {BAND_RELEASED, BAND_WAITS, BAND_RELEASED, BAND_WAITS, BAND_WAITS};
    assert_memory_equal(verdicts, expected, sizeof expected);
}

static void bands_release_one_group_a_step_unless_told_all(void **state) {
    (void)state;
    const uint32_t lengths[] = {150, 150, 150, 150, 150};
    const uint64_t nominal[] = {1, 1, 1, 1, 1};
    uint8_t verdicts[5];
    assert_int_equal(bands_decide(&options, lengths, nominal, 5, 1, verdicts), 2);
    struct bands_options all = options;
    all.release = BANDS_RELEASE_ALL;
    assert_int_equal(bands_decide(&all, lengths, nominal, 5, 1, verdicts), 4);
    assert_int_equal(verdicts[3], BAND_RELEASED);
    assert_int_equal(verdicts[4], BAND_WAITS);
}

static void bands_make_due_what_reached_the_age_bound(void **state) {
    (void)state;
    const uint32_t lengths[] = {250, 450, 150};
    const uint64_t nominal[] = {2, 3, 40};
    uint8_t verdicts[3];
    assert_int_equal(bands_decide(&options, lengths, nominal, 3, 9, verdicts), 0);
    assert_int_equal(bands_decide(&options, lengths, nominal, 3, 10, verdicts), 1);
    const uint8_t expected[] = {BAND_DUE, BAND_WAITS, BAND_WAITS};
    assert_memory_equal(verdicts, expected, sizeof expected);
}

static void bands_count_a_due_document_that_its_group_releases_as_released(void **state) {
    (void)state;
    const uint32_t lengths[] = {150, 150, 150};
    const uint64_t nominal[] = {0, 0, 0};
    uint8_t verdicts[3];
    assert_int_equal(bands_decide(&options, lengths, nominal, 3, 8, verdicts), 3);
    const uint8_t expected[] = {BAND_RELEASED, BAND_RELEASED, BAND_DUE};
    assert_memory_equal(verdicts, expected, sizeof expected);
}

static void bands_never_find_a_document_due_before_its_nominal_step(void **state) {
    (void)state;
    const uint32_t length = 150;
    const uint64_t nominal = UINT64_MAX;
    uint8_t verdict;
    assert_int_equal(bands_decide(&options, &length, &nominal, 1, 0, &verdict), 0);
    assert_int_equal(verdict, BAND_WAITS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bands_take_a_length_at_its_threshold),
        cmocka_unit_test(bands_without_thresholds_make_nothing_wait),
        cmocka_unit_test(bands_release_the_first_arrivals_of_a_full_band_alone),
        cmocka_unit_test(bands_release_one_group_a_step_unless_told_all),
        cmocka_unit_test(bands_make_due_what_reached_the_age_bound),
        cmocka_unit_test(bands_count_a_due_document_that_its_group_releases_as_released),
        cmocka_unit_test(bands_never_find_a_document_due_before_its_nominal_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
