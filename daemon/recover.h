/* recover: where the stream stands according to the store, proven by planning it again. */
#ifndef BALLAST_DAEMON_RECOVER_H
#define BALLAST_DAEMON_RECOVER_H

#include "daemon/replay.h"
#include "daemon/store.h"

struct recovered {
    struct plan_state *state; /* from which committed_step is planned; the caller's */
    uint64_t committed_step;
    uint64_t steps_end; /* first step from committed_step on without a row */
    uint64_t generation;
    uint64_t generation_step;           /* where it began */
    char generation_by[STORE_BY_BYTES]; /* who began it */
    /* Stored digests of [committed_step, steps_end): what planning must come to again. */
    uint8_t (*digests)[PLAN_DIGEST_BYTES];
};

/* Goes on by the job's history where that differs from the stored one (store_fork), none of which
 * is committed: what was planned from there on goes. The state of the first such step stays, since
 * it may be the only one there is, and the step is planned anew. A generation begins if any of the
 * steps may have been served; they are before they are durable, so that after kill -9 up to
 * `undurable_max` may have been that left no row. 1 with the number of stored steps that are
 * planned anew; 0: nothing differs. */
int recover_fork(struct store *store, const struct store_job *job, struct schedule *schedule,
                 const struct corpus_source *source, uint64_t undurable_max, uint64_t *replanned,
                 struct error *error);

/* Finds the newest row at or before committed_step, decodes and checks its state, and plans forward
 * from it, comparing digests. A fresh store gives step 0. -EBADMSG naming the step. */
int recover(struct store *store, struct schedule *schedule, const struct corpus_source *source,
            struct recovered *out, struct error *error);

/* Frees what is left of it; fine for a zeroed one. */
void recovered_deinit(struct recovered *recovered);

/* The stream goes on from `step` instead: these are the stored digests of the steps from there on.
 * Without memory for them none are known. */
void recovered_restart(struct recovered *recovered, uint64_t step,
                       const uint8_t (*digests)[PLAN_DIGEST_BYTES], uint32_t count);

/* The stored digest of a step, NULL when there is none. */
const uint8_t *recovered_digest(const struct recovered *recovered, uint64_t step);

#endif
