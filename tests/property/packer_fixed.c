/* Fixed windows against a literal loop, in all small worlds and in random ones. */
#include "packer/fixed.h"

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

#define ITEMS_MAX 400u
#define BINS_MAX  64u

struct packing {
    struct fixed_piece pieces[ITEMS_MAX + BINS_MAX];
    uint32_t count;
    uint64_t work[BINS_MAX];
    uint64_t tokens[BINS_MAX];
};

static uint64_t price(const void *model, uint32_t length) {
    return (uint64_t)length * (length + *(const uint64_t *)model);
}

/* Scratch is exactly as large as the contract asks for: a sanitizer sees one byte more. */
static void pack(const struct fixed_input *input, struct packing *out) {
    void *scratch = malloc(pack_fixed_bytes(input->items, input->bins));
    assert_non_null(scratch);
    out->count = pack_fixed(input, scratch, out->pieces, out->work, out->tokens);
    free(scratch);
}

/* The reference: bins as filled. */
struct literal {
    struct packing packing;
    uint64_t work[BINS_MAX];
    uint64_t tokens[BINS_MAX];
};

static uint32_t literal_bin(const struct fixed_input *input, const struct literal *literal,
                            uint32_t tokens) {
    uint32_t least = UINT32_MAX;
    for (uint32_t bin = 0; bin < input->bins; bin++) {
        if (literal->tokens[bin] + tokens <= input->window &&
            (least == UINT32_MAX || literal->work[bin] < literal->work[least])) {
            least = bin;
        }
    }
    return least;
}

static void literal_place(const struct fixed_input *input, struct literal *literal, uint32_t item,
                          uint32_t length, uint32_t bin) {
    literal->packing.pieces[literal->packing.count++] = (struct fixed_piece){item, 0, length, bin};
    literal->work[bin] += input->work(input->model, length);
    literal->tokens[bin] += length;
}

static void literal_fill(const struct fixed_input *input, struct literal *literal) {
    bool placed[ITEMS_MAX] = {false};
    for (uint32_t turn = 0; turn < input->items; turn++) {
        uint32_t next = UINT32_MAX;
        for (uint32_t i = 0; i < input->items; i++) {
            if (!placed[i] && (next == UINT32_MAX || input->lengths[i] > input->lengths[next])) {
                next = i;
            }
        }
        placed[next] = true;
        uint32_t left = input->lengths[next];
        uint32_t bin = literal_bin(input, literal, left);
        while (left > 0) {
            bin = bin != UINT32_MAX ? bin : literal_bin(input, literal, 1);
            uint32_t room = input->window - (uint32_t)literal->tokens[bin];
            uint32_t length = left < room ? left : room;
            literal_place(input, literal, next, length, bin);
            left -= length;
            bin = UINT32_MAX;
        }
    }
}

static void literal_pack(const struct fixed_input *input, struct packing *out) {
    static struct literal literal;
    bool ranked[BINS_MAX] = {false};
    uint32_t taken[ITEMS_MAX] = {0};
    memset(&literal, 0, sizeof literal);
    literal_fill(input, &literal);
    out->count = 0;
    for (uint32_t rank = 0; rank < input->bins; rank++) {
        uint32_t heaviest = UINT32_MAX;
        for (uint32_t bin = 0; bin < input->bins; bin++) {
            if (!ranked[bin] &&
                (heaviest == UINT32_MAX || literal.work[bin] > literal.work[heaviest])) {
                heaviest = bin;
            }
        }
        ranked[heaviest] = true;
        out->work[rank] = literal.work[heaviest];
        out->tokens[rank] = literal.tokens[heaviest];
        for (uint32_t i = 0; i < literal.packing.count; i++) {
            struct fixed_piece piece = literal.packing.pieces[i];
            if (piece.bin == heaviest) {
                piece.bin = rank;
                piece.offset = taken[piece.item];
                taken[piece.item] += piece.length;
                out->pieces[out->count++] = piece;
            }
        }
    }
}

