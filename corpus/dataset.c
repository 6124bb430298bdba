/* dataset: see dataset.h. The files behind a megatron_index, and the fingerprint of both. */
#include "corpus/dataset.h"
#include "corpus/files.h"
#include "corpus/foreign.h"
#include "corpus/manifest.h"
#include "corpus/megatron.h"

#include <assert.h>
#include <endian.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define SAMPLES          64u
#define SAMPLE_BYTES     4096u
#define FINGERPRINT_SEED UINT64_C(0x62616c6c61737431) /* "ballast1" */

/* The only thing that changes after open, once and under its mutex. */
struct fingerprint {
    pthread_mutex_t mutex;
    bool known;
    uint8_t bytes[16];
};

struct dataset {
    char *name;
    char *prefix;
    char *bin_path;
    char *index_path;
    int index_fd;            /* -1 once the index is in memory whole */
    struct files *own_files; /* NULL: the files are the catalog's */
    struct files *files;     /* the set of bin */
    struct file *bin;
    struct file *direct;       /* the same past the page cache, or NULL */
    struct manifest *manifest; /* or NULL */
    struct megatron_file index_file;
    struct megatron_index index;
    XXH3_state_t *hash;                /* of what the fingerprint takes from the index */
    const struct dataset_watch *watch; /* while opening; NULL: nobody looks */
    uint64_t index_read;               /* bytes, while opening */
    struct fingerprint fingerprint;
};

/* Reads all of it; -EIO at the end of the file. *have: bytes that came. */
static int read_all(int fd, uint64_t offset, void *to, size_t count, size_t *have) {
    *have = 0;
    while (*have < count) {
        ssize_t got = pread(fd, (uint8_t *)to + *have, count - *have, (off_t)(offset + *have));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return got == 0 ? -EIO : -errno;
        }
        *have += (size_t)got;
    }
    return 0;
}

/* In millionths; a second pass over offsets is not foreseen, so never all. */
static int tell_watch(struct dataset *dataset, size_t count) {
    const struct dataset_watch *watch = dataset->watch;
    dataset->index_read += count;
    if (watch == NULL || dataset->index_file.bytes == 0) {
        return 0;
    }
    uint64_t ppm = dataset->index_read * 1000 / dataset->index_file.bytes * 1000;
    return watch->progress(watch->context, ppm < 999999 ? (uint32_t)ppm : 999999);
}

static int read_index_file(const struct megatron_file *file, uint64_t offset, void *to,
                           size_t count) {
    struct dataset *dataset = file->context;
    size_t have;
    int rc = read_all(dataset->index_fd, offset, to, count, &have);
    if (rc == 0 && dataset->watch != NULL) {
        rc = tell_watch(dataset, count);
    }
    return rc;
}

static void hash_index(const struct megatron_file *file, const void *bytes, size_t count) {
    const struct dataset *dataset = file->context;
    XXH3_128bits_update(dataset->hash, bytes, count);
}

static int refuse_path(const char *path, int code, const struct foreign_format *foreign,
                       struct error *error) {
    if (foreign != NULL) {
        return error_set(error, code, "%s: no such file, but this is found: %s; %s", path,
                         foreign->name, foreign->remedy);
    }
    return error_set(error, code, "%s: %s; check the prefix and the permissions", path,
                     strerror(-code));
}

/* A regular file, for reading. */
static int open_file(const char *path, int *fd, uint64_t *bytes, struct error *error) {
    struct stat info;
    int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (opened < 0) {
        return refuse_path(path, -errno, NULL, error);
    }
    if (fstat(opened, &info) < 0 || !S_ISREG(info.st_mode)) {
        close(opened);
        return error_set(error, -EINVAL, "%s: not a regular file; give the prefix of two files",
                         path);
    }
    *fd = opened;
    *bytes = (uint64_t)info.st_size;
    return 0;
}

static void hash_u64(XXH3_state_t *state, uint64_t value) {
    value = htole64(value);
    XXH3_128bits_update(state, &value, sizeof value);
}

/* The fingerprint begins with what the header says, then takes what is seen of the index. */
static int begin_hash(struct dataset *dataset, struct error *error) {
    const struct megatron_file *file = &dataset->index_file;
    struct megatron_header header;
    dataset->hash = XXH3_createState();
    if (dataset->hash == NULL) {
        return error_set(error, -ENOMEM, "no memory for a hash; free some memory");
    }
    int rc = megatron_header_read(file, &header, error);
    if (rc == 0) {
        XXH3_128bits_reset_withSeed(dataset->hash, FINGERPRINT_SEED);
        hash_u64(dataset->hash, file_bytes(dataset->bin));
        hash_u64(dataset->hash, header.dtype);
        hash_u64(dataset->hash, header.sequences);
    }
    return rc;
}

