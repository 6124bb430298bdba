/* corpus_files: see corpus_files.h. */
#include "tests/unit/corpus_files.h"

#include <assert.h>
#include <endian.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct writer {
    uint8_t *out;
    size_t capacity;
    size_t count;
};

static void put(struct writer *writer, uint64_t value, size_t width, bool big_endian) {
    for (size_t i = 0; i < width; i++) {
        size_t shift = 8 * (big_endian ? width - 1 - i : i);
        if (writer->count < writer->capacity) {
            writer->out[writer->count] = (uint8_t)(value >> shift);
        }
        writer->count++;
    }
}

static uint64_t entry_of(const struct image_options *options, uint32_t i) {
    return options->entries == NULL ? i : options->entries[i];
}

size_t image_build(const struct image_options *options, uint8_t *out, size_t capacity) {
    struct writer writer = {.out = out, .capacity = capacity};
    uint32_t entries = options->entries == NULL ? options->documents + 1 : options->entry_count;
    uint32_t width = megatron_width(options->dtype);
    uint64_t offset = 0;
    uint8_t header[MEGATRON_HEADER_BYTES];
    megatron_header_encode(header, options->dtype, options->documents, entries);
    for (size_t i = 0; i < (options->fairseq ? 26u : sizeof header); i++) {
        put(&writer, header[i], 1, false);
    }
    for (uint32_t i = 0; i < options->documents; i++) {
        put(&writer, options->lengths[i], 4, options->big_endian);
    }
    for (uint32_t i = 0; i < options->documents; i++) {
        put(&writer, options->offsets == NULL ? offset : options->offsets[i], 8,
            options->big_endian);
        offset += (uint64_t)options->lengths[i] * width;
    }
    for (uint32_t i = 0; i < entries && !options->fairseq; i++) {
        put(&writer, entry_of(options, i), 8, options->big_endian);
    }
    for (uint32_t i = 0; i < options->documents && options->modes; i++) {
        put(&writer, i % 2, 1, false);
    }
    return writer.count;
}

uint64_t image_bin_bytes(const struct image_options *options) {
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < options->documents; i++) {
        tokens += options->lengths[i];
    }
    return tokens * megatron_width(options->dtype);
}

static int image_read(const struct megatron_file *file, uint64_t offset, void *to, size_t count) {
    const struct image *image = file->context;
    assert(count <= file->bytes && offset <= file->bytes - count);
    memcpy(to, image->bytes + offset, count);
    return 0;
}

void image_open(struct image *image, const uint8_t *bytes, size_t count) {
    image->bytes = bytes;
    image->file = (struct megatron_file){
        .path = "test.idx", .bytes = count, .read = image_read, .context = image};
}

struct extent {
    uint64_t from, to;
};

static int extent_compare(const void *left, const void *right) {
    const struct extent *a = left;
    const struct extent *b = right;
    return a->from < b->from ? -1 : a->from > b->from;
}

bool index_is_consistent(const struct document_index *index, uint64_t bin_bytes) {
    struct extent *extents = calloc((size_t)index->documents + 1, sizeof *extents);
    uint64_t tokens = 0;
    size_t count = 0;
    bool consistent = true;
    assert(extents != NULL);
    for (uint64_t i = 0; i < index->documents; i++) {
        uint64_t bytes = (uint64_t)document_index_length(index, i) * index->width;
        uint64_t offset = document_index_offset(index, i);
        consistent = consistent && bytes <= bin_bytes && offset <= bin_bytes - bytes;
        tokens += document_index_length(index, i);
        if (bytes > 0) {
            extents[count++] = (struct extent){offset, offset + bytes};
        }
    }
    qsort(extents, count, sizeof *extents, extent_compare);
    for (size_t i = 1; i < count; i++) {
        consistent = consistent && extents[i - 1].to <= extents[i].from;
    }
    free(extents);
    return consistent && tokens == index->tokens && tokens * index->width == bin_bytes;
}

void test_folder_make(char path[64]) {
    strcpy(path, "/tmp/ballast-corpus-XXXXXX");
    if (mkdtemp(path) == NULL) {
        perror(path);
        abort();
    }
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *at) {
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

void test_folder_remove(const char *path) {
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

void file_write(const char *path, const void *bytes, size_t count) {
    FILE *file = fopen(path, "wb");
    assert(file != NULL);
    size_t written = fwrite(bytes, 1, count, file);
    int rc = fclose(file);
    assert(written == count && rc == 0);
}

uint8_t *file_read_whole(const char *path, size_t *count) {
    FILE *file = fopen(path, "rb");
    assert(file != NULL);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    uint8_t *bytes = malloc((size_t)size + 1);
    assert(bytes != NULL);
    *count = fread(bytes, 1, (size_t)size, file);
    fclose(file);
    return bytes;
}

uint64_t dataset_token(uint64_t i, uint64_t j) {
    return (i * 31 + j * 7) % 200;
}

static uint64_t offset_of(const struct image_options *options, uint32_t i) {
    uint64_t tokens = 0;
    if (options->offsets != NULL) {
        return options->offsets[i];
    }
    for (uint32_t j = 0; j < i; j++) {
        tokens += options->lengths[j];
    }
    return tokens * megatron_width(options->dtype);
}

static void dataset_write_bin(const char *path, const struct image_options *options) {
    size_t bytes = (size_t)image_bin_bytes(options);
    uint32_t width = megatron_width(options->dtype);
    uint8_t *bin = malloc(bytes + 1);
    assert(bin != NULL);
    for (uint32_t i = 0; i < options->documents; i++) {
        struct writer writer = {.out = bin, .capacity = bytes};
        writer.count = (size_t)offset_of(options, i);
        for (uint32_t j = 0; j < options->lengths[i]; j++) {
            put(&writer, dataset_token(i, j), width, false);
        }
    }
    file_write(path, bin, bytes);
    free(bin);
}

void dataset_write(const char *prefix, const struct image_options *options) {
    char path[512];
    size_t count = image_build(options, NULL, 0);
    uint8_t *index = malloc(count);
    assert(index != NULL);
    image_build(options, index, count);
    snprintf(path, sizeof path, "%s.idx", prefix);
    file_write(path, index, count);
    free(index);
    snprintf(path, sizeof path, "%s.bin", prefix);
    dataset_write_bin(path, options);
}
