/* planner: the pure function that turns a state and a stream of documents into a plan.
 *
 * Life of a step here: read what reading order gives this step (source), hold outliers back or
 * release them (queues/bands), assign documents to micro-batches (packer/greedy, or concatenate
 * and cut for `plain`), deal them to replicas and order each pipeline (deal.c), pad, choose each
 * layout (sharding/select), compose (plan.c) and digest. */
#ifndef BALLAST_PLANNER_PLANNER_H
#define BALLAST_PLANNER_PLANNER_H

#include "packer/greedy.h"
#include "planner/error.h"
#include "planner/model.h"
#include "planner/plan.h"
#include "planner/source.h"
#include "planner/state.h"
#include "queues/bands.h"

/* The name of what plan_step computes. Bumped whenever any plan would change; part of the job
 * digest, so that a newer binary refuses an older job by name instead of drifting. */
#define PLAN_ALGORITHM_VERSION 1u

#define TOKENS_MAX_LIMIT (1u << 26) /* largest window and tokens_max: work stays within 63 bits */

enum policy {
    POLICY_PLAIN = 0,     /* concatenate in reading order, cut every `window` tokens */
    POLICY_WLB_NONE = 1,  /* variable length, nothing waits */
    POLICY_WLB_BANDS = 2, /* variable length, outliers in bands */
};

enum loss_denominator { LOSS_CONSTANT = 0, LOSS_LABEL_TOKENS = 1 };

struct plan_options {
    enum policy policy;
    uint32_t window;        /* nominal context length, tokens */
    uint32_t micro_batches; /* N, of the whole step; dp divides it */
    uint32_t dp, pp, cp, tp;
    uint64_t tokens_max;        /* S_max: bound of one micro-batch, padding included (config) */
    uint64_t step_tokens;       /* T; 0: min(N*window, 95 % of N*tokens_max); plain: N*window */
    uint32_t documents_max;     /* parts in one step, at most: reading stops there */
    uint32_t waiting_max;       /* parts waiting, at most: reading stops there */
    uint64_t backlog_max;       /* tokens waiting, at most, in steps' worth: reading stops there */
    struct bands_options bands; /* group is set to micro_batches by plan_options_resolve */
    enum pack_search search;
    enum loss_denominator loss_denominator;
    struct layout_options layouts;
    struct model_options model;
};

/* Checks every relation between the options and fills derived defaults in place (step_tokens,
 * bands.group). Refusals name the key, the value, what would fit. */
int plan_options_resolve(struct plan_options *options, struct error *error);

/* Rows a micro-batch is rounded up to: lcm(2*CP, CP*TP). */
uint64_t plan_row_unit(const struct plan_options *options);

/* Longest part: min(window, tokens_max rounded down to the row unit). */
uint32_t plan_part_limit(const struct plan_options *options);

/* Policy <-> name ("plain", "wlb:none", "wlb:bands"). -EINVAL for unknown names. */
const char *policy_name(enum policy policy);
int policy_parse(const char *name, enum policy *out);

/* Working memory and the derived tables of one planner; one thread at a time. */
struct planner;

/* `options` are copied (resolved already); the source is borrowed and must outlive the planner.
 * NULL with the reason in `error`. */
struct planner *planner_create(const struct plan_options *options,
                               const struct document_source *source, struct error *error);
void planner_destroy(struct planner *planner);

const struct plan_options *planner_options(const struct planner *planner);
const struct work_model *planner_model(const struct planner *planner);

/* A state at step 0, sized for this planner. The caller owns it. */
struct plan_state *planner_state_create(const struct planner *planner);

/* Plans state->step. Returns 1 with a plan (the caller owns it) and the following state in `next`
 * (created by planner_state_create; may not be `state`), 0 when no document is left (there is no
 * such step; `next` untouched), negative on failure (-ENOMEM only; `next` untouched).
 * No clock, no randomness: same (state, source, options), same bytes. */
int plan_step(struct planner *planner, const struct plan_state *state, struct plan_state *next,
              struct step_plan **plan, struct error *error);

/* Checks a decoded state against the corpus and the options: every waiting part and the open
 * document must exist with these lengths. -EBADMSG with dataset and document named. */
int planner_check_state(const struct planner *planner, const struct plan_state *state,
                        struct error *error);

#endif
