/* format: see format.h. */
#include "corpus/format.h"
#include "corpus/files.h"
#include "corpus/foreign.h"
#include "corpus/megatron.h"

#include <assert.h>
#include <dirent.h>
#include <endian.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

const struct format_options format_options_default = {.eod = FORMAT_EOD_AUTO};

static const struct format_row {
    const char *name;
    int (*load)(struct format_load *load);
} rows[] = {
    [FORMAT_AUTO] = {"auto", NULL},
    [FORMAT_MEGATRON] = {"megatron", NULL},
    [FORMAT_DS] = {"ds", ds_load},
    [FORMAT_NPY] = {"npy", npy_load},
    [FORMAT_BIN] = {"bin", bin_load},
    [FORMAT_MDS] = {"mds", mds_load},
    [FORMAT_LITDATA] = {"litdata", litdata_load},
};

#define ROW_COUNT (sizeof rows / sizeof rows[0])

static const struct dtype_row {
    const char *name, *numpy;
    uint8_t dtype;
} dtypes[] = {
    {"u8", "uint8", MEGATRON_U8},    {"u16", "uint16", MEGATRON_U16},
    {"u32", "uint32", MEGATRON_U32}, {"u64", "uint64", MEGATRON_U64},
    {"i16", "int16", MEGATRON_I16},  {"i32", "int32", MEGATRON_I32},
    {"i64", "int64", MEGATRON_I64},
};

#define DTYPE_COUNT (sizeof dtypes / sizeof dtypes[0])

const char *format_name(enum format format) {
    return rows[format].name;
}

int format_parse(const char *text, enum format *out) {
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (strcmp(text, rows[i].name) == 0) {
            *out = (enum format)i;
            return 0;
        }
    }
    return -EINVAL;
}

int format_dtype_parse(const char *text, uint8_t *out) {
    for (size_t i = 0; i < DTYPE_COUNT; i++) {
        if (strcmp(text, dtypes[i].name) == 0 || strcmp(text, dtypes[i].numpy) == 0) {
            *out = dtypes[i].dtype;
            return 0;
        }
    }
    return -EINVAL;
}

const char *format_dtype_name(uint8_t dtype) {
    for (size_t i = 0; i < DTYPE_COUNT; i++) {
        if (dtypes[i].dtype == dtype) {
            return dtypes[i].name;
        }
    }
    return "auto";
}

/* Detection */

static bool ends_with(const char *text, const char *ending) {
    size_t chars = strlen(text), ending_chars = strlen(ending);
    return chars > ending_chars && strcmp(text + chars - ending_chars, ending) == 0;
}

static bool exists(const char *path, const char *suffix) {
    char whole[PATH_MAX];
    struct stat info;
    return snprintf(whole, sizeof whole, "%s%s", path, suffix) < (int)sizeof whole &&
           stat(whole, &info) == 0 && S_ISREG(info.st_mode);
}

static bool is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* STEM_000001.bin of a stem and a suffix. */
static bool is_shard(const char *name, const char *stem, const char *suffix) {
    size_t chars = strlen(stem);
    if (strncmp(name, stem, chars) != 0 || name[chars] != '_') {
        return false;
    }
    size_t digits = strspn(name + chars + 1, "0123456789");
    return digits > 0 && strcmp(name + chars + 1 + digits, suffix) == 0;
}

/* The folder of a path and its last name, each of PATH_MAX bytes. */
static bool split_path(const char *path, char *folder, char *name) {
    const char *slash = strrchr(path, '/');
    int folder_chars = slash == NULL ? 0 : (int)(slash - path);
    int written = slash == NULL       ? snprintf(folder, PATH_MAX, ".")
                  : folder_chars == 0 ? snprintf(folder, PATH_MAX, "/")
                                      : snprintf(folder, PATH_MAX, "%.*s", folder_chars, path);
    return written < PATH_MAX &&
           snprintf(name, PATH_MAX, "%s", slash == NULL ? path : slash + 1) < PATH_MAX;
}

