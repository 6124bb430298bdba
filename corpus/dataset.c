/* dataset: see dataset.h. The files behind a document_index, and the fingerprint of both. */
#include "corpus/dataset.h"
#include "corpus/derived.h"
#include "corpus/files.h"
#include "corpus/foreign.h"
#include "corpus/format.h"
#include "corpus/manifest.h"
#include "corpus/megatron.h"
#include "corpus/volumes.h"

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
    enum format format;
    struct file *index_source; /* Megatron's; NULL once the index is in memory whole */
    struct files *own_files;   /* NULL: the files are the catalog's */
    struct volumes volumes;
    struct manifest *manifest; /* or NULL */
    char *index_path;          /* Megatron's */
    struct megatron_file index_file;
    struct documents documents; /* of the other formats */
    struct derived *derived;    /* likewise */
    struct document_index index;
    XXH3_state_t *hash;                /* of what the fingerprint takes from the index */
    const struct dataset_watch *watch; /* while opening; NULL: nobody looks */
    uint64_t index_read;               /* bytes of Megatron's, while opening */
    uint32_t told_ppm;                 /* of other formats, likewise */
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

/* Of the other formats: how much of files and of what is in them. */
static int tell_load(void *context, uint64_t done, uint64_t all) {
    struct dataset *dataset = context;
    const struct dataset_watch *watch = dataset->watch;
    uint64_t ppm = all == 0 ? 0 : (uint64_t)((unsigned __int128)done * 1000000 / all);
    if (watch == NULL || ppm < dataset->told_ppm) {
        return 0;
    }
    dataset->told_ppm = ppm < 999999 ? (uint32_t)ppm : 999999;
    return watch->progress(watch->context, dataset->told_ppm);
}

static int read_index_file(const struct megatron_file *file, uint64_t offset, void *to,
                           size_t count) {
    struct dataset *dataset = file->context;
    size_t have;
    int fd = file_acquire(dataset->index_source);
    int rc = fd < 0 ? fd : read_all(fd, offset, to, count, &have);
    if (fd >= 0) {
        file_release(dataset->index_source);
    }
    if (rc == 0 && dataset->watch != NULL) {
        rc = tell_watch(dataset, count);
    }
    return rc;
}

static void hash_documents(void *context, const void *bytes, size_t count) {
    const struct dataset *dataset = context;
    XXH3_128bits_update(dataset->hash, bytes, count);
}

