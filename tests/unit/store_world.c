#include "store_world.h"

#include <dirent.h>
#include <inttypes.h>
#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

const struct store_job store_world_job = {
    .job_digest = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
    .plan_text = "algorithm = 1\nplan.window = 131072\nplan.micro_batches = 8\n",
    .version = "1.2.3",
};

char *store_world_make(const char *parent) {
    char folder[256];
    char *path = NULL;
    (void)snprintf(folder, sizeof folder, "%s/ballast-store-XXXXXX", parent);
    assert_non_null(mkdtemp(folder));
    assert_true(asprintf(&path, "%s/state", folder) > 0);
    return path;
}

const char *store_world_memory(void) {
    return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
}

void store_world_empty(const char *state_dir) {
    DIR *dir = opendir(state_dir);
    const struct dirent *entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.') {
            assert_int_equal(unlinkat(dirfd(dir), entry->d_name, 0), 0);
        }
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
}

void store_world_remove(char *state_dir) {
    store_world_empty(state_dir);
    (void)rmdir(state_dir);
    *strrchr(state_dir, '/') = '\0';
    assert_int_equal(rmdir(state_dir), 0);
    free(state_dir);
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED
#endif
#endif

unsigned store_world_rounds(unsigned full, unsigned normal) {
#ifdef SANITIZED
    normal = (normal + 4) / 5;
#endif
    return getenv("BALLAST_TEST_FULL") != NULL ? full : normal;
}

uint64_t store_world_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void fill(uint64_t *random, void *out, size_t bytes) {
    uint8_t *to = out;
    for (size_t i = 0; i < bytes; i++) {
        to[i] = (uint8_t)store_world_random(random);
    }
}

void store_world_step(uint64_t step, uint8_t *state, struct store_step *out) {
    uint64_t random = step;
    memset(out, 0, sizeof *out);
    out->step = step;
    out->state = state;
    out->state_bytes = 1 + store_world_random(&random) % STORE_WORLD_STATE_BYTES;
    fill(&random, state, out->state_bytes);
    fill(&random, out->digest, sizeof out->digest);
    fill(&random, &out->balance, sizeof out->balance);
    fill(&random, &out->release, sizeof out->release);
    fill(&random, &out->tokens, sizeof out->tokens);
    fill(&random, &out->plan_ns, sizeof out->plan_ns);
    fill(&random, &out->documents, sizeof out->documents);
}

uint64_t store_world_end(uint64_t group) {
    static const uint64_t ends[] = {0, 1, 3, 4, 8, 9, 11, 14};
    return group / 8 * 16 + ends[group % 8];
}

static int put_steps(struct store *store, uint64_t group, struct error *error) {
    uint8_t state[STORE_WORLD_STATE_BYTES];
    int code = 0;
    for (uint64_t k = store_world_end(group); code == 0 && k < store_world_end(group + 1); k++) {
        struct store_step step;
        store_world_step(k, state, &step);
        code = store_put_step(store, &step, error);
    }
    return code;
}

static uint64_t kept_from(uint64_t group) {
    uint64_t pruned_at = group / 8 * 8;
    return pruned_at < 16 ? 0 : store_world_end(pruned_at) - 20;
}

static uint32_t ranks_of(uint64_t group, struct store_rank ranks[2]) {
    for (uint32_t i = 0; i < 2; i++) {
        ranks[i] = (struct store_rank){.dp = i,
                                       .pp = 3,
                                       .cp = 2,
                                       .tp = 1 - i,
                                       .committed_step = store_world_end(group) + 1 + i};
    }
    return group < 3 ? 0 : (uint32_t)(group % 3);
}

int store_world_put_group(struct store *store, uint64_t group, struct error *error) {
    int code = store_begin(store, error);
    if (code == 0) {
        code = put_steps(store, group, error);
    }
    if (code == 0) {
        code = store_put_committed(store, store_world_end(group), error);
    }
    if (code == 0) {
        code = store_put_generation(store, group, error);
    }
    if (code == 0) {
        struct store_rank ranks[2];
        uint32_t count = ranks_of(group, ranks);
        code = store_put_ranks(store, ranks, count, error);
    }
    if (code == 0 && group % 8 == 0) {
        code = store_prune(store, kept_from(group), error);
    }
    return code == 0 ? store_commit(store, error) : code;
}

static void check_row(struct store *store, uint64_t k) {
    uint8_t state[STORE_WORLD_STATE_BYTES];
    struct store_step expected;
    struct store_step found;
    struct error error = {0};
    int code = store_get_step(store, k, &found, &error);
    if (code != 1) {
        fail_msg("step %" PRIu64 ": %d %s", k, code, error.text);
    }
    store_world_step(k, state, &expected);
    assert_int_equal(found.step, k);
    assert_int_equal(found.state_bytes, expected.state_bytes);
    assert_memory_equal(found.state, expected.state, found.state_bytes);
    found.state = state;
    assert_memory_equal(&found, &expected, sizeof found);
}

uint64_t store_world_check(struct store *store) {
    struct store_summary summary;
    struct store_step row;
    struct error error = {0};
    uint64_t group = 0;
    if (store_summary(store, &summary, &error) != 0) {
        fail_msg("%s", error.text);
    }
    while (store_world_end(group) < summary.steps_end) {
        group++;
    }
    assert_int_equal(summary.steps_end, store_world_end(group));
    assert_memory_equal(summary.job_digest, store_world_job.job_digest, 16);
    assert_int_equal(summary.generation, group == 0 ? 0 : group - 1);
    assert_int_equal(summary.committed_step, group == 0 ? 0 : store_world_end(group - 1));
    uint64_t first = group == 0 ? 0 : kept_from(group - 1);
    for (uint64_t k = first; k < summary.steps_end; k++) {
        check_row(store, k);
    }
    if (first > 0) {
        assert_int_equal(store_get_step(store, first - 1, &row, NULL), 0);
    }
    return group;
}

static void check_ranks(struct store *store, uint64_t groups) {
    struct store_rank ranks[2];
    uint32_t count = groups == 0 ? 0 : ranks_of(groups - 1, ranks);
    for (uint32_t i = 0; groups > 0 && i < 2; i++) {
        struct store_rank found = ranks[i];
        found.committed_step = 0;
        assert_int_equal(store_get_rank(store, &found, NULL), i < count);
        assert_int_equal(found.committed_step, i < count ? ranks[i].committed_step : 0);
    }
}

static void check_integrity(const char *state_dir) {
    char path[300];
    sqlite3 *db = NULL;
    sqlite3_stmt *statement = NULL;
    (void)snprintf(path, sizeof path, "%s/ballast.db", state_dir);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA locking_mode = EXCLUSIVE", NULL, NULL, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &statement, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    assert_string_equal(sqlite3_column_text(statement, 0), "ok");
    (void)sqlite3_finalize(statement);
    (void)sqlite3_close(db);
}

uint64_t store_world_recover(const char *state_dir, uint64_t acknowledged, uint64_t more) {
    struct store *store = NULL;
    struct error error = {0};
    if (store_open(state_dir, &store_world_job, &store, &error) != 0) {
        fail_msg("reopen: %s", error.text);
    }
    uint64_t groups = store_world_check(store);
    check_ranks(store, groups);
    if (groups < acknowledged || groups > acknowledged + more) {
        fail_msg("%" PRIu64 " groups are there, %" PRIu64 " were acknowledged", groups,
                 acknowledged);
    }
    store_close(store);
    check_integrity(state_dir);
    return groups;
}
