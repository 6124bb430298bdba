/* pool_cost: what every worker's tiles take, by the tile model (cost.h).
 *
 * A worker computes the tiles it was given in one call, rows of others like its own: for each head
 * shard the rows of a document in the order of the document, whatever pieces they came in, against
 * one copy of its K/V. So neighbouring pieces on one worker share key blocks, and many small tiles
 * cost what part tiles cost. Waiting is not in it (pool_schedule.h). Integers only; no allocation.
 */
#ifndef BALLAST_SHARDING_POOL_COST_H
#define BALLAST_SHARDING_POOL_COST_H

#include "sharding/cost.h"
#include "sharding/pool_tiles.h"

/* Bytes of scratch for pools of so many documents and pieces; alignment of uint64_t. */
size_t pool_cost_bytes(const struct pool_shape *shape, uint32_t documents, uint32_t pieces);

/* Fills worker_ps, one layer, forward + backward, of a pool whose tiles are at workers[tile].
 * `model` is that of all heads of a tensor-parallel rank. O(tiles + shards * (documents +
 * workers)). */
void pool_cost(const struct pool *pool, const struct pool_tiles *tiles, const uint32_t *workers,
               const struct tile_model *model, void *scratch, uint64_t *worker_ps);

#endif
