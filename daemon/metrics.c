/* metrics: see metrics.h. */
#include "daemon/metrics.h"

#include <errno.h>

struct metrics_rank *metrics_rank(struct metrics *metrics, uint32_t rank) {
    return &metrics->ranks[rank < METRICS_RANKS_MAX ? rank : METRICS_RANKS_MAX - 1];
}

enum metrics_read_error metrics_read_kind(int error) {
    switch (error) {
    case -EIO:
        return METRICS_READ_IO;
    case -EBADMSG:
        return METRICS_READ_DAMAGED;
    case -ESTALE:
    case -ENODATA:
    case -ENOENT:
        return METRICS_READ_STALE;
    default:
        return METRICS_READ_OTHER;
    }
}
