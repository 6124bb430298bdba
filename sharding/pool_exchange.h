/* pool_exchange: the transfers that a placed pool needs, and what they weigh.
 *
 * Libra's exchange of one layer, forward (its dispatch and return): every tile away from home gets
 * its Q rows from there and returns its O rows; every worker gets of each K/V group that its tiles
 * see what it does not hold itself, once, whatever the number of tiles, in fragments from whoever
 * holds them. With `prefix` the keys that its tiles see, else the whole document.
 * With `chain` workers pass a document's K/V on: they stand by the number of keys they need,
 * descending, the first is served by the holders, each by the one before it, so that a document
 * that many need does not load its holders; K/V gradients return the same way, summed on it. What
 * a worker gets at the n-th place has been passed on n times before, which takes n latencies and n
 * times the part of it that travels at a time (pool_schedule.h).
 *
 * Transfers are listed in this order, and no transfer is from a worker to itself:
 *   Q    by tile;
 *   K/V  of documents that one piece has, by (piece, range of K/V heads, worker), then of the
 *        others, by (sequence, document, range, worker, row); with `chain` by need instead of
 *        worker;
 *   O    as Q.
 * The backward pass is its mirror: K/V again, with Q dO and the two statistics of a row; back come
 * dQ, as O, and the gradients of K and V, against the direction of K/V, in ascending order of
 * workers where they are summed. All workers of a pool take part in every exchange, even with
 * nothing to send. Bytes do not count what the transport adds. Integers only; no allocation. */
#ifndef BALLAST_SHARDING_POOL_EXCHANGE_H
#define BALLAST_SHARDING_POOL_EXCHANGE_H

#include "sharding/pool_tiles.h"

#include <stdbool.h>

/* Numbers of ballast.proto. */
enum pool_payload { POOL_Q = 1, POOL_KV = 2, POOL_O = 3 };

struct pool_transfer {
    enum pool_payload payload;
    uint32_t source;
    uint32_t worker; /* receives */
    uint32_t sequence;
    uint32_t row; /* first, in the sequence */
    uint32_t rows;
    uint32_t head_begin; /* of query heads, for K/V of K/V heads */
    uint32_t head_count;
    uint64_t bytes;
};

/* Bytes of one worker. */
struct pool_link {
    uint64_t q_in;
    uint64_t q_out;
    uint64_t kv_in;
    uint64_t kv_out;
    uint64_t o_in;
    uint64_t o_out;
    uint64_t hops; /* with `chain`: workers that its keys pass before its source has them, most */
    uint64_t hop_bytes; /* most of such a number times the bytes that come so */
};

struct pool_exchange_options {
    bool prefix;
    bool chain;
};

/* Bytes of scratch; alignment of uint64_t. */
size_t pool_exchange_bytes(const struct pool_shape *shape, const struct pool_tiles *tiles);

/* The exchange of a pool whose tiles are at workers[tile]. Fills links, one per worker; writes at
 * most `capacity` transfers and returns how many there are (`out` may be NULL with capacity 0). */
size_t pool_exchange(const struct pool *pool, const struct pool_tiles *tiles,
                     const uint32_t *workers, const struct pool_exchange_options *options,
                     void *scratch, struct pool_transfer *out, size_t capacity,
                     struct pool_link *links);

static inline uint64_t pool_link_in(const struct pool_link *link) {
    return link->q_in + link->kv_in + link->o_in;
}

static inline uint64_t pool_link_out(const struct pool_link *link) {
    return link->q_out + link->kv_out + link->o_out;
}

/* Row counts of a v-collective: counts[source * workers + worker] rows times heads of this
 * payload; the row of the sender and the column of the receiver agree by construction. */
void pool_counts(const struct pool_transfer *transfers, size_t count, enum pool_payload payload,
                 uint32_t workers, uint64_t *counts);

/* The same worker in the backward pass: q is Q, dO and 8 bytes of statistics a row and head; o is
 * dQ; kv is K/V fetched again and, the other way round, its gradients, in gradient_bytes each. */
struct pool_link pool_backward(const struct pool_shape *shape, const struct pool_link *forward,
                               uint32_t gradient_bytes);

#endif
