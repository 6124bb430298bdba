/* files: see files.h. Opening is done outside the lock, for it may take long; two threads that open
 * the same file at once end with one descriptor. */
#include "corpus/files.h"

#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define OPEN_MAX_LEAST 8u

/* On every architecture; Debian 12's headers do not know it. */
#ifndef __NR_cachestat
#define __NR_cachestat 451
#endif
#define FILE_DIRECT_SECTOR 512u

struct cached_range {
    uint64_t offset, bytes;
};

struct cached_pages {
    uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

struct file {
    struct files *files;
    char *path;
    int flags; /* of open */
    uint32_t align;
    struct stat first;
    struct file *next; /* of the set */
    /* Under the set's lock: */
    int fd; /* -1: closed */
    bool forgotten;
    uint64_t used; /* the set's clock */
    /* Raised under the lock, lowered without: 0 under the lock means that nobody reads. */
    atomic_uint uses;
};

struct files {
    uint32_t open_max;
    pthread_mutex_t lock; /* guards all that follows */
    uint32_t open_count;
    uint32_t opening; /* threads that open one now */
    uint32_t file_count;
    uint64_t clock;
    struct file *first;
    int held_fd; /* of files_hold; -1: none */
};

uint32_t files_open_max(void) {
    struct rlimit limit;
    uint64_t most = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur / 4 : 0;
    most = most > UINT16_MAX ? UINT16_MAX : most;
    return most < OPEN_MAX_LEAST ? OPEN_MAX_LEAST : (uint32_t)most;
}

int files_create(uint32_t open_max, struct files **out, struct error *error) {
    assert(open_max > 0);
    struct files *files = calloc(1, sizeof *files);
    if (files == NULL) {
        return error_set(error, -ENOMEM, "no memory for a set of files; free some memory");
    }
    files->open_max = open_max;
    files->held_fd = -1;
    pthread_mutex_init(&files->lock, NULL);
    *out = files;
    return 0;
}

void files_destroy(struct files *files) {
    if (files != NULL) {
        assert(files->first == NULL);
        if (files->held_fd >= 0) {
            (void)close(files->held_fd);
        }
        pthread_mutex_destroy(&files->lock);
        free(files);
    }
}

int files_hold(struct files *files, const char *path) {
    pthread_mutex_lock(&files->lock);
    bool held = files->held_fd >= 0;
    pthread_mutex_unlock(&files->lock);
    if (held) {
        return 0;
    }
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) {
        int code = -errno; /* a folder that may only be read, which others may write */
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            return code == -EROFS ? 0 : code; /* where nobody removes anything */
        }
    }
    while (flock(fd, LOCK_SH) < 0 && errno == EINTR) {
    }
    pthread_mutex_lock(&files->lock);
    held = files->held_fd >= 0;
    files->held_fd = held ? files->held_fd : fd;
    pthread_mutex_unlock(&files->lock);
    if (held) {
        (void)close(fd);
    }
    return 0;
}

uint32_t files_open(const struct files *files) {
    struct files *set = (struct files *)files;
    pthread_mutex_lock(&set->lock);
    uint32_t count = set->open_count;
    pthread_mutex_unlock(&set->lock);
    return count;
}

uint32_t files_wanted(const struct files *files) {
    struct files *set = (struct files *)files;
    pthread_mutex_lock(&set->lock);
    uint32_t most = set->file_count < set->open_max ? set->file_count : set->open_max;
    uint32_t wanted = most > set->open_count ? most - set->open_count : 0;
    pthread_mutex_unlock(&set->lock);
    return wanted;
}

static bool file_same(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Under the lock. */
static void file_close(struct file *file) {
    if (file->fd >= 0) {
        (void)close(file->fd);
        file->fd = -1;
        file->files->open_count--;
    }
}

/* Under the lock: closes what nobody reads and was used longest ago; false when all are read. */
static bool files_evict(struct files *files) {
    struct file *oldest = NULL;
    for (struct file *file = files->first; file != NULL; file = file->next) {
        if (file->fd >= 0 && atomic_load(&file->uses) == 0 &&
            (oldest == NULL || file->used < oldest->used)) {
            oldest = file;
        }
    }
    if (oldest != NULL) {
        file_close(oldest);
    }
    return oldest != NULL;
}

/* Before a file is opened, so that the bound holds meanwhile, too: over it only while more files
 * than that are read at the same time. */
static void files_make_room(struct files *files) {
    pthread_mutex_lock(&files->lock);
    while (files->open_count + files->opening >= files->open_max && files_evict(files)) {
    }
    files->opening++;
    pthread_mutex_unlock(&files->lock);
}

static void files_opened(struct files *files) {
    pthread_mutex_lock(&files->lock);
    files->opening--;
    pthread_mutex_unlock(&files->lock);
}

/* Under the lock. */
static void file_install(struct file *file, int fd) {
    file_close(file);
    file->fd = fd;
    file->forgotten = false;
    file->files->open_count++;
}

/* A descriptor, for which room is kept until `opening` is counted down, or a negative errno. */
static int file_open_path(struct files *files, const char *path, int flags, struct stat *info) {
    files_make_room(files);
    int fd = open(path, flags);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
        pthread_mutex_lock(&files->lock);
        bool evicted = files_evict(files);
        pthread_mutex_unlock(&files->lock);
        fd = evicted ? open(path, flags) : fd;
    }
    int code = fd < 0                   ? -errno
               : fstat(fd, info) < 0    ? -errno
               : S_ISREG(info->st_mode) ? 0
                                        : -EINVAL;
    if (code == 0) {
        return fd;
    }
    files_opened(files);
    if (fd >= 0) {
        (void)close(fd);
    }
    return code;
}

