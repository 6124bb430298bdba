/* pool_world: pools to try, and their execution row by row, for the tests of pooled attention. */
#ifndef BALLAST_TESTS_POOL_WORLD_H
#define BALLAST_TESTS_POOL_WORLD_H

#include "sharding/pool_plan.h"

enum world_homes { HOMES_CONTIGUOUS, HOMES_ZIGZAG, HOMES_RANDOM, HOMES };

struct pool_world {
    struct pool pool;
    struct pool_tiles tiles;
    uint32_t *rows; /* of every sequence, without pad */
    uint32_t *workers;
    uint64_t *loads;
    struct pool_link *links;
    struct pool_transfer *transfers;
    size_t transfer_count;
    void *scratch;
};

/* Cuts a pool of sequences with these documents: counts[s] of them, one sequence after the other
 * in lengths. Homes are of a kind, drawn with the seed where they are random. */
void pool_world_init(struct pool_world *world, const struct pool_shape *shape,
                     const uint32_t *lengths, const uint32_t *counts, enum world_homes homes,
                     uint64_t seed);
void pool_world_deinit(struct pool_world *world);

/* Makes the exchange of world->workers. */
void pool_world_exchange(struct pool_world *world, const struct pool_exchange_options *options);

/* Sums world->loads of the tiles and world->links of the transfers that it has. */
void pool_world_sum(struct pool_world *world);

/* Executes the exchange: takes transfers in order, computes every tile from nothing but what its
 * worker has, returns O, and sends gradients back along the reversed transfers. NULL when every
 * query row and head was computed once with all its keys, no row came twice or for nothing (with
 * `needed_only`), bytes and links add up, and every gradient came home whole; else what is wrong.
 */
const char *pool_world_fault(const struct pool_world *world, bool needed_only);

/* The placement as pool_place.h states it, tile by tile and row by row: fills workers and loads. */
void pool_literal_place(const struct pool_world *world, const struct pool_method *method,
                        uint32_t *workers, uint64_t *loads);

#endif
