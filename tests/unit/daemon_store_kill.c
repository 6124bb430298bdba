/* The store under kill -9 and under power loss: what was acknowledged is there, at most one group
 * more, in order, unchanged.
 *
 * Killed by another process at a random moment, on the real disk; killed at its first, second,
 * third... file operation with every subset of unsynced writes lost. */
#include "faulty_vfs.h"
#include "store_world.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static char *dir;

/* In the child: opens the store, goes on where it stands, and acknowledges every group that is
 * durable. Writes back in the middle, so that kills fall there too. */
static void serve(int acknowledge_fd, uint64_t groups) {
    struct store *store = NULL;
    struct store_summary summary;
    uint64_t g = 0;
    if (store_open(dir, &store_world_job, &store, NULL) != 0 ||
        store_summary(store, &summary, NULL) != 0) {
        _exit(1);
    }
    while (store_world_end(g) < summary.steps_end) {
        g++;
    }
    for (uint64_t end = g + groups; g < end; g++) {
        uint64_t acknowledged = g + 1;
        if (store_world_put_group(store, g, NULL) != 0 ||
            write(acknowledge_fd, &acknowledged, sizeof acknowledged) != sizeof acknowledged ||
            (g % 5 == 4 && store_checkpoint(store, 0, NULL) != 0)) {
            _exit(1);
        }
    }
    store_close(store);
    _exit(0);
}

static pid_t serve_in_child(uint64_t groups, int *acknowledgements) {
    int fds[2];
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)close(fds[0]);
        serve(fds[1], groups);
    }
    (void)close(fds[1]);
    *acknowledgements = fds[0];
    return pid;
}

/* The last of the acknowledgements that can be read, waiting for at most `wanted`. */
static uint64_t read_acknowledgements(int fd, uint64_t wanted, uint64_t last) {
    uint64_t number;
    while (wanted-- > 0 && read(fd, &number, sizeof number) == sizeof number) {
        last = number;
    }
    return last;
}

static uint64_t now_ns(void) {
    struct timespec time;
    assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &time), 0);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void kill_9_loses_and_reorders_nothing(void **state) {
    (void)state;
    unsigned kills = store_world_rounds(1000, 100);
    uint64_t seed = 9;
    uint64_t acknowledged = 0;
    uint64_t slowest_ns = 0;
    uint64_t total_ns = 0;
    dir = store_world_make("/tmp");
    for (unsigned i = 0; i < kills; i++) {
        int fd;
        int status;
        pid_t pid = serve_in_child(UINT32_MAX, &fd);
        acknowledged = read_acknowledgements(fd, store_world_random(&seed) % 8, acknowledged);
        struct timespec moment = {.tv_nsec = (long)(store_world_random(&seed) % 3000000)};
        (void)nanosleep(&moment, NULL);
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        acknowledged = read_acknowledgements(fd, UINT64_MAX, acknowledged);
        (void)close(fd);
        if (i % 2 == 0) {
            continue; /* the next child opens what this one left, and may add one more */
        }
        struct store *store = NULL;
        uint64_t started = now_ns();
        assert_int_equal(store_open(dir, &store_world_job, &store, NULL), 0);
        uint64_t took = now_ns() - started;
        slowest_ns = took > slowest_ns ? took : slowest_ns;
        total_ns += took;
        store_close(store);
        uint64_t groups = store_world_recover(dir, acknowledged, 2);
        assert_true(groups >= acknowledged);
        acknowledged = groups;
    }
    print_message("%u kills, %" PRIu64 " groups; reopened in %" PRIu64 " us, at most %" PRIu64 "\n",
                  kills, acknowledged, total_ns / (kills / 2) / 1000, slowest_ns / 1000);
    assert_true(acknowledged > kills);
    store_world_remove(dir);
}

/* One life of a child that loses unsynced writes and dies at operation `kill_at`; true while it
 * still died of that. */
static bool die_at(uint64_t kill_at, uint64_t seed) {
    int fd;
    int status;
    faulty = (struct faulty){.operations = FAULTY_CHANGES, .kill_at = kill_at, .lossy_seed = seed};
    pid_t pid = serve_in_child(7, &fd);
    uint64_t acknowledged = read_acknowledgements(fd, UINT64_MAX, 0);
    (void)close(fd);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!killed && status != 0) {
        fail_msg("operation %" PRIu64 ", seed %" PRIu64 ": status %d", kill_at, seed, status);
    }
    faulty = (struct faulty){0};
    (void)store_world_recover(dir, acknowledged, 1);
    store_world_empty(dir);
    return killed;
}