static void hash_index(const struct megatron_file *file, const void *bytes, size_t count) {
    hash_documents(file->context, bytes, count);
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

static void hash_u64(XXH3_state_t *state, uint64_t value) {
    value = htole64(value);
    XXH3_128bits_update(state, &value, sizeof value);
}

static bool set_path(char **out, const char *prefix, const char *suffix) {
    if (asprintf(out, "%s.%s", prefix, suffix) < 0) {
        *out = NULL;
    }
    return *out != NULL;
}

/* The fingerprint begins with this, then takes lengths and offsets. */
static int begin_hash(struct dataset *dataset, uint8_t dtype, uint64_t documents,
                      struct error *error) {
    dataset->hash = XXH3_createState();
    if (dataset->hash == NULL) {
        return error_set(error, -ENOMEM, "no memory for a hash; free some memory");
    }
    XXH3_128bits_reset_withSeed(dataset->hash, FINGERPRINT_SEED);
    hash_u64(dataset->hash, dataset->volumes.bytes);
    hash_u64(dataset->hash, dtype);
    hash_u64(dataset->hash, documents);
    return 0;
}

/* Megatron's */

static int open_megatron_files(struct dataset *dataset, struct error *error) {
    char *bin_path = NULL;
    struct file *bin = NULL;
    struct files *files = dataset->volumes.files;
    if (!set_path(&dataset->index_path, dataset->prefix, "idx") ||
        !set_path(&bin_path, dataset->prefix, "bin")) {
        free(bin_path);
        return error_set(error, -ENOMEM, "no memory for a path; free some memory");
    }
    int rc = file_create(files, dataset->index_path, false, &dataset->index_source, error);
    if (rc == -ENOENT) {
        rc = refuse_path(dataset->index_path, rc, foreign_by_path(dataset->prefix), error);
    }
    if (rc == 0) {
        rc = volumes_open(&dataset->volumes, bin_path, &bin, error);
    }
    if (rc == 0) {
        rc = volumes_add(&dataset->volumes, bin, 0, file_bytes(bin), error);
    }
    dataset->index_file = (struct megatron_file){
        .path = dataset->index_path,
        .bytes = rc < 0 ? 0 : file_bytes(dataset->index_source),
        .read = read_index_file,
        .seen = hash_index,
        .context = dataset};
    free(bin_path);
    return rc;
}

static int load_megatron(struct dataset *dataset, struct error *error) {
    struct megatron_header header;
    int rc = open_megatron_files(dataset, error);
    if (rc == 0) {
        rc = megatron_header_read(&dataset->index_file, &header, error);
    }
    if (rc == 0) {
        rc = begin_hash(dataset, header.dtype, header.sequences, error);
    }
    if (rc == 0) {
        rc = megatron_index_init(&dataset->index, &dataset->index_file, dataset_bin_path(dataset),
                                 dataset->volumes.bytes, error);
    }
    if (rc == 0 && windows_resident(dataset->index.windows)) {
        file_destroy(dataset->index_source);
        dataset->index_source = NULL;
    }
    return rc;
}

/* Of the others */

static int load_format(struct dataset *dataset, const struct format_options *options,
                       struct error *error) {
    int rc = derived_create(options->derived_dir, options->derived_bytes_max,
                            dataset->volumes.files, &dataset->derived, error);
    if (rc < 0) {
        return rc;
    }
    struct format_load load = {.path = dataset->prefix,
                               .options = options,
                               .volumes = &dataset->volumes,
                               .documents = &dataset->documents,
                               .derived = dataset->derived,
                               .progress = tell_load,
                               .context = dataset,
                               .error = error};
    rc = format_load(&load, dataset->format);
    if (rc == 0 && load.dtype == 0) { /* no file at all */
        rc = format_set_dtype(&load, options->dtype != 0 ? options->dtype : MEGATRON_U16,
                              dataset->prefix);
    }
    if (rc == 0) {
        rc = begin_hash(dataset, load.dtype, dataset->documents.count, error);
    }
    return rc < 0 ? rc
                  : documents_index(&dataset->documents, load.dtype, hash_documents, dataset,
                                    &dataset->index, error);
}

int dataset_open(const char *name, const char *prefix, struct dataset **out, struct error *error) {
    return dataset_open_as(name, prefix, &format_options_default, NULL, NULL, out, error);
}

/* Without a '/' at its end. */
static char *copy_prefix(const char *prefix) {
    size_t chars = strlen(prefix);
    while (chars > 1 && prefix[chars - 1] == '/') {
        chars--;
    }
    return strndup(prefix, chars);
}

static int load_dataset(struct dataset *dataset, const struct format_options *options,
                        struct files *files, struct error *error) {
    int rc = files == NULL ? files_create(2, &dataset->own_files, error) : 0;
    if (rc < 0) {
        return rc;
    }
    volumes_init(&dataset->volumes, files == NULL ? dataset->own_files : files);
    dataset->format = options->format == FORMAT_AUTO ? format_detect(dataset->prefix)
                                                     : options->format;
    return dataset->format == FORMAT_MEGATRON ? load_megatron(dataset, error)
                                              : load_format(dataset, options, error);
}

int dataset_open_as(const char *name, const char *prefix, const struct format_options *options,
                    struct files *files, const struct dataset_watch *watch, struct dataset **out,
                    struct error *error) {
    struct dataset *dataset = calloc(1, sizeof *dataset);
    int rc = -ENOMEM;
    if (dataset == NULL) {
        error_set(error, rc, "no memory; free some memory");
        goto fail;
    }
    documents_init(&dataset->documents, 0);
    pthread_mutex_init(&dataset->fingerprint.mutex, NULL);
    dataset->name = strdup(name);
    dataset->prefix = copy_prefix(prefix);
    if (dataset->name == NULL || dataset->prefix == NULL) {
        error_set(error, rc, "no memory; free some memory");
        goto fail;
    }
    dataset->watch = watch;
    rc = load_dataset(dataset, options, files, error);
    dataset->watch = NULL;
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
    document_index_deinit(&dataset->index);
    documents_deinit(&dataset->documents);
    manifest_destroy(dataset->manifest);
    volumes_deinit(&dataset->volumes);
    derived_destroy(dataset->derived);
    file_destroy(dataset->index_source);
    files_destroy(dataset->own_files);
    XXH3_freeState(dataset->hash);
    pthread_mutex_destroy(&dataset->fingerprint.mutex);
    free(dataset->index_path);
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

enum format dataset_format(const struct dataset *dataset) {
    return dataset->format;
}

const char *dataset_bin_path(const struct dataset *dataset) {
    return dataset->volumes.count == 0 ? dataset->prefix
                                       : file_path(dataset->volumes.items[0].file);
}

const struct volumes *dataset_volumes(const struct dataset *dataset) {
    return &dataset->volumes;
}

const char *dataset_locate(const struct dataset *dataset, uint64_t address, uint64_t *offset) {
    *offset = address;
    if (dataset->volumes.count == 0) {
        return dataset->prefix;
    }
    const struct volume *volume = volumes_find(&dataset->volumes, address);
    *offset = volume_offset(volume, address);
    return file_path(volume->file);
}

bool dataset_read_mapped(struct dataset *dataset) {
    return volumes_read_mapped(&dataset->volumes);
}

int dataset_read_direct(struct dataset *dataset, bool chosen, struct error *error) {
    return volumes_read_direct(&dataset->volumes, chosen, error);
}

uint64_t dataset_documents(const struct dataset *dataset) {
    return dataset->index.documents;
}

uint64_t dataset_tokens(const struct dataset *dataset) {
    return dataset->index.tokens;
}

uint64_t dataset_bin_bytes(const struct dataset *dataset) {
    return dataset->volumes.bytes;
}

bool dataset_dense(const struct dataset *dataset) {
    return !dataset->documents.gapped &&
           dataset->index.tokens * dataset->index.width == dataset->volumes.bytes;
}

uint32_t dataset_width(const struct dataset *dataset) {
    return dataset->index.width;
}

uint8_t dataset_dtype(const struct dataset *dataset) {
    return dataset->index.dtype;
}

uint32_t dataset_length(const struct dataset *dataset, uint64_t i) {
    assert(i < dataset->index.documents);
    return document_index_length(&dataset->index, i);
}

uint64_t dataset_offset(const struct dataset *dataset, uint64_t i) {
    return document_index_offset(&dataset->index, i);
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

int dataset_read(const struct dataset *dataset, uint64_t address, void *to, size_t count,
                 size_t *have) {
    return volumes_read(&dataset->volumes, address, to, count, have);
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
                         dataset_locate(dataset, from, &from), count, from, strerror(-rc));
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
        rc = manifest_open(path, volumes_manifest_bytes(&dataset->volumes), fingerprint,
                           &dataset->manifest, error);
    }
    if (rc == 0) {
        volumes_use_manifest(&dataset->volumes, dataset->manifest);
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
