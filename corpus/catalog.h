/* catalog: the datasets of a job, in config order. Immutable after open, any thread. */
#ifndef BALLAST_CORPUS_CATALOG_H
#define BALLAST_CORPUS_CATALOG_H

#include "corpus/dataset.h"

#define CATALOG_DATASETS_MAX 1024u

struct catalog_entry {
    const char *name;   /* section name in the config */
    const char *prefix; /* path without .idx/.bin */
    uint64_t weight;    /* > 0; shares are weight over the sum of weights */
};

struct catalog;

/* Opens all or none. `entries` are copied. */
int catalog_open(const struct catalog_entry *entries, uint32_t count, struct catalog **out,
                 struct error *error);
void catalog_close(struct catalog *catalog);

uint32_t catalog_count(const struct catalog *catalog);
const struct dataset *catalog_dataset(const struct catalog *catalog, uint32_t i);
uint64_t catalog_weight(const struct catalog *catalog, uint32_t i);

/* 2 if the ids of every dataset fit 16 bits by their dtype (u8, u16), else 4. */
uint32_t catalog_token_bytes(const struct catalog *catalog);

/* Fingerprint over the datasets' fingerprints, in order. */
int catalog_fingerprint(const struct catalog *catalog, uint8_t out[16], struct error *error);

#endif
