/* store_steps: the rows of steps: put, found, pruned. */
#include "daemon/store_connection.h"
#include "daemon/store_meta.h"

#include <assert.h>
#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

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
    return store_group_end(store, store_run(store, STATEMENT_PUT_STEP, "store a step", error));
}

int store_put_history(struct store *store, const struct store_job *job, struct error *error) {
    assert(store->grouping && store->fork <= INT64_MAX);
    (void)sqlite3_bind_int64(store->statements[STATEMENT_FORGET], 1, (int64_t)store->fork);
    int code = store_run(store, STATEMENT_FORGET, "forget steps", error);
    if (code == 0) {
        code = meta_put_text(store, "plan_text", job->plan_text, error);
    }
    if (code == 0) {
        code = store_put_datasets(store, job, error);
    }
    return store_group_end(store, code);
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
    return store_group_end(store, code);
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
        return store_group_end(store, store_failed(store, result, "prune", error));
    }
    (void)sqlite3_bind_int64(prune, 1, store->prune_begin);
    (void)sqlite3_bind_int64(prune, 2, end);
    int code = store_run(store, STATEMENT_PRUNE, "prune", error);
    store->prune_begin = code == 0 && end > store->prune_begin ? end : store->prune_begin;
    return store_group_end(store, code);
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
        return store_damaged(store, what, error);
    }
    memcpy(step.digest, sqlite3_column_blob(statement, 2), sizeof step.digest);
#define COLUMN(column, member)                                                                     \
    step.member = (__typeof__(step.member))sqlite3_column_int64(statement, ++i);
    STEP_NUMBERS(COLUMN)
#undef COLUMN
    if ((uint64_t)sqlite3_column_int64(statement, ++i) != step_hash(&step)) {
        return store_damaged(store, what, error);
    }
    *out = step;
    return 1;
}

int store_get_step(struct store *store, uint64_t step, struct store_step *out,
                   struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_GET_STEP];
    int code;
    if (store->finished != 0) {
        return store_refuse_finished(store, error);
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

int store_rows_end(struct store *store, uint64_t step, uint64_t *out, struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_ROWS_END];
    if (store->finished != 0) {
        return store_refuse_finished(store, error);
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
