/* catalog: see catalog.h. */
#include "corpus/catalog.h"
#include "corpus/domains.h"
#include "corpus/files.h"
#include "corpus/megatron.h"
#include "corpus/volumes.h"

#include <assert.h>
#include <endian.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
#include <xxhash.h>

#define PROBES 16u /* of each dataset */

struct slot {
    struct dataset *dataset;
    uint64_t weight;
};

struct catalog {
    struct files *files;
    struct domains *domains; /* or NULL */
    uint32_t count;
    struct slot slots[];
};

static int check_entries(const struct catalog_entry *entries, uint32_t count, struct error *error) {
    if (count == 0 || count > CATALOG_DATASETS_MAX) {
        return error_set(error, -EINVAL, "%" PRIu32 " datasets; give between 1 and %u", count,
                         CATALOG_DATASETS_MAX);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (entries[i].weight == 0 || entries[i].weight > CATALOG_WEIGHT_MAX) {
            return error_set(error, -EINVAL,
                             "corpus '%s': weight %" PRIu64 "; give a whole number from 1 to %u",
                             entries[i].name, entries[i].weight, CATALOG_WEIGHT_MAX);
        }
    }
    return 0;
}

/* From the progress of one dataset to that of all. */
struct share {
    const struct dataset_watch *watch;
    uint32_t done, count;
};

static int share_progress(void *context, uint32_t ppm) {
    const struct share *share = context;
    uint64_t all = (uint64_t)share->done * 1000000 + ppm;
    return share->watch->progress(share->watch->context, (uint32_t)(all / share->count));
}

int catalog_open(const struct catalog_entry *entries, uint32_t count, struct catalog **out,
                 struct error *error) {
    return catalog_open_as(entries, count, &format_options_default, NULL, out, error);
}

int catalog_open_as(const struct catalog_entry *entries, uint32_t count,
                    const struct format_options *format, const struct dataset_watch *watch,
                    struct catalog **out, struct error *error) {
    struct share share = {.watch = watch, .count = count};
    const struct dataset_watch part = {.progress = share_progress, .context = &share};
    int rc = check_entries(entries, count, error);
    if (rc < 0) {
        return rc;
    }
    struct catalog *catalog = calloc(1, sizeof *catalog + count * sizeof catalog->slots[0]);
    if (catalog == NULL) {
        return error_set(error, -ENOMEM, "no memory for %" PRIu32 " datasets", count);
    }
    rc = files_create(files_open_max(), &catalog->files, error);
    if (rc < 0) {
        free(catalog);
        return rc;
    }
    for (; catalog->count < count; catalog->count++) {
        const struct catalog_entry *entry = &entries[catalog->count];
        struct slot *slot = &catalog->slots[catalog->count];
        share.done = catalog->count;
        rc = dataset_open_as(entry->name, entry->prefix, format, catalog->files,
                             watch == NULL ? NULL : &part, &slot->dataset, error);
        if (rc < 0) {
            catalog_close(catalog);
            return rc;
        }
        slot->weight = entry->weight;
    }
    *out = catalog;
    return 0;
}

void catalog_close(struct catalog *catalog) {
    if (catalog == NULL) {
        return;
    }
    domains_close(catalog->domains);
    while (catalog->count > 0) {
        dataset_close(catalog->slots[--catalog->count].dataset);
    }
    files_destroy(catalog->files);
    free(catalog);
}

int catalog_use_manifests(struct catalog *catalog, enum catalog_manifests manifests,
                          struct error *error) {
    int count = 0;
    for (uint32_t i = 0; manifests != MANIFESTS_OFF && i < catalog->count; i++) {
        struct error reason = {0};
        int rc = dataset_use_manifest(catalog->slots[i].dataset, &reason);
        if (rc < 0 && !(rc == -ENOENT && manifests == MANIFESTS_AUTO)) {
            if (error != NULL) {
                *error = reason;
            }
            return rc;
        }
        count += rc == 0;
    }
    return count;
}

void catalog_recheck(struct catalog *catalog) {
    for (uint32_t i = 0; i < catalog->count; i++) {
        dataset_recheck(catalog->slots[i].dataset);
    }
}

