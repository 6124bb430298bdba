/* format_files: see format_files.h. */
#include "tests/unit/format_files.h"
#include "corpus/megatron.h"
#include "tests/unit/corpus_files.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <zlib.h>

static struct format_file *add_file(struct format_files *files, const char *name) {
    assert(files->count < FORMAT_FILES_MAX);
    struct format_file *file = &files->files[files->count++];
    (void)snprintf(file->name, sizeof file->name, "%s", name);
    return file;
}

static void put(struct format_file *file, const void *bytes, size_t count) {
    file->bytes = realloc(file->bytes, file->count + count + 1);
    assert(file->bytes != NULL);
    memcpy(file->bytes + file->count, bytes, count);
    file->count += count;
}

static void put_number(struct format_file *file, uint64_t value, size_t width) {
    put(file, &value, width);
}

__attribute__((format(printf, 2, 3))) static void put_text(struct format_file *file,
                                                           const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int chars = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    put(file, text, (size_t)chars);
}

static uint64_t token_of(enum format_kind kind, uint32_t i, uint32_t j, uint32_t length) {
    bool at_id = format_kind_is_cut(kind) && j == (format_kind_leads(kind) ? 0 : length - 1);
    return at_id ? KIND_EOD : dataset_token(i, j);
}

static void put_tokens(struct format_file *file, enum format_kind kind, uint32_t i,
                       uint32_t length) {
    for (uint32_t j = 0; j < length; j++) {
        put_number(file, token_of(kind, i, j, length), 2);
    }
}

static void put_all_tokens(struct format_file *file, enum format_kind kind, const uint32_t *lengths,
                           uint32_t documents) {
    put(file, "", 0);
    for (uint32_t i = 0; i < documents; i++) {
        put_tokens(file, kind, i, lengths[i]);
    }
}

static void build_ds(const uint32_t *lengths, uint32_t documents, struct format_files *out) {
    struct format_file *tokens = add_file(out, "c.ds"), *index = add_file(out, "c.ds.index");
    struct format_file *metadata = add_file(out, "c.ds.metadata");
    uint64_t end = 0;
    put_all_tokens(tokens, KIND_DS, lengths, documents);
    put(index, "", 0);
    for (uint32_t i = 0; i < documents; i++) {
        end += lengths[i];
        put_number(index, end, 8);
    }
    put_text(metadata, "Unknown Tokenizer|2|2\n%llu\n0 T", (unsigned long long)end);
}

static void put_gzip(struct format_file *file, const char *text, size_t count) {
    uint8_t out[8192];
    z_stream stream = {.next_in = (uint8_t *)(uintptr_t)text,
                       .avail_in = (unsigned)count,
                       .next_out = out,
                       .avail_out = sizeof out};
    int rc = deflateInit2(&stream, 6, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY);
    assert(rc == Z_OK);
    rc = deflate(&stream, Z_FINISH);
    assert(rc == Z_STREAM_END);
    put(file, out, stream.total_out);
    deflateEnd(&stream);
}

static void build_npy(const uint32_t *lengths, uint32_t documents, struct format_files *out) {
    struct format_file *tokens = add_file(out, "c.npy"), *table = add_file(out, "c.csv.gz");
    struct format_file text = {0};
    uint64_t end = 0;
    put_all_tokens(tokens, KIND_NPY, lengths, documents);
    put(&text, "", 0);
    for (uint32_t i = 0; i < documents; i++) {
        put_text(&text, "%llu,%llu,id-%u,\"a, b\",%u\n", (unsigned long long)end,
                 (unsigned long long)end + lengths[i], i, i);
        end += lengths[i];
    }
    put_gzip(table, (const char *)text.bytes, text.count);
    free(text.bytes);
}

static void build_llm_c(const uint32_t *lengths, uint32_t documents, struct format_files *out) {
    struct format_file *file = add_file(out, "c.bin");
    uint32_t header[256] = {20240520, 1};
    for (uint32_t i = 0; i < documents; i++) {
        header[2] += lengths[i];
    }
    put(file, header, sizeof header);
    put_all_tokens(file, KIND_LLM_C, lengths, documents);
}

/* Where samples begin in a chunk with `extra` bytes between table and samples. */
static void put_table(struct format_file *file, const uint32_t *bytes, uint32_t samples,
                      uint32_t extra) {
    uint32_t offset = 4 + 4 * (samples + 1) + extra;
    put_number(file, samples, 4);
    for (uint32_t i = 0; i <= samples; i++) {
        put_number(file, offset, 4);
        offset += i < samples ? bytes[i] : 0;
    }
}

static void put_sample(struct format_file *file, enum format_kind kind, uint32_t i,
                       uint32_t length) {
    uint32_t head = kind == KIND_MDS ? 4 : 3; /* type, shape of u16, tokens */
    if (kind == KIND_MDS) {
        put_number(file, 5, 4); /* of column "id" */
    }
    put_number(file, head + 2 * length, 4);
    if (kind == KIND_MDS) {
        put_text(file, "id%03u", i % 1000);
        put_number(file, 16, 1);
    }
    put_number(file, 1 << 2 | 1, 1);
    put_number(file, length, 2);
    put_tokens(file, kind, i, length);
}

