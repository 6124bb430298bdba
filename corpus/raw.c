/* raw: see raw.h. */
#include "corpus/raw.h"
#include "corpus/derived.h"
#include "corpus/files.h"
#include "corpus/megatron.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CHUNK_BYTES (1u << 20)
#define ENDS_BLOCK  1024u

struct scan {
    struct raw *raw;
    uint32_t width;
    FILE *out;
    uint64_t found;
    uint64_t last; /* the last end */
    uint8_t *chunk;
};

static uint64_t token_at(const struct scan *scan, size_t i) {
    uint64_t token = 0;
    memcpy(&token, scan->chunk + i * scan->width, scan->width);
    return le64toh(token);
}

#define DEFINE_FIND(name, type)                                                                    \
    static size_t name(const type *tokens, size_t from, size_t count, type id) {                   \
        while (from < count && tokens[from] != id) {                                               \
            from++;                                                                                \
        }                                                                                          \
        return from;                                                                               \
    }

DEFINE_FIND(find_u16, uint16_t)
DEFINE_FIND(find_u32, uint32_t)

/* The place of the next end-of-text id of the chunk, `count` without one. */
static size_t find_eod(const struct scan *scan, size_t from, size_t count) {
    uint32_t eod = scan->raw->eod;
    if (scan->width == 2) {
        return find_u16((const uint16_t *)(const void *)scan->chunk, from, count, (uint16_t)eod);
    }
    if (scan->width == 4) {
        return find_u32((const uint32_t *)(const void *)scan->chunk, from, count, eod);
    }
    while (from < count && token_at(scan, from) != eod) {
        from++;
    }
    return from;
}

static int scan_put(struct scan *scan, uint64_t end, struct error *error) {
    uint64_t coded = htole64(end);
    if (fwrite(&coded, sizeof coded, 1, scan->out) != 1) {
        return error_set(error, -errno,
                         "%s: the ends of its documents cannot be kept (%s); free "
                         "some space where derived files are",
                         scan->raw->path, strerror(errno));
    }
    scan->last = end;
    return 0;
}

/* An end behind the id, or before it where it leads. */
static int scan_chunk(struct scan *scan, uint64_t first, size_t count, struct error *error) {
    int rc = 0;
    for (size_t i = find_eod(scan, 0, count); rc == 0 && i < count;
         i = find_eod(scan, i + 1, count)) {
        scan->found++;
        rc = scan_put(scan, first + i + (scan->raw->leads ? 0 : 1), error);
    }
    return rc;
}

static int scan_finish(struct scan *scan, size_t tail, struct error *error) {
    const struct raw *raw = scan->raw;
    if (scan->found == 0 && raw->tokens > 0) {
        return error_set(error, -EBADMSG,
                         "%s: no token %" PRIu32 " in it, which should stand between documents; "
                         "set corpus.eod to the tokenizer's end-of-text id, or to none for one "
                         "document a file, and corpus.token_type to what the file holds",
                         raw->path, raw->eod);
    }
    if (scan->last == raw->tokens) {
        return 0;
    }
    if (!raw->leads && raw->eod != 0 && token_at(scan, tail) == 0) {
        return error_set(error, -EBADMSG,
                         "%s: the last document, from token %" PRIu64
                         " on, ends in zeros and not in %" PRIu32
                         ": its writer did not finish; write the file again",
                         raw->path, scan->last, raw->eod);
    }
    return scan_put(scan, raw->tokens, error);
}

static int scan_tokens(struct scan *scan, struct error *error) {
    struct format_load load = *scan->raw->load;
    uint64_t tokens = scan->raw->tokens, all = tokens * scan->width;
    size_t count = 0;
    load.error = error;
    for (uint64_t from = 0; from < tokens; from += count) {
        count = CHUNK_BYTES / scan->width;
        count = tokens - from < count ? (size_t)(tokens - from) : count;
        int rc = format_read(&load, scan->raw->file, scan->raw->start + from * scan->width,
                             scan->chunk, count * scan->width);
        if (rc == 0) {
            rc = scan_chunk(scan, from, count, error);
        }
        if (rc == 0) {
            rc = load.progress(load.context, (from + count) * scan->width, all);
        }
        if (rc < 0) {
            return rc;
        }
    }
    return scan_finish(scan, count == 0 ? 0 : count - 1, error);
}

