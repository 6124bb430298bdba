/* hashes: what MosaicML streaming wrote down that its shards hash to, compared.
 *
 * index.json may name, for a shard and for what it was compressed to, hashes by algorithm: names of
 * Python's hashlib or xxhash, hex digests of whole files. Opening does not look at them, for they
 * cost reading everything; ballastctl verify does. */
#ifndef BALLAST_CORPUS_HASHES_H
#define BALLAST_CORPUS_HASHES_H

#include "corpus/dataset.h"

struct hashes_result {
    uint32_t files;     /* of which at least one hash was compared */
    uint32_t unknown;   /* hashes by an algorithm that is not known here */
    char algorithm[32]; /* the first of these */
};

/* Compares all hashes that stand in the index.json of a dataset of format MDS, of files that are
 * there: shards, decompressed ones too, and their compressed forms. -EBADMSG naming file, algorithm
 * and both digests; what reading said. */
int hashes_verify(const struct dataset *dataset, struct hashes_result *out, struct error *error);

#endif
