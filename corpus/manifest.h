/* manifest: what every piece of a .bin hashes to, in a file of its own, so that no damage to the
 * tokens goes unnoticed.
 *
 *     offset       field, little endian
 *     0            "BALLAST" and a 1, the version
 *     8    u64     bytes of a piece: a power of two, 4 KB to 1 MB
 *     16   u64     bytes of .bin; of several files, those of each filled up to 1 MB but the last's
 *     24   u8[16]  the dataset's fingerprint, which covers all lengths
 *     40   u64     XXH3-64 of this header with zeros here, then of all that follows
 *     48   u64[]   XXH3-64 of each piece, the last may be shorter
 *
 * Whoever reads a piece and finds it whole notes that, so that it need not be hashed each time: it
 * is then trusted until the dataset is opened anew, as long as the file is not written to.
 * Immutable once opened but for these notes, any thread; made by one thread. */
#ifndef BALLAST_CORPUS_MANIFEST_H
#define BALLAST_CORPUS_MANIFEST_H

#include "planner/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A piece is read whole to be checked: larger ones cost reads of single documents more, smaller
 * ones memory, 8 bytes each. */
#define MANIFEST_PIECE_BYTES     65536u
#define MANIFEST_PIECE_BYTES_MAX (1u << 20) /* of any manifest */

struct manifest;

/* For `bin_bytes` bytes, hashes to be added. -ENOMEM. */
int manifest_create(uint64_t bin_bytes, const uint8_t fingerprint[16], struct manifest **out,
                    struct error *error);
void manifest_destroy(struct manifest *manifest); /* takes NULL */

/* Bytes of .bin at `offset`, which is a multiple of a piece, as is `count` but at the end. */
void manifest_add(struct manifest *manifest, uint64_t offset, const void *bytes, size_t count);

/* Written beside `path`, synced and renamed, so that it is there whole or not at all. */
int manifest_save(const struct manifest *manifest, const char *path, struct error *error);

/* -EBADMSG when the file is damaged or another dataset's, with the remedy. */
int manifest_open(const char *path, uint64_t bin_bytes, const uint8_t fingerprint[16],
                  struct manifest **out, struct error *error);

uint32_t manifest_piece_bytes(const struct manifest *manifest);
uint64_t manifest_hash(const struct manifest *manifest, uint64_t piece);

/* Whether the bytes at `offset`, as in manifest_add, are those that were hashed; *bad: offset of
 * the first piece that is not. */
bool manifest_holds(const struct manifest *manifest, uint64_t offset, const void *bytes,
                    size_t count, uint64_t *bad);

/* Notes are not kept any more: what follows is hashed each time. */
void manifest_recheck(struct manifest *manifest);

/* The piece of this number holds. */
void manifest_note_checked(const struct manifest *manifest, uint64_t piece);

/* Where what was noted ends from `offset` on, at most `limit`; `offset`: its piece was not. */
uint64_t manifest_checked_end(const struct manifest *manifest, uint64_t offset, uint64_t limit);

#endif
