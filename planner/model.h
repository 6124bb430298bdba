/* model: what a document is predicted to cost, as the packer and the queues see it.
 *
 * W(document) = W_a(length) + W_l(length): attention, quadratic, plus everything else, linear
 * through 0, so work adds up over the documents of a micro-batch (WLB-LLM eq. 2). One pipeline
 * stage, one context-parallel rank's share, forward + backward, in ns.
 * W_a comes from sharding's tile cost as a monotone table with linear interpolation, exact at every
 * 128 tokens up to 4096 and then at steps of at most 1/16. W_l counts, per token and layer of a
 * Llama-like block, 2(2*h*hq*d + 2*h*hkv*d + 3*h*ffn) FLOPs and 22 passes of h bf16 values over
 * memory (norms 4, residual adds 6, RoPE 4, gated activation 8), each three times for forward +
 * backward, all divided by TP. A latency profile replaces the tile cost's figures, and those of W_l
 * if it was measured with this shape and TP. `cost = L2/C` prices W = L*(L+C) in plain numbers
 * instead. */
#ifndef BALLAST_PLANNER_MODEL_H
#define BALLAST_PLANNER_MODEL_H

#include "planner/error.h"
#include "sharding/cost.h"

#include <stdbool.h>
#include <stdint.h>

#define WORK_KNOTS_MAX           512u
#define MODEL_PROFILE_HASH_BYTES 16u
#define MODEL_DEGREES_MAX        16u
#define MODEL_LINKS_MAX          16u

/* W_l of a row and a layer, forward + backward, on a tensor-parallel rank. */
struct model_degree {
    uint32_t tp;
    uint64_t row_ps;
};

/* An all-to-all of unequal counts between so many ranks. */
struct model_link {
    uint32_t ranks;
    uint64_t alpha_ps;
    uint64_t bytes_per_us; /* received by a rank */
};

/* What planning takes from a latency profile (profile/profile.h); {0}: there is none, and all is
 * analytic. A value, so that options may be copied. */
struct model_profile {
    bool used;
    char name[17];                          /* of its file */
    uint8_t hash[MODEL_PROFILE_HASH_BYTES]; /* of its figures and its key */
    uint32_t head_dim;
    uint32_t group; /* query heads a K/V head */
    uint32_t sms;
    struct tile_direction forward;
    struct tile_direction backward;
    uint32_t hidden, ffn, q_heads, kv_heads; /* that the linear part was measured with */
    uint32_t degree_count;
    struct model_degree degrees[MODEL_DEGREES_MAX];
    uint32_t link_count;
    struct model_link links[MODEL_LINKS_MAX];
};

/* The [model] section: global shape and the machine's rates. */
struct model_options {
    uint32_t layers;
    uint32_t hidden;
    uint32_t ffn;
    uint32_t q_heads;  /* of the whole model */
    uint32_t kv_heads; /* of the whole model; fewer than tp are replicated */
    uint32_t head_dim;
    uint32_t sm_margin;
    uint64_t gemm_flops_per_ns;   /* 600,000: 600 TFLOP/s */
    uint64_t memory_bytes_per_us; /* 2,800,000: 2.8 TB/s */
    uint64_t link_bytes_per_us;   /* between the ranks of a group, each way; 0: what attention waits
                                     for exchanges is not priced */
    uint64_t link_latency_ns;     /* of one collective of theirs */
    uint64_t cost_linear;         /* C of `cost = L2/C`; 0: the tile model prices packing as well */
    struct model_profile profile;
};

struct work_model {
    struct tile_model tiles;               /* prices layouts, always */
    uint64_t cost_linear;                  /* as above */
    uint32_t knots;                        /* 0 with cost_linear */
    uint32_t lengths[WORK_KNOTS_MAX];      /* strictly ascending, [0] = 0 */
    uint64_t attention_ps[WORK_KNOTS_MAX]; /* W_a of one stage and CP share, non-decreasing */
    uint64_t row_ps;                       /* W_l per row of a rank, one stage */
    uint32_t cp;                           /* a token is 1/cp of a row on every rank */
    uint32_t stage_layers;                 /* ceil(layers / pp) */
    char name[64];                         /* "analytic", the profile's name, or "cost:L2/24576" */
};

/* What the profile says of the linear part for this shape: ps of a row and a layer; 0: nothing, so
 * that the rates of [model] serve. */
uint64_t model_profile_row_ps(const struct model_options *options, uint32_t tp);

/* The link between the `cp` ranks of a group: the profile's, else that of [model], whose rate of 0
 * says that it is not priced. */
struct model_link model_link_of(const struct model_options *options, uint32_t cp);

/* Whether it is the profile's. */
bool model_profile_has_link(const struct model_options *options, uint32_t cp);

/* Query heads that share a K/V head on a tensor-parallel rank, 0 where tp does not divide them. */
uint32_t model_group(const struct model_options *options, uint32_t tp);

/* What prices tiles, for people. */
static inline const char *model_prices(const struct model_options *options) {
    return options->profile.used ? options->profile.name : "the analytic model";
}

/* Builds the tables for lengths up to length_max. Refuses with -EINVAL, naming the key and the
 * remedy: sizes and rates of 0, pp > layers, head counts that tp does not divide (or, for K/V
 * heads, is not a multiple of), a head_dim without figures, a profile of other heads, prices beyond
 * 63 bits. */
int work_model_init(struct work_model *model, const struct model_options *options, uint32_t cp,
                    uint32_t pp, uint32_t tp, uint32_t length_max, struct error *error);

/* W of one document part; monotone in length, 0 for 0 and only for 0 (an empty micro-batch is
 * always lighter than one with a document); length <= length_max. */
uint64_t work_of(const struct work_model *model, uint32_t length);

/* W_l of `rows` rows of one context-parallel rank, one stage, ns (MicroBatch.other_ns). */
uint64_t work_other_ns(const struct work_model *model, uint64_t rows);

#endif
