/* bins: a winner tree by (work, bin) that carries the fewest tokens along.
 *
 * Leaves beyond the last bin have more work and tokens than any bin. Left children hold lower bins,
 * so that among equals the left one wins. */
#include "packer/bins.h"

#include <assert.h>
#include <stdbool.h>

/* Nodes waiting in a search: one per level, and the path's own; 2^31 bins have 32 levels. */
#define SEARCH_PENDING_MAX 33u

struct bin_node {
    uint64_t work;   /* least below */
    uint64_t tokens; /* fewest below, of any bin */
    uint32_t bin;    /* the one with the least work */
};

static uint32_t bins_leaves(uint32_t count) {
    assert(0 < count && count <= UINT32_C(1) << 31);
    uint32_t leaves = 1;
    while (leaves < count) {
        leaves *= 2;
    }
    return leaves;
}

size_t bins_bytes(uint32_t count) {
    return 2 * sizeof(struct bin_node) * (size_t)bins_leaves(count);
}

void bins_init(struct bins *bins, void *scratch, uint32_t count, uint64_t tokens_max,
               uint64_t *work, uint64_t *tokens) {
    uint32_t leaves = bins_leaves(count);
    *bins = (struct bins){scratch, leaves, tokens_max, work, tokens};
    for (uint32_t bin = 0; bin < leaves; bin++) {
        uint64_t total = bin < count ? 0 : UINT64_MAX;
        bins->nodes[(size_t)leaves + bin] = (struct bin_node){total, total, bin};
        if (bin < count) {
            work[bin] = 0;
            tokens[bin] = 0;
        }
    }
    for (size_t at = leaves - 1; at > 0; at--) {
        bins->nodes[at] = bins->nodes[2 * at];
    }
}

/* Depth first, the child with the better least-work bin first. A leaf never branches: either it has
 * no room or it is an answer. */
static uint32_t bins_search(const struct bins *bins, uint64_t filled_max) {
    size_t pending[SEARCH_PENDING_MAX] = {1};
    uint32_t count = 1;
    uint32_t best = BIN_NONE;
    uint64_t best_work = UINT64_MAX;
    while (count > 0) {
        size_t at = pending[--count];
        const struct bin_node *node = &bins->nodes[at];
        if (node->tokens > filled_max || node->work > best_work ||
            (node->work == best_work && node->bin > best)) {
            continue;
        }
        if (bins->tokens[node->bin] <= filled_max) {
            best = node->bin;
            best_work = node->work;
            continue;
        }
        size_t first = 2 * at + (bins->nodes[2 * at + 1].work < bins->nodes[2 * at].work);
        pending[count++] = first ^ 1;
        pending[count++] = first;
    }
    return best;
}

uint32_t bins_least_work_with_room(const struct bins *bins, uint64_t tokens) {
    if (tokens > bins->tokens_max) {
        return BIN_NONE;
    }
    uint64_t filled_max = bins->tokens_max - tokens;
    uint32_t bin = bins->nodes[1].bin;
    return bins->tokens[bin] <= filled_max ? bin : bins_search(bins, filled_max);
}

uint32_t bins_least_work_or_emptiest(const struct bins *bins, uint64_t tokens) {
    const struct bin_node *nodes = bins->nodes;
    if (tokens > bins->tokens_max || nodes[1].tokens > bins->tokens_max - tokens) {
        return BIN_NONE;
    }
    if (bins->tokens[nodes[1].bin] <= bins->tokens_max - tokens) {
        return nodes[1].bin;
    }
    size_t at = 1;
    while (at < bins->leaves) {
        at = 2 * at + (nodes[2 * at].tokens != nodes[at].tokens);
    }
    return nodes[at].bin;
}

/* Who wins is a coin toss, which a branch would mostly guess wrong: the winner is selected by a
 * mask. A node on the right (odd) also loses to an equal sibling. */
void bins_add(const struct bins *bins, uint32_t bin, uint64_t work, uint64_t tokens) {
    work = bins->work[bin] += work;
    tokens = bins->tokens[bin] += tokens;
    size_t at = (size_t)bins->leaves + bin;
    bins->nodes[at].work = work;
    bins->nodes[at].tokens = tokens;
    for (; at > 1; at /= 2) {
        const struct bin_node *sibling = &bins->nodes[at ^ 1];
        uint64_t beaten = -(uint64_t)(sibling->work < work + (at & 1));
        work ^= (work ^ sibling->work) & beaten;
        bin ^= (bin ^ sibling->bin) & (uint32_t)beaten;
        tokens = sibling->tokens < tokens ? sibling->tokens : tokens;
        bins->nodes[at / 2] = (struct bin_node){work, tokens, bin};
    }
}
