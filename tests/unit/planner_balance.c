/* Balance figures on loads that can be worked out by hand, and the bound against every assignment
 * of small sets. */
#include "planner/balance.h"
#include "tests/property/splitmix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

static void equal_loads_are_perfect_and_so_is_nothing(void **state) {
    (void)state;
    const uint64_t equal[] = {7, 7, 7};
    const uint64_t nothing[] = {0, 0};
    assert_int_equal(balance_of(equal, 3), PPM);
    assert_int_equal(balance_of(nothing, 2), PPM);
    assert_int_equal(balance_of(NULL, 0), PPM);
}

static void the_largest_load_is_set_against_the_mean_and_floored(void **state) {
    (void)state;
    const uint64_t loads[] = {3, 1, 1};
    assert_int_equal(balance_of(loads, 3), 1800000);
    assert_int_equal(balance_ppm(1, 3, 2), 666666);
    assert_int_equal(balance_ppm(UINT64_MAX / 2, UINT64_MAX / 2, 65536), UINT64_C(65536000000));
}

static void the_bound_knows_the_largest_document_and_the_two_that_must_share(void **state) {
    (void)state;
    const uint64_t one_giant[] = {90, 5, 5};
    const uint64_t one_too_many[] = {10, 10, 10};
    const uint64_t few[] = {8};
    const uint64_t odd[] = {1, 1, 1};
    uint64_t heap[5];
    assert_int_equal(balance_bound(one_giant, 3, 2, heap), 1800000);    /* 90 of 50 */
    assert_int_equal(balance_bound(one_too_many, 3, 2, heap), 1333333); /* 20 of 15 */
    assert_int_equal(balance_bound(few, 1, 4, heap), 4000000);
    assert_int_equal(balance_bound(odd, 3, 2, heap), 1333333); /* whole numbers: 2 of 1.5 */
    assert_int_equal(balance_bound(NULL, 0, 3, heap), PPM);
}

static uint64_t best_assignment(const uint64_t *works, uint32_t count, uint64_t *bins,
                                uint32_t bin_count) {
    if (count == 0) {
        return balance_of(bins, bin_count);
    }
    uint64_t best = UINT64_MAX;
    for (uint32_t b = 0; b < bin_count; b++) {
        bins[b] += works[0];
        uint64_t found = best_assignment(works + 1, count - 1, bins, bin_count);
        bins[b] -= works[0];
        best = found < best ? found : best;
    }
    return best;
}

static void no_assignment_beats_the_bound(void **state) {
    (void)state;
    uint64_t dice = 1;
    uint32_t reached = 0;
    for (uint32_t world = 0; world < 500; world++) {
        uint64_t works[6];
        uint64_t heap[4];
        uint64_t bins[3] = {0};
        uint32_t count = splitmix_between(&dice, 1, 6);
        uint32_t bin_count = splitmix_between(&dice, 1, 3);
        for (uint32_t i = 0; i < count; i++) {
            works[i] = splitmix_between(&dice, 1, 12);
        }
        uint64_t best = best_assignment(works, count, bins, bin_count);
        uint64_t bound = balance_bound(works, count, bin_count, heap);
        assert_true(bound <= best);
        reached += bound == best;
    }
    assert_true(reached > 300);
}

static void spans_cut_documents_where_windows_would(void **state) {
    (void)state;
    const uint32_t whole[] = {4, 4};
    const uint32_t cut[] = {6, 2}; /* 4 | 2 2: pairs 10 and 3 + 3 */
    const uint32_t uneven[] = {3}; /* 1 | 2: ends at floor(3/2) */
    assert_int_equal(balance_of_spans(whole, 2, 2), PPM);
    assert_int_equal(balance_of_spans(cut, 2, 2), UINT64_C(10) * 2 * PPM / 16);
    assert_int_equal(balance_of_spans(uneven, 1, 2), UINT64_C(3) * 2 * PPM / 4);
    assert_int_equal(balance_of_spans(NULL, 0, 2), PPM);
}

/* The same by looking at every token. */
static uint64_t spans_by_token(const uint32_t *lengths, uint32_t count, uint32_t spans) {
    uint64_t loads[8] = {0};
    uint64_t tokens = 0;
    uint64_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        tokens += lengths[i];
    }
    for (uint32_t i = 0; i < count; i++) {
        uint64_t in_piece = 0;
        for (uint32_t j = 0; j < lengths[i]; j++, at++) {
            uint32_t span = 0;
            while (tokens * (span + 1) / spans <= at) {
                span++;
            }
            bool starts = at == tokens * span / spans;
            in_piece = j == 0 || starts ? 1 : in_piece + 1;
            loads[span] += in_piece;
        }
    }
    return balance_of(loads, spans);
}

static void spans_agree_with_counting_tokens(void **state) {
    (void)state;
    uint64_t dice = 2;
    for (uint32_t world = 0; world < 500; world++) {
        uint32_t lengths[8];
        uint32_t count = splitmix_between(&dice, 1, 8);
        uint32_t spans = splitmix_between(&dice, 1, 8);
        for (uint32_t i = 0; i < count; i++) {
            lengths[i] = splitmix_between(&dice, 1, 20);
        }
        assert_int_equal(balance_of_spans(lengths, count, spans),
                         spans_by_token(lengths, count, spans));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_loads_are_perfect_and_so_is_nothing),
        cmocka_unit_test(the_largest_load_is_set_against_the_mean_and_floored),
        cmocka_unit_test(the_bound_knows_the_largest_document_and_the_two_that_must_share),
        cmocka_unit_test(no_assignment_beats_the_bound),
        cmocka_unit_test(spans_cut_documents_where_windows_would),
        cmocka_unit_test(spans_agree_with_counting_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
