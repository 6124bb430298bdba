/* bin: llm.c's and nanoGPT's token files.
 *
 * llm.c (and modded-nanogpt): 256 i32, of which [0] is 20240520 with [1] 1 (u16, GPT-2) or 20240801
 * with [1] 7 (u32, Llama 3), [2] the tokens, then these. The end-of-text id stands BEFORE each
 * document, which may go on in the next shard: PREFIX_000000.bin, PREFIX_000001.bin and so on are
 * one dataset in the order of their numbers. Checked: version, exact size.
 * nanoGPT: u16 tokens and nothing else, the id BEHIND each document. Since anything could be that
 * file, also what is left of a Megatron dataset, it is only read when corpus.format says bin. */
#include "corpus/files.h"
#include "corpus/megatron.h"
#include "corpus/raw.h"

#include <dirent.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_WORDS 256u
#define HEADER_BYTES (HEADER_WORDS * 4u)
#define EVAL_MAGIC   20240522u

static const struct kind {
    uint32_t magic, version, eod;
    uint8_t dtype;
} kinds[] = {
    {20240520, 1, 50256, MEGATRON_U16},
    {20240801, 7, 128000, MEGATRON_U32},
};

static const struct kind *find_kind(uint32_t magic) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (kinds[i].magic == magic) {
            return &kinds[i];
        }
    }
    return NULL;
}

static int check_header(struct raw *raw, const struct kind *kind, const uint32_t *header) {
    uint64_t bytes = file_bytes(raw->file);
    uint64_t expected = HEADER_BYTES + (uint64_t)header[2] * megatron_width(kind->dtype);
    if (header[1] != kind->version) {
        return error_set(raw->load->error, -ENOSYS,
                         "%s: version %" PRIu32 " at offset 4, known is %" PRIu32
                         "; write it with a current llm.c",
                         raw->path, header[1], kind->version);
    }
    if (header[2] > INT32_MAX || bytes != expected) {
        return error_set(raw->load->error, -EBADMSG,
                         "%s: %" PRIu64 " bytes, but %" PRIu32
                         " tokens (offset 8) and the header take %" PRIu64 "; copy the file again",
                         raw->path, bytes, header[2], expected);
    }
    raw->start = HEADER_BYTES;
    raw->tokens = header[2];
    raw->leads = true;
    raw->eod = raw->load->options->eod == FORMAT_EOD_AUTO ? kind->eod : raw->load->options->eod;
    return format_set_dtype(raw->load, kind->dtype, raw->path);
}

static int check_headerless(struct raw *raw) {
    const struct format_options *options = raw->load->options;
    uint64_t bytes = file_bytes(raw->file);
    if (options->format != FORMAT_BIN) {
        return error_set(raw->load->error, -ENOENT,
                         "%s: tokens without an index: no %.*sidx beside it, no llm.c header; copy "
                         "the .idx too, or for nanoGPT's files set corpus.format = bin and "
                         "corpus.eod",
                         raw->path, (int)(strrchr(raw->path, '.') + 1 - raw->path), raw->path);
    }
    if (options->eod == FORMAT_EOD_AUTO) {
        return error_set(raw->load->error, -EINVAL,
                         "%s: nothing says where its documents end; set corpus.eod to the "
                         "tokenizer's end-of-text id (50256 of GPT-2), or to none for one document",
                         raw->path);
    }
    uint8_t dtype = options->dtype == 0 ? MEGATRON_U16 : options->dtype;
    if (bytes % megatron_width(dtype) != 0) {
        return error_set(raw->load->error, -EBADMSG,
                         "%s: %" PRIu64 " bytes, which are no whole tokens of %s; set "
                         "corpus.token_type to what the file holds, or copy it again",
                         raw->path, bytes, format_dtype_name(dtype));
    }
    raw->tokens = bytes / megatron_width(dtype);
    raw->eod = options->eod;
    return format_set_dtype(raw->load, dtype, raw->path);
}

static int bin_check(struct raw *raw) {
    uint32_t header[HEADER_WORDS] = {0};
    if (file_bytes(raw->file) >= HEADER_BYTES) {
        int rc = format_read_u32(raw->load, raw->file, 0, header, HEADER_WORDS);
        if (rc < 0) {
            return rc;
        }
    } else if (file_bytes(raw->file) >= sizeof header[0]) {
        int rc = format_read_u32(raw->load, raw->file, 0, header, 1);
        if (rc < 0) {
            return rc;
        }
    }
    if (header[0] == EVAL_MAGIC) {
        return error_set(raw->load->error, -ENOSYS,
                         "%s: an evaluation set of llm.c, not text to train on; give its *_train_ "
                         "shards",
                         raw->path);
    }
    const struct kind *kind = find_kind(header[0]);
    return kind != NULL ? check_header(raw, kind, header) : check_headerless(raw);
}

static int bin_load_file(struct format_load *load, const char *path, uint64_t *open) {
    struct raw raw = {.load = load, .path = path};
    int rc = volumes_open(load->volumes, path, &raw.file, load->error);
    if (rc < 0) {
        return rc;
    }
    rc = bin_check(&raw);
    if (rc < 0) {
        file_destroy(raw.file);
        return rc;
    }
    rc = raw_add_volume(&raw);
    return rc == 0 ? raw_add_documents(&raw, raw.leads && raw.eod != FORMAT_EOD_NONE ? open : NULL)
                   : rc;
}

int bin_load(struct format_load *load) {
    char **paths;
    size_t count;
    uint64_t open = 0;
    int rc = format_paths(load, ".bin", &paths, &count);
    if (rc < 0) {
        return rc;
    }
    for (size_t i = 0; rc == 0 && i < count; i++) {
        rc = bin_load_file(load, paths[i], &open);
    }
    if (rc == 0 && open > 0) {
        rc = documents_add(load->documents, load->documents->next, open, paths[count - 1],
                           load->error);
    }
    format_paths_free(paths, count);
    return rc;
}
