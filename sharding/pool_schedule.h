/* pool_schedule: how much of a pool's exchange its attention hides.
 *
 * Libra's pipeline: the query heads of every tile are cut into M chunks, M divides q_heads / H;
 * while chunk i is computed, chunk i + 1 is dispatched and chunk i - 1 returned:
 *
 *     D(0); for i: wait D(i); start D(i + 1); start R(i - 1); compute i;  then R(M - 1)
 *
 * The first dispatch and the last return are exposed. Q and O of a chunk are its share of the
 * heads; K/V comes in min(M, kv_heads / H) pieces, as a K/V head cannot be cut: piece j travels
 * with the first chunk that needs it, and with one piece all of it with chunk 0. Keys that are
 * passed on along a chain come later by the time of its hops, piece behind piece, so that all of it
 * is exposed once: no chunk starts before its keys are there. Integers only. */
#ifndef BALLAST_SHARDING_POOL_SCHEDULE_H
#define BALLAST_SHARDING_POOL_SCHEDULE_H

#include "sharding/pool_tiles.h"

#include <stdbool.h>

/* One worker's times for all chunks together, any unit; below 2^62 in sum. */
struct pool_times {
    uint64_t q;
    uint64_t kv;
    uint64_t o;
    uint64_t compute;
    uint64_t hops; /* before the first of its keys can come, once: pool_link's hops latencies, and
                      the time of hop_bytes / kv_pieces */
};

struct pool_schedule {
    uint32_t chunks;
    uint32_t kv_pieces;
    uint64_t total;   /* from the first dispatch to the last return */
    uint64_t exposed; /* of it, beyond compute */
};

/* min(M, kv_heads / H), at least 1. */
uint32_t pool_kv_pieces(const struct pool_shape *shape, uint32_t chunks);

/* `duplex`: a link sends and receives at once; else dispatch and return share it. chunks > 0
 * divides q_heads / H. Each chunk's share is rounded so that all of them add up. */
struct pool_schedule pool_schedule_of(const struct pool_shape *shape, uint32_t chunks, bool duplex,
                                      const struct pool_times *times);

#endif
