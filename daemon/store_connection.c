/* store_connection: see store_connection.h. */
#include "daemon/store_connection.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define COLUMN_NAME(column, member) #column ", "
#define COLUMN_MARK(column, member) "?, "

static const char *const statement_texts[STATEMENT_COUNT] = {
    [STATEMENT_BEGIN] = "BEGIN IMMEDIATE",
    [STATEMENT_COMMIT] = "COMMIT",
    [STATEMENT_PUT_META] = "INSERT OR REPLACE INTO meta (key, value, hash) VALUES (?, ?, ?)",
    [STATEMENT_GET_META] = "SELECT value, hash FROM meta WHERE key = ?",
    [STATEMENT_PUT_STEP] = "INSERT OR REPLACE INTO steps (step, state, digest, " STEP_NUMBERS(
        COLUMN_NAME) "hash) VALUES (?, ?, ?, " STEP_NUMBERS(COLUMN_MARK) "?)",
    [STATEMENT_GET_STEP] = "SELECT step, state, digest, " STEP_NUMBERS(
        COLUMN_NAME) "hash FROM steps WHERE step <= ? ORDER BY step DESC LIMIT 1",
    [STATEMENT_LAST_STEP] = "SELECT max(step) FROM steps",
    [STATEMENT_FORGET] = "DELETE FROM steps WHERE step >= ?",
    /* The last of the unbroken run of rows that begins at a step, if any. */
    [STATEMENT_ROWS_END] = "SELECT step FROM steps AS here WHERE step >= ?1 AND EXISTS "
                           "(SELECT 1 FROM steps WHERE step = ?1) AND NOT EXISTS "
                           "(SELECT 1 FROM steps WHERE step = here.step + 1) ORDER BY step LIMIT 1",
    [STATEMENT_PRUNE_END] = "SELECT max(step) FROM steps WHERE step <= ?",
    [STATEMENT_PRUNE] = "DELETE FROM steps WHERE step >= ? AND step < ? AND NOT EXISTS "
                        "(SELECT 1 FROM meta WHERE key = '" EXPORT_KEY "' || step)",
    [STATEMENT_PRUNE_EXPORTS] = "DELETE FROM meta WHERE key GLOB '" EXPORT_KEY
                                "*' AND value NOT IN (SELECT value FROM "
                                "meta WHERE key GLOB '" EXPORT_KEY
                                "*' ORDER BY value DESC LIMIT ?)",
    [STATEMENT_PUT_RANK] = "INSERT INTO ranks (dp, pp, cp, tp, committed_step, hash) "
                           "VALUES (?, ?, ?, ?, ?, ?)",
    [STATEMENT_CLEAR_RANKS] = "DELETE FROM ranks",
    [STATEMENT_GET_RANK] = "SELECT committed_step, hash FROM ranks "
                           "WHERE dp = ? AND pp = ? AND cp = ? AND tp = ?",
};

int store_failed(struct store *store, int result, const char *what, struct error *error) {
    const char *path = store->dir.path;
    switch (result & 0xff) {
    case SQLITE_NOMEM:
        return error_set(error, -ENOMEM, "%s: out of memory", what);
    case SQLITE_FULL:
        return error_set(error, -ENOSPC,
                         "%s: the disk of %s is full; free some space: nothing committed is lost",
                         what, path);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return error_set(error, -EBUSY, "%s: another program has %s/%s open; close it", what, path,
                         STATE_DB);
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_AUTH:
        return error_set(error, -EACCES, "%s: %s/%s: %s (%s); run as the folder's owner", what,
                         path, STATE_DB, sqlite3_errstr(result),
                         strerror(sqlite3_system_errno(store->db)));
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_ERROR: /* the schema is not ours */
        store->finished = -EBADMSG;
        return error_set(error, -EBADMSG, "%s: %s/%s is damaged: %s; " STATE_RECOVERY_HINT, what,
                         path, STATE_DB, sqlite3_errmsg(store->db));
    default:
        if (result == SQLITE_IOERR_NOMEM) {
            return error_set(error, -ENOMEM, "%s: out of memory", what);
        }
        store->finished = -EIO;
        return error_set(error, -EIO, "%s: %s/%s: %s (%s); stop: a restart recovers", what, path,
                         STATE_DB, sqlite3_errstr(result),
                         strerror(sqlite3_system_errno(store->db)));
    }
}

