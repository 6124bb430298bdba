/* summary: see summary.h. */
#include "client/ctl/summary.h"

#include "client/ctl/statistics.h"

#include <string.h>

typedef unsigned __int128 u128;

/* One field of every step, ascending in scratch. Returns the sum. */
static u128 field_sort(const struct step_figures *steps, size_t count, size_t offset,
                       uint64_t *scratch) {
    u128 sum = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(&scratch[i], (const char *)&steps[i] + offset, sizeof scratch[i]);
        sum += scratch[i];
    }
    statistics_sort(scratch, count);
    return sum;
}

void summary_of(const struct step_figures *steps, size_t count, uint64_t *scratch,
                struct summary *out) {
    memset(out, 0, sizeof *out);
    if (count == 0) {
        return;
    }
    u128 sum = field_sort(steps, count, offsetof(struct step_figures, tokens), scratch);
    out->steps = count;
    out->tokens = (uint64_t)sum;
    out->tokens_cv_ppm = statistics_variation_ppm(scratch, count);
    sum = field_sort(steps, count, offsetof(struct step_figures, total_ppm), scratch);
    out->total_ppm_mean = (uint64_t)(sum / count);
    out->total_ppm_p99 = statistics_percentile(scratch, count, 99);
    out->total_ppm_worst = scratch[count - 1];
    sum = field_sort(steps, count, offsetof(struct step_figures, attention_ppm), scratch);
    out->attention_ppm_mean = (uint64_t)(sum / count);
    sum = field_sort(steps, count, offsetof(struct step_figures, context_ppm), scratch);
    out->context_ppm_mean = (uint64_t)(sum / count);
    (void)field_sort(steps, count, offsetof(struct step_figures, plan_ns), scratch);
    out->plan_ns_p50 = statistics_percentile(scratch, count, 50);
    out->plan_ns_p99 = statistics_percentile(scratch, count, 99);
    out->delay_mean_milli = steps[count - 1].delay_mean_milli;
    out->delay_max = steps[count - 1].delay_max;
}
