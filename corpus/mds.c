/* mds: MosaicML streaming's folders of shards.
 *
 * index.json {"version": 2, "shards": [{format: "mds", column_names, column_encodings,
 * column_sizes, compression, raw_data: {basename, bytes}, zip_data, samples}]}; shards as in
 * chunks.h, their JSON between table and samples. A sample is a document: u32 bytes of each column
 * of variable size, then the columns. The tokens are in column "tokens" or "input_ids", or in the
 * only one there is; of the others nothing is looked at.
 *
 * Encodings: ndarray:TYPE:N, ndarray:TYPE, ndarray (a byte of type in each sample), and bytes,
 * whose type corpus.token_type has to say. Checked, for every sample: its sizes add up, its array
 * has one dimension and the type of the others, its tokens are whole. */
#include "corpus/chunks.h"
#include "corpus/files.h"
#include "corpus/megatron.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define COLUMNS_MAX 64u
#define HEAD_BYTES  16u /* of an array, at most: type, shape byte, one dimension */

#define CONVERT                                                                                    \
    "read it with the streaming package and write each document with Megatron-LM's "               \
    "IndexedDatasetBuilder"

struct column {
    bool variable; /* its size stands in each sample */
    uint32_t bytes;
};

/* How a shard's samples are built. */
struct scheme {
    struct column columns[COLUMNS_MAX];
    size_t count;
    size_t tokens;  /* the column */
    uint32_t sizes; /* variable columns */
    bool array;     /* else bytes */
    bool typed;     /* a byte of type stands in each sample */
    bool shaped;    /* so does the shape */
};

struct shard {
    struct format_load *load;
    struct scheme scheme;
    struct chunk chunk;
    struct file *file; /* of the volumes */
    const char *path;
    uint64_t base;
};

static int refuse_sample(const struct shard *shard, uint64_t i, uint64_t offset, const char *what) {
    return error_set(shard->load->error, -EBADMSG,
                     "%s: sample %" PRIu64 " at offset %" PRIu64
                     ": %s; copy the file again or write the folder again",
                     shard->path, i, offset, what);
}

/* Streaming's codes of numpy types. */
static uint8_t dtype_of_code(uint8_t code) {
    switch (code) {
    case 8:
        return MEGATRON_U8;
    case 16:
        return MEGATRON_U16;
    case 17:
        return MEGATRON_I16;
    case 32:
        return MEGATRON_U32;
    case 33:
        return MEGATRON_I32;
    case 64:
        return MEGATRON_U64;
    case 65:
        return MEGATRON_I64;
    default:
        return 0;
    }
}

static int refuse_encoding(const struct format_load *load, const char *encoding) {
    return error_set(load->error, -ENOSYS,
                     "%s/index.json: tokens encoded as '%.64s', and bytes and ndarray of whole "
                     "numbers in one dimension are read alone; " CONVERT,
                     load->path, encoding);
}

/* ndarray[:TYPE[:SHAPE]] or bytes. */
static int read_encoding(struct format_load *load, struct scheme *scheme, const char *encoding) {
    char type[16] = "";
    uint8_t dtype = load->options->dtype;
    scheme->array = strncmp(encoding, "ndarray", 7) == 0;
    if (strcmp(encoding, "bytes") == 0) {
        return dtype != 0 ? format_set_dtype(load, dtype, load->path)
                          : error_set(load->error, -EINVAL,
                                      "%s: its tokens are bytes of a type that is not written; set "
                                      "corpus.token_type (LLM-Foundry wrote i64)",
                                      load->path);
    }
    if (!scheme->array || (encoding[7] != '\0' && encoding[7] != ':')) {
        return refuse_encoding(load, encoding);
    }
    scheme->typed = scheme->shaped = encoding[7] == '\0';
    if (scheme->typed) {
        return 0;
    }
    size_t chars = strcspn(encoding + 8, ":");
    const char *shape = encoding + 8 + chars;
    if (chars >= sizeof type || strchr(shape, ',') != NULL) {
        return refuse_encoding(load, encoding);
    }
    memcpy(type, encoding + 8, chars);
    scheme->shaped = *shape == '\0';
    return format_dtype_parse(type, &dtype) < 0 ? refuse_encoding(load, encoding)
                                                : format_set_dtype(load, dtype, load->path);
}

/* Which column has the tokens; `count` when none is known to. */
static size_t find_tokens(const json_t *names, size_t count) {
    static const char *const known[] = {"tokens", "input_ids"};
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < count; i++) {
            const char *name = json_string_value(json_array_get(names, i));
            if (name != NULL && strcmp(name, known[k]) == 0) {
                return i;
            }
        }
    }
    return count == 1 ? 0 : count;
}

