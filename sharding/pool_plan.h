/* pool_plan: the placement of a pool, the best of three.
 *
 * Home-first, coarse-first and Algorithm 2, with causal prefixes, are planned and priced by their
 * exchange. The lower largest load wins, where all within C (pool_place.h) are equal; then the
 * fewer bytes of the busiest link, in and out of one worker; then the fewer bytes in all; then the
 * first of the three. */
#ifndef BALLAST_SHARDING_POOL_PLAN_H
#define BALLAST_SHARDING_POOL_PLAN_H

#include "sharding/pool_exchange.h"
#include "sharding/pool_place.h"

/* What a placement comes to; loads in pairs * query heads, bytes of the forward pass. */
struct pool_outcome {
    const struct pool_method *method; /* of pool_place.h; pool_price leaves it NULL */
    uint64_t capacity;                /* C */
    uint64_t load_max;
    uint64_t load_sum;
    uint64_t bytes_in_max;
    uint64_t bytes_out_max;
    uint64_t bytes_link_max; /* in and out */
    uint64_t bytes;          /* of all workers; what one sends another receives */
    uint64_t transfers;
    uint32_t tiles_moved;
};

/* Whether a is the better one. */
bool pool_outcome_better(const struct pool_outcome *a, const struct pool_outcome *b);

/* Prices a placement: fills links and the outcome. `scratch` has
 * pool_exchange_bytes. */
void pool_price(const struct pool *pool, const struct pool_tiles *tiles, const uint32_t *workers,
                const uint64_t *loads, const struct pool_exchange_options *options, void *scratch,
                struct pool_link *links, struct pool_outcome *out);

/* Bytes of scratch; alignment of uint64_t. */
size_t pool_plan_bytes(const struct pool_shape *shape, const struct pool_tiles *tiles);

/* Fills workers[tile], the loads and links of the workers and the outcome. */
void pool_plan(const struct pool *pool, const struct pool_tiles *tiles, bool chain, void *scratch,
               uint32_t *workers, uint64_t *loads, struct pool_link *links,
               struct pool_outcome *out);

#endif
