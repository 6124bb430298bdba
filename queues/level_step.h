/* level_step: what the parts of level_decide share. Private to queues/.
 *
 * A *run* is a set of candidates that may leave together: all due ones, and from the longest of
 * the run down every candidate of the pool, present or a companion from ahead, until one has no
 * room in tokens_most. The pool is in ascending (length, stream index), so a run is a range of it,
 * and sums over runs are differences of prefix sums: one for what is present, one for what lies
 * ahead. */
#ifndef BALLAST_QUEUES_LEVEL_STEP_H
#define BALLAST_QUEUES_LEVEL_STEP_H

#include "queues/level.h"

#define LEVEL_ONE 65536u /* fractions in decisions */

/* Prediction for documents that do not fit the bins. */
#define LEVEL_MISFIT UINT64_MAX

enum level_kind {
    KIND_BEYOND = 0, /* nominal step further than look_ahead */
    KIND_AHEAD,      /* nominal step ahead, within look_ahead */
    KIND_PRESENT,
    KIND_DUE,
};

struct level_sums {
    __int128 score; /* tokens times twice the age and 1 of what is present, less tokens times steps
                       ahead */
    uint64_t tokens;
    uint64_t works;
    uint32_t documents;
};

/* Members: what is due, wherever it is; what is present in [low, end); what lies ahead in
 * [max(low, low_ahead), end). */
struct level_run {
    struct level_sums sums; /* score without the due ones, documents: those ahead */
    uint64_t age;           /* of its oldest member that is not due; 0 if all lie ahead */
    uint32_t low;
    uint32_t low_ahead;
    uint32_t end; /* behind its longest, 0: what is due alone */
};

struct level_step {
    const struct level_options *options;
    const struct level_view *view;
    struct level_decision *decision;
    uint64_t step;
    uint64_t short_rate;   /* work of a token of the next shorts, in 1/65536 */
    uint64_t short_tokens; /* of the shortest prefix of them that exceeds tokens_base, or of all */

    /* By candidate. */
    uint8_t *kinds;
    uint32_t *oldest; /* due: a heap; runs: a stack */
    struct level_sums *present;
    struct level_sums *ahead; /* prefix sums, one longer */
    struct level_sums due;
    uint32_t due_end; /* behind the longest due candidate, 0: none */

    /* Runs by their longest candidate: without companions, then with companions; last what is due
     * alone. */
    struct level_run *runs;
    uint32_t *kept; /* indexes of those to look at */
    uint32_t kept_count;

    /* A release in bins. */
    uint64_t *bin_works;
    uint64_t *bin_tokens;
    void *bins_scratch;
};

/* floor(ppm / 10^6) in 1/65536. */
static inline uint64_t level_fraction(uint32_t ppm) {
    return (uint64_t)ppm * LEVEL_ONE / LEVEL_PPM;
}

/* The kinds of all candidates, what is due, and all runs (level_runs.c). */
void level_runs_build(struct level_step *step);

/* Work of the longest document of a run, 0 for no document. */
static inline uint64_t level_run_longest(const struct level_step *step,
                                         const struct level_run *run) {
    uint32_t end = run->end > step->due_end ? run->end : step->due_end;
    return end > 0 ? step->view->works[end - 1] : 0;
}

/* Whether candidate i leaves with the run. */
bool level_run_has(const struct level_step *step, const struct level_run *run, uint32_t i);

/* Places the members of a run (level_forecast.c). False when they do not all fit the bins. */
bool level_forecast_place(struct level_step *step, const struct level_run *run);

/* Predicted imbalance in 1/65536 of a step of `tokens` with the run that was placed. */
uint64_t level_forecast_pour(const struct level_step *step, const struct level_run *run,
                             uint64_t tokens);

#endif
