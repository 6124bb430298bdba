/* histogram: see histogram.h. */
#include "daemon/histogram.h"

#include <stdatomic.h>
#include <stddef.h>

const uint64_t histogram_bounds_ns[HISTOGRAM_BOUNDS] = {
    50000,     100000,     250000,     500000,     1000000,     2500000,
    5000000,   10000000,   25000000,   50000000,   100000000,   250000000,
    500000000, 1000000000, 2500000000, 5000000000, 10000000000, 30000000000,
};

void histogram_observe(struct histogram *histogram, uint64_t ns) {
    uint32_t i = 0;
    if (histogram == NULL) {
        return;
    }
    while (i < HISTOGRAM_BOUNDS && ns > histogram_bounds_ns[i]) {
        i++;
    }
    atomic_fetch_add_explicit(&histogram->counts[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&histogram->sum_ns, ns, memory_order_relaxed);
}
