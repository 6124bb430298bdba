/* corpus_files: makes Megatron datasets for tests, in memory and on disk, sound or damaged. */
#ifndef BALLAST_TESTS_CORPUS_FILES_H
#define BALLAST_TESTS_CORPUS_FILES_H

#include "corpus/megatron.h"

#include <stdbool.h>

struct image_options {
    uint8_t dtype;
    uint32_t documents;
    const uint32_t *lengths;
    const uint64_t *offsets; /* bytes; NULL: where the lengths put them */
    const uint64_t *entries; /* NULL: every sequence a document, documents + 1 entries */
    uint32_t entry_count;    /* of `entries` */
    bool fairseq;
    bool modes;
    bool big_endian;
};

/* Bytes of the index, written to `out` if they fit `capacity`. */
size_t image_build(const struct image_options *options, uint8_t *out, size_t capacity);

/* Bytes of all tokens. */
uint64_t image_bin_bytes(const struct image_options *options);

/* A file in memory for megatron_index_init; aborts when it reads outside. */
struct image {
    struct megatron_file file;
    const uint8_t *bytes;
};
void image_open(struct image *image, const uint8_t *bytes, size_t count);

/* Whether every document lies inside .bin and no two share a byte; reads every accessor. */
bool index_is_consistent(const struct document_index *index, uint64_t bin_bytes);

/* A new folder under /tmp. Removed with all in it by test_folder_remove. */
void test_folder_make(char path[64]);
void test_folder_remove(const char *path);

void file_write(const char *path, const void *bytes, size_t count);
/* Whole file, heap; *count bytes. */
uint8_t *file_read_whole(const char *path, size_t *count);

/* Token j of document i in the datasets that dataset_write makes: below 200. */
uint64_t dataset_token(uint64_t i, uint64_t j);

/* Writes PREFIX.idx and PREFIX.bin. */
void dataset_write(const char *prefix, const struct image_options *options);

#endif
