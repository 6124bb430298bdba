/* derived: see derived.h. */
#include "corpus/derived.h"

#include "corpus/files.h"

#include <dirent.h>
#include <endian.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define LOCK_NAME       "lock"
#define SOURCE_CHARS    32u /* of a name: path and what was done */
#define NAME_CHARS      49u
#define DAY_S           86400
#define FRESH_TRIES_MAX 8u
#define SECOND_NS       INT64_C(1000000000)

struct derived {
    char *folder; /* NULL: temporary, not made yet */
    bool temporary;
    bool made;
    struct files *files; /* as long as which the folder is in use */
    uint64_t bytes, bytes_max;
    char **paths; /* of a temporary folder, to be removed */
    size_t path_count;
};

int derived_create(const char *folder, uint64_t bytes_max, struct files *files,
                   struct derived **out, struct error *error) {
    struct derived *derived = calloc(1, sizeof *derived);
    char *copy = folder == NULL ? NULL : strdup(folder);
    if (derived == NULL || (folder != NULL && copy == NULL)) {
        free(copy);
        free(derived);
        return error_set(error, -ENOMEM, "no memory; free some memory");
    }
    *derived = (struct derived){
        .folder = copy, .temporary = folder == NULL, .files = files, .bytes_max = bytes_max};
    *out = derived;
    return 0;
}

void derived_destroy(struct derived *derived) {
    if (derived == NULL) {
        return;
    }
    for (size_t i = 0; i < derived->path_count; i++) {
        (void)unlink(derived->paths[i]);
        free(derived->paths[i]);
    }
    if (derived->temporary && derived->made) {
        (void)rmdir(derived->folder);
    }
    free(derived->paths);
    free(derived->folder);
    free(derived);
}

/* The folder and the one around it, which is a state directory that nobody has opened yet. */
static bool make_folders(const struct derived *derived) {
    if (mkdir(derived->folder, 0750) == 0 || errno == EEXIST) {
        return true;
    }
    char *around = strdup(derived->folder);
    if (errno == ENOENT && around != NULL) {
        (void)mkdir(dirname(around), 0750);
    }
    free(around);
    return mkdir(derived->folder, 0750) == 0;
}

/* Nobody removes anything from now on. */
static int derived_hold(const struct derived *derived, struct error *error) {
    char path[PATH_MAX];
    int chars = snprintf(path, sizeof path, "%s/" LOCK_NAME, derived->folder);
    int rc = chars < (int)sizeof path ? files_hold(derived->files, path) : -ENAMETOOLONG;
    return rc == 0 ? 0
                   : error_set(error, rc,
                               "%s/" LOCK_NAME ": cannot be opened (%s); check the permissions of "
                               "the folder, or set corpus.derived to another",
                               derived->folder, strerror(-rc));
}

static int derived_make_folder(struct derived *derived, struct error *error) {
    if (derived->made) {
        return 0;
    }
    if (derived->temporary) {
        const char *base = getenv("TMPDIR");
        base = base == NULL || base[0] == '\0' ? "/var/tmp" : base;
        if (asprintf(&derived->folder, "%s/ballast-derived-XXXXXX", base) < 0) {
            derived->folder = NULL;
            return error_set(error, -ENOMEM, "no memory for a path; free some memory");
        }
    }
    bool made = derived->temporary ? mkdtemp(derived->folder) != NULL : make_folders(derived);
    if (!made) {
        return error_set(error, -errno,
                         "%s: cannot be made (%s), for decompressed chunks and found documents; "
                         "check its permissions",
                         derived->folder, strerror(errno));
    }
    int rc = derived->temporary ? 0 : derived_hold(derived, error);
    derived->made = rc == 0;
    return rc;
}

static void hash_text(XXH3_state_t *state, const char *text) {
    XXH3_128bits_update(state, text, strlen(text) + 1);
}

