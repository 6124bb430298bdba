/* Pools of sequences against Algorithm 1 done literally: all small global batches, then random
 * ones. */
#include "packer/pools.h"

#include "splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEQUENCES_MAX 256u

struct batch {
    struct pools_input input;
    uint64_t works[SEQUENCES_MAX];
    uint32_t scratch[3 * SEQUENCES_MAX];
    uint32_t members[SEQUENCES_MAX];
    uint64_t loads[SEQUENCES_MAX];
};

static void batch_init(struct batch *batch, uint32_t sequences, uint32_t pool_size) {
    batch->input = (struct pools_input){batch->works, sequences, pool_size};
    assert_true(pools_bytes(sequences) <= sizeof batch->scratch);
}

static uint32_t pools_of(const struct batch *batch) {
    return batch->input.sequences / batch->input.pool_size;
}

static uint64_t load_max(const struct batch *batch) {
    uint64_t max = 0;
    for (uint32_t pool = 0; pool < pools_of(batch); pool++) {
        max = batch->loads[pool] > max ? batch->loads[pool] : max;
    }
    return max;
}

/* Every sequence once, and loads are the sums of their members. */
static void assert_pools(const struct batch *batch) {
    bool seen[SEQUENCES_MAX] = {false};
    for (uint32_t pool = 0; pool < pools_of(batch); pool++) {
        uint64_t load = 0;
        for (uint32_t i = 0; i < batch->input.pool_size; i++) {
            uint32_t member = batch->members[pool * batch->input.pool_size + i];
            assert_true(member < batch->input.sequences && !seen[member]);
            seen[member] = true;
            load += batch->works[member];
        }
        assert_int_equal(load, batch->loads[pool]);
    }
}

/* The heaviest sequence not placed, lowest index first, to the lightest pool with a place. */
static void assert_algorithm_1(const struct batch *batch) {
    uint64_t loads[SEQUENCES_MAX] = {0};
    uint32_t taken[SEQUENCES_MAX] = {0};
    bool placed[SEQUENCES_MAX] = {false};
    for (uint32_t turn = 0; turn < batch->input.sequences; turn++) {
        uint32_t heaviest = UINT32_MAX;
        uint32_t lightest = UINT32_MAX;
        for (uint32_t s = 0; s < batch->input.sequences; s++) {
            if (!placed[s] &&
                (heaviest == UINT32_MAX || batch->works[s] > batch->works[heaviest])) {
                heaviest = s;
            }
        }
        for (uint32_t pool = 0; pool < pools_of(batch); pool++) {
            if (taken[pool] < batch->input.pool_size &&
                (lightest == UINT32_MAX || loads[pool] < loads[lightest])) {
                lightest = pool;
            }
        }
        placed[heaviest] = true;
        loads[lightest] += batch->works[heaviest];
        uint32_t place = lightest * batch->input.pool_size + taken[lightest]++;
        assert_int_equal(batch->members[place], heaviest);
    }
}

/* The least largest load of any grouping, by trying them all. */
static uint64_t best_load(const struct batch *batch, uint32_t sequence, uint64_t *loads,
                          uint32_t *taken, uint64_t best) {
    if (sequence == batch->input.sequences) {
        uint64_t max = 0;
        for (uint32_t pool = 0; pool < pools_of(batch); pool++) {
            max = loads[pool] > max ? loads[pool] : max;
        }
        return max < best ? max : best;
    }
    for (uint32_t pool = 0; pool < pools_of(batch); pool++) {
        if (taken[pool] < batch->input.pool_size) {
            taken[pool]++;
            loads[pool] += batch->works[sequence];
            best = best_load(batch, sequence + 1, loads, taken, best);
            loads[pool] -= batch->works[sequence];
            taken[pool]--;
        }
    }
    return best;
}

