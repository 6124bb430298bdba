/* The packing loop against a literal one: scan every bin for every document. Small worlds are
 * exhausted, large ones drawn. */
#include "packer/greedy.h"

#include "splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ITEMS_MAX 600u
#define BINS_MAX  100u

struct packing {
    uint32_t bin_of[ITEMS_MAX];
    uint32_t order[ITEMS_MAX];
    uint64_t work[BINS_MAX];
    uint64_t tokens[BINS_MAX];
};

static void world_print(const struct pack_input *input) {
    print_error("search %d, %u bins of %" PRIu64 ", (length work):", (int)input->search,
                input->bins, input->tokens_max);
    for (uint32_t i = 0; i < input->items && i < 32; i++) {
        print_error(" (%u %" PRIu64 ")", input->lengths[i], input->works[i]);
    }
    print_error(input->items > 32 ? " and %u more\n" : "\n", input->items - 32);
}

/* Scratch is exactly as large as the contract asks for: a sanitizer sees one byte more. */
static void pack(const struct pack_input *input, struct packing *out) {
    void *scratch = malloc(pack_greedy_bytes(input->items, input->bins));
    assert_non_null(scratch);
    pack_greedy(input, scratch, out->bin_of, out->order, out->work, out->tokens);
    free(scratch);
}

/* The reference. */

static uint32_t literal_next(const struct pack_input *input, const bool *placed) {
    uint32_t next = UINT32_MAX;
    for (uint32_t i = 0; i < input->items; i++) {
        if (!placed[i] && (next == UINT32_MAX || input->lengths[i] > input->lengths[next])) {
            next = i;
        }
    }
    return next;
}

static uint32_t literal_least(const uint64_t *totals, const bool *allowed, uint32_t bins) {
    uint32_t least = PACK_LEFT_OVER;
    for (uint32_t bin = 0; bin < bins; bin++) {
        if (allowed[bin] && (least == PACK_LEFT_OVER || totals[bin] < totals[least])) {
            least = bin;
        }
    }
    return least;
}

static uint32_t literal_bin(const struct pack_input *input, const struct packing *at,
                            uint32_t length) {
    bool room[BINS_MAX];
    bool all[BINS_MAX];
    for (uint32_t bin = 0; bin < input->bins; bin++) {
        room[bin] = at->tokens[bin] + length <= input->tokens_max;
        all[bin] = true;
    }
    if (input->search == PACK_SEARCH_EXACT) {
        return literal_least(at->work, room, input->bins);
    }
    uint32_t lightest = literal_least(at->work, all, input->bins);
    uint32_t emptiest = literal_least(at->tokens, all, input->bins);
    return room[lightest] ? lightest : room[emptiest] ? emptiest : PACK_LEFT_OVER;
}

static void literal_pack(const struct pack_input *input, struct packing *out) {
    bool placed[ITEMS_MAX] = {false};
    memset(out->work, 0, sizeof out->work);
    memset(out->tokens, 0, sizeof out->tokens);
    for (uint32_t turn = 0; turn < input->items; turn++) {
        uint32_t item = literal_next(input, placed);
        uint32_t bin = literal_bin(input, out, input->lengths[item]);
        placed[item] = true;
        out->order[turn] = item;
        out->bin_of[item] = bin;
        if (bin != PACK_LEFT_OVER) {
            out->work[bin] += input->works[item];
            out->tokens[bin] += input->lengths[item];
        }
    }
}

static const char *packing_difference(const struct pack_input *input, const struct packing *a,
                                      const struct packing *b) {
    if (memcmp(a->order, b->order, input->items * sizeof a->order[0]) != 0) {
        return "order";
    }
    if (memcmp(a->bin_of, b->bin_of, input->items * sizeof a->bin_of[0]) != 0) {
        return "bin of an item";
    }
    if (memcmp(a->work, b->work, input->bins * sizeof a->work[0]) != 0) {
        return "work of a bin";
    }
    if (memcmp(a->tokens, b->tokens, input->bins * sizeof a->tokens[0]) != 0) {
        return "tokens of a bin";
    }
    return NULL;
}

