/* greedy: the packing loop of WLB-LLM's Algorithm 1 on a tournament tree.
 *
 * Node i has the children 2i and 2i+1, bin b is the leaf bins + b, node 1 is the root. A node names
 * the winners below it, by (work, bin) and by (tokens, bin); the totals they are judged by stay in
 * the caller's arrays. The exact search needs no list of feasible bins: a subtree is out when its
 * lightest bin has no room or its least work cannot win, and settled when its least-work bin has
 * room. Only memory so tight that work and room disagree everywhere makes it visit more than a few
 * paths. */
#include "packer/greedy.h"

#include <assert.h>
#include <stdbool.h>

/* Nodes waiting in a search: one per level, and the path's own; 2^32 bins have 33 levels. */
#define SEARCH_PENDING_MAX 34u

#define RADIX_BITS 8u
#define RADIX_SIZE (1u << RADIX_BITS)

struct node {
    uint32_t least_work;
    uint32_t least_tokens;
};

struct greedy {
    const struct pack_input *input;
    struct node *nodes;
    uint64_t *work;
    uint64_t *tokens;
};

size_t pack_greedy_bytes(uint32_t items, uint32_t bins) {
    return 2 * sizeof(uint64_t) * (size_t)items + 2 * sizeof(struct node) * (size_t)bins;
}

/* One stable counting pass over the digit at `shift`; false, and nothing moved, if all share it. */
static bool greedy_sort_pass(const uint64_t *keys, uint32_t items, unsigned shift, uint64_t *out) {
    uint32_t starts[RADIX_SIZE] = {0};
    for (uint32_t i = 0; i < items; i++) {
        starts[keys[i] >> shift & (RADIX_SIZE - 1)]++;
    }
    if (starts[keys[0] >> shift & (RADIX_SIZE - 1)] == items) {
        return false;
    }
    uint32_t start = 0;
    for (uint32_t digit = 0; digit < RADIX_SIZE; digit++) {
        uint32_t count = starts[digit];
        starts[digit] = start;
        start += count;
    }
    for (uint32_t i = 0; i < items; i++) {
        out[starts[keys[i] >> shift & (RADIX_SIZE - 1)]++] = keys[i];
    }
    return true;
}

/* Keys are (complement of the length, index): ascending keys are descending lengths, and as they
 * start in index order, stable passes over the upper half are enough. */
static void greedy_sort(const struct pack_input *input, uint64_t *keys, uint64_t *spare,
                        uint32_t *order) {
    if (input->items == 0) {
        return;
    }
    for (uint32_t i = 0; i < input->items; i++) {
        assert(input->lengths[i] > 0);
        keys[i] = (uint64_t)(UINT32_MAX - input->lengths[i]) << 32 | i;
    }
    for (unsigned shift = 32; shift < 64; shift += RADIX_BITS) {
        if (greedy_sort_pass(keys, input->items, shift, spare)) {
            uint64_t *sorted = spare;
            spare = keys;
            keys = sorted;
        }
    }
    for (uint32_t i = 0; i < input->items; i++) {
        order[i] = (uint32_t)(keys[i] & UINT32_MAX);
    }
}

static bool greedy_before(const uint64_t *totals, uint32_t a, uint32_t b) {
    return totals[a] < totals[b] || (totals[a] == totals[b] && a < b);
}

static bool greedy_has_room(const struct greedy *greedy, uint32_t bin, uint32_t length) {
    return greedy->input->tokens_max - greedy->tokens[bin] >= length;
}

static void greedy_play(const struct greedy *greedy, size_t at) {
    struct node left = greedy->nodes[2 * at];
    struct node right = greedy->nodes[2 * at + 1];
    greedy->nodes[at] = (struct node){
        .least_work = greedy_before(greedy->work, left.least_work, right.least_work)
                          ? left.least_work
                          : right.least_work,
        .least_tokens = greedy_before(greedy->tokens, left.least_tokens, right.least_tokens)
                            ? left.least_tokens
                            : right.least_tokens,
    };
}

static void greedy_empty_bins(const struct greedy *greedy) {
    size_t bins = greedy->input->bins;
    for (uint32_t bin = 0; bin < bins; bin++) {
        greedy->work[bin] = 0;
        greedy->tokens[bin] = 0;
        greedy->nodes[bins + bin] = (struct node){.least_work = bin, .least_tokens = bin};
    }
    for (size_t at = bins - 1; at > 0; at--) {
        greedy_play(greedy, at);
    }
}

static uint32_t greedy_search_paper(const struct greedy *greedy, uint32_t length) {
    struct node root = greedy->nodes[1];
    if (greedy_has_room(greedy, root.least_work, length)) {
        return root.least_work;
    }
    if (greedy_has_room(greedy, root.least_tokens, length)) {
        return root.least_tokens;
    }
    return PACK_LEFT_OVER;
}

/* Depth first, the child with the better least-work bin first. A leaf never branches: its two
 * winners are the same bin, so either it has no room or it is an answer. */
static uint32_t greedy_search_exact(const struct greedy *greedy, uint32_t length) {
    size_t pending[SEARCH_PENDING_MAX] = {1};
    uint32_t count = 1;
    uint32_t best = PACK_LEFT_OVER;
    while (count > 0) {
        size_t at = pending[--count];
        struct node node = greedy->nodes[at];
        if (!greedy_has_room(greedy, node.least_tokens, length) ||
            (best != PACK_LEFT_OVER && !greedy_before(greedy->work, node.least_work, best))) {
            continue;
        }
        if (greedy_has_room(greedy, node.least_work, length)) {
            best = node.least_work;
            continue;
        }
        bool right_first = greedy_before(greedy->work, greedy->nodes[2 * at + 1].least_work,
                                         greedy->nodes[2 * at].least_work);
        pending[count++] = right_first ? 2 * at : 2 * at + 1;
        pending[count++] = right_first ? 2 * at + 1 : 2 * at;
    }
    return best;
}

static uint32_t greedy_search(const struct greedy *greedy, uint32_t length) {
    return greedy->input->search == PACK_SEARCH_PAPER ? greedy_search_paper(greedy, length)
                                                      : greedy_search_exact(greedy, length);
}

static void greedy_place(const struct greedy *greedy, uint32_t item, uint32_t bin) {
    greedy->work[bin] += greedy->input->works[item];
    greedy->tokens[bin] += greedy->input->lengths[item];
    for (size_t at = ((size_t)greedy->input->bins + bin) / 2; at > 0; at /= 2) {
        greedy_play(greedy, at);
    }
}

void pack_greedy(const struct pack_input *input, void *scratch, uint32_t *bin_of, uint32_t *order,
                 uint64_t *bin_work, uint64_t *bin_tokens) {
    assert(input->bins > 0);
    uint64_t *keys = scratch;
    uint64_t *spare = keys + input->items;
    struct greedy greedy = {
        .input = input,
        .nodes = (struct node *)(spare + input->items),
        .work = bin_work,
        .tokens = bin_tokens,
    };
    greedy_sort(input, keys, spare, order);
    greedy_empty_bins(&greedy);
    for (uint32_t i = 0; i < input->items; i++) {
        uint32_t item = order[i];
        uint32_t bin = greedy_search(&greedy, input->lengths[item]);
        bin_of[item] = bin;
        if (bin != PACK_LEFT_OVER) {
            greedy_place(&greedy, item, bin);
        }
    }
}
