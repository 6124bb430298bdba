/* memo: the store's thread. Writes down what was planned and committed, in groups, off everybody's
 * path, and fetches rows for replays.
 *
 * Whatever has gathered since the last group is one transaction; then durable_step and
 * durable_committed_step move and `wake` is called (on the store's thread). A full disk is waited
 * for, with everything kept in order; any other failure is final: nothing is acknowledged after it.
 * All calls from one thread, the loop's. */
#ifndef BALLAST_DAEMON_MEMO_H
#define BALLAST_DAEMON_MEMO_H

#include "daemon/replay.h"
#include "daemon/store.h"

struct memo;

struct memo_progress {
    uint64_t durable_step;           /* first step whose row is not durable */
    uint64_t durable_committed_step; /* committed_step as stored */
    uint64_t wal_bytes;
    uint64_t commit_ns; /* of the last group */
    bool full;          /* the disk is: waiting for space */
    bool failed;        /* final: `error` */
    struct error error;
};

/* Answer to memo_fetch. */
struct memo_fetched {
    struct memo_fetched *next; /* the queue's */
    uint64_t step;             /* that was asked for */
    bool found;
    struct replay_row row; /* when found: the newest row at or before it; state malloc'ed */
};

/* The store (borrowed) is the thread's until memo_stop; rows of steps below durable_step and
 * committed_step are in it already. `scratch` is a state to decode into (taken, also on failure),
 * for the rows of what waits; NULL: there are to be none. */
int memo_start(struct store *store, struct plan_state *scratch, uint64_t durable_step,
               uint64_t committed_step, void (*wake)(void *context), void *context,
               struct memo **out, struct error *error);

/* Makes everything durable that was put, unless the disk is full or broken, and joins. NULL is
 * fine. 0, or the error that made it fail. */
int memo_stop(struct memo *memo, struct error *error);

/* Steps in order. `state` is the encoded state from which the plan was made (taken, also on
 * failure). -ENOMEM. */
int memo_put_step(struct memo *memo, const struct step_plan *plan, uint8_t *state,
                  size_t state_bytes);

/* Rows before oldest_step_kept go with it. */
void memo_put_committed(struct memo *memo, uint64_t committed_step, uint64_t oldest_step_kept);

/* -ENOMEM. */
int memo_fetch(struct memo *memo, uint64_t step);

/* The next answer, the caller's to free with memo_fetched_destroy; NULL without any. */
struct memo_fetched *memo_take(struct memo *memo);
void memo_fetched_destroy(struct memo_fetched *fetched);

void memo_progress(struct memo *memo, struct memo_progress *out);

#endif
