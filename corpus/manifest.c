/* manifest: see manifest.h. Kept in memory as it is in the file. */
#include "corpus/manifest.h"

#include <assert.h>
#include <endian.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define PIECE_BYTES_MIN 4096u

struct header {
    uint8_t magic[8];
    uint64_t piece_bytes; /* all little endian */
    uint64_t bin_bytes;
    uint8_t fingerprint[16];
    uint64_t hash;
};

static_assert(sizeof(struct header) == 48, "the hashes start at 48");

struct manifest {
    uint32_t piece_bytes;
    uint64_t count;
    bool recheck;
    atomic_uchar *checked; /* one bit per piece */
    struct header header;
    uint64_t hashes[]; /* little endian */
};

static const uint8_t magic[8] = {'B', 'A', 'L', 'L', 'A', 'S', 'T', 1};

static uint64_t piece_count(uint64_t bin_bytes, uint64_t piece_bytes) {
    return bin_bytes / piece_bytes + (bin_bytes % piece_bytes > 0);
}

static int manifest_allocate(uint64_t bin_bytes, uint64_t piece_bytes, struct manifest **out,
                             struct error *error) {
    uint64_t count = piece_count(bin_bytes, piece_bytes);
    struct manifest *manifest = calloc(1, sizeof *manifest + count * sizeof manifest->hashes[0]);
    atomic_uchar *checked = calloc(count / 8 + 1, sizeof *checked);
    if (manifest == NULL || checked == NULL) {
        free(checked);
        free(manifest);
        return error_set(error, -ENOMEM, "no memory for %" PRIu64 " hashes; free some memory",
                         count);
    }
    manifest->piece_bytes = (uint32_t)piece_bytes;
    manifest->count = count;
    manifest->checked = checked;
    *out = manifest;
    return 0;
}

int manifest_create(uint64_t bin_bytes, const uint8_t fingerprint[16], struct manifest **out,
                    struct error *error) {
    int rc = manifest_allocate(bin_bytes, MANIFEST_PIECE_BYTES, out, error);
    if (rc == 0) {
        struct header *header = &(*out)->header;
        memcpy(header->magic, magic, sizeof magic);
        header->piece_bytes = htole64(MANIFEST_PIECE_BYTES);
        header->bin_bytes = htole64(bin_bytes);
        memcpy(header->fingerprint, fingerprint, sizeof header->fingerprint);
    }
    return rc;
}

void manifest_destroy(struct manifest *manifest) {
    if (manifest != NULL) {
        free(manifest->checked);
        free(manifest);
    }
}

uint32_t manifest_piece_bytes(const struct manifest *manifest) {
    return manifest->piece_bytes;
}

uint64_t manifest_hash(const struct manifest *manifest, uint64_t piece) {
    assert(piece < manifest->count);
    return le64toh(manifest->hashes[piece]);
}

void manifest_add(struct manifest *manifest, uint64_t offset, const void *bytes, size_t count) {
    assert(offset % manifest->piece_bytes == 0);
    for (size_t at = 0; at < count; at += manifest->piece_bytes) {
        size_t rest = count - at < manifest->piece_bytes ? count - at : manifest->piece_bytes;
        uint64_t piece = (offset + at) / manifest->piece_bytes;
        assert(piece < manifest->count);
        manifest->hashes[piece] = htole64(XXH3_64bits((const uint8_t *)bytes + at, rest));
    }
}

bool manifest_holds(const struct manifest *manifest, uint64_t offset, const void *bytes,
                    size_t count, uint64_t *bad) {
    assert(offset % manifest->piece_bytes == 0);
    for (size_t at = 0; at < count; at += manifest->piece_bytes) {
        size_t rest = count - at < manifest->piece_bytes ? count - at : manifest->piece_bytes;
        uint64_t hash = XXH3_64bits((const uint8_t *)bytes + at, rest);
        if (hash != manifest_hash(manifest, (offset + at) / manifest->piece_bytes)) {
            *bad = offset + at;
            return false;
        }
    }
    return true;
}

void manifest_recheck(struct manifest *manifest) {
    manifest->recheck = true;
    memset(manifest->checked, 0, manifest->count / 8 + 1);
}

void manifest_note_checked(const struct manifest *manifest, uint64_t piece) {
    assert(piece < manifest->count);
    if (!manifest->recheck) {
        (void)atomic_fetch_or(&manifest->checked[piece / 8], (unsigned char)(1u << piece % 8));
    }
}

static bool manifest_checked(const struct manifest *manifest, uint64_t piece) {
    return piece < manifest->count &&
           (atomic_load(&manifest->checked[piece / 8]) & 1u << piece % 8) != 0;
}

uint64_t manifest_checked_end(const struct manifest *manifest, uint64_t offset, uint64_t limit) {
    while (offset < limit && manifest_checked(manifest, offset / manifest->piece_bytes)) {
        offset = (offset / manifest->piece_bytes + 1) * manifest->piece_bytes;
    }
    return offset < limit ? offset : limit;
}

static uint64_t manifest_own_hash(const struct manifest *manifest) {
    struct header header = manifest->header;
    header.hash = 0;
    uint64_t seed = XXH3_64bits(&header, sizeof header);
    return XXH3_64bits_withSeed(manifest->hashes, manifest->count * sizeof manifest->hashes[0],
                                seed);
}

