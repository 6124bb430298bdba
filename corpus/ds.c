/* ds: datatrove's and nanotron's NAME.ds, NAME.ds.index and NAME.ds.metadata.
 *
 *     NAME.ds           tokens, u16 or u32, nothing else
 *     NAME.ds.index     u64[documents]: tokens before the end of each document
 *     NAME.ds.metadata  "tokenizer|token size", tokens, tokens for people (may be absent)
 *
 * Checked: the index is whole, its ends never fall, the last is all of NAME.ds in tokens of a size
 * that metadata and corpus.token_type, where they speak, agree on. A size that nobody names follows
 * from the last end. */
#include "corpus/files.h"
#include "corpus/format.h"
#include "corpus/megatron.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#define BLOCK          1024u
#define METADATA_BYTES 4096u

#define AGAIN "copy the files of one run again, or tokenize again"

struct ds {
    struct format_load *load;
    const char *path; /* of NAME.ds; `file` is of the volumes once added */
    struct file *file, *index;
    uint64_t bytes;
    uint64_t said_tokens; /* by metadata; 0: nothing said */
    uint32_t said_width;
};

/* The number behind the last '|' of the first line, and the second line. */
static int ds_parse_metadata(struct ds *ds, const char *path, char *text) {
    char *line_end = strchr(text, '\n');
    if (line_end != NULL) {
        *line_end = '\0';
    }
    const char *bar = strrchr(text, '|');
    char *end;
    unsigned long width = bar == NULL ? 0 : strtoul(bar + 1, &end, 10);
    if (width != 2 && width != 4) {
        return error_set(ds->load->error, -EBADMSG,
                         "%s: line 1 is '%.64s' and should end in |2 or |4, the token size; " AGAIN,
                         path, text);
    }
    ds->said_width = (uint32_t)width;
    ds->said_tokens = line_end == NULL ? 0 : strtoull(line_end + 1, NULL, 10);
    return 0;
}

static int ds_read_metadata(struct ds *ds) {
    char path[PATH_MAX], text[METADATA_BYTES + 1];
    if (snprintf(path, sizeof path, "%s.metadata", ds->path) >= (int)sizeof path) {
        return error_set(ds->load->error, -ENAMETOOLONG, "%s: path too long", ds->path);
    }
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        int code = -errno;
        return code == -ENOENT ? 0
                               : error_set(ds->load->error, code, "%s: %s; check its permissions",
                                           path, strerror(-code));
    }
    size_t have = fread(text, 1, METADATA_BYTES, file);
    text[have] = '\0';
    (void)fclose(file);
    return ds_parse_metadata(ds, path, text);
}

static int ds_open(struct ds *ds) {
    char path[PATH_MAX];
    int rc = volumes_open(ds->load->volumes, ds->path, &ds->file, ds->load->error);
    if (rc == 0 && snprintf(path, sizeof path, "%s.index", ds->path) >= (int)sizeof path) {
        rc = error_set(ds->load->error, -ENAMETOOLONG, "%s: path too long", ds->path);
    }
    if (rc == 0) {
        ds->bytes = file_bytes(ds->file);
        rc = volumes_open(ds->load->volumes, path, &ds->index, ds->load->error);
    }
    if (rc == 0 && file_bytes(ds->index) % sizeof(uint64_t) != 0) {
        rc = error_set(ds->load->error, -EBADMSG,
                       "%s: %" PRIu64 " bytes, which is not a multiple of 8; " AGAIN, path,
                       file_bytes(ds->index));
    }
    return rc == 0 ? ds_read_metadata(ds) : rc;
}

static int ds_last_end(struct ds *ds, uint64_t *last) {
    uint64_t bytes = file_bytes(ds->index);
    *last = 0;
    return bytes == 0 ? 0 : format_read_u64(ds->load, ds->index, bytes - sizeof *last, last, 1);
}

/* What everybody says who says something, or what divides. */
static int ds_find_width(struct ds *ds, uint64_t last) {
    uint8_t said = ds->load->options->dtype;
    uint32_t width = ds->said_width;
    if (width == 0) {
        width = said != 0                                        ? megatron_width(said)
                : last <= ds->bytes / 4 && ds->bytes == last * 4 ? 4
                                                                 : 2;
    }
    if (last > INT64_MAX / 8 || last * width != ds->bytes) {
        return error_set(ds->load->error, -EBADMSG,
                         "%s: %" PRIu64 " bytes, but %s.index ends at token %" PRIu64 " of %" PRIu32
                         " bytes; " AGAIN,
                         ds->path, ds->bytes, ds->path, last, width);
    }
    if (ds->said_tokens != 0 && ds->said_tokens != last) {
        return error_set(ds->load->error, -EBADMSG,
                         "%s.metadata: %" PRIu64 " tokens on line 2, but %s.index ends at %" PRIu64
                         "; " AGAIN,
                         ds->path, ds->said_tokens, ds->path, last);
    }
    if (ds->bytes == 0 && ds->load->dtype != 0) {
        return 0; /* an empty file has no type to differ in */
    }
    return format_set_dtype(ds->load, width == 2 ? MEGATRON_U16 : MEGATRON_U32, ds->path);
}

static int ds_add_documents(struct ds *ds, uint64_t base) {
    uint64_t ends[BLOCK], before = 0;
    uint64_t count = file_bytes(ds->index) / sizeof ends[0];
    for (uint64_t from = 0; from < count; from += BLOCK) {
        size_t some = count - from < BLOCK ? (size_t)(count - from) : BLOCK;
        int rc = format_read_u64(ds->load, ds->index, from * sizeof ends[0], ends, some);
        for (size_t i = 0; rc == 0 && i < some; i++) {
            uint64_t width = ds->load->documents->width;
            if (ends[i] < before || ends[i] > ds->bytes / width) {
                return error_set(ds->load->error, -EBADMSG,
                                 "%s.index: document %" PRIu64 ", at offset %" PRIu64
                                 ", ends at token %" PRIu64 ", which should be between %" PRIu64
                                 " and %" PRIu64 "; " AGAIN,
                                 ds->path, from + i, (from + i) * sizeof ends[0], ends[i], before,
                                 ds->bytes / width);
            }
            rc = documents_add(ds->load->documents, base + before * width, ends[i] - before,
                               ds->path, ds->load->error);
            before = ends[i];
        }
        if (rc < 0) {
            return rc;
        }
    }
    return 0;
}

static int ds_load_file(struct format_load *load, const char *path) {
    struct ds ds = {.load = load, .path = path};
    uint64_t last = 0, base = load->volumes->bytes;
    int rc = ds_open(&ds);
    if (rc == 0) {
        rc = ds_last_end(&ds, &last);
    }
    if (rc == 0) {
        rc = ds_find_width(&ds, last);
    }
    if (rc == 0) {
        rc = volumes_add(load->volumes, ds.file, 0, ds.bytes, load->error);
        ds.file = NULL;
    }
    if (rc == 0) {
        rc = ds_add_documents(&ds, base);
    }
    file_destroy(ds.index);
    file_destroy(ds.file);
    return rc;
}

int ds_load(struct format_load *load) {
    char **paths;
    size_t count;
    int rc = format_paths(load, ".ds", &paths, &count);
    if (rc < 0) {
        return rc;
    }
    for (size_t i = 0; rc == 0 && i < count; i++) {
        rc = ds_load_file(load, paths[i]);
        if (rc == 0) {
            rc = load->progress(load->context, i + 1, count);
        }
    }
    format_paths_free(paths, count);
    return rc;
}
