/* volumes: see volumes.h. */
#include "corpus/volumes.h"
#include "corpus/files.h"
#include "corpus/mapped.h"
#include "corpus/manifest.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void volumes_init(struct volumes *volumes, struct files *files) {
    *volumes = (struct volumes){.files = files};
}

void volumes_deinit(struct volumes *volumes) {
    for (uint32_t i = 0; i < volumes->count; i++) {
        file_destroy(volumes->items[i].direct);
        file_destroy(volumes->items[i].file);
    }
    free(volumes->items);
    *volumes = (struct volumes){0};
}

int volumes_open(struct volumes *volumes, const char *path, struct file **out,
                 struct error *error) {
    return file_create(volumes->files, path, false, out, error);
}

static int volumes_grow(struct volumes *volumes) {
    if (volumes->count < volumes->capacity) {
        return 0;
    }
    uint32_t capacity = volumes->capacity == 0 ? 1 : 2 * volumes->capacity;
    struct volume *items = reallocarray(volumes->items, capacity, sizeof *items);
    if (items == NULL) {
        return -ENOMEM;
    }
    volumes->items = items;
    volumes->capacity = capacity;
    return 0;
}

int volumes_add(struct volumes *volumes, struct file *file, uint64_t start, uint64_t bytes,
                struct error *error) {
    assert(start <= file_bytes(file) && bytes <= file_bytes(file) - start);
    if (volumes->bytes > INT64_MAX / 2 - bytes || volumes_grow(volumes) < 0) {
        file_destroy(file);
        return error_set(error, -ENOMEM, "no memory for the files of a dataset; free some memory");
    }
    uint64_t pieces_at = 0;
    if (volumes->count > 0) {
        const struct volume *before = &volumes->items[volumes->count - 1];
        pieces_at = before->pieces_at + before->bytes + MANIFEST_PIECE_BYTES_MAX - 1;
        pieces_at -= pieces_at % MANIFEST_PIECE_BYTES_MAX;
    }
    volumes->items[volumes->count++] = (struct volume){.file = file,
                                                       .base = volumes->bytes,
                                                       .start = start,
                                                       .bytes = bytes,
                                                       .pieces_at = pieces_at};
    volumes->bytes += bytes;
    return 0;
}

const struct volume *volumes_find(const struct volumes *volumes, uint64_t address) {
    uint32_t low = 0, high = volumes->count;
    assert(high > 0);
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (volumes->items[middle].base <= address) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &volumes->items[low];
}

int volumes_read_file(struct file *file, uint64_t offset, void *to, size_t count, size_t *have) {
    int fd = file_acquire(file);
    int rc = fd < 0 ? fd : 0;
    *have = 0;
    while (rc == 0 && *have < count) {
        ssize_t got = pread(fd, (uint8_t *)to + *have, count - *have, (off_t)(offset + *have));
        if (got > 0) {
            *have += (size_t)got;
        } else if (got == 0 || errno != EINTR) {
            rc = got == 0 ? -EIO : -errno;
        }
    }
    if (fd >= 0) {
        file_release(file);
    }
    return rc;
}

int volumes_read(const struct volumes *volumes, uint64_t address, void *to, size_t count,
                 size_t *have) {
    int rc = 0;
    *have = 0;
    while (rc == 0 && *have < count) {
        uint64_t at = address + *have;
        if (at >= volumes->bytes) {
            return -EIO;
        }
        const struct volume *volume = volumes_find(volumes, at);
        uint64_t left = volume->base + volume->bytes - at;
        size_t got, want = count - *have < left ? count - *have : (size_t)left;
        rc = volumes_read_file(volume->file, volume_offset(volume, at), (uint8_t *)to + *have, want,
                               &got);
        *have += got;
    }
    return rc;
}

int volumes_read_direct(struct volumes *volumes, bool chosen, struct error *error) {
    volumes->chosen = chosen;
    for (uint32_t i = 0; i < volumes->count; i++) {
        struct volume *volume = &volumes->items[i];
        int rc = file_create(volumes->files, file_path(volume->file), true, &volume->direct, error);
        if (rc == 0 && file_check(volume->file) < 0) {
            rc = error_set(error, -ESTALE, "%s: replaced while it was opened; try again",
                           file_path(volume->file));
        }
        if (rc < 0) {
            return rc;
        }
    }
    return 0;
}

bool volumes_read_mapped(struct volumes *volumes) {
    volumes->mapped = true;
    for (uint32_t i = 0; i < volumes->count && volumes->mapped; i++) {
        struct file *file = volumes->items[i].file;
        int fd = file_acquire(file);
        volumes->mapped = fd >= 0 && mapped_suits(fd);
        if (fd >= 0) {
            file_release(file);
        }
    }
    return volumes->mapped;
}

uint64_t volumes_manifest_bytes(const struct volumes *volumes) {
    if (volumes->count == 0) {
        return 0;
    }
    const struct volume *last = &volumes->items[volumes->count - 1];
    return last->pieces_at + last->bytes;
}

void volumes_use_manifest(struct volumes *volumes, const struct manifest *manifest) {
    for (uint32_t i = 0; i < volumes->count; i++) {
        volumes->items[i].manifest = manifest;
    }
}
