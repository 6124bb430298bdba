/* pool_place: which worker computes each tile of a pool.
 *
 * Libra's Algorithm 2: tiles by descending load go one by one to a worker. Those that stay within
 * C = 1.03 * mean load with the tile are asked first: of them the one to which the tile adds the
 * fewest bytes, by the bytes of its Q and O rows unless it is at home, and of the K/V groups that
 * the worker does not have yet. If none has the room, the least load decides, then the bytes.
 * Ties go to the lower load or fewer bytes, then to the lower worker; of equal tiles the lower
 * number is first.
 *
 * Home-first leaves tiles at home while their home stays within C, documents of most work first,
 * in each by head shard from the last block to the first; what is over is then placed as Algorithm
 * 2 places, in the same order. It moves far fewer rows, as with grouped queries a row of Q and O
 * has many times the bytes of one of K and V; but where tiles are coarse, light ones that stayed
 * leave no room for them. Coarse-first is home-first with two changes: tiles of more than C / 2, of
 * which a worker has room for one, are placed before any stays, and what is over goes by descending
 * load. It balances as Algorithm 2 does.
 *
 * The largest load is at most max(C, mean + largest tile). O(tiles * workers). Integers only; no
 * allocation; the result depends on nothing but the arguments. */
#ifndef BALLAST_SHARDING_POOL_PLACE_H
#define BALLAST_SHARDING_POOL_PLACE_H

#include "sharding/pool_tiles.h"

#include <stdbool.h>

#define POOL_TOLERANCE_PERCENT 3u /* C is so much above the mean load */

struct pool_method {
    bool home_first;
    bool coarse_first; /* tiles that do not share a worker with their like before the others */
    bool descending;   /* tiles are placed by load; else by document, shard, last block first */
    bool prefix;  /* a worker fetches of a document the keys that its tiles see; else all of them */
    bool literal; /* a group counts whole even where its rows live; else what is fetched counts */
};

/* As printed: groups come whole and count whole. */
extern const struct pool_method pool_algorithm_2_literal;
/* With causal prefixes, counting what is fetched. */
extern const struct pool_method pool_algorithm_2;
extern const struct pool_method pool_home_first;
extern const struct pool_method pool_coarse_first;

/* Load that no worker should exceed: floor(103 * sum / (100 * workers)). */
uint64_t pool_capacity(const struct pool_shape *shape, const struct pool_tiles *tiles);

/* Bytes of scratch; alignment of uint64_t. */
size_t pool_place_bytes(const struct pool_shape *shape, const struct pool_tiles *tiles);

/* Fills workers[tile] for all tiles, and the loads of the workers in pairs * query heads. */
void pool_place(const struct pool *pool, const struct pool_tiles *tiles,
                const struct pool_method *method, void *scratch, uint32_t *workers,
                uint64_t *loads);

#endif
