/* histogram: how many durations fell below each of a fixed row of bounds, and their sum. Observed
 * by one or more threads while another one reads: each figure is whole, they may differ by what
 * arrives in between. */
#ifndef BALLAST_DAEMON_HISTOGRAM_H
#define BALLAST_DAEMON_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BOUNDS 18u

/* Ascending, in ns: 50 us to 30 s. */
extern const uint64_t histogram_bounds_ns[HISTOGRAM_BOUNDS];

struct histogram {
    /* Pairs with the reader's loads; the last counts what is above all bounds. */
    _Atomic uint64_t counts[HISTOGRAM_BOUNDS + 1];
    _Atomic uint64_t sum_ns;
};

/* NULL is fine: nobody wants to know. */
void histogram_observe(struct histogram *histogram, uint64_t ns);

#endif
