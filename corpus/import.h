/* import: a tree of text files to a Megatron indexed dataset, byte-level tokens (0-255, EOD 256).
 *
 * Writes PREFIX.bin and PREFIX.idx through temporary names, fsync, rename, so that a prefix is
 * either whole or absent: the index appears last, and an old index goes before its .bin does.
 * Files are taken in byte-wise path order of the whole relative path; one file is one document, its
 * bytes as u16 and the EOD. Symbolic links are not followed (but the root may be one). */
#ifndef BALLAST_CORPUS_IMPORT_H
#define BALLAST_CORPUS_IMPORT_H

#include "planner/error.h"

#include <stdbool.h>
#include <stdint.h>

#define IMPORT_EOD 256u

struct import_options {
    const char *root;     /* folder, or one file */
    const char *prefix;   /* output, without suffix; its folder exists */
    const char *suffixes; /* comma-separated name endings to take ("txt,pod,html", with or without
                             their dot; .gz not counted when it is decompressed); NULL: all */
    bool decompress_gz;   /* read NAME.gz through gunzip */
    bool force;           /* overwrite an existing prefix */
};

struct import_progress {
    uint64_t files, files_total; /* read so far, and in all */
    uint64_t documents, tokens;
    uint64_t bytes;   /* of text */
    uint64_t skipped; /* empty files, and symbolic links with a matching name */
};

/* `progress` (may be NULL) is called at most every 200 ms and at the end. -EEXIST without force
 * when either file of the prefix exists, -ENOENT when no file matches, or what failed, with its
 * path; nothing is left behind then. */
int import_text(const struct import_options *options,
                void (*progress)(const struct import_progress *progress, void *context),
                void *context, struct import_progress *result, struct error *error);

#endif
