/* planner: the pure function that turns a state and a stream of documents into a plan.
 *
 * A step, for wlb:none and wlb:bands (wlb.c):
 *   read     take parts from the source while fewer than target(k+1) tokens were taken and the
 *            limits allow; a part's nominal step follows from its offset in the stream;
 *   release  parts that belong to a band wait in it, the others are this step's; of those waiting,
 *            queues/bands says which leave; what was left over earlier always does;
 *   fill     while any are left, a step has at least as many documents as micro-batches: the oldest
 *            waiting ones leave, then the stream is read ahead;
 *   pack     packer/greedy assigns documents to micro-batches; what does not fit is left over;
 *            packer/refine levels the packing;
 *   drain    when the stream has ended and at most DRAIN_STEPS steps' worth of tokens are left, or
 *            too few would leave, all of it is packed at once into whole steps (drain.c).
 * wlb:level (level.c) looks some steps ahead of the front instead, lets queues/level choose, fills
 * (shorts first) and packs likewise, then moves the front behind all parts whose nominal step was
 * planned. `plain` (plain.c) concatenates in reading order and cuts every window; `fixed:K`
 * (fixed.c) packs the windows of K steps at once, `pool:P` likewise by best-fit. Then, for all
 * (compose.c): deal micro-batches to replicas and order each pipeline (replicas.c), or group them
 * into pools (pools.c), pad, choose each layout (sharding/select), account for delays and balance,
 * digest. */
#ifndef BALLAST_PLANNER_PLANNER_H
#define BALLAST_PLANNER_PLANNER_H

#include "packer/greedy.h"
#include "planner/error.h"
#include "planner/model.h"
#include "planner/plan.h"
#include "planner/source.h"
#include "planner/state.h"
#include "queues/bands.h"
#include "queues/level.h"

/* The name of what plan_step computes. Bumped whenever any plan would change; part of the job
 * digest, so that a newer binary refuses an older job by name instead of drifting. */
#define PLAN_ALGORITHM_VERSION 5u

/* Largest values of the options. Within them every sum stays within 63 bits, or is refused. */
#define TOKENS_MAX_LIMIT    (1u << 26)          /* window, tokens_max */
#define STEP_TOKENS_LIMIT   (UINT64_C(1) << 36) /* micro_batches * tokens_max, and * window */
#define MICRO_BATCHES_LIMIT (1u << 16)
#define RANKS_LIMIT         (1u << 12) /* dp, pp, cp, tp each */
#define PARTS_LIMIT         (1u << 24) /* documents_max, waiting_max */
#define BACKLOG_LIMIT       (1u << 16)

#define BANDS_AUTO UINT32_MAX /* bands.bands: 3/8 and 5/8 of the window */
#define LEVEL_AUTO UINT32_MAX /* a parameter of level: the preset's */
#define LEVEL_AUTO_OPTIONS                                                                         \
    {                                                                                              \
        .token_tolerance = LEVEL_AUTO, .headroom_share = LEVEL_AUTO, .allowance = LEVEL_AUTO,      \
        .allowance_urgent = LEVEL_AUTO, .allowance_ramp = LEVEL_AUTO, .urgency_power = LEVEL_AUTO, \
        .imbalance_price = LEVEL_AUTO, .max_age = LEVEL_AUTO, .max_backlog = LEVEL_AUTO,           \
        .look_ahead = LEVEL_AUTO, .horizon = LEVEL_AUTO, .candidate_length = LEVEL_AUTO,           \
        .companion = LEVEL_AUTO, .max_evaluations = LEVEL_AUTO, .fit_window = LEVEL_AUTO           \
    }
#define DRAIN_STEPS 4u
#define REFINE_NOT  UINT32_MAX /* refine_gap_ppm: packings stay as they are */

enum policy {
    POLICY_PLAIN = 0,     /* concatenate in reading order, cut every `window` tokens */
    POLICY_WLB_NONE = 1,  /* variable length, nothing waits */
    POLICY_WLB_BANDS = 2, /* variable length, outliers in bands */
    POLICY_WLB_LEVEL = 3, /* variable length, outliers where a step hides them */
    POLICY_POOL = 4,      /* full windows, with documents whole where they fit */
    POLICY_FIXED = 64,    /* POLICY_FIXED + K: fixed windows over K global batches at a time */
};

