/* store_rows: waiting documents and delays as rows that a person can query (schema.sql).
 *
 * What is stored is the newest state only, and of that only what changed since the last: most
 * documents that wait stay where they are from step to step. Private to the store; returns SQLite's
 * codes, which store_connection.c translates. */
#ifndef BALLAST_DAEMON_STORE_ROWS_H
#define BALLAST_DAEMON_STORE_ROWS_H

#include "planner/state.h"

#include <sqlite3.h>

struct rows_entry {
    uint64_t stream_index;
    uint32_t at; /* in plan_state.waiting */
    uint32_t bin;
    enum waiting_kind kind;
};

struct store_rows {
    sqlite3_stmt *put_waiting, *drop_waiting, *clear_waiting;
    sqlite3_stmt *put_delay, *clear_delays;
    bool known;                           /* `entries` are what the tables hold */
    struct rows_entry *entries, *scratch; /* by stream_index */
    uint32_t count;
    uint32_t capacity; /* of both */
};

int store_rows_prepare(struct store_rows *rows, sqlite3 *db);
void store_rows_finalize(struct store_rows *rows); /* zeroed is fine */

/* Makes the rows those of `state`, in the caller's transaction. */
int store_rows_put(struct store_rows *rows, const struct plan_state *state);

/* The transaction was undone: the next one writes all. */
void store_rows_forget(struct store_rows *rows);

#endif
