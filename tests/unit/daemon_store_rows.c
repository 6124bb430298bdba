/* Rows of what waits: whatever states follow one another, and whichever groups are undone between
 * them, the tables hold the newest durable state and nothing else. */
#include "planner/state.h"
#include "store_world.h"

#include <inttypes.h>
#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WAITING  60u
#define DATASETS 2u

static char *dir;

static void draw_waiting(uint64_t *random, struct waiting *out, uint64_t stream_index, bool bins) {
    *out = (struct waiting){.document = {.dataset = (uint32_t)(stream_index % DATASETS),
                                         .document = stream_index * 31,
                                         .offset = (uint32_t)(stream_index % 3),
                                         .length = (uint32_t)(stream_index % 1000 + 1),
                                         .nominal_step = stream_index / 8,
                                         .epoch = stream_index / 100,
                                         .stream_index = stream_index},
                            .kind = store_world_random(random) % 8 == 0 ? WAITING_LEFT_OVER
                                                                        : WAITING_IN_QUEUE,
                            .bin = bins ? (uint32_t)(store_world_random(random) % 4) : 0};
}

static int compare_bins(const void *a, const void *b) {
    const struct waiting *x = a, *y = b;
    return (x->bin > y->bin) - (x->bin < y->bin);
}

/* A state like the one before: most of what waits is the same. */
static void draw_state(uint64_t *random, struct plan_state *state, uint64_t round) {
    uint64_t first = round * 5;
    state->waiting_count = 0;
    for (uint64_t i = first; i < first + WAITING; i++) {
        if ((i * 0x9e3779b97f4a7c15u >> 60) < 12) {
            draw_waiting(random, &state->waiting[state->waiting_count++], i, round % 3 == 2);
        }
    }
    if (round % 11 == 10) {
        state->waiting_count = 0;
    }
    state->draining = round % 3 == 2;
    if (state->draining) {
        qsort(state->waiting, state->waiting_count, sizeof state->waiting[0], compare_bins);
    }
    for (uint32_t i = 0; i < DATASETS; i++) {
        struct delay_counts *delays = &state->delays[i];
        delays->delivered_tokens = 100;
        delays->tokens_by_delay[round % DELAY_BUCKETS] = 100;
        delays->tokens_by_delay[(round + DELAY_BUCKETS - 1) % DELAY_BUCKETS] = 0;
        delays->delay_max = round;
        delays->delay_token_steps = round * 100 + i;
    }
}

static sqlite3_stmt *query(sqlite3 *db, const char *sql) {
    sqlite3_stmt *statement = NULL;
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &statement, NULL), SQLITE_OK);
    return statement;
}

static const struct waiting *find(const struct plan_state *state, uint64_t stream_index) {
    for (uint32_t i = 0; i < state->waiting_count; i++) {
        if (state->waiting[i].document.stream_index == stream_index) {
            return &state->waiting[i];
        }
    }
    return NULL;
}

static void check_waiting(sqlite3 *db, const struct plan_state *state) {
    sqlite3_stmt *rows = query(db, "SELECT stream_index, dataset, document, offset, length, "
                                   "nominal_step, epoch, leftover, bin FROM waiting");
    uint32_t count = 0;
    for (; sqlite3_step(rows) == SQLITE_ROW; count++) {
        const struct waiting *waiting = find(state, (uint64_t)sqlite3_column_int64(rows, 0));
        assert_non_null(waiting);
        const struct document *document = &waiting->document;
        const uint64_t expected[] = {document->stream_index,
                                     document->dataset,
                                     document->document,
                                     document->offset,
                                     document->length,
                                     document->nominal_step,
                                     document->epoch,
                                     waiting->kind == WAITING_LEFT_OVER,
                                     waiting->bin};
        for (int i = 0; i < 9; i++) {
            assert_int_equal(sqlite3_column_int64(rows, i), expected[i]);
        }
    }
    assert_int_equal(count, state->waiting_count);
    (void)sqlite3_finalize(rows);
}

static void check_delays(sqlite3 *db, const struct plan_state *state) {
    sqlite3_stmt *rows = query(db, "SELECT dataset, delay_max, delay_p50, delay_token_steps "
                                   "FROM delays ORDER BY dataset");
    for (uint32_t i = 0; i < DATASETS; i++) {
        assert_int_equal(sqlite3_step(rows), SQLITE_ROW);
        assert_int_equal(sqlite3_column_int64(rows, 0), i);
        assert_int_equal(sqlite3_column_int64(rows, 1), state->delays[i].delay_max);
        assert_int_equal(sqlite3_column_int64(rows, 2), delay_percentile(&state->delays[i], 50));
        assert_int_equal(sqlite3_column_int64(rows, 3), state->delays[i].delay_token_steps);
    }
    assert_int_equal(sqlite3_step(rows), SQLITE_DONE);
    (void)sqlite3_finalize(rows);
}

static void check_rows(const struct plan_state *state) {
    char path[300];
    sqlite3 *db = NULL;
    (void)snprintf(path, sizeof path, "%s/ballast.db", dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    check_waiting(db, state);
    check_delays(db, state);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static struct store *open_store(void) {
    struct store *store = NULL;
    struct error error = {0};
    if (store_open(dir, &store_world_job, &store, &error) != 0) {
        fail_msg("%s", error.text);
    }
    return store;
}

static void the_tables_hold_the_newest_durable_state(void **state) {
    (void)state;
    uint64_t random = 5;
    struct plan_state *newest = plan_state_create(DATASETS, WAITING);
    struct plan_state *undone = plan_state_create(DATASETS, WAITING);
    struct store *store = open_store();
    for (uint64_t round = 0; round < 300; round++) {
        bool undo = store_world_random(&random) % 5 == 0;
        struct plan_state *drawn = undo ? undone : newest;
        draw_state(&random, drawn, round);
        assert_int_equal(store_begin(store, NULL), 0);
        assert_int_equal(store_put_rows(store, drawn, NULL), 0);
        if (undo) {
            store_rollback(store);
        } else {
            assert_int_equal(store_commit(store, NULL), 0);
        }
        if (store_world_random(&random) % 10 == 0) {
            store_close(store);
            check_rows(newest);
            store = open_store();
        }
    }
    store_close(store);
    check_rows(newest);
    plan_state_destroy(newest);
    plan_state_destroy(undone);
}

static int setup(void **state) {
    (void)state;
    dir = store_world_make(store_world_memory());
    return 0;
}

static int teardown(void **state) {
    (void)state;
    store_world_remove(dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_tables_hold_the_newest_durable_state, setup, teardown),
    };
    return cmocka_run_group_tests_name("daemon_store_rows", tests, NULL, NULL);
}
