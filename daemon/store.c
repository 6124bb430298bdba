/* store: see store.h. Here are its groups; store_open.c opens and closes it, store_steps.c has the
 * rows of steps, store_ranks.c those of ranks.
 *
 * A group is one transaction; SQLITE_FULL and SQLITE_NOMEM undo it and the store goes on, I/O
 * errors and damage end the store. */
#include "daemon/store.h"
#include "daemon/failpoint.h"
#include "daemon/store_connection.h"
#include "daemon/store_meta.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A full disk: gives the reserve away and writes the WAL back, so that it can be used again. */
static void make_room(struct store *store) {
    if (state_dir_give_reserve(&store->dir)) {
        (void)store_checkpoint(store, 0, NULL);
    }
}

int store_group_end(struct store *store, int code) {
    if (code < 0) {
        store_rollback(store);
    }
    if (code == -ENOSPC) {
        make_room(store);
    }
    return code;
}

int store_begin(struct store *store, struct error *error) {
    assert(!store->grouping);
    if (store->finished != 0) {
        return store_refuse_finished(store, error);
    }
    int code = FAILPOINT_ERROR(group_begin, error);
    if (code == 0) {
        code = store_run(store, STATEMENT_BEGIN, "begin", error);
    }
    store->grouping = code == 0;
    return code;
}

int store_put_committed(struct store *store, uint64_t committed_step, struct error *error) {
    assert(store->grouping);
    return store_group_end(store, meta_put_number(store, "committed_step", committed_step, error));
}

int store_put_rows(struct store *store, const struct plan_state *state, struct error *error) {
    assert(store->grouping);
    int result = store_rows_put(&store->rows, state);
    int code = result == SQLITE_OK ? meta_put_number(store, "rows_step", state->step, error)
                                   : store_failed(store, result, "store what waits", error);
    return store_group_end(store, code);
}

int store_put_generation(struct store *store, uint64_t generation, struct error *error) {
    int code = store_put_ranks(store, NULL, 0, error);
    return code < 0
               ? code
               : store_group_end(store, meta_put_number(store, "generation", generation, error));
}

uint64_t store_fork(const struct store *store) {
    return store->fork;
}

int store_put_generation_begin(struct store *store, uint64_t step, const char *by,
                               struct error *error) {
    assert(store->grouping);
    int code = meta_put_number(store, "generation_step", step, error);
    if (code == 0) {
        code = meta_put_text(store, "generation_by", by, error);
    }
    return store_group_end(store, code);
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
    return store_group_end(store, code);
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
    store->rank_rows = true;
    store->grouping = false;
}

int store_checkpoint(struct store *store, uint64_t wal_bytes, struct error *error) {
    assert(!store->grouping);
    if (store->finished != 0) {
        return store_refuse_finished(store, error);
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

int store_summary(struct store *store, struct store_summary *out, struct error *error) {
    struct store_summary summary = {0};
    sqlite3_stmt *statement = store->statements[STATEMENT_LAST_STEP];
    if (store->finished != 0) {
        return store_refuse_finished(store, error);
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

int store_plan_text(struct store *store, char **out, struct error *error) {
    return store->finished != 0 ? store_refuse_finished(store, error)
                                : meta_text(store, "plan_text", out, error);
}

const char *store_library_version(void) {
    return sqlite3_libversion();
}
