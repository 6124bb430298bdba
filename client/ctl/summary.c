/* summary: see summary.h. */
#include "client/ctl/summary.h"

#include <stdlib.h>
#include <string.h>

typedef unsigned __int128 u128;

static int u64_compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* One field of every step, ascending in scratch. Returns the sum. */
static u128 field_sort(const struct step_figures *steps, size_t count, size_t offset,
                       uint64_t *scratch) {
    u128 sum = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(&scratch[i], (const char *)&steps[i] + offset, sizeof scratch[i]);
        sum += scratch[i];
    }
    qsort(scratch, count, sizeof scratch[0], u64_compare);
    return sum;
}

/* Nearest rank: the smallest value that `percent` of all do not exceed. */
static uint64_t percentile(const uint64_t *sorted, size_t count, size_t percent) {
    return sorted[(count * percent + 99) / 100 - 1];
}

static u128 square_root(u128 value) {
    u128 root = 0;
    for (int bit = 63; bit >= 0; bit--) {
        u128 larger = root | (u128)1 << bit;
        if (larger * larger <= value) {
            root = larger;
        }
    }
    return root;
}

/* sqrt(n * sum(x^2) - sum(x)^2) / sum(x). */
static uint64_t variation_ppm(const uint64_t *values, size_t count, u128 sum) {
    u128 squares = 0;
    for (size_t i = 0; i < count; i++) {
        squares += (u128)values[i] * values[i];
    }
    return sum == 0 ? 0 : (uint64_t)(square_root(count * squares - sum * sum) * 1000000 / sum);
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
    out->tokens_cv_ppm = variation_ppm(scratch, count, sum);
    sum = field_sort(steps, count, offsetof(struct step_figures, total_ppm), scratch);
    out->total_ppm_mean = (uint64_t)(sum / count);
    out->total_ppm_p99 = percentile(scratch, count, 99);
    out->total_ppm_worst = scratch[count - 1];
    sum = field_sort(steps, count, offsetof(struct step_figures, attention_ppm), scratch);
    out->attention_ppm_mean = (uint64_t)(sum / count);
    sum = field_sort(steps, count, offsetof(struct step_figures, context_ppm), scratch);
    out->context_ppm_mean = (uint64_t)(sum / count);
    (void)field_sort(steps, count, offsetof(struct step_figures, plan_ns), scratch);
    out->plan_ns_p50 = percentile(scratch, count, 50);
    out->plan_ns_p99 = percentile(scratch, count, 99);
    out->delay_mean_milli = steps[count - 1].delay_mean_milli;
    out->delay_max = steps[count - 1].delay_max;
}
