/* npy: OLMo's and dolma's part-PP-NNNNN.npy, which are no numpy files: tokens and nothing else,
 * beside them part-PP-NNNNN.csv.gz with the documents: start and end, in tokens, then what is not
 * looked at (it may be quoted and hold commas).
 *
 * Checked: the table is whole (its gzip trailer too: a writer that crashed leaves none, and a token
 * file of full size that ends in zeros), each document begins where the one before ends, the last
 * end is all of the file in tokens of the size that corpus.token_type says or, without it, the
 * table implies. Without a table documents are found by corpus.eod. */
#include "corpus/files.h"
#include "corpus/megatron.h"
#include "corpus/raw.h"

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <zlib.h>

#define LINE_BYTES 256u /* of which the two numbers must be at the front */

#define AGAIN "copy both files again, or write them again with dolma's `tokens`"

struct table {
    struct raw *raw;
    char path[PATH_MAX];
    gzFile gz;
    uint64_t line;
    uint64_t end; /* of the last document */
};

static int table_refuse(const struct table *table, const char *what) {
    return error_set(table->raw->load->error, -EBADMSG, "%s:%" PRIu64 ": %s; " AGAIN, table->path,
                     table->line, what);
}

/* 1 with a number before a comma or the end of the line. */
static bool take_number(const char **text, uint64_t *out) {
    char *end;
    if (!isdigit((unsigned char)**text)) {
        return false;
    }
    errno = 0;
    *out = strtoull(*text, &end, 10);
    if (errno != 0 || (*end != ',' && *end != '\n' && *end != '\r' && *end != '\0')) {
        return false;
    }
    *text = end + (*end == ',');
    return true;
}

/* The rest of a line that is longer than the buffer; quoted fields may not hold line ends. */
static void table_skip(struct table *table, char *line) {
    while (strchr(line, '\n') == NULL && gzgets(table->gz, line, LINE_BYTES) != NULL) {
    }
}

static int table_line(struct table *table, char *line, uint64_t *start, uint64_t *end) {
    const char *text = line;
    table->line++;
    if (!take_number(&text, start) || !take_number(&text, end)) {
        return table_refuse(table, "no start and end of a document at its front");
    }
    if (*start != table->end || *end < *start || *end > INT64_MAX / 8) {
        return table_refuse(table, "the document does not begin where the one before ends, or ends "
                                   "before that");
    }
    table->end = *end;
    table_skip(table, line);
    return 0;
}

/* Each document to `take`; then whether the file was whole. */
static int table_read(struct table *table, int (*take)(struct table *table, uint64_t tokens)) {
    char line[LINE_BYTES];
    int rc = 0, code = Z_OK;
    table->line = 0;
    table->end = 0;
    table->gz = gzopen(table->path, "rbe");
    if (table->gz == NULL) {
        return error_set(table->raw->load->error, errno == 0 ? -ENOMEM : -errno,
                         "%s: cannot be opened; check its permissions", table->path);
    }
    while (rc == 0 && gzgets(table->gz, line, sizeof line) != NULL) {
        uint64_t start, end;
        rc = table_line(table, line, &start, &end);
        rc = rc == 0 && take != NULL ? take(table, end - start) : rc;
    }
    const char *reason = gzerror(table->gz, &code);
    if (rc == 0 && (code != Z_OK || (table->line > 0 && gzdirect(table->gz)))) {
        rc = error_set(table->raw->load->error, -EBADMSG,
                       "%s: cut off or damaged behind line %" PRIu64 " (%s); " AGAIN, table->path,
                       table->line, code == Z_OK ? "no gzip data" : reason);
    }
    gzclose(table->gz);
    return rc;
}

static int table_take(struct table *table, uint64_t tokens) {
    const struct raw *raw = table->raw;
    return documents_add(raw->load->documents, raw->load->documents->next, tokens, raw->path,
                         raw->load->error);
}

/* PATH.npy to PATH.csv.gz; whether there is one. */
static bool table_find(struct table *table, struct raw *raw) {
    table->raw = raw;
    int stem = (int)(strlen(raw->path) - strlen(".npy"));
    return snprintf(table->path, sizeof table->path, "%.*s.csv.gz", stem, raw->path) <
               (int)sizeof table->path &&
           access(table->path, F_OK) == 0;
}

