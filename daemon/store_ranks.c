/* store_ranks: the ranks that have committed more than all have, so that what was acknowledged to
 * each of them is known after a restart. A rank without a row stands at committed_step: where all
 * commit together there is none. */
#include "daemon/store_connection.h"

#include <assert.h>
#include <endian.h>
#include <stdio.h>
#include <xxhash.h>

static int64_t rank_hash(const struct store_rank *rank) {
    const uint64_t fields[] = {htole64(rank->dp), htole64(rank->pp), htole64(rank->cp),
                               htole64(rank->tp), htole64(rank->committed_step)};
    return (int64_t)XXH3_64bits(fields, sizeof fields);
}

/* The place as the first four parameters. */
static void rank_bind(sqlite3_stmt *statement, const struct store_rank *rank) {
    (void)sqlite3_bind_int64(statement, 1, rank->dp);
    (void)sqlite3_bind_int64(statement, 2, rank->pp);
    (void)sqlite3_bind_int64(statement, 3, rank->cp);
    (void)sqlite3_bind_int64(statement, 4, rank->tp);
}

static int rank_put(struct store *store, const struct store_rank *rank, struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_PUT_RANK];
    assert(rank->committed_step <= INT64_MAX);
    rank_bind(statement, rank);
    (void)sqlite3_bind_int64(statement, 5, (int64_t)rank->committed_step);
    (void)sqlite3_bind_int64(statement, 6, rank_hash(rank));
    return store_run(store, STATEMENT_PUT_RANK, "store a rank", error);
}

int store_put_ranks(struct store *store, const struct store_rank *ranks, uint32_t count,
                    struct error *error) {
    assert(store->grouping);
    int code = 0;
    if (count > 0 || store->rank_rows) {
        code = store_run(store, STATEMENT_CLEAR_RANKS, "store ranks", error);
    }
    for (uint32_t i = 0; code == 0 && i < count; i++) {
        code = rank_put(store, &ranks[i], error);
    }
    store->rank_rows = count > 0;
    return store_group_end(store, code);
}

int store_get_rank(struct store *store, struct store_rank *rank, struct error *error) {
    sqlite3_stmt *statement = store->statements[STATEMENT_GET_RANK];
    struct store_rank found = *rank;
    char what[96];
    int code = 0;
    if (store->finished != 0) {
        return store_refuse_finished(store, error);
    }
    rank_bind(statement, rank);
    int result = sqlite3_step(statement);
    if (result == SQLITE_ROW) {
        found.committed_step = (uint64_t)sqlite3_column_int64(statement, 0);
        code = 1;
    } else if (result != SQLITE_DONE) {
        code = store_failed(store, result, "read a rank", error);
    }
    if (code == 1 && sqlite3_column_int64(statement, 1) != rank_hash(&found)) {
        (void)snprintf(what, sizeof what, "the row of rank dp %u, pp %u, cp %u, tp %u", rank->dp,
                       rank->pp, rank->cp, rank->tp);
        code = store_damaged(store, what, error);
    }
    (void)sqlite3_reset(statement);
    rank->committed_step = code == 1 ? found.committed_step : rank->committed_step;
    return code;
}
