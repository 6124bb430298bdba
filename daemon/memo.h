/* memo: the store's thread. Writes down what was planned and committed, in groups, off everybody's
 * path, and fetches rows for replays.
 *
 * Whatever has gathered since the last group is one transaction; then durable_step and
 * durable_committed_step move and `wake` is called (on the store's thread). A full disk is waited
 * for, with everything kept in order; any other failure is final: nothing is acknowledged after it.
 * All calls from one thread, the loop's. */
#ifndef BALLAST_DAEMON_MEMO_H
#define BALLAST_DAEMON_MEMO_H

#include "daemon/metrics.h"
#include "daemon/replay.h"
#include "daemon/store.h"

#define MEMO_EXPORTS_MAX 64u /* noted and not yet durable */
#define MEMO_DIGESTS_MAX 64u /* told when a generation begins */

struct memo;

struct memo_progress {
    uint64_t durable_step;           /* first step whose row is not durable */
    uint64_t durable_committed_step; /* committed_step as stored */
    uint64_t durable_change;         /* of the commits as stored */
    uint64_t generation;             /* as stored */
    uint64_t wal_bytes;
    uint64_t commit_ns; /* of the last group */
    bool full;          /* the disk is: waiting for space */
    bool failed;        /* final: `error` */
    struct error error;
};

enum memo_purpose {
    MEMO_REPLAY = 0, /* memo_fetch, by those who want a step again */
    MEMO_SEEK = 1,   /* memo_fetch, by who goes there */
    MEMO_EXPORT = 2, /* memo_fetch, by who takes its state away */
    MEMO_BEGUN = 3,  /* a generation is durable */
};

/* Answer to memo_fetch, and to memo_put_generation. */
struct memo_fetched {
    struct memo_fetched *next; /* the queue's */
    enum memo_purpose purpose;
    uint64_t step; /* that was asked for; where the generation begins */
    bool found;
    struct replay_row row; /* when found: the newest row at or before it; state malloc'ed */
    /* MEMO_BEGUN: the first step from there on without a row, and the digests of the first rows. */
    uint64_t rows_end;
    uint32_t digest_count;
    uint8_t digests[MEMO_DIGESTS_MAX][PLAN_DIGEST_BYTES];
};

/* A generation to be stored. */
struct memo_generation {
    uint64_t number;
    uint64_t step; /* where it begins: committed_step from then on */
    char by[STORE_BY_BYTES];
    uint64_t change; /* of the commits, all of which it ends */
};

/* What is committed, to be stored whole. */
struct memo_commits {
    uint64_t change; /* rises: this and those before are durable with it */
    uint64_t committed_step;
    uint64_t oldest_step_kept;      /* rows before it go */
    const struct store_rank *ranks; /* those that have committed more; borrowed for the call */
    uint32_t rank_count;
};

/* What memo_start finds: rows of steps below durable_step, committed_step and generation are in the
 * store already. So many exported steps are kept. */
struct memo_options {
    struct plan_state *scratch; /* to decode into (taken, also on failure), for the rows of what
                                   waits; NULL: there are to be none */
    uint64_t durable_step;
    uint64_t committed_step;
    uint64_t generation;
    uint32_t exports_retained;
    uint32_t ranks_max;      /* in memo_commits */
    struct metrics *metrics; /* its histograms of groups and checkpoints are observed; NULL: none */
};

/* The store (borrowed) is the thread's until memo_stop. */
int memo_start(struct store *store, const struct memo_options *options, void (*wake)(void *context),
               void *context, struct memo **out, struct error *error);

/* Makes everything durable that was put, unless the disk is full or broken, and joins. NULL is
 * fine. 0, or the error that made it fail. */
int memo_stop(struct memo *memo, struct error *error);

/* Steps in order. `state` is the encoded state from which the plan was made (taken, also on
 * failure). `again`: the step may have a row from before, which must be of the same digest, and
 * another one makes the memo fail with -EBADMSG. -ENOMEM. */
int memo_put_step(struct memo *memo, const struct step_plan *plan, bool again, uint8_t *state,
                  size_t state_bytes);

/* Stores a generation, with all that was put before; what is put after it belongs to it. Answered
 * through memo_take when it is durable; durable_step is then the first step without a row from its
 * step on, which may be lower than before. -ENOMEM. */
int memo_put_generation(struct memo *memo, const struct memo_generation *generation);

/* The row of this step stays, once there is one. -ENOBUFS when MEMO_EXPORTS_MAX wait. */
int memo_put_export(struct memo *memo, uint64_t step);

void memo_put_commits(struct memo *memo, const struct memo_commits *commits);

/* -ENOMEM. */
int memo_fetch(struct memo *memo, enum memo_purpose purpose, uint64_t step);

/* The next answer, the caller's to free with memo_fetched_destroy; NULL without any. */
struct memo_fetched *memo_take(struct memo *memo);
void memo_fetched_destroy(struct memo_fetched *fetched);

/* Loop thread; as memo_take it takes no lock when there is nothing new. */
void memo_progress(struct memo *memo, struct memo_progress *out);

/* Whether the thread has been at one group or answer for longer than the limit; waiting for space
 * is rest. */
bool memo_stuck(struct memo *memo, uint64_t now_ns, uint64_t limit_ns);

#endif
