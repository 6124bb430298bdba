/* import: a tree of text files to a Megatron indexed dataset, byte-level tokens (0-255, EOD 256).
 *
 * Writes PREFIX.bin and PREFIX.idx through temporary names, fsync, rename, so that a prefix is
 * either whole or absent. Files are taken in byte-wise path order; one file is one document. */
#ifndef BALLAST_CORPUS_IMPORT_H
#define BALLAST_CORPUS_IMPORT_H

#include "planner/error.h"

#include <stdbool.h>
#include <stdint.h>

struct import_options {
    const char *root;   /* folder, or one file */
    const char *prefix; /* output, without suffix */
    const char
        *suffixes;      /* comma-separated file name endings to take ("txt,pod,html"); NULL: all */
    bool decompress_gz; /* read NAME.gz through gunzip */
    bool force;         /* overwrite an existing prefix */
};

struct import_progress {
    uint64_t files, files_total, documents, tokens, bytes, skipped;
};

/* `progress` (may be NULL) is called at most every 200 ms and at the end. */
int import_text(const struct import_options *options,
                void (*progress)(const struct import_progress *progress, void *context),
                void *context, struct import_progress *result, struct error *error);

#endif