/* Whether llm.c's shards PATH_DIGITS.bin lie beside PATH. */
static bool has_shards(const char *path) {
    char name[PATH_MAX], stem[PATH_MAX];
    DIR *folder = split_path(path, name, stem) ? opendir(name) : NULL;
    const struct dirent *entry;
    bool found = false;
    while (folder != NULL && !found && (entry = readdir(folder)) != NULL) {
        found = is_shard(entry->d_name, stem, ".bin");
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    return found;
}

/* MDS and litdata both have an index.json; only litdata's speaks of chunks, which it does first. */
static enum format detect_json(const char *path) {
    char whole[PATH_MAX], text[4097];
    if (snprintf(whole, sizeof whole, "%s/index.json", path) >= (int)sizeof whole) {
        return FORMAT_MDS;
    }
    int fd = open(whole, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t have = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0) {
        (void)close(fd);
    }
    text[have < 0 ? 0 : have] = '\0';
    return strstr(text, "\"shards\"") == NULL && strstr(text, "\"chunks\"") != NULL ? FORMAT_LITDATA
                                                                                    : FORMAT_MDS;
}

static enum format detect_folder(const char *path) {
    static const struct {
        const char *suffix;
        enum format format;
    } kinds[] = {{".ds", FORMAT_DS}, {".npy", FORMAT_NPY}};
    if (exists(path, "/index.json")) {
        return detect_json(path);
    }
    DIR *folder = opendir(path);
    enum format found = FORMAT_MEGATRON;
    struct dirent *entry;
    while (folder != NULL && found == FORMAT_MEGATRON && (entry = readdir(folder)) != NULL) {
        for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
            found = ends_with(entry->d_name, kinds[i].suffix) ? kinds[i].format : found;
        }
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    return found;
}

enum format format_detect(const char *path) {
    static const struct {
        const char *suffix;
        enum format format;
    } kinds[] = {{".ds", FORMAT_DS}, {".npy", FORMAT_NPY}, {".bin", FORMAT_BIN}};
    if (exists(path, ".idx")) {
        return FORMAT_MEGATRON;
    }
    if (is_folder(path)) {
        return detect_folder(path);
    }
    if (foreign_is_half(path)) {
        return FORMAT_MEGATRON;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (exists(path, kinds[i].suffix) ||
            (ends_with(path, kinds[i].suffix) && exists(path, ""))) {
            return kinds[i].format;
        }
    }
    return has_shards(path) ? FORMAT_BIN : FORMAT_MEGATRON;
}

/* Opening */

int format_load(struct format_load *load, enum format format) {
    assert(format < ROW_COUNT && rows[format].load != NULL);
    int rc = rows[format].load(load);
    if (rc == -ECANCELED) {
        return error_set(load->error, rc, "%s: not opened to the end", load->path);
    }
    if (rc < 0) {
        (void)error_prefix(load->error, "as format %s", format_name(format));
    }
    return rc;
}

int format_set_dtype(struct format_load *load, uint8_t dtype, const char *path) {
    uint8_t said = load->options->dtype;
    if (said != 0 && said != dtype) {
        return error_set(load->error, -EBADMSG,
                         "%s: its tokens are %s and corpus.token_type says %s; leave that auto",
                         path, format_dtype_name(dtype), format_dtype_name(said));
    }
    if (load->dtype != 0 && load->dtype != dtype) {
        return error_set(load->error, -EBADMSG,
                         "%s: its tokens are %s, those of the files before are %s; make two "
                         "datasets of them",
                         path, format_dtype_name(dtype), format_dtype_name(load->dtype));
    }
    load->dtype = dtype;
    load->documents->width = megatron_width(dtype);
    return 0;
}

int format_read(const struct format_load *load, struct file *file, uint64_t offset, void *to,
                size_t count) {
    size_t have = 0;
    uint64_t size = file_bytes(file);
    if (offset > size || count > size - offset) {
        return error_set(load->error, -EBADMSG,
                         "%s: %" PRIu64 " bytes, too short for %zu bytes at offset %" PRIu64
                         "; copy the file again",
                         file_path(file), size, count, offset);
    }
    int rc = volumes_read_file(file, offset, to, count, &have);
    if (rc < 0) {
        return error_set(load->error, rc,
                         "%s: cannot read %zu bytes at offset %" PRIu64 " (%s); check the disk and "
                         "that nothing else writes the file",
                         file_path(file), count, offset, strerror(-rc));
    }
    return 0;
}

int format_read_u32(const struct format_load *load, struct file *file, uint64_t offset,
                    uint32_t *to, size_t count) {
    int rc = format_read(load, file, offset, to, count * sizeof *to);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        to[i] = le32toh(to[i]);
    }
    return rc;
}

