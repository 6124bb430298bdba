/* fixed: documents of several global batches to fixed windows of equal predicted work.
 *
 * The fixed-length greedy of WLB-LLM (section 3.3, "Fixed-Len Greedy" in table 2): documents by
 * descending length go to the bin with the least predicted work among those with room. Settled,
 * since the paper does not say: ties go to the lowest bin; a document that no bin can hold whole is
 * cut, at its turn, into the remaining space of the bins with the least work; when K global batches
 * are packed at once, bins are ranked by work and dealt N at a time, so that bins of one global
 * batch are alike. A document that is cut appears in ascending order, each piece a document of its
 * own to attention.
 * O(D log(N K)); integers only; no allocation; the result depends on nothing but the arguments. */
#ifndef BALLAST_PACKER_FIXED_H
#define BALLAST_PACKER_FIXED_H

#include <stddef.h>
#include <stdint.h>

struct fixed_input {
    const uint32_t *lengths; /* tokens, one per item, 0 < length; at most bins * window in all */
    uint32_t items;
    uint32_t bins;   /* N micro-batches times K global batches, 0 < bins <= 2^31 */
    uint32_t window; /* tokens that a bin holds, > 0 */
    uint64_t (*work)(const void *model, uint32_t length); /* the sum must fit 63 bits */
    const void *model;
};

struct fixed_piece {
    uint32_t item;
    uint32_t offset; /* tokens of the item before this piece */
    uint32_t length;
    uint32_t bin;
};

/* Most pieces that pack_fixed makes: all but the last of an item fill a bin. */
static inline size_t pack_fixed_pieces_max(uint32_t items, uint32_t bins) {
    return (size_t)items + bins;
}

/* Bytes of scratch that pack_fixed needs; alignment of max_align_t. */
size_t pack_fixed_bytes(uint32_t items, uint32_t bins);

/* Fills pieces (pack_fixed_pieces_max of them) by ascending bin, longest items first, and the
 * totals of the bins (`bins` long each); returns the number of pieces. Bins stand by descending
 * work: bins g * N to g * N + N - 1 are global batch g. The arrays are the caller's. */
uint32_t pack_fixed(const struct fixed_input *input, void *scratch, struct fixed_piece *pieces,
                    uint64_t *bin_work, uint64_t *bin_tokens);

#endif
