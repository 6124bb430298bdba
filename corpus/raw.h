/* raw: tokens without an index, cut into documents at an end-of-text id.
 *
 * Finding the ends means reading everything once; they are kept as a derived file (derived.h):
 * u64[documents], tokens before the end of each. */
#ifndef BALLAST_CORPUS_RAW_H
#define BALLAST_CORPUS_RAW_H

#include "corpus/format.h"

struct raw {
    struct format_load *load;
    const char *path;
    struct file *file; /* taken by raw_add_volume */
    uint64_t start;    /* offset of the first token */
    uint64_t tokens;
    uint32_t eod;
    bool leads; /* the id begins documents instead of ending them */
};

/* The file becomes a volume, which must be the last thing before its documents are added. */
int raw_add_volume(struct raw *raw);

/* Documents by the end-of-text id, FORMAT_EOD_NONE: one. Tokens behind the last id are a document
 * of their own, but for a tail of zeros: a writer that crashed. With `open` (in, out) documents may
 * begin in the file before and go on in the next: tokens of the one that is open. NULL: not. */
int raw_add_documents(struct raw *raw, uint64_t *open);

#endif
