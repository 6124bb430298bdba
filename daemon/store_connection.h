/* store_connection: the one connection of a store, its statements, and SQLite's codes as ours.
 *
 * Private to the store (store.h): what its parts share. Store thread only. Functions that return
 * int give 0 or a negative errno with `error` filled; errors of the disk and damage end the store
 * (store->finished), and it refuses everything from then on. */
#ifndef BALLAST_DAEMON_STORE_CONNECTION_H
#define BALLAST_DAEMON_STORE_CONNECTION_H

#include "daemon/state_dir.h"
#include "daemon/store.h"
#include "daemon/store_rows.h"

#include <sqlite3.h>

#define EXPORT_KEY "export " /* of meta: and the step, of each exported one */

/* The numbers of a step row: column and member, in schema.sql's order. */
#define STEP_NUMBERS(X)                                                                            \
    X(tokens, tokens)                                                                              \
    X(documents, documents)                                                                        \
    X(plan_ns, plan_ns)                                                                            \
    X(attention_ppm, balance.attention_ppm)                                                        \
    X(total_ppm, balance.total_ppm)                                                                \
    X(predicted_ppm, balance.predicted_ppm)                                                        \
    X(bound_ppm, balance.bound_ppm)                                                                \
    X(context_ppm, balance.context_ppm)                                                            \
    X(original_ppm, balance.original_ppm)                                                          \
    X(delay_mean_milli, balance.delay_mean_milli)                                                  \
    X(delay_max, balance.delay_max)                                                                \
    X(allowance_ppm, release.allowance_ppm)                                                        \
    X(urgency_ppm, release.urgency_ppm)                                                            \
    X(outliers, release.outliers)                                                                  \
    X(early, release.early)                                                                        \
    X(forced, release.forced)                                                                      \
    X(waiting_tokens, release.waiting_tokens)                                                      \
    X(leftovers, release.leftovers)

#define STEP_NUMBER_ONE(column, member) +1
enum { STEP_NUMBER_COUNT = 0 STEP_NUMBERS(STEP_NUMBER_ONE) };
#undef STEP_NUMBER_ONE

enum statement {
    STATEMENT_BEGIN,
    STATEMENT_COMMIT,
    STATEMENT_PUT_META,
    STATEMENT_GET_META,
    STATEMENT_PUT_STEP,
    STATEMENT_GET_STEP,
    STATEMENT_LAST_STEP,
    STATEMENT_ROWS_END,
    STATEMENT_PRUNE_END,
    STATEMENT_PRUNE,
    STATEMENT_FORGET,
    STATEMENT_PRUNE_EXPORTS,
    STATEMENT_PUT_RANK, /* from here on of the present format only */
    STATEMENT_CLEAR_RANKS,
    STATEMENT_GET_RANK,
    STATEMENT_COUNT,
};

struct store {
    sqlite3 *db;
    sqlite3_stmt *statements[STATEMENT_COUNT];
    struct state_dir dir;
    struct store_rows rows;
    struct state_mark mark; /* id, and groups so far */
    char *version;          /* of the writer */
    bool claimed;           /* opened for its job, to be written */
    bool dirty;             /* open_boot is set: a clean close clears it */
    bool marked;            /* open_boot and version are this opening's */
    bool grouping;          /* between store_begin and its end */
    int64_t format;         /* user_version */
    uint64_t fork;          /* first step from which the job's history is another than the stored */
    int finished;           /* not 0: the error that ended the store */
    uint64_t page_bytes;
    uint64_t wal_pages;  /* not written back */
    int64_t prune_begin; /* rows before it stay: they are of exported steps */
    bool rank_rows;      /* there may be rows of ranks */
    uint8_t *state;      /* of the last store_get_step */
    size_t state_capacity;
};

/* Opens STATE_DB or another file of the state directory with these SQLITE_OPEN_ flags. */
int connection_open(struct store *store, const char *name, int flags, struct error *error);
/* store->statements: those of any format, then the rest. */
int connection_prepare(struct store *store, struct error *error);
int connection_prepare_present(struct store *store, struct error *error);
void connection_close(struct store *store);

/* Translates a result of SQLite while doing `what`. */
int store_failed(struct store *store, int result, const char *what, struct error *error);
int store_damaged(struct store *store, const char *what, struct error *error);
int store_refuse_finished(const struct store *store, struct error *error);

int store_exec(struct store *store, const char *sql, const char *what, struct error *error);
/* A pragma's single number. */
int store_pragma(struct store *store, const char *sql, int64_t *out, struct error *error);
/* Runs a bound statement that returns no rows, and takes its bindings off. */
int store_run(struct store *store, enum statement which, const char *what, struct error *error);

/* Ends the group when `code` is a failure, so that nothing of it can slip into the next, and makes
 * room on a full disk; returns `code`. */
int store_group_end(struct store *store, int code);

/* store_job.c: 0 when the store is this job's (store->fork: from where on its history is another);
 * -EINVAL names the first difference. Datasets that are there stay as they are, but for what
 * sections append. */
int store_compare_job(struct store *store, const struct store_job *job, struct error *error);
int store_put_datasets(struct store *store, const struct store_job *job, struct error *error);

/* store_check.c: the format (-ENOSYS: a newer one); then whether the store was closed, and what its
 * not having been means. `mark` NULL: there is none. -EBADMSG: damaged, or commits are lost. */
int store_check_format(struct store *store, struct error *error);
int store_check_close(struct store *store, const struct state_file *file,
                      const struct state_mark *mark, struct error *error);

#endif
