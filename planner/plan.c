/* plan: the one allocation behind a step plan; see plan.h. */
#include "planner/plan.h"

#include "planner/balance.h"

#include <assert.h>
#include <stdlib.h>

/* Every array is a multiple of 8 bytes but the last two, so their order keeps them aligned. */
_Static_assert(sizeof(struct step_plan) % 8 == 0, "arrays follow the record");
_Static_assert(sizeof(struct micro_batch) % 8 == 0 && sizeof(struct document) % 8 == 0 &&
                   sizeof(struct rank_shard) % 8 == 0 && sizeof(struct plan_pool) % 8 == 0 &&
                   sizeof(struct pool_piece) % 8 == 0 && sizeof(struct pool_transfer) % 8 == 0,
               "arrays follow one another");

const struct balance balance_of_nothing = {
    .attention_ppm = PPM,
    .total_ppm = PPM,
    .predicted_ppm = PPM,
    .bound_ppm = PPM,
    .context_ppm = PPM,
    .original_ppm = PPM,
};

static size_t plan_bytes(const struct plan_counts *counts) {
    return sizeof(struct step_plan) + counts->micro_batches * sizeof(struct micro_batch) +
           counts->documents * sizeof(struct document) +
           (size_t)counts->micro_batches * counts->cp * sizeof(struct rank_shard) +
           counts->pools * sizeof(struct plan_pool) + counts->pieces * sizeof(struct pool_piece) +
           counts->transfers * sizeof(struct pool_transfer) +
           counts->fragments * sizeof(struct fragment) + counts->tiles * sizeof(uint32_t);
}

struct step_plan *step_plan_create_pooled(const struct plan_counts *counts) {
    struct step_plan *plan = calloc(1, plan_bytes(counts));
    if (plan == NULL) {
        return NULL;
    }
    plan->cp = counts->cp;
    plan->micro_batch_count = counts->micro_batches;
    plan->document_count = counts->documents;
    plan->fragment_count = counts->fragments;
    plan->pool_count = counts->pools;
    plan->piece_count = counts->pieces;
    plan->transfer_count = counts->transfers;
    plan->micro_batches = (struct micro_batch *)(plan + 1);
    plan->documents = (struct document *)(plan->micro_batches + counts->micro_batches);
    plan->shards = (struct rank_shard *)(plan->documents + counts->documents);
    plan->pools = (struct plan_pool *)(plan->shards + (size_t)counts->micro_batches * counts->cp);
    plan->pieces = (struct pool_piece *)(plan->pools + counts->pools);
    plan->transfers = (struct pool_transfer *)(plan->pieces + counts->pieces);
    plan->fragments = (struct fragment *)(plan->transfers + counts->transfers);
    plan->tile_workers = (uint32_t *)(plan->fragments + counts->fragments);
    return plan;
}

struct step_plan *step_plan_create(uint32_t micro_batches, uint32_t cp, uint32_t documents,
                                   uint32_t fragments) {
    const struct plan_counts counts = {
        .micro_batches = micro_batches, .cp = cp, .documents = documents, .fragments = fragments};
    return step_plan_create_pooled(&counts);
}

void step_plan_destroy(struct step_plan *plan) {
    free(plan);
}

size_t step_plan_bytes(const struct step_plan *plan) {
    const struct plan_counts counts = {
        .micro_batches = plan->micro_batch_count,
        .cp = plan->cp,
        .documents = plan->document_count,
        .fragments = plan->fragment_count,
        .pools = plan->pool_count,
        .pieces = plan->piece_count,
        .tiles = plan->piece_count * plan->pool_shape.head_shards,
        .transfers = plan->transfer_count,
    };
    return plan_bytes(&counts);
}

const struct plan_pool *step_plan_pool(const struct step_plan *plan, uint32_t dp, uint32_t index) {
    for (uint32_t i = 0; i < plan->pool_count; i++) {
        const struct plan_pool *pool = &plan->pools[i];
        if (pool->ga_index == index && pool->dp_begin <= dp &&
            dp < pool->dp_begin + plan->pool_shape.sequences) {
            return pool;
        }
    }
    return NULL;
}

const struct micro_batch *step_plan_micro_batch(const struct step_plan *plan, uint32_t dp,
                                                uint32_t index) {
    assert(plan->dp > 0);
    uint32_t replica_micro_batches = plan->micro_batch_count / plan->dp;
    if (dp >= plan->dp || index >= replica_micro_batches) {
        return NULL;
    }
    return &plan->micro_batches[dp * replica_micro_batches + index];
}
