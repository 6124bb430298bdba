/* bins: the bins of a packing under a token bound, in a tournament tree.
 *
 * Every node names the bin with the least work below it and holds the fewest tokens below it. A
 * search needs no list of feasible bins: a subtree is out when its emptiest bin has no room or its
 * least work cannot win, and settled when its least-work bin has room. Typically that is the root;
 * only memory so tight that work and room disagree everywhere makes it visit more than a few paths.
 * Ties go to the lowest bin. Integers only; no allocation. */
#ifndef BALLAST_PACKER_BINS_H
#define BALLAST_PACKER_BINS_H

#include <stddef.h>
#include <stdint.h>

#define BIN_NONE UINT32_MAX

struct bin_node;

struct bins {
    struct bin_node *nodes; /* node i has the children 2i and 2i+1; 1 is the root */
    uint32_t leaves;        /* a power of two; bin b is the leaf leaves + b */
    uint64_t tokens_max;
    uint64_t *work;
    uint64_t *tokens;
};

/* Bytes of scratch that `count` bins need, 0 < count <= 2^31; alignment of uint64_t. */
size_t bins_bytes(uint32_t count);

/* Bins 0..count-1, empty. Borrows scratch and the totals work and tokens (`count` long each), which
 * it zeroes and keeps. tokens_max bounds the tokens of a bin, inclusive. */
void bins_init(struct bins *bins, void *scratch, uint32_t count, uint64_t tokens_max,
               uint64_t *work, uint64_t *tokens);

/* The least-work bin among those with room for `tokens` > 0 more, or BIN_NONE. */
uint32_t bins_least_work_with_room(const struct bins *bins, uint64_t tokens);

/* The least-work bin if it has that room, else the bin with the fewest tokens if that has, else
 * BIN_NONE. */
uint32_t bins_least_work_or_emptiest(const struct bins *bins, uint64_t tokens);

/* The sum of all work must fit 63 bits; the bin has the room. */
void bins_add(const struct bins *bins, uint32_t bin, uint64_t work, uint64_t tokens);

#endif
