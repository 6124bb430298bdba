/* Micro-batches to replicas and pipeline positions. */
#include "planner/replicas.h"
#include "tests/property/splitmix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_MAX 48u

static void deal(const uint64_t *works, uint32_t count, uint32_t replicas, uint32_t *slots) {
    uint32_t order[COUNT_MAX];
    uint32_t heap[COUNT_MAX];
    uint32_t taken[COUNT_MAX];
    uint64_t loads[COUNT_MAX];
    replicas_deal(works, count, replicas, order, heap, taken, loads, slots);
}

static void a_pipeline_is_a_mountain(void **state) {
    (void)state;
    const uint64_t descending[] = {50, 40, 30, 20, 10};
    const uint32_t expected[] = {2, 3, 1, 4, 0}; /* 10 30 50 40 20 */
    uint32_t slots[5];
    deal(descending, 5, 1, slots);
    assert_memory_equal(slots, expected, sizeof slots);
}

static void the_lightest_replica_takes_the_next_heaviest(void **state) {
    (void)state;
    const uint64_t works[] = {9, 8, 7, 1, 1, 1};
    /* 9 to replica 0; 8 to 1; 7 to 1, now heavier; 1, 1 to 0, now full; the last 1 to 1 */
    const uint32_t expected[] = {1, 4, 5, 2, 0, 3};
    uint32_t slots[6];
    deal(works, 6, 2, slots);
    assert_memory_equal(slots, expected, sizeof slots);
}

static void ties_go_to_the_lower_micro_batch_and_the_lower_replica(void **state) {
    (void)state;
    const uint64_t works[] = {5, 5, 5, 5};
    const uint32_t expected[] = {0, 2, 1, 3};
    uint32_t slots[4];
    deal(works, 4, 2, slots);
    assert_memory_equal(slots, expected, sizeof slots);
}

static void reading_order_goes_round_the_replicas(void **state) {
    (void)state;
    const uint32_t expected[] = {0, 3, 1, 4, 2, 5};
    uint32_t slots[6];
    replicas_deal_in_order(6, 2, slots);
    assert_memory_equal(slots, expected, sizeof slots);
}

/* Every replica full, every position once, each pipeline rising then falling. */
static void every_deal_is_a_bijection_of_mountains(void **state) {
    (void)state;
    uint64_t dice = 1;
    for (uint32_t world = 0; world < 2000; world++) {
        uint32_t replicas = splitmix_between(&dice, 1, 6);
        uint32_t share = splitmix_between(&dice, 1, 8);
        uint32_t count = replicas * share;
        uint64_t works[COUNT_MAX];
        uint64_t at[COUNT_MAX];
        uint8_t seen[COUNT_MAX] = {0};
        uint32_t slots[COUNT_MAX];
        for (uint32_t i = 0; i < count; i++) {
            works[i] = splitmix_between(&dice, 0, 20);
        }
        deal(works, count, replicas, slots);
        for (uint32_t i = 0; i < count; i++) {
            assert_true(slots[i] < count && seen[slots[i]]++ == 0);
            at[slots[i]] = works[i];
        }
        for (uint32_t slot = 1; slot < count; slot++) {
            uint32_t position = slot % share;
            if (position > 0 && position < (share + 1) / 2) {
                assert_true(at[slot - 1] <= at[slot]);
            } else if (position > 0) {
                assert_true(at[slot - 1] >= at[slot]);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pipeline_is_a_mountain),
        cmocka_unit_test(the_lightest_replica_takes_the_next_heaviest),
        cmocka_unit_test(ties_go_to_the_lower_micro_batch_and_the_lower_replica),
        cmocka_unit_test(reading_order_goes_round_the_replicas),
        cmocka_unit_test(every_deal_is_a_bijection_of_mountains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
