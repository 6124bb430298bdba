/* store: the memo of the stream in SQLite, so that kill -9 loses and reorders nothing.
 *
 * The store records what the pure function has already answered: for each planned step the state it
 * was planned from, its digest and balance, and how far the ranks have committed. One connection,
 * WAL, locking_mode=EXCLUSIVE (no second opener, no -shm), synchronous=FULL, no automatic
 * checkpoint; used from one thread. Schema in daemon/schema.sql, application_id and user_version
 * checked. SQLite codes are translated here and nowhere else. Shows no sqlite3. */
#ifndef BALLAST_DAEMON_STORE_H
#define BALLAST_DAEMON_STORE_H

#include "planner/error.h"
#include "planner/plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct store;

/* Identity of a job, written at creation, compared at every open. */
struct store_job {
    uint8_t job_digest[16];
    const char *plan_text; /* config_plan_text */
    const char *version;   /* of the writer */
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

/* Opens or creates state_dir/ballast.db. Takes state_dir/lock first (the file lock dies with the
 * process): -EBUSY "another daemon (pid N) holds it". Refuses: another job (-EINVAL, naming the
 * first differing setting and the remedy), a foreign or newer file, damage (-EBADMSG with a
 * recovery hint; never starts empty over damage). `job` NULL: any job, for reading only (the CLI);
 * then nothing is created and the lock is taken just as well. */
int store_open(const char *state_dir, const struct store_job *job, struct store **out,
               struct error *error);
void store_close(struct store *store); /* checkpoints when the last open wrote anything */

/* Group commit: everything between is durable when store_commit has returned 0. */
int store_begin(struct store *store, struct error *error);
int store_put_step(struct store *store, const struct store_step *step, struct error *error);
int store_put_committed(struct store *store, uint64_t committed_step, struct error *error);
int store_put_generation(struct store *store, uint64_t generation, struct error *error);
int store_prune(struct store *store, uint64_t oldest_step_kept, struct error *error);
int store_commit(struct store *store, struct error *error);
void store_rollback(struct store *store);

/* Writes the WAL back when it is larger than `wal_bytes`; call when idle. */
int store_checkpoint(struct store *store, uint64_t wal_bytes, struct error *error);
uint64_t store_wal_bytes(const struct store *store);

/* committed_step: first step not committed by all; steps_end: first step without a row; both 0 in a
 * fresh store. */
struct store_summary {
    uint64_t committed_step;
    uint64_t steps_end;
    uint64_t generation;
    uint8_t job_digest[16];
};
int store_summary(struct store *store, struct store_summary *out, struct error *error);

/* The newest step row at or before `step`; 1 found, 0 none. out->state is the store's until the
 * next call. */
int store_get_step(struct store *store, uint64_t step, struct store_step *out, struct error *error);

/* config_plan_text of the job; the caller frees. */
int store_plan_text(struct store *store, char **out, struct error *error);

const char *store_library_version(void);

#endif
