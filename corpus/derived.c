/* derived: see derived.h. */
#include "corpus/derived.h"

#include <endian.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

struct derived {
    char *folder; /* NULL: temporary, not made yet */
    bool temporary;
    bool made;
    uint64_t bytes, bytes_max;
    char **paths; /* of a temporary folder, to be removed */
    size_t path_count;
};

int derived_create(const char *folder, uint64_t bytes_max, struct derived **out,
                   struct error *error) {
    struct derived *derived = calloc(1, sizeof *derived);
    char *copy = folder == NULL ? NULL : strdup(folder);
    if (derived == NULL || (folder != NULL && copy == NULL)) {
        free(copy);
        free(derived);
        return error_set(error, -ENOMEM, "no memory; free some memory");
    }
    *derived = (struct derived){
        .folder = copy, .temporary = folder == NULL, .bytes_max = bytes_max};
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
    derived->made = true;
    return 0;
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
    XXH3_128bits_update(state, numbers, sizeof numbers);
    hash_text(state, whole);
    hash_text(state, derivation->what);
    XXH128_hash_t hash = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    if (asprintf(out, "%s/%016" PRIx64 "%016" PRIx64, derived->folder, (uint64_t)hash.high64,
                 (uint64_t)hash.low64) < 0) {
        return error_set(error, -ENOMEM, "no memory for a path; free some memory");
    }
    return 0;
}

static int derived_write(const struct derivation *derivation, const char *path, bool durable,
                         struct error *error) {
    char *fresh = NULL;
    if (asprintf(&fresh, "%s.%ld", path, (long)getpid()) < 0) {
        return error_set(error, -ENOMEM, "no memory for a path; free some memory");
    }
    int fd = open(fresh, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int rc = fd < 0 ? error_set(error, -errno,
                                "%s: cannot be written (%s), for what is made of %s; check "
                                "permissions and space",
                                fresh, strerror(errno), derivation->source)
                    : derivation->make(derivation->context, fd, error);
    if (rc == 0 && ((durable && fsync(fd) < 0) || rename(fresh, path) < 0)) {
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
