/* feed: keeps the slots of each local replica filled with what its ranks need next.
 *
 * For every replica the window of micro-batches from its slowest rank on (from the first
 * uncommitted step when no rank streams) is read ahead, in order, as far as plans and slots reach;
 * what was reclaimed is read again when it comes into the window once more. Reading waits until
 * less than half of a replica's window is there, and then fetches all that is missing, of all
 * replicas, in one job: documents that are neighbours on disk were dealt out among many
 * micro-batches, and reading them together costs a fraction. Only the step that is needed next has
 * a job of its own, so that nobody waits for the rest. A slot whose job failed is tried once more
 * alone, since what failed may have been another's. Loop thread only; the reader has threads of
 * its own. */
#ifndef BALLAST_DAEMON_FEED_H
#define BALLAST_DAEMON_FEED_H

#include "corpus/tokens.h"
#include "daemon/metrics.h"
#include "daemon/plans.h"
#include "daemon/session.h"
#include "daemon/slab.h"

struct feed_job;
struct feed_slot;

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
    struct feed_slot *slots; /* one per slot of the slab */
    struct feed_job *jobs;   /* as many: one slot can be a job */
    struct feed_job *idle;   /* of these, a list */
    bool *held_up;           /* per replica: what is needed next found no slot */
    uint32_t reading;        /* jobs in flight */
    uint64_t progress_ns;    /* when one was begun with none in flight, or came back */
};

/* The fields above the line are the caller's and set before. -ENOMEM. */
int feed_open(struct feed *feed, struct error *error);

/* The reader must be closed by then, so that nothing is in flight. Fine for a zeroed feed. */
void feed_close(struct feed *feed);

/* Starts the reads that are due. */
void feed_schedule(struct feed *feed);

/* Takes in the reads that are done; how many. */
uint32_t feed_reap(struct feed *feed);

/* Whether reads are in flight of which none has come back for longer than the limit. */
bool feed_stuck(const struct feed *feed, uint64_t now_ns, uint64_t limit_ns);

/* What is read and stands before the slowest rank of its replica. Nothing before feed_open. */
struct feed_depth {
    uint64_t batches, bytes;
};
struct feed_depth feed_depth(const struct feed *feed);

/* session_ops.take: the slot of a micro-batch, held on SESSION_READY. */
enum session_answer feed_take(struct feed *feed, uint32_t replica, const struct step_plan *plan,
                              uint32_t micro_batch, bool subscribed, bool last,
                              struct session_batch *batch, struct error *error);

#endif
