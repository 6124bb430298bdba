/* arena: memory for one message, freed as a whole; what protobuf-c unpacks into, bounded.
 *
 * Chunks double from 4 KiB, so a message of any size costs a few calls of malloc, and after the
 * first reset usually none. The bound counts what the arena holds, not what was asked of it:
 * whatever a peer sends, the process grows by at most bytes_max. One thread at a time. */
#ifndef BALLAST_PROTO_ARENA_H
#define BALLAST_PROTO_ARENA_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>

struct arena_chunk;

struct arena {
    struct arena_chunk *chunks;   /* newest first; only the newest has room */
    size_t held_bytes;            /* of all chunks, their headers included */
    size_t bytes_max;             /* held_bytes never exceeds it: allocation fails instead */
    bool full;                    /* an allocation failed since init or reset: what did not unpack
                                     was too large, not malformed */
    ProtobufCAllocator allocator; /* for protobuf-c; free is a no-op */
};

/* Allocates nothing yet. `allocator` points back to the arena, which must not move afterwards. */
void arena_init(struct arena *arena, size_t bytes_max);

/* Frees everything; fine for a zeroed arena, and twice. */
void arena_deinit(struct arena *arena);

/* Empties the arena and keeps its largest chunk. What came out of it is invalid. */
void arena_reset(struct arena *arena);

/* Zeroed, aligned for anything, valid until reset or deinit; NULL when out of memory or over the
 * bound. 0 bytes give a valid pointer to nothing. */
void *arena_alloc(struct arena *arena, size_t bytes);

/* `count` elements of `bytes`, zeroed; NULL also when the product overflows. */
void *arena_array(struct arena *arena, size_t count, size_t bytes);

/* The same with whatever the memory has in it, for large arrays of which all that is read is
 * written first. */
void *arena_room(struct arena *arena, size_t count, size_t bytes);

char *arena_strdup(struct arena *arena, const char *text);

#endif
