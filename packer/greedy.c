/* greedy: the packing loop of WLB-LLM's Algorithm 1. */
#include "packer/greedy.h"

#include "packer/bins.h"
#include "packer/order.h"

#include <assert.h>

#define PREFETCH_TURNS 16u

_Static_assert(PACK_LEFT_OVER == BIN_NONE, "a search that finds no bin leaves the document over");

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* The sort is over when the bins begin: they share the scratch. */
size_t pack_greedy_bytes(uint32_t items, uint32_t bins) {
    return larger(order_by_length_bytes(items), bins_bytes(bins));
}

/* Descending order visits the arrays at random: asks for an item's places a few turns ahead. */
static void greedy_prefetch(const struct pack_input *input, uint32_t item, uint32_t *bin_of) {
    __builtin_prefetch(&input->lengths[item]);
    __builtin_prefetch(&input->works[item]);
    __builtin_prefetch(&bin_of[item], 1);
}

void pack_greedy(const struct pack_input *input, void *scratch, uint32_t *bin_of, uint32_t *order,
                 uint64_t *bin_work, uint64_t *bin_tokens) {
    struct bins bins;
    order_by_length(input->lengths, input->items, scratch, order);
    bins_init(&bins, scratch, input->bins, input->tokens_max, bin_work, bin_tokens);
    for (uint32_t i = 0; i < input->items; i++) {
        if (i + PREFETCH_TURNS < input->items) {
            greedy_prefetch(input, order[i + PREFETCH_TURNS], bin_of);
        }
        uint32_t item = order[i];
        uint32_t length = input->lengths[item];
        assert(length > 0);
        uint32_t bin = input->search == PACK_SEARCH_PAPER
                           ? bins_least_work_or_emptiest(&bins, length)
                           : bins_least_work_with_room(&bins, length);
        bin_of[item] = bin;
        if (bin != PACK_LEFT_OVER) {
            bins_add(&bins, bin, input->works[item], length);
        }
    }
}
