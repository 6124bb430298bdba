/* statistics: of lists of figures, in integers. */
#ifndef BALLAST_CTL_STATISTICS_H
#define BALLAST_CTL_STATISTICS_H

#include <stddef.h>
#include <stdint.h>

void statistics_sort(uint64_t *values, size_t count);

/* Nearest rank: the smallest value that `percent` of all do not exceed; count > 0, ascending. */
uint64_t statistics_percentile(const uint64_t *sorted, size_t count, size_t percent);

/* Standard deviation over the mean; 0 for a mean of 0. */
uint64_t statistics_variation_ppm(const uint64_t *values, size_t count);

#endif
