/* message_pool: pools of a plan, and one rank's part of its pool; see message.h. */
#include "proto/message.h"

_Static_assert((int)POOL_Q == (int)BALLAST__V1__PAYLOAD__PAYLOAD_Q &&
                   (int)POOL_KV == (int)BALLAST__V1__PAYLOAD__PAYLOAD_KV &&
                   (int)POOL_O == (int)BALLAST__V1__PAYLOAD__PAYLOAD_O,
               "payloads have the numbers of the wire");

/* Tile i of a pool. */
static Ballast__V1__Tile *message_tile(struct arena *arena, const struct step_plan *plan,
                                       const struct plan_pool *pool, uint32_t i) {
    uint32_t shards = plan->pool_shape.head_shards;
    const struct pool_piece *piece = &plan->pieces[pool->piece_begin + i / shards];
    Ballast__V1__Tile *out = message_create(arena, &ballast__v1__tile__descriptor);
    if (out == NULL) {
        return NULL;
    }
    out->dp = pool->dp_begin + piece->sequence;
    out->block = piece->block;
    out->head_shard = i % shards;
    out->home = piece->home;
    out->worker = plan->tile_workers[(size_t)pool->piece_begin * shards + i];
    out->pairs = piece->pairs;
    out->row = piece->row;
    out->rows = piece->rows;
    return out;
}

static Ballast__V1__Transfer *message_transfer(struct arena *arena, const struct plan_pool *pool,
                                               const struct pool_transfer *transfer) {
    Ballast__V1__Transfer *out = message_create(arena, &ballast__v1__transfer__descriptor);
    if (out == NULL) {
        return NULL;
    }
    out->payload = (Ballast__V1__Payload)transfer->payload;
    out->source = transfer->source;
    out->worker = transfer->worker;
    out->dp = pool->dp_begin + transfer->sequence;
    out->row = transfer->row;
    out->rows = transfer->rows;
    out->head_begin = transfer->head_begin;
    out->head_count = transfer->head_count;
    out->bytes = transfer->bytes;
    return out;
}

static bool message_tile_meets(const struct step_plan *plan, const struct plan_pool *pool,
                               uint32_t i, uint32_t worker) {
    uint32_t shards = plan->pool_shape.head_shards;
    return worker == POOL_NONE || plan->pieces[pool->piece_begin + i / shards].home == worker ||
           plan->tile_workers[(size_t)pool->piece_begin * shards + i] == worker;
}

static bool message_transfer_meets(const struct pool_transfer *transfer, uint32_t worker) {
    return worker == POOL_NONE || transfer->source == worker || transfer->worker == worker;
}

/* Tiles at or from a worker, or all of them. */
static bool message_tiles(struct arena *arena, const struct step_plan *plan,
                          const struct plan_pool *pool, uint32_t worker, Ballast__V1__Tile ***out,
                          size_t *count) {
    uint32_t tiles = pool->piece_count * plan->pool_shape.head_shards;
    *count = 0;
    for (uint32_t i = 0; i < tiles; i++) {
        *count += message_tile_meets(plan, pool, i, worker);
    }
    *out = arena_array(arena, *count, sizeof **out);
    size_t taken = 0;
    for (uint32_t i = 0; *out != NULL && i < tiles; i++) {
        if (message_tile_meets(plan, pool, i, worker)) {
            (*out)[taken] = message_tile(arena, plan, pool, i);
            if ((*out)[taken++] == NULL) {
                return false;
            }
        }
    }
    return *out != NULL;
}

/* Transfers from or to a worker, or all of them. */
static bool message_transfers(struct arena *arena, const struct step_plan *plan,
                              const struct plan_pool *pool, uint32_t worker,
                              Ballast__V1__Transfer ***out, size_t *count) {
    const struct pool_transfer *transfers = plan->transfers + pool->transfer_begin;
    *count = 0;
    for (uint32_t i = 0; i < pool->transfer_count; i++) {
        *count += message_transfer_meets(&transfers[i], worker);
    }
    *out = arena_array(arena, *count, sizeof **out);
    size_t taken = 0;
    for (uint32_t i = 0; *out != NULL && i < pool->transfer_count; i++) {
        if (message_transfer_meets(&transfers[i], worker)) {
            (*out)[taken] = message_transfer(arena, pool, &transfers[i]);
            if ((*out)[taken++] == NULL) {
                return false;
            }
        }
    }
    return *out != NULL;
}

static bool message_pool_replicas(struct arena *arena, const struct step_plan *plan,
                                  const struct plan_pool *pool, Ballast__V1__Pool *out) {
    out->dp = arena_array(arena, plan->pool_shape.sequences, sizeof *out->dp);
    if (out->dp == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < plan->pool_shape.sequences; i++) {
        out->dp[i] = pool->dp_begin + i;
    }
    out->n_dp = plan->pool_shape.sequences;
    return true;
}