/* What must hold whatever the reference says: judged from the result alone, by replay. */
static const char *packing_fault(const struct pack_input *input, const struct packing *packing) {
    uint64_t work[BINS_MAX] = {0};
    uint64_t tokens[BINS_MAX] = {0};
    bool seen[ITEMS_MAX] = {false};
    for (uint32_t turn = 0; turn < input->items; turn++) {
        uint32_t item = packing->order[turn];
        if (item >= input->items || seen[item]) {
            return "order is no permutation";
        }
        seen[item] = true;
        uint32_t bin = packing->bin_of[item];
        bool room = false;
        for (uint32_t i = 0; i < input->bins; i++) {
            room = room || tokens[i] + input->lengths[item] <= input->tokens_max;
        }
        if (bin == PACK_LEFT_OVER) {
            if (room) {
                return "left over although a bin had room";
            }
            continue;
        }
        if (bin >= input->bins) {
            return "no such bin";
        }
        work[bin] += input->works[item];
        tokens[bin] += input->lengths[item];
        if (tokens[bin] > input->tokens_max) {
            return "bound exceeded";
        }
    }
    if (memcmp(work, packing->work, input->bins * sizeof work[0]) != 0 ||
        memcmp(tokens, packing->tokens, input->bins * sizeof tokens[0]) != 0) {
        return "totals are not the sums";
    }
    return NULL;
}

static void check_world(struct pack_input *input, uint64_t seed) {
    static struct packing packing;
    static struct packing literal;
    for (int paper = 0; paper <= 1; paper++) {
        input->search = paper ? PACK_SEARCH_PAPER : PACK_SEARCH_EXACT;
        pack(input, &packing);
        literal_pack(input, &literal);
        const char *fault = packing_fault(input, &packing);
        const char *difference = packing_difference(input, &packing, &literal);
        if (fault != NULL || difference != NULL) {
            world_print(input);
            fail_msg("seed %" PRIu64 ": %s, %s", seed, fault != NULL ? fault : "no fault",
                     difference != NULL ? difference : "as the reference");
        }
    }
}

/* Counts `digits` up in base `base`; false after the last. */
static bool digits_next(uint32_t *digits, uint32_t count, uint32_t base) {
    for (uint32_t i = 0; i < count; i++) {
        if (++digits[i] < base) {
            return true;
        }
        digits[i] = 0;
    }
    return false;
}

static bool digits_ascend(const uint32_t *digits, uint32_t count) {
    for (uint32_t i = 1; i < count; i++) {
        if (digits[i - 1] > digits[i]) {
            return false;
        }
    }
    return true;
}

static void packer_equals_the_literal_loop_on_all_small_length_multisets(void **state) {
    (void)state;
    const uint32_t alphabet[] = {1, 2, 3, 5};
    for (uint32_t items = 0; items <= 6; items++) {
        uint32_t digits[6] = {0};
        do {
            uint32_t lengths[6];
            uint64_t works[6];
            if (!digits_ascend(digits, items)) {
                continue;
            }
            for (uint32_t i = 0; i < items; i++) {
                lengths[i] = alphabet[digits[i]];
                works[i] = (uint64_t)lengths[i] * (lengths[i] + 3);
            }
            for (uint32_t bins = 1; bins <= 4; bins++) {
                for (uint64_t tokens_max = 1; tokens_max <= 12; tokens_max++) {
                    struct pack_input input = {lengths, works, items, bins, tokens_max, 0};
                    check_world(&input, 0);
                }
            }
        } while (digits_next(digits, items, 4));
    }
}

/* Work need not follow length: after weights change, or with any other model. */
static void packer_equals_the_literal_loop_when_work_contradicts_length(void **state) {
    (void)state;
    for (uint32_t items = 1; items <= 4; items++) {
        uint32_t digits[4] = {0};
        do {
            uint32_t lengths[4];
            uint64_t works[4];
            for (uint32_t i = 0; i < items; i++) {
                lengths[i] = 1 + digits[i] % 3;
                works[i] = digits[i] / 3;
            }
            for (uint32_t bins = 2; bins <= 4; bins++) {
                for (uint64_t tokens_max = 2; tokens_max <= 5; tokens_max++) {
                    struct pack_input input = {lengths, works, items, bins, tokens_max, 0};
                    check_world(&input, 0);
                }
            }
        } while (digits_next(digits, items, 9));
    }
}

static uint64_t drawn_work(uint64_t *random, uint32_t kind, uint32_t length) {
    switch (kind) {
    case 0:
        return (uint64_t)length * (length + 24576);
    case 1:
        return splitmix_next(random) >> 20;
    case 2:
        return splitmix_next(random) % 3;
    default:
        return 0;
    }
}