int store_refuse_finished(const struct store *store, struct error *error) {
    return error_set(error, store->finished,
                     "%s failed earlier and takes nothing more; stop: a restart recovers",
                     store->dir.path);
}

int store_damaged(struct store *store, const char *what, struct error *error) {
    store->finished = -EBADMSG;
    return error_set(error, -EBADMSG, "%s/%s is damaged: %s; " STATE_RECOVERY_HINT, store->dir.path,
                     STATE_DB, what);
}

int store_exec(struct store *store, const char *sql, const char *what, struct error *error) {
    int result = sqlite3_exec(store->db, sql, NULL, NULL, NULL);
    return result == SQLITE_OK ? 0 : store_failed(store, result, what, error);
}

int store_pragma(struct store *store, const char *sql, int64_t *out, struct error *error) {
    sqlite3_stmt *statement = NULL;
    int result = sqlite3_prepare_v2(store->db, sql, -1, &statement, NULL);
    if (result == SQLITE_OK) {
        result = sqlite3_step(statement);
    }
    if (result == SQLITE_ROW) {
        *out = sqlite3_column_int64(statement, 0);
    }
    (void)sqlite3_finalize(statement);
    return result == SQLITE_ROW ? 0 : store_failed(store, result, "open", error);
}

int store_run(struct store *store, enum statement which, const char *what, struct error *error) {
    sqlite3_stmt *statement = store->statements[which];
    int result = sqlite3_step(statement);
    (void)sqlite3_reset(statement);
    (void)sqlite3_clear_bindings(statement);
    return result == SQLITE_DONE ? 0 : store_failed(store, result, what, error);
}

/* EXCLUSIVE stands before the first access, so that there is no -shm. Debian's SQLite overwrites
 * what is deleted unless told not to, which doubles the cost of pruning. */
static const char connection_settings[] = "PRAGMA locking_mode = EXCLUSIVE;"
                                          "PRAGMA synchronous = FULL;"
                                          "PRAGMA wal_autocheckpoint = 0;"
                                          "PRAGMA journal_size_limit = 16777216;"
                                          "PRAGMA secure_delete = OFF;"
                                          "PRAGMA cache_size = -2048;"
                                          "PRAGMA temp_store = MEMORY;"
                                          "PRAGMA cell_size_check = ON;"
                                          "PRAGMA trusted_schema = OFF;";

int connection_open(struct store *store, const char *name, int flags, struct error *error) {
    char path[PATH_MAX + 32];
    (void)snprintf(path, sizeof path, "%s/%s", store->dir.path, name);
    int result = sqlite3_open_v2(path, &store->db,
                                 SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | flags, NULL);
    if (result != SQLITE_OK) {
        return store_failed(store, result, "open", error);
    }
    (void)sqlite3_extended_result_codes(store->db, 1);
    return store_exec(store, connection_settings, "open", error);
}

void connection_close(struct store *store) {
    for (size_t i = 0; i < STATEMENT_COUNT; i++) {
        (void)sqlite3_finalize(store->statements[i]);
        store->statements[i] = NULL;
    }
    store_rows_finalize(&store->rows);
    int result = sqlite3_close(store->db);
    assert(result == SQLITE_OK);
    store->db = NULL;
}

static int connection_prepare_some(struct store *store, enum statement begin, enum statement end,
                                   struct error *error) {
    for (enum statement i = begin; i < end; i++) {
        int result = sqlite3_prepare_v3(store->db, statement_texts[i], -1,
                                        SQLITE_PREPARE_PERSISTENT, &store->statements[i], NULL);
        if (result != SQLITE_OK) {
            return store_failed(store, result, "open", error);
        }
    }
    return 0;
}

int connection_prepare(struct store *store, struct error *error) {
    return connection_prepare_some(store, 0, STATEMENT_PUT_RANK, error);
}

int connection_prepare_present(struct store *store, struct error *error) {
    return connection_prepare_some(store, STATEMENT_PUT_RANK, STATEMENT_COUNT, error);
}
