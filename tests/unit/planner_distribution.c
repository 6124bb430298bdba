/* The built-in document lengths: the figures of the lists that they stand for. */
#include "planner/distribution.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DRAWS 1000000u

static const struct {
    const char *name;
    uint32_t window;
    uint32_t mean;
    uint32_t long_work_milli; /* share of the sum of squares in documents over 64K */
    uint32_t longest;
} published[DISTRIBUTIONS] = {
    {"wlb128k", 131072, 3964, 667, 124913},
    {"prolong", 131072, 3057, 465, 340149},
    {"libra256k", 262144, 3020, 623, 262144},
    {"libra1m", 1048576, 6504, 963, 1048576},
};

static bool near(uint64_t value, uint64_t wanted, uint64_t percent) {
    return value * 100 >= wanted * (100 - percent) && value * 100 <= wanted * (100 + percent);
}

static void distributions_have_the_figures_of_their_lists(void **state) {
    (void)state;
    for (uint32_t i = 0; i < DISTRIBUTIONS; i++) {
        const struct distribution *distribution = distribution_at(i);
        uint64_t tokens = 0;
        unsigned __int128 squares = 0;
        unsigned __int128 long_squares = 0;
        for (uint32_t index = 0; index < DRAWS; index++) {
            uint64_t length = distribution_length(distribution, 1, index);
            assert_in_range(length, 1, published[i].longest);
            tokens += length;
            squares += length * length;
            long_squares += length > 65536 ? length * length : 0;
        }
        assert_string_equal(distribution_name(distribution), published[i].name);
        assert_int_equal(distribution_window(distribution), published[i].window);
        assert_true(near(tokens / DRAWS, published[i].mean, 2));
        assert_true(
            near((uint64_t)(long_squares * 1000 / squares), published[i].long_work_milli, 6));
    }
}

static void distributions_are_found_by_name_alone(void **state) {
    (void)state;
    for (uint32_t i = 0; i < DISTRIBUTIONS; i++) {
        assert_ptr_equal(distribution_find(published[i].name), distribution_at(i));
    }
    assert_null(distribution_find("wlb"));
    assert_null(distribution_find(""));
}

/* Corpora are named by (distribution, seed): their documents may never change. */
static void distribution_draws_never_change(void **state) {
    (void)state;
    static const uint32_t drawn[DISTRIBUTIONS][5] = {
        {4642, 170, 5270, 3113, 24715},
        {3183, 734, 4311, 1844, 16023},
        {1617, 32, 2770, 599, 41521},
        {1822, 25, 3490, 594, 90075},
    };
    for (uint32_t i = 0; i < DISTRIBUTIONS; i++) {
        for (uint32_t index = 0; index < 5; index++) {
            assert_int_equal(distribution_length(distribution_at(i), 7, index), drawn[i][index]);
        }
    }
}

static void distribution_draws_of_two_seeds_have_nothing_in_common(void **state) {
    (void)state;
    const struct distribution *distribution = distribution_find("wlb128k");
    uint32_t equal = 0;
    for (uint32_t index = 0; index < 1000; index++) {
        equal += distribution_length(distribution, 7, index) ==
                 distribution_length(distribution, 8, index);
    }
    assert_true(equal < 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distributions_have_the_figures_of_their_lists),
        cmocka_unit_test(distributions_are_found_by_name_alone),
        cmocka_unit_test(distribution_draws_never_change),
        cmocka_unit_test(distribution_draws_of_two_seeds_have_nothing_in_common),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
