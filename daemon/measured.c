/* measured: see measured.h. */
#include "daemon/measured.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int measured_init(struct measured *measured, uint32_t batches) {
    *measured = (struct measured){.batches = batches};
    measured->times_ns = calloc((size_t)MEASURED_STEPS * batches, sizeof *measured->times_ns);
    return measured->times_ns == NULL ? -ENOMEM : 0;
}

void measured_deinit(struct measured *measured) {
    free(measured->times_ns);
    *measured = (struct measured){0};
}

static uint64_t *measured_times(const struct measured *measured, uint32_t entry) {
    return measured->times_ns + (size_t)entry * measured->batches;
}

void measured_add(struct measured *measured, uint64_t step, uint32_t batch, uint64_t time_ns) {
    uint32_t entry = (uint32_t)(step % MEASURED_STEPS);
    uint64_t *times = measured_times(measured, entry);
    assert(batch < measured->batches);
    if (time_ns == 0 || step < measured->steps[entry]) {
        return;
    }
    if (step > measured->steps[entry]) {
        measured->steps[entry] = step;
        measured->known[entry] = 0;
        memset(times, 0, measured->batches * sizeof *times);
    }
    measured->known[entry] += times[batch] == 0;
    if (time_ns > times[batch]) {
        times[batch] = time_ns;
    }
}

uint64_t measured_ppm(const struct measured *measured) {
    uint32_t newest = MEASURED_STEPS;
    for (uint32_t i = 0; i < MEASURED_STEPS; i++) {
        if (measured->known[i] == measured->batches &&
            (newest == MEASURED_STEPS || measured->steps[i] > measured->steps[newest])) {
            newest = i;
        }
    }
    if (newest == MEASURED_STEPS) {
        return 0;
    }
    const uint64_t *times = measured_times(measured, newest);
    uint64_t largest = 0;
    unsigned __int128 sum = 0;
    for (uint32_t i = 0; i < measured->batches; i++) {
        largest = times[i] > largest ? times[i] : largest;
        sum += times[i];
    }
    return (uint64_t)((unsigned __int128)largest * measured->batches * 1000000u / sum);
}
