/* metrics: what is counted while serving, beside what the parts know of themselves; scrape.h writes
 * both down. Fixed arrays: nothing grows with what clients do. Loop thread only, but for the
 * histograms of the store's thread. */
#ifndef BALLAST_DAEMON_METRICS_H
#define BALLAST_DAEMON_METRICS_H

#include "daemon/histogram.h"

#include <stdint.h>

#define METRICS_RANKS_MAX 64u /* of this node that are told apart; the rest are the last one's */

enum metrics_read_error {
    METRICS_READ_IO = 0,      /* the disk */
    METRICS_READ_DAMAGED = 1, /* ids or hashes that cannot be */
    METRICS_READ_STALE = 2,   /* the file shrank, was written to or replaced */
    METRICS_READ_OTHER = 3,
    METRICS_READ_ERRORS = 4,
};

enum metrics_rejection {
    METRICS_REJECTED_USER = 0, /* neither allow_uids nor admin_uids has it */
    METRICS_REJECTED_FULL = 1, /* limits.connections */
    METRICS_REJECTED_MEMORY = 2,
    METRICS_REJECTIONS = 3,
};

struct metrics_rank {
    struct histogram wait; /* for each batch */
    uint64_t batches;
    uint64_t tokens; /* of those batches, whatever the rank's share */
};

struct metrics {
    struct metrics_rank ranks[METRICS_RANKS_MAX];
    struct histogram read;       /* of a micro-batch, from when its reads are queued */
    struct histogram plan;       /* of a step */
    struct histogram commit;     /* of a group; the store's thread observes */
    struct histogram checkpoint; /* likewise */
    uint64_t documents_read;
    uint64_t bytes_read;
    uint64_t read_errors[METRICS_READ_ERRORS];
    uint64_t rejected[METRICS_REJECTIONS];
    uint64_t frames_invalid;
    uint64_t padding_ppm; /* of the newest planned step: padding to all rows */
};

/* `rank` counts the members of the roster. */
struct metrics_rank *metrics_rank(struct metrics *metrics, uint32_t rank);

/* `error` is a negative errno. */
enum metrics_read_error metrics_read_kind(int error);

#endif
