/* greedy: documents to micro-batches of equal predicted work under a token bound.
 *
 * WLB-LLM's Algorithm 1 (section 4.2, the packing loop): documents by descending length
 * go one by one to the bin with the least predicted work. Settled: a bin may be filled to exactly
 * the bound (`<=`), ties go to the lowest bin, leftovers of earlier steps take part in the
 * descending order. Two searches:
 *   PACK_SEARCH_EXACT  the least-work bin among all bins that have room (default);
 *   PACK_SEARCH_PAPER  as printed: the least-work bin, else the bin with the fewest tokens.
 * Either leaves a document over only if no bin can hold it at its turn.
 * O(D log N) typically: a radix sort, and a tournament tree over the bins (bins.h) that a search
 * prunes on work and on tokens.
 * Integers only; no allocation; the result depends on nothing but the arguments. */
#ifndef BALLAST_PACKER_GREEDY_H
#define BALLAST_PACKER_GREEDY_H

#include <stddef.h>
#include <stdint.h>

#define PACK_LEFT_OVER UINT32_MAX

enum pack_search { PACK_SEARCH_EXACT = 0, PACK_SEARCH_PAPER = 1 };

struct pack_input {
    const uint32_t *lengths; /* tokens, one per item, 0 < length */
    const uint64_t *works;   /* predicted work, one per item; the sum must fit 63 bits */
    uint32_t items;
    uint32_t bins;       /* 0 < bins <= 2^31 */
    uint64_t tokens_max; /* bound on the tokens of one bin, inclusive */
    enum pack_search search;
};

/* Bytes of scratch that pack_greedy needs; alignment of max_align_t. */
size_t pack_greedy_bytes(uint32_t items, uint32_t bins);

/* Assigns every item: bin_of[i] is its bin or PACK_LEFT_OVER. order[0..items) receives the items
 * by (length descending, index ascending), the order in which they were placed. bin_work and
 * bin_tokens (each `bins` long) receive the bins' totals. All arrays are the caller's. */
void pack_greedy(const struct pack_input *input, void *scratch, uint32_t *bin_of, uint32_t *order,
                 uint64_t *bin_work, uint64_t *bin_tokens);

#endif
