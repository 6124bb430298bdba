/* The store: what it keeps, whom it refuses, what it makes of damage. */
#include "store_world.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char *dir;

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

static const char *path_of(const char *name) {
    static char path[300];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static struct store *open_store(void) {
    struct store *store = NULL;
    struct error error = {0};
    if (store_open(dir, &store_world_job, &store, &error) != 0) {
        fail_msg("%s", error.text);
    }
    return store;
}

static void fill_store(uint64_t groups) {
    struct store *store = open_store();
    struct error error = {0};
    for (uint64_t g = 0; g < groups; g++) {
        if (store_world_put_group(store, g, &error) != 0) {
            fail_msg("%s", error.text);
        }
    }
    store_close(store);
}

static void expect_refusal(const struct store_job *job, int code, const char *expected) {
    struct store *store = NULL;
    struct error error = {0};
    int found = store_open(dir, job, &store, &error);
    if (found != code || store != NULL || strstr(error.text, expected) == NULL) {
        fail_msg("code %d, not %d: '%s' lacks '%s'", found, code, error.text, expected);
    }
    assert_int_equal(error.code, code);
}

/* Runs SQL on the closed store, as an outsider. */
static void outsider(const char *sql) {
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(path_of("ballast.db"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

/* A child that does `work` on an open store and is then killed. */
static void die_holding(void (*work)(struct store *store)) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        work(open_store());
        (void)raise(SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void put_two_groups(struct store *store) {
    if (store_world_put_group(store, 0, NULL) != 0 || store_world_put_group(store, 1, NULL) != 0) {
        _exit(1);
    }
}

static void settle_a_step(struct store *store) {
    if (store_begin(store, NULL) != 0 || store_put_committed(store, 5, NULL) != 0 ||
        store_commit(store, NULL) != 0 || store_settle(store, NULL) != 0) {
        _exit(1);
    }
}

static void a_fresh_store_is_empty_and_private(void **state) {
    (void)state;
    struct store_summary summary;
    struct store_step step;
    struct stat info;
    char *text = NULL;
    struct store *store = open_store();
    assert_int_equal(store_summary(store, &summary, NULL), 0);
    assert_int_equal(summary.committed_step, 0);
    assert_int_equal(summary.steps_end, 0);
    assert_int_equal(summary.generation, 0);
    assert_int_equal(store_get_step(store, UINT64_MAX, &step, NULL), 0);
    assert_int_equal(store_plan_text(store, &text, NULL), 0);
    assert_string_equal(text, store_world_job.plan_text);
    free(text);
    store_close(store);
    assert_int_equal(stat(dir, &info), 0);
    assert_int_equal(info.st_mode & 07, 0);
    assert_int_equal(access(path_of("ballast.db-wal"), F_OK), -1);
    assert_int_equal(access(path_of("ballast.db.new"), F_OK), -1);
}

static void what_was_committed_is_read_back(void **state) {
    (void)state;
    fill_store(30);
    struct store *store = open_store();
    assert_int_equal(store_world_check(store), 30);
    store_close(store);
}

static void a_step_is_found_by_any_later_one(void **state) {
    (void)state;
    struct store_step step;
    fill_store(2);
    struct store *store = open_store();
    assert_int_equal(store_get_step(store, 1000, &step, NULL), 1);
    assert_int_equal(step.step, 2);
    store_close(store);
}

static void pruning_keeps_what_the_oldest_step_needs(void **state) {
    (void)state;
    struct store_step step;
    uint8_t bytes[STORE_WORLD_STATE_BYTES];
    struct store *store = open_store();
    static const uint64_t kept[] = {0, 4, 8};
    assert_int_equal(store_begin(store, NULL), 0);
    for (size_t i = 0; i < 3; i++) {
        store_world_step(kept[i], bytes, &step);
        assert_int_equal(store_put_step(store, &step, NULL), 0);
    }
    assert_int_equal(store_prune(store, 6, NULL), 0);
    assert_int_equal(store_commit(store, NULL), 0);
    assert_int_equal(store_get_step(store, 3, &step, NULL), 0);
    assert_int_equal(store_get_step(store, 6, &step, NULL), 1);
    assert_int_equal(step.step, 4);
    store_close(store);
}

static void put_rows(struct store *store, uint64_t from, uint64_t to) {
    struct store_step step;
    uint8_t bytes[STORE_WORLD_STATE_BYTES];
    for (uint64_t k = from; k < to; k++) {
        store_world_step(k, bytes, &step);
        assert_int_equal(store_put_step(store, &step, NULL), 0);
    }
}

static bool has_row(struct store *store, uint64_t step) {
    struct store_step found;
    return store_get_step(store, step, &found, NULL) == 1 && found.step == step;
}

static void rows_of_exported_steps_stay_as_many_as_are_to(void **state) {
    (void)state;
    struct store *store = open_store();
    assert_int_equal(store_begin(store, NULL), 0);
    put_rows(store, 0, 30);
    assert_int_equal(store_put_export(store, 3, 2, NULL), 0);
    assert_int_equal(store_put_export(store, 7, 2, NULL), 0);
    assert_int_equal(store_prune(store, 10, NULL), 0);
    assert_true(has_row(store, 3) && has_row(store, 7) && has_row(store, 10));
    assert_false(has_row(store, 0) || has_row(store, 4) || has_row(store, 9));
    assert_int_equal(store_put_export(store, 20, 2, NULL), 0);
    assert_int_equal(store_prune(store, 25, NULL), 0);
    assert_int_equal(store_commit(store, NULL), 0);
    assert_true(has_row(store, 7) && has_row(store, 20) && has_row(store, 25));
    assert_false(has_row(store, 3) || has_row(store, 10) || has_row(store, 24));
    /* Gone back: new rows before what was pruned are pruned when their turn comes. */
    assert_int_equal(store_begin(store, NULL), 0);
    put_rows(store, 5, 9);
    assert_int_equal(store_prune(store, 8, NULL), 0);
    assert_int_equal(store_commit(store, NULL), 0);
    assert_true(has_row(store, 7) && has_row(store, 8));
    assert_false(has_row(store, 5) || has_row(store, 6));
    store_close(store);
}

static void rows_end_at_the_first_gap(void **state) {
    uint64_t end = 99;
    (void)state;
    struct store *store = open_store();
    assert_int_equal(store_rows_end(store, 4, &end, NULL), 0);
    assert_int_equal(end, 4);
    assert_int_equal(store_begin(store, NULL), 0);
    put_rows(store, 2, 6);
    put_rows(store, 8, 10);
    assert_int_equal(store_commit(store, NULL), 0);
    static const uint64_t ends[][2] = {{0, 0}, {2, 6}, {5, 6}, {6, 6}, {7, 7}, {8, 10}, {10, 10}};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        assert_int_equal(store_rows_end(store, ends[i][0], &end, NULL), 0);
        assert_int_equal(end, ends[i][1]);
    }
    store_close(store);
}

static void a_generation_is_kept_with_where_it_began_and_by_whom(void **state) {
    struct store_summary summary;
    (void)state;
    struct store *store = open_store();
    assert_int_equal(store_summary(store, &summary, NULL), 0);
    assert_int_equal(summary.generation, 0);
    assert_string_equal(summary.generation_by, "");
    assert_int_equal(store_begin(store, NULL), 0);
    assert_int_equal(store_put_generation(store, 4, NULL), 0);
    assert_int_equal(store_put_generation_begin(store, 17, "rank dp 0", NULL), 0);
    assert_int_equal(store_put_committed(store, 17, NULL), 0);
    assert_int_equal(store_commit(store, NULL), 0);
    store_close(store);
    store = open_store();
    assert_int_equal(store_summary(store, &summary, NULL), 0);
    assert_int_equal(summary.generation, 4);
    assert_int_equal(summary.generation_step, 17);
    assert_int_equal(summary.committed_step, 17);
    assert_string_equal(summary.generation_by, "rank dp 0");
    store_close(store);
}

static void a_group_that_was_rolled_back_never_was(void **state) {
    (void)state;
    struct store_step step;
    uint8_t bytes[STORE_WORLD_STATE_BYTES];
    struct store *store = open_store();
    store_world_step(7, bytes, &step);
    assert_int_equal(store_begin(store, NULL), 0);
    assert_int_equal(store_put_step(store, &step, NULL), 0);
    store_rollback(store);
    assert_int_equal(store_get_step(store, 7, &step, NULL), 0);
    assert_int_equal(store_world_put_group(store, 0, NULL), 0);
    assert_int_equal(store_world_check(store), 1);
    assert_int_equal(store_begin(store, NULL), 0);
    store_close(store);
}

static void a_step_planned_again_replaces_its_row(void **state) {
    (void)state;
    struct store_step step;
    uint8_t bytes[STORE_WORLD_STATE_BYTES];
    struct store *store = open_store();
    for (uint64_t other = 5; other <= 6; other++) {
        store_world_step(other, bytes, &step);
        step.step = 3;
        assert_int_equal(store_begin(store, NULL), 0);
        assert_int_equal(store_put_step(store, &step, NULL), 0);
        assert_int_equal(store_commit(store, NULL), 0);
    }
    struct store_step found;
    assert_int_equal(store_get_step(store, 3, &found, NULL), 1);
    assert_memory_equal(found.digest, step.digest, 16);
    assert_int_equal(found.state_bytes, step.state_bytes);
    store_close(store);
}

static void the_wal_is_written_back_on_demand(void **state) {
    (void)state;
    struct store *store = open_store();
    uint64_t groups = 0;
    assert_int_equal(store_wal_bytes(store), 0);
    while (store_wal_bytes(store) < 300000) {
        assert_int_equal(store_world_put_group(store, groups++, NULL), 0);
    }
    uint64_t before = store_wal_bytes(store);
    assert_int_equal(store_checkpoint(store, before, NULL), 0);
    assert_int_equal(store_wal_bytes(store), before);
    assert_int_equal(store_checkpoint(store, before - 1, NULL), 0);
    assert_int_equal(store_wal_bytes(store), 0);
    assert_int_equal(store_world_put_group(store, groups++, NULL), 0);
    assert_true(store_wal_bytes(store) > 0 && store_wal_bytes(store) < 100000);
    struct stat info;
    assert_int_equal(stat(path_of("ballast.db-wal"), &info), 0);
    assert_true((uint64_t)info.st_size <= before);
    assert_int_equal(store_world_check(store), groups);
    store_close(store);
}

static void a_second_opener_is_told_who_has_it(void **state) {
    (void)state;
    char expected[64];
    struct store *store = open_store();
    (void)snprintf(expected, sizeof expected, "(pid %d) uses %s; stop it", getpid(), dir);
    expect_refusal(&store_world_job, -EBUSY, expected);
    expect_refusal(NULL, -EBUSY, expected);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct store *other = NULL;
        struct error error = {0};
        int code = store_open(dir, &store_world_job, &other, &error);
        _exit(code == -EBUSY && strstr(error.text, expected) != NULL ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    store_close(store);
    store_close(open_store());
}

static void a_killed_owner_leaves_the_lock_free_at_once(void **state) {
    (void)state;
    die_holding(put_two_groups);
    assert_int_equal(store_world_recover(dir, 2, 0), 2);
}

static void another_job_is_refused_by_the_first_difference(void **state) {
    (void)state;
    struct store_job job = store_world_job;
    fill_store(1);
    job.plan_text = "algorithm = 1\nplan.window = 65536\nplan.micro_batches = 4\n";
    expect_refusal(&job, -EINVAL,
                   "holds another job: it has 'plan.window = 131072', this config has "
                   "'plan.window = 65536'; set it back, or give this job another");
    job.plan_text = "algorithm = 1\nplan.window = 131072\n";
    expect_refusal(&job, -EINVAL, "it has 'plan.micro_batches = 8', this config has 'nothing'");
    job.plan_text = "algorithm = 1\nplan.window = 131072\nplan.micro_batches = 8\nx.y = 1\n";
    expect_refusal(&job, -EINVAL, "it has 'nothing', this config has 'x.y = 1'");
    job = store_world_job;
    job.job_digest[15] ^= 1;
    expect_refusal(&job, -EINVAL, "the settings agree but the corpus differs");
    job = store_world_job;
    job.version = "9.9.9";
    struct store *store = NULL;
    assert_int_equal(store_open(dir, &job, &store, NULL), 0);
    store_close(store);
    assert_int_equal(store_world_recover(dir, 1, 0), 1);
}

/* Rows from where the histories part are forgotten, with the text in one group; those before stay.
 */
static void a_history_may_change_behind_what_is_committed(void **state) {
    (void)state;
    struct store_job job = store_world_job;
    struct store_summary summary;
    struct store_step row;
    struct store *store = NULL;
    char *text = NULL;
    char history[256], expected[128];
    fill_store(4);
    uint64_t committed = store_world_end(3);
    assert_true(committed + 1 < store_world_end(4));
    for (uint64_t i = 0; i < 2; i++) {
        (void)snprintf(history, sizeof history, "%s[from %llu]\nplan.micro_batches = 4\n",
                       store_world_job.plan_text, (unsigned long long)(committed - 1 + 2 * i));
        job.plan_text = history;
        if (i == 0) {
            (void)snprintf(expected, sizeof expected,
                           "has committed the steps before %llu, and from step %llu on its",
                           (unsigned long long)committed, (unsigned long long)committed - 1);
            expect_refusal(&job, -EINVAL, expected);
            expect_refusal(&job, -EINVAL, "Seek, or Import");
        }
    }
    for (int again = 0; again < 2; again++) {
        assert_int_equal(store_open(dir, &job, &store, NULL), 0);
        assert_int_equal(store_fork(store), committed + 1);
        assert_int_equal(store_summary(store, &summary, NULL), 0);
        assert_int_equal(summary.steps_end, store_world_end(4));
        store_close(store); /* nothing was put: the store has its own history still */
    }
    assert_int_equal(store_open(dir, &job, &store, NULL), 0);
    assert_int_equal(store_begin(store, NULL), 0);
    assert_int_equal(store_put_history(store, &job, NULL), 0);
    assert_int_equal(store_commit(store, NULL), 0);
    store_close(store);
    assert_int_equal(store_open(dir, &job, &store, NULL), 0);
    assert_int_equal(store_fork(store), UINT64_MAX);
    assert_int_equal(store_summary(store, &summary, NULL), 0);
    assert_int_equal(summary.committed_step, committed);
    assert_int_equal(summary.steps_end, committed + 1);
    assert_int_equal(store_get_step(store, committed + 5, &row, NULL), 1);
    assert_int_equal(row.step, committed);
    assert_int_equal(store_plan_text(store, &text, NULL), 0);
    assert_string_equal(text, history);
    free(text);
    store_close(store);
    assert_int_equal(store_open(dir, &store_world_job, &store, NULL), 0);
    assert_int_equal(store_fork(store), committed + 1);
    store_close(store);
}

static void a_refused_job_leaves_a_killed_store_as_it_was(void **state) {
    (void)state;
    struct store_job job = store_world_job;
    die_holding(put_two_groups);
    job.plan_text = "algorithm = 2\n";
    expect_refusal(&job, -EINVAL,
                   "was planned with 'algorithm = 1', this version plans with "
                   "'algorithm = 2'; run the version that wrote it");
    assert_int_equal(store_world_recover(dir, 2, 0), 2);
}

static void reading_needs_no_job_and_changes_nothing(void **state) {
    (void)state;
    struct store *store = NULL;
    struct stat before;
    struct stat after;
    die_holding(put_two_groups);
    assert_int_equal(stat(path_of("ballast.db-wal"), &before), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(store_open(dir, NULL, &store, NULL), 0);
        assert_int_equal(store_world_check(store), 2);
        store_close(store);
    }
    assert_int_equal(stat(path_of("ballast.db-wal"), &after), 0);
    assert_int_equal(before.st_size, after.st_size);
    assert_int_equal(store_world_recover(dir, 2, 0), 2);
    assert_int_equal(store_open(dir, NULL, &store, NULL), 0);
    assert_int_equal(store_world_check(store), 2);
    store_close(store);
    store_close(open_store());
}

static void reading_creates_nothing(void **state) {
    (void)state;
    expect_refusal(NULL, -ENOENT, dir);
    assert_int_equal(access(dir, F_OK), -1);
    assert_int_equal(mkdir(dir, 0700), 0);
    expect_refusal(NULL, -ENOENT, "ballast.db");
    assert_int_equal(access(path_of("lock"), F_OK), -1);
}

static void write_file(const char *name, const void *bytes, size_t count) {
    int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, count), (ssize_t)count);
    assert_int_equal(close(fd), 0);
}

static void damage_is_never_taken_for_an_empty_store(void **state) {
    (void)state;
    assert_int_equal(mkdir(dir, 0700), 0);
    write_file("ballast.db", "", 0);
    expect_refusal(&store_world_job, -EBADMSG, "restore the folder from a backup");
    expect_refusal(NULL, -EBADMSG, "it has 0 bytes");
    write_file("ballast.db", "SQLite format 3", 16);
    expect_refusal(&store_world_job, -EBADMSG, "it has 16 bytes");
    char junk[8192];
    memset(junk, 'x', sizeof junk);
    write_file("ballast.db", junk, sizeof junk);
    expect_refusal(&store_world_job, -EBADMSG, "no SQLite header");
    assert_int_equal(unlink(path_of("ballast.db")), 0);
    write_file("ballast.db-wal", junk, sizeof junk);
    expect_refusal(&store_world_job, -EBADMSG, "has a ballast.db-wal but no ballast.db");
}

static void a_half_made_store_is_made_again(void **state) {
    (void)state;
    assert_int_equal(mkdir(dir, 0700), 0);
    write_file("ballast.db.new", "half", 4);
    write_file("ballast.db.new-wal", "half", 4);
    store_close(open_store());
    assert_int_equal(access(path_of("ballast.db.new"), F_OK), -1);
    assert_int_equal(access(path_of("ballast.db.new-wal"), F_OK), -1);
}

static void foreign_and_newer_files_are_refused(void **state) {
    (void)state;
    fill_store(1);
    outsider("PRAGMA user_version = 4");
    expect_refusal(&store_world_job, -ENOSYS, "has format 4, this version reads up to 3");
    outsider("PRAGMA user_version = 0");
    expect_refusal(&store_world_job, -EBADMSG, "it states no format");
    outsider("PRAGMA user_version = 1");
    expect_refusal(&store_world_job, -EBADMSG, "migrate: ");
    outsider("PRAGMA user_version = 3; PRAGMA application_id = 7");
    expect_refusal(&store_world_job, -EBADMSG, "is damaged: application_id 7; restore");
    assert_int_equal(unlink(path_of("ballast.mark")), 0);
    expect_refusal(&store_world_job, -EINVAL, "is not a Ballast store (application_id 7)");
    outsider("PRAGMA application_id = 1112298324; DROP TABLE steps");
    expect_refusal(&store_world_job, -EBADMSG, "no such table: steps");
}

static void meta_rows_that_are_missing_or_changed_are_damage(void **state) {
    (void)state;
    fill_store(3);
    outsider("UPDATE meta SET value = 2 WHERE key = 'committed_step'");
    struct store *store = open_store();
    struct store_summary summary;
    struct error error = {0};
    assert_int_equal(store_summary(store, &summary, &error), -EBADMSG);
    assert_non_null(strstr(error.text, "meta has no sound committed_step"));
    assert_int_equal(store_begin(store, &error), -EBADMSG);
    store_close(store);
    store_world_empty(dir);
    fill_store(3);
    outsider("DELETE FROM meta WHERE key = 'job_digest'");
    expect_refusal(&store_world_job, -EBADMSG, "meta has no sound job_digest");
}

static void a_changed_row_is_damage(void **state) {
    (void)state;
    static const char *const changes[] = {
        "UPDATE steps SET tokens = tokens + 1 WHERE step = 2",
        "UPDATE steps SET leftovers = 0 WHERE step = 2",
        "UPDATE steps SET digest = zeroblob(16) WHERE step = 2",
        "UPDATE steps SET digest = zeroblob(15) WHERE step = 2",
        "UPDATE steps SET state = CAST(state || x'00' AS BLOB) WHERE step = 2",
        "UPDATE steps SET state = x'' WHERE step = 2",
        "UPDATE steps SET state = (SELECT state FROM steps WHERE step = 1) WHERE step = 2",
        "DELETE FROM steps WHERE step = 2; UPDATE steps SET step = 2 WHERE step = 1",
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        struct store_step step;
        struct error error = {0};
        fill_store(3);
        outsider(changes[i]);
        struct store *store = open_store();
        assert_int_equal(store_get_step(store, 2, &step, &error), -EBADMSG);
        assert_non_null(strstr(error.text, "the row of step 2"));
        store_close(store);
        store_world_empty(dir);
    }
}

static void a_store_that_lost_its_wal_is_refused(void **state) {
    (void)state;
    die_holding(put_two_groups);
    assert_int_equal(unlink(path_of("ballast.db-wal")), 0);
    expect_refusal(&store_world_job, -EBADMSG, "has lost commits: 0 of 2 groups are there");
    expect_refusal(NULL, -EBADMSG, "has lost commits");
    expect_refusal(&store_world_job, -EBADMSG, "BALLAST_ALLOW_LOST_COMMITS=1 to go on from step 0");
    setenv("BALLAST_ALLOW_LOST_COMMITS", "1", 1);
    assert_int_equal(store_world_recover(dir, 0, 0), 0);
    unsetenv("BALLAST_ALLOW_LOST_COMMITS");
    assert_int_equal(store_world_recover(dir, 0, 0), 0);
}

static void a_store_that_an_outsider_wrote_back_has_lost_nothing(void **state) {
    (void)state;
    die_holding(put_two_groups);
    outsider("SELECT 1 FROM meta");
    assert_int_equal(access(path_of("ballast.db-wal"), F_OK), -1);
    assert_int_equal(store_world_recover(dir, 2, 0), 2);
}

static char wal_bytes[1 << 20];
static size_t wal_count;

static size_t read_file(const char *name, char *out, size_t bytes) {
    FILE *file = fopen(path_of(name), "r");
    assert_non_null(file);
    size_t count = fread(out, 1, bytes, file);
    assert_true(count < bytes);
    (void)fclose(file);
    return count;
}

static void a_wal_of_an_earlier_opening_is_refused(void **state) {
    (void)state;
    die_holding(put_two_groups);
    wal_count = read_file("ballast.db-wal", wal_bytes, sizeof wal_bytes);
    store_close(open_store());
    write_file("ballast.db-wal", wal_bytes, wal_count);
    expect_refusal(&store_world_job, -EBADMSG, "has lost commits: 2 of 3 groups are there");
    expect_refusal(NULL, -EBADMSG, "has lost commits");
}

static void put_write_back_put(struct store *store) {
    put_two_groups(store);
    wal_count = read_file("ballast.db-wal", wal_bytes, sizeof wal_bytes);
    write_file("old-wal", wal_bytes, wal_count);
    if (store_checkpoint(store, 0, NULL) != 0 || store_world_put_group(store, 2, NULL) != 0) {
        _exit(1);
    }
}

static void an_older_wal_of_the_same_opening_is_refused(void **state) {
    (void)state;
    die_holding(put_write_back_put);
    wal_count = read_file("old-wal", wal_bytes, sizeof wal_bytes);
    write_file("ballast.db-wal", wal_bytes, wal_count);
    expect_refusal(&store_world_job, -EBADMSG, "has lost commits: 2 of 3 groups are there");
}

static void put_twelve_groups(struct store *store) {
    for (uint64_t g = 0; g < 12; g++) {
        if (store_world_put_group(store, g, NULL) != 0) {
            _exit(1);
        }
    }
}

/* Keeps the folder of a killed store, to damage copies of it. */
static char db_bytes[1 << 20];
static size_t db_count;
static char mark_bytes[256];
static size_t mark_count;

static void keep_folder(void) {
    wal_count = read_file("ballast.db-wal", wal_bytes, sizeof wal_bytes);
    db_count = read_file("ballast.db", db_bytes, sizeof db_bytes);
    mark_count = read_file("ballast.mark", mark_bytes, sizeof mark_bytes);
}

/* Puts the kept folder back with `bytes` for its WAL: 1 refused, 0 all is there; else the test
 * fails. */
static unsigned try_wal(const char *bytes, size_t count) {
    struct store *store = NULL;
    struct error error = {0};
    store_world_empty(dir);
    write_file("ballast.db", db_bytes, db_count);
    write_file("ballast.mark", mark_bytes, mark_count);
    write_file("ballast.db-wal", bytes, count);
    int code = store_open(dir, &store_world_job, &store, &error);
    if (code != 0) {
        assert_int_equal(code, -EBADMSG);
        assert_non_null(strstr(error.text, "restore "));
        return 1;
    }
    assert_int_equal(store_world_check(store), 12);
    store_close(store);
    return 0;
}

static void a_wal_cut_at_any_length_is_refused(void **state) {
    (void)state;
    die_holding(put_twelve_groups);
    keep_folder();
    for (size_t length = 0; length < wal_count; length += 1 + wal_count / 300) {
        if (try_wal(wal_bytes, length) != 1) {
            fail_msg("%zu of %zu bytes were taken for the whole WAL", length, wal_count);
        }
    }
}

static void a_wal_with_flipped_bytes_is_refused_or_harmless(void **state) {
    (void)state;
    uint64_t seed = 78;
    unsigned refused = 0;
    unsigned rounds = store_world_rounds(20000, 500);
    static char bytes[1 << 20];
    die_holding(put_twelve_groups);
    keep_folder();
    for (unsigned round = 0; round < rounds; round++) {
        memcpy(bytes, wal_bytes, wal_count);
        bytes[store_world_random(&seed) % wal_count] ^= (char)(1 + store_world_random(&seed) % 255);
        refused += try_wal(bytes, wal_count);
    }
    print_message("%u of %u refused\n", refused, rounds);
    assert_true(refused > rounds - rounds / 10);
}

static void a_store_that_is_gone_is_not_started_anew(void **state) {
    (void)state;
    fill_store(3);
    assert_int_equal(unlink(path_of("ballast.db")), 0);
    expect_refusal(&store_world_job, -EBADMSG,
                   "has a ballast.mark but no ballast.db: the store is gone; restore the folder");
    assert_int_equal(access(path_of("ballast.db"), F_OK), -1);
    assert_int_equal(unlink(path_of("ballast.mark")), 0);
    store_close(open_store());
}

static void an_older_copy_of_the_store_is_refused(void **state) {
    (void)state;
    fill_store(3);
    db_count = read_file("ballast.db", db_bytes, sizeof db_bytes);
    struct store *store = open_store();
    assert_int_equal(store_world_put_group(store, 3, NULL), 0);
    store_close(store);
    write_file("ballast.db", db_bytes, db_count);
    expect_refusal(&store_world_job, -EBADMSG, "has lost commits: 4 of 6 groups are there");
}

static void a_mark_that_is_damaged_missing_or_another_ones_is_noticed(void **state) {
    (void)state;
    fill_store(2);
    mark_count = read_file("ballast.mark", mark_bytes, sizeof mark_bytes);
    for (size_t i = 0; i < mark_count; i++) {
        mark_bytes[i] ^= 1;
        write_file("ballast.mark", mark_bytes, mark_count);
        expect_refusal(&store_world_job, -EBADMSG, "ballast.mark is damaged; restore");
        mark_bytes[i] ^= 1;
    }
    write_file("ballast.mark", mark_bytes, mark_count - 1);
    expect_refusal(&store_world_job, -EBADMSG, "ballast.mark is damaged; restore");
    store_world_empty(dir);
    fill_store(2);
    write_file("ballast.mark", mark_bytes, mark_count);
    expect_refusal(&store_world_job, -EBADMSG, "another store than the one ballast.mark is of");
    assert_int_equal(unlink(path_of("ballast.mark")), 0);
    assert_int_equal(store_world_recover(dir, 2, 0), 2); /* it was closed: nothing can be lost */
    assert_int_equal(access(path_of("ballast.mark"), F_OK), 0);
    store_world_empty(dir);
    die_holding(put_two_groups);
    assert_int_equal(unlink(path_of("ballast.mark")), 0);
    expect_refusal(&store_world_job, -EBADMSG, "it was not closed and its ballast.mark is missing");
}

/* After a power cut the mark may be an older one: it was written, but not synced. */
static void an_older_mark_is_no_reason_to_refuse(void **state) {
    (void)state;
    store_close(open_store());
    mark_count = read_file("ballast.mark", mark_bytes, sizeof mark_bytes);
    die_holding(put_twelve_groups);
    write_file("ballast.mark", mark_bytes, mark_count);
    assert_int_equal(store_world_recover(dir, 12, 0), 12);
}

/* A file as an older version left it. */
static void put_old(const char *from, const char *to) {
    static char bytes[1 << 16];
    char path[300];
    (void)snprintf(path, sizeof path, BALLAST_SOURCE "/tests/unit/%s", from);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t count = fread(bytes, 1, sizeof bytes, file);
    (void)fclose(file);
    assert_true(mkdir(dir, 0700) == 0 || errno == EEXIST);
    write_file(to, bytes, count);
}

static void put_version_1(void) {
    put_old("store_v1.db", "ballast.db");
}

static void a_store_of_version_1_is_migrated_after_a_copy_was_made(void **state) {
    (void)state;
    struct store *store = NULL;
    put_version_1();
    assert_int_equal(store_open(dir, NULL, &store, NULL), 0); /* reading leaves it as it is */
    assert_int_equal(store_world_check(store), 3);
    store_close(store);
    assert_int_equal(access(path_of("ballast.db.1"), F_OK), -1);
    assert_int_equal(store_world_recover(dir, 3, 0), 3);
    assert_int_equal(access(path_of("ballast.mark"), F_OK), 0);
    assert_int_equal(access(path_of("ballast.db.1"), F_OK), 0);
    outsider("SELECT * FROM plans, waiting_documents, dataset_delays, datasets");
    store = open_store();
    assert_int_equal(store_world_put_group(store, 3, NULL), 0);
    store_close(store);
    assert_int_equal(unlink(path_of("ballast.db")), 0); /* the copy is the store that was */
    assert_int_equal(unlink(path_of("ballast.mark")), 0);
    const char *copy = strdupa(path_of("ballast.db.1"));
    assert_int_equal(rename(copy, path_of("ballast.db")), 0);
    assert_int_equal(store_world_recover(dir, 3, 0), 3);
}

/* It stays the store that its mark is of, with as many groups. */
static void a_store_of_version_2_is_migrated_and_keeps_its_mark(void **state) {
    char now[sizeof mark_bytes];
    (void)state;
    put_old("store_v2.db", "ballast.db");
    put_old("store_v2.mark", "ballast.mark");
    mark_count = read_file("ballast.mark", mark_bytes, sizeof mark_bytes);
    assert_int_equal(store_world_recover(dir, 3, 0), 3);
    assert_int_equal(access(path_of("ballast.db.2"), F_OK), 0);
    assert_int_equal(read_file("ballast.mark", now, sizeof now), mark_count);
    assert_memory_equal(now, mark_bytes, mark_count);
    outsider("SELECT * FROM ranks");
    struct store *store = open_store();
    for (uint64_t group = 3; group < 6; group++) {
        assert_int_equal(store_world_put_group(store, group, NULL), 0);
    }
    store_close(store);
    assert_int_equal(store_world_recover(dir, 6, 0), 6);
    store_world_empty(dir);
    put_old("store_v2.db", "ballast.db"); /* it was closed, so it needs none */
    assert_int_equal(store_world_recover(dir, 3, 0), 3);
    assert_int_equal(access(path_of("ballast.mark"), F_OK), 0);
}

static void ranks_that_are_ahead_come_back_until_a_generation_begins(void **state) {
    const struct store_rank ahead = {.dp = 1, .cp = 2, .committed_step = 7};
    struct store_rank found = {.dp = 1, .cp = 2};
    (void)state;
    for (unsigned round = 0; round < 3; round++) {
        struct store *store = open_store();
        assert_int_equal(store_get_rank(store, &found, NULL), round == 1);
        assert_int_equal(store_begin(store, NULL), 0);
        if (round == 0) {
            assert_int_equal(store_put_ranks(store, &ahead, 1, NULL), 0);
            assert_int_equal(store_commit(store, NULL), 0);
            assert_int_equal(store_begin(store, NULL), 0);
            assert_int_equal(store_put_ranks(store, NULL, 0, NULL), 0);
            store_rollback(store);
        } else {
            assert_int_equal(found.committed_step, 7);
            assert_int_equal(store_put_generation(store, round, NULL), 0);
            assert_int_equal(store_commit(store, NULL), 0);
        }
        store_close(store);
    }
}

static void a_rank_that_was_changed_is_damage(void **state) {
    const struct store_rank ahead = {.dp = 1, .committed_step = 7};
    struct store_rank found = {.dp = 1};
    struct error error = {0};
    (void)state;
    struct store *store = open_store();
    assert_int_equal(store_begin(store, NULL), 0);
    assert_int_equal(store_put_ranks(store, &ahead, 1, NULL), 0);
    assert_int_equal(store_commit(store, NULL), 0);
    store_close(store);
    outsider("UPDATE ranks SET committed_step = 8");
    store = open_store();
    assert_int_equal(store_get_rank(store, &found, &error), -EBADMSG);
    assert_non_null(strstr(error.text, "the row of rank dp 1, pp 0, cp 0, tp 0"));
    store_close(store);
}

static void another_jobs_store_is_not_migrated(void **state) {
    (void)state;
    struct store_job job = store_world_job;
    put_version_1();
    job.plan_text = "algorithm = 2\n";
    expect_refusal(&job, -EINVAL, "this version plans with");
    assert_int_equal(access(path_of("ballast.db.1"), F_OK), -1);
    assert_int_equal(store_world_recover(dir, 3, 0), 3);
}

static void another_corpus_is_refused_by_the_dataset_and_what_of_it(void **state) {
    (void)state;
    struct store_dataset datasets[] = {
        {.name = "books", .dtype = 8, .documents = 10, .tokens = 300, .bin_bytes = 600},
        {.name = "web", .dtype = 8, .documents = 7, .tokens = 50, .bin_bytes = 100},
        {.name = "more"},
    };
    struct store_job job = store_world_job;
    struct store *store = NULL;
    job.datasets = datasets;
    job.dataset_count = job.dataset_job_count = 2;
    assert_int_equal(store_open(dir, &job, &store, NULL), 0);
    store_close(store);
    job.job_digest[0] ^= 1;
    datasets[1].fingerprint[3] = 9;
    expect_refusal(&job, -EINVAL, "dataset 'web' has as many documents and tokens, but others");
    datasets[1].bin_bytes = 101;
    expect_refusal(&job, -EINVAL, "dataset 'web' has bytes of .bin 100 there, 101 here; restore");
    datasets[0].documents = 9;
    expect_refusal(&job, -EINVAL, "dataset 'books' has documents 10 there, 9 here");
    datasets[0].dtype = 4;
    expect_refusal(&job, -EINVAL, "dataset 'books' has dtype 8 there, 4 here");
    datasets[0].name = "code";
    expect_refusal(&job, -EINVAL, "dataset 'books' there is 'code' here");
    datasets[0] = (struct store_dataset){
        .name = "books", .dtype = 8, .documents = 10, .tokens = 300, .bin_bytes = 600};
    datasets[1] = (struct store_dataset){
        .name = "web", .dtype = 8, .documents = 7, .tokens = 50, .bin_bytes = 100};
    job.dataset_count = job.dataset_job_count = 3;
    expect_refusal(&job, -EINVAL, "the number of datasets differs: 3 are here");
}

static void a_truncated_file_is_refused_at_any_length(void **state) {
    (void)state;
    struct stat info;
    fill_store(12);
    assert_int_equal(stat(path_of("ballast.db"), &info), 0);
    for (off_t length = info.st_size - 1; length > 0; length -= 3001) {
        assert_int_equal(truncate(path_of("ballast.db"), length), 0);
        expect_refusal(&store_world_job, -EBADMSG, "restore the folder");
    }
}

/* Opens and reads everything: the number of wrong answers, which must be none. */
static unsigned read_all(unsigned *refused) {
    struct store *store = NULL;
    struct store_summary summary;
    uint8_t bytes[STORE_WORLD_STATE_BYTES];
    unsigned wrong = 0;
    if (store_open(dir, &store_world_job, &store, NULL) != 0) {
        ++*refused;
        return 0;
    }
    int code = store_summary(store, &summary, NULL);
    wrong += code == 0 && summary.committed_step != store_world_end(11);
    for (uint64_t k = 0; code >= 0 && k < store_world_end(12); k++) {
        struct store_step found;
        struct store_step expected;
        code = store_get_step(store, k, &found, NULL);
        if (code == 1) {
            store_world_step(found.step, bytes, &expected);
            wrong += found.step > k || found.state_bytes != expected.state_bytes ||
                     memcmp(found.state, bytes, found.state_bytes) != 0 ||
                     memcmp(found.digest, expected.digest, 16) != 0 ||
                     memcmp(&found.balance, &expected.balance, sizeof found.balance) != 0;
        }
    }
    *refused += code < 0;
    store_close(store);
    return wrong;
}

static void flipped_bytes_give_no_wrong_answer(void **state) {
    (void)state;
    uint64_t seed = 77;
    unsigned refused = 0;
    unsigned rounds = store_world_rounds(20000, 500);
    fill_store(12);
    FILE *file = fopen(path_of("ballast.db"), "r");
    assert_non_null(file);
    static char pristine[1 << 20];
    size_t count = fread(pristine, 1, sizeof pristine, file);
    assert_true(feof(file) && count > 4096);
    (void)fclose(file);
    for (unsigned round = 0; round < rounds; round++) {
        static char bytes[1 << 20];
        memcpy(bytes, pristine, count);
        for (uint64_t flips = 1 + store_world_random(&seed) % 8; flips > 0; flips--) {
            bytes[store_world_random(&seed) % count] ^= (char)(1 + store_world_random(&seed) % 255);
        }
        store_world_empty(dir);
        write_file("ballast.db", bytes, count);
        if (read_all(&refused) != 0) {
            fail_msg("round %u of seed 77 gave a wrong answer", round);
        }
    }
    assert_true(refused > rounds / 2);
}

static const char *boot_id = "this boot";

void __wrap_state_dir_boot_id(char out[40]);
void __wrap_state_dir_boot_id(char out[40]) {
    (void)snprintf(out, 40, "%s", boot_id);
}

/* Ruins the last page of the file, which nothing reads that opens a store. */
static void ruin_last_page(void) {
    struct stat info;
    uint8_t page[4096];
    memset(page, 0xff, sizeof page);
    int fd = open(path_of("ballast.db"), O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &info), 0);
    assert_int_equal(pwrite(fd, page, sizeof page, info.st_size - 4096), 4096);
    assert_int_equal(close(fd), 0);
}

static void after_a_crash_of_the_machine_the_whole_file_is_checked(void **state) {
    (void)state;
    fill_store(12);
    ruin_last_page();
    die_holding(settle_a_step);
    store_close(open_store()); /* a process died: no time is spent */
    die_holding(settle_a_step);
    boot_id = "the next boot";
    expect_refusal(&store_world_job, -EBADMSG, "is damaged: ***");
    boot_id = "";
    expect_refusal(NULL, -EBADMSG, "is damaged");
    boot_id = "this boot";
    store_close(open_store());
    boot_id = "the next boot";
    store_close(open_store()); /* it was closed */
    boot_id = "this boot";
}

static long f_type;

int __real_fstatfs(int fd, struct statfs *info);
int __wrap_fstatfs(int fd, struct statfs *info);
int __wrap_fstatfs(int fd, struct statfs *info) {
    int code = __real_fstatfs(fd, info);
    if (f_type != 0) {
        info->f_type = f_type;
    }
    return code;
}

static void a_network_folder_is_refused_unless_told(void **state) {
    (void)state;
    f_type = 0x6969;
    expect_refusal(&store_world_job, -EINVAL, "is on NFS");
    f_type = 0x65735546;
    expect_refusal(&store_world_job, -EINVAL, "is on FUSE or virtiofs");
    assert_int_equal(access(path_of("lock"), F_OK), -1);
    setenv("BALLAST_ALLOW_NETWORK_STATE", "1", 1);
    store_close(open_store());
    unsetenv("BALLAST_ALLOW_NETWORK_STATE");
    f_type = 0;
}

static void a_folder_that_cannot_be_made_is_named(void **state) {
    (void)state;
    struct store *store = NULL;
    struct error error = {0};
    assert_int_equal(store_open("/nowhere/at/all", &store_world_job, &store, &error), -ENOENT);
    assert_non_null(strstr(error.text, "/nowhere/at/all"));
    assert_int_equal(store_open("/dev/null", &store_world_job, &store, &error), -ENOTDIR);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_fresh_store_is_empty_and_private),
        TEST(what_was_committed_is_read_back),
        TEST(a_step_is_found_by_any_later_one),
        TEST(pruning_keeps_what_the_oldest_step_needs),
        TEST(rows_of_exported_steps_stay_as_many_as_are_to),
        TEST(rows_end_at_the_first_gap),
        TEST(a_generation_is_kept_with_where_it_began_and_by_whom),
        TEST(a_group_that_was_rolled_back_never_was),
        TEST(a_step_planned_again_replaces_its_row),
        TEST(the_wal_is_written_back_on_demand),
        TEST(a_second_opener_is_told_who_has_it),
        TEST(a_killed_owner_leaves_the_lock_free_at_once),
        TEST(another_job_is_refused_by_the_first_difference),
        TEST(a_history_may_change_behind_what_is_committed),
        TEST(a_refused_job_leaves_a_killed_store_as_it_was),
        TEST(reading_needs_no_job_and_changes_nothing),
        TEST(reading_creates_nothing),
        TEST(damage_is_never_taken_for_an_empty_store),
        TEST(a_half_made_store_is_made_again),
        TEST(foreign_and_newer_files_are_refused),
        TEST(meta_rows_that_are_missing_or_changed_are_damage),
        TEST(a_changed_row_is_damage),
        TEST(a_store_that_lost_its_wal_is_refused),
        TEST(a_store_that_an_outsider_wrote_back_has_lost_nothing),
        TEST(a_wal_of_an_earlier_opening_is_refused),
        TEST(an_older_wal_of_the_same_opening_is_refused),
        TEST(a_wal_cut_at_any_length_is_refused),
        TEST(a_wal_with_flipped_bytes_is_refused_or_harmless),
        TEST(a_store_that_is_gone_is_not_started_anew),
        TEST(an_older_copy_of_the_store_is_refused),
        TEST(a_mark_that_is_damaged_missing_or_another_ones_is_noticed),
        TEST(an_older_mark_is_no_reason_to_refuse),
        TEST(a_store_of_version_1_is_migrated_after_a_copy_was_made),
        TEST(a_store_of_version_2_is_migrated_and_keeps_its_mark),
        TEST(ranks_that_are_ahead_come_back_until_a_generation_begins),
        TEST(a_rank_that_was_changed_is_damage),
        TEST(another_jobs_store_is_not_migrated),
        TEST(another_corpus_is_refused_by_the_dataset_and_what_of_it),
        TEST(a_truncated_file_is_refused_at_any_length),
        TEST(flipped_bytes_give_no_wrong_answer),
        TEST(after_a_crash_of_the_machine_the_whole_file_is_checked),
        TEST(a_network_folder_is_refused_unless_told),
        TEST(a_folder_that_cannot_be_made_is_named),
    };
    return cmocka_run_group_tests_name("daemon_store", tests, NULL, NULL);
}
