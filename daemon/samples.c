/* samples: see samples.h. */
#include "daemon/samples.h"

#include <stdlib.h>
#include <string.h>

void samples_add(struct samples *samples, uint64_t value) {
    samples->values[samples->count++ % SAMPLES_KEPT] = value;
}

static int samples_compare(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left;
    uint64_t b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

uint64_t samples_percentile(const struct samples *samples, uint32_t percent) {
    uint64_t sorted[SAMPLES_KEPT];
    uint64_t kept = samples->count < SAMPLES_KEPT ? samples->count : SAMPLES_KEPT;
    if (kept == 0) {
        return 0;
    }
    memcpy(sorted, samples->values, kept * sizeof *sorted);
    qsort(sorted, kept, sizeof *sorted, samples_compare);
    uint64_t rank = (kept * percent + 99) / 100;
    return sorted[rank == 0 ? 0 : rank - 1];
}
