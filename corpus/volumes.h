/* volumes: the token files of a dataset as one address space.
 *
 * A volume is a stretch of one file, without what stands before the tokens (a header, a table of
 * offsets). Volumes follow one another without gaps, so that a document may begin in one file and
 * end in the next, as llm.c's shards have it. Pieces of a manifest (corpus/manifest.h) start anew
 * with each volume: no piece is of two files. Filled at open, then immutable, any thread. */
#ifndef BALLAST_CORPUS_VOLUMES_H
#define BALLAST_CORPUS_VOLUMES_H

#include "planner/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct file;
struct files;
struct manifest;

struct volume {
    struct file *file;
    struct file *direct; /* the same past the page cache, or NULL: not to be read so */
    uint64_t base;       /* address of its first byte */
    uint64_t start;      /* where that is in the file */
    uint64_t bytes;
    uint64_t pieces_at;              /* of its first byte, in the manifest */
    const struct manifest *manifest; /* of the dataset, or NULL */
};

struct volumes {
    struct files *files; /* the set that they are opened in; borrowed */
    struct volume *items;
    uint32_t count;
    uint32_t capacity;
    uint64_t bytes; /* of all */
    bool chosen;    /* what is in the page cache is read from there all the same */
    bool mapped;    /* and that by a mapping */
};

void volumes_init(struct volumes *volumes, struct files *files);
void volumes_deinit(struct volumes *volumes); /* takes a zeroed one */

/* Opens `path`; volumes_add has then to say which bytes of it (all that are read lie inside). */
int volumes_open(struct volumes *volumes, const char *path, struct file **out, struct error *error);

/* Takes the file, which is closed on failure. A stretch of 0 bytes is legal. */
int volumes_add(struct volumes *volumes, struct file *file, uint64_t start, uint64_t bytes,
                struct error *error);

/* The volume with the byte at this address; the last one for an address behind all. count > 0. */
const struct volume *volumes_find(const struct volumes *volumes, uint64_t address);

/* Where an address is in a volume's file. */
static inline uint64_t volume_offset(const struct volume *volume, uint64_t address) {
    return volume->start + (address - volume->base);
}

/* Reads `count` bytes across volumes, blocking; -EIO also where a file ends. *have: bytes that
 * came, also on failure. */
int volumes_read(const struct volumes *volumes, uint64_t address, void *to, size_t count,
                 size_t *have);

/* Reads bytes of a file that need not be of any volume; as volumes_read. */
int volumes_read_file(struct file *file, uint64_t offset, void *to, size_t count, size_t *have);

/* Batches are read past the page cache from now on; with `chosen` what is not in it. */
int volumes_read_direct(struct volumes *volumes, bool chosen, struct error *error);

/* What is in the page cache is taken from a mapping from now on (mapped.h), where all files are on
 * file systems that this suits: then true. */
bool volumes_read_mapped(struct volumes *volumes);

/* Bytes of the manifest's own space, and all volumes told of it. */
uint64_t volumes_manifest_bytes(const struct volumes *volumes);
void volumes_use_manifest(struct volumes *volumes, const struct manifest *manifest);

#endif