static uint8_t dtype_of_width(uint64_t width) {
    switch (width) {
    case 1:
        return MEGATRON_U8;
    case 2:
        return MEGATRON_U16;
    case 4:
        return MEGATRON_U32;
    default:
        return width == 8 ? MEGATRON_U64 : 0;
    }
}

static int table_dtype(struct table *table, uint64_t bytes) {
    struct format_load *load = table->raw->load;
    int rc = table_read(table, NULL);
    if (rc < 0) {
        return rc;
    }
    uint64_t width = table->end == 0 ? 0 : bytes / table->end;
    uint8_t said = load->options->dtype != 0 ? load->options->dtype : load->dtype;
    uint8_t dtype = said != 0 ? said : bytes == 0 ? MEGATRON_U16 : dtype_of_width(width);
    if (dtype == 0 || bytes != table->end * megatron_width(dtype)) {
        return error_set(load->error, -EBADMSG,
                         "%s: %" PRIu64 " bytes, but %s ends at token %" PRIu64
                         " and tokens are %s; " AGAIN,
                         table->raw->path, bytes, table->path, table->end,
                         dtype == 0 ? "of 1, 2, 4 or 8 bytes" : format_dtype_name(dtype));
    }
    return format_set_dtype(load, dtype, table->raw->path);
}

static int check_untabled(struct raw *raw, const char *table, uint64_t bytes) {
    struct format_load *load = raw->load;
    uint8_t dtype = load->options->dtype;
    if (dtype == 0) {
        return error_set(load->error, -EINVAL,
                         "%s: nothing says how wide its tokens are (there is no %s); set "
                         "corpus.token_type",
                         raw->path, table);
    }
    if (load->options->eod == FORMAT_EOD_AUTO) {
        return error_set(load->error, -EINVAL,
                         "%s: nothing says where its documents end (there is no %s); copy that, or "
                         "set corpus.eod to the tokenizer's end-of-text id",
                         raw->path, table);
    }
    if (bytes % megatron_width(dtype) != 0) {
        return error_set(load->error, -EBADMSG,
                         "%s: %" PRIu64 " bytes, which are no whole tokens of %s; set "
                         "corpus.token_type to what the file holds, or copy it again",
                         raw->path, bytes, format_dtype_name(dtype));
    }
    return format_set_dtype(load, dtype, raw->path);
}

static int refuse_numpy(const struct raw *raw) {
    static const uint8_t magic[] = {0x93, 'N', 'U', 'M', 'P', 'Y'};
    uint8_t head[sizeof magic] = {0};
    if (file_bytes(raw->file) < sizeof head) {
        return 0;
    }
    int rc = format_read(raw->load, raw->file, 0, head, sizeof head);
    if (rc == 0 && memcmp(head, magic, sizeof magic) == 0) {
        return error_set(raw->load->error, -ENOSYS,
                         "%s: a numpy array with a header, which OLMo's files lack; write its "
                         "tokens with array.tofile() and give corpus.token_type and corpus.eod",
                         raw->path);
    }
    return rc;
}

static int npy_load_open(struct raw *raw) {
    struct table table;
    uint64_t bytes = file_bytes(raw->file);
    bool tabled = table_find(&table, raw);
    int rc = refuse_numpy(raw);
    if (rc == 0) {
        rc = tabled ? table_dtype(&table, bytes) : check_untabled(raw, table.path, bytes);
    }
    if (rc < 0) {
        file_destroy(raw->file);
        return rc;
    }
    raw->tokens = bytes / raw->load->documents->width;
    raw->eod = raw->load->options->eod;
    rc = raw_add_volume(raw);
    if (rc == 0) {
        rc = tabled ? table_read(&table, table_take) : raw_add_documents(raw, NULL);
    }
    return rc;
}

int npy_load(struct format_load *load) {
    char **paths;
    size_t count;
    int rc = format_paths(load, ".npy", &paths, &count);
    if (rc < 0) {
        return rc;
    }
    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct raw raw = {.load = load, .path = paths[i]};
        rc = volumes_open(load->volumes, paths[i], &raw.file, load->error);
        if (rc == 0) {
            rc = npy_load_open(&raw);
        }
    }
    format_paths_free(paths, count);
    return rc;
}
