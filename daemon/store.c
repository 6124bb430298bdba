/* store: see store.h.
 *
 * Opening: lock, look at the file's head without SQLite, open, verify against ballast.mark, compare
 * the job, migrate. The first group of an opening also marks the store open (open_boot), and each
 * counts itself (groups), in the database and then in ballast.mark: so whatever SQLite makes of a
 * WAL that is damaged, missing or an older one, a group that was acknowledged and is not there is
 * noticed. A group is one transaction; SQLITE_FULL and SQLITE_NOMEM undo it and the store goes on,
 * I/O errors and damage end the store. */
#include "daemon/store.h"
#include "daemon/failpoint.h"
#include "daemon/history.h"
#include "daemon/state_dir.h"
#include "daemon/store_rows.h"
#include "daemon/store_schema.h"

#include <assert.h>
#include <endian.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <xxhash.h>

#define APPLICATION_ID  0x424c5354u /* 'BLST' */
#define STORE_BYTES_MIN (1u << 20)  /* of a new one, with room to begin */
#define EXPORT_KEY      "export "
#define ALGORITHM_LINE  "algorithm = " /* of config_plan_text */

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

#define COLUMN_NAME(column, member) #column ", "
#define COLUMN_MARK(column, member) "?, "
#define COLUMN_ONE(column, member)  +1
enum { STEP_NUMBER_COUNT = 0 STEP_NUMBERS(COLUMN_ONE) };

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
    STATEMENT_COUNT,
};

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
    uint8_t *state;      /* of the last store_get_step */
    size_t state_capacity;
};

/* Translates a result of SQLite while doing `what`; ends the store on errors of the disk. */
static int store_failed(struct store *store, int result, const char *what, struct error *error) {
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

static int refuse_finished(const struct store *store, struct error *error) {
    return error_set(error, store->finished,
                     "%s failed earlier and takes nothing more; stop: a restart recovers",
                     store->dir.path);
}

static int damaged(struct store *store, const char *what, struct error *error) {
    store->finished = -EBADMSG;
    return error_set(error, -EBADMSG, "%s/%s is damaged: %s; " STATE_RECOVERY_HINT, store->dir.path,
                     STATE_DB, what);
}

static int store_exec(struct store *store, const char *sql, const char *what, struct error *error) {
    int result = sqlite3_exec(store->db, sql, NULL, NULL, NULL);
    return result == SQLITE_OK ? 0 : store_failed(store, result, what, error);
}

/* A pragma's single number. */
static int store_pragma(struct store *store, const char *sql, int64_t *out, struct error *error) {
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

/* Runs a bound statement that returns no rows. */
static int store_run(struct store *store, enum statement which, const char *what,
                     struct error *error) {
    sqlite3_stmt *statement = store->statements[which];
    int result = sqlite3_step(statement);
    (void)sqlite3_reset(statement);
    (void)sqlite3_clear_bindings(statement);
    return result == SQLITE_DONE ? 0 : store_failed(store, result, what, error);
}

static uint64_t meta_hash(const char *key, const void *bytes, size_t count) {
    return XXH3_64bits_withSeed(bytes, count, XXH3_64bits(key, strlen(key)));
}

static uint64_t meta_number_hash(const char *key, uint64_t number) {
    uint64_t bytes = htole64(number);
    return meta_hash(key, &bytes, sizeof bytes);
}

static int meta_put_number(struct store *store, const char *key, uint64_t number,
                           struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_PUT_META];
    (void)sqlite3_bind_text(statement, 1, key, -1, SQLITE_STATIC);
    (void)sqlite3_bind_int64(statement, 2, (int64_t)number);
    (void)sqlite3_bind_int64(statement, 3, (int64_t)meta_number_hash(key, number));
    return store_run(store, STATEMENT_PUT_META, key, error);
}

static int meta_put_bytes(struct store *store, const char *key, const void *bytes, size_t count,
                          struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_PUT_META];
    (void)sqlite3_bind_text(statement, 1, key, -1, SQLITE_STATIC);
    (void)sqlite3_bind_blob64(statement, 2, bytes, count, SQLITE_STATIC);
    (void)sqlite3_bind_int64(statement, 3, (int64_t)meta_hash(key, bytes, count));
    return store_run(store, STATEMENT_PUT_META, key, error);
}

static int meta_put_text(struct store *store, const char *key, const char *text,
                         struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_PUT_META];
    (void)sqlite3_bind_text(statement, 1, key, -1, SQLITE_STATIC);
    (void)sqlite3_bind_text(statement, 2, text, -1, SQLITE_STATIC);
    (void)sqlite3_bind_int64(statement, 3, (int64_t)meta_hash(key, text, strlen(text)));
    return store_run(store, STATEMENT_PUT_META, key, error);
}

/* Finds a meta row of this type; the statement then stands on it and must be reset. */
static int meta_find(struct store *store, const char *key, int type, struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_GET_META];
    char what[64];
    (void)sqlite3_bind_text(statement, 1, key, -1, SQLITE_STATIC);
    int result = sqlite3_step(statement);
    if (result != SQLITE_ROW && result != SQLITE_DONE) {
        return store_failed(store, result, "read", error);
    }
    (void)snprintf(what, sizeof what, "meta has no sound %s", key);
    if (result == SQLITE_DONE || sqlite3_column_type(statement, 0) != type ||
        sqlite3_column_type(statement, 1) != SQLITE_INTEGER) {
        return damaged(store, what, error);
    }
    uint64_t hash = type == SQLITE_INTEGER
                        ? meta_number_hash(key, (uint64_t)sqlite3_column_int64(statement, 0))
                        : meta_hash(key, sqlite3_column_blob(statement, 0),
                                    (size_t)sqlite3_column_bytes(statement, 0));
    return hash == (uint64_t)sqlite3_column_int64(statement, 1) ? 0 : damaged(store, what, error);
}

