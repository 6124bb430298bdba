/* document_index: where the documents of a dataset lie and how long they are, whatever format said
 * so. Offsets are bytes of the dataset's address space (corpus/volumes.h); for one file without
 * anything but tokens that is the file. Immutable once filled, any thread. */
#ifndef BALLAST_CORPUS_DOCUMENT_INDEX_H
#define BALLAST_CORPUS_DOCUMENT_INDEX_H

#include "corpus/windows.h"

#include <string.h>

#define INDEX_DOCUMENTS_MAX                                                                        \
    INT32_MAX /* as many as Megatron's own ids number, whatever the format */

struct document_index {
    uint8_t dtype;    /* Megatron's code (corpus/megatron.h) */
    uint32_t width;   /* bytes of a token */
    uint32_t longest; /* tokens of the longest document; 0 without any */
    uint64_t documents;
    uint64_t tokens;
    struct windows *windows; /* lengths and offsets; of the index */
};

/* Tokens of document i, and the byte offset of its first one; i < documents. */
static inline uint32_t document_index_length(const struct document_index *index, uint64_t i) {
    return windows_length(index->windows, i);
}

static inline uint64_t document_index_offset(const struct document_index *index, uint64_t i) {
    return windows_offset(index->windows, i);
}

/* Takes a zeroed one. */
static inline void document_index_deinit(struct document_index *index) {
    windows_destroy(index->windows);
    memset(index, 0, sizeof *index);
}

#endif
