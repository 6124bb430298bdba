/* store_check: whether all is there that was acknowledged. Each group counts itself (groups), in
 * the database and then in ballast.mark: so whatever SQLite makes of a WAL that is damaged, missing
 * or an older one, a group that was acknowledged and is not there is noticed. */
#include "daemon/store_connection.h"
#include "daemon/store_meta.h"
#include "daemon/store_schema.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        code = store_damaged(store, what, error);
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

int store_check_close(struct store *store, const struct state_file *file,
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

int store_check_format(struct store *store, struct error *error) {
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
        return store_damaged(store, "it states no format", error);
    }
    store->page_bytes = (uint64_t)page_bytes;
    return code;
}