static void packer_equals_the_literal_loop_on_large_random_worlds(void **state) {
    (void)state;
    static uint32_t lengths[ITEMS_MAX];
    static uint64_t works[ITEMS_MAX];
    for (uint64_t seed = 1; seed <= 400; seed++) {
        uint64_t random = seed;
        struct pack_input input = {.lengths = lengths, .works = works};
        input.items = splitmix_between(&random, 0, ITEMS_MAX);
        input.bins = splitmix_between(&random, 1, BINS_MAX);
        uint32_t longest = 1u << splitmix_between(&random, 0, 24);
        uint32_t kind = splitmix_between(&random, 0, 3);
        uint64_t tokens = 0;
        for (uint32_t i = 0; i < input.items; i++) {
            uint32_t limit = splitmix_between(&random, 1, longest);
            lengths[i] = splitmix_between(&random, 1, limit);
            works[i] = drawn_work(&random, kind, lengths[i]);
            tokens += lengths[i];
        }
        input.tokens_max = tokens / input.bins * splitmix_between(&random, 80, 200) / 100 + 1;
        check_world(&input, seed);
    }
}

/* When work follows length, documents of one length are interchangeable: the totals of every bin
 * are a function of the multiset of lengths. */
static void packer_totals_do_not_depend_on_the_order_of_equal_documents(void **state) {
    (void)state;
    static struct packing sorted;
    static struct packing shuffled;
    static uint32_t lengths[ITEMS_MAX];
    static uint64_t works[ITEMS_MAX];
    for (uint64_t seed = 1; seed <= 200; seed++) {
        uint64_t random = seed;
        struct pack_input input = {.lengths = lengths, .works = works};
        input.items = splitmix_between(&random, 1, 200);
        input.bins = splitmix_between(&random, 1, 20);
        input.tokens_max = splitmix_between(&random, 20, 400);
        input.search = seed % 2 == 0 ? PACK_SEARCH_EXACT : PACK_SEARCH_PAPER;
        for (uint32_t i = 0; i < input.items; i++) {
            lengths[i] = splitmix_between(&random, 1, 30);
            works[i] = (uint64_t)lengths[i] * (lengths[i] + 5);
        }
        pack(&input, &sorted);
        for (uint32_t i = input.items - 1; i > 0; i--) {
            uint32_t j = splitmix_between(&random, 0, i);
            uint32_t length = lengths[i];
            uint64_t work = works[i];
            lengths[i] = lengths[j];
            works[i] = works[j];
            lengths[j] = length;
            works[j] = work;
        }
        pack(&input, &shuffled);
        if (memcmp(sorted.work, shuffled.work, input.bins * sizeof sorted.work[0]) != 0 ||
            memcmp(sorted.tokens, shuffled.tokens, input.bins * sizeof sorted.tokens[0]) != 0) {
            fail_msg("seed %" PRIu64, seed);
        }
    }
}

static uint64_t heaviest(const uint64_t *work, uint32_t bins) {
    uint64_t most = 0;
    for (uint32_t bin = 0; bin < bins; bin++) {
        most = work[bin] > most ? work[bin] : most;
    }
    return most;
}

static uint64_t optimal_heaviest(const uint64_t *works, uint32_t items, uint32_t bins) {
    uint32_t bin_of[7] = {0};
    uint64_t best = UINT64_MAX;
    do {
        uint64_t work[3] = {0};
        for (uint32_t i = 0; i < items; i++) {
            work[bin_of[i]] += works[i];
        }
        uint64_t most = heaviest(work, bins);
        best = most < best ? most : best;
    } while (digits_next(bin_of, items, bins));
    return best;
}

/* Graham 1969: without a token bound this is LPT, within 4/3 - 1/(3 bins) of the optimum. */
static void packer_without_a_bound_is_within_grahams_ratio_of_the_optimum(void **state) {
    (void)state;
    static struct packing packing;
    for (uint32_t items = 1; items <= 7; items++) {
        uint32_t digits[7] = {0};
        do {
            uint32_t lengths[7];
            uint64_t works[7];
            if (!digits_ascend(digits, items)) {
                continue;
            }
            for (uint32_t i = 0; i < items; i++) {
                lengths[i] = 2 + digits[i];
                works[i] = lengths[i];
            }
            for (uint32_t bins = 2; bins <= 3; bins++) {
                struct pack_input input = {lengths, works, items, bins, 1000, PACK_SEARCH_EXACT};
                pack(&input, &packing);
                uint64_t most = heaviest(packing.work, bins);
                assert_true(3 * bins * most <=
                            (4 * bins - 1) * optimal_heaviest(works, items, bins));
            }
        } while (digits_next(digits, items, 4));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packer_equals_the_literal_loop_on_all_small_length_multisets),
        cmocka_unit_test(packer_equals_the_literal_loop_when_work_contradicts_length),
        cmocka_unit_test(packer_equals_the_literal_loop_on_large_random_worlds),
        cmocka_unit_test(packer_totals_do_not_depend_on_the_order_of_equal_documents),
        cmocka_unit_test(packer_without_a_bound_is_within_grahams_ratio_of_the_optimum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