int format_read_u64(const struct format_load *load, struct file *file, uint64_t offset,
                    uint64_t *to, size_t count) {
    int rc = format_read(load, file, offset, to, count * sizeof *to);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        to[i] = le64toh(to[i]);
    }
    return rc;
}

/* Files */

static int take_path(const struct format_load *load, char *path, char ***out, size_t *count) {
    char **grown = path == NULL ? NULL : reallocarray(*out, *count + 1, sizeof *grown);
    if (grown == NULL) {
        free(path);
        return error_set(load->error, -ENOMEM, "no memory for paths; free some memory");
    }
    *out = grown;
    grown[(*count)++] = path;
    return 0;
}

static int compare_paths(const void *left, const void *right) {
    return strverscmp(*(char *const *)left, *(char *const *)right);
}

/* All names with this suffix; with a stem, only STEM_DIGITS before it. */
static int list_folder(const struct format_load *load, const char *name, const char *stem,
                       const char *suffix, char ***out, size_t *count) {
    DIR *folder = opendir(name);
    struct dirent *entry;
    int rc = 0;
    if (folder == NULL) {
        return error_set(load->error, -errno, "%s: %s; check the path and its permissions", name,
                         strerror(errno));
    }
    while (rc == 0 && (entry = readdir(folder)) != NULL) {
        if (stem == NULL ? ends_with(entry->d_name, suffix)
                         : is_shard(entry->d_name, stem, suffix)) {
            char *path = NULL;
            path = asprintf(&path, "%s/%s", name, entry->d_name) < 0 ? NULL : path;
            rc = take_path(load, path, out, count);
        }
    }
    (void)closedir(folder);
    return rc;
}

/* PATH_DIGITS + suffix, beside PATH. */
static int list_shards(const struct format_load *load, const char *suffix, char ***out,
                       size_t *count) {
    char folder[PATH_MAX], stem[PATH_MAX];
    if (!split_path(load->path, folder, stem) || !is_folder(folder)) {
        return 0;
    }
    return list_folder(load, folder, stem, suffix, out, count);
}

int format_paths(const struct format_load *load, const char *suffix, char ***out, size_t *count) {
    int rc = 0;
    *out = NULL;
    *count = 0;
    if (is_folder(load->path)) {
        rc = list_folder(load, load->path, NULL, suffix, out, count);
    } else if (exists(load->path, suffix) || ends_with(load->path, suffix)) {
        char *path = NULL;
        const char *rest = exists(load->path, suffix) ? suffix : "";
        path = asprintf(&path, "%s%s", load->path, rest) < 0 ? NULL : path;
        rc = take_path(load, path, out, count);
    } else {
        rc = list_shards(load, suffix, out, count);
    }
    if (rc == 0 && *count == 0) {
        rc = error_set(load->error, -ENOENT,
                       "%s: no file, no folder with files that end in %s, no %s_NUMBER%s; check "
                       "the path",
                       load->path, suffix, load->path, suffix);
    }
    if (rc < 0) {
        format_paths_free(*out, *count);
        return rc;
    }
    qsort(*out, *count, sizeof **out, compare_paths);
    return 0;
}

void format_paths_free(char **paths, size_t count) {
    for (size_t i = 0; i < count; i++) {
        free(paths[i]);
    }
    free(paths);
}
