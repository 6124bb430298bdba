/* plan: the one allocation behind a step plan; see plan.h. */
#include "planner/plan.h"

#include "planner/balance.h"

#include <assert.h>
#include <stdlib.h>

/* Every array is a multiple of 8 bytes but the last, so their order keeps them aligned. */
_Static_assert(sizeof(struct step_plan) % 8 == 0, "arrays follow the record");
_Static_assert(sizeof(struct micro_batch) % 8 == 0 && sizeof(struct document) % 8 == 0 &&
                   sizeof(struct rank_shard) % 8 == 0,
               "arrays follow one another");

const struct balance balance_of_nothing = {
    .attention_ppm = PPM,
    .total_ppm = PPM,
    .predicted_ppm = PPM,
    .bound_ppm = PPM,
    .context_ppm = PPM,
    .original_ppm = PPM,
};

static size_t plan_bytes(size_t micro_batches, size_t cp, size_t documents, size_t fragments) {
    return sizeof(struct step_plan) + micro_batches * sizeof(struct micro_batch) +
           documents * sizeof(struct document) + micro_batches * cp * sizeof(struct rank_shard) +
           fragments * sizeof(struct fragment);
}

struct step_plan *step_plan_create(uint32_t micro_batches, uint32_t cp, uint32_t documents,
                                   uint32_t fragments) {
    struct step_plan *plan = calloc(1, plan_bytes(micro_batches, cp, documents, fragments));
    if (plan == NULL) {
        return NULL;
    }
    plan->cp = cp;
    plan->micro_batch_count = micro_batches;
    plan->document_count = documents;
    plan->fragment_count = fragments;
    plan->micro_batches = (struct micro_batch *)(plan + 1);
    plan->documents = (struct document *)(plan->micro_batches + micro_batches);
    plan->shards = (struct rank_shard *)(plan->documents + documents);
    plan->fragments = (struct fragment *)(plan->shards + (size_t)micro_batches * cp);
    return plan;
}

void step_plan_destroy(struct step_plan *plan) {
    free(plan);
}

size_t step_plan_bytes(const struct step_plan *plan) {
    return plan_bytes(plan->micro_batch_count, plan->cp, plan->document_count,
                      plan->fragment_count);
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
