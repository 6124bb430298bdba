/* store_rows: see store_rows.h. */
#include "daemon/store_rows.h"

#include <stdlib.h>

int store_rows_prepare(struct store_rows *rows, sqlite3 *db) {
    const struct {
        sqlite3_stmt **statement;
        const char *text;
    } texts[] = {
        {&rows->put_waiting, "INSERT OR REPLACE INTO waiting (stream_index, dataset, document, "
                             "offset, length, nominal_step, epoch, leftover, bin) "
                             "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"},
        {&rows->drop_waiting, "DELETE FROM waiting WHERE stream_index = ?"},
        {&rows->clear_waiting, "DELETE FROM waiting"},
        {&rows->put_delay, "INSERT OR REPLACE INTO delays (dataset, delivered_documents, "
                           "delivered_tokens, delay_token_steps, delay_p50, delay_p99, delay_max) "
                           "VALUES (?, ?, ?, ?, ?, ?, ?)"},
        {&rows->clear_delays, "DELETE FROM delays"},
    };
    int result = SQLITE_OK;
    for (size_t i = 0; result == SQLITE_OK && i < sizeof texts / sizeof texts[0]; i++) {
        result = sqlite3_prepare_v3(db, texts[i].text, -1, SQLITE_PREPARE_PERSISTENT,
                                    texts[i].statement, NULL);
    }
    return result;
}

void store_rows_finalize(struct store_rows *rows) {
    (void)sqlite3_finalize(rows->put_waiting);
    (void)sqlite3_finalize(rows->drop_waiting);
    (void)sqlite3_finalize(rows->clear_waiting);
    (void)sqlite3_finalize(rows->put_delay);
    (void)sqlite3_finalize(rows->clear_delays);
    free(rows->entries);
    free(rows->scratch);
    *rows = (struct store_rows){0};
}

void store_rows_forget(struct store_rows *rows) {
    rows->known = false;
    rows->count = 0;
}

static int rows_run(sqlite3_stmt *statement, const uint64_t *values, int count) {
    for (int i = 0; i < count; i++) {
        (void)sqlite3_bind_int64(statement, i + 1, (int64_t)values[i]);
    }
    int result = sqlite3_step(statement);
    (void)sqlite3_reset(statement);
    return result == SQLITE_DONE ? SQLITE_OK : result;
}

static int rows_reserve(struct store_rows *rows, uint32_t count) {
    if (count <= rows->capacity) {
        return SQLITE_OK;
    }
    struct rows_entry *entries = realloc(rows->entries, count * sizeof *entries);
    rows->entries = entries == NULL ? rows->entries : entries;
    struct rows_entry *scratch = realloc(rows->scratch, count * sizeof *scratch);
    rows->scratch = scratch == NULL ? rows->scratch : scratch;
    if (entries == NULL || scratch == NULL) {
        return SQLITE_NOMEM;
    }
    rows->capacity = count;
    return SQLITE_OK;
}

static int rows_compare(const void *a, const void *b) {
    uint64_t x = ((const struct rows_entry *)a)->stream_index;
    uint64_t y = ((const struct rows_entry *)b)->stream_index;
    return (x > y) - (x < y);
}

static void rows_list(const struct plan_state *state, struct rows_entry *out) {
    for (uint32_t i = 0; i < state->waiting_count; i++) {
        const struct waiting *waiting = &state->waiting[i];
        out[i] = (struct rows_entry){.stream_index = waiting->document.stream_index,
                                     .at = i,
                                     .bin = waiting->bin,
                                     .kind = waiting->kind};
    }
    if (state->draining) { /* else they stand in this order already */
        qsort(out, state->waiting_count, sizeof *out, rows_compare);
    }
}

static int rows_put_waiting(struct store_rows *rows, const struct waiting *waiting) {
    const struct document *document = &waiting->document;
    const uint64_t values[] = {document->stream_index,
                               document->dataset,
                               document->document,
                               document->offset,
                               document->length,
                               document->nominal_step,
                               document->epoch,
                               waiting->kind == WAITING_LEFT_OVER,
                               waiting->bin};
    return rows_run(rows->put_waiting, values, sizeof values / sizeof values[0]);
}

/* Walks both lists: what is only in the old one goes, what is new or moved is put. */
static int rows_differ(struct store_rows *rows, const struct plan_state *state) {
    uint32_t i = 0, j = 0;
    int result = SQLITE_OK;
    while (result == SQLITE_OK && (i < rows->count || j < state->waiting_count)) {
        const struct rows_entry *old = i < rows->count ? &rows->entries[i] : NULL;
        const struct rows_entry *now = j < state->waiting_count ? &rows->scratch[j] : NULL;
        bool gone = old != NULL && (now == NULL || old->stream_index < now->stream_index);
        bool stays = !gone && old != NULL && old->stream_index == now->stream_index;
        if (gone) {
            result = rows_run(rows->drop_waiting, &old->stream_index, 1);
        } else if (!stays || old->bin != now->bin || old->kind != now->kind) {
            result = rows_put_waiting(rows, &state->waiting[now->at]);
        }
        i += gone || stays;
        j += !gone;
    }
    return result;
}

static int rows_put_delays(struct store_rows *rows, const struct plan_state *state) {
    int result = SQLITE_OK;
    for (uint32_t i = 0; result == SQLITE_OK && i < state->cursor.dataset_count; i++) {
        const struct delay_counts *delays = &state->delays[i];
        const uint64_t values[] = {i,
                                   delays->delivered_documents,
                                   delays->delivered_tokens,
                                   delays->delay_token_steps,
                                   delay_percentile(delays, 50),
                                   delay_percentile(delays, 99),
                                   delays->delay_max};
        result = rows_run(rows->put_delay, values, sizeof values / sizeof values[0]);
    }
    return result;
}

int store_rows_put(struct store_rows *rows, const struct plan_state *state) {
    int result = rows_reserve(rows, state->waiting_count);
    if (result == SQLITE_OK && !rows->known) {
        rows->count = 0;
        result = rows_run(rows->clear_waiting, NULL, 0);
        if (result == SQLITE_OK) {
            result = rows_run(rows->clear_delays, NULL, 0);
        }
    }
    if (result == SQLITE_OK) {
        rows_list(state, rows->scratch);
        result = rows_differ(rows, state);
    }
    if (result == SQLITE_OK) {
        result = rows_put_delays(rows, state);
    }
    if (result != SQLITE_OK) {
        store_rows_forget(rows);
        return result;
    }
    struct rows_entry *before = rows->entries;
    rows->entries = rows->scratch;
    rows->scratch = before;
    rows->count = state->waiting_count;
    rows->known = true;
    return SQLITE_OK;
}
