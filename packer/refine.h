/* refine: levels a packing that is done, by trades between its heaviest and its lightest bins.
 *
 * Each round takes the heaviest bin and improves it by the best trade (exchange.h) with one of the
 * lightest bins, until its work is within a gap of the bound that no packing can beat:
 *     max(W_1, mean, W_bins + W_(bins+1))      W_k: the k-th largest work of a document
 * (one bin holds the largest document; some bin holds at least the mean; of bins + 1 documents two
 * share a bin). The heaviest bin never grows, the token bound holds throughout, leftovers stay left
 * over. Ties go to the lower bin among heavy ones, to the higher among light ones, then to the
 * trade found first. With probes left and no gap allowed it ends at the bound, or where no trade of
 * the heaviest bin helps. Integers only; no allocation; the result depends on nothing but the
 * arguments. */
#ifndef BALLAST_PACKER_REFINE_H
#define BALLAST_PACKER_REFINE_H

#include "packer/greedy.h"

#include <stddef.h>
#include <stdint.h>

struct refine_options {
    uint32_t gap_ppm;    /* enough: max <= bound * (1 + gap_ppm / 10^6) */
    uint64_t probes_max; /* limit on the searches (exchange.h); each takes some 15 ns */
};

struct refine_report {
    uint64_t max;    /* work of the heaviest bin */
    uint64_t bound;  /* of what was placed; rounded up */
    uint32_t rounds; /* trades made */
};

/* Bytes of scratch that pack_refine needs; alignment of max_align_t. */
size_t pack_refine_bytes(uint32_t items, uint32_t bins);

/* Takes a packing as pack_greedy leaves it, within the bound, and updates bin_of, bin_work and
 * bin_tokens. order: all items; the nearer to descending work, the faster. */
struct refine_report pack_refine(const struct pack_input *input,
                                 const struct refine_options *options, void *scratch,
                                 uint32_t *bin_of, const uint32_t *order, uint64_t *bin_work,
                                 uint64_t *bin_tokens);

#endif