static Ballast__V1__Pool *message_pool(struct arena *arena, const struct step_plan *plan,
                                       const struct plan_pool *pool, bool details) {
    const struct pool_shape *shape = &plan->pool_shape;
    Ballast__V1__Pool *out = message_create(arena, &ballast__v1__pool__descriptor);
    if (out == NULL) {
        return NULL;
    }
    out->ga_index = pool->ga_index;
    out->block_tokens = shape->block_rows;
    out->head_shards = shape->head_shards;
    out->heads = shape->q_heads;
    out->kv_heads = shape->kv_heads;
    out->head_dim = shape->head_dim;
    out->element_bytes = shape->element_bytes;
    out->load_max = pool->load_max;
    out->load_mean = pool->load_mean;
    bool built = message_pool_replicas(arena, plan, pool, out);
    if (built && details) {
        built = message_tiles(arena, plan, pool, POOL_NONE, &out->tiles, &out->n_tiles) &&
                message_transfers(arena, plan, pool, POOL_NONE, &out->transfers, &out->n_transfers);
    }
    return built ? out : NULL;
}

bool message_pools(struct arena *arena, const struct step_plan *plan, bool details,
                   Ballast__V1__StepPlan *out) {
    out->pools = arena_array(arena, plan->pool_count, sizeof *out->pools);
    if (out->pools == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < plan->pool_count; i++) {
        out->pools[i] = message_pool(arena, plan, &plan->pools[i], details);
        if (out->pools[i] == NULL) {
            return false;
        }
    }
    out->n_pools = plan->pool_count;
    return true;
}

static Ballast__V1__PoolReplica *message_replica(struct arena *arena, const struct step_plan *plan,
                                                 const struct plan_pool *pool, uint32_t position) {
    Ballast__V1__PoolReplica *out = message_create(arena, &ballast__v1__pool_replica__descriptor);
    if (out == NULL) {
        return NULL;
    }
    out->dp = pool->dp_begin + position;
    out->tokens = step_plan_micro_batch(plan, out->dp, pool->ga_index)->tokens;
    return out;
}

static bool message_replica_lengths(struct arena *arena, const struct step_plan *plan,
                                    const struct plan_pool *pool, Ballast__V1__PoolReplica *out) {
    const struct micro_batch *batch = step_plan_micro_batch(plan, out->dp, pool->ga_index);
    out->lengths = arena_array(arena, batch->document_count, sizeof *out->lengths);
    if (out->lengths == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < batch->document_count; i++) {
        out->lengths[i] = plan->documents[batch->document_begin + i].length;
    }
    out->n_lengths = batch->document_count;
    return true;
}

/* The replicas of a part that has its tiles. */
static bool message_part_replicas(struct arena *arena, const struct step_plan *plan,
                                  const struct plan_pool *pool, Ballast__V1__PoolPart *out) {
    uint32_t count = plan->pool_shape.sequences;
    out->replicas = arena_array(arena, count, sizeof *out->replicas);
    if (out->replicas == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        out->replicas[i] = message_replica(arena, plan, pool, i);
        if (out->replicas[i] == NULL) {
            return false;
        }
    }
    out->n_replicas = count;
    for (size_t i = 0; i < out->n_tiles; i++) {
        Ballast__V1__PoolReplica *replica = out->replicas[out->tiles[i]->dp - pool->dp_begin];
        if (out->tiles[i]->worker == out->worker && replica->lengths == NULL &&
            !message_replica_lengths(arena, plan, pool, replica)) {
            return false;
        }
    }
    return true;
}

Ballast__V1__PoolPart *message_pool_part(struct arena *arena, const struct step_plan *plan,
                                         const struct plan_pool *pool, uint32_t dp, uint32_t cp) {
    const struct pool_shape *shape = &plan->pool_shape;
    Ballast__V1__PoolPart *out = message_create(arena, &ballast__v1__pool_part__descriptor);
    if (out == NULL) {
        return NULL;
    }
    out->worker = (dp - pool->dp_begin) * plan->cp + cp;
    out->ga_index = pool->ga_index;
    out->block_tokens = shape->block_rows;
    out->head_shards = shape->head_shards;
    out->heads = shape->q_heads;
    out->kv_heads = shape->kv_heads;
    out->head_dim = shape->head_dim;
    out->element_bytes = shape->element_bytes;
    bool built = message_tiles(arena, plan, pool, out->worker, &out->tiles, &out->n_tiles) &&
                 message_transfers(arena, plan, pool, out->worker, &out->transfers,
                                   &out->n_transfers) &&
                 message_part_replicas(arena, plan, pool, out);
    return built ? out : NULL;
}