static int open_files(struct dataset *dataset, struct files *files, struct error *error) {
    uint64_t bytes = 0;
    int rc = open_file(dataset->index_path, &dataset->index_fd, &bytes, error);
    if (rc == -ENOENT) {
        rc = refuse_path(dataset->index_path, rc, foreign_by_path(dataset->prefix), error);
    }
    if (rc == 0) {
        rc = files == NULL ? files_create(2, &dataset->own_files, error) : 0;
    }
    if (rc == 0) {
        dataset->files = files == NULL ? dataset->own_files : files;
        rc = file_create(dataset->files, dataset->bin_path, false, &dataset->bin, error);
    }
    dataset->index_file = (struct megatron_file){.path = dataset->index_path,
                                                 .bytes = bytes,
                                                 .read = read_index_file,
                                                 .seen = hash_index,
                                                 .context = dataset};
    return rc;
}

static int load_index(struct dataset *dataset, struct files *files,
                      const struct dataset_watch *watch, struct error *error) {
    int rc = open_files(dataset, files, error);
    if (rc == 0) {
        rc = begin_hash(dataset, error);
    }
    dataset->watch = watch;
    if (rc == 0) {
        rc = megatron_index_init(&dataset->index, &dataset->index_file, dataset->bin_path,
                                 file_bytes(dataset->bin), error);
    }
    dataset->watch = NULL;
    if (rc == 0 && windows_resident(dataset->index.windows)) {
        close(dataset->index_fd);
        dataset->index_fd = -1;
    }
    return rc;
}

static bool set_path(char **out, const char *prefix, const char *suffix) {
    if (asprintf(out, "%s.%s", prefix, suffix) < 0) {
        *out = NULL;
    }
    return *out != NULL;
}

int dataset_open(const char *name, const char *prefix, struct dataset **out, struct error *error) {
    return dataset_open_watched(name, prefix, NULL, NULL, out, error);
}

int dataset_open_watched(const char *name, const char *prefix, struct files *files,
                         const struct dataset_watch *watch, struct dataset **out,
                         struct error *error) {
    struct dataset *dataset = calloc(1, sizeof *dataset);
    int rc = -ENOMEM;
    if (dataset == NULL) {
        error_set(error, rc, "no memory; free some memory");
        goto fail;
    }
    dataset->index_fd = -1;
    pthread_mutex_init(&dataset->fingerprint.mutex, NULL);
    dataset->name = strdup(name);
    dataset->prefix = strdup(prefix);
    if (dataset->name == NULL || dataset->prefix == NULL ||
        !set_path(&dataset->bin_path, prefix, "bin") ||
        !set_path(&dataset->index_path, prefix, "idx")) {
        error_set(error, rc, "no memory; free some memory");
        goto fail;
    }
    rc = load_index(dataset, files, watch, error);
    if (rc < 0) {
        goto fail;
    }
    *out = dataset;
    return 0;

fail:
    dataset_close(dataset);
    error_prefix(error, "open corpus '%s'", name);
    return rc;
}

void dataset_close(struct dataset *dataset) {
    if (dataset == NULL) {
        return;
    }
    megatron_index_deinit(&dataset->index);
    manifest_destroy(dataset->manifest);
    file_destroy(dataset->direct);
    file_destroy(dataset->bin);
    files_destroy(dataset->own_files);
    if (dataset->index_fd >= 0) {
        close(dataset->index_fd);
    }
    XXH3_freeState(dataset->hash);
    pthread_mutex_destroy(&dataset->fingerprint.mutex);
    free(dataset->index_path);
    free(dataset->bin_path);
    free(dataset->prefix);
    free(dataset->name);
    free(dataset);
}

const char *dataset_name(const struct dataset *dataset) {
    return dataset->name;
}

const char *dataset_prefix(const struct dataset *dataset) {
    return dataset->prefix;
}

const char *dataset_bin_path(const struct dataset *dataset) {
    return dataset->bin_path;
}

struct file *dataset_bin(const struct dataset *dataset) {
    return dataset->direct != NULL ? dataset->direct : dataset->bin;
}

int dataset_read_direct(struct dataset *dataset, struct error *error) {
    int rc = file_create(dataset->files, dataset->bin_path, true, &dataset->direct, error);
    if (rc == 0 && file_check(dataset->bin) < 0) {
        rc = error_set(error, -ESTALE, "%s: replaced while it was opened; try again",
                       dataset->bin_path);
    }
    return rc;
}

uint64_t dataset_documents(const struct dataset *dataset) {
    return dataset->index.documents;
}

uint64_t dataset_tokens(const struct dataset *dataset) {
    return dataset->index.tokens;
}

uint64_t dataset_bin_bytes(const struct dataset *dataset) {
    return file_bytes(dataset->bin);
}

uint32_t dataset_width(const struct dataset *dataset) {
    return dataset->index.width;
}

uint8_t dataset_dtype(const struct dataset *dataset) {
    return dataset->index.dtype;
}

