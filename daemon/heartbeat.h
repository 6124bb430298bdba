/* heartbeat: since when a thread has been at one piece of work, so that the loop can tell one that
 * is stuck from one that has nothing to do. The thread begins and ends, the loop looks. */
#ifndef BALLAST_DAEMON_HEARTBEAT_H
#define BALLAST_DAEMON_HEARTBEAT_H

#include "daemon/clock.h"

#include <stdatomic.h>
#include <stdbool.h>

struct heartbeat {
    /* Stored by the thread, loaded by the loop; 0: at rest. */
    _Atomic uint64_t busy_ns;
};

static inline void heartbeat_begin(struct heartbeat *heartbeat) {
    atomic_store(&heartbeat->busy_ns, clock_ns());
}

static inline void heartbeat_end(struct heartbeat *heartbeat) {
    atomic_store(&heartbeat->busy_ns, 0);
}

static inline bool heartbeat_stuck(struct heartbeat *heartbeat, uint64_t now_ns,
                                   uint64_t limit_ns) {
    uint64_t busy_ns = atomic_load(&heartbeat->busy_ns);
    return busy_ns != 0 && now_ns > busy_ns && now_ns - busy_ns > limit_ns;
}

#endif
