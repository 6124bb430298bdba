/* fragment: what a context-parallel rank computes.
 *
 * A fragment is a run of query rows [start, start + length) of one document part of a packed
 * sequence; its rows see that part's keys [0, start + length), causal, bottom-right aligned.
 * Everything a kernel needs (cu_seqlens, position ids, K gather indices) follows from the list. */
#ifndef BALLAST_SHARDING_FRAGMENT_H
#define BALLAST_SHARDING_FRAGMENT_H

#include <stdint.h>

struct fragment {
    uint32_t document; /* index of the part in its packed sequence */
    uint32_t start;    /* first query row, counted from the start of the part */
    uint32_t length;   /* rows, never 0 */
};

/* Exact causal query-key pairs of a fragment, one head: length * (start + end + 1) / 2. */
static inline uint64_t fragment_pairs(struct fragment fragment) {
    uint64_t end = (uint64_t)fragment.start + fragment.length;
    return (uint64_t)fragment.length * (fragment.start + end + 1) / 2;
}

/* Pairs of a whole document: l(l+1)/2. */
static inline uint64_t document_pairs(uint32_t length) {
    return (uint64_t)length * ((uint64_t)length + 1) / 2;
}

#endif
