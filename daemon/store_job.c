/* store_job: the job that a store is of, and in what another one differs. */
#include "daemon/history.h"
#include "daemon/store_connection.h"
#include "daemon/store_meta.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALGORITHM_LINE "algorithm = " /* of config_plan_text */

int store_put_datasets(struct store *store, const struct store_job *job, struct error *error) {
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

int store_compare_job(struct store *store, const struct store_job *job, struct error *error) {
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
