/* wait: what the attention of a context-parallel rank waits for its exchange with the group.
 *
 * Bytes are those of gpu_attn/ballast_exchange.h when nothing is kept between the passes: K and V
 * come forward and again backward in bf16, their gradients go back as floats; Ulysses brings Q, K
 * and V in and O and its log-sum-exp out, backward Q, O, dO and statistics in, dQ and the gradients
 * of K and V out. A collective takes `alpha` and then its bytes at the link's rate, each way; a
 * rank's price counts what it receives of keys, what it sends of gradients.
 *
 * Hidden is what a rank can compute meanwhile with the keys that it owns: rows of its documents as
 * if they were whole documents of as many rows, without launches. Forward that part comes first,
 * while the keys of others are on their way. Backward it is parted: some of it while keys come, the
 * rest while the gradients of others' keys go. What of a collective goes beyond it is exposed.
 * Ulysses hides nothing: no tile can start before all rows of its heads are there, none can leave
 * before.
 *
 * An all-gather is the same for every layout of K and V and every rank, and left out of all prices;
 * Ulysses is then priced at what it waits beyond that. Pure, integers only, no allocation. */
#ifndef BALLAST_SHARDING_WAIT_H
#define BALLAST_SHARDING_WAIT_H

#include "sharding/cost.h"

#include <stdbool.h>

struct wait_link {
    uint64_t bytes_per_us; /* that a rank receives and sends at a time; 0: no exchange is priced */
    uint64_t alpha_ps;     /* of one collective, whatever its bytes */
    uint32_t head_dim;
    bool needed_only; /* K and V of the rows that ranks see; else all are gathered */
};

/* Exposed time of a rank with these fragments, in row order, one layer, forward + backward; 0 for
 * one that needs no keys of others. `model` is that of the fragments' heads. */
uint64_t wait_keys_ps(const struct wait_link *link, const struct tile_model *model,
                      const struct fragment *fragments, uint32_t count);

/* The same with Ulysses, for each of `cp` ranks of `rows` rows, pad included. `model` is that of
 * all heads of a tensor-parallel rank, which cp divides (layout_heads_divide). */
uint64_t wait_heads_ps(const struct wait_link *link, const struct tile_model *model, uint32_t cp,
                       uint64_t rows);

#endif