/* What must hold whatever the reference says. */
static const char *packing_fault(const struct fixed_input *input, const struct packing *packing) {
    uint32_t taken[ITEMS_MAX] = {0};
    uint64_t work[BINS_MAX] = {0};
    uint64_t tokens[BINS_MAX] = {0};
    if (packing->count > pack_fixed_pieces_max(input->items, input->bins)) {
        return "too many pieces";
    }
    for (uint32_t i = 0; i < packing->count; i++) {
        struct fixed_piece piece = packing->pieces[i];
        if (piece.item >= input->items || piece.bin >= input->bins || piece.length == 0 ||
            piece.offset != taken[piece.item]) {
            return "no such piece";
        }
        taken[piece.item] += piece.length;
        work[piece.bin] += input->work(input->model, piece.length);
        tokens[piece.bin] += piece.length;
    }
    for (uint32_t i = 0; i < input->items; i++) {
        if (taken[i] != input->lengths[i]) {
            return "pieces do not make the document";
        }
    }
    for (uint32_t bin = 0; bin < input->bins; bin++) {
        if (tokens[bin] > input->window || work[bin] != packing->work[bin] ||
            tokens[bin] != packing->tokens[bin]) {
            return "totals are wrong";
        }
        if (bin > 0 && work[bin] > work[bin - 1]) {
            return "bins do not stand by work";
        }
    }
    return NULL;
}

static void check_world(const struct fixed_input *input, uint64_t seed) {
    static struct packing packing;
    static struct packing literal;
    pack(input, &packing);
    literal_pack(input, &literal);
    const char *fault = packing_fault(input, &packing);
    bool same = packing.count == literal.count &&
                memcmp(packing.pieces, literal.pieces, packing.count * sizeof packing.pieces[0]) ==
                    0 &&
                memcmp(packing.work, literal.work, input->bins * sizeof(uint64_t)) == 0 &&
                memcmp(packing.tokens, literal.tokens, input->bins * sizeof(uint64_t)) == 0;
    if (fault != NULL || !same) {
        print_error("%u bins of %u:", input->bins, input->window);
        for (uint32_t i = 0; i < input->items && i < 32; i++) {
            print_error(" %u", input->lengths[i]);
        }
        fail_msg("; seed %" PRIu64 ": %s", seed, fault != NULL ? fault : "not as the reference");
    }
}

static void fixed_equals_the_literal_loop_in_all_small_worlds(void **state) {
    (void)state;
    const uint64_t linear = 3;
    for (uint32_t world = 0; world < 6 * 6 * 6 * 6 * 6; world++) {
        uint32_t lengths[5];
        uint32_t tokens = 0;
        uint32_t rest = world;
        uint32_t items = 0;
        for (uint32_t i = 0; i < 5; i++) {
            if (rest % 6 > 0) {
                lengths[items++] = rest % 6;
                tokens += rest % 6;
            }
            rest /= 6;
        }
        for (uint32_t bins = 1; bins <= 4; bins++) {
            uint32_t full = tokens > 0 ? (tokens + bins - 1) / bins : 1;
            for (uint32_t window = full; window <= full + 2; window++) {
                struct fixed_input input = {lengths, items, bins, window, price, &linear};
                check_world(&input, 0);
            }
        }
    }
}

static void fixed_equals_the_literal_loop_in_large_random_worlds(void **state) {
    (void)state;
    static uint32_t lengths[ITEMS_MAX];
    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t random = seed;
        uint64_t linear = seed % 3 ? 24576 : 0;
        uint32_t items = splitmix_between(&random, 1, ITEMS_MAX);
        uint32_t bins = splitmix_between(&random, 1, BINS_MAX);
        uint64_t tokens = 0;
        for (uint32_t i = 0; i < items; i++) {
            lengths[i] = splitmix_between(&random, 1, seed % 4 ? 65536 : 9);
            tokens += lengths[i];
        }
        uint32_t window = (uint32_t)((tokens + bins - 1) / bins);
        window += seed % 5 ? 0 : window / 10;
        struct fixed_input input = {lengths, items, bins, window, price, &linear};
        check_world(&input, seed);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixed_equals_the_literal_loop_in_all_small_worlds),
        cmocka_unit_test(fixed_equals_the_literal_loop_in_large_random_worlds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