static int read_columns(struct format_load *load, const json_t *object, struct scheme *scheme) {
    const json_t *names = json_object_get(object, "column_names");
    const json_t *encodings = json_object_get(object, "column_encodings");
    const json_t *sizes = json_object_get(object, "column_sizes");
    scheme->count = json_array_size(names);
    if (scheme->count == 0 || scheme->count > COLUMNS_MAX ||
        json_array_size(encodings) != scheme->count || json_array_size(sizes) != scheme->count) {
        return error_set(load->error, -EBADMSG,
                         "%s/index.json: column names, encodings and sizes are not as many (1 to "
                         "%u); copy the folder again",
                         load->path, COLUMNS_MAX);
    }
    for (size_t i = 0; i < scheme->count; i++) {
        const json_t *size = json_array_get(sizes, i);
        json_int_t bytes = json_integer_value(size);
        scheme->columns[i].variable = json_is_null(size);
        scheme->sizes += scheme->columns[i].variable;
        if (!json_is_null(size) && (!json_is_integer(size) || bytes < 0 || bytes > UINT32_MAX)) {
            return error_set(load->error, -EBADMSG,
                             "%s/index.json: size of column %zu is no size; copy the folder again",
                             load->path, i);
        }
        scheme->columns[i].bytes = (uint32_t)bytes;
    }
    scheme->tokens = find_tokens(names, scheme->count);
    const char *encoding = json_string_value(json_array_get(encodings, scheme->tokens));
    if (scheme->tokens == scheme->count || encoding == NULL) {
        return error_set(load->error, -ENOSYS,
                         "%s/index.json: %zu columns, none of them tokens or input_ids; " CONVERT,
                         load->path, scheme->count);
    }
    return read_encoding(load, scheme, encoding);
}

/* Where in the sample the column of tokens is, by the sizes at its front. */
static int find_column(const struct shard *shard, uint64_t i, uint32_t at, uint32_t bytes,
                       uint64_t *column_at, uint64_t *column_bytes) {
    const struct scheme *scheme = &shard->scheme;
    uint32_t sizes[COLUMNS_MAX];
    uint64_t from = 4 * (uint64_t)scheme->sizes;
    size_t variable = 0;
    if (bytes < from) {
        return refuse_sample(shard, i, at, "too short for the sizes of its columns");
    }
    int rc = format_read_u32(shard->load, shard->file, at, sizes, scheme->sizes);
    if (rc < 0) {
        return rc;
    }
    for (size_t c = 0; c < scheme->count; c++) {
        const struct column *column = &scheme->columns[c];
        uint32_t size = column->variable ? sizes[variable++] : column->bytes;
        if (c == scheme->tokens) {
            *column_at = at + from;
            *column_bytes = size;
        }
        from += size;
    }
    return from == bytes ? 0 : refuse_sample(shard, i, at, "its columns are not as long as it is");
}

/* The bytes in front of an array's data; their number, and the elements that the shape says. */
static int parse_head(const struct shard *shard, const uint8_t *head, size_t have, size_t *used,
                      uint64_t *elements) {
    const struct scheme *scheme = &shard->scheme;
    *used = 0;
    if (scheme->typed) {
        uint8_t dtype = have > 0 ? dtype_of_code(head[0]) : 0;
        if (dtype == 0) {
            return -ENOSYS;
        }
        int rc = format_set_dtype(shard->load, dtype, shard->path);
        if (rc < 0) {
            return rc;
        }
        *used = 1;
    }
    if (scheme->shaped) {
        uint8_t shape = *used < have ? head[*used] : 0;
        size_t dimension_bytes = (size_t)1 << (shape & 3);
        if (shape >> 2 != 1 || *used + 1 + dimension_bytes > have) {
            return -EDOM;
        }
        *elements = 0;
        memcpy(elements, head + *used + 1, dimension_bytes);
        *elements = le64toh(*elements);
        *used += 1 + dimension_bytes;
    }
    return 0;
}

static int read_array(const struct shard *shard, uint64_t i, uint64_t *at, uint64_t *bytes) {
    uint8_t head[HEAD_BYTES];
    uint64_t elements = UINT64_MAX;
    size_t used, have = *bytes < sizeof head ? (size_t)*bytes : sizeof head;
    bool headed = shard->scheme.typed || shard->scheme.shaped;
    if (!headed) {
        return 0;
    }
    int rc = format_read(shard->load, shard->file, *at, head, have);
    if (rc < 0) {
        return rc;
    }
    rc = parse_head(shard, head, have, &used, &elements);
    if (rc == -ENOSYS || rc == -EDOM) {
        return refuse_sample(shard, i, *at,
                             rc == -EDOM ? "its tokens are no array of one dimension"
                                         : "its tokens are no whole numbers of 1 to 8 bytes");
    }
    if (rc < 0) {
        return rc;
    }
    *at += used;
    *bytes -= used;
    return elements == UINT64_MAX || elements == *bytes / shard->load->documents->width
               ? 0
               : refuse_sample(shard, i, *at, "its shape is not that of its bytes");
}

