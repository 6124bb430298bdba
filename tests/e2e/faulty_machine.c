/* faulty_machine: preloaded into the programs under test: syncs that fail or are slow, reads that
 * stand still and a wall clock that is wrong, as the files `sync` (exists), `slow` (milliseconds),
 * `gate` (large reads that pass; the next one waits until the file is gone) and `clock` (seconds)
 * in $BALLAST_TEST_MACHINE say at each call. CLOCK_MONOTONIC stays right, as it does on a machine
 * whose clock is set. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* What a file says: its number, 0 when there is none; `found` whether there is one. */
static long machine_file(const char *name, int *found) {
    char path[512], text[32] = "";
    const char *folder = getenv("BALLAST_TEST_MACHINE");
    (void)snprintf(path, sizeof path, "%s/%s", folder == NULL ? "/nowhere" : folder, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    *found = fd >= 0;
    if (fd >= 0) {
        ssize_t count = read(fd, text, sizeof text - 1);
        (void)count;
        (void)close(fd);
    }
    return strtol(text, NULL, 10);
}

static int machine_sync(long call, int fd) {
    int fails;
    (void)machine_file("sync", &fails);
    if (fails) {
        errno = EIO;
        return -1;
    }
    (void)usleep((useconds_t)(machine_file("slow", &fails) * 1000));
    return (int)syscall(call, fd);
}

#define LARGE_BYTES 32768u

static ssize_t machine_pread(int fd, void *to, size_t count, off_t offset) {
    static _Atomic long passed;
    int shut = 0;
    long may_pass = count >= LARGE_BYTES ? machine_file("gate", &shut) : 0;
    if (shut && ++passed > may_pass) {
        while (shut) {
            (void)usleep(2000);
            (void)machine_file("gate", &shut);
        }
    }
    return syscall(SYS_pread64, fd, to, count, offset);
}

ssize_t pread(int fd, void *to, size_t count, off_t offset) {
    return machine_pread(fd, to, count, offset);
}

ssize_t pread64(int fd, void *to, size_t count, off_t offset) {
    return machine_pread(fd, to, count, offset);
}

int fsync(int fd) {
    return machine_sync(SYS_fsync, fd);
}

int fdatasync(int fd) {
    return machine_sync(SYS_fdatasync, fd);
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    int found;
    int code = (int)syscall(SYS_clock_gettime, clock, out);
    if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        out->tv_sec += machine_file("clock", &found);
    }
    return code;
}

time_t time(time_t *out) {
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL) {
        *out = now.tv_sec;
    }
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    (void)zone;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    *out = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}