#define FIXED_BATCHES_MAX 64u
#define PLAN_SECTIONS_MAX 256u

enum loss_denominator { LOSS_CONSTANT = 0, LOSS_LABEL_TOKENS = 1 };

/* Pooled attention (Libra): `size` replicas share the attention of their micro-batches. */
struct pools_options {
    uint32_t size;         /* P, divides dp; 0: no pools */
    uint32_t look_ahead;   /* POLICY_POOL: steps whose windows are filled at once by best-fit; 0:
                              documents are concatenated and cut, as plain does */
    uint32_t head_shards;  /* H; 0: the most of 4, 2, 1 that divide the K/V heads */
    uint32_t block_tokens; /* B; 0: 1/64 of the window, 128 to 8192 */
    bool swaps;            /* level the pools by swaps */
    bool snake;            /* order of pools in the step (packer/pools.h) */
    bool chain;            /* K/V is passed on (sharding/pool_exchange.h) */
};

/* What a job's later sections must keep to, or hold because of those before them (section.c). */
struct plan_bounds {
    uint32_t part_limit;      /* longest part, that of step 0; 0: by these options alone */
    uint32_t parts_max;       /* parts that a state may hold, when more than waiting_max */
    uint64_t tokens_held_max; /* tokens that may wait, when more than these options let */
};

struct plan_options {
    enum policy policy;
    uint32_t window;        /* nominal context length, tokens */
    uint32_t micro_batches; /* N, of the whole step; dp divides it */
    uint32_t dp, pp, cp, tp;
    uint64_t tokens_max;        /* S_max: bound of one micro-batch, padding included (config) */
    uint64_t step_tokens;       /* T; 0: min(N*window, 95 % of what N micro-batches hold, that is
                                   tokens_max rounded down to the row unit); plain, fixed: N*window */
    uint32_t documents_max;     /* parts in one step, at most: reading stops there; for fixed in all
                               the steps that are packed at once */
    uint32_t waiting_max;       /* parts held, this step's and those that level looks at ahead
                                   included, at most: reading stops there; >= documents_max */
    uint64_t backlog_max;       /* tokens held beyond a step's T, in steps' worth: reading stops
                                   when there are more; level's backlog is bounded by its clock */
    struct bands_options bands; /* bands may be BANDS_AUTO; group is set to micro_batches */
    enum level_preset level_preset; /* what LEVEL_AUTO stands for */
    struct level_options level; /* parameters may be LEVEL_AUTO; bins, bin_tokens, step_tokens and
                                   token_work are set */
    enum pack_search search;
    uint32_t refine_gap_ppm; /* a packing is refined until its heaviest micro-batch is as near to
                                what no packing can beat; REFINE_NOT */
    enum loss_denominator loss_denominator;
    struct layout_options layouts; /* link is set */
    bool keys_needed_only;         /* exchange K and V of the rows that ranks need, no others */
    struct pools_options pools;
    struct model_options model;
    struct plan_bounds bounds; /* {0} in the first section; resolving leaves it */
};

/* Options in force from a step on, up to the next section's. */
struct plan_section {
    uint64_t step;  /* the first; 0 in the first section, ascending */
    uint32_t blend; /* the source's, for what is read from then on; 0 in the first section, as
                       before or one more in those after it */
    struct plan_options options; /* resolved */
};

/* Checks every relation between the options and fills derived defaults in place (step_tokens,
 * bands, level). Refuses with -EINVAL, naming the key, the value, what would fit; options are then
 * as before. Resolving twice changes nothing. */
int plan_options_resolve(struct plan_options *options, struct error *error);

/* Resolves options that follow on `before` (resolved) within a job: takes over its bounds and
 * refuses, as above, what may not change: policy, window, with fixed:K of several steps
 * micro_batches, and micro-batches that cannot hold the job's longest parts. */
