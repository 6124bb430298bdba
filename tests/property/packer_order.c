/* The two orders judged by their definition: a permutation whose neighbours stand right. */
#include "packer/order.h"

#include "splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#define ITEMS_MAX 3000u

static bool is_permutation(const uint32_t *order, uint32_t items) {
    bool seen[ITEMS_MAX] = {false};
    for (uint32_t i = 0; i < items; i++) {
        if (order[i] >= items || seen[order[i]]) {
            return false;
        }
        seen[order[i]] = true;
    }
    return true;
}

/* Scratch is exactly as large as the contract asks for: a sanitizer sees one byte more. */
static bool length_order_holds(const uint32_t *lengths, uint32_t items) {
    uint32_t order[ITEMS_MAX];
    void *scratch = malloc(order_by_length_bytes(items));
    order_by_length(lengths, items, scratch, order);
    free(scratch);
    bool holds = is_permutation(order, items);
    for (uint32_t i = 1; i < items && holds; i++) {
        uint32_t a = order[i - 1];
        uint32_t b = order[i];
        holds = lengths[a] > lengths[b] || (lengths[a] == lengths[b] && a < b);
    }
    return holds;
}

static bool work_order_holds(const uint64_t *works, uint32_t items) {
    uint32_t order[ITEMS_MAX];
    for (uint32_t i = 0; i < items; i++) {
        order[i] = i;
    }
    order_by_work(works, order, items);
    bool holds = is_permutation(order, items);
    for (uint32_t i = 1; i < items && holds; i++) {
        uint32_t a = order[i - 1];
        uint32_t b = order[i];
        holds = works[a] > works[b] || (works[a] == works[b] && a < b);
    }
    return holds;
}

/* Spreads of 1 to 32 bits take every number of passes and every width of a digit. */
static void lengths_descend_whatever_their_spread(void **state) {
    (void)state;
    for (unsigned bits = 1; bits <= 32; bits++) {
        for (uint64_t seed = 1; seed <= 4; seed++) {
            uint64_t random = seed << 8 | bits;
            uint32_t lengths[ITEMS_MAX];
            uint32_t items = splitmix_between(&random, 1, ITEMS_MAX);
            uint32_t spread = UINT32_MAX >> (32 - bits);
            uint32_t base = splitmix_between(&random, 0, UINT32_MAX - spread);
            for (uint32_t i = 0; i < items; i++) {
                lengths[i] = base + splitmix_between(&random, 0, spread);
            }
            lengths[0] = base;
            lengths[items - 1] = base + spread;
            if (!length_order_holds(lengths, items)) {
                fail_msg("%u bits, seed %" PRIu64, bits, seed);
            }
        }
    }
    assert_true(length_order_holds(NULL, 0));
}

static void works_descend_on_all_small_worlds(void **state) {
    (void)state;
    for (uint32_t world = 0; world < 6 * 6 * 6 * 6 * 6 * 6; world++) {
        uint64_t works[6];
        uint32_t rest = world;
        for (uint32_t i = 0; i < 6; i++) {
            works[i] = rest % 6;
            rest /= 6;
        }
        for (uint32_t items = 0; items <= 6; items++) {
            assert_true(work_order_holds(works, items));
        }
    }
}

static void works_descend_on_large_random_worlds(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        uint64_t random = seed;
        uint64_t works[ITEMS_MAX];
        uint32_t items = splitmix_between(&random, 1, ITEMS_MAX);
        uint32_t kinds = splitmix_between(&random, 0, 63);
        for (uint32_t i = 0; i < items; i++) {
            works[i] = splitmix_next(&random) >> kinds;
        }
        if (!work_order_holds(works, items)) {
            fail_msg("seed %" PRIu64, seed);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_descend_whatever_their_spread),
        cmocka_unit_test(works_descend_on_all_small_worlds),
        cmocka_unit_test(works_descend_on_large_random_worlds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
