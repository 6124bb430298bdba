/* pools: which packed sequences share their attention, and where a step runs them.
 *
 * Libra's sequence placement (Algorithm 1, VRSP): sequences by descending work go one by one to the
 * pool with the least load that has a place left, so that every pool has exactly pool_size of them.
 * The paper's yardstick deals them in a zigzag instead. Either can be levelled by swaps, and pools
 * are given places in the step in the paper's order or in a snake. Ties: lower sequence first,
 * lower pool first. The work of a sequence is the sum over its documents of length squared.
 * Integers only; no allocation; the result depends on nothing but the arguments. */
#ifndef BALLAST_PACKER_POOLS_H
#define BALLAST_PACKER_POOLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pools_input {
    const uint64_t *works; /* one per sequence; the sum must fit 63 bits */
    uint32_t sequences;    /* of the global batch, > 0 */
    uint32_t pool_size;    /* P: divides sequences */
};

/* Bytes of scratch that any of these needs; alignment of uint32_t. */
size_t pools_bytes(uint32_t sequences);

/* A rule that fills the pools: pool k gets members[k * P] to members[k * P + P - 1], in the order
 * in which they were placed, and the load loads[k]. members is `sequences` long, loads as long as
 * there are pools. */
typedef void pools_rule(const struct pools_input *input, void *scratch, uint32_t *members,
                        uint64_t *loads);

/* Algorithm 1. O(sequences * log(sequences)). */
pools_rule pools_vrsp;

/* Descending work, dealt to pools 0, 1, ..., K-1, K-1, ..., 1, 0, 0, 1, ... */
pools_rule pools_zigzag;

/* Levels what a rule left: again and again the heaviest pool makes the swap, one sequence for one
 * of another pool, that leaves the lower maximum of the two, as long as there is one below its load
 * and at most swaps_max times. Of equal swaps the first: by the other pool, then its place in the
 * heaviest pool, then in the other. The largest load never grows. Returns the swaps made.
 * O(sequences * P) a swap. */
uint32_t pools_swap(const struct pools_input *input, uint32_t swaps_max, uint32_t *members,
                    uint64_t *loads);

/* The largest load is at least this, whatever the rule: the mean, rounded up, and what a pool has
 * with the heaviest sequence and the P - 1 lightest ones. */
uint64_t pools_bound(const struct pools_input *input, void *scratch);

/* Places in the step: positions[s] = ga * replicas + replica of sequence s. Pools fill the
 * replicas / P slots of one gradient-accumulation index after the other, replica slot * P + i runs
 * member i. Paper order is by pool number; a snake takes them by descending load and reverses
 * every other index, so that replicas that only meet at the optimizer step get level sums. P
 * divides replicas, replicas divides sequences. */
void pools_emit(const struct pools_input *input, uint32_t replicas, bool snake,
                const uint32_t *members, const uint64_t *loads, void *scratch, uint32_t *positions);

#endif
