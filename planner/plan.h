/* plan: everything that is decided about one step, immutable once made.
 *
 * One allocation holds the record and its arrays; the maker owns it until it is handed over, then
 * the holder frees it with step_plan_destroy. Field meanings are ballast.proto's (StepPlan,
 * MicroBatch, RankShard, Balance, Release). */
#ifndef BALLAST_PLANNER_PLAN_H
#define BALLAST_PLANNER_PLAN_H

#include "planner/document.h"
#include "planner/model.h"
#include "sharding/layout.h"
#include "sharding/pool_exchange.h"
#include "sharding/select.h"

#include <stddef.h>

#define PLAN_DIGEST_BYTES 16u
#define POLICY_NAME_BYTES 32u

enum exchange {
    EXCHANGE_NONE = 0,
    EXCHANGE_ALL_GATHER = 1,
    EXCHANGE_NEEDED_ONLY = 2,
    EXCHANGE_ALL_TO_ALL = 3,
};

/* Ratios in parts per million: floor(max * n * 1000000 / sum); 0/0 is 1000000. */
struct balance {
    uint64_t attention_ppm; /* exact pairs l(l+1)/2 over micro-batches */
    uint64_t total_ppm;     /* work over micro-batches */
    uint64_t predicted_ppm; /* what the release step expected total_ppm to be; bands: total_ppm */
    uint64_t bound_ppm;     /* max(W_1, mean, W_N + W_(N+1)) / mean, document works descending */
    uint64_t context_ppm;   /* predicted_ns of ranks, token-weighted mean over micro-batches */
    uint64_t original_ppm;  /* attention_ppm of the step's documents in reading order, cut into N
                               equal spans at floor(i*tokens/N) */
    uint64_t delay_mean_milli; /* token-weighted since step 0, thousandths of a step */
    uint64_t delay_max;        /* steps, since step 0 */
};

/* Before the first step: 0/0 is even. */
extern const struct balance balance_of_nothing;

struct release {
    uint64_t allowance_ppm;  /* level only */
    uint64_t urgency_ppm;    /* level only */
    uint64_t outliers;       /* outlier candidates released this step */
    uint64_t early;          /* of these, nominal step ahead */
    uint64_t forced;         /* of these, due by age */
    uint64_t waiting_tokens; /* after the step, queues and leftovers */
    uint64_t leftovers;      /* documents left over by the packer, after the step */
};

/* One context-parallel rank's share of a micro-batch. */
struct rank_shard {
    uint32_t fragment_begin; /* in step_plan.fragments */
    uint32_t fragment_count;
    uint64_t rows;         /* including pad_rows, equal on all ranks */
    uint64_t pad_rows;     /* the rank's last rows */
    uint64_t pairs;        /* exact, one head */
    uint64_t predicted_ns; /* attention per layer, forward + backward */
    uint64_t kv_rows_in;   /* (CP-1) * rows for all-gather, keys_needed for needed-only, else 0 */
};

struct micro_batch {
    uint32_t dp;
    uint32_t index;          /* position in the replica's pipeline order */
    uint32_t document_begin; /* in step_plan.documents, row order */
    uint32_t document_count; /* 0 only at the end of data */
    uint32_t shard_begin;    /* in step_plan.shards: cp of them */
    enum exchange exchange;
    uint64_t tokens;     /* without padding */
    uint64_t pad_tokens; /* = sum of pad_rows */
    uint64_t work_ns;
    uint64_t attention_ns; /* slowest rank's predicted_ns * layers of one stage */
    uint64_t other_ns;     /* linear part of one rank's rows, one stage */
    struct layout_choice choice;
};

/* Replicas dp_begin to dp_begin + P - 1 share the attention of their micro-batches ga_index; worker
 * w is context-parallel rank w % cp of replica dp_begin + w / cp. */
struct plan_pool {
    uint32_t ga_index;
    uint32_t dp_begin;
    uint32_t piece_begin; /* in step_plan.pieces; its tiles begin at piece_begin * H */
    uint32_t piece_count;
    uint32_t transfer_begin; /* in step_plan.transfers */
    uint32_t transfer_count;
    uint64_t load_max;  /* pairs * query heads, over workers */
    uint64_t load_mean; /* floor */
};

/* Sizes of a plan's arrays. */
struct plan_counts {
    uint32_t micro_batches;
    uint32_t cp;
    uint32_t documents;
    uint32_t fragments;
    uint32_t pools; /* 0 without pooled attention, as the next three */
    uint32_t pieces;
    uint32_t tiles; /* pieces * H */
    uint32_t transfers;
};

struct step_plan {
    uint64_t step;
    char policy[POLICY_NAME_BYTES];
    uint8_t digest[PLAN_DIGEST_BYTES];
    uint32_t dp, pp, cp, tp;
    uint32_t micro_batch_count; /* N; sorted by (dp, index), N/dp each */
    uint32_t document_count;
    uint32_t fragment_count;
    struct micro_batch *micro_batches;
    struct document *documents;
    struct rank_shard *shards; /* micro_batch_count * cp */
    struct fragment *fragments;
    uint32_t pool_count; /* by (ga_index, dp_begin) */
    uint32_t piece_count;
    uint32_t transfer_count;
    struct pool_shape pool_shape; /* of every pool */
    struct plan_pool *pools;
    struct pool_piece *pieces;       /* `sequence` counts from its pool's first replica */
    uint32_t *tile_workers;          /* piece_count * H */
    struct pool_transfer *transfers; /* likewise */
    struct balance balance;
    struct release release;
    uint64_t tokens; /* of the step, without padding */
    uint64_t loss_denominator;
    uint64_t label_tokens; /* labels other than -100 in the whole step */
    uint64_t plan_ns;      /* measured by the caller, 0 from plan_step; not in the digest */
    bool profiled;         /* priced by a latency profile; not in the digest, as its hash */
    uint8_t profile_hash[MODEL_PROFILE_HASH_BYTES];
};

/* A plan with room for the given counts, zeroed; NULL when out of memory. */
struct step_plan *step_plan_create(uint32_t micro_batches, uint32_t cp, uint32_t documents,
                                   uint32_t fragments);
/* The same with pools. */
struct step_plan *step_plan_create_pooled(const struct plan_counts *counts);
void step_plan_destroy(struct step_plan *plan);

/* Bytes of the allocation. */
size_t step_plan_bytes(const struct step_plan *plan);

/* Micro-batch (dp, index); NULL when the plan has none. */
const struct micro_batch *step_plan_micro_batch(const struct step_plan *plan, uint32_t dp,
                                                uint32_t index);

/* The pool of micro-batch (dp, index); NULL when the plan has none. */
const struct plan_pool *step_plan_pool(const struct step_plan *plan, uint32_t dp, uint32_t index);

/* Digest (digest.c): canonical big-endian XXH3-128 over u64 little-endian fields: step; for every
 * micro-batch by (dp, index), these two not hashed: documents (dataset, document, offset, length,
 * nominal_step, epoch), pad_tokens, layout, for every rank its fragments (document, start, length);
 * pools: every field of Pool in the order of its numbers, so too of its tiles and transfers;
 * loss_denominator. Every list is preceded by its count. */
void step_plan_digest(const struct step_plan *plan, uint8_t digest[PLAN_DIGEST_BYTES]);

#endif
