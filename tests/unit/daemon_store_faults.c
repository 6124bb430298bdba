/* The store when the disk or memory fails: the first, second, third... operation fails, once or
 * from then on, until a whole life of a store passes without meeting the fault. Whatever was
 * acknowledged is there afterwards, nothing is acknowledged after a failed write or sync, and what
 * can be tried again works when it is. */
#include "faulty_vfs.h"
#include "store_world.h"

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include <cmocka.h>

#define GROUPS 7u

static char *dir;
static uint64_t acknowledged;

/* Memory that runs out: our own calls here, SQLite's through its configuration. */
static struct {
    uint64_t count;
    uint64_t fail_at;
    bool failed;
} memory;

static bool memory_fails(void) {
    bool due = ++memory.count == memory.fail_at;
    memory.failed = memory.failed || due;
    return due;
}

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes) {
    return memory.fail_at != 0 && memory_fails() ? NULL : __real_calloc(count, bytes);
}

void *__real_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes) {
    return memory.fail_at != 0 && memory_fails() ? NULL : __real_realloc(old, bytes);
}

static sqlite3_mem_methods sqlite_memory;

static void *sqlite_malloc(int bytes) {
    return memory.fail_at != 0 && memory_fails() ? NULL : sqlite_memory.xMalloc(bytes);
}

static void *sqlite_realloc(void *old, int bytes) {
    return memory.fail_at != 0 && memory_fails() ? NULL : sqlite_memory.xRealloc(old, bytes);
}

/* What state_dir.c asks of the folder by itself. */
static struct {
    uint64_t count;
    uint64_t fail_at;
    bool sticky;
    bool failed;
    int code;
} folder;

static bool folder_fails(void) {
    folder.count += folder.fail_at != 0;
    bool due = folder.fail_at != 0 &&
               (folder.count == folder.fail_at || (folder.sticky && folder.count > folder.fail_at));
    folder.failed = folder.failed || due;
    errno = due ? folder.code : errno;
    return due;
}

ssize_t __real_pwrite(int fd, const void *bytes, size_t count, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t count, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t count, off_t offset) {
    return folder_fails() ? -1 : __real_pwrite(fd, bytes, count, offset);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
    return folder_fails() ? -1 : __real_fsync(fd);
}

int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);
int __wrap_fdatasync(int fd) {
    return folder_fails() ? -1 : __real_fdatasync(fd);
}

int __real_renameat(int from_fd, const char *from, int to_fd, const char *to);
int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to);
int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to) {
    return folder_fails() ? -1 : __real_renameat(from_fd, from, to_fd, to);
}

static void memory_install(void) {
    sqlite3_mem_methods methods;
    assert_int_equal(sqlite3_config(SQLITE_CONFIG_GETMALLOC, &sqlite_memory), SQLITE_OK);
    methods = sqlite_memory;
    methods.xMalloc = sqlite_malloc;
    methods.xRealloc = sqlite_realloc;
    assert_int_equal(sqlite3_config(SQLITE_CONFIG_MALLOC, &methods), SQLITE_OK);
}

/* Everything a daemon does with its store, as far as it gets; 0 or the first error. Groups that
 * fail for want of memory or space are put again. */
static int live(void) {
    struct store *store = NULL;
    struct error error = {0};
    int first = store_open(dir, &store_world_job, &store, &error);
    if (first < 0) {
        assert_int_equal(error.code, first);
        return first;
    }
    for (uint64_t tries = 0; acknowledged < GROUPS && tries < 2 * GROUPS; tries++) {
        int code = store_world_put_group(store, acknowledged, &error);
        if (code == 0) {
            acknowledged++;
        }
        if (code == 0 && acknowledged % 3 == 0) {
            code = store_checkpoint(store, 0, &error);
        }
        if (code == 0) {
            code = store_settle(store, &error);
        }
        first = first == 0 ? code : first;
        if (code == -EIO) {
            assert_int_equal(store_begin(store, &error), -EIO);
            assert_non_null(strstr(error.text, "stop: a restart recovers"));
            break;
        }
    }
    struct store_step step;
    int code = store_get_step(store, 3, &step, &error);
    first = first == 0 && code < 0 ? code : first;
    store_close(store);
    return first;
}

/* One life with the fault that is set up, then recovery without. False when the fault was not met
 * any more. */
