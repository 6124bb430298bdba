/* mapped: see mapped.h. */
#include "corpus/mapped.h"
#include "corpus/bulk.h"

#include <linux/magic.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif

/* What a thread copies from just now, and where it goes on when that is gone. */
struct guard {
    uintptr_t begin, end;
    sigjmp_buf gone;
};

static _Thread_local struct guard *volatile guard;
static struct sigaction before;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Of others: once their handler is back, the access is made again, and is theirs; a signal that
 * somebody sent is sent again. */
static void mapped_fault(int number, siginfo_t *info, void *context) {
    struct guard *mine = guard;
    uintptr_t at = (uintptr_t)info->si_addr;
    (void)context;
    if (info->si_code > 0 && mine != NULL && at >= mine->begin && at < mine->end) {
        siglongjmp(mine->gone, 1);
    }
    (void)sigaction(number, &before, NULL);
    if (info->si_code <= 0) {
        (void)raise(number);
    }
}

/* Not blocked while it runs, for it leaves by a jump that restores no mask. */
static void mapped_catch(void) {
    struct sigaction action = {.sa_sigaction = mapped_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    (void)sigaction(SIGBUS, &action, &before);
}

/* False: some of it is gone. */
static bool mapped_copy(const uint8_t *from, uintptr_t begin, uintptr_t end,
                        const struct iovec *iovecs, uint32_t count) {
    struct guard mine = {.begin = begin, .end = end};
    if (sigsetjmp(mine.gone, 0) != 0) {
        guard = NULL;
        return false;
    }
    guard = &mine;
    atomic_signal_fence(memory_order_seq_cst); /* no byte is touched before or behind */
    bulk_scatter(iovecs, count, from);
    atomic_signal_fence(memory_order_seq_cst);
    guard = NULL;
    return true;
}

/* What stands behind the file's end, on its last page, is zeros and no signal. */
static bool mapped_reaches(int fd, uint64_t end) {
    struct stat info;
    return fstat(fd, &info) == 0 && (uint64_t)info.st_size >= end;
}

bool mapping_open(int fd, struct mapping *out) {
    struct stat info;
    if (fstat(fd, &info) < 0 || !S_ISREG(info.st_mode) || info.st_size == 0) {
        return false;
    }
    out->bytes = (uint64_t)info.st_size;
    out->pages = mmap(NULL, out->bytes, PROT_READ, MAP_SHARED, fd, 0);
    pthread_once(&once, mapped_catch);
    return out->pages != MAP_FAILED;
}

void mapping_close(struct mapping *mapping) {
    (void)munmap(mapping->pages, mapping->bytes);
}

bool mapping_scatter(const struct mapping *mapping, int fd, uint64_t offset,
                     const struct iovec *iovecs, uint32_t count) {
    uint64_t skipped = offset % (uint64_t)sysconf(_SC_PAGESIZE), bytes = skipped;
    for (uint32_t i = 0; i < count; i++) {
        bytes += iovecs[i].iov_len;
    }
    if (offset > mapping->bytes || bytes - skipped > mapping->bytes - offset) {
        return false;
    }
    uint8_t *pages = mapping->pages + (offset - skipped);
    return mapped_copy(pages + skipped, (uintptr_t)pages, (uintptr_t)pages + bytes, iovecs,
                       count) &&
           mapped_reaches(fd, offset - skipped + bytes);
}

bool mapped_suits(int fd) {
    struct statfs info;
    if (fstatfs(fd, &info) < 0) {
        return false;
    }
    switch ((unsigned long)info.f_type) {
    case EXT4_SUPER_MAGIC: /* and 2 and 3 */
    case XFS_SUPER_MAGIC:
    case BTRFS_SUPER_MAGIC:
    case F2FS_SUPER_MAGIC:
    case TMPFS_MAGIC:
    case OVERLAYFS_SUPER_MAGIC:
        return true;
    default:
        return false;
    }
}