static int meta_number(struct store *store, const char *key, uint64_t *out, struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_GET_META];
    int code = meta_find(store, key, SQLITE_INTEGER, error);
    if (code == 0) {
        *out = (uint64_t)sqlite3_column_int64(statement, 0);
    }
    (void)sqlite3_reset(statement);
    return code;
}

static int meta_digest(struct store *store, const char *key, uint8_t out[16], struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_GET_META];
    int code = meta_find(store, key, SQLITE_BLOB, error);
    if (code == 0 && sqlite3_column_bytes(statement, 0) != 16) {
        code = damaged(store, key, error);
    }
    if (code == 0) {
        memcpy(out, sqlite3_column_blob(statement, 0), 16);
    }
    (void)sqlite3_reset(statement);
    return code;
}

/* The caller frees. */
static int meta_text(struct store *store, const char *key, char **out, struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_GET_META];
    int code = meta_find(store, key, SQLITE_TEXT, error);
    if (code == 0) {
        char *text = strdup((const char *)sqlite3_column_text(statement, 0));
        code = text == NULL ? error_set(error, -ENOMEM, "read %s: out of memory", key) : 0;
        *out = text;
    }
    (void)sqlite3_reset(statement);
    return code;
}

/* Called by SQLite after each commit: `pages` are in the WAL. */
static int wal_grew(void *context, sqlite3 *db, const char *name, int pages) {
    struct store *store = context;
    (void)db;
    (void)name;
    store->wal_pages = (uint64_t)pages;
    return SQLITE_OK;
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

static int connection_open(struct store *store, const char *name, int flags, struct error *error) {
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

static void connection_close(struct store *store) {
    for (size_t i = 0; i < STATEMENT_COUNT; i++) {
        (void)sqlite3_finalize(store->statements[i]);
        store->statements[i] = NULL;
    }
    store_rows_finalize(&store->rows);
    int result = sqlite3_close(store->db);
    assert(result == SQLITE_OK);
    store->db = NULL;
}

static int statements_prepare(struct store *store, struct error *error) {
    for (size_t i = 0; i < STATEMENT_COUNT; i++) {
        int result = sqlite3_prepare_v3(store->db, statement_texts[i], -1,
                                        SQLITE_PREPARE_PERSISTENT, &store->statements[i], NULL);
        if (result != SQLITE_OK) {
            return store_failed(store, result, "open", error);
        }
    }
    return 0;
}

/* Those that are there stay as they are, but for what sections append. */
static int datasets_put(struct store *store, const struct store_job *job, struct error *error) {
    sqlite3_stmt *statement = NULL;
    int result = sqlite3_prepare_v2(
        store->db,
        "INSERT OR REPLACE INTO datasets (dataset, name, dtype, documents, "
        "tokens, bin_bytes, fingerprint) VALUES (?, ?, ?, ?, ?, ?, ?)",
        -1, &statement, NULL);
    for (uint32_t i = 0; result == SQLITE_OK && i < job->dataset_count; i++) {
        const struct store_dataset *dataset = &job->datasets[i];
        (void)sqlite3_bind_int64(statement, 1, i);
        (void)sqlite3_bind_text(statement, 2, dataset->name, -1, SQLITE_STATIC);
        (void)sqlite3_bind_int64(statement, 3, dataset->dtype);
        (void)sqlite3_bind_int64(statement, 4, (int64_t)dataset->documents);
        (void)sqlite3_bind_int64(statement, 5, (int64_t)dataset->tokens);
        (void)sqlite3_bind_int64(statement, 6, (int64_t)dataset->bin_bytes);
        (void)sqlite3_bind_blob(statement, 7, dataset->fingerprint, 16, SQLITE_STATIC);
        result = sqlite3_step(statement);
        (void)sqlite3_reset(statement);
        result = result == SQLITE_DONE ? SQLITE_OK : result;
    }
    (void)sqlite3_finalize(statement);
    return result == SQLITE_OK ? 0 : store_failed(store, result, "store the datasets", error);
}

/* What a new store and a migrated one get alike. */
static int identity_put(struct store *store, const struct store_job *job, struct error *error) {
    int code = meta_put_bytes(store, "store_id", store->mark.store_id, STATE_ID_BYTES, error);
    if (code == 0) {
        code = meta_put_number(store, "groups", 0, error);
    }
    return code == 0 ? datasets_put(store, job, error) : code;
}

static int schema_fill(struct store *store, const struct store_job *job, struct error *error) {
    int code = meta_put_bytes(store, "job_digest", job->job_digest, 16, error);
    if (code == 0) {
        code = meta_put_text(store, "plan_text", job->plan_text, error);
    }
    if (code == 0) {
        code = meta_put_text(store, "version", job->version, error);
    }
    if (code == 0) {
        code = meta_put_text(store, "open_boot", "", error);
    }
    static const char *const numbers[] = {"committed_step", "generation"};
    for (size_t i = 0; code == 0 && i < sizeof numbers / sizeof numbers[0]; i++) {
        code = meta_put_number(store, numbers[i], 0, error);
    }
    return code == 0 ? identity_put(store, job, error) : code;
}

static int schema_create(struct store *store, const struct store_job *job, struct error *error) {
    char settings[96];
    (void)snprintf(settings, sizeof settings,
                   "PRAGMA application_id = %u; PRAGMA journal_mode = WAL; BEGIN", APPLICATION_ID);
    int code = connection_open(store, STATE_DB_NEW, SQLITE_OPEN_CREATE, error);
    if (code == 0) {
        code = store_exec(store, settings, "create", error);
    }
    if (code == 0) {
        int result = schema_apply(store->db, 0);
        code = result == SQLITE_OK ? 0 : store_failed(store, result, "create", error);
    }
    if (code == 0) {
        code = statements_prepare(store, error);
    }
    if (code == 0) {
        code = schema_fill(store, job, error);
    }
    return code == 0 ? store_exec(store, "COMMIT", "create", error) : code;
}

static int identity_make(struct store *store, struct error *error) {
    store->mark = (struct state_mark){.groups = 0};
    ssize_t count = getrandom(store->mark.store_id, STATE_ID_BYTES, 0);
    return count == STATE_ID_BYTES ? 0 : error_set(error, -EIO, "no random numbers");
}

static int refuse_small(const struct store *store, struct error *error) {
    return error_set(error, -ENOSPC,
                     "the disk of %s is full, and there is no store yet: %" PRIu64
                     " bytes are free, %u are needed; free some",
                     store->dir.path, state_dir_free_bytes(&store->dir), STORE_BYTES_MIN);
}

/* Makes ballast.db whole or not at all: under another name, written back, closed, renamed. */
static int store_create(struct store *store, const struct store_job *job, struct error *error) {
    state_dir_discard(&store->dir);
    int code = identity_make(store, error);
    if (code == 0) {
        code = schema_create(store, job, error);
    }
    if (code == 0) {
        int result = sqlite3_wal_checkpoint_v2(store->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL,
                                               NULL);
        code = result == SQLITE_OK ? 0 : store_failed(store, result, "create", error);
    }
    connection_close(store);
    if (code == 0) {
        code = FAILPOINT_ERROR(create_rename, error);
    }
    if (code == 0) {
        code = state_dir_adopt(&store->dir, error);
    }
    if (code < 0) {
        state_dir_discard(&store->dir);
    }
    return code == -ENOSPC ? refuse_small(store, error) : code;
}

static int refuse_difference(const struct store *store, const struct history_difference *difference,
                             struct error *error) {
    if (strncmp(difference->a, ALGORITHM_LINE, strlen(ALGORITHM_LINE)) == 0) {
        return error_set(error, -EINVAL,
                         "%s was planned with '%s', this version plans with '%s'; run the version "
                         "that wrote it, or give this job another [daemon] state_dir",
                         store->dir.path, difference->a, difference->b);
    }
    return error_set(error, -EINVAL,
                     "%s holds another job: it has '%s', this config has '%s'; set it back, or "
                     "give this job another [daemon] state_dir",
                     store->dir.path, difference->a, difference->b);
}

/* What is committed was planned by the store's history. */
static int refuse_past(const struct store *store, const struct history_difference *difference,
                       uint64_t committed_step, struct error *error) {
    return error_set(error, -EINVAL,
                     "%s has committed the steps before %" PRIu64 ", and from step %" PRIu64
                     " on its history differs: it has '%s', this config has '%s'; set it back, let "
                     "the change begin with step %" PRIu64
                     " or later, or first let the job go back to step %" PRIu64
                     " (Seek, or Import of its checkpoint)",
                     store->dir.path, committed_step, difference->step, difference->a,
                     difference->b, committed_step, difference->step);
}

static int compare_history(struct store *store, const char *there, const char *here,
                           struct error *error) {
    struct history_difference difference;
    uint64_t committed_step = 0;
    store->fork = UINT64_MAX;
    if (!history_differs(there, here, &difference)) {
        return 0;
    }
    if (difference.step == 0) {
        return refuse_difference(store, &difference, error);
    }
    int code = meta_number(store, "committed_step", &committed_step, error);
    if (code == 0 && difference.step < committed_step) {
        code = refuse_past(store, &difference, committed_step, error);
    }
    store->fork = difference.step;
    return code;
}

/* Compares the dataset that the statement stands on: 0, or what is different. */
static bool dataset_differs(sqlite3_stmt *statement, const struct store_dataset *here, char *out,
                            size_t bytes) {
    const struct {
        const char *what;
        uint64_t there, here;
    } numbers[] = {
        {"dtype", (uint64_t)sqlite3_column_int64(statement, 1), here->dtype},
        {"documents", (uint64_t)sqlite3_column_int64(statement, 2), here->documents},
        {"tokens", (uint64_t)sqlite3_column_int64(statement, 3), here->tokens},
        {"bytes of .bin", (uint64_t)sqlite3_column_int64(statement, 4), here->bin_bytes}};
    const char *name = (const char *)sqlite3_column_text(statement, 0);
    if (strcmp(name, here->name) != 0) {
        (void)snprintf(out, bytes, "dataset '%s' there is '%s' here", name, here->name);
        return true;
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (numbers[i].there != numbers[i].here) {
            (void)snprintf(out, bytes, "dataset '%s' has %s %" PRIu64 " there, %" PRIu64 " here",
                           name, numbers[i].what, numbers[i].there, numbers[i].here);
            return true;
        }
    }
    if (sqlite3_column_bytes(statement, 5) != 16 ||
        memcmp(sqlite3_column_blob(statement, 5), here->fingerprint, 16) != 0) {
        (void)snprintf(out, bytes, "dataset '%s' has as many documents and tokens, but others",
                       name);
        return true;
    }
    return false;
}

int store_refuse_corpus(struct store *store, const struct store_dataset *datasets, uint32_t count,
                        struct error *error) {
    sqlite3_stmt *statement = NULL;
    char what[192] = "the settings agree but the corpus differs";
    uint32_t i = 0;
    int result = sqlite3_prepare_v2(store->db,
                                    "SELECT name, dtype, documents, tokens, bin_bytes, fingerprint "
                                    "FROM datasets ORDER BY dataset",
                                    -1, &statement, NULL);
    result = result == SQLITE_OK ? sqlite3_step(statement) : result;
    while (result == SQLITE_ROW && i < count &&
           !dataset_differs(statement, &datasets[i], what, sizeof what)) {
        i++;
        result = sqlite3_step(statement);
    }
    if (0 < i && i < count && result == SQLITE_DONE) {
        (void)snprintf(what, sizeof what, "the number of datasets differs: %u are here", count);
    }
    (void)sqlite3_finalize(statement);
    return error_set(error, -EINVAL,
                     "%s holds another job: %s; restore its files, or give this job another "
                     "[daemon] state_dir",
                     store->dir.path, what);
}

static int compare_job(struct store *store, const struct store_job *job, struct error *error) {
    uint8_t digest[16];
    char *text = NULL;
    int code = meta_digest(store, "job_digest", digest, error);
    if (code == 0) {
        code = meta_text(store, "plan_text", &text, error);
    }
    if (code == 0) {
        code = compare_history(store, text, job->plan_text, error);
    }
    if (code == 0 && memcmp(digest, job->job_digest, sizeof digest) != 0) {
        code = store_refuse_corpus(store, job->datasets, job->dataset_job_count, error);
    }
    free(text);
    return code;
}

static int quick_check(struct store *store, struct error *error) {
    sqlite3_stmt *statement = NULL;
    char what[160];
    int code = 0;
    int result = sqlite3_prepare_v2(store->db, "PRAGMA quick_check(1)", -1, &statement, NULL);
    if (result == SQLITE_OK) {
        result = sqlite3_step(statement);
    }
    if (result != SQLITE_ROW) {
        code = store_failed(store, result, "check", error);
    } else if (strcmp((const char *)sqlite3_column_text(statement, 0), "ok") != 0) {
        (void)snprintf(what, sizeof what, "%s", (const char *)sqlite3_column_text(statement, 0));
        code = damaged(store, what, error);
    }
    (void)sqlite3_finalize(statement);
    return code;
}

static bool lost_allowed(void) {
    const char *allowed = getenv(STATE_ALLOW_LOST);
    return allowed != NULL && strcmp(allowed, "1") == 0;
}

/* Acknowledged groups are not there, or nobody can tell. */
static int refuse_lost(struct store *store, const char *why, struct error *error) {
    uint64_t committed = 0;
    if (lost_allowed()) {
        return 0;
    }
    (void)meta_number(store, "committed_step", &committed, NULL);
    store->finished = -EBADMSG;
    return error_set(error, -EBADMSG,
                     "%s/%s has lost commits: %s; restore " STATE_DB "-wal, or the folder from a "
                     "backup, or start once with " STATE_ALLOW_LOST
                     "=1 to go on from step %" PRIu64,
                     store->dir.path, STATE_DB, why, committed);
}

static int refuse_gone(const struct store *store, struct error *error) {
    return error_set(error, -EBADMSG,
                     "%s has a " STATE_MARK " but no " STATE_DB ": the store is gone; restore the "
                     "folder from a backup, or move it away to start the job from step 0",
                     store->dir.path);
}

/* A store of a format without a mark: its WAL has at least to be there. */
static int check_unmarked(struct store *store, const struct state_file *file, bool closed,
                          struct error *error) {
    if (closed || (store->format < 2 && file->wal)) {
        return 0;
    }
    return refuse_lost(store,
                       file->wal ? "it was not closed and its " STATE_MARK " is missing"
                                 : "it was not closed and its -wal is missing",
                       error);
}

/* Whether the store is the one of the mark, and all is there that was acknowledged. */
static int check_mark(struct store *store, const struct state_mark *mark, struct error *error) {
    char why[96];
    int code = meta_digest(store, "store_id", store->mark.store_id, error);
    if (code == 0) {
        code = meta_number(store, "groups", &store->mark.groups, error);
    }
    if (code < 0 || mark == NULL) {
        return code;
    }
    if (memcmp(mark->store_id, store->mark.store_id, STATE_ID_BYTES) != 0) {
        return refuse_lost(store, "it is another store than the one " STATE_MARK " is of", error);
    }
    (void)snprintf(why, sizeof why, "%" PRIu64 " of %" PRIu64 " groups are there",
                   store->mark.groups, mark->groups);
    return store->mark.groups < mark->groups ? refuse_lost(store, why, error) : 0;
}

/* Whether the store was closed, and what its not having been means. `mark` NULL: there is none. */
static int check_last_close(struct store *store, const struct state_file *file,
                            const struct state_mark *mark, struct error *error) {
    char now[40];
    char *then = NULL;
    int code = store->format < 2 ? 0 : check_mark(store, mark, error);
    if (code == 0) {
        code = meta_text(store, "open_boot", &then, error);
    }
    if (code == 0) {
        store->dirty = then[0] != '\0';
        code = mark == NULL ? check_unmarked(store, file, !store->dirty, error) : 0;
    }
    if (code == 0 && store->dirty) {
        state_dir_boot_id(now);
        if (file->shorter || now[0] == '\0' || strcmp(now, then) != 0) {
            code = quick_check(store, error);
        }
    }
    free(then);
    return code;
}

static int check_format(struct store *store, struct error *error) {
    int64_t page_bytes = 0;
    int code = store_pragma(store, "PRAGMA user_version", &store->format, error);
    if (code == 0) {
        code = store_pragma(store, "PRAGMA page_size", &page_bytes, error);
    }
    if (code == 0 && store->format > SCHEMA_VERSION) {
        return error_set(error, -ENOSYS,
                         "%s/%s has format %" PRId64 ", this version reads up to %d; run the newer "
                         "version that wrote it",
                         store->dir.path, STATE_DB, store->format, SCHEMA_VERSION);
    }
    if (code == 0 && store->format < 1) {
        return damaged(store, "it states no format", error);
    }
    store->page_bytes = (uint64_t)page_bytes;
    return code;
}

/* A full disk: gives the reserve away and writes the WAL back, so that it can be used again. */
static void make_room(struct store *store) {
    if (state_dir_give_reserve(&store->dir)) {
        (void)store_checkpoint(store, 0, NULL);
    }
}

/* Ends the group after a failure, so that nothing of it can slip into the next. */
static int group_end(struct store *store, int code) {
    if (code < 0) {
        store_rollback(store);
    }
    if (code == -ENOSPC) {
        make_room(store);
    }
    return code;
}

/* Migration */

static int store_backup(struct store *store, struct error *error) {
    char made[48], name[32], path[PATH_MAX + 64];
    (void)snprintf(name, sizeof name, STATE_DB ".%" PRId64, store->format);
    (void)snprintf(made, sizeof made, "%s.new", name);
    (void)snprintf(path, sizeof path, "%s/%s", store->dir.path, made);
    (void)unlink(path);
    int result = schema_copy(store->db, path);
    if (result != SQLITE_OK) {
        (void)unlink(path);
        return store_failed(store, result, "copy the store before its migration", error);
    }
    return state_dir_keep(&store->dir, made, name, error);
}

static int store_migrate_group(struct store *store, const struct store_job *job,
                               struct error *error) {
    int code = store_begin(store, error);
    if (code == 0) {
        int result = schema_apply(store->db, (int)store->format);
        code = result == SQLITE_OK ? 0 : store_failed(store, result, "migrate", error);
    }
    if (code == 0) {
        code = identity_put(store, job, error);
    }
    if (code == 0) {
        code = store_run(store, STATEMENT_COMMIT, "migrate", error);
    }
    store_rollback(store);
    return code;
}

/* Brings an older format up to date: a copy first, then the mark, so that there is one for what the
 * transaction makes. */
static int store_migrate(struct store *store, const struct store_job *job,
                         const struct state_mark *mark, struct error *error) {
    int code = 0;
    if (mark != NULL) { /* of a migration that was killed */
        store->mark = *mark;
    } else {
        code = identity_make(store, error);
    }
    if (code == 0) {
        code = store_backup(store, error);
    }
    if (code == 0 && mark == NULL) {
        code = state_dir_make_mark(&store->dir, &store->mark, error);
    }
    if (code == 0) {
        code = store_migrate_group(store, job, error);
    }
    store->format = code == 0 ? SCHEMA_VERSION : store->format;
    return code;
}

/* Whether open_boot and version are what this opening would put. */
static int mark_holds(struct store *store, const struct store_job *job, struct error *error) {
    char now[40];
    char *then = NULL;
    char *version = NULL;
    state_dir_boot_id(now);
    int code = meta_text(store, "open_boot", &then, error);
    if (code == 0) {
        code = meta_text(store, "version", &version, error);
    }
    if (code == 0) {
        store->marked = now[0] != '\0' && strcmp(then, now) == 0 &&
                        strcmp(version, job->version) == 0;
    }
    free(then);
    free(version);
    return code;
}

/* Makes the store this job's: compares, migrates, and sees that there is a mark. */
static int store_claim(struct store *store, const struct store_job *job,
                       const struct state_mark *mark, struct error *error) {
    (void)sqlite3_wal_hook(store->db, wal_grew, store);
    store->version = strdup(job->version);
    int code = store->version == NULL ? error_set(error, -ENOMEM, "open the store: out of memory")
                                      : compare_job(store, job, error);
    if (code == 0 && store->format < SCHEMA_VERSION) {
        code = store_migrate(store, job, mark, error);
    } else if (code == 0 && (mark == NULL || mark->groups > store->mark.groups ||
                             memcmp(mark->store_id, store->mark.store_id, STATE_ID_BYTES) != 0)) {
        code = state_dir_make_mark(&store->dir, &store->mark, error);
    }
    if (code == 0) {
        int result = store_rows_prepare(&store->rows, store->db);
        code = result == SQLITE_OK ? 0 : store_failed(store, result, "open", error);
    }
    if (code == 0) {
        code = mark_holds(store, job, error);
    }
    store->claimed = code == 0;
    return code;
}

static int store_attach(struct store *store, const struct store_job *job, struct error *error) {
    struct state_file file;
    struct state_mark mark;
    int marked = state_dir_read_mark(&store->dir, &mark, error);
    int code = marked < 0 ? marked : state_dir_inspect(&store->dir, APPLICATION_ID, &file, error);
    if (code == 0 && !file.exists) {
        assert(job != NULL);
        code = marked ? refuse_gone(store, error) : store_create(store, job, error);
    }
    if (code == 0) {
        code = connection_open(store, STATE_DB, 0, error);
    }
    if (code == 0) {
        code = check_format(store, error);
    }
    if (code == 0) {
        code = statements_prepare(store, error);
    }
    if (code == 0) {
        code = check_last_close(store, &file, marked ? &mark : NULL, error);
    }
    return code == 0 && job != NULL ? store_claim(store, job, marked ? &mark : NULL, error) : code;
}

int store_open(const char *state_dir, const struct store_job *job, struct store **out,
               struct error *error) {
    struct store *store = calloc(1, sizeof *store);
    if (store == NULL) {
        return error_set(error, -ENOMEM, "open the store: out of memory");
    }
    store->dir = STATE_DIR_CLOSED;
    store->fork = UINT64_MAX;
    int code = state_dir_open(state_dir, job != NULL, &store->dir, error);
    if (code == 0) {
        code = store_attach(store, job, error);
    }
    if (code < 0) {
        store_close(store);
        return code;
    }
    if (job != NULL) {
        state_dir_keep_reserve(&store->dir);
    }
    *out = store;
    return 0;
}

static int mark_closed(struct store *store) {
    store->marked = true;
    int code = store_begin(store, NULL);
    if (code == 0) {
        code = meta_put_text(store, "open_boot", "", NULL);
    }
    return code == 0 ? store_commit(store, NULL) : code;
}

void store_close(struct store *store) {
    if (store == NULL) {
        return;
    }
    store_rollback(store);
    bool clean = store->claimed && (!store->dirty || mark_closed(store) == 0);
    if (store->db != NULL) {
        if (!clean) { /* what is in the WAL stays there */
            (void)sqlite3_db_config(store->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
        }
        connection_close(store);
    }
    if (clean) {
        (void)state_dir_sync_mark(&store->dir);
    }
    state_dir_close(&store->dir);
    free(store->version);
    free(store->state);
    free(store);
}

int store_begin(struct store *store, struct error *error) {
    assert(!store->grouping);
    if (store->finished != 0) {
        return refuse_finished(store, error);
    }
    int code = FAILPOINT_ERROR(group_begin, error);
    if (code == 0) {
        code = store_run(store, STATEMENT_BEGIN, "begin", error);
    }
    store->grouping = code == 0;
    return code;
}

/* Hash of a row: numbers, state, digest. */
static uint64_t step_hash(const struct store_step *step) {
    uint64_t fields[STEP_NUMBER_COUNT + 4];
    size_t i = 0;
    memcpy(fields, step->digest, sizeof step->digest);
    i = 2;
    fields[i++] = htole64(step->step);
    fields[i++] = htole64(XXH3_64bits(step->state, step->state_bytes));
#define FIELD_OF(column, member) fields[i++] = htole64(step->member);
    STEP_NUMBERS(FIELD_OF)
#undef FIELD_OF
    return XXH3_64bits(fields, sizeof fields);
}

int store_put_step(struct store *store, const struct store_step *step, struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_PUT_STEP];
    int i = 0;
    assert(store->grouping && step->step <= INT64_MAX && step->state_bytes > 0);
    if ((int64_t)step->step < store->prune_begin) {
        store->prune_begin = (int64_t)step->step;
    }
    (void)sqlite3_bind_int64(statement, ++i, (int64_t)step->step);
    (void)sqlite3_bind_blob64(statement, ++i, step->state, step->state_bytes, SQLITE_STATIC);
    (void)sqlite3_bind_blob(statement, ++i, step->digest, sizeof step->digest, SQLITE_STATIC);
#define BIND(column, member) (void)sqlite3_bind_int64(statement, ++i, (int64_t)step->member);
    STEP_NUMBERS(BIND)
#undef BIND
    (void)sqlite3_bind_int64(statement, ++i, (int64_t)step_hash(step));
    return group_end(store, store_run(store, STATEMENT_PUT_STEP, "store a step", error));
}

int store_put_committed(struct store *store, uint64_t committed_step, struct error *error) {
    assert(store->grouping);
    return group_end(store, meta_put_number(store, "committed_step", committed_step, error));
}

int store_put_rows(struct store *store, const struct plan_state *state, struct error *error) {
    assert(store->grouping);
    int result = store_rows_put(&store->rows, state);
    int code = result == SQLITE_OK ? meta_put_number(store, "rows_step", state->step, error)
                                   : store_failed(store, result, "store what waits", error);
    return group_end(store, code);
}

int store_put_generation(struct store *store, uint64_t generation, struct error *error) {
    assert(store->grouping);
    return group_end(store, meta_put_number(store, "generation", generation, error));
}

uint64_t store_fork(const struct store *store) {
    return store->fork;
}

int store_put_history(struct store *store, const struct store_job *job, struct error *error) {
    assert(store->grouping && store->fork <= INT64_MAX);
    (void)sqlite3_bind_int64(store->statements[STATEMENT_FORGET], 1, (int64_t)store->fork);
    int code = store_run(store, STATEMENT_FORGET, "forget steps", error);
    if (code == 0) {
        code = meta_put_text(store, "plan_text", job->plan_text, error);
    }
    if (code == 0) {
        code = datasets_put(store, job, error);
    }
    return group_end(store, code);
}

int store_put_generation_begin(struct store *store, uint64_t step, const char *by,
                               struct error *error) {
    assert(store->grouping);
    int code = meta_put_number(store, "generation_step", step, error);
    if (code == 0) {
        code = meta_put_text(store, "generation_by", by, error);
    }
    return group_end(store, code);
}

int store_put_export(struct store *store, uint64_t step, uint32_t retained, struct error *error) {
    char key[32];
    assert(store->grouping && step <= INT64_MAX);
    (void)snprintf(key, sizeof key, EXPORT_KEY "%" PRIu64, step);
    int code = meta_put_number(store, key, step, error);
    if (code == 0) {
        (void)sqlite3_bind_int64(store->statements[STATEMENT_PRUNE_EXPORTS], 1, retained);
        code = store_run(store, STATEMENT_PRUNE_EXPORTS, "prune", error);
        store->prune_begin = sqlite3_changes(store->db) > 0 ? 0 : store->prune_begin;
    }
    return group_end(store, code);
}

/* Before prune_begin there are rows of exported steps alone, which need not be looked at again. */
int store_prune(struct store *store, uint64_t oldest_step_kept, struct error *error) {
    sqlite3_stmt *find = store->statements[STATEMENT_PRUNE_END];
    sqlite3_stmt *prune = store->statements[STATEMENT_PRUNE];
    assert(store->grouping && oldest_step_kept <= INT64_MAX);
    (void)sqlite3_bind_int64(find, 1, (int64_t)oldest_step_kept);
    int result = sqlite3_step(find);
    int64_t end = result == SQLITE_ROW ? sqlite3_column_int64(find, 0) : 0;
    (void)sqlite3_reset(find);
    if (result != SQLITE_ROW) {
        return group_end(store, store_failed(store, result, "prune", error));
    }
    (void)sqlite3_bind_int64(prune, 1, store->prune_begin);
    (void)sqlite3_bind_int64(prune, 2, end);
    int code = store_run(store, STATEMENT_PRUNE, "prune", error);
    store->prune_begin = code == 0 && end > store->prune_begin ? end : store->prune_begin;
    return group_end(store, code);
}

/* Whether the file that was written is still the one that the next start will find. */
static int check_in_place(struct store *store, struct error *error) {
    int moved = 0;
    (void)sqlite3_file_control(store->db, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
    if (moved == 0 && state_dir_has(&store->dir, STATE_DB "-wal")) {
        return 0;
    }
    store->finished = -EIO;
    return error_set(
        error, -EIO,
        "commit: %s/%s or its -wal was removed or replaced while it was open; stop: restore the "
        "folder from a backup, or start without it from step 0",
        store->dir.path, STATE_DB);
}

/* What every group says beside its own: its number, and the first one whose the store is. */
static int group_seal(struct store *store, struct error *error) {
    char boot[40];
    int code = meta_put_number(store, "groups", store->mark.groups + 1, error);
    if (code < 0 || store->marked) {
        return code;
    }
    state_dir_boot_id(boot);
    code = meta_put_text(store, "open_boot", boot[0] == '\0' ? "unknown" : boot, error);
    return code == 0 ? meta_put_text(store, "version", store->version, error) : code;
}

/* The group is durable. On a disk so full that even the mark cannot be moved it stays behind. */
static int group_count(struct store *store, struct error *error) {
    store->grouping = false;
    store->marked = true;
    store->dirty = true;
    store->mark.groups++;
    (void)FAILPOINT(mark);
    int code = check_in_place(store, error);
    int moved = code == 0 ? state_dir_put_mark(&store->dir, &store->mark) : 0;
    if (moved < 0 && moved != -ENOSPC) {
        store->finished = -EIO;
        return error_set(error, -EIO, "commit: %s/%s: %s; stop: a restart recovers",
                         store->dir.path, STATE_MARK, strerror(-moved));
    }
    return code;
}

int store_commit(struct store *store, struct error *error) {
    assert(store->grouping);
    int code = FAILPOINT_ERROR(group_commit, error);
    if (code == 0) {
        code = group_seal(store, error);
    }
    if (code == 0) {
        code = store_run(store, STATEMENT_COMMIT, "commit", error);
    }
    if (code == 0) {
        code = group_count(store, error);
    }
    if (code == 0) {
        state_dir_keep_reserve(&store->dir);
    }
    return group_end(store, code);
}

int store_settle(struct store *store, struct error *error) {
    int code = store->finished != 0 ? store->finished : state_dir_sync_mark(&store->dir);
    if (code == 0) {
        return 0;
    }
    store->finished = -EIO;
    return error_set(error, -EIO, "%s/%s: sync: %s; stop: a restart recovers", store->dir.path,
                     STATE_MARK, strerror(-code));
}

void store_rollback(struct store *store) {
    if (store->db != NULL && sqlite3_get_autocommit(store->db) == 0) {
        (void)sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
    }
    if (store->grouping) {
        store_rows_forget(&store->rows);
    }
    store->prune_begin = 0;
    store->grouping = false;
}

int store_checkpoint(struct store *store, uint64_t wal_bytes, struct error *error) {
    assert(!store->grouping);
    if (store->finished != 0) {
        return refuse_finished(store, error);
    }
    if (store_wal_bytes(store) <= wal_bytes) {
        return 0;
    }
    int failed = FAILPOINT_ERROR(checkpoint_before, error);
    if (failed < 0) {
        return failed;
    }
    int result = sqlite3_wal_checkpoint_v2(store->db, NULL, SQLITE_CHECKPOINT_RESTART, NULL, NULL);
    if (result != SQLITE_OK) {
        int code = store_failed(store, result, "checkpoint", error);
        if (code == -ENOSPC) {
            make_room(store);
        }
        return code;
    }
    store->wal_pages = 0;
    (void)FAILPOINT(checkpoint_after);
    return 0;
}

uint64_t store_wal_bytes(const struct store *store) {
    return store->wal_pages == 0 ? 0 : 32 + store->wal_pages * (store->page_bytes + 24);
}

/* Whether meta has a row of this key; the first generation has no beginning. */
static int meta_has(struct store *store, const char *key, struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_GET_META];
    (void)sqlite3_bind_text(statement, 1, key, -1, SQLITE_STATIC);
    int result = sqlite3_step(statement);
    (void)sqlite3_reset(statement);
    if (result != SQLITE_ROW && result != SQLITE_DONE) {
        return store_failed(store, result, "read", error);
    }
    return result == SQLITE_ROW;
}

static int summary_generation(struct store *store, struct store_summary *summary,
                              struct error *error) {
    char *by = NULL;
    int code = meta_number(store, "generation", &summary->generation, error);
    if (code == 0) {
        code = meta_has(store, "generation_step", error);
    }
    if (code <= 0) {
        return code;
    }
    code = meta_number(store, "generation_step", &summary->generation_step, error);
    if (code == 0) {
        code = meta_text(store, "generation_by", &by, error);
    }
    if (code == 0) {
        (void)snprintf(summary->generation_by, sizeof summary->generation_by, "%s", by);
    }
    free(by);
    return code;
}

int store_rows_end(struct store *store, uint64_t step, uint64_t *out, struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_ROWS_END];
    if (store->finished != 0) {
        return refuse_finished(store, error);
    }
    (void)sqlite3_bind_int64(statement, 1, step > INT64_MAX ? INT64_MAX : (int64_t)step);
    int result = sqlite3_step(statement);
    if (result == SQLITE_ROW || result == SQLITE_DONE) {
        *out = result == SQLITE_ROW ? (uint64_t)sqlite3_column_int64(statement, 0) + 1 : step;
    }
    (void)sqlite3_reset(statement);
    return result == SQLITE_ROW || result == SQLITE_DONE
               ? 0
               : store_failed(store, result, "read", error);
}

int store_summary(struct store *store, struct store_summary *out, struct error *error) {
    struct store_summary summary = {0};
    sqlite3_stmt *statement = store->statements[STATEMENT_LAST_STEP];
    if (store->finished != 0) {
        return refuse_finished(store, error);
    }
    int result = sqlite3_step(statement);
    if (result == SQLITE_ROW && sqlite3_column_type(statement, 0) == SQLITE_INTEGER) {
        summary.steps_end = (uint64_t)sqlite3_column_int64(statement, 0) + 1;
    }
    (void)sqlite3_reset(statement);
    int code = result == SQLITE_ROW ? 0 : store_failed(store, result, "read", error);
    if (code == 0) {
        code = meta_number(store, "committed_step", &summary.committed_step, error);
    }
    if (code == 0) {
        code = summary_generation(store, &summary, error);
    }
    if (code == 0) {
        code = meta_digest(store, "job_digest", summary.job_digest, error);
    }
    if (code == 0) {
        *out = summary;
    }
    return code;
}

/* Copies the state of the row that the statement stands on. */
static int step_state(struct store *store, sqlite3_stmt *statement, struct store_step *step,
                      struct error *error) {
    const void *state = sqlite3_column_blob(statement, 1);
    step->state_bytes = (size_t)sqlite3_column_bytes(statement, 1);
    if (step->state_bytes > store->state_capacity) {
        uint8_t *grown = realloc(store->state, step->state_bytes);
        if (grown == NULL) {
            return error_set(error, -ENOMEM, "read a step: out of memory");
        }
        store->state = grown;
        store->state_capacity = step->state_bytes;
    }
    if (state != NULL) {
        memcpy(store->state, state, step->state_bytes);
    }
    step->state = store->state;
    return 0;
}

static int step_read(struct store *store, sqlite3_stmt *statement, struct store_step *out,
                     struct error *error) {
    struct store_step step = {.step = (uint64_t)sqlite3_column_int64(statement, 0)};
    char what[48];
    int i = 2;
    int code = step_state(store, statement, &step, error);
    if (code < 0) {
        return code;
    }
    (void)snprintf(what, sizeof what, "the row of step %" PRIu64, step.step);
    if (step.state_bytes == 0 || sqlite3_column_bytes(statement, 2) != sizeof step.digest) {
        return damaged(store, what, error);
    }
    memcpy(step.digest, sqlite3_column_blob(statement, 2), sizeof step.digest);
#define COLUMN(column, member)                                                                     \
    step.member = (__typeof__(step.member))sqlite3_column_int64(statement, ++i);
    STEP_NUMBERS(COLUMN)
#undef COLUMN
    if ((uint64_t)sqlite3_column_int64(statement, ++i) != step_hash(&step)) {
        return damaged(store, what, error);
    }
    *out = step;
    return 1;
}

int store_get_step(struct store *store, uint64_t step, struct store_step *out,
                   struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_GET_STEP];
    int code;
    if (store->finished != 0) {
        return refuse_finished(store, error);
    }
    (void)sqlite3_bind_int64(statement, 1, step > INT64_MAX ? INT64_MAX : (int64_t)step);
    int result = sqlite3_step(statement);
    if (result == SQLITE_ROW) {
        code = step_read(store, statement, out, error);
    } else {
        code = result == SQLITE_DONE ? 0 : store_failed(store, result, "read a step", error);
    }
    (void)sqlite3_reset(statement);
    return code;
}

int store_plan_text(struct store *store, char **out, struct error *error) {
    return store->finished != 0 ? refuse_finished(store, error)
                                : meta_text(store, "plan_text", out, error);
}

const char *store_library_version(void) {
    return sqlite3_libversion();
}
