/* exchange_lists: what a rank of a batch's group owns and computes, as the exchange of attention
 * takes it. Everything follows from shards and tiles, as in varlen.c. */
#include "client/ballast.h"
#include "sharding/ballast_lists.h"

#include <errno.h>
#include <limits.h>

#define LAYOUT_ULYSSES 5u /* of ballast.proto's Layout */

/* Documents of a pool's replicas have numbers of their own. */
#define DOCUMENT_BITS 26u
#define REPLICAS_MAX  (1u << (32u - DOCUMENT_BITS))

struct works {
    struct ballast_exchange_work *out; /* NULL: only counted */
    size_t capacity;
    size_t count;
};

static void works_add(struct works *works, struct ballast_exchange_work work) {
    if (works->out != NULL && works->count < works->capacity) {
        works->out[works->count] = work;
    }
    works->count++;
}

static int works_result(const struct works *works) {
    if (works->count > INT_MAX) {
        return -ERANGE;
    }
    return works->out != NULL && works->count > works->capacity ? -ENOBUFS : (int)works->count;
}

/* Of the batch's own documents, the number of the first. */
static uint32_t first_document(const struct ballast_batch *batch) {
    return batch->pool == NULL
               ? 0
               : (batch->pool->worker - batch->group_rank) / batch->group_ranks << DOCUMENT_BITS;
}

/* The rank in its context-parallel group; below 0 for one whose shard the batch does not have. */
static int group_rank_of(const struct ballast_batch *batch, uint32_t rank) {
    uint32_t first = batch->pool == NULL ? 0 : batch->pool->worker - batch->group_rank;
    if (batch->pool != NULL && batch->pool->replica_count > REPLICAS_MAX) {
        return -ERANGE;
    }
    return rank >= first && rank - first < batch->group_ranks ? (int)(rank - first) : -EINVAL;
}

int ballast_homes(const struct ballast_batch *batch, uint32_t rank,
                  struct ballast_exchange_home *homes, size_t capacity) {
    int at = group_rank_of(batch, rank);
    if (at < 0) {
        return at;
    }
    const struct ballast_shard *shard = &batch->shards[at];
    if (shard->fragment_count > INT_MAX) {
        return -ERANGE;
    }
    if (homes != NULL && shard->fragment_count > capacity) {
        return -ENOBUFS;
    }
    for (uint32_t i = 0; homes != NULL && i < shard->fragment_count; i++) {
        const struct ballast_fragment *from = &shard->fragments[i];
        homes[i] = (struct ballast_exchange_home){first_document(batch) + from->document,
                                                  from->start, from->length, rank};
    }
    return (int)shard->fragment_count;
}

static void works_at_home(const struct ballast_batch *batch, uint32_t rank, uint32_t q_heads,
                          struct works *works) {
    const struct ballast_shard *shard = &batch->shards[rank];
    for (uint32_t i = 0; i < shard->fragment_count; i++) {
        const struct ballast_fragment *from = &shard->fragments[i];
        works_add(works, (struct ballast_exchange_work){from->document, from->start, from->length,
                                                        rank, 0, (uint16_t)q_heads});
    }
}

static void works_by_heads(const struct ballast_batch *batch, uint32_t rank, uint32_t q_heads,
                           struct works *works) {
    uint32_t heads = q_heads / batch->group_ranks;
    for (uint32_t i = 0; i < batch->document_count; i++) {
        works_add(works, (struct ballast_exchange_work){i, 0, batch->documents[i].length, rank,
                                                        (uint16_t)(rank * heads), (uint16_t)heads});
    }
}

/* A tile is the rows of its piece in every document there, for its share of the heads. */
static void works_of_tile(const struct ballast_pool *pool, const struct ballast_tile *tile,
                          struct works *works) {
    uint32_t place = 0;
    while (pool->replicas[place].dp != tile->dp) {
        place++; /* there is one: pool_part read it */
    }
    const struct ballast_pool_replica *replica = &pool->replicas[place];
    uint32_t heads = pool->heads / pool->head_shards;
    uint64_t begin = 0;
    for (uint32_t i = 0; i < replica->length_count; begin += replica->lengths[i++]) {
        uint64_t end = begin + replica->lengths[i];
        uint64_t from = begin > tile->row ? begin : tile->row;
        uint64_t to = end < tile->row + tile->rows ? end : tile->row + tile->rows;
        if (from < to) {
            works_add(works, (struct ballast_exchange_work){
                                 (place << DOCUMENT_BITS) + i, (uint32_t)(from - begin),
                                 (uint32_t)(to - from), tile->worker,
                                 (uint16_t)(tile->head_shard * heads), (uint16_t)heads});
        }
    }
}

static void works_of_pool(const struct ballast_pool *pool, struct works *works) {
    for (uint32_t i = 0; i < pool->tile_count; i++) {
        if (pool->tiles[i].worker == pool->worker) {
            works_of_tile(pool, &pool->tiles[i], works);
        }
    }
}

int ballast_works(const struct ballast_batch *batch, uint32_t rank, uint32_t q_heads,
                  struct ballast_exchange_work *out, size_t capacity) {
    struct works works = {.out = out, .capacity = capacity};
    const struct ballast_pool *pool = batch->pool;
    int at = group_rank_of(batch, rank);
    if (at < 0) {
        return at;
    }
    if (q_heads == 0 || q_heads > UINT16_MAX || (pool != NULL && q_heads != pool->heads) ||
        (pool != NULL && rank != pool->worker)) {
        return -EINVAL;
    }
    if (pool != NULL) {
        works_of_pool(pool, &works);
    } else if (batch->layout != LAYOUT_ULYSSES) {
        works_at_home(batch, rank, q_heads, &works);
    } else if (q_heads % batch->group_ranks == 0) {
        works_by_heads(batch, rank, q_heads, &works);
    } else {
        return -EINVAL;
    }
    return works_result(&works);
}
