/* windows: lengths and offsets of an index's documents, in bounded memory.
 *
 * Documents are kept by chunks of WINDOW_DOCUMENTS. Of each chunk stay the tokens before it and a
 * hash; the lengths themselves lie in at most WINDOWS_MAX windows (17 MB, 32 MB more where offsets
 * do not follow from lengths). An index of up to WINDOW_DOCUMENTS * WINDOWS_MAX documents (4
 * million) is in memory whole and its file is not needed again; of a larger one a chunk is read
 * anew when it is asked for, and compared with its hash.
 *
 * Nobody who asks for a length can do anything about a file that has gone bad meanwhile: such a
 * chunk answers 0 tokens at WINDOWS_NOWHERE, where nothing can be read, and windows_failed says so
 * from then on. Whoever uses what follows from lengths looks there first.
 * Filled by one thread, then any thread. */
#ifndef BALLAST_CORPUS_WINDOWS_H
#define BALLAST_CORPUS_WINDOWS_H

#include "planner/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WINDOW_DOCUMENTS 1024u
#define WINDOWS_MAX      4096u
#define WINDOWS_NOWHERE  (UINT64_C(1) << 62) /* an offset beyond the end of any file */

struct windows;

/* Where the arrays of the index are. */
struct windows_file {
    const char *path; /* for messages */
    uint64_t lengths_at, offsets_at;
    /* Reads all `count` bytes at `offset`; 0 or a negative errno. Any thread. */
    int (*read)(const void *context, uint64_t offset, void *to, size_t count);
    const void *context;
};

/* `file` is copied, what it points to borrowed until the end if windows_resident says no. `width`
 * is a token's. NULL: out of memory. */
struct windows *windows_create(const struct windows_file *file, uint64_t documents, uint32_t width);
void windows_destroy(struct windows *windows); /* takes NULL */

/* Whether the file is not needed again. */
bool windows_resident(const struct windows *windows);

/* The lengths of the next chunk, whole but for the last one. */
void windows_put_lengths(struct windows *windows, const uint32_t *lengths, size_t count);

/* Offsets do not follow from the lengths, which are all there: windows_put_offsets follows for
 * every chunk. -ENOMEM. */
int windows_want_offsets(struct windows *windows);
void windows_put_offsets(struct windows *windows, const uint64_t *offsets, size_t count);

/* Tokens of document i, and the byte offset of its first one. */
uint32_t windows_length(const struct windows *windows, uint64_t i);
uint64_t windows_offset(const struct windows *windows, uint64_t i);

/* Both at once. */
uint64_t windows_place(const struct windows *windows, uint64_t i, uint32_t *length);

/* 0, or why a chunk could not be had: -EBADMSG changed, or what reading said. */
int windows_failed(const struct windows *windows, struct error *error);

#endif
