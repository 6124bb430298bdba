/* measured: how long micro-batches really took and what experts received, as trainers say with
 * Commit.
 *
 * For each of the last steps: of each local micro-batch the slowest rank's times, and by index the
 * fullest expert among all ranks. A rank reports a step once; repeated commits change nothing.
 * A step is reported long after it was given to the last rank, when its plan is in memory no more:
 * what is compared is noted when the step is given. Told, never acted on: plans do not depend on
 * it. Loop thread only. */
#ifndef BALLAST_DAEMON_MEASURED_H
#define BALLAST_DAEMON_MEASURED_H

#include "planner/plan.h"

#include <stdbool.h>

#define MEASURED_STEPS 16u

/* Sums over micro-batches of one index. */
struct expert_load {
    uint64_t largest; /* tokens of one expert */
    uint64_t experts;
    unsigned __int128 tokens;
};

/* What of a step's plan its reports are compared with. */
struct measured_plan {
    bool known;
    uint64_t step;
    uint32_t micro_batches; /* of each replica; not above those of measured_init */
    uint64_t input_ppm;
    struct balance balance;
};

struct measured_step {
    uint64_t step;
    uint32_t reports;          /* ranks that reported; 0: nothing is known of the step */
    struct measured_plan plan; /* of this step */
};

struct measured {
    uint32_t replicas;                          /* local */
    uint32_t micro_batches;                     /* of each, at most */
    uint32_t ranks;                             /* local */
    struct measured_step steps[MEASURED_STEPS]; /* replaced round robin by step; as are */
    struct measured_plan plans[MEASURED_STEPS]; /* those that ranks were given, ahead of reports */
    uint64_t *total_ns; /* by step, replica, index; 0: not measured; like the next */
    uint64_t *attention_ns;
    struct expert_load *experts; /* by step, index */
    bool *reported;              /* by step, rank */
};

/* What is known of a step, ppm as in ballast.proto's MeasuredStep. */
struct measured_ratios {
    uint64_t total_ppm;
    uint64_t attention_ppm;
    uint64_t expert_ppm;
};

/* -ENOMEM. */
int measured_init(struct measured *measured, uint32_t replicas, uint32_t micro_batches,
                  uint32_t ranks);
void measured_deinit(struct measured *measured); /* fine for a zeroed one */

/* A rank was given the whole step of this plan. */
void measured_give(struct measured *measured, const struct step_plan *plan);

/* Begins a rank's report (< ranks); false: it reported this step already, or the step is forgotten
 * for newer ones, and nothing may be added. */
bool measured_begin(struct measured *measured, uint64_t step, uint32_t rank);

/* The job goes back or on: what was reported is forgotten. */
void measured_rewind(struct measured *measured);

/* After measured_begin, of that step. Times of 0 are none. */
void measured_add_times(struct measured *measured, uint64_t step, uint32_t replica, uint32_t index,
                        uint64_t total_ns, uint64_t attention_ns);
void measured_add_experts(struct measured *measured, uint64_t step, uint32_t index,
                          const uint64_t *tokens, size_t count);

/* The newest step before `committed` of which something was reported; NULL without any. */
const struct measured_step *measured_newest(const struct measured *measured, uint64_t committed);

/* The same for one step. */
const struct measured_step *measured_find(const struct measured *measured, uint64_t step);

struct measured_ratios measured_ratios(const struct measured *measured, uint64_t step);

#endif
