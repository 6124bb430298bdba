/* mapping: the daemon's slab as a client sees it.
 *
 * The data socket takes a token and answers with one byte and a sealed memfd. The seals say that
 * nobody can shrink it (no SIGBUS) and that only the daemon writes; what does not carry them is not
 * mapped. A mapping outlives its connection for as long as batches point into it. */
#ifndef BALLAST_CLIENT_MAPPING_H
#define BALLAST_CLIENT_MAPPING_H

#include "planner/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAPPING_SLOT_HEADER_BYTES 64u
#define MAPPING_TOKEN_BYTES       16u

/* Read-only, counted: the holder of a reference may read. One thread at a time. */
struct mapping;

/* Who is told of a mapping, and what is done to it; see ballast_options. */
struct mapping_options {
    int (*map)(void *context, const void *address, size_t bytes);
    void (*unmap)(void *context, const void *address, size_t bytes);
    void *context;
    bool prefault;
};

/* Connects to the data socket and sends the token; the answer is awaited on *fd. Does not block.
 * -ENOENT or -EACCES where it cannot be reached. */
int mapping_ask(const char *path, const uint8_t token[MAPPING_TOKEN_BYTES], int *fd,
                struct error *error);

/* Takes the answer: 1 with a slab of `bytes` mapped and one reference in *out, 0 when it is not
 * there yet. -EPIPE when the daemon closed the socket instead, -ECANCELED when options->map would
 * not have it. `fd` stays the caller's; the options are copied. */
int mapping_receive(int fd, uint64_t bytes, const struct mapping_options *options,
                    struct mapping **out, struct error *error);

struct mapping *mapping_hold(struct mapping *mapping);
void mapping_drop(struct mapping *mapping); /* NULL is fine; the last one unmaps, after telling */

uint64_t mapping_bytes(const struct mapping *mapping);
const uint8_t *mapping_at(const struct mapping *mapping, uint64_t offset);

/* Generation in a slot's header. mapping_generation_begin before the slot's bytes are read,
 * mapping_generation_end after: equal values mean that none of them was overwritten meanwhile. */
uint64_t mapping_generation_begin(const uint8_t *slot);
uint64_t mapping_generation_end(const uint8_t *slot);

#endif
