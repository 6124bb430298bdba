/* store: the memo of the stream in SQLite, so that kill -9 loses and reorders nothing.
 *
 * The store records what the pure function has already answered: for each planned step the state it
 * was planned from, its digest and balance, and how far the ranks have committed. One connection,
 * WAL, locking_mode=EXCLUSIVE (no second opener, no -shm), synchronous=FULL, no automatic
 * checkpoint; used from one thread. Schema in daemon/schema.sql, application_id and user_version
 * checked. SQLite codes are translated here and nowhere else. Shows no sqlite3.
 *
 * What may go wrong, and what then holds:
 *   process killed    the groups whose store_commit returned are there, perhaps one more, no part
 *                     of any; reopening replays the WAL
 *   power lost        the same, as far as the disk keeps its word on fdatasync
 *   disk full         -ENOSPC: the group is gone, everything before it stands, the store goes on
 *                     (state_dir.h: a reserve lets it write back what it has)
 *   write, sync fails -EIO: the store is finished and refuses everything; stop, a restart recovers.
 *                     Never retried: after a failed sync the kernel may have dropped the pages
 *   file damaged      -EBADMSG at open or when the row is read; every row carries a hash
 *   WAL damaged       -EBADMSG at open: SQLite would drop its end and go on from an earlier group,
 *                     but ballast.mark says how many there were (after a power cut perhaps a few
 *                     less: it is synced when the store is idle) */
#ifndef BALLAST_DAEMON_STORE_H
#define BALLAST_DAEMON_STORE_H

#include "planner/error.h"
#include "planner/plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define STORE_WAL_BYTES_MAX (16u << 20) /* checkpoint above this, at the latest */
#define STORE_BY_BYTES      96u

struct plan_state;
struct store;

/* A dataset as its job knows it: what to name when job_digest differs for the corpus. */
struct store_dataset {
    const char *name;
    uint8_t dtype;
    uint64_t documents;
    uint64_t tokens;
    uint64_t bin_bytes;
    uint8_t fingerprint[16];
};

/* Identity of a job, written at creation, compared at every open. */
struct store_job {
    uint8_t job_digest[16];
    const char *plan_text;                /* config_plan_text */
    const char *version;                  /* of the writer */
    const struct store_dataset *datasets; /* also those that a section appends */
    uint32_t dataset_count;
    uint32_t dataset_job_count; /* of these from step 0 on: they alone are compared */
};

struct store_step {
    uint64_t step;
    const uint8_t *state; /* encoded plan_state from which the step is planned */
    size_t state_bytes;
    uint8_t digest[PLAN_DIGEST_BYTES];
    struct balance balance;
    struct release release;
    uint64_t tokens;
    uint64_t plan_ns;
    uint32_t documents;
};

/* A place in the mesh, and the first step that its rank has not committed. */
struct store_rank {
    uint32_t dp, pp, cp, tp;
    uint64_t committed_step;
};

/* The row of a plan, and of the state that it was planned from (borrowed). */
static inline void store_step_init(struct store_step *step, const struct step_plan *plan,
                                   const uint8_t *state, size_t state_bytes) {
    *step = (struct store_step){.step = plan->step,
                                .state = state,
                                .state_bytes = state_bytes,
                                .balance = plan->balance,
                                .release = plan->release,
                                .tokens = plan->tokens,
                                .plan_ns = plan->plan_ns,
                                .documents = plan->document_count};
    memcpy(step->digest, plan->digest, sizeof step->digest);
}

/* Opens or creates state_dir/ballast.db; state_dir itself is made (0750) when its parent is there.
 * Takes state_dir/lock first (the file lock dies with the process): -EBUSY "another ballastd (pid
 * N) uses PATH". Refuses: another job, or one whose history differs before the committed
 * step (-EINVAL, naming the first differing setting or dataset and the remedy), a foreign file
 * (-EINVAL), a newer one (-ENOSYS), a network file system (-EINVAL), damage, a store that is gone
 * and one that has lost commits (-EBADMSG with a recovery hint; never starts empty over damage). An
 * older format is migrated, after a copy was made beside it. Writes nothing else, so that it works
 * on a full disk; a new store or a migration says what it needs
 * (-ENOSPC). After a process was killed, opening takes milliseconds; after the machine went down
 * under it, the whole file is checked. `job` NULL: any job, for reading only (the CLI); then
 * nothing is created (-ENOENT) or migrated, and the lock is taken just as well. */
