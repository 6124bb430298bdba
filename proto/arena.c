/* arena: see arena.h. */
#include "proto/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_ALIGNMENT       ((size_t)alignof(max_align_t))
#define ARENA_CHUNK_BYTES_MIN ((size_t)4096)

struct arena_chunk {
    struct arena_chunk *next;
    size_t bytes; /* whole chunk, this header included */
    size_t used;  /* from the start of the chunk: a multiple of ARENA_ALIGNMENT, or `bytes` */
};

static size_t arena_round(size_t bytes) {
    return (bytes + ARENA_ALIGNMENT - 1) & ~(ARENA_ALIGNMENT - 1);
}

static void *arena_protobuf_alloc(void *data, size_t bytes) {
    return arena_alloc(data, bytes);
}

static void arena_protobuf_free(void *data, void *pointer) {
    (void)data;
    (void)pointer;
}

void arena_init(struct arena *arena, size_t bytes_max) {
    *arena = (struct arena){
        .bytes_max = bytes_max,
        .allocator = {.alloc = arena_protobuf_alloc,
                      .free = arena_protobuf_free,
                      .allocator_data = arena},
    };
}

/* Frees all chunks but `kept` (may be NULL), which comes out empty. */
static void arena_keep(struct arena *arena, struct arena_chunk *kept) {
    struct arena_chunk *chunk = arena->chunks;
    while (chunk != NULL) {
        struct arena_chunk *next = chunk->next;
        if (chunk != kept) {
            free(chunk);
        }
        chunk = next;
    }
    arena->chunks = kept;
    arena->held_bytes = 0;
    if (kept != NULL) {
        kept->next = NULL;
        kept->used = arena_round(sizeof *kept);
        arena->held_bytes = kept->bytes;
    }
}

void arena_deinit(struct arena *arena) {
    arena_keep(arena, NULL);
}

void arena_reset(struct arena *arena) {
    struct arena_chunk *largest = arena->chunks;
    for (struct arena_chunk *chunk = arena->chunks; chunk != NULL; chunk = chunk->next) {
        if (chunk->bytes > largest->bytes) {
            largest = chunk;
        }
    }
    arena_keep(arena, largest);
    arena->full = false;
}

/* Adds a chunk with room for `bytes`: twice the newest one, as far as the bound allows. */
static struct arena_chunk *arena_grow(struct arena *arena, size_t bytes) {
    size_t header = arena_round(sizeof(struct arena_chunk));
    struct arena_chunk *newest = arena->chunks;
    if (newest != NULL && newest->next == NULL && newest->used == header) {
        arena_keep(arena, NULL); /* kept over a reset, too small: it must not eat into the bound */
        newest = NULL;
    }
    size_t room = arena->bytes_max - arena->held_bytes;
    if (room < header || bytes > room - header) {
        return NULL;
    }
    size_t wanted = newest == NULL ? ARENA_CHUNK_BYTES_MIN : 2 * newest->bytes;
    if (wanted < header + bytes) {
        wanted = header + bytes;
    }
    if (wanted > room) {
        wanted = room;
    }
    struct arena_chunk *chunk = malloc(wanted);
    if (chunk == NULL) {
        return NULL;
    }
    *chunk = (struct arena_chunk){.next = newest, .bytes = wanted, .used = header};
    arena->chunks = chunk;
    arena->held_bytes += wanted;
    return chunk;
}

static void *arena_take(struct arena *arena, size_t bytes) {
    struct arena_chunk *chunk = arena->chunks;
    if (chunk == NULL || bytes > chunk->bytes - chunk->used) {
        chunk = arena_grow(arena, bytes);
        if (chunk == NULL) {
            arena->full = true;
            return NULL;
        }
    }
    void *out = (uint8_t *)chunk + chunk->used;
    size_t rounded = arena_round(bytes == 0 ? 1 : bytes);
    size_t rest = chunk->bytes - chunk->used;
    chunk->used += rounded < rest ? rounded : rest;
    return out;
}

void *arena_alloc(struct arena *arena, size_t bytes) {
    void *out = arena_take(arena, bytes);
    return out == NULL ? NULL : memset(out, 0, bytes);
}

void *arena_room(struct arena *arena, size_t count, size_t bytes) {
    size_t total;
    if (__builtin_mul_overflow(count, bytes, &total)) {
        arena->full = true;
        return NULL;
    }
    return arena_take(arena, total);
}

void *arena_array(struct arena *arena, size_t count, size_t bytes) {
    void *out = arena_room(arena, count, bytes);
    return out == NULL ? NULL : memset(out, 0, count * bytes);
}

char *arena_strdup(struct arena *arena, const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = arena_alloc(arena, bytes);
    return copy == NULL ? NULL : memcpy(copy, text, bytes);
}