static bool survive(const char *what, uint64_t at, const bool *met, int first_allowed,
                    int second_allowed) {
    acknowledged = 0;
    int code = live();
    bool failed = *met;
    faulty = (struct faulty){0};
    memset(&memory, 0, sizeof memory);
    memset(&folder, 0, sizeof folder);
    if (code != 0 && code != first_allowed && code != second_allowed) {
        fail_msg("%s %" PRIu64 ": %d", what, at, code);
    }
    if (code == -ENOSPC || code == -ENOMEM) {
        /* Opening may have failed; once open, everything is tried again. */
        assert_true(acknowledged == 0 || acknowledged == GROUPS);
    }
    (void)store_world_recover(dir, acknowledged, 1);
    store_world_empty(dir);
    return failed;
}

static uint64_t every_operation(const char *what, unsigned operations, int code, bool sticky,
                                int allowed) {
    uint64_t at = 1;
    faulty = (struct faulty){0};
    for (bool met = true; met; at++) {
        faulty = (struct faulty){
            .operations = operations, .fail_at = at, .sticky = sticky, .code = code};
        met = survive(what, at, &faulty.failed, allowed, allowed == -EIO ? -EACCES : allowed);
        assert_true(at < 2000);
    }
    return at - 2;
}

static void a_failed_write_ends_the_store_and_loses_nothing(void **state) {
    (void)state;
    uint64_t met = every_operation("write", FAULTY_WRITE, SQLITE_IOERR_WRITE, false, -EIO);
    assert_true(met > 50);
    assert_int_equal(every_operation("write", FAULTY_WRITE, SQLITE_IOERR_WRITE, true, -EIO), met);
}

static void a_failed_sync_ends_the_store_and_loses_nothing(void **state) {
    (void)state;
    uint64_t met = every_operation("sync", FAULTY_SYNC, SQLITE_IOERR_FSYNC, false, -EIO);
    assert_true(met > 10);
    assert_int_equal(every_operation("sync", FAULTY_SYNC, SQLITE_IOERR_FSYNC, true, -EIO), met);
}

static void a_failed_read_ends_the_store_and_loses_nothing(void **state) {
    (void)state;
    assert_true(every_operation("read", FAULTY_READ, SQLITE_IOERR_READ, false, -EIO) > 10);
    (void)every_operation("read", FAULTY_READ, SQLITE_IOERR_READ, true, -EIO);
}

static void a_file_that_cannot_be_opened_is_said(void **state) {
    (void)state;
    assert_true(every_operation("open", FAULTY_OPEN, SQLITE_CANTOPEN, false, -EACCES) > 1);
}

static void a_full_disk_costs_the_group_and_nothing_else(void **state) {
    (void)state;
    assert_true(every_operation("space", FAULTY_WRITE, SQLITE_FULL, false, -ENOSPC) > 50);
}

/* The lock, the mark, the names: a disk that fails ends the store, one that is full may leave the
 * mark behind the store. */
static void a_folder_that_fails_ends_the_store_or_is_full_and_loses_nothing(void **state) {
    (void)state;
    uint64_t met = 0;
    for (unsigned round = 0; round < 4; round++) {
        int code = round < 2 ? EIO : ENOSPC;
        uint64_t at = 1;
        for (bool failed = true; failed; at++) {
            folder.fail_at = at;
            folder.code = code;
            folder.sticky = round % 2 == 1;
            failed = survive(strerror(code), at, &folder.failed, -code, -EIO);
            assert_true(at < 2000);
        }
        met = at - 2;
        print_message("%s: %" PRIu64 " calls\n", strerror(code), met);
        assert_true(met > 10);
    }
}

static void memory_that_runs_out_costs_the_group_and_nothing_else(void **state) {
    (void)state;
    uint64_t at = 1;
    uint64_t step = 2000 / store_world_rounds(2000, 300);
    for (bool met = true; met; at += step) {
        memory.fail_at = at;
        met = survive("allocation", at, &memory.failed, -ENOMEM, -ENOMEM);
    }
    print_message("%" PRIu64 " allocations\n", at);
    assert_true(at > 300);
}

static int setup(void **state) {
    (void)state;
    memory_install();
    faulty_vfs_install();
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
        cmocka_unit_test(a_failed_write_ends_the_store_and_loses_nothing),
        cmocka_unit_test(a_failed_sync_ends_the_store_and_loses_nothing),
        cmocka_unit_test(a_failed_read_ends_the_store_and_loses_nothing),
        cmocka_unit_test(a_file_that_cannot_be_opened_is_said),
        cmocka_unit_test(a_full_disk_costs_the_group_and_nothing_else),
        cmocka_unit_test(a_folder_that_fails_ends_the_store_or_is_full_and_loses_nothing),
        cmocka_unit_test(memory_that_runs_out_costs_the_group_and_nothing_else),
    };
    return cmocka_run_group_tests_name("daemon_store_faults", tests, setup, teardown);
}
