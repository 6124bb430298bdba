/* megatron: the index of a Megatron indexed dataset (PREFIX.idx beside PREFIX.bin) and its checks.
 *
 *     offset      field, little endian
 *     0           "MMIDIDX" and two zero bytes
 *     9    u64    version, 1
 *     17   u8     dtype of a token in .bin
 *     18   u64    S, sequences
 *     26   u64    D, entries of the document array
 *     34   i32[S] tokens of each sequence
 *     ..   i64[S] byte offset of each sequence in .bin
 *     ..   i64[D] number of sequences before the end of each document: first 0, last S
 *     ..   i8[S]  modes, of multimodal sets only and announced nowhere
 *
 * fairseq writes the same magic, version, dtype and S, and then, at 26, its lengths and offsets at
 * once: no D, no document array. The file's size tells the two apart for every S and D. What such a
 * file says about lengths, offsets and tokens means the same, and the document array decides
 * nothing here (a sequence is a document, as in Megatron's own GPT reader), so it is opened.
 *
 * Checked at open, in this order; what fails is refused with file, byte offset and remedy:
 *   1  magic (foreign formats are named, see corpus/foreign.h), version, dtype, S and D against the
 *      file's size before anything is multiplied, S < 2^31 as in Megatron's own document ids;
 *   2  the file's size is exactly what S and D ask for, with or without modes;
 *   3  document array: not empty, first 0, never decreasing, last S;
 *   4  lengths: none negative, their bytes within 63 bits;
 *   5  offsets: each the end of the sequence before it, or else (documents in another order than
 *      their tokens) each a multiple of the width, inside .bin, and all together without gap or
 *      overlap, so that a damaged offset cannot pass for an order;
 *   6  .bin is exactly as long as the tokens; a short one is reported with the first damaged
 *      document.
 * A file that fails 3 to 6 is tried with its arrays byte-swapped: a big-endian writer leaves a
 * little-endian header with big-endian arrays, which is then said. Zero-length documents and a set
 * without documents are legal. Whether ids are negative or beyond the vocabulary is verify's.
 *
 * Pure over "read bytes at an offset", so that tests and the fuzzer run it on memory. */
#ifndef BALLAST_CORPUS_MEGATRON_H
#define BALLAST_CORPUS_MEGATRON_H

#include "corpus/document_index.h"

#define MEGATRON_HEADER_BYTES  34u
#define MEGATRON_SEQUENCES_MAX INDEX_DOCUMENTS_MAX

enum megatron_dtype {
    MEGATRON_U8 = 1,
    MEGATRON_I8 = 2, /* refused, as are the two kinds of floats */
    MEGATRON_I16 = 3,
    MEGATRON_I32 = 4,
    MEGATRON_I64 = 5,
    MEGATRON_F64 = 6,
    MEGATRON_F32 = 7,
    MEGATRON_U16 = 8,
    MEGATRON_U32 = 9,
    MEGATRON_U64 = 10,
};

/* Bytes of one token; 0 for a dtype that is refused or unknown. */
uint32_t megatron_width(uint8_t dtype);

/* Writes a Megatron header. */
void megatron_header_encode(uint8_t out[MEGATRON_HEADER_BYTES], enum megatron_dtype dtype,
                            uint64_t sequences, uint64_t entries);

/* An index file, wherever it is. */
struct megatron_file {
    const char *path; /* for messages */
    uint64_t bytes;   /* its size, at most INT64_MAX */
    /* Reads all `count` bytes at `offset`, which lie inside the file; 0 or a negative errno. */
    int (*read)(const struct megatron_file *file, uint64_t offset, void *to, size_t count);
    /* Is shown all lengths (i32), then, where they do not follow from those, all offsets (i64),
     * once each while they are read. NULL: nobody looks. */
    void (*seen)(const struct megatron_file *file, const void *bytes, size_t count);
    void *context;
};

struct megatron_header {
    uint8_t dtype;
    uint64_t sequences;
};

/* What the header says, checked as megatron_index_init does first, with its errors. */
int megatron_header_read(const struct megatron_file *file, struct megatron_header *out,
                         struct error *error);

/* Reads and checks; memory is bounded whatever the number of documents (windows.h). Unless
 * windows_resident, `file` is borrowed until the end. -EBADMSG damaged, -ENOSYS a kind of file that
 * is not read, -ENOMEM, or what file->read returned. On failure `index` is zeroed. */
int megatron_index_init(struct document_index *index, const struct megatron_file *file,
                        const char *bin_path, uint64_t bin_bytes, struct error *error);

#endif
