/* splitmix: the seeded stream of numbers behind random worlds (Steele, Lea and Flood's SplitMix64).
 * A test prints the seed of a world that failed; the seed is the whole bug report. */
#ifndef BALLAST_TESTS_SPLITMIX_H
#define BALLAST_TESTS_SPLITMIX_H

#include <stdint.h>

static inline uint64_t splitmix_next(uint64_t *state) {
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Uniform enough in [low, high]. */
static inline uint32_t splitmix_between(uint64_t *state, uint32_t low, uint32_t high) {
    return low + (uint32_t)(splitmix_next(state) % ((uint64_t)high - low + 1));
}

#endif
