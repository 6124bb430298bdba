/* samples: the last 1024 durations of one kind, for percentiles. Loop thread only. */
#ifndef BALLAST_DAEMON_SAMPLES_H
#define BALLAST_DAEMON_SAMPLES_H

#include <stdint.h>

#define SAMPLES_KEPT 1024u

struct samples {
    uint64_t count; /* ever added */
    uint64_t values[SAMPLES_KEPT];
};

void samples_add(struct samples *samples, uint64_t value);

/* The smallest kept value that at least `percent` of the kept ones do not exceed; 0 without any. */
uint64_t samples_percentile(const struct samples *samples, uint32_t percent);

#endif