static void every_small_batch_is_placed_by_algorithm_1(void **state) {
    (void)state;
    static const uint32_t sizes[][2] = {{1, 1}, {4, 1}, {4, 2}, {4, 4}, {6, 2}, {6, 3}};
    static struct batch batch;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        batch_init(&batch, sizes[i][0], sizes[i][1]);
        for (uint32_t world = 0; world < 1u << 2 * sizes[i][0]; world++) {
            uint64_t loads[SEQUENCES_MAX] = {0};
            uint32_t taken[SEQUENCES_MAX] = {0};
            for (uint32_t s = 0; s < batch.input.sequences; s++) {
                uint32_t digit = world >> 2 * s & 3;
                batch.works[s] = digit * digit;
            }
            pools_vrsp(&batch.input, batch.scratch, batch.members, batch.loads);
            assert_pools(&batch);
            assert_algorithm_1(&batch);
            uint64_t greedy = load_max(&batch);
            (void)pools_swap(&batch.input, UINT32_MAX, batch.members, batch.loads);
            assert_pools(&batch);
            uint64_t swapped = load_max(&batch);
            uint64_t best = best_load(&batch, 0, loads, taken, UINT64_MAX);
            assert_true(best <= swapped && swapped <= greedy);
            assert_true(pools_bound(&batch.input, batch.scratch) <= best);
        }
    }
}

static void draw_works(struct batch *batch, uint64_t *random) {
    for (uint32_t s = 0; s < batch->input.sequences; s++) {
        uint64_t length = splitmix_between(random, 1, s % 9 == 0 ? 1u << 20 : 1u << 16);
        batch->works[s] = splitmix_between(random, 0, 3) == 0 && s > 0 ? batch->works[s - 1]
                                                                       : length * length;
    }
}

/* No swap of the heaviest pool lowers it without making another as heavy. */
static void assert_no_swap_helps(const struct batch *batch) {
    uint32_t size = batch->input.pool_size;
    uint64_t max = load_max(batch);
    uint32_t heaviest = 0;
    while (batch->loads[heaviest] != max) {
        heaviest++;
    }
    for (uint32_t a = heaviest * size; a < (heaviest + 1) * size; a++) {
        for (uint32_t b = 0; b < batch->input.sequences; b++) {
            uint64_t out = batch->works[batch->members[a]];
            uint64_t in = batch->works[batch->members[b]];
            bool helps = b / size != heaviest && in < out &&
                         batch->loads[b / size] + (out - in) < max;
            assert_false(helps);
        }
    }
}

/* The swap that pools_swap should make, done literally; false if none helps. */
static bool swap_literally(const struct batch *batch, uint32_t *members) {
    uint32_t size = batch->input.pool_size;
    uint64_t best = load_max(batch);
    uint32_t heaviest = 0;
    uint32_t out = UINT32_MAX;
    uint32_t in = UINT32_MAX;
    while (batch->loads[heaviest] != best) {
        heaviest++;
    }
    for (uint32_t pool = 0; pool < pools_of(batch); pool++) {
        for (uint32_t a = heaviest * size; pool != heaviest && a < (heaviest + 1) * size; a++) {
            for (uint32_t b = pool * size; b < (pool + 1) * size; b++) {
                uint64_t x = batch->works[members[a]];
                uint64_t y = batch->works[members[b]];
                uint64_t left = batch->loads[heaviest] - x + y;
                uint64_t grown = batch->loads[pool] + x - y;
                uint64_t max = left > grown ? left : grown;
                if (max < best) {
                    best = max;
                    out = a;
                    in = b;
                }
            }
        }
    }
    if (out != UINT32_MAX) {
        uint32_t leaving = members[out];
        members[out] = members[in];
        members[in] = leaving;
    }
    return out != UINT32_MAX;
}

static void each_swap_is_the_first_best_one(void **state) {
    (void)state;
    static struct batch batch;
    batch_init(&batch, 6, 2);
    for (uint32_t world = 0; world < 4096; world++) {
        uint32_t members[6];
        for (uint32_t s = 0; s < 6; s++) {
            batch.works[s] = world >> 2 * s & 3;
        }
        for (uint32_t s = 0; s < 6; s++) {
            batch.members[s] = s;
            batch.loads[s / 2] = batch.works[s / 2 * 2] + batch.works[s / 2 * 2 + 1];
        }
        for (bool swaps = true; swaps;) {
            memcpy(members, batch.members, sizeof members);
            swaps = swap_literally(&batch, members);
            assert_int_equal(pools_swap(&batch.input, 1, batch.members, batch.loads), swaps);
            assert_memory_equal(members, batch.members, sizeof members);
        }
    }
}