static void build_mds(enum format_kind kind, const uint32_t *lengths, uint32_t documents,
                      struct format_files *out) {
    struct format_file *index = add_file(out, "m/index.json");
    struct format_file *shard = add_file(out, "m/shard.00000.mds");
    uint32_t *bytes = calloc(documents + 1, sizeof *bytes);
    assert(bytes != NULL);
    for (uint32_t i = 0; i < documents; i++) {
        bytes[i] = (kind == KIND_MDS ? 8 + 5 + 4 : 4 + 3) + 2 * lengths[i];
    }
    put_table(shard, bytes, documents, 2);
    put_text(shard, "{}");
    for (uint32_t i = 0; i < documents; i++) {
        put_sample(shard, kind, i, lengths[i]);
    }
    free(bytes);
    put_text(index,
             "{\"shards\": [{\"column_encodings\": %s, \"column_names\": %s, \"column_sizes\": %s, "
             "\"compression\": null, \"format\": \"mds\", \"hashes\": [], \"raw_data\": "
             "{\"basename\": \"shard.00000.mds\", \"bytes\": %zu, \"hashes\": {}}, \"samples\": "
             "%u, \"size_limit\": 67108864, \"version\": 2, \"zip_data\": null}], \"version\": 2}",
             kind == KIND_MDS ? "[\"str\", \"ndarray\"]" : "[\"ndarray:uint16\"]",
             kind == KIND_MDS ? "[\"id\", \"tokens\"]" : "[\"x\"]",
             kind == KIND_MDS ? "[null, null]" : "[null]", shard->count, documents);
}

static void build_litdata(const uint32_t *lengths, uint32_t documents, struct format_files *out) {
    struct format_file *index = add_file(out, "l/index.json");
    struct format_file *chunk = add_file(out, "l/chunk-0-0.bin");
    uint32_t *bytes = calloc(documents + 1, sizeof *bytes), tokens = 0;
    assert(bytes != NULL);
    for (uint32_t i = 0; i < documents; i++) {
        bytes[i] = 2 * lengths[i];
        tokens += lengths[i];
    }
    put_table(chunk, bytes, documents, 0);
    free(bytes);
    put_all_tokens(chunk, KIND_LITDATA, lengths, documents);
    put_text(index,
             "{\"chunks\": [{\"chunk_bytes\": %u, \"chunk_size\": %u, \"dim\": %u, \"filename\": "
             "\"chunk-0-0.bin\"}], \"config\": {\"chunk_bytes\": 64000000, \"chunk_size\": null, "
             "\"compression\": null, \"data_format\": [\"no_header_numpy:5\"], \"data_spec\": "
             "\"[1, {}]\", \"encryption\": null, \"item_loader\": \"TokensLoader\"}}",
             2 * tokens, documents, tokens);
}

void format_files_build(enum format_kind kind, const uint32_t *lengths, uint32_t documents,
                        struct format_files *out) {
    *out = (struct format_files){0};
    switch (kind) {
    case KIND_DS:
        build_ds(lengths, documents, out);
        break;
    case KIND_NPY:
        build_npy(lengths, documents, out);
        break;
    case KIND_NPY_BARE:
        put_all_tokens(add_file(out, "c.npy"), kind, lengths, documents);
        break;
    case KIND_LLM_C:
        build_llm_c(lengths, documents, out);
        break;
    case KIND_NANO:
        put_all_tokens(add_file(out, "c.bin"), kind, lengths, documents);
        break;
    case KIND_MDS:
    case KIND_MDS_FIXED:
        build_mds(kind, lengths, documents, out);
        break;
    case KIND_LITDATA:
        build_litdata(lengths, documents, out);
        break;
    case KIND_COUNT:
        assert(false);
    }
}

void format_files_write(const struct format_files *files, const char *folder) {
    char path[512];
    for (size_t i = 0; i < files->count; i++) {
        const struct format_file *file = &files->files[i];
        if (strchr(file->name, '/') != NULL) {
            (void)snprintf(path, sizeof path, "%s/%.*s", folder, (int)strcspn(file->name, "/"),
                           file->name);
            (void)mkdir(path, 0700);
        }
        (void)snprintf(path, sizeof path, "%s/%s", folder, file->name);
        file_write(path, file->bytes, file->count);
    }
}

void format_files_free(struct format_files *files) {
    for (size_t i = 0; i < files->count; i++) {
        free(files->files[i].bytes);
    }
    files->count = 0;
}

bool format_kind_is_cut(enum format_kind kind) {
    return kind == KIND_NPY_BARE || kind == KIND_NANO || kind == KIND_LLM_C;
}

bool format_kind_leads(enum format_kind kind) {
    return kind == KIND_LLM_C;
}

struct format_options format_kind_options(enum format_kind kind) {
    struct format_options options = format_options_default;
    if (kind == KIND_NPY_BARE || kind == KIND_NANO) {
        options.eod = KIND_EOD;
        options.dtype = MEGATRON_U16;
    }
    if (kind == KIND_NANO) {
        options.format = FORMAT_BIN;
    }
    return options;
}

const char *format_kind_path(enum format_kind kind) {
    return kind == KIND_MDS || kind == KIND_MDS_FIXED ? "m" : kind == KIND_LITDATA ? "l/" : "c";
}