static int write_all(int fd, const void *bytes, size_t count) {
    for (size_t done = 0; done < count;) {
        ssize_t written = write(fd, (const uint8_t *)bytes + done, count - done);
        if (written < 0 && errno != EINTR) {
            return -errno;
        }
        done += written > 0 ? (size_t)written : 0;
    }
    return 0;
}

static int manifest_write(const struct manifest *manifest, int fd) {
    struct header header = manifest->header;
    header.hash = htole64(manifest_own_hash(manifest));
    int rc = write_all(fd, &header, sizeof header);
    if (rc == 0) {
        rc = write_all(fd, manifest->hashes, manifest->count * sizeof manifest->hashes[0]);
    }
    return rc == 0 && fsync(fd) < 0 ? -errno : rc;
}

int manifest_save(const struct manifest *manifest, const char *path, struct error *error) {
    char *fresh = NULL;
    if (asprintf(&fresh, "%s.new", path) < 0) {
        return error_set(error, -ENOMEM, "no memory for a path; free some memory");
    }
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int rc = fd < 0 ? -errno : manifest_write(manifest, fd);
    if (fd >= 0 && close(fd) < 0 && rc == 0) {
        rc = -errno;
    }
    if (rc == 0 && rename(fresh, path) < 0) {
        rc = -errno;
    }
    if (rc < 0) {
        if (fd >= 0) {
            (void)unlink(fresh);
        }
        error_set(error, rc, "%s: cannot be written (%s); check permissions and space", path,
                  strerror(-rc));
    }
    free(fresh);
    return rc;
}

static int read_all(int fd, void *to, size_t count) {
    for (size_t done = 0; done < count;) {
        ssize_t got = read(fd, (uint8_t *)to + done, count - done);
        if (got == 0) {
            return -ENODATA;
        }
        if (got < 0 && errno != EINTR) {
            return -errno;
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return 0;
}

#define REMEDY "make it again with `ballastctl verify --write-manifest`"

static int check_header(const char *path, const struct header *header, uint64_t file_bytes,
                        struct error *error) {
    uint64_t piece = le64toh(header->piece_bytes), bin = le64toh(header->bin_bytes);
    if (memcmp(header->magic, magic, sizeof magic) != 0) {
        return error_set(error, -EBADMSG, "%s: no manifest of this version at offset 0; " REMEDY,
                         path);
    }
    if (piece < PIECE_BYTES_MIN || piece > MANIFEST_PIECE_BYTES_MAX || (piece & (piece - 1)) != 0) {
        return error_set(error, -EBADMSG, "%s: pieces of %" PRIu64 " bytes at offset 8; " REMEDY,
                         path, piece);
    }
    uint64_t count = piece_count(bin, piece);
    if (file_bytes != sizeof *header + count * sizeof(uint64_t)) {
        return error_set(error, -EBADMSG,
                         "%s: %" PRIu64 " bytes, but %" PRIu64 " pieces take %zu; " REMEDY, path,
                         file_bytes, count, sizeof *header + (size_t)count * sizeof(uint64_t));
    }
    return 0;
}

static int check_dataset(const char *path, const struct header *header, uint64_t bin_bytes,
                         const uint8_t fingerprint[16], struct error *error) {
    if (le64toh(header->bin_bytes) != bin_bytes ||
        memcmp(header->fingerprint, fingerprint, sizeof header->fingerprint) != 0) {
        return error_set(error, -EBADMSG,
                         "%s: the dataset is not the one that this manifest was made of; restore "
                         "its files, or if it was meant to change, " REMEDY,
                         path);
    }
    return 0;
}

static int manifest_read(int fd, const char *path, uint64_t bin_bytes,
                         const uint8_t fingerprint[16], struct manifest **out,
                         struct error *error) {
    struct header header;
    struct stat info;
    int rc = fstat(fd, &info) < 0 ? -errno : read_all(fd, &header, sizeof header);
    if (rc < 0) {
        return error_set(error, rc == -ENODATA ? -EBADMSG : rc, "%s: cannot be read (%s); " REMEDY,
                         path, rc == -ENODATA ? "too short" : strerror(-rc));
    }
    struct manifest *manifest = NULL;
    if ((rc = check_header(path, &header, (uint64_t)info.st_size, error)) < 0 ||
        (rc = check_dataset(path, &header, bin_bytes, fingerprint, error)) < 0 ||
        (rc = manifest_allocate(bin_bytes, le64toh(header.piece_bytes), &manifest, error)) < 0) {
        return rc;
    }
    manifest->header = header;
    rc = read_all(fd, manifest->hashes, manifest->count * sizeof manifest->hashes[0]);
    if (rc < 0 || le64toh(header.hash) != manifest_own_hash(manifest)) {
        manifest_destroy(manifest);
        return error_set(error, -EBADMSG, "%s: damaged; " REMEDY, path);
    }
    *out = manifest;
    return 0;
}

int manifest_open(const char *path, uint64_t bin_bytes, const uint8_t fingerprint[16],
                  struct manifest **out, struct error *error) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        int rc = -errno;
        return error_set(error, rc, "%s: %s; " REMEDY, path, strerror(-rc));
    }
    int rc = manifest_read(fd, path, bin_bytes, fingerprint, out, error);
    (void)close(fd);
    return rc;
}
