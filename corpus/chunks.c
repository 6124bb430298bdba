/* chunks: see chunks.h. */
#include "corpus/chunks.h"
#include "corpus/derived.h"
#include "corpus/files.h"
#include "corpus/unzstd.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define INDEX_BYTES_MAX (64u << 20)

#define AGAIN "copy the folder again or write it again"

int chunks_read_index(const struct format_load *load, json_t **out) {
    char path[PATH_MAX];
    struct file *file = NULL;
    json_error_t where;
    if (snprintf(path, sizeof path, "%s/index.json", load->path) >= (int)sizeof path) {
        return error_set(load->error, -ENAMETOOLONG, "%s: path too long", load->path);
    }
    int rc = volumes_open(load->volumes, path, &file, load->error);
    if (rc < 0) {
        return rc == -ENOENT ? error_set(load->error, rc,
                                         "%s: no such file: its writer did not finish, or it is no "
                                         "MDS or litdata folder; write it again, or give the "
                                         "folder that has it",
                                         path)
                             : rc;
    }
    uint64_t bytes = file_bytes(file);
    char *text = bytes > INDEX_BYTES_MAX ? NULL : malloc((size_t)bytes + 1);
    if (text == NULL) {
        file_destroy(file);
        return error_set(load->error, bytes > INDEX_BYTES_MAX ? -EFBIG : -ENOMEM,
                         "%s: %" PRIu64 " bytes, more than the %u of an index; make several "
                         "datasets of it",
                         path, bytes, INDEX_BYTES_MAX);
    }
    rc = format_read(load, file, 0, text, (size_t)bytes);
    file_destroy(file);
    if (rc == 0) {
        *out = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &where);
        rc = *out != NULL ? 0
                          : error_set(load->error, -EBADMSG, "%s:%d:%d: %s; " AGAIN, path,
                                      where.line, where.column, where.text);
    }
    free(text);
    return rc;
}

static int refuse_member(const struct format_load *load, const char *key, const char *where,
                         const char *what) {
    return error_set(load->error, -EBADMSG, "%s/index.json: %s: %s is not %s; " AGAIN, load->path,
                     where, key, what);
}

int chunks_string(const struct format_load *load, const json_t *object, const char *key,
                  const char *where, const char **out) {
    const json_t *member = json_object_get(object, key);
    if (!json_is_string(member)) {
        return refuse_member(load, key, where, "a text");
    }
    *out = json_string_value(member);
    return 0;
}

int chunks_number(const struct format_load *load, const json_t *object, const char *key,
                  const char *where, uint64_t *out) {
    const json_t *member = json_object_get(object, key);
    if (!json_is_integer(member) || json_integer_value(member) < 0) {
        return refuse_member(load, key, where, "a number from 0 on");
    }
    *out = (uint64_t)json_integer_value(member);
    return 0;
}

/* A name that stays inside the folder. */
static int chunk_path(const struct format_load *load, const char *name, char **out) {
    bool outside = name[0] == '/' || name[0] == '\0' || strncmp(name, "../", 3) == 0 ||
                   strstr(name, "/../") != NULL;
    if (outside) {
        return error_set(load->error, -EBADMSG,
                         "%s/index.json: '%.128s' is no file in this folder; " AGAIN, load->path,
                         name);
    }
    return asprintf(out, "%s/%s", load->path, name) < 0
               ? error_set(load->error, -ENOMEM, "no memory for a path; free some memory")
               : 0;
}

/* Leaves chunk->path the decompressed file's. */
static int chunk_decompress(struct format_load *load, const char *zip, uint64_t raw_bytes,
                            struct chunk *chunk) {
    struct unzstd unzstd = {.bytes = raw_bytes};
    char *path = NULL;
    int rc = chunk_path(load, zip, &path);
    if (rc == 0) {
        rc = volumes_open(load->volumes, path, &unzstd.file, load->error);
    }
    if (rc == 0) {
        unzstd.path = path;
        const struct derivation derivation = {.source = path,
                                              .what = "unzstd",
                                              .bytes = raw_bytes,
                                              .make = unzstd_make,
                                              .context = &unzstd};
        rc = derived_get(load->derived, &derivation, &chunk->path, load->error);
    }
    file_destroy(unzstd.file);
    free(path);
    return rc;
}

int chunk_open(struct format_load *load, const char *raw, const char *zip, uint64_t raw_bytes,
               struct chunk *out) {
    char *path = NULL;
    *out = (struct chunk){0};
    int rc = chunk_path(load, raw, &path);
    if (rc < 0) {
        return rc;
    }
    if (zip == NULL || access(path, F_OK) == 0) {
        out->path = path;
    } else {
        free(path);
        rc = chunk_decompress(load, zip, raw_bytes, out);
    }
    return rc == 0 ? volumes_open(load->volumes, out->path, &out->file, load->error) : rc;
}

void chunk_close(struct chunk *chunk) {
    file_destroy(chunk->file);
    free(chunk->path);
    *chunk = (struct chunk){0};
}

int chunk_offsets(const struct format_load *load, struct file *file, uint32_t from, size_t count,
                  uint32_t *out) {
    return format_read_u32(load, file, 4 + 4 * (uint64_t)from, out, count + 1);
}

static int check_offsets(const struct format_load *load, const struct chunk *chunk) {
    uint32_t offsets[CHUNK_BLOCK + 1], before = chunk->begin;
    for (uint32_t from = 0; from < chunk->samples; from += CHUNK_BLOCK) {
        size_t some = chunk->samples - from < CHUNK_BLOCK ? chunk->samples - from : CHUNK_BLOCK;
        int rc = chunk_offsets(load, chunk->file, from, some, offsets);
        if (rc < 0) {
            return rc;
        }
        for (size_t i = 0; i <= some; i++) {
            if (offsets[i] < before) {
                return error_set(load->error, -EBADMSG,
                                 "%s: sample %zu is at %" PRIu32 " (offset %zu), before the one "
                                 "in front of it: damaged, or over 4 GiB so that offsets wrapped; "
                                 "write it again with a size limit",
                                 chunk->path, from + i, offsets[i], 4 + 4 * (from + i));
            }
            before = offsets[i];
        }
    }
    if (before != file_bytes(chunk->file)) {
        return error_set(load->error, -EBADMSG,
                         "%s: %" PRIu64 " bytes, but its last sample ends at %" PRIu32
                         ": cut off, or over 4 GiB so that offsets wrapped; copy the file again, "
                         "or write it again with a size limit",
                         chunk->path, file_bytes(chunk->file), before);
    }
    return 0;
}

int chunk_check(const struct format_load *load, struct chunk *chunk, uint64_t samples) {
    uint32_t head[2];
    uint64_t size = file_bytes(chunk->file);
    int rc = format_read_u32(load, chunk->file, 0, head, 2);
    if (rc < 0) {
        return rc;
    }
    uint64_t table_end = 4 + 4 * ((uint64_t)head[0] + 1);
    if (head[0] != samples) {
        return error_set(load->error, -EBADMSG,
                         "%s: %" PRIu32 " samples at offset 0, index.json says %" PRIu64 "; " AGAIN,
                         chunk->path, head[0], samples);
    }
    if (table_end > size || head[1] < table_end || head[1] > size) {
        return error_set(load->error, -EBADMSG,
                         "%s: %" PRIu32 " samples at offset 0 and the first at %" PRIu32
                         " do not fit into %" PRIu64 " bytes; copy the file again",
                         chunk->path, head[0], head[1], size);
    }
    chunk->samples = head[0];
    chunk->begin = head[1];
    return check_offsets(load, chunk);
}
