/* litdata: folders of token chunks as LitGPT's preparation writes them.
 *
 * index.json {"chunks": [{filename, chunk_bytes, chunk_size, dim}], "config": {compression,
 * data_format, encryption, item_loader, ...}}; chunks as in chunks.h, each item the bare tokens of
 * one document, where data_format is one no_header_tensor:K or no_header_numpy:K. Other items are
 * refused: a header of theirs would be taken for tokens. Checked: chunk_size is the number of
 * items, items are whole tokens, dim (where it is) is the number of tokens. Compressed with zstd:
 * decompressed once. */
#include "corpus/chunks.h"
#include "corpus/files.h"
#include "corpus/megatron.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#define TENSOR "no_header_tensor:"
#define NUMPY  "no_header_numpy:"

#define CONVERT                                                                                    \
    "read it with the litdata package and write each document with Megatron-LM's "                 \
    "IndexedDatasetBuilder"

static const uint8_t tensor_dtypes[] = {
    [11] = MEGATRON_U8,  [13] = MEGATRON_I16, [14] = MEGATRON_I16, [15] = MEGATRON_I32,
    [16] = MEGATRON_I32, [17] = MEGATRON_I64, [18] = MEGATRON_I64, [20] = MEGATRON_U16};
static const uint8_t numpy_dtypes[] = {
    [0] = 0,           [1] = MEGATRON_I16, [2] = MEGATRON_I32, [3] = MEGATRON_I64,
    [4] = MEGATRON_U8, [5] = MEGATRON_U16, [6] = MEGATRON_U32, [7] = MEGATRON_U64};

static uint8_t dtype_of(const char *text) {
    bool tensor = strncmp(text, TENSOR, strlen(TENSOR)) == 0;
    if (!tensor && strncmp(text, NUMPY, strlen(NUMPY)) != 0) {
        return 0;
    }
    char *end;
    const char *digits = text + (tensor ? strlen(TENSOR) : strlen(NUMPY));
    unsigned long code = strtoul(digits, &end, 10);
    size_t count = tensor ? sizeof tensor_dtypes : sizeof numpy_dtypes;
    const uint8_t *dtypes = tensor ? tensor_dtypes : numpy_dtypes;
    return end == digits || *end != '\0' || code >= count ? 0 : dtypes[code];
}

static int read_data_format(struct format_load *load, const json_t *config) {
    const json_t *list = json_object_get(config, "data_format");
    const json_t *one = json_is_array(list) ? json_array_get(list, 0) : list;
    const char *text = json_is_string(one) ? json_string_value(one) : "absent";
    if (json_is_array(list) && json_array_size(list) != 1) {
        text = "of several leaves";
    }
    uint8_t dtype = json_is_array(list) && json_array_size(list) != 1 ? 0 : dtype_of(text);
    if (dtype == 0) {
        return error_set(load->error, -ENOSYS,
                         "%s/index.json: data_format is %.64s, and items that are bare token ids "
                         "are read alone (" TENSOR "K, " NUMPY "K); " CONVERT,
                         load->path, text);
    }
    return format_set_dtype(load, dtype, load->path);
}

/* "zstd", or "zstd:4" with a level. */
static bool is_zstd(const json_t *compression) {
    const char *name = json_string_value(compression);
    return name != NULL && (strcmp(name, "zstd") == 0 || strncmp(name, "zstd:", 5) == 0);
}

/* *zstd: whether chunks are compressed with it. */
static int read_config(struct format_load *load, const json_t *config, bool *zstd) {
    const json_t *compression = json_object_get(config, "compression");
    const json_t *encryption = json_object_get(config, "encryption");
    if (encryption != NULL && !json_is_null(encryption)) {
        return error_set(load->error, -ENOSYS, "%s/index.json: the chunks are encrypted; " CONVERT,
                         load->path);
    }
    *zstd = is_zstd(compression);
    const char *level = json_string_value(json_object_get(config, "compression_level"));
    if (*zstd && level != NULL && strcmp(level, "chunk") != 0) {
        return error_set(load->error, -ENOSYS,
                         "%s/index.json: compressed by %.32s and not by whole chunks; " CONVERT,
                         load->path, level);
    }
    if (compression != NULL && !json_is_null(compression) && !*zstd) {
        return error_set(load->error, -ENOSYS,
                         "%s/index.json: compression %.32s, and only zstd is known; " CONVERT,
                         load->path,
                         json_is_string(compression) ? json_string_value(compression) : "unknown");
    }
    return read_data_format(load, config);
}

