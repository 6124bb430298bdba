/* The store on a disk that is really full: a small tmpfs in a mount namespace of our own, which
 * takes root. */
#include "daemon/state_dir.h"
#include "store_world.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define DISK "/tmp"

static char *dir;

static bool reserve_is_there(void) {
    char path[300];
    (void)snprintf(path, sizeof path, "%s/ballast.reserve", dir);
    return access(path, F_OK) == 0;
}

/* Fills the disk with a file of its own until `left` bytes are free. */
static void fill_disk(uint64_t left) {
    struct statvfs info;
    assert_int_equal(statvfs(DISK, &info), 0);
    uint64_t available = (uint64_t)info.f_bavail * info.f_frsize;
    assert_true(available > left);
    int fd = open(DISK "/filler", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(posix_fallocate(fd, 0, (off_t)(available - left)), 0);
    assert_int_equal(close(fd), 0);
}

static void free_disk(void) {
    assert_int_equal(unlink(DISK "/filler"), 0);
}

static struct store *open_store(void) {
    struct store *store = NULL;
    struct error error = {0};
    if (store_open(dir, &store_world_job, &store, &error) != 0) {
        fail_msg("%s", error.text);
    }
    return store;
}

/* Puts groups until one finds the disk full; returns how many there are. */
static uint64_t put_until_full(struct store *store, uint64_t group) {
    struct error error = {0};
    int code;
    while ((code = store_world_put_group(store, group, &error)) == 0) {
        group++;
        assert_true(group < 20000);
    }
    assert_int_equal(code, -ENOSPC);
    assert_non_null(strstr(error.text, "is full; free some space"));
    return group;
}

static void a_full_disk_is_told_survived_and_left_behind(void **state) {
    (void)state;
    struct store *store = open_store();
    assert_true(reserve_is_there());
    fill_disk(1 << 20);
    uint64_t groups = put_until_full(store, 0);
    assert_true(groups > 20);
    assert_false(reserve_is_there());
    assert_int_equal(store_world_check(store), groups);
    /* What was written back has made room for more. */
    assert_int_equal(store_world_put_group(store, groups, NULL), 0);
    groups = put_until_full(store, groups + 1);
    assert_int_equal(store_world_check(store), groups);
    assert_false(reserve_is_there());
    free_disk();
    assert_int_equal(store_world_put_group(store, groups, NULL), 0);
    assert_true(reserve_is_there());
    store_close(store);
    assert_int_equal(store_world_recover(dir, groups + 1, 0), groups + 1);
}

static void a_store_closed_on_a_full_disk_opens_when_there_is_space(void **state) {
    (void)state;
    struct store *store = open_store();
    fill_disk(1 << 20);
    uint64_t groups = put_until_full(store, 0);
    groups = put_until_full(store, groups);
    store_close(store);
    free_disk();
    assert_int_equal(store_world_recover(dir, groups, 0), groups);
}

static void a_store_killed_on_a_full_disk_opens_there(void **state) {
    (void)state;
    int fds[2];
    uint64_t groups = 0;
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct store *store = open_store();
        fill_disk(1 << 20);
        groups = put_until_full(store, put_until_full(store, 0));
        (void)!write(fds[1], &groups, sizeof groups);
        (void)raise(SIGKILL);
    }
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(read(fds[0], &groups, sizeof groups), sizeof groups);
    (void)close(fds[0]);
    (void)close(fds[1]);
    struct store *store = open_store();
    assert_int_equal(store_world_check(store), groups);
    store_close(store);
    free_disk();
    assert_int_equal(store_world_recover(dir, groups, 0), groups);
}

static void a_store_is_not_made_on_a_full_disk(void **state) {
    (void)state;
    struct store *store = NULL;
    struct error error = {0};
    fill_disk(8192);
    assert_int_equal(store_open(dir, &store_world_job, &store, &error), -ENOSPC);
    assert_non_null(strstr(error.text, "is full"));
    free_disk();
    store_close(open_store());
}

static int setup(void **state) {
    (void)state;
    dir = store_world_make(DISK);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    store_world_remove(dir);
    return 0;
}

/* A tmpfs over DISK that nobody else sees and that goes with this process. */
static bool mount_disk(void) {
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("tmpfs", DISK, "tmpfs", 0, "size=100m") == 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_full_disk_is_told_survived_and_left_behind),
        TEST(a_store_closed_on_a_full_disk_opens_when_there_is_space),
        TEST(a_store_killed_on_a_full_disk_opens_there),
        TEST(a_store_is_not_made_on_a_full_disk),
    };
    if (!mount_disk()) {
        puts("skipped: mounting a small tmpfs takes root");
        return 77;
    }
    return cmocka_run_group_tests_name("daemon_store_full", tests, NULL, NULL);
}