int plan_options_follow(struct plan_options *options, const struct plan_options *before,
                        struct error *error);

/* Rows a micro-batch is rounded up to: lcm(2*CP, CP*TP). */
uint64_t plan_row_unit(const struct plan_options *options);

/* What a micro-batch may hold before padding: tokens_max rounded down to the row unit. */
uint64_t plan_bin_tokens(const struct plan_options *options);

/* Longest part: min(window, plan_bin_tokens), or bounds.part_limit. */
uint32_t plan_part_limit(const struct plan_options *options);

/* Parts that a state may hold: waiting_max or bounds.parts_max. */
uint32_t plan_parts_max(const struct plan_options *options);

/* Tokens that may wait, at most: by these options, or by those before them. */
uint64_t plan_tokens_held_max(const struct plan_options *options);

/* Policy <-> name ("plain", "fixed:1" to "fixed:64", "wlb:none", "wlb:bands", "wlb:level"; "pool"
 * has no name that parses without its size). NULL for a number, -EINVAL for a name that is none. */
const char *policy_name(enum policy policy);
int policy_parse(const char *name, enum policy *out);

/* The same with the size of pools: "pool:P", "wlb:level+pool:P", or a name as above, size 0. */
void policy_pool_name(enum policy policy, uint32_t pool_size, char out[POLICY_NAME_BYTES]);
int policy_pool_parse(const char *name, enum policy *policy, uint32_t *pool_size);

/* K of fixed:K, 0 for the others. */
uint32_t policy_batches(enum policy policy);

/* Steps whose windows are filled at once: K of fixed:K, look_ahead of pool:P, 0 for the others. */
uint32_t plan_batches(const struct plan_options *options);

/* Whether it fills windows exactly and cuts documents where they are full: plain, fixed, pool. */
bool policy_cuts(enum policy policy);

/* Working memory and the derived tables of one planner; one thread at a time. */
struct planner;

/* `options` are copied (resolved already); the source is borrowed and must outlive the planner.
 * NULL with the reason in `error`. */
struct planner *planner_create(const struct plan_options *options,
                               const struct document_source *source, struct error *error);

/* Likewise for the last of `count` sections (borrowed, to outlive the planner): it plans the steps
 * from that section's on. Its states hold up to `parts_max` parts (at least plan_parts_max). */
struct planner *planner_create_section(const struct plan_section *sections, uint32_t count,
                                       uint32_t parts_max, const struct document_source *source,
                                       struct error *error);
void planner_destroy(struct planner *planner);

const struct plan_options *planner_options(const struct planner *planner);
const struct work_model *planner_model(const struct planner *planner);

/* Parts in hand while the last step was planned: what queues.waiting_max bounds. */
uint32_t planner_in_hand(const struct planner *planner);

/* A state at step 0, sized for this planner. The caller owns it. */
struct plan_state *planner_state_create(const struct planner *planner);

/* Plans state->step. In the first step of a section a drain that was begun is given up, to be
 * decided anew, and the stream is blended anew behind all that has arrived or was delivered.
 * Returns 1 with a plan (the caller owns it) and the following state in `next`
 * (created by planner_state_create; may not be `state`), 0 when no document is left (there is no
 * such step; `next` untouched), negative on failure (-ENOMEM only; `next` untouched).
 * No clock, no randomness: same (state, source, options), same bytes. Allocates nothing but the
 * plan. `state` is one that plan_step or planner_state_create made, or that planner_check_state has
 * accepted. */
int plan_step(struct planner *planner, const struct plan_state *state, struct plan_state *next,
              struct step_plan **plan, struct error *error);

/* Checks a decoded state against the corpus and the options (of the step before it): every waiting
 * part and the open document must exist with these lengths, no part is longer than the limit, no
 * more waits than the limits let, a drain has this many micro-batches a step, what was delivered
 * early has these tokens. Where the cursor stands is the source's to check, and before this: the
 * stream is read from it. -EBADMSG with dataset and document named. */
int planner_check_state(struct planner *planner, const struct plan_state *state,
                        struct error *error);

#endif
