/* tokens_world: datasets on disk whose every token is known, and the plainest way to fill a slot.
 */
#ifndef BALLAST_TESTS_TOKENS_WORLD_H
#define BALLAST_TESTS_TOKENS_WORLD_H

#include "corpus/tokens.h"

#include <stdbool.h>

#define TOKEN_SETS_MAX 4u

struct token_set {
    uint8_t dtype;
    uint32_t documents;
    uint32_t *lengths; /* tokens */
    uint64_t *starts;  /* tokens before each document in .bin */
    uint64_t *values;  /* of .bin, in its order; only the low bits of the dtype are written */
    uint64_t tokens;
};

struct tokens_world {
    char folder[64];
    struct token_set sets[TOKEN_SETS_MAX];
    uint32_t set_count;
    struct catalog *catalog;
    struct reader *readers[2]; /* io_uring or again preadv, preadv */
};

/* Readers and an empty folder. */
void tokens_world_open(struct tokens_world *world);
void tokens_world_close(struct tokens_world *world);

/* A set with these lengths, in file order, all tokens 0. In `shuffled` order on disk when not NULL:
 * the documents by their place in .bin. */
struct token_set *tokens_world_add(struct tokens_world *world, uint8_t dtype,
                                   const uint32_t *lengths, uint32_t documents,
                                   const uint32_t *shuffled);
uint64_t *token_at(const struct token_set *set, uint64_t document, uint64_t token);

/* Writes the sets and opens the catalog; set i is named "seti". */
void tokens_world_write(struct tokens_world *world);

/* Opens what was written, anew if it is open. */
void tokens_world_reopen(struct tokens_world *world);
void tokens_world_path(const struct tokens_world *world, uint32_t set, char path[96]);
void tokens_world_clear(struct tokens_world *world); /* forgets the sets again */

/* A part of a document. */
struct document tokens_world_part(const struct tokens_world *world, uint32_t set, uint64_t document,
                                  uint32_t offset, uint32_t length);

/* Fills a payload token by token. */
void tokens_reference(const struct tokens_world *world, const struct document *documents,
                      uint32_t count, uint32_t token_bytes, void *payload);

/* Prepares a job that reads one payload. */
int tokens_prepare_one(struct tokens_job *job, const struct tokens_world *world,
                       const struct document *documents, uint32_t count, uint32_t token_bytes,
                       bool exact, void *payload, struct tokens_target *target);

/* Every extent within its bounds, none empty; and no two that could have been one. */
bool extents_are_bounded(const struct read_job *read);
bool extents_are_coalesced(const struct read_job *read, uint64_t gap_bytes_max);

/* Submits and waits (5 s at most). */
void tokens_run_read(struct reader *reader, struct tokens_job *job);

#endif
