/* hashes: see hashes.h. */
#include "corpus/hashes.h"

#include "corpus/chunks.h"
#include "corpus/files.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <nettle/nettle-meta.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>
#include <xxhash.h>

#define BLOCK_BYTES      (1u << 20)
#define DIGEST_BYTES_MAX 64u

struct hasher {
    const struct nettle_hash *nettle; /* NULL: one of the next */
    void *nettle_state;
    XXH32_state_t *xxh32;
    XXH64_state_t *xxh64;
    XXH3_state_t *xxh3;
    bool wide; /* of xxh3, 128 bits */
};

struct comparison {
    struct format_load load;
    struct hashes_result result;
    uint8_t *block;
};

/* False: not known. */
static bool hasher_find(struct hasher *hasher, const char *name) {
    *hasher = (struct hasher){0};
    if (strcmp(name, "xxh32") == 0) {
        hasher->xxh32 = XXH32_createState();
    } else if (strcmp(name, "xxh64") == 0) {
        hasher->xxh64 = XXH64_createState();
    } else if (strncmp(name, "xxh3_", 5) == 0 || strcmp(name, "xxh128") == 0) {
        hasher->xxh3 = XXH3_createState();
        hasher->wide = strcmp(name, "xxh3_64") != 0;
    } else {
        hasher->nettle = nettle_lookup_hash(name);
        return hasher->nettle != NULL && hasher->nettle->digest_size <= DIGEST_BYTES_MAX;
    }
    return true;
}

/* False: out of memory. */
static bool hasher_begin(struct hasher *hasher) {
    if (hasher->nettle != NULL) {
        hasher->nettle_state = malloc(hasher->nettle->context_size);
        if (hasher->nettle_state != NULL) {
            hasher->nettle->init(hasher->nettle_state);
        }
        return hasher->nettle_state != NULL;
    }
    return (hasher->xxh32 != NULL && XXH32_reset(hasher->xxh32, 0) == XXH_OK) ||
           (hasher->xxh64 != NULL && XXH64_reset(hasher->xxh64, 0) == XXH_OK) ||
           (hasher->xxh3 != NULL && (hasher->wide ? XXH3_128bits_reset(hasher->xxh3)
                                                  : XXH3_64bits_reset(hasher->xxh3)) == XXH_OK);
}

static void hasher_add(struct hasher *hasher, const uint8_t *bytes, size_t count) {
    if (hasher->nettle != NULL) {
        hasher->nettle->update(hasher->nettle_state, count, bytes);
    } else if (hasher->xxh32 != NULL) {
        XXH32_update(hasher->xxh32, bytes, count);
    } else if (hasher->xxh64 != NULL) {
        XXH64_update(hasher->xxh64, bytes, count);
    } else if (hasher->wide) {
        XXH3_128bits_update(hasher->xxh3, bytes, count);
    } else {
        XXH3_64bits_update(hasher->xxh3, bytes, count);
    }
}

/* Returns the digest's bytes. */
static size_t hasher_end(struct hasher *hasher, uint8_t digest[DIGEST_BYTES_MAX]) {
    if (hasher->nettle != NULL) {
        hasher->nettle->digest(hasher->nettle_state, hasher->nettle->digest_size, digest);
        return hasher->nettle->digest_size;
    }
    if (hasher->xxh32 != NULL) {
        XXH32_canonicalFromHash((XXH32_canonical_t *)digest, XXH32_digest(hasher->xxh32));
        return sizeof(XXH32_canonical_t);
    }
    if (hasher->wide) {
        XXH128_canonicalFromHash((XXH128_canonical_t *)digest, XXH3_128bits_digest(hasher->xxh3));
        return sizeof(XXH128_canonical_t);
    }
    XXH64_canonicalFromHash((XXH64_canonical_t *)digest, hasher->xxh64 != NULL
                                                             ? XXH64_digest(hasher->xxh64)
                                                             : XXH3_64bits_digest(hasher->xxh3));
    return sizeof(XXH64_canonical_t);
}

static void hasher_free(struct hasher *hasher) {
    free(hasher->nettle_state);
    XXH32_freeState(hasher->xxh32);
    XXH64_freeState(hasher->xxh64);
    XXH3_freeState(hasher->xxh3);
}

static int hash_file(struct comparison *comparison, struct file *file, struct hasher *hasher) {
    uint64_t bytes = file_bytes(file);
    int rc = 0;
    for (uint64_t at = 0; rc == 0 && at < bytes; at += BLOCK_BYTES) {
        size_t count = bytes - at < BLOCK_BYTES ? (size_t)(bytes - at) : BLOCK_BYTES;
        rc = format_read(&comparison->load, file, at, comparison->block, count);
        if (rc == 0) {
            hasher_add(hasher, comparison->block, count);
        }
    }
    return rc;
}

