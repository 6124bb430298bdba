/* chunks: what MDS shards and litdata chunks have in common: an index.json that names them, a table
 * of u32 offsets at the front of each, and compression of whole files.
 *
 *     offset     chunk, little endian
 *     0    u32   n, samples
 *     4    u32[n+1]  offset in the file of each sample, then the end of the last: never falling,
 *                first not inside the table, last the end of the file
 *
 * Offsets of 32 bits wrap in chunks over 4 GiB, which is found by the rules of the table. */
#ifndef BALLAST_CORPUS_CHUNKS_H
#define BALLAST_CORPUS_CHUNKS_H

#include "corpus/format.h"

#include <jansson.h>

/* Reads FOLDER/index.json; the caller decrefs. -EBADMSG with line and column. */
int chunks_read_index(const struct format_load *load, json_t **out);

/* Members of an index; `where` names the object in messages. 0 when it is there and of its kind. */
int chunks_string(const struct format_load *load, const json_t *object, const char *key,
                  const char *where, const char **out);
int chunks_number(const struct format_load *load, const json_t *object, const char *key,
                  const char *where, uint64_t *out);

/* One chunk, open. */
struct chunk {
    char *path;        /* heap, of what is read: the decompressed file where it was compressed */
    struct file *file; /* taken from by volumes_add */
    uint32_t samples;
    uint32_t begin; /* offset of the first sample */
};

/* Names relative to the folder, which may not lead out of it; `zip` NULL: not compressed. Where
 * `raw` lies there it is read, else `zip` is decompressed into the derived folder (raw_bytes known
 * and right). */
int chunk_open(struct format_load *load, const char *raw, const char *zip, uint64_t raw_bytes,
               struct chunk *out);
/* Also after a failure; what volumes took must be NULL. */
void chunk_close(struct chunk *chunk);

/* Checks the table against the file, of which the index says `samples` samples. */
int chunk_check(const struct format_load *load, struct chunk *chunk, uint64_t samples);

/* Offsets of samples from..from+count, one more than count. */
int chunk_offsets(const struct format_load *load, struct file *file, uint32_t from, size_t count,
                  uint32_t *out);

#define CHUNK_BLOCK 1024u /* samples that are looked at together */

#endif
