/* dataset: one tokenized corpus on disk: a Megatron indexed dataset (PREFIX.idx, PREFIX.bin), or
 * files of another format (corpus/format.h).
 *
 * Opening validates everything that can be validated without reading the tokens (every check is
 * listed in corpus/megatron.h and the other formats' files) and refuses with file, offset and
 * remedy. A sequence is a document. Its tokens lie in one address space, whatever the number of
 * files (corpus/volumes.h). Immutable after open, any thread. A file that shrinks later is an
 * error of a read and not a signal, also where it is mapped (corpus/mapped.h). */
#ifndef BALLAST_CORPUS_DATASET_H
#define BALLAST_CORPUS_DATASET_H

#include "corpus/format.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dataset;
struct files;
struct manifest;
struct volumes;

/* `prefix` is the path without .idx/.bin, or what other formats have; `name` is for messages. On
 * success *out is the caller's until dataset_close (which takes NULL). */
int dataset_open(const char *name, const char *prefix, struct dataset **out, struct error *error);

/* Is told how far opening is, in millionths, which never fall; a negative errno, ECANCELED say,
 * ends it with that. Called from the thread that opens. */
struct dataset_watch {
    int (*progress)(void *context, uint32_t ppm);
    void *context;
};

/* `files` bounds the descriptors of token files (NULL: a set of its own) and outlives the dataset.
 */
int dataset_open_as(const char *name, const char *prefix, const struct format_options *options,
                    struct files *files, const struct dataset_watch *watch, struct dataset **out,
                    struct error *error);
void dataset_close(struct dataset *dataset);

const char *dataset_name(const struct dataset *dataset);
const char *dataset_prefix(const struct dataset *dataset);
enum format dataset_format(const struct dataset *dataset);

/* The first file of tokens. */
const char *dataset_bin_path(const struct dataset *dataset);

/* The files that batches are read from, and where in which file an address is, for messages. */
const struct volumes *dataset_volumes(const struct dataset *dataset);
const char *dataset_locate(const struct dataset *dataset, uint64_t address, uint64_t *offset);

/* See volumes_read_mapped; before batches are read. */
bool dataset_read_mapped(struct dataset *dataset);

/* From now on batches are read past the page cache, with `chosen` only what is not in it; before
 * any reader has the file. -EINVAL where the file system cannot. */
int dataset_read_direct(struct dataset *dataset, bool chosen, struct error *error);

uint64_t dataset_documents(const struct dataset *dataset);
uint64_t dataset_tokens(const struct dataset *dataset);
uint64_t dataset_bin_bytes(const struct dataset *dataset); /* of the address space */

/* Whether all of that is tokens; else what lies between documents is none. */
bool dataset_dense(const struct dataset *dataset);

/* Bytes of one token in the file: 1, 2, 4 or 8; dtype is Megatron's code; signed types may not hold
 * negative ids. */
uint32_t dataset_width(const struct dataset *dataset);
uint8_t dataset_dtype(const struct dataset *dataset);

/* Tokens of document i and address of its first token; i < documents. Of a large index (over 4
 * million documents) they are read from the file, through windows; where that is not possible any
 * more, 0 tokens at an offset behind the end of the file (corpus/windows.h). */
uint32_t dataset_length(const struct dataset *dataset, uint64_t i);
uint64_t dataset_offset(const struct dataset *dataset, uint64_t i);
uint64_t dataset_place(const struct dataset *dataset, uint64_t i, uint32_t *length); /* both */

/* Tokens of the longest document; 0 without any. */
uint32_t dataset_longest(const struct dataset *dataset);

/* 0, or why lengths and offsets have become unknown since open: what was planned with them is not
 * to be used. -EBADMSG changed, or what reading said. Stays. */
int dataset_failed(const struct dataset *dataset, struct error *error);

/* Reads `count` bytes at an address, blocking: for tools; batches go through corpus/reader.h. -EIO
 * also where the file ends. *have: bytes that came, also on failure. */
int dataset_read(const struct dataset *dataset, uint64_t address, void *to, size_t count,
                 size_t *have);

/* 128-bit fingerprint (XXH3): bytes of tokens, dtype, all lengths (offsets too where the documents
 * stand in another order than their tokens), and 64 keyed 4 KB samples of .bin, one from each 64th
 * of it, so that a .bin of up to 256 KB is hashed whole; never paths or times. Computed on first
 * call by reading the samples, remembered after that. */
int dataset_fingerprint(const struct dataset *dataset, uint8_t out[16], struct error *error);

/* From now on what is read of .bin is checked against PREFIX.manifest (corpus/manifest.h), each
 * piece when it is read first, or with dataset_recheck each time. Once, before any reader has the
 * file. -ENOENT without one, -EBADMSG when it is damaged or another dataset's. */
int dataset_use_manifest(struct dataset *dataset, struct error *error);
void dataset_recheck(struct dataset *dataset); /* fine without a manifest */
const struct manifest *dataset_manifest(const struct dataset *dataset); /* NULL: none */

#endif
