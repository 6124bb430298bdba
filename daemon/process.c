/* process: see process.h. */
#include "daemon/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PROCESS_TEXT_BYTES 1024u

/* The fields of /proc/self/stat behind the command, of which number 3 is the first. */
static void process_stat(struct process_usage *out) {
    char text[PROCESS_TEXT_BYTES];
    uint64_t threads, start, bytes, pages;
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) {
        (void)close(fd);
    }
    text[got > 0 ? got : 0] = '\0';
    const char *at = strrchr(text, ')');
    if (at == NULL ||
        sscanf(at + 1,
               " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %" SCNu64
               " %*d %" SCNu64 " %" SCNu64 " %" SCNu64,
               &threads, &start, &bytes, &pages) != 4) {
        return;
    }
    struct timespec wall, boot;
    (void)clock_gettime(CLOCK_REALTIME, &wall);
    (void)clock_gettime(CLOCK_BOOTTIME, &boot);
    uint64_t ticks = (uint64_t)sysconf(_SC_CLK_TCK);
    uint64_t wall_ms = (uint64_t)wall.tv_sec * 1000 + (uint64_t)wall.tv_nsec / 1000000;
    uint64_t boot_ms = (uint64_t)boot.tv_sec * 1000 + (uint64_t)boot.tv_nsec / 1000000;
    out->threads = threads;
    out->virtual_bytes = bytes;
    out->resident_bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    out->start_ms = wall_ms - boot_ms + start * 1000 / ticks;
}

static uint64_t process_descriptors(void) {
    _Alignas(struct dirent64) char entries[8192];
    uint64_t count = 0;
    long got;
    int fd = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    while ((got = syscall(SYS_getdents64, fd, entries, sizeof entries)) > 0) {
        for (long at = 0; at < got;) {
            const struct dirent64 *entry = (const struct dirent64 *)(const void *)(entries + at);
            count += entry->d_name[0] != '.';
            at += entry->d_reclen;
        }
    }
    (void)close(fd);
    return count > 0 ? count - 1 : 0; /* without the one that was just open */
}

void process_usage(struct process_usage *out) {
    struct rlimit files;
    struct timespec cpu;
    *out = (struct process_usage){.descriptors = process_descriptors()};
    process_stat(out);
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0) {
        out->cpu_ns = (uint64_t)cpu.tv_sec * 1000000000u + (uint64_t)cpu.tv_nsec;
    }
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        out->descriptors_max = files.rlim_cur;
    }
}
