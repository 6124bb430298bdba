/* faulty_machine: preloaded into the programs under test: syncs that fail or do not end, reads of
 * tokens, by preadv or io_uring (faulty_ring.c), that fail or hang, and a wall clock that is wrong,
 * as the files `sync` (exists), `stuck` (exists), `read` (errno, how many reads, end of the file's
 * name), `hang` (end of the file's name) and `clock` (seconds) in $BALLAST_TEST_MACHINE say at each
 * call. Offsets of reads that failed are noted in `failed`. A file whose reads are to fail has
 * mappings without pages, whoever touches one gets a SIGBUS; where these begin is noted in
 * `unmapped`. CLOCK_MONOTONIC stays right, as it does on a machine whose clock is set. */
#include "faulty_machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static int machine_open(const char *name, int flags) {
    char path[512];
    const char *folder = getenv("BALLAST_TEST_MACHINE");
    (void)snprintf(path, sizeof path, "%s/%s", folder == NULL ? "/nowhere" : folder, name);
    return open(path, flags | O_CLOEXEC, 0600);
}

/* What a file says; `found` whether there is one. */
static void machine_text(const char *name, char text[128], int *found) {
    int fd = machine_open(name, O_RDONLY);
    ssize_t count = fd < 0 ? 0 : read(fd, text, 127);
    text[count < 0 ? 0 : count] = 0;
    *found = fd >= 0;
    if (fd >= 0) {
        (void)close(fd);
    }
}

/* Its number, 0 when there is none. */
static long machine_file(const char *name, int *found) {
    char text[128];
    machine_text(name, text, found);
    return strtol(text, NULL, 10);
}

static atomic_int reads_failed;

/* Whether the name of what is open ends so. */
static int machine_is(int fd, const char *name) {
    char link[64], path[512];
    size_t wanted = strlen(name);
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    return length >= (ssize_t)wanted && memcmp(path + length - wanted, name, wanted) == 0;
}

static void machine_hang(int fd) {
    char text[128];
    int found;
    machine_text("hang", text, &found);
    while (found && machine_is(fd, text)) {
        (void)usleep(2000);
        machine_text("hang", text, &found);
    }
}

static void machine_note(const char *name, off_t offset) {
    int log = machine_open(name, O_WRONLY | O_CREAT | O_APPEND);
    (void)dprintf(log, "%lld\n", (long long)offset);
    (void)close(log);
}

/* The errno that reads of this file are to fail with, and how many. Without the file `read` it
 * begins anew. */
static int machine_code(int fd, int *most) {
    char text[128], name[64] = "";
    int found, code = 0;
    machine_text("read", text, &found);
    if (sscanf(text, "%d %d %63s", &code, most, name) != 3) {
        atomic_store(&reads_failed, 0);
        return 0;
    }
    return machine_is(fd, name) ? code : 0;
}

int machine_read_fault(int fd, off_t offset) {
    int most = 0;
    machine_hang(fd);
    int code = machine_code(fd, &most);
    if (code == 0 || atomic_fetch_add(&reads_failed, 1) >= most) {
        return 0;
    }
    machine_note("failed", offset);
    return code;
}

/* Of an empty file, where what is asked for is one that storage does not deliver. */
static void *machine_map(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    int most = 0, empty = -1;
    if (fd >= 0 && (flags & MAP_SHARED) != 0 && protection == PROT_READ) {
        machine_hang(fd);
        if (machine_code(fd, &most) != 0) {
            machine_note("unmapped", offset);
            empty = memfd_create("empty", MFD_CLOEXEC);
        }
    }
    long mapped = syscall(SYS_mmap, at, bytes, protection, flags, empty < 0 ? fd : empty,
                          empty < 0 ? offset : 0);
    if (empty >= 0) {
        (void)close(empty);
    }
    return (void *)mapped;
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    return machine_map(at, bytes, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    return machine_map(at, bytes, protection, flags, fd, offset);
}

ssize_t preadv(int fd, const struct iovec *iovecs, int count, off_t offset) {
    int code = machine_read_fault(fd, offset);
    if (code != 0) {
        errno = code;
        return -1;
    }
    return syscall(SYS_preadv, fd, iovecs, count, offset, 0);
}

static int machine_sync(long call, int fd) {
    int found;
    (void)machine_file("sync", &found);
    if (found) {
        errno = EIO;
        return -1;
    }
    (void)machine_file("stuck", &found);
    while (found) {
        (void)usleep(2000);
        (void)machine_file("stuck", &found);
    }
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
