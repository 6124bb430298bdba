/* import: see import.h. */
#include "corpus/import.h"
#include "corpus/megatron.h"
#include "corpus/tree.h"

#include <endian.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>

#define TEXT_CHUNK_BYTES     (64u << 10)
#define PROGRESS_INTERVAL_NS UINT64_C(200000000)

/* A file on its way from a temporary name to its own. */
struct output {
    FILE *file;
    char path[4096];
    char temporary[4096];
};

struct import {
    const struct import_options *options;
    void (*progress)(const struct import_progress *progress, void *context);
    void *context;
    uint64_t progress_ns; /* when progress was called last */
    struct import_progress done;
    struct tree tree;
    uint32_t *lengths; /* tokens of each document */
    struct output bin;
    struct output idx;
    int folder_fd;
    struct error *error;
};

static int refuse(const struct import *import, const char *path, int code, const char *doing,
                  const char *remedy) {
    return error_set(import->error, code, "%s: cannot %s (%s); %s", path, doing, strerror(-code),
                     remedy);
}

static void report(struct import *import, bool at_end) {
    struct timespec now;
    if (import->progress == NULL) {
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t now_ns = (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
    if (at_end || now_ns - import->progress_ns >= PROGRESS_INTERVAL_NS) {
        import->progress_ns = now_ns;
        import->progress(&import->done, import->context);
    }
}

static int output_name(struct import *import, struct output *output, const char *suffix) {
    const char *prefix = import->options->prefix;
    int chars = snprintf(output->temporary, sizeof output->temporary, "%s%s.tmp.%ld", prefix,
                         suffix, (long)getpid());
    if (chars >= (int)sizeof output->temporary) {
        return error_set(import->error, -ENAMETOOLONG, "%s: path too long; give a shorter prefix",
                         prefix);
    }
    snprintf(output->path, sizeof output->path, "%s%s", prefix, suffix);
    return 0;
}

static int output_open(struct import *import, struct output *output) {
    int fd = open(output->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        return refuse(import, output->temporary, -errno, "create",
                      "make the folder, check its permissions, remove what is left there");
    }
    output->file = fdopen(fd, "w");
    if (output->file == NULL) {
        int code = -errno;
        close(fd);
        unlink(output->temporary);
        return refuse(import, output->temporary, code, "open", "free some memory");
    }
    return 0;
}

static int output_write(struct import *import, struct output *output, const void *bytes,
                        size_t count) {
    if (fwrite(bytes, 1, count, output->file) != count) {
        return refuse(import, output->temporary, -errno, "write", "free some space");
    }
    return 0;
}

/* On disk, still under its temporary name. */
static int output_finish(struct import *import, struct output *output) {
    if (fflush(output->file) != 0 || fsync(fileno(output->file)) < 0) {
        return refuse(import, output->temporary, -errno, "write", "free some space");
    }
    return 0;
}

static void output_discard(struct output *output) {
    if (output->file != NULL) {
        fclose(output->file);
        unlink(output->temporary);
        output->file = NULL;
    }
}

/* From here on the temporary name is gone and nothing is left to discard. */
static int output_publish(struct import *import, struct output *output) {
    if (rename(output->temporary, output->path) < 0 || fsync(import->folder_fd) < 0) {
        return refuse(import, output->path, -errno, "put in place", "check the folder");
    }
    fclose(output->file);
    output->file = NULL;
    return 0;
}

/* One input, plain or compressed. */
struct input {
    const char *path;
    int fd;
    gzFile gz; /* owns fd when set */
};

static int input_open(struct import *import, struct input *input, const char *path) {
    *input = (struct input){.path = path, .fd = open(path, O_RDONLY | O_CLOEXEC)};
    if (input->fd < 0) {
        return refuse(import, path, -errno, "open", "check its permissions");
    }
    if (import->options->decompress_gz && tree_is_gz(path)) {
        input->gz = gzdopen(input->fd, "rb");
        if (input->gz == NULL) {
            close(input->fd);
            return refuse(import, path, -ENOMEM, "decompress", "free some memory");
        }
    }
    return 0;
}

static void input_close(struct input *input) {
    if (input->gz != NULL) {
        gzclose(input->gz);
    } else {
        close(input->fd);
    }
}

static int refuse_gz(struct import *import, const struct input *input) {
    int code = Z_OK;
    const char *text = gzerror(input->gz, &code);
    if (code == Z_ERRNO) {
        return refuse(import, input->path, -errno, "read", "check the disk");
    }
    return error_set(import->error, -EBADMSG, "%s: %s at offset %ld; replace or remove it",
                     input->path, code == Z_OK ? "no gzip data" : text, (long)gzoffset(input->gz));
}

/* zlib hands on what is not compressed, and what it has of a file that is cut short. */
static int input_read_gz(struct import *import, struct input *input, void *to, size_t want,
                         size_t *have) {
    int code = Z_OK;
    int count = gzread(input->gz, to, (unsigned)want);
    gzerror(input->gz, &code);
    if (count < 0 || code != Z_OK || (count > 0 && gzdirect(input->gz))) {
        return refuse_gz(import, input);
    }
    *have = (size_t)count;
    return 0;
}

/* *have 0 at the end. */
static int input_read(struct import *import, struct input *input, void *to, size_t want,
                      size_t *have) {
    if (input->gz != NULL) {
        return input_read_gz(import, input, to, want, have);
    }
    for (;;) {
        ssize_t count = read(input->fd, to, want);
        if (count >= 0) {
            *have = (size_t)count;
            return 0;
        }
        if (errno != EINTR) {
            return refuse(import, input->path, -errno, "read", "check the disk");
        }
    }
}

static int write_text(struct import *import, const uint8_t *text, size_t count) {
    uint16_t tokens[4096];
    for (size_t done = 0; done < count;) {
        size_t chunk = count - done < 4096 ? count - done : 4096;
        for (size_t i = 0; i < chunk; i++) {
            tokens[i] = htole16(text[done + i]);
        }
        int rc = output_write(import, &import->bin, tokens, chunk * sizeof tokens[0]);
        if (rc < 0) {
            return rc;
        }
        done += chunk;
    }
    return 0;
}

/* Copies a file as tokens; *bytes: its length. */
static int copy_text(struct import *import, struct input *input, uint64_t *bytes) {
    uint8_t text[TEXT_CHUNK_BYTES];
    *bytes = 0;
    for (;;) {
        size_t have = 0;
        int rc = input_read(import, input, text, sizeof text, &have);
        if (rc < 0 || have == 0) {
            return rc;
        }
        *bytes += have;
        if (*bytes >= INT32_MAX) {
            return error_set(import->error, -EINVAL,
                             "%s: longer than the %d tokens of a document; split it", input->path,
                             INT32_MAX);
        }
        rc = write_text(import, text, have);
        if (rc < 0) {
            return rc;
        }
        import->done.bytes += have;
        report(import, false);
    }
}

static int import_file(struct import *import, const char *path) {
    const uint16_t eod = htole16(IMPORT_EOD);
    struct input input;
    uint64_t bytes = 0;
    int rc = input_open(import, &input, path);
    if (rc < 0) {
        return rc;
    }
    rc = copy_text(import, &input, &bytes);
    input_close(&input);
    if (rc == 0 && bytes > 0) {
        rc = output_write(import, &import->bin, &eod, sizeof eod);
    }
    if (rc < 0) {
        return rc;
    }
    import->done.files++;
    if (bytes == 0) {
        import->done.skipped++;
        return 0;
    }
    import->lengths[import->done.documents++] = (uint32_t)bytes + 1;
    import->done.tokens += bytes + 1;
    return 0;
}

static int write_u64(struct import *import, uint64_t value) {
    value = htole64(value);
    return output_write(import, &import->idx, &value, sizeof value);
}

static int write_index(struct import *import) {
    uint64_t documents = import->done.documents;
    uint64_t offset = 0;
    uint8_t header[MEGATRON_HEADER_BYTES];
    megatron_header_encode(header, MEGATRON_U16, documents, documents + 1);
    int rc = output_write(import, &import->idx, header, sizeof header);
    for (uint64_t i = 0; i < documents && rc == 0; i++) {
        uint32_t length = htole32(import->lengths[i]);
        rc = output_write(import, &import->idx, &length, sizeof length);
    }
    for (uint64_t i = 0; i < documents && rc == 0; i++) {
        rc = write_u64(import, offset);
        offset += (uint64_t)import->lengths[i] * sizeof(uint16_t);
    }
    for (uint64_t i = 0; i <= documents && rc == 0; i++) {
        rc = write_u64(import, i);
    }
    return rc;
}

static int list_files(struct import *import) {
    struct stat outputs[2];
    struct tree_options options = {.root = import->options->root,
                                   .suffixes = import->options->suffixes,
                                   .ignore_gz = import->options->decompress_gz,
                                   .outputs = outputs};
    const char *paths[] = {import->bin.path, import->idx.path};
    for (size_t i = 0; i < 2; i++) {
        if (lstat(paths[i], &outputs[options.output_count]) == 0) {
            options.output_count++;
            if (!import->options->force) {
                return error_set(import->error, -EEXIST,
                                 "%s: exists; give another prefix, or --force to replace it",
                                 paths[i]);
            }
        }
    }
    int rc = tree_list(&options, &import->tree, import->error);
    if (rc < 0) {
        return rc;
    }
    if (import->tree.count == 0 || import->tree.count > MEGATRON_SEQUENCES_MAX) {
        return error_set(import->error, -ENOENT,
                         "%s: %zu files to import (endings: %s); give a folder with text files",
                         options.root, import->tree.count,
                         options.suffixes == NULL ? "all" : options.suffixes);
    }
    import->done.files_total = import->tree.count;
    import->done.skipped = import->tree.links;
    return 0;
}

static int open_folder(struct import *import) {
    char folder[sizeof import->bin.path];
    memcpy(folder, import->bin.path, sizeof folder);
    const char *name = dirname(folder);
    import->folder_fd = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (import->folder_fd < 0) {
        return refuse(import, name, -errno, "open", "make the folder");
    }
    return 0;
}

static int write_files(struct import *import) {
    int rc = 0;
    for (size_t i = 0; i < import->tree.count && rc == 0; i++) {
        rc = import_file(import, import->tree.paths[i]);
        report(import, false);
    }
    if (rc == 0 && import->done.documents == 0) {
        rc = error_set(import->error, -ENOENT, "%s: all files are empty; give one with text",
                       import->options->root);
    }
    if (rc == 0) {
        rc = write_index(import);
    }
    if (rc == 0) {
        rc = output_finish(import, &import->bin);
    }
    return rc < 0 ? rc : output_finish(import, &import->idx);
}

/* The index makes the prefix whole: it goes first when there is an old one, and comes last. */
static int publish(struct import *import) {
    if (unlink(import->idx.path) == 0) {
        if (fsync(import->folder_fd) < 0) {
            return refuse(import, import->idx.path, -errno, "remove", "check the folder");
        }
    } else if (errno != ENOENT) {
        return refuse(import, import->idx.path, -errno, "remove", "check the folder");
    }
    int rc = output_publish(import, &import->bin);
    return rc < 0 ? rc : output_publish(import, &import->idx);
}

static int import_run(struct import *import) {
    int rc = output_name(import, &import->bin, ".bin");
    if (rc < 0 || (rc = output_name(import, &import->idx, ".idx")) < 0 ||
        (rc = open_folder(import)) < 0 || (rc = list_files(import)) < 0) {
        return rc;
    }
    import->lengths = calloc(import->tree.count, sizeof *import->lengths);
    if (import->lengths == NULL) {
        return error_set(import->error, -ENOMEM, "no memory for %zu lengths; import in parts",
                         import->tree.count);
    }
    if ((rc = output_open(import, &import->bin)) < 0 ||
        (rc = output_open(import, &import->idx)) < 0 || (rc = write_files(import)) < 0) {
        return rc;
    }
    return publish(import);
}

int import_text(const struct import_options *options,
                void (*progress)(const struct import_progress *progress, void *context),
                void *context, struct import_progress *result, struct error *error) {
    struct import import = {.options = options,
                            .progress = progress,
                            .context = context,
                            .folder_fd = -1,
                            .error = error};
    int rc = import_run(&import);
    output_discard(&import.idx);
    output_discard(&import.bin);
    if (import.folder_fd >= 0) {
        close(import.folder_fd);
    }
    free(import.lengths);
    tree_deinit(&import.tree);
    if (rc == 0) {
        report(&import, true);
        *result = import.done;
    }
    return rc;
}