uint32_t dataset_length(const struct dataset *dataset, uint64_t i) {
    assert(i < dataset->index.documents);
    return megatron_index_length(&dataset->index, i);
}

uint64_t dataset_offset(const struct dataset *dataset, uint64_t i) {
    return megatron_index_offset(&dataset->index, i);
}

uint64_t dataset_place(const struct dataset *dataset, uint64_t i, uint32_t *length) {
    return windows_place(dataset->index.windows, i, length);
}

uint32_t dataset_longest(const struct dataset *dataset) {
    return dataset->index.longest;
}

int dataset_failed(const struct dataset *dataset, struct error *error) {
    int code = windows_failed(dataset->index.windows, error);
    if (code < 0 && error != NULL) {
        (void)error_prefix(error, "corpus '%s'", dataset->name);
    }
    return code;
}

int dataset_read(const struct dataset *dataset, uint64_t offset, void *to, size_t count,
                 size_t *have) {
    *have = 0;
    int fd = file_acquire(dataset->bin);
    if (fd < 0) {
        return fd;
    }
    int rc = read_all(fd, offset, to, count, have);
    file_release(dataset->bin);
    return rc;
}

/* One sample from each 64th of the file, at a keyed place in it; all of it when it is small. */
static int hash_sample(XXH3_state_t *state, const struct dataset *dataset, uint32_t i,
                       struct error *error) {
    uint8_t bytes[SAMPLE_BYTES];
    unsigned __int128 size = dataset_bin_bytes(dataset);
    uint64_t from = (uint64_t)(size * i / SAMPLES);
    uint64_t count = (uint64_t)(size * (i + 1) / SAMPLES) - from;
    if (count > SAMPLE_BYTES) {
        uint64_t key = FINGERPRINT_SEED + i;
        from += XXH3_64bits(&key, sizeof key) % (count - SAMPLE_BYTES + 1);
        count = SAMPLE_BYTES;
    }
    size_t have;
    int rc = dataset_read(dataset, from, bytes, (size_t)count, &have);
    if (rc < 0) {
        return error_set(error, rc,
                         "%s: cannot read %" PRIu64 " bytes at offset %" PRIu64
                         " for the fingerprint (%s); check the disk and copy the file again",
                         dataset->bin_path, count, from, strerror(-rc));
    }
    XXH3_128bits_update(state, bytes, (size_t)count);
    return 0;
}

static int compute_fingerprint(const struct dataset *dataset, uint8_t out[16],
                               struct error *error) {
    XXH128_canonical_t canonical;
    XXH3_state_t *state = XXH3_createState();
    int rc = 0;
    if (state == NULL) {
        return error_set(error, -ENOMEM, "no memory for a hash; free some memory");
    }
    XXH3_copyState(state, dataset->hash);
    for (uint32_t i = 0; i < SAMPLES && rc == 0; i++) {
        rc = hash_sample(state, dataset, i, error);
    }
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
    memcpy(out, canonical.digest, sizeof canonical.digest);
    XXH3_freeState(state);
    return rc;
}

int dataset_fingerprint(const struct dataset *dataset, uint8_t out[16], struct error *error) {
    struct fingerprint *memo = (struct fingerprint *)&dataset->fingerprint;
    int rc = 0;
    pthread_mutex_lock(&memo->mutex);
    if (!memo->known) {
        rc = compute_fingerprint(dataset, memo->bytes, error);
        memo->known = rc == 0;
    }
    if (rc == 0) {
        memcpy(out, memo->bytes, sizeof memo->bytes);
    }
    pthread_mutex_unlock(&memo->mutex);
    if (rc < 0) {
        error_prefix(error, "corpus '%s'", dataset->name);
    }
    return rc;
}

int dataset_use_manifest(struct dataset *dataset, struct error *error) {
    uint8_t fingerprint[16];
    char *path = NULL;
    if (!set_path(&path, dataset->prefix, "manifest")) {
        return error_set(error, -ENOMEM, "no memory for a path; free some memory");
    }
    int rc = access(path, F_OK) < 0
                 ? error_set(error, -errno,
                             "%s: %s; make it with `ballastctl verify --write-manifest %s`", path,
                             strerror(errno), dataset->prefix)
                 : dataset_fingerprint(dataset, fingerprint, error);
    if (rc == 0) {
        rc = manifest_open(path, dataset_bin_bytes(dataset), fingerprint, &dataset->manifest,
                           error);
    }
    if (rc < 0) {
        error_prefix(error, "corpus '%s'", dataset->name);
    }
    free(path);
    return rc;
}

void dataset_recheck(struct dataset *dataset) {
    if (dataset->manifest != NULL) {
        manifest_recheck(dataset->manifest);
    }
}

const struct manifest *dataset_manifest(const struct dataset *dataset) {
    return dataset->manifest;
}
