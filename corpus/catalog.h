/* catalog: the datasets of a job, in config order. Immutable after open, any thread. */
#ifndef BALLAST_CORPUS_CATALOG_H
#define BALLAST_CORPUS_CATALOG_H

#include "corpus/dataset.h"

#include <stdbool.h>

#define CATALOG_DATASETS_MAX 1024u
#define CATALOG_WEIGHT_MAX   UINT32_MAX

struct catalog_entry {
    const char *name;   /* section name in the config */
    const char *prefix; /* path without .idx/.bin, or what other formats have */
    uint64_t weight;    /* 1..CATALOG_WEIGHT_MAX; shares are weight over the sum of weights */
};

struct catalog;
struct domains;
struct domain_entry;

/* Opens all or none. `entries` are copied. The same prefix may stand in several: they are different
 * datasets, each read in an order of its own. -EINVAL for a count or weight out of range, else what
 * dataset_open refused first. */
int catalog_open(const struct catalog_entry *entries, uint32_t count, struct catalog **out,
                 struct error *error);

/* The same with what files do not say by themselves; `watch` (NULL: nobody) is told how far all of
 * them are and may end it. */
int catalog_open_as(const struct catalog_entry *entries, uint32_t count,
                    const struct format_options *format, const struct dataset_watch *watch,
                    struct catalog **out, struct error *error);
void catalog_close(struct catalog *catalog);

enum catalog_manifests { MANIFESTS_OFF = 0, MANIFESTS_AUTO = 1, MANIFESTS_REQUIRED = 2 };

/* See dataset_use_manifest; AUTO passes over datasets without one. Returns for how many. */
int catalog_use_manifests(struct catalog *catalog, enum catalog_manifests manifests,
                          struct error *error);

/* From now on what was found whole is checked again each time it is read. */
void catalog_recheck(struct catalog *catalog);

enum catalog_direct { CATALOG_BUFFERED = 0, CATALOG_DIRECT_AUTO = 1, CATALOG_DIRECT = 2 };

/* How many more descriptors its files may come to need. Any thread. */
uint32_t catalog_descriptors_wanted(const struct catalog *catalog);

/* Whether batches are read past the page cache (O_DIRECT); before any reader has the files. AUTO:
 * what is not in it; but none where the cache is to keep the files for the next time: they are read
 * `again`, and all .bin together are at most half of this machine's memory. Returns the number of
 * datasets that are; `why` gets the reason of the first that cannot (code 0: none). */
uint32_t catalog_read_direct(struct catalog *catalog, enum catalog_direct direct, bool again,
                             struct error *why);

/* What is in the page cache is taken from a mapping (mapped.h) from now on, of datasets whose files
 * that suits; before any reader has the files. Returns how many these are. */
uint32_t catalog_read_mapped(struct catalog *catalog);

/* Tries whether token files are in the page cache: true when most of a few places of each are not,
 * or the kernel cannot say. */
bool catalog_is_cold(const struct catalog *catalog);

uint32_t catalog_count(const struct catalog *catalog);
const struct dataset *catalog_dataset(const struct catalog *catalog, uint32_t i);
const char *catalog_name(const void *catalog, uint32_t i); /* of a dataset */
uint64_t catalog_weight(const struct catalog *catalog, uint32_t i);

/* 2 if the ids of every dataset fit 16 bits by their dtype (u8, u16), else 4. */
uint32_t catalog_token_bytes(const struct catalog *catalog);

/* What the documents' domains are (corpus/domains.h), an entry for each dataset, borrowed for the
 * call. Once. Errors of domains_open. */
int catalog_use_domains(struct catalog *catalog, const struct domain_entry *entries,
                        struct error *error);

/* NULL where nobody said so. */
const struct domains *catalog_domains(const struct catalog *catalog);

/* Fingerprint over those of the first `count` datasets, in order; names and weights are not in it.
 */
int catalog_fingerprint(const struct catalog *catalog, uint32_t count, uint8_t out[16],
                        struct error *error);

#endif
