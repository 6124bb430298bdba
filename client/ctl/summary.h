/* summary: what a run of steps comes to, in integers: means, nearest-rank percentiles, spread. */
#ifndef BALLAST_CTL_SUMMARY_H
#define BALLAST_CTL_SUMMARY_H

#include <stddef.h>
#include <stdint.h>

/* One planned step. */
struct step_figures {
    uint64_t tokens;
    uint64_t total_ppm;
    uint64_t attention_ppm;
    uint64_t context_ppm;
    uint64_t delay_mean_milli; /* since step 0, like the next */
    uint64_t delay_max;
    uint64_t plan_ns;
};

struct summary {
    uint64_t steps;
    uint64_t tokens;        /* of all steps */
    uint64_t tokens_cv_ppm; /* standard deviation of a step's tokens over their mean */
    uint64_t total_ppm_mean;
    uint64_t total_ppm_p99;
    uint64_t total_ppm_worst;
    uint64_t attention_ppm_mean;
    uint64_t context_ppm_mean;
    uint64_t delay_mean_milli;
    uint64_t delay_max;
    uint64_t plan_ns_p50;
    uint64_t plan_ns_p99;
};

/* `scratch` holds `count` values. All zero for count 0. */
void summary_of(const struct step_figures *steps, size_t count, uint64_t *scratch,
                struct summary *out);

#endif
