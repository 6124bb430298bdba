/* statistics: see statistics.h. */
#include "client/ctl/statistics.h"

#include <stdlib.h>

typedef unsigned __int128 u128;

static int u64_compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

void statistics_sort(uint64_t *values, size_t count) {
    qsort(values, count, sizeof values[0], u64_compare);
}

uint64_t statistics_percentile(const uint64_t *sorted, size_t count, size_t percent) {
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
uint64_t statistics_variation_ppm(const uint64_t *values, size_t count) {
    u128 squares = 0;
    u128 sum = 0;
    for (size_t i = 0; i < count; i++) {
        squares += (u128)values[i] * values[i];
        sum += values[i];
    }
    return sum == 0 ? 0 : (uint64_t)(square_root(count * squares - sum * sum) * 1000000 / sum);
}