static int compare_digest(const struct comparison *comparison, const char *path, const char *name,
                          struct hasher *hasher, const char *written) {
    uint8_t digest[DIGEST_BYTES_MAX];
    char text[2 * DIGEST_BYTES_MAX + 1] = "";
    size_t bytes = hasher_end(hasher, digest);
    for (size_t i = 0; i < bytes; i++) {
        (void)snprintf(text + 2 * i, 3, "%02x", digest[i]);
    }
    return strcasecmp(text, written) == 0
               ? 0
               : error_set(comparison->load.error, -EBADMSG,
                           "%s: its %s is %s, index.json says %.128s; the file is damaged, or of "
                           "another run than index.json: copy it again",
                           path, name, text, written);
}

static int compare_hash(struct comparison *comparison, struct file *file, const char *name,
                        const char *written) {
    struct hasher hasher;
    if (!hasher_find(&hasher, name)) {
        if (comparison->result.unknown++ == 0) {
            (void)snprintf(comparison->result.algorithm, sizeof comparison->result.algorithm, "%s",
                           name);
        }
        return 0;
    }
    int rc = hasher_begin(&hasher) ? hash_file(comparison, file, &hasher)
                                   : error_set(comparison->load.error, -ENOMEM,
                                               "no memory for a hash; free some memory");
    if (rc == 0) {
        rc = compare_digest(comparison, file_path(file), name, &hasher, written);
    }
    hasher_free(&hasher);
    return rc == 0 ? 1 : rc;
}

/* All hashes of one file, {"xxh64": "0123456789abcdef"}. */
static int compare_file(struct comparison *comparison, const char *path, const json_t *hashes) {
    struct file *file = NULL;
    const char *name;
    json_t *written;
    int rc = 0, compared = 0;
    if (json_object_size(hashes) == 0) {
        return 0;
    }
    rc = volumes_open(comparison->load.volumes, path, &file, comparison->load.error);
    json_object_foreach((json_t *)hashes, name, written) {
        if (rc >= 0 && json_is_string(written)) {
            rc = compare_hash(comparison, file, name, json_string_value(written));
            compared += rc == 1;
        }
    }
    file_destroy(file);
    comparison->result.files += compared > 0;
    return rc < 0 ? rc : 0;
}

/* What the shard was compressed to, where it still lies beside. */
static int compare_zip(struct comparison *comparison, const json_t *zip) {
    char path[PATH_MAX];
    const char *name = json_string_value(json_object_get(zip, "basename"));
    int chars = name == NULL ? 0
                             : snprintf(path, sizeof path, "%s/%s", comparison->load.path, name);
    if (chars <= 0 || chars >= (int)sizeof path || access(path, F_OK) < 0) {
        return 0;
    }
    return compare_file(comparison, path, json_object_get(zip, "hashes"));
}

/* Opening has seen that shards and volumes are the same, one by one. */
static int compare_shards(struct comparison *comparison, const struct dataset *dataset,
                          const json_t *shards) {
    const struct volumes *volumes = dataset_volumes(dataset);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_array_size(shards) && i < volumes->count; i++) {
        const json_t *shard = json_array_get(shards, i);
        rc = compare_file(comparison, file_path(volumes->items[i].file),
                          json_object_get(json_object_get(shard, "raw_data"), "hashes"));
        if (rc == 0) {
            rc = compare_zip(comparison, json_object_get(shard, "zip_data"));
        }
    }
    return rc;
}

int hashes_verify(const struct dataset *dataset, struct hashes_result *out, struct error *error) {
    struct volumes volumes;
    struct comparison comparison = {
        .load = {.path = dataset_prefix(dataset), .volumes = &volumes, .error = error}};
    json_t *index = NULL;
    assert(dataset_format(dataset) == FORMAT_MDS);
    volumes_init(&volumes, dataset_volumes(dataset)->files);
    comparison.block = malloc(BLOCK_BYTES);
    int rc = comparison.block != NULL
                 ? chunks_read_index(&comparison.load, &index)
                 : error_set(error, -ENOMEM, "no memory to read with; free some memory");
    if (rc == 0) {
        rc = compare_shards(&comparison, dataset, json_object_get(index, "shards"));
    }
    json_decref(index);
    free(comparison.block);
    volumes_deinit(&volumes);
    if (rc == 0) {
        *out = comparison.result;
    }
    return rc;
}