static int derived_name(const struct derived *derived, const struct derivation *derivation,
                        char **out, struct error *error) {
    char whole[PATH_MAX];
    struct stat info;
    if (stat(derivation->source, &info) < 0 || realpath(derivation->source, whole) == NULL) {
        return error_set(error, -errno, "%s: %s; check the path and its permissions",
                         derivation->source, strerror(errno));
    }
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL) {
        return error_set(error, -ENOMEM, "no memory for a hash; free some memory");
    }
    const uint64_t numbers[] = {htole64((uint64_t)info.st_size),
                                htole64((uint64_t)info.st_mtim.tv_sec),
                                htole64((uint64_t)info.st_mtim.tv_nsec)};
    XXH3_128bits_reset(state);
    hash_text(state, whole);
    hash_text(state, derivation->what);
    XXH128_hash_t source = XXH3_128bits_digest(state);
    XXH3_128bits_update(state, numbers, sizeof numbers);
    XXH128_hash_t version = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    if (asprintf(out, "%s/%016" PRIx64 "%016" PRIx64 "-%016" PRIx64, derived->folder,
                 (uint64_t)source.high64, (uint64_t)source.low64, (uint64_t)version.high64) < 0) {
        return error_set(error, -ENOMEM, "no memory for a path; free some memory");
    }
    return 0;
}

/* A file of one's own: daemons in containers that share the folder may well have the same pid. */
static int derived_open_fresh(const char *path, char **fresh) {
    int fd = -EEXIST;
    *fresh = NULL;
    for (uint32_t i = 0; fd == -EEXIST && i < FRESH_TRIES_MAX; i++) {
        uint64_t number = 0;
        free(*fresh);
        if (getrandom(&number, sizeof number, 0) < 0 ||
            asprintf(fresh, "%s.%" PRIu64, path, number) < 0) {
            *fresh = NULL;
            return -ENOMEM;
        }
        fd = open(*fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        fd = fd < 0 ? -errno : fd;
    }
    return fd;
}

/* The file stays the one of whoever was first, who may read it already. */
static int derived_publish(const char *fresh, const char *path, uint64_t bytes) {
    struct stat info;
    if (link(fresh, path) == 0 || (errno == EEXIST && stat(path, &info) == 0 &&
                                   (bytes == 0 || (uint64_t)info.st_size == bytes))) {
        (void)unlink(fresh);
        return 0;
    }
    return rename(fresh, path); /* over one of another size, or without hard links */
}

static int derived_write(const struct derivation *derivation, const char *path, bool durable,
                         struct error *error) {
    char *fresh;
    int fd = derived_open_fresh(path, &fresh);
    if (fresh == NULL) {
        return error_set(error, -ENOMEM, "no memory for a path; free some memory");
    }
    int rc = fd < 0 ? error_set(error, fd,
                                "%s: cannot be written (%s), for what is made of %s; check "
                                "permissions and space",
                                fresh, strerror(-fd), derivation->source)
                    : derivation->make(derivation->context, fd, error);
    if (rc == 0 &&
        ((durable && fsync(fd) < 0) || derived_publish(fresh, path, derivation->bytes) < 0)) {
        rc = error_set(error, -errno, "%s: cannot be written (%s); check permissions and space",
                       path, strerror(errno));
    }
    if (fd >= 0) {
        (void)close(fd);
        if (rc < 0) {
            (void)unlink(fresh);
        }
    }
    free(fresh);
    return rc;
}

static int derived_count(struct derived *derived, const char *source, uint64_t bytes,
                         struct error *error) {
    if (derived->bytes_max > 0 && bytes > derived->bytes_max - derived->bytes) {
        return error_set(error, -EFBIG,
                         "%s: what is kept of this dataset in %s would be over %" PRIu64
                         " bytes; raise limits.derived_gb, or decompress the files with unzstd",
                         source, derived->folder, derived->bytes_max);
    }
    derived->bytes += bytes;
    return 0;
}

/* A temporary file is removed at the end. */
static int derived_note(struct derived *derived, const char *path, struct error *error) {
    if (!derived->temporary) {
        return 0;
    }
    char **paths = reallocarray(derived->paths, derived->path_count + 1, sizeof *paths);
    if (paths != NULL) {
        derived->paths = paths;
        paths[derived->path_count] = strdup(path);
    }
    if (paths == NULL || paths[derived->path_count] == NULL) {
        (void)unlink(path);
        return error_set(error, -ENOMEM, "no memory for a path; free some memory");
    }
    derived->path_count++;
    return 0;
}

int derived_get(struct derived *derived, const struct derivation *derivation, char **out,
                struct error *error) {
    struct stat info = {0};
    char *path = NULL;
    int rc = derived_make_folder(derived, error);
    if (rc == 0) {
        rc = derived_name(derived, derivation, &path, error);
    }
    bool there = rc == 0 && stat(path, &info) == 0 &&
                 (derivation->bytes == 0 || (uint64_t)info.st_size == derivation->bytes);
    if (rc == 0 && !there) {
        rc = derivation->bytes == 0
                 ? 0
                 : derived_count(derived, derivation->source, derivation->bytes, error);
        if (rc == 0) {
            rc = derived_write(derivation, path, !derived->temporary, error);
        }
        if (rc == 0) {
            rc = derived_note(derived, path, error);
        }
    }
    if (there) {
        const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_OMIT}};
        (void)utimensat(AT_FDCWD, path, times, 0);
    }
    if (rc == 0 && (there || derivation->bytes == 0) && stat(path, &info) == 0) {
        rc = derived_count(derived, derivation->source, (uint64_t)info.st_size, error);
    }
    if (rc < 0) {
        free(path);
        return rc;
    }
    *out = path;
    return 0;
}