static void swaps_end_where_none_helps(void **state) {
    (void)state;
    static struct batch batch;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t random = seed;
        uint32_t pool_size = 1u << splitmix_between(&random, 0, 4);
        batch_init(&batch, pool_size * splitmix_between(&random, 1, 16), pool_size);
        draw_works(&batch, &random);
        pools_rule *const rules[] = {pools_vrsp, pools_zigzag};
        for (size_t i = 0; i < 2; i++) {
            rules[i](&batch.input, batch.scratch, batch.members, batch.loads);
            assert_pools(&batch);
            if (rules[i] == pools_vrsp) {
                assert_algorithm_1(&batch);
            }
            uint64_t before = load_max(&batch);
            uint32_t swaps = pools_swap(&batch.input, UINT32_MAX, batch.members, batch.loads);
            assert_pools(&batch);
            assert_no_swap_helps(&batch);
            assert_true(load_max(&batch) <= before);
            assert_true(load_max(&batch) >= pools_bound(&batch.input, batch.scratch));
            rules[i](&batch.input, batch.scratch, batch.members, batch.loads);
            assert_true(pools_swap(&batch.input, 3, batch.members, batch.loads) <=
                        (swaps < 3 ? swaps : 3));
        }
    }
}

static void zigzag_turns_at_both_ends(void **state) {
    (void)state;
    static struct batch batch;
    const uint32_t expected[] = {0, 5, 6, 1, 4, 7, 2, 3, 8};
    batch_init(&batch, 9, 3);
    for (uint32_t s = 0; s < 9; s++) {
        batch.works[s] = 100 - s;
    }
    pools_zigzag(&batch.input, batch.scratch, batch.members, batch.loads);
    assert_memory_equal(batch.members, expected, sizeof expected);
}

/* Places are a permutation; a pool fills one slot of one index, in the order of its members. */
static void emission_keeps_pools_together(void **state) {
    (void)state;
    static struct batch batch;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        uint64_t random = seed;
        uint32_t pool_size = splitmix_between(&random, 1, 4);
        uint32_t replicas = pool_size * splitmix_between(&random, 1, 4);
        batch_init(&batch, replicas * splitmix_between(&random, 1, 6), pool_size);
        draw_works(&batch, &random);
        pools_vrsp(&batch.input, batch.scratch, batch.members, batch.loads);
        for (unsigned snake = 0; snake < 2; snake++) {
            uint32_t positions[SEQUENCES_MAX];
            uint64_t slots[SEQUENCES_MAX];
            memset(slots, 0xff, sizeof slots);
            pools_emit(&batch.input, replicas, snake == 1, batch.members, batch.loads,
                       batch.scratch, positions);
            for (uint32_t i = 0; i < batch.input.sequences; i++) {
                uint32_t position = positions[batch.members[i]];
                assert_int_equal(position % pool_size, i % pool_size);
                assert_int_equal(position / pool_size,
                                 positions[batch.members[i - i % pool_size]] / pool_size);
                assert_true(slots[position / pool_size] == UINT64_MAX ||
                            slots[position / pool_size] == batch.loads[i / pool_size]);
                slots[position / pool_size] = batch.loads[i / pool_size];
                if (snake == 0) {
                    assert_int_equal(position, i);
                }
            }
            uint32_t row = replicas / pool_size;
            for (uint32_t slot = 0; snake == 1 && slot + 1 < pools_of(&batch); slot++) {
                bool backward = slot / row % 2 == 1;
                if ((slot + 1) % row != 0) {
                    assert_true(backward ? slots[slot] <= slots[slot + 1]
                                         : slots[slot] >= slots[slot + 1]);
                }
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_small_batch_is_placed_by_algorithm_1),
        cmocka_unit_test(each_swap_is_the_first_best_one),
        cmocka_unit_test(swaps_end_where_none_helps),
        cmocka_unit_test(zigzag_turns_at_both_ends),
        cmocka_unit_test(emission_keeps_pools_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
