/* warm: opening the corpus and the store off the loop, which answers health meanwhile.
 *
 *     catalog, fingerprints, source, schedule -> identity -> store -> recovery
 *
 * A thread of its own writes catalog, source, schedule, identity, store and recovered of the
 * daemon; nobody else touches them between warm_start and warm_finish. The state directory is
 * locked before (store_lock), so that sockets can be opened. */
#ifndef BALLAST_DAEMON_WARM_H
#define BALLAST_DAEMON_WARM_H

#include "planner/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define WARM_EXTEND_US         60000000ull  /* granted by the service manager while it goes on */
#define WARM_RECOVER_EXTEND_US 600000000ull /* for the recovery, which says nothing meanwhile */

struct daemon;

enum warm_stage { WARM_CORPUS = 0, WARM_STORE = 1, WARM_OVER = 2 };

struct warm {
    struct daemon *daemon;
    pthread_t thread;
    bool running;  /* the loop's: started and not finished */
    uint64_t told; /* likewise: what the service manager was told last */
    /* The thread's, read by the loop at any time. */
    _Atomic uint32_t ppm; /* of the indexes */
    _Atomic enum warm_stage stage;
    /* The loop's, read by the thread at any time. */
    _Atomic bool cancelled;
    /* The thread's until it is joined. */
    int code;
    struct error error;
};

/* Loop thread, all of these. `woken` of the daemon is sent when it is over. */
int warm_start(struct warm *warm, struct daemon *daemon, struct error *error);
bool warm_over(const struct warm *warm);

/* Joins. 0, or why the daemon cannot serve; -ECANCELED after warm_cancel. */
int warm_finish(struct warm *warm, struct error *error);

/* It ends as soon as it looks; joins. Fine when it was never started, and twice. */
void warm_cancel(struct warm *warm);

/* How far it is: 0 to 99. */
uint32_t warm_percent(const struct warm *warm);

/* Asks the service manager for more time, if it got any further since the last call. */
void warm_extend(struct warm *warm);

#endif
