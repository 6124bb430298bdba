/* arena: memory for one message, freed as a whole; what protobuf-c unpacks into, bounded. */
#ifndef BALLAST_PROTO_ARENA_H
#define BALLAST_PROTO_ARENA_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>

struct arena_chunk;

struct arena {
    struct arena_chunk *chunks; /* newest first */
    size_t used;
    size_t bytes_max;             /* more than this: allocation fails */
    ProtobufCAllocator allocator; /* for protobuf-c; free is a no-op */
};

void arena_init(struct arena *arena, size_t bytes_max);
void arena_deinit(struct arena *arena);
void arena_reset(struct arena *arena); /* empty, keeps one chunk */

/* Zeroed, aligned for anything; NULL when out of memory or over the bound. */
void *arena_alloc(struct arena *arena, size_t bytes);
char *arena_strdup(struct arena *arena, const char *text);

#endif
