/* fixed: places and cuts first, then gives the bins their places by work. */
#include "packer/fixed.h"

#include "packer/bins.h"
#include "packer/order.h"

#include <assert.h>
#include <string.h>

struct fixed {
    const struct fixed_input *input;
    struct bins bins;
    uint64_t *work; /* of the bins as filled */
    uint64_t *tokens;
    struct fixed_piece *placed; /* in the order of placing, in bins as filled */
    uint32_t *order;
    uint32_t *ranks;  /* bins as filled, by work */
    uint32_t *starts; /* where the pieces of a bin as filled go */
    void *rest;       /* for the sort, then for the tree of the bins */
    uint32_t pieces;
};

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

size_t pack_fixed_bytes(uint32_t items, uint32_t bins) {
    return 2 * sizeof(uint64_t) * (size_t)bins +
           sizeof(struct fixed_piece) * pack_fixed_pieces_max(items, bins) +
           larger(order_by_length_bytes(items), bins_bytes(bins)) +
           sizeof(uint32_t) * ((size_t)items + 2 * (size_t)bins);
}

static struct fixed fixed_of(const struct fixed_input *input, void *scratch) {
    struct fixed fixed = {.input = input, .work = scratch};
    size_t rest = larger(order_by_length_bytes(input->items), bins_bytes(input->bins));
    fixed.tokens = fixed.work + input->bins;
    fixed.rest = fixed.tokens + input->bins;
    fixed.placed = (struct fixed_piece *)((unsigned char *)fixed.rest + rest);
    fixed.order = (uint32_t *)(fixed.placed + pack_fixed_pieces_max(input->items, input->bins));
    fixed.ranks = fixed.order + input->items;
    fixed.starts = fixed.ranks + input->bins;
    return fixed;
}

static void fixed_place(struct fixed *fixed, uint32_t item, uint32_t length, uint32_t bin) {
    fixed->placed[fixed->pieces++] = (struct fixed_piece){
        .item = item, .length = length, .bin = bin};
    bins_add(&fixed->bins, bin, fixed->input->work(fixed->input->model, length), length);
}

static void fixed_cut(struct fixed *fixed, uint32_t item) {
    uint32_t left = fixed->input->lengths[item];
    while (left > 0) {
        uint32_t bin = bins_least_work_with_room(&fixed->bins, 1);
        assert(bin != BIN_NONE);
        uint64_t room = fixed->input->window - fixed->tokens[bin];
        uint32_t length = left < room ? left : (uint32_t)room;
        fixed_place(fixed, item, length, bin);
        left -= length;
    }
}

static void fixed_fill(struct fixed *fixed) {
    const struct fixed_input *input = fixed->input;
    order_by_length(input->lengths, input->items, fixed->rest, fixed->order);
    bins_init(&fixed->bins, fixed->rest, input->bins, input->window, fixed->work, fixed->tokens);
    for (uint32_t i = 0; i < input->items; i++) {
        uint32_t item = fixed->order[i];
        uint32_t length = input->lengths[item];
        assert(length > 0);
        uint32_t bin = bins_least_work_with_room(&fixed->bins, length);
        if (bin != BIN_NONE) {
            fixed_place(fixed, item, length, bin);
        } else {
            fixed_cut(fixed, item);
        }
    }
}

/* The pieces by ranked bin; within one, in the order of placing. */
static void fixed_deal(struct fixed *fixed, struct fixed_piece *pieces) {
    uint32_t bins = fixed->input->bins;
    memset(fixed->starts, 0, bins * sizeof *fixed->starts);
    for (uint32_t i = 0; i < fixed->pieces; i++) {
        fixed->starts[fixed->placed[i].bin]++;
    }
    uint32_t start = 0;
    for (uint32_t rank = 0; rank < bins; rank++) {
        uint32_t count = fixed->starts[fixed->ranks[rank]];
        fixed->starts[fixed->ranks[rank]] = start;
        start += count;
    }
    for (uint32_t i = 0; i < fixed->pieces; i++) {
        pieces[fixed->starts[fixed->placed[i].bin]++] = fixed->placed[i];
    }
}

uint32_t pack_fixed(const struct fixed_input *input, void *scratch, struct fixed_piece *pieces,
                    uint64_t *bin_work, uint64_t *bin_tokens) {
    struct fixed fixed = fixed_of(input, scratch);
    fixed_fill(&fixed);
    for (uint32_t bin = 0; bin < input->bins; bin++) {
        fixed.ranks[bin] = bin;
    }
    order_by_work(fixed.work, fixed.ranks, input->bins);
    fixed_deal(&fixed, pieces);
    uint32_t *taken = fixed.order;
    memset(taken, 0, input->items * sizeof *taken);
    for (uint32_t rank = 0, i = 0; rank < input->bins; rank++) {
        bin_work[rank] = fixed.work[fixed.ranks[rank]];
        bin_tokens[rank] = fixed.tokens[fixed.ranks[rank]];
        for (; i < fixed.starts[fixed.ranks[rank]]; i++) {
            pieces[i].bin = rank;
            pieces[i].offset = taken[pieces[i].item];
            taken[pieces[i].item] += pieces[i].length;
        }
    }
    return fixed.pieces;
}