/* Of what is read past the page cache; 0: it cannot be. */
static uint32_t direct_align(int fd) {
#ifdef STATX_DIOALIGN
    struct statx info;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
        (info.stx_mask & STATX_DIOALIGN) != 0) {
        uint32_t align = info.stx_dio_offset_align;
        bool fits = align <= FILE_DIRECT_ALIGN_MAX &&
                    info.stx_dio_mem_align <= FILE_DIRECT_ALIGN_MAX;
        return fits ? align : 0;
    }
#endif
    void *block = aligned_alloc(FILE_DIRECT_ALIGN_MAX, FILE_DIRECT_ALIGN_MAX);
    bool small = block != NULL && pread(fd, block, FILE_DIRECT_SECTOR, FILE_DIRECT_SECTOR) >= 0;
    free(block);
    return small ? FILE_DIRECT_SECTOR : FILE_DIRECT_ALIGN_MAX;
}

static int refuse_file(const char *path, int code, struct error *error) {
    if (code == -EINVAL) {
        return error_set(error, code, "%s: not a regular file; give the prefix of two files", path);
    }
    return error_set(error, code, "%s: %s; check the prefix and the permissions", path,
                     strerror(-code));
}

int file_create(struct files *files, const char *path, bool direct, struct file **out,
                struct error *error) {
    struct file *file = calloc(1, sizeof *file);
    char *copy = strdup(path);
    if (file == NULL || copy == NULL) {
        free(copy);
        free(file);
        return error_set(error, -ENOMEM, "no memory for a file; free some memory");
    }
    file->flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (direct ? O_DIRECT : 0);
    int fd = file_open_path(files, path, file->flags, &file->first);
    file->align = fd < 0 || !direct ? 1 : direct_align(fd);
    if (file->align == 0) {
        files_opened(files);
        (void)close(fd);
        fd = -EOPNOTSUPP;
    }
    if (fd < 0) {
        free(copy);
        free(file);
        return refuse_file(path, fd, error);
    }
    file->files = files;
    file->path = copy;
    file->fd = -1;
    pthread_mutex_lock(&files->lock);
    files->opening--;
    file_install(file, fd);
    file->used = ++files->clock;
    file->next = files->first;
    files->first = file;
    files->file_count++;
    pthread_mutex_unlock(&files->lock);
    *out = file;
    return 0;
}

void file_destroy(struct file *file) {
    if (file == NULL) {
        return;
    }
    assert(atomic_load(&file->uses) == 0);
    pthread_mutex_lock(&file->files->lock);
    struct file **at = &file->files->first;
    while (*at != file) {
        at = &(*at)->next;
    }
    *at = file->next;
    file->files->file_count--;
    file_close(file);
    pthread_mutex_unlock(&file->files->lock);
    free(file->path);
    free(file);
}

const char *file_path(const struct file *file) {
    return file->path;
}

uint64_t file_bytes(const struct file *file) {
    return (uint64_t)file->first.st_size;
}

bool file_is_direct(const struct file *file) {
    return (file->flags & O_DIRECT) != 0;
}

uint32_t file_align(const struct file *file) {
    return file->align;
}

int file_cached(struct file *file, uint64_t offset, uint64_t bytes) {
    struct cached_range range = {offset, bytes};
    struct cached_pages pages = {0};
    int fd = file_acquire(file);
    if (fd < 0) {
        return fd;
    }
    long rc = syscall(__NR_cachestat, fd, &range, &pages, 0);
    int code = rc < 0 ? -errno : 0;
    file_release(file);
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t all = (offset + bytes + page - 1) / page - offset / page;
    return code < 0 ? code : pages.cached >= all;
}

bool file_holds(struct file *file, uint64_t offset) {
    uint8_t byte;
    struct iovec iovec = {&byte, 1};
    int fd = file_acquire(file);
    if (fd < 0) {
        return false;
    }
    bool holds = preadv2(fd, &iovec, 1, (off_t)offset, RWF_NOWAIT) == 1;
    file_release(file);
    return holds;
}

/* Under the lock. */
static int file_use(struct file *file) {
    file->used = ++file->files->clock;
    atomic_fetch_add(&file->uses, 1);
    return file->fd;
}

/* Under the lock; a descriptor that others still read is kept until they are done. */
static bool file_usable(struct file *file) {
    return file->fd >= 0 && (!file->forgotten || atomic_load(&file->uses) > 0);
}

int file_acquire(struct file *file) {
    struct files *files = file->files;
    pthread_mutex_lock(&files->lock);
    int fd = file_usable(file) ? file_use(file) : -1;
    pthread_mutex_unlock(&files->lock);
    if (fd >= 0) {
        return fd;
    }
    struct stat info;
    int opened = file_open_path(files, file->path, file->flags, &info);
    if (opened < 0) {
        return opened;
    }
    if (!file_same(&info, &file->first)) {
        files_opened(files);
        (void)close(opened);
        return -ESTALE;
    }
    pthread_mutex_lock(&files->lock);
    files->opening--;
    if (file_usable(file)) {
        (void)close(opened);
    } else {
        file_install(file, opened);
    }
    fd = file_use(file);
    pthread_mutex_unlock(&files->lock);
    return fd;
}

void file_release(struct file *file) {
    unsigned before = atomic_fetch_sub(&file->uses, 1);
    assert(before > 0);
}

void file_forget(struct file *file) {
    pthread_mutex_lock(&file->files->lock);
    file->forgotten = true;
    pthread_mutex_unlock(&file->files->lock);
}

int file_check(struct file *file) {
    struct stat info;
    if (stat(file->path, &info) < 0) {
        return -errno;
    }
    return file_same(&info, &file->first) ? 0 : -ESTALE;
}
