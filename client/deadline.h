/* deadline: points of monotonic time, and waiting for a descriptor until one.
 *
 * Timeouts become deadlines once, at the public call; what lies below waits until the deadline and
 * not for a duration, so that retries and interruptions never stretch it. */
#ifndef BALLAST_CLIENT_DEADLINE_H
#define BALLAST_CLIENT_DEADLINE_H

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdint.h>
#include <time.h>

#define DEADLINE_NEVER INT64_MAX

static inline int64_t deadline_now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* timeout_ms below 0: never. */
static inline int64_t deadline_in_ms(int timeout_ms) {
    return timeout_ms < 0 ? DEADLINE_NEVER : deadline_now_ns() + (int64_t)timeout_ms * 1000000;
}

/* What is left in milliseconds, rounded up; -1: for ever. */
static inline int deadline_left_ms(int64_t deadline_ns) {
    if (deadline_ns == DEADLINE_NEVER) {
        return -1;
    }
    int64_t left_ms = (deadline_ns - deadline_now_ns() + 999999) / 1000000;
    return left_ms <= 0 ? 0 : left_ms > INT_MAX ? INT_MAX : (int)left_ms;
}

static inline int64_t deadline_earlier(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Waits for `events` on `fd` (-1: for the deadline alone). 1: ready, or hung up; 0: the deadline
 * passed; negative errno. Signals do not end it. A deadline in the past still looks once. */
static inline int deadline_poll(int fd, short events, int64_t deadline_ns) {
    struct pollfd poll_fd = {.fd = fd, .events = events};
    for (;;) {
        struct timespec left = {0};
        int64_t left_ns = deadline_ns == DEADLINE_NEVER ? 0 : deadline_ns - deadline_now_ns();
        if (left_ns > 0) {
            left.tv_sec = (time_t)(left_ns / 1000000000);
            left.tv_nsec = (long)(left_ns % 1000000000);
        }
        int ready = ppoll(&poll_fd, 1, deadline_ns == DEADLINE_NEVER ? NULL : &left, NULL);
        if (ready >= 0) {
            return ready;
        }
        if (errno != EINTR) {
            return -errno;
        }
    }
}

#endif
