/* pool_part: see pool_part.h. */
#include "client/pool_part.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

/* With these a transfer's bytes fit 64 bits. */
#define POOL_TOKENS_MAX        ((uint64_t)1 << 26)
#define POOL_HEADS_MAX         65536u
#define POOL_ELEMENT_BYTES_MAX 16u

_Static_assert((int)BALLAST_PAYLOAD_Q == (int)BALLAST__V1__PAYLOAD__PAYLOAD_Q &&
                   (int)BALLAST_PAYLOAD_KV == (int)BALLAST__V1__PAYLOAD__PAYLOAD_KV &&
                   (int)BALLAST_PAYLOAD_O == (int)BALLAST__V1__PAYLOAD__PAYLOAD_O,
               "payloads have the numbers of the wire");

static int pool_part_impossible(const char *what, struct error *error) {
    return error_set(error, -EPROTO, "the daemon sent an impossible pool: %s", what);
}

static int pool_part_no_memory(const char *what, size_t count, struct error *error) {
    return error_set(error, -ENOMEM, "a pool of %zu %s: out of memory", count, what);
}

static bool pool_part_multiples(uint32_t a, uint32_t b) {
    return a % b == 0 || b % a == 0;
}

static bool pool_part_shape_holds(const Ballast__V1__PoolPart *message) {
    return message->block_tokens > 0 && message->head_shards > 0 && message->kv_heads > 0 &&
           message->heads > 0 && message->heads <= POOL_HEADS_MAX && message->head_dim > 0 &&
           message->head_dim <= POOL_HEADS_MAX && message->element_bytes > 0 &&
           message->element_bytes <= POOL_ELEMENT_BYTES_MAX &&
           message->heads % message->head_shards == 0 && message->heads % message->kv_heads == 0 &&
           pool_part_multiples(message->head_shards, message->kv_heads);
}

static int pool_part_compare(const void *key, const void *element) {
    uint32_t dp = *(const uint32_t *)key;
    const struct ballast_pool_replica *replica = element;
    return (dp > replica->dp) - (dp < replica->dp);
}

/* NULL for a replica that is not of the pool. */
static const struct ballast_pool_replica *pool_part_replica(const struct ballast_pool *pool,
                                                            uint32_t dp) {
    return bsearch(&dp, pool->replicas, pool->replica_count, sizeof *pool->replicas,
                   pool_part_compare);
}

static int pool_part_read_lengths(struct ballast_pool_replica *replica, struct arena *arena,
                                  const Ballast__V1__PoolReplica *from, struct error *error) {
    uint32_t *lengths = arena_array(arena, from->n_lengths, sizeof *lengths);
    uint64_t tokens = 0;
    if (lengths == NULL) {
        return pool_part_no_memory("documents", from->n_lengths, error);
    }
    for (size_t i = 0; i < from->n_lengths; i++) {
        lengths[i] = from->lengths[i];
        tokens += lengths[i];
        if (lengths[i] == 0 || tokens > from->tokens) {
            return pool_part_impossible("a document that is not within its micro-batch", error);
        }
    }
    if (from->n_lengths > 0 && tokens != from->tokens) {
        return pool_part_impossible("documents that are not their micro-batch", error);
    }
    *replica = (struct ballast_pool_replica){.dp = from->dp,
                                             .length_count = (uint32_t)from->n_lengths,
                                             .lengths = from->n_lengths > 0 ? lengths : NULL,
                                             .tokens = from->tokens};
    return 0;
}

static int pool_part_read_replicas(struct ballast_pool *pool, struct arena *arena,
                                   const Ballast__V1__PoolPart *message,
                                   const struct ballast_job *job, struct error *error) {
    size_t count = message->n_replicas;
    struct ballast_pool_replica *replicas = arena_array(arena, count, sizeof *replicas);
    if (replicas == NULL) {
        return pool_part_no_memory("replicas", count, error);
    }
    for (size_t i = 0; i < count; i++) {
        const Ballast__V1__PoolReplica *from = message->replicas[i];
        if (from->dp >= job->dp || (i > 0 && from->dp <= replicas[i - 1].dp)) {
            return pool_part_impossible("replicas that are not of the mesh, or not in order",
                                        error);
        }
        if (from->tokens > job->tokens_max || from->tokens > POOL_TOKENS_MAX) {
            return pool_part_impossible("a micro-batch longer than tokens_max", error);
        }
        int code = pool_part_read_lengths(&replicas[i], arena, from, error);
        if (code < 0) {
            return code;
        }
    }
    pool->replicas = replicas;
    pool->replica_count = (uint32_t)count;
    return 0;
}

/* Whether the pool and the batch agree on who this rank is and what its micro-batch holds. */
static int pool_part_place(struct ballast_pool *pool, const struct ballast_batch *view,
                           struct error *error) {
    const struct ballast_pool_replica *own = pool_part_replica(pool, view->dp);
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < view->document_count; i++) {
        tokens += view->documents[i].length;
    }
    if (own == NULL || own->tokens != tokens || pool->ga_index != view->index) {
        return pool_part_impossible("it is not of this micro-batch", error);
    }
    uint64_t first = (uint64_t)(own - pool->replicas) * view->group_ranks;
    uint64_t workers = (uint64_t)pool->replica_count * view->group_ranks;
    if (workers > UINT32_MAX || pool->worker != first + view->group_rank) {
        return pool_part_impossible("its worker is not this rank", error);
    }
    pool->workers = (uint32_t)workers;
    return 0;
}