/* What is kept too long */

struct kept {
    char name[NAME_CHARS + 24];
    bool orphan; /* nobody will ask for it: half written, or by a name of an older version */
    uint64_t bytes;
    int64_t asked_ns; /* since 1970 */
};

struct kept_list {
    struct kept *items;
    size_t count, capacity;
};

/* SOURCE-VERSION, or that with ".NUMBER" while it is written; older versions had SOURCE alone. */
static bool name_is_derived(const char *name) {
    static const char digits[] = "0123456789abcdef";
    size_t chars = strlen(name);
    if (chars == SOURCE_CHARS) {
        return strspn(name, digits) == SOURCE_CHARS;
    }
    if (chars < NAME_CHARS || chars >= sizeof(((struct kept *)NULL)->name) ||
        strspn(name, digits) != SOURCE_CHARS || name[SOURCE_CHARS] != '-' ||
        strspn(name + SOURCE_CHARS + 1, digits) != NAME_CHARS - SOURCE_CHARS - 1) {
        return false;
    }
    const char *rest = name + NAME_CHARS;
    return *rest == '\0' ||
           (*rest == '.' && rest[1] != '\0' && strspn(rest + 1, "0123456789") == strlen(rest + 1));
}

static int kept_add(struct kept_list *list, int folder, const char *name, struct error *error) {
    struct stat info;
    if (!name_is_derived(name) || fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) < 0 ||
        !S_ISREG(info.st_mode)) {
        return 0;
    }
    if (list->count == list->capacity) {
        size_t capacity = list->capacity == 0 ? 64 : 2 * list->capacity;
        struct kept *items = reallocarray(list->items, capacity, sizeof *items);
        if (items == NULL) {
            return error_set(error, -ENOMEM, "no memory for names; free some memory");
        }
        list->items = items;
        list->capacity = capacity;
    }
    struct kept *kept = &list->items[list->count++];
    *kept = (struct kept){.orphan = strlen(name) != NAME_CHARS,
                          .bytes = (uint64_t)info.st_size,
                          .asked_ns = info.st_atim.tv_sec * SECOND_NS + info.st_atim.tv_nsec};
    (void)snprintf(kept->name, sizeof kept->name, "%s", name);
    return 0;
}