static int add_sample(const struct shard *shard, uint64_t i, uint32_t at, uint32_t bytes) {
    uint64_t column_at = 0, column_bytes = 0;
    int rc = find_column(shard, i, at, bytes, &column_at, &column_bytes);
    if (rc == 0 && shard->scheme.array) {
        rc = read_array(shard, i, &column_at, &column_bytes);
    }
    if (rc < 0) {
        return rc;
    }
    uint32_t width = shard->load->documents->width;
    if (column_bytes % width != 0) {
        return refuse_sample(shard, i, column_at, "its bytes are no whole tokens of their type");
    }
    return documents_add(shard->load->documents, shard->base + column_at - shard->chunk.begin,
                         column_bytes / width, shard->path, shard->load->error);
}

static int add_samples(const struct shard *shard) {
    uint32_t offsets[CHUNK_BLOCK + 1];
    uint32_t samples = shard->chunk.samples;
    for (uint32_t from = 0; from < samples; from += CHUNK_BLOCK) {
        size_t some = samples - from < CHUNK_BLOCK ? samples - from : CHUNK_BLOCK;
        int rc = chunk_offsets(shard->load, shard->file, from, some, offsets);
        for (size_t i = 0; rc == 0 && i < some; i++) {
            rc = add_sample(shard, from + i, offsets[i], offsets[i + 1] - offsets[i]);
        }
        if (rc < 0) {
            return rc;
        }
    }
    return 0;
}

/* *zip: the compressed file's name, NULL where there is none. */
static int read_zip(const struct format_load *load, const json_t *object, const char *raw,
                    const char **zip) {
    const json_t *compression = json_object_get(object, "compression");
    const char *kind = json_is_string(compression) ? json_string_value(compression) : "";
    *zip = NULL;
    if (compression == NULL || json_is_null(compression)) {
        return 0;
    }
    if (strcmp(kind, "zstd") != 0 && strncmp(kind, "zstd:", 5) != 0) {
        return error_set(load->error, -ENOSYS,
                         "%s/index.json: %.128s is compressed with '%.32s', and only zstd is "
                         "known; " CONVERT,
                         load->path, raw, kind);
    }
    return chunks_string(load, json_object_get(object, "zip_data"), "basename", "zip_data", zip);
}

static int open_shard(struct shard *shard, const json_t *object) {
    struct format_load *load = shard->load;
    const json_t *raw = json_object_get(object, "raw_data");
    const char *format = NULL, *name = NULL, *zip = NULL;
    uint64_t bytes = 0, samples = 0;
    int rc;
    if ((rc = chunks_string(load, object, "format", "a shard", &format)) < 0 ||
        (rc = chunks_string(load, raw, "basename", "raw_data", &name)) < 0 ||
        (rc = chunks_number(load, raw, "bytes", name, &bytes)) < 0 ||
        (rc = chunks_number(load, object, "samples", name, &samples)) < 0 ||
        (rc = read_zip(load, object, name, &zip)) < 0) {
        return rc;
    }
    if (strcmp(format, "mds") != 0) {
        return error_set(load->error, -ENOSYS,
                         "%s/index.json: shards of format '%.32s', not mds; " CONVERT, load->path,
                         format);
    }
    rc = read_columns(load, object, &shard->scheme);
    if (rc == 0) {
        rc = chunk_open(load, name, zip, bytes, &shard->chunk);
    }
    if (rc == 0 && file_bytes(shard->chunk.file) != bytes) {
        return error_set(load->error, -EBADMSG,
                         "%s: %" PRIu64 " bytes, index.json says %" PRIu64
                         "; copy the folder again",
                         shard->chunk.path, file_bytes(shard->chunk.file), bytes);
    }
    return rc == 0 ? chunk_check(load, &shard->chunk, samples) : rc;
}

static int load_shard(struct format_load *load, const json_t *object) {
    struct shard shard = {.load = load, .base = load->volumes->bytes};
    int rc = open_shard(&shard, object);
    if (rc == 0) {
        shard.path = shard.chunk.path;
        shard.file = shard.chunk.file;
        shard.chunk.file = NULL;
        rc = volumes_add(load->volumes, shard.file, shard.chunk.begin,
                         file_bytes(shard.file) - shard.chunk.begin, load->error);
    }
    if (rc == 0) {
        rc = add_samples(&shard);
    }
    chunk_close(&shard.chunk);
    return rc;
}

static int load_shards(struct format_load *load, const json_t *index) {
    const json_t *shards = json_object_get(index, "shards");
    uint64_t version = 0;
    int rc = chunks_number(load, index, "version", "the index", &version);
    if (rc == 0 && (version != 2 || !json_is_array(shards))) {
        rc = error_set(load->error, -ENOSYS,
                       "%s/index.json: version %" PRIu64 ", and only 2 is known, with shards; "
                       "write the folder again with a current streaming package",
                       load->path, version);
    }
    size_t count = json_array_size(shards);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        rc = load_shard(load, json_array_get(shards, i));
        if (rc == 0) {
            rc = load->progress(load->context, i + 1, count);
        }
    }
    return rc;
}

int mds_load(struct format_load *load) {
    json_t *index = NULL;
    int rc = chunks_read_index(load, &index);
    if (rc == 0) {
        rc = load_shards(load, index);
    }
    json_decref(index);
    return rc;
}