static int scan_make(void *context, int fd, struct error *error) {
    struct raw *raw = context;
    struct scan scan = {
        .raw = raw, .width = raw->load->documents->width, .chunk = malloc(CHUNK_BYTES)};
    int own = dup(fd);
    scan.out = own < 0 ? NULL : fdopen(own, "w");
    int rc = scan.chunk == NULL || scan.out == NULL
                 ? error_set(error, -ENOMEM, "no memory to read with; free some memory")
                 : scan_tokens(&scan, error);
    if (scan.out == NULL && own >= 0) {
        (void)close(own);
    }
    if (scan.out != NULL && fclose(scan.out) != 0 && rc == 0) {
        rc = error_set(error, -errno, "%s: the ends of its documents cannot be kept (%s)",
                       raw->path, strerror(errno));
    }
    free(scan.chunk);
    return rc;
}

int raw_add_volume(struct raw *raw) {
    uint64_t bytes = raw->tokens * raw->load->documents->width;
    return volumes_add(raw->load->volumes, raw->file, raw->start, bytes, raw->load->error);
}

/* What ends where `before` began; nothing, at the start of a file whose first id leads. */
static int add_document(struct raw *raw, uint64_t tokens) {
    struct documents *documents = raw->load->documents;
    return tokens == 0
               ? 0
               : documents_add(documents, documents->next, tokens, raw->path, raw->load->error);
}

static int refuse_end(const struct raw *raw, struct file *ends, uint64_t document, uint64_t end) {
    return error_set(raw->load->error, -EBADMSG,
                     "%s: document %" PRIu64 " ends at token %" PRIu64
                     "; remove the file, it is made again",
                     file_path(ends), document, end);
}

/* Documents from a list of ends; what ends with the file stays open with `open`. */
static int add_ends(struct raw *raw, struct file *ends, uint64_t *open) {
    uint64_t block[ENDS_BLOCK], before = 0, count = file_bytes(ends) / sizeof block[0];
    uint64_t carried = open == NULL ? 0 : *open;
    for (uint64_t from = 0; from < count; from += ENDS_BLOCK) {
        size_t some = count - from < ENDS_BLOCK ? (size_t)(count - from) : ENDS_BLOCK;
        int rc = format_read_u64(raw->load, ends, from * sizeof block[0], block, some);
        for (size_t i = 0; rc == 0 && i < some; i++) {
            if (block[i] < before || block[i] > raw->tokens) {
                return refuse_end(raw, ends, from + i, block[i]);
            }
            if (open != NULL && from + i + 1 == count) {
                *open = carried + block[i] - before;
                return 0;
            }
            rc = add_document(raw, carried + block[i] - before);
            carried = 0;
            before = block[i];
        }
        if (rc < 0) {
            return rc;
        }
    }
    return 0;
}

int raw_add_documents(struct raw *raw, uint64_t *open) {
    struct format_load *load = raw->load;
    struct file *ends = NULL;
    char *path = NULL, what[64];
    if (raw->eod == FORMAT_EOD_NONE) {
        return documents_add(load->documents, load->documents->next, raw->tokens, raw->path,
                             load->error);
    }
    (void)snprintf(what, sizeof what, "ends %u %s %s %" PRIu64, raw->eod,
                   raw->leads ? "before" : "behind", format_dtype_name(load->dtype), raw->start);
    const struct derivation derivation = {
        .source = raw->path, .what = what, .make = scan_make, .context = raw};
    int rc = derived_get(load->derived, &derivation, &path, load->error);
    if (rc == 0) {
        rc = volumes_open(load->volumes, path, &ends, load->error);
    }
    if (rc == 0) {
        rc = add_ends(raw, ends, open);
    }
    file_destroy(ends);
    free(path);
    return rc;
}
