/* process: what this process uses, as the kernel counts it. Allocates nothing. */
#ifndef BALLAST_DAEMON_PROCESS_H
#define BALLAST_DAEMON_PROCESS_H

#include <stdint.h>

struct process_usage {
    uint64_t cpu_ns;
    uint64_t resident_bytes;
    uint64_t virtual_bytes;
    uint64_t descriptors;
    uint64_t descriptors_max;
    uint64_t threads;
    uint64_t start_ms; /* since the epoch, by the wall clock as it is now */
};

/* What cannot be had stays 0. */
void process_usage(struct process_usage *out);

#endif
