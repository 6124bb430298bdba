/* step_time: how long a planned step takes, as far as lengths, shapes and rates tell.
 *
 * From a plan's micro-batches to stage chunk times, through the pipeline (pipeline.h), to the step:
 *     a = attention of the slowest context-parallel rank, forward, one layer (sharding/cost.h)
 *     l = rows * (GEMMs + element-wise passes) + exposed TP and CP communication + layout copies
 *     chunk forward  = layers * (a + l)
 *     chunk backward = layers * (2.5 a + 2 l), and once more what is recomputed
 *     the last chunk's head: rows * 2 h vocab FLOPs forward, twice that backward
 *     step = slowest replica's pipeline + exposed FSDP + optimizer
 * per layer and row 2h(2*hq*d + 2*hkv*d + 3*ffn) FLOPs and 22 passes of h bf16 values, a
 * gate-up-down block; four all-gathers or reduce-scatters of the rows over TP, one all-gather of
 * the sequence's K and V over CP, and for layouts that cut documents K and V written out once more
 * for every fragment. What of it is hidden behind compute nobody publishes: shares exposed, chunks,
 * recomputation, scale of attention are inputs. Waiting inside a layer, memory and unequal links
 * are not modelled. Integers only; parts in picoseconds, a chunk is rounded once to nanoseconds. */
#ifndef BALLAST_PLANNER_STEP_TIME_H
#define BALLAST_PLANNER_STEP_TIME_H

#include "planner/model.h"
#include "planner/pipeline.h"
#include "planner/plan.h"

enum recompute { RECOMPUTE_NONE = 0, RECOMPUTE_ATTENTION = 1, RECOMPUTE_FULL = 2 };

struct link_rate {
    uint64_t alpha_ns; /* per collective */
    uint64_t bytes_per_us;
};

struct step_time_options {
    struct model_options shape;
    uint32_t vocab; /* of the language-model head; 0: layers were moved to pay for it */
    uint32_t dp, pp, cp, tp;
    uint32_t micro_batches; /* N, of the whole step */
    uint32_t chunks;        /* v, per stage */
    const uint32_t *layers; /* by virtual stage; NULL: even */
    uint32_t layer_count;   /* of them: pp * chunks */
    enum pipeline_schedule schedule;
    uint32_t send_depth;    /* 0: eager */
    uint32_t sync_replicas; /* 0: replicas meet once a step; s: groups of s replicas meet at every
                               micro-batch, which needs pp = 1 */
    uint32_t node_gpus;
    struct link_rate node;      /* inside a node, and TP */
    struct link_rate network;   /* between nodes */
    uint64_t copy_bytes_per_us; /* of layout copies; 0: the kernels need none */
    uint64_t optimizer_ns;
    enum recompute recompute;
    uint32_t attention_permille; /* calibrated scale of attention */
    uint32_t linear_permille;    /* and of GEMMs and element-wise passes, without the head */
    uint32_t backward_attention_permille;
    uint32_t backward_linear_permille;
    uint32_t exposed_tp_permille; /* shares of communication that compute does not hide */
    uint32_t exposed_cp_permille;
    uint32_t exposed_pp_permille;
    uint32_t exposed_fsdp_permille;
    uint32_t gpu_spread_permille; /* how much slower the slowest GPU is than the mean */
};

/* An H100 cluster of 8-GPU nodes at 400 Gb/s a GPU, 1f1b, nothing exposed, no head; shape and mesh
 * are left 0. */
extern const struct step_time_options step_time_defaults;

/* What one micro-batch asks of one layer. */
struct step_load {
    uint64_t attention_ps;     /* forward, slowest context-parallel rank, unscaled */
    uint64_t attention_sum_ps; /* over the ranks */
    uint64_t rows;             /* of one rank, padding included */
    uint64_t tokens;           /* without padding */
    bool copies;               /* the layout writes K and V out per fragment */
};

/* The loads of a plan's micro-batches, in plan order. Prices every fragment. Those of a pool are
 * all alike: the slowest of its workers, and the mean sum, by the times that the plan predicts of
 * their tiles, of which forward has the share that it has of all rows at home. */