static int add_items(struct format_load *load, const struct chunk *chunk, struct file *file,
                     uint64_t base) {
    uint32_t offsets[CHUNK_BLOCK + 1], width = load->documents->width;
    for (uint32_t from = 0; from < chunk->samples; from += CHUNK_BLOCK) {
        size_t some = chunk->samples - from < CHUNK_BLOCK ? chunk->samples - from : CHUNK_BLOCK;
        int rc = chunk_offsets(load, file, from, some, offsets);
        for (size_t i = 0; rc == 0 && i < some; i++) {
            uint32_t bytes = offsets[i + 1] - offsets[i];
            rc = bytes % width != 0
                     ? error_set(load->error, -EBADMSG,
                                 "%s: item %zu has %" PRIu32 " bytes at offset %" PRIu32
                                 ", which are no whole tokens of %s; write the folder again",
                                 chunk->path, from + i, bytes, offsets[i],
                                 format_dtype_name(load->dtype))
                     : documents_add(load->documents, base + offsets[i] - chunk->begin,
                                     bytes / width, chunk->path, load->error);
        }
        if (rc < 0) {
            return rc;
        }
    }
    return 0;
}

static int check_dim(const struct format_load *load, const json_t *object,
                     const struct chunk *chunk) {
    const json_t *dim = json_object_get(object, "dim");
    uint64_t tokens = (file_bytes(chunk->file) - chunk->begin) / load->documents->width;
    if (json_is_integer(dim) && (uint64_t)json_integer_value(dim) != tokens) {
        return error_set(load->error, -EBADMSG,
                         "%s: %" PRIu64 " tokens, index.json says %" PRId64
                         " (dim); copy the folder again",
                         chunk->path, tokens, (int64_t)json_integer_value(dim));
    }
    return 0;
}

static int load_chunk(struct format_load *load, const json_t *object, const char *name,
                      const char *zip, uint64_t bytes) {
    struct chunk chunk;
    uint64_t samples = 0, base = load->volumes->bytes;
    int rc = chunks_number(load, object, "chunk_size", name, &samples);
    if (rc < 0) {
        return rc;
    }
    rc = chunk_open(load, name, zip, bytes, &chunk);
    if (rc == 0) {
        rc = chunk_check(load, &chunk, samples);
    }
    if (rc == 0) {
        rc = check_dim(load, object, &chunk);
    }
    if (rc == 0) {
        struct file *file = chunk.file;
        chunk.file = NULL;
        rc = volumes_add(load->volumes, file, chunk.begin, file_bytes(file) - chunk.begin,
                         load->error);
        rc = rc == 0 ? add_items(load, &chunk, file, base) : rc;
    }
    chunk_close(&chunk);
    return rc;
}

/* chunk-0-0.zstd.bin is made of chunk-0-0.bin, whose name the package gives the decompressed. */
static int load_chunk_by_name(struct format_load *load, const json_t *object, bool zstd) {
    static const char ending[] = ".zstd.bin";
    const char *name = NULL;
    char raw[NAME_MAX + 1];
    uint64_t bytes = 0;
    int rc = chunks_string(load, object, "filename", "a chunk", &name);
    if (rc < 0 || !zstd) {
        return rc < 0 ? rc : load_chunk(load, object, name, NULL, 0);
    }
    size_t chars = strlen(name), ending_chars = sizeof ending - 1;
    if (chars <= ending_chars || chars >= sizeof raw ||
        strcmp(name + chars - ending_chars, ending) != 0) {
        return error_set(load->error, -EBADMSG,
                         "%s/index.json: '%.128s' should end in %s; write the folder again",
                         load->path, name, ending);
    }
    rc = chunks_number(load, object, "chunk_bytes", name, &bytes);
    (void)snprintf(raw, sizeof raw, "%.*s.bin", (int)(chars - ending_chars), name);
    return rc == 0 ? load_chunk(load, object, raw, name, bytes) : rc;
}

static int load_chunks(struct format_load *load, const json_t *index) {
    const json_t *chunks = json_object_get(index, "chunks");
    const json_t *config = json_object_get(index, "config");
    bool zstd = false;
    if (!json_is_array(chunks) || !json_is_object(config)) {
        return error_set(load->error, -EBADMSG,
                         "%s/index.json: no chunks and config; copy the folder again", load->path);
    }
    int rc = read_config(load, config, &zstd);
    size_t count = json_array_size(chunks);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        rc = load_chunk_by_name(load, json_array_get(chunks, i), zstd);
        if (rc == 0) {
            rc = load->progress(load->context, i + 1, count);
        }
    }
    return rc;
}

int litdata_load(struct format_load *load) {
    json_t *index = NULL;
    int rc = chunks_read_index(load, &index);
    if (rc == 0) {
        rc = load_chunks(load, index);
    }
    json_decref(index);
    return rc;
}