int store_open(const char *state_dir, const struct store_job *job, struct store **out,
               struct error *error);

/* The same in two: the folder and its lock, then what is in it. After a failed store_attach only
 * store_close is left to do. */
int store_lock(const char *state_dir, bool create, struct store **out, struct error *error);
int store_attach(struct store *store, const struct store_job *job, struct error *error);

/* First step from which the job's history (history.h) differs from the stored one, none of whose
 * steps from there on is committed; UINT64_MAX: they agree. */
uint64_t store_fork(const struct store *store);

/* Marks the store cleanly closed, writes the WAL back, frees all. An open group is lost. NULL is
 * fine. */
void store_close(struct store *store);

/* Group commit: everything between is durable when store_commit has returned 0. Any failure of
 * these undoes the whole group and ends it: begin again. */
int store_begin(struct store *store, struct error *error);
int store_put_step(struct store *store, const struct store_step *step, struct error *error);
int store_put_committed(struct store *store, uint64_t committed_step, struct error *error);
/* The ranks that have committed more than that: all of them, instead of those before. */
int store_put_ranks(struct store *store, const struct store_rank *ranks, uint32_t count,
                    struct error *error);
/* What waits in the newest state of the group, and its delays, as rows for people. */
int store_put_rows(struct store *store, const struct plan_state *state, struct error *error);
/* No rank has committed anything of it. */
int store_put_generation(struct store *store, uint64_t generation, struct error *error);
/* The job goes on by another history from store_fork on, with what that appends: rows from there on
 * go. */
int store_put_history(struct store *store, const struct store_job *job, struct error *error);
/* Where the generation began, and who began it. */
int store_put_generation_begin(struct store *store, uint64_t step, const char *by,
                               struct error *error);
/* The row of this step stays, for as long as it is among the `retained` highest that do. */
int store_put_export(struct store *store, uint64_t step, uint32_t retained, struct error *error);
/* Removes the rows that nobody needs who asks for steps from oldest_step_kept on: all before the
 * newest one at or before it, but not those of exported steps. */
int store_prune(struct store *store, uint64_t oldest_step_kept, struct error *error);
int store_commit(struct store *store, struct error *error);
void store_rollback(struct store *store);

/* Writes the WAL back when more than `wal_bytes` of it are not yet; call when idle, not in a
 * group. */
int store_checkpoint(struct store *store, uint64_t wal_bytes, struct error *error);
uint64_t store_wal_bytes(const struct store *store); /* not yet written back */

/* Syncs ballast.mark, so that it counts all groups after a power cut too; call when idle. */
int store_settle(struct store *store, struct error *error);

/* committed_step: first step not committed by all; steps_end: first step without a row; both 0 in a
 * fresh store. */
struct store_summary {
    uint64_t committed_step;
    uint64_t steps_end;
    uint64_t generation;
    uint64_t generation_step;           /* where it began */
    char generation_by[STORE_BY_BYTES]; /* who began it, "" before the first */
    uint8_t job_digest[16];
};
int store_summary(struct store *store, struct store_summary *out, struct error *error);

/* The newest step row at or before `step`; 1 found, 0 none. out->state is the store's until the
 * next call. */
int store_get_step(struct store *store, uint64_t step, struct store_step *out, struct error *error);

/* The rank at rank->dp, pp, cp, tp: 1 with its committed_step; 0: it stands at the one of all. Not
 * of a store that was opened without its job. */
int store_get_rank(struct store *store, struct store_rank *rank, struct error *error);

/* The first step at or after `step` without a row. */
int store_rows_end(struct store *store, uint64_t step, uint64_t *out, struct error *error);

/* -EINVAL: names the first of these datasets that is another than the one stored, and what of it.
 */
int store_refuse_corpus(struct store *store, const struct store_dataset *datasets, uint32_t count,
                        struct error *error);

/* config_plan_text of the job; the caller frees. */
int store_plan_text(struct store *store, char **out, struct error *error);

const char *store_library_version(void);

#endif