static bool pool_part_has_rows(const struct ballast_pool *pool, uint32_t dp, uint64_t row,
                               uint64_t rows) {
    const struct ballast_pool_replica *replica = pool_part_replica(pool, dp);
    return replica != NULL && rows > 0 && row < replica->tokens && rows <= replica->tokens - row;
}

/* Both are workers, and one of them is this rank. */
static bool pool_part_meets(const struct ballast_pool *pool, uint32_t a, uint32_t b) {
    return a < pool->workers && b < pool->workers && (a == pool->worker || b == pool->worker);
}

static int pool_part_read_tiles(struct ballast_pool *pool, struct arena *arena,
                                const Ballast__V1__PoolPart *message, struct error *error) {
    struct ballast_tile *tiles = arena_array(arena, message->n_tiles, sizeof *tiles);
    if (tiles == NULL) {
        return pool_part_no_memory("tiles", message->n_tiles, error);
    }
    for (size_t i = 0; i < message->n_tiles; i++) {
        const Ballast__V1__Tile *from = message->tiles[i];
        if (!pool_part_has_rows(pool, from->dp, from->row, from->rows) ||
            from->rows > pool->block_tokens) {
            return pool_part_impossible("a tile that is not within its micro-batch", error);
        }
        if (!pool_part_meets(pool, from->home, from->worker) ||
            from->head_shard >= pool->head_shards) {
            return pool_part_impossible("a tile that is not this rank's", error);
        }
        tiles[i] = (struct ballast_tile){.dp = from->dp,
                                         .block = from->block,
                                         .head_shard = from->head_shard,
                                         .home = from->home,
                                         .worker = from->worker,
                                         .pairs = from->pairs,
                                         .row = from->row,
                                         .rows = from->rows};
    }
    pool->tiles = tiles;
    pool->tile_count = (uint32_t)message->n_tiles;
    return 0;
}

static int pool_part_check_transfer(const struct ballast_pool *pool,
                                    const Ballast__V1__Transfer *from, struct error *error) {
    bool keys = from->payload == BALLAST__V1__PAYLOAD__PAYLOAD_KV;
    uint32_t heads = keys ? pool->kv_heads : pool->heads;
    if (!keys && from->payload != BALLAST__V1__PAYLOAD__PAYLOAD_Q &&
        from->payload != BALLAST__V1__PAYLOAD__PAYLOAD_O) {
        return pool_part_impossible("a transfer of nothing known", error);
    }
    if (from->source == from->worker || !pool_part_meets(pool, from->source, from->worker)) {
        return pool_part_impossible("a transfer that is not this rank's", error);
    }
    if (!pool_part_has_rows(pool, from->dp, from->row, from->rows) || from->head_count == 0 ||
        from->head_begin >= heads || from->head_count > heads - from->head_begin) {
        return pool_part_impossible("a transfer that is not within its micro-batch", error);
    }
    if (from->bytes !=
        (keys ? 2u : 1u) * from->rows * from->head_count * pool->head_dim * pool->element_bytes) {
        return pool_part_impossible("a transfer that is not as long as its rows", error);
    }
    return 0;
}

static int pool_part_read_transfers(struct ballast_pool *pool, struct arena *arena,
                                    const Ballast__V1__PoolPart *message, struct error *error) {
    size_t count = message->n_transfers;
    struct ballast_transfer *transfers = arena_array(arena, count, sizeof *transfers);
    if (transfers == NULL) {
        return pool_part_no_memory("transfers", count, error);
    }
    for (size_t i = 0; i < count; i++) {
        const Ballast__V1__Transfer *from = message->transfers[i];
        int code = pool_part_check_transfer(pool, from, error);
        if (code < 0) {
            return code;
        }
        transfers[i] = (struct ballast_transfer){.payload = (uint32_t)from->payload,
                                                 .source = from->source,
                                                 .worker = from->worker,
                                                 .dp = from->dp,
                                                 .row = from->row,
                                                 .rows = from->rows,
                                                 .head_begin = from->head_begin,
                                                 .head_count = from->head_count,
                                                 .bytes = from->bytes};
    }
    pool->transfers = transfers;
    pool->transfer_count = (uint32_t)count;
    return 0;
}

int pool_part_read(struct ballast_batch *view, struct arena *arena,
                   const Ballast__V1__PoolPart *message, const struct ballast_job *job,
                   struct error *error) {
    view->pool = NULL;
    if (message == NULL || message->n_replicas == 0) {
        return 0;
    }
    if (!pool_part_shape_holds(message)) {
        return pool_part_impossible("its shape", error);
    }
    struct ballast_pool *pool = arena_alloc(arena, sizeof *pool);
    if (pool == NULL) {
        return pool_part_no_memory("replicas", message->n_replicas, error);
    }
    *pool = (struct ballast_pool){.ga_index = message->ga_index,
                                  .worker = message->worker,
                                  .block_tokens = message->block_tokens,
                                  .head_shards = message->head_shards,
                                  .heads = message->heads,
                                  .kv_heads = message->kv_heads,
                                  .head_dim = message->head_dim,
                                  .element_bytes = message->element_bytes};
    int code = pool_part_read_replicas(pool, arena, message, job, error);
    if (code == 0) {
        code = pool_part_place(pool, view, error);
    }
    if (code == 0) {
        code = pool_part_read_tiles(pool, arena, message, error);
    }
    if (code == 0) {
        code = pool_part_read_transfers(pool, arena, message, error);
    }
    if (code == 0) {
        view->pool = pool;
    }
    return code;
}
