/* store_open: a store is opened: made, or checked, compared with its job and migrated; and closed.
 *
 * Lock, look at the file's head without SQLite, open, verify against ballast.mark (store_check.c),
 * compare the job (store_job.c), migrate. The first group of an opening also marks the store open
 * (open_boot). */
#include "daemon/failpoint.h"
#include "daemon/store_connection.h"
#include "daemon/store_meta.h"
#include "daemon/store_schema.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define APPLICATION_ID  0x424c5354u /* 'BLST' */
#define STORE_BYTES_MIN (1u << 20)  /* of a new one, with room to begin */

/* Called by SQLite after each commit: `pages` are in the WAL. */
static int wal_grew(void *context, sqlite3 *db, const char *name, int pages) {
    struct store *store = context;
    (void)db;
    (void)name;
    store->wal_pages = (uint64_t)pages;
    return SQLITE_OK;
}

static int identity_make(struct store *store, struct error *error) {
    store->mark = (struct state_mark){.groups = 0};
    ssize_t count = getrandom(store->mark.store_id, STATE_ID_BYTES, 0);
    return count == STATE_ID_BYTES ? 0 : error_set(error, -EIO, "no random numbers");
}

/* What a new store gets, and one that is migrated from version 1. */
static int identity_put(struct store *store, const struct store_job *job, struct error *error) {
    int code = meta_put_bytes(store, "store_id", store->mark.store_id, STATE_ID_BYTES, error);
    if (code == 0) {
        code = meta_put_number(store, "groups", 0, error);
    }
    return code == 0 ? store_put_datasets(store, job, error) : code;
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
        code = connection_prepare(store, error);
    }
    if (code == 0) {
        code = schema_fill(store, job, error);
    }
    return code == 0 ? store_exec(store, "COMMIT", "create", error) : code;
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

static int refuse_gone(const struct store *store, struct error *error) {
    return error_set(error, -EBADMSG,
                     "%s has a " STATE_MARK " but no " STATE_DB ": the store is gone; restore the "
                     "folder from a backup, or move it away to start the job from step 0",
                     store->dir.path);
}

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
    if (code == 0 && store->format < 2) {
        code = identity_put(store, job, error);
    }
    if (code == 0) {
        code = store_run(store, STATEMENT_COMMIT, "migrate", error);
    }
    store_rollback(store);
    return code;
}

/* The mark of the file is not, or no longer, the one of the database. */
static bool mark_differs(const struct store *store, const struct state_mark *mark) {
    return mark == NULL || mark->groups > store->mark.groups ||
           memcmp(mark->store_id, store->mark.store_id, STATE_ID_BYTES) != 0;
}

/* Brings an older format up to date: a copy first, then the mark, so that there is one for what the
 * transaction makes. */
static int store_migrate(struct store *store, const struct store_job *job,
                         const struct state_mark *mark, struct error *error) {
    int code = 0;
    if (store->format < 2 && mark != NULL) { /* of a migration that was killed */
        store->mark = *mark;
    } else if (store->format < 2) {
        code = identity_make(store, error);
    }
    if (code == 0) {
        code = store_backup(store, error);
    }
    if (code == 0 && mark_differs(store, mark)) {
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
                                      : store_compare_job(store, job, error);
    if (code == 0 && store->format < SCHEMA_VERSION) {
        code = store_migrate(store, job, mark, error);
    } else if (code == 0 && mark_differs(store, mark)) {
        code = state_dir_make_mark(&store->dir, &store->mark, error);
    }
    if (code == 0) {
        code = connection_prepare_present(store, error);
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

static int store_attach_checked(struct store *store, const struct store_job *job,
                                struct error *error) {
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
        code = store_check_format(store, error);
    }
    if (code == 0) {
        code = connection_prepare(store, error);
    }
    if (code == 0) {
        code = store_check_close(store, &file, marked ? &mark : NULL, error);
    }
    return code == 0 && job != NULL ? store_claim(store, job, marked ? &mark : NULL, error) : code;
}

int store_lock(const char *state_dir, bool create, struct store **out, struct error *error) {
    struct store *store = calloc(1, sizeof *store);
    if (store == NULL) {
        return error_set(error, -ENOMEM, "open the store: out of memory");
    }
    store->dir = STATE_DIR_CLOSED;
    store->fork = UINT64_MAX;
    store->rank_rows = true;
    int code = state_dir_open(state_dir, create, &store->dir, error);
    if (code < 0) {
        store_close(store);
        return code;
    }
    *out = store;
    return 0;
}

int store_attach(struct store *store, const struct store_job *job, struct error *error) {
    int code = store_attach_checked(store, job, error);
    if (code == 0 && job != NULL) {
        state_dir_keep_reserve(&store->dir);
    }
    return code;
}

int store_open(const char *state_dir, const struct store_job *job, struct store **out,
               struct error *error) {
    struct store *store = NULL;
    int code = store_lock(state_dir, job != NULL, &store, error);
    if (code == 0) {
        code = store_attach(store, job, error);
    }
    if (code < 0) {
        store_close(store);
        return code;
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