static bool catalog_outgrows_memory(const struct catalog *catalog) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < catalog->count; i++) {
        bytes += dataset_bin_bytes(catalog->slots[i].dataset);
    }
    return bytes > (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 2;
}

uint32_t catalog_read_direct(struct catalog *catalog, enum catalog_direct direct, bool again,
                             struct error *why) {
    uint32_t count = 0;
    bool chosen = direct == CATALOG_DIRECT_AUTO;
    *why = (struct error){0};
    if (direct == CATALOG_BUFFERED || (chosen && again && !catalog_outgrows_memory(catalog))) {
        return 0;
    }
    for (uint32_t i = 0; i < catalog->count; i++) {
        struct error error = {0};
        if (dataset_read_direct(catalog->slots[i].dataset, chosen, &error) == 0) {
            count++;
        } else if (why->code == 0) {
            *why = error;
        }
    }
    return count;
}

uint32_t catalog_read_mapped(struct catalog *catalog) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < catalog->count; i++) {
        count += dataset_read_mapped(catalog->slots[i].dataset);
    }
    return count;
}

/* Whether the byte at this address would have to come from storage: 1, else 0. */
static uint32_t probe_cold(const struct dataset *dataset, uint64_t address) {
    const struct volume *volume = volumes_find(dataset_volumes(dataset), address);
    uint64_t offset = volume_offset(volume, address);
    int cached = file_cached(volume->file, offset, 1);
    return cached < 0 ? !file_holds(volume->file, offset) : !cached;
}

bool catalog_is_cold(const struct catalog *catalog) {
    uint32_t cold = 0, tried = 0;
    for (uint32_t i = 0; i < catalog->count; i++) {
        const struct dataset *dataset = catalog->slots[i].dataset;
        uint64_t step = dataset_bin_bytes(dataset) / PROBES;
        const struct volumes *volumes = dataset_volumes(dataset);
        bool direct = step > 0 && volumes->items->direct != NULL && !volumes->chosen;
        for (uint32_t probe = 0; step > 0 && !direct && probe < PROBES; probe++) {
            cold += probe_cold(dataset, step * probe + step / 2);
            tried++;
        }
    }
    return 2 * cold > tried || tried == 0;
}

uint32_t catalog_count(const struct catalog *catalog) {
    return catalog->count;
}

const struct dataset *catalog_dataset(const struct catalog *catalog, uint32_t i) {
    assert(i < catalog->count);
    return catalog->slots[i].dataset;
}

const char *catalog_name(const void *catalog, uint32_t i) {
    return dataset_name(catalog_dataset(catalog, i));
}

int catalog_use_domains(struct catalog *catalog, const struct domain_entry *entries,
                        struct error *error) {
    assert(catalog->domains == NULL);
    return domains_open(catalog, entries, catalog->files, &catalog->domains, error);
}

const struct domains *catalog_domains(const struct catalog *catalog) {
    return catalog->domains;
}

uint64_t catalog_weight(const struct catalog *catalog, uint32_t i) {
    assert(i < catalog->count);
    return catalog->slots[i].weight;
}

uint32_t catalog_token_bytes(const struct catalog *catalog) {
    for (uint32_t i = 0; i < catalog->count; i++) {
        uint8_t dtype = dataset_dtype(catalog->slots[i].dataset);
        if (dtype != MEGATRON_U8 && dtype != MEGATRON_U16) {
            return 4;
        }
    }
    return 2;
}

int catalog_fingerprint(const struct catalog *catalog, uint32_t count, uint8_t out[16],
                        struct error *error) {
    uint8_t bytes[CATALOG_DATASETS_MAX * 16];
    XXH128_canonical_t canonical;
    assert(count <= catalog->count);
    for (uint32_t i = 0; i < count; i++) {
        int rc = dataset_fingerprint(catalog->slots[i].dataset, bytes + 16 * i, error);
        if (rc < 0) {
            return rc;
        }
    }
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, 16 * (size_t)count));
    memcpy(out, canonical.digest, sizeof canonical.digest);
    return 0;
}

uint32_t catalog_descriptors_wanted(const struct catalog *catalog) {
    return files_wanted(catalog->files);
}