/* By source, what was asked for last in front. */
static int kept_compare(const void *a, const void *b) {
    const struct kept *x = a, *y = b;
    int source = memcmp(x->name, y->name, SOURCE_CHARS);
    int whole = x->orphan - y->orphan;
    return source != 0                  ? source
           : whole != 0                 ? whole
           : x->asked_ns != y->asked_ns ? (x->asked_ns < y->asked_ns ? 1 : -1)
                                        : strcmp(x->name, y->name);
}

static int list_kept(const char *path, DIR *folder, struct kept_list *list, struct error *error) {
    int rc = 0;
    const struct dirent *entry;
    while (rc == 0 && (errno = 0, entry = readdir(folder)) != NULL) {
        rc = kept_add(list, dirfd(folder), entry->d_name, error);
    }
    if (rc == 0 && errno != 0) {
        rc = error_set(error, -errno, "%s: cannot be read (%s); check its disk", path,
                       strerror(errno));
    }
    if (rc == 0 && list->count > 0) {
        qsort(list->items, list->count, sizeof *list->items, kept_compare);
    }
    return rc;
}

static bool kept_is_stale(const struct kept_list *list, size_t i, int64_t now_ns, uint32_t days) {
    const struct kept *kept = &list->items[i];
    bool superseded = i > 0 && memcmp(kept->name, kept[-1].name, SOURCE_CHARS) == 0;
    return kept->orphan || superseded ||
           (days > 0 && kept->asked_ns < now_ns - (int64_t)days * DAY_S * SECOND_NS);
}

/* `lock` is prune_lock's. */
static int prune_listed(const char *path, int folder, const struct kept_list *list, uint32_t days,
                        bool remove, int lock, struct derived_usage *usage, struct error *error) {
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    int64_t now_ns = now.tv_sec * SECOND_NS + now.tv_nsec;
    for (size_t i = 0; i < list->count; i++) {
        const struct kept *kept = &list->items[i];
        int64_t age_ns = now_ns - kept->asked_ns;
        uint64_t age_s = age_ns > 0 ? (uint64_t)(age_ns / SECOND_NS) : 0;
        bool stale = kept_is_stale(list, i, now_ns, days);
        int code = !stale || !remove || usage->in_use    ? 0
                   : lock < 0                            ? lock
                   : unlinkat(folder, kept->name, 0) < 0 ? -errno
                                                         : 0;
        if (code < 0 && code != -ENOENT) {
            return error_set(error, code,
                             "%s/%s: cannot be removed (%s); check permissions, or prune where the "
                             "folder may be written",
                             path, kept->name, strerror(-code));
        }
        usage->files++;
        usage->bytes += kept->bytes;
        usage->stale_files += stale;
        usage->stale_bytes += stale ? kept->bytes : 0;
        usage->oldest_s = age_s > usage->oldest_s ? age_s : usage->oldest_s;
    }
    usage->removed = remove && !usage->in_use;
    return 0;
}

/* Has the folder alone while the result (a descriptor) is open; -EWOULDBLOCK where others use it,
 * or the errno of what hinders. */
static int prune_lock(int folder) {
    int fd = openat(folder, LOCK_NAME, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0) {
        int code = -errno;
        (void)close(fd);
        return code;
    }
    return fd < 0 ? -errno : fd;
}

int derived_prune(const char *folder, uint32_t days, bool remove, struct derived_usage *usage,
                  struct error *error) {
    struct kept_list list = {0};
    *usage = (struct derived_usage){0};
    DIR *opened = opendir(folder);
    if (opened == NULL) {
        return errno == ENOENT
                   ? 0
                   : error_set(error, -errno, "%s: cannot be read (%s); check its permissions",
                               folder, strerror(errno));
    }
    int lock = prune_lock(dirfd(opened));
    usage->in_use = lock == -EWOULDBLOCK;
    int rc = list_kept(folder, opened, &list, error);
    if (rc == 0) {
        rc = prune_listed(folder, dirfd(opened), &list, days, remove, lock, usage, error);
    }
    if (lock >= 0) {
        (void)close(lock);
    }
    (void)closedir(opened);
    free(list.items);
    return rc;
}
