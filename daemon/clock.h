/* clock: the monotonic clock, the only one that decides anything. Any thread. */
#ifndef BALLAST_DAEMON_CLOCK_H
#define BALLAST_DAEMON_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif
