/* measure: what one trial comes to over its counted steps, in integers.
 *
 * Plans the steps with the daemon's own planner, times each with planner/step_time, and keeps
 * means, nearest-rank percentiles and the few figures of every step that plots want. Warm-up steps
 * are planned first and left out of everything, delays too. */
#ifndef BALLAST_CTL_MEASURE_H
#define BALLAST_CTL_MEASURE_H

#include "client/ctl/scenario.h"
#include "corpus/domains.h"
#include "planner/calibrate.h"

#include <stdio.h>

#define MEASURE_DELAYS   1025u /* delays of 0 to 1023 steps, and longer ones */
#define MEASURE_VARIANTS 4u    /* attention - 10 %, + 10 %, a chunk less, a chunk more */

struct measurement;

struct measure_options {
    uint64_t steps;                 /* counted, > 0 */
    uint64_t warm_up;               /* before them */
    struct step_time_options times; /* shape and mesh come from the trial */
    bool vary;                      /* whether variants_ns is wanted */
    const struct domains *domains;  /* by which delivery is counted; NULL: not */
    /* Asked after every counted step, with outcome.steps and steps up to date: true ends the trial
     * there. NULL: never. */
    bool (*enough)(void *context, const struct measurement *so_far);
    void *context;
};

/* One counted step. */
struct step_sample {
    uint64_t tokens;
    uint64_t token_delays; /* sum over its tokens, steps */
    uint64_t total_ppm;
    uint64_t plan_ns;
    uint64_t step_ns;
};

/* Means over the counted steps unless said otherwise. */
struct outcome {
    uint64_t attention_ppm;       /* exact pairs of micro-batches */
    uint64_t attention_share_ppm; /* of forward time */
    uint64_t bound_ppm;
    uint64_t bubble_ppm;
    uint64_t context_ppm;
    uint64_t cp_bytes;
    uint64_t critical_attention_ppm; /* of the critical path, like the next four */
    uint64_t critical_communication_ppm;
    uint64_t critical_head_ppm;
    uint64_t critical_linear_ppm;
    uint64_t critical_other_ppm;
    uint64_t delay_max;
    uint64_t delay_mean_milli; /* token-weighted, like the next */
    uint64_t delay_p99;
    uint64_t even_ns;
    uint64_t fsdp_bytes;
    uint64_t heaviest_ns;
    uint64_t long_share_ppm;  /* of the tokens: those of documents over a quarter window */
    uint64_t long_weight_ppm; /* of such a token, beside a mean one, with the loss averaged over a
                                 step's own tokens; a constant denominator makes it 1 */
    uint64_t micro_batch_ppm;
    uint64_t owner_ppm;        /* the share that one micro-batch has of the critical path */
    uint64_t p99_ppm;          /* of total_ppm, like worst_ppm */
    uint64_t per_document_ppm; /* micro-batches laid out so */
    uint64_t plan_ns_p50;
    uint64_t plan_ns_p99;
    uint64_t replica_ppm;
    uint64_t send_bytes;
    uint64_t stage_ppm;
    uint64_t step_ns;
    uint64_t step_ns_max;
    uint64_t step_ns_p50;
    uint64_t step_ns_p99;
    uint64_t steps;  /* how many */
    uint64_t tokens; /* of all steps */
    uint64_t tokens_cv_ppm;
    uint64_t tokens_off_ppm; /* largest distance of a step's tokens from plan.step_tokens */
    uint64_t tokens_per_gpu_second;
    uint64_t total_ppm;
    uint64_t tp_bytes;
    uint64_t waiting_tokens_max;
    uint64_t worst_ppm;
};

struct measurement {
    struct outcome outcome;
    struct step_sample *steps;       /* outcome.steps of them; owned */
    uint64_t delays[MEASURE_DELAYS]; /* tokens by delay */
    struct step_time_model model;
    struct domain_tally *domains;           /* of the counted steps, or NULL; owned */
    struct step_load *loads;                /* of the first counted step; owned */
    struct step_time first;                 /* and its time */
    uint64_t variants_ns[MEASURE_VARIANTS]; /* sum of step times, in long runs from some of the
                                               steps; 0: no such schedule, or not asked for */
};

/* The names and values of an outcome, sorted by name; `i` below outcome_fields(). */
size_t outcome_fields(void);
const char *outcome_name(size_t i);
uint64_t outcome_value(const struct outcome *outcome, size_t i);

/* Runs a trial from step 0. The data may end before `steps`; -ENOENT when they end within the
 * warm-up. measurement_deinit frees what it holds, and takes a zeroed one. */
int measure(struct trial *trial, const char *what, const struct measure_options *options,
            struct measurement *out, struct error *error);
void measurement_deinit(struct measurement *measurement);

/* Step times of a trial's job: `times` with the config's shape and mesh. */
int measure_model(const struct trial *trial, const struct step_time_options *times,
                  struct step_time_model *out, struct error *error);

/* The loads of up to `steps` steps of a trial from step 0, for calibration; `*out` is the caller's
 * to free. Returns how many steps, or a negative errno. */
int64_t measure_loads(struct trial *trial, uint64_t steps, struct step_load **out,
                      struct error *error);

/* Tokens a second of `a` over those of `b`, ppm; 0 when either has none. */
uint64_t measure_speedup_ppm(uint64_t a_tokens, uint64_t a_ns, uint64_t b_tokens, uint64_t b_ns);

/* Sum of step times. */
uint64_t measurement_ns(const struct measurement *measurement);

#endif
