/* Best-fit windows against the rule done literally: all small mixes, then random ones. */
#include "packer/best_fit.h"

#include "splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ITEMS_MAX  400u
#define BINS_MAX   64u
#define PIECES_MAX (ITEMS_MAX + BINS_MAX)

struct packing {
    struct fixed_piece pieces[PIECES_MAX];
    uint32_t count;
    uint64_t tokens[BINS_MAX];
};

static void pack(const struct best_fit_input *input, struct packing *packing) {
    void *scratch = malloc(pack_best_fit_bytes(input->items, input->bins));
    assert_non_null(scratch);
    packing->count = pack_best_fit(input, scratch, packing->pieces, packing->tokens);
    free(scratch);
}

struct literal {
    uint32_t taken[BINS_MAX][ITEMS_MAX]; /* tokens of an item in a bin */
    uint64_t tokens[BINS_MAX];
    uint32_t longest[BINS_MAX]; /* the item that began it */
    uint32_t turns[ITEMS_MAX];  /* items in the order of placing */
};

static void literal_put(struct literal *literal, uint32_t item, uint32_t bin, uint64_t length) {
    literal->longest[bin] = literal->tokens[bin] == 0 ? item : literal->longest[bin];
    literal->taken[bin][item] += (uint32_t)length;
    literal->tokens[bin] += length;
}

/* An empty bin if items run short, else the fullest bin that holds the item whole, else bit by bit
 * the emptiest. */
static void literal_place(struct literal *literal, const struct best_fit_input *input,
                          uint32_t item, uint32_t items_left) {
    uint64_t left = input->lengths[item];
    uint32_t best = UINT32_MAX;
    uint32_t empty = 0;
    for (uint32_t bin = 0; bin < input->bins; bin++) {
        empty += literal->tokens[bin] == 0;
    }
    for (uint32_t bin = 0; bin < input->bins; bin++) {
        if (literal->tokens[bin] + left <= input->window &&
            (literal->tokens[bin] == 0 || items_left > empty) &&
            (best == UINT32_MAX || literal->tokens[bin] > literal->tokens[best])) {
            best = bin;
        }
    }
    while (left > 0) {
        for (uint32_t bin = 0; best == UINT32_MAX && bin < input->bins; bin++) {
            best = bin;
            for (uint32_t other = 0; other < input->bins; other++) {
                bool emptier = literal->tokens[other] < literal->tokens[best] ||
                               (literal->tokens[other] == literal->tokens[best] && other < best);
                best = emptier ? other : best;
            }
        }
        uint64_t room = input->window - literal->tokens[best];
        uint64_t length = left < room ? left : room;
        literal_put(literal, item, best, length);
        left -= length;
        best = UINT32_MAX;
    }
}

static void literal_pack(struct literal *literal, const struct best_fit_input *input) {
    bool placed[ITEMS_MAX] = {false};
    memset(literal, 0, sizeof *literal);
    for (uint32_t turn = 0; turn < input->items; turn++) {
        uint32_t longest = UINT32_MAX;
        for (uint32_t i = 0; i < input->items; i++) {
            if (!placed[i] &&
                (longest == UINT32_MAX || input->lengths[i] > input->lengths[longest])) {
                longest = i;
            }
        }
        placed[longest] = true;
        literal->turns[turn] = longest;
        literal_place(literal, input, longest, input->items - turn);
    }
}

/* Bins by the item that began them, then by when they were begun; empty ones last. */
static void literal_ranks(const struct literal *literal, uint32_t bins, uint32_t *order) {
    for (uint32_t bin = 0; bin < bins; bin++) {
        uint64_t key = literal->tokens[bin] == 0 ? UINT64_MAX : literal->longest[bin];
        uint32_t at = bin;
        for (; at > 0; at--) {
            uint32_t before = order[at - 1];
            uint64_t other = literal->tokens[before] == 0 ? UINT64_MAX : literal->longest[before];
            if (other <= key) {
                break;
            }
            order[at] = before;
        }
        order[at] = bin;
    }
}

static void assert_literal(const struct best_fit_input *input) {
    static struct packing packing;
    static struct literal literal;
    uint32_t order[BINS_MAX];
    uint32_t offsets[ITEMS_MAX] = {0};
    uint32_t at = 0;
    pack(input, &packing);
    literal_pack(&literal, input);
    literal_ranks(&literal, input->bins, order);
    for (uint32_t rank = 0; rank < input->bins; rank++) {
        assert_int_equal(packing.tokens[rank], literal.tokens[order[rank]]);
        for (uint32_t turn = 0; turn < input->items; turn++) {
            uint32_t item = literal.turns[turn];
            uint32_t length = literal.taken[order[rank]][item];
            if (length > 0) {
                assert_true(at < packing.count);
                assert_int_equal(packing.pieces[at].bin, rank);
                assert_int_equal(packing.pieces[at].item, item);
                assert_int_equal(packing.pieces[at].offset, offsets[item]);
                assert_int_equal(packing.pieces[at].length, length);
                offsets[item] += length;
                at++;
            }
        }
    }
    assert_int_equal(at, packing.count);
    for (uint32_t item = 0; item < input->items; item++) {
        assert_int_equal(offsets[item], input->lengths[item]);
    }
}

static void every_small_mix_is_packed_by_the_rule(void **state) {
    (void)state;
    for (uint32_t items = 0; items <= 5; items++) {
        uint32_t worlds = 1;
        for (uint32_t i = 0; i < items; i++) {
            worlds *= 5;
        }
        for (uint32_t world = 0; world < worlds; world++) {
            uint32_t lengths[5] = {0};
            uint32_t tokens = 0;
            uint32_t rest = world;
            for (uint32_t i = 0; i < items; i++, rest /= 5) {
                lengths[i] = 1 + rest % 5;
                tokens += lengths[i];
            }
            for (uint32_t bins = 1; bins <= 6; bins++) {
                struct best_fit_input input = {lengths, items, bins, 4};
                if (tokens <= 4 * bins) {
                    assert_literal(&input);
                }
            }
        }
    }
}

static void random_mixes_are_packed_by_the_rule(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 150; seed++) {
        static uint32_t lengths[ITEMS_MAX];
        uint64_t random = seed;
        uint32_t window = splitmix_between(&random, 1, seed % 2 == 0 ? 100000 : 50);
        uint32_t bins = splitmix_between(&random, 1, BINS_MAX);
        uint64_t left = (uint64_t)window * bins;
        uint32_t items = 0;
        left -= splitmix_between(&random, 0, 2) == 0 ? splitmix_between(&random, 0, window) : 0;
        while (left > 0 && items < ITEMS_MAX) {
            uint32_t largest = splitmix_between(&random, 0, 5) == 0 ? 2 * window : 1 + window / 8;
            uint32_t length = splitmix_between(&random, 1, largest);
            length = length < left ? length : (uint32_t)left;
            lengths[items++] = length;
            left -= length;
        }
        struct best_fit_input input = {lengths, items, bins, window};
        assert_literal(&input);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_small_mix_is_packed_by_the_rule),
        cmocka_unit_test(random_mixes_are_packed_by_the_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
