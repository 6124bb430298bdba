/* feed: keeps the slots of each local replica filled with what its ranks need next.
 *
 * For every replica the window of micro-batches from its slowest rank on (from the first
 * uncommitted step when no rank streams) is read ahead, in order, as far as plans and slots reach;
 * what was reclaimed is read again when it comes into the window once more. Loop thread only; the
 * reader has threads of its own. */
#ifndef BALLAST_DAEMON_FEED_H
#define BALLAST_DAEMON_FEED_H

#include "corpus/tokens.h"
#include "daemon/metrics.h"
#include "daemon/plans.h"
#include "daemon/session.h"
#include "daemon/slab.h"

struct feed_job;

struct feed {
    /* Borrowed. */
    struct slab *slab;
    struct reader *reader;
    const struct catalog *catalog;
    struct plans *plans;
    struct roster *roster;
    uint32_t token_bytes;
    bool payload_hashes;
    struct metrics *metrics;
    /* Called once for each batch that could not be read. */
    void (*failed)(void *context, const struct error *error);
    void *context;
    /* The feed's own. */
    struct feed_job *jobs; /* one per slot */
    bool *held_up;         /* per replica: what is needed next found no slot */
    uint32_t reading;      /* jobs in flight */
};

/* The fields above the line are the caller's and set before. -ENOMEM. */
int feed_open(struct feed *feed, struct error *error);

/* The reader must be closed by then, so that nothing is in flight. Fine for a zeroed feed. */
void feed_close(struct feed *feed);

/* Starts the reads that are due. */
void feed_schedule(struct feed *feed);

/* Takes in the reads that are done; how many. */
uint32_t feed_reap(struct feed *feed);

/* session_ops.take: the slot of a micro-batch, held on SESSION_READY. */
enum session_answer feed_take(struct feed *feed, uint32_t replica, const struct step_plan *plan,
                              uint32_t micro_batch, bool subscribed, bool last,
                              struct session_batch *batch, struct error *error);

#endif