static void power_loss_at_any_operation_loses_nothing_acknowledged(void **state) {
    (void)state;
    uint64_t rounds = store_world_rounds(50, 2);
    uint64_t at = 1;
    faulty_vfs_install();
    dir = store_world_make(store_world_memory());
    for (uint64_t seed = 1; seed <= rounds; seed++) {
        for (at = 1; die_at(at, seed); at++) {
        }
    }
    print_message("%" PRIu64 " operations, each died at %" PRIu64 " times\n", at - 1, rounds);
    assert_true(at > 60);
    store_world_remove(dir);
}

static void power_loss_again_and_again_loses_nothing_acknowledged(void **state) {
    (void)state;
    unsigned lives = store_world_rounds(5000, 200);
    uint64_t seed = 31;
    uint64_t acknowledged = 0;
    faulty_vfs_install();
    dir = store_world_make(store_world_memory());
    for (unsigned life = 0; life < lives; life++) {
        int fd;
        int status;
        faulty = (struct faulty){.operations = FAULTY_CHANGES,
                                 .kill_at = 1 + store_world_random(&seed) % 150,
                                 .lossy_seed = store_world_random(&seed) | 1};
        pid_t pid = serve_in_child(UINT32_MAX, &fd);
        acknowledged = read_acknowledgements(fd, UINT64_MAX, acknowledged);
        (void)close(fd);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        faulty = (struct faulty){0};
        if (life % 4 == 0) {
            acknowledged = store_world_recover(dir, acknowledged, 4);
        }
    }
    assert_true(store_world_recover(dir, acknowledged, 4) > lives / 2);
    store_world_remove(dir);
}

static void put_file(const char *name, const char *as) {
    static char bytes[1 << 16];
    char from[300], to[300];
    (void)snprintf(from, sizeof from, BALLAST_SOURCE "/tests/unit/%s", name);
    (void)snprintf(to, sizeof to, "%s/%s", dir, as);
    assert_true(mkdir(dir, 0700) == 0 || errno == EEXIST);
    int in = open(from, O_RDONLY | O_CLOEXEC);
    int out = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ssize_t count = read(in, bytes, sizeof bytes);
    assert_true(count > 0 && write(out, bytes, (size_t)count) == count);
    assert_int_equal(close(in) | close(out), 0);
}

static void put_version(unsigned version) {
    put_file(version == 1 ? "store_v1.db" : "store_v2.db", "ballast.db");
    if (version == 2) {
        put_file("store_v2.mark", "ballast.mark");
    }
}

/* Opens a store of an older version, which migrates it, and dies at operation `kill_at` of that. */
static bool migrate_and_die_at(unsigned version, uint64_t kill_at) {
    int status;
    put_version(version);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct store *store = NULL;
        faulty = (struct faulty){
            .operations = FAULTY_CHANGES, .kill_at = kill_at, .lossy_seed = kill_at};
        int code = store_open(dir, &store_world_job, &store, NULL);
        store_close(store);
        _exit(code == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    assert_true(killed || status == 0);
    assert_int_equal(store_world_recover(dir, 3, 0), 3);
    store_world_empty(dir);
    return killed;
}

static void a_migration_killed_at_any_operation_is_done_again(void **state) {
    (void)state;
    faulty_vfs_install();
    dir = store_world_make(store_world_memory());
    for (unsigned version = 1; version <= 2; version++) {
        uint64_t at = 1;
        while (migrate_and_die_at(version, at)) {
            at++;
        }
        print_message("version %u: %" PRIu64 " operations\n", version, at - 1);
        assert_true(at > 15);
    }
    store_world_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kill_9_loses_and_reorders_nothing),
        cmocka_unit_test(power_loss_at_any_operation_loses_nothing_acknowledged),
        cmocka_unit_test(power_loss_again_and_again_loses_nothing_acknowledged),
        cmocka_unit_test(a_migration_killed_at_any_operation_is_done_again),
    };
    return cmocka_run_group_tests_name("daemon_store_kill", tests, NULL, NULL);
}