void step_load_of(const struct step_plan *plan, const struct tile_model *tiles,
                  struct step_load *loads);

/* The load of what was dealt last. */
void step_load_of_deal(struct layout_dealer *dealer, struct step_load *out);

/* The load of a sequence in a layout that follows from the lengths alone. `scratch` holds
 * layout_rank_fragments_max(documents). */
void step_load_of_sequence(const struct packed_sequence *sequence, enum layout layout, uint32_t cp,
                           const struct tile_model *tiles, struct fragment *scratch,
                           struct step_load *out);

enum step_cause {
    STEP_ATTENTION = 0,
    STEP_LINEAR, /* GEMMs, element-wise passes, layout copies */
    STEP_HEAD,
    STEP_COMMUNICATION, /* TP, CP, sends, FSDP, as far as exposed */
    STEP_OTHER,         /* optimizer, GPU spread */
    STEP_CAUSES,
};

/* Ratios are the largest over the mean, in ppm. */
struct step_time {
    uint64_t step_ns;
    uint64_t pipeline_ns;            /* of the slowest replica */
    uint64_t causes_ns[STEP_CAUSES]; /* along the critical path; they sum to step_ns */
    uint64_t work_ns;                /* of all operations of all replicas */
    uint32_t group;                  /* the slowest replica, or group of replicas that meet */
    uint32_t owner_dp, owner_index;  /* the micro-batch with the most of the critical path */
    uint64_t owner_ns;
    uint64_t bubble_ppm;          /* of all stages' pipeline time, idle */
    uint64_t micro_batch_ppm;     /* forward of micro-batches (WLB-LLM table 2) */
    uint64_t attention_ppm;       /* attention of micro-batches, all ranks together */
    uint64_t context_ppm;         /* attention of ranks, weighted by tokens */
    uint64_t replica_ppm;         /* work of replicas */
    uint64_t stage_ppm;           /* work of stages, slowest replica: the head's weight */
    uint64_t attention_share_ppm; /* of forward time */
    uint64_t heaviest_ns;         /* the heaviest micro-batch alone through all stages */
    uint64_t even_ns;             /* the pipeline if all micro-batches were their mean */
    uint64_t tp_bytes, cp_bytes, send_bytes, fsdp_bytes; /* mean GPU, whole step */
};

/* Derived once from the options. */
struct step_time_model {
    struct step_time_options options;
    struct pipeline_shape shape;
    uint32_t virtual_stages;
    uint32_t even_layers;  /* of every chunk; 0: some have one more */
    uint32_t stage_layers; /* of the fullest stage */
    uint64_t row_flops;    /* per layer, all TP ranks together, like the next */
    uint64_t row_bytes;
    uint64_t head_flops; /* per row */
    uint64_t kv_bytes;   /* K and V of a token, one layer, one TP rank */
    uint64_t fsdp_ps;
    uint64_t fsdp_bytes;
};

/* Checks and derives; options->layers is borrowed. -EINVAL, naming the option: what pipeline_check
 * and work_model_init refuse, layers that are not all dealt, ga groups with stages, rates of 0,
 * exposed shares above 1000. */
int step_time_init(struct step_time_model *model, const struct step_time_options *options,
                   struct error *error);

/* Bytes of scratch, aligned to 8. */
size_t step_time_bytes(const struct step_time_model *model);

/* The time of a step with these N loads, in plan order. -EDEADLK as pipeline_run. */
int step_time_of(const struct step_time_model *model, const struct step_load *loads, void *scratch,
                 struct step_time *out, struct error *error);

/* The pipeline of a replica, or group that meets, for its operations one by one; it lies in
 * `scratch` and borrows the model. */
int step_time_pipeline(const struct step_time_model *model, const struct step_load *loads,
                       uint32_t group, void *scratch, struct pipeline *out, struct error *error);

/* Forward of a load, scaled: on one layer without the head, ps; and through all stages, ns. */
uint64_t step_time_layer_ps(const struct step_time_model *model, const struct step_load *load);
uint64_t step_time_forward_ns(const struct step_time_model *model, const struct step_load *load);

#endif
