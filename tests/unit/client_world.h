/* What a scripted daemon serves: sealed memory with slots in it, and batches.
 *
 * The world has two context-parallel ranks and two micro-batches a step. Every micro-batch is made
 * of two parts (5 and 3 tokens, the second not its document's last) split per sequence, so that
 * rank 0 has rows 0-1 and 6-7. world_token says which token stands where. */
#ifndef BALLAST_TESTS_CLIENT_WORLD_H
#define BALLAST_TESTS_CLIENT_WORLD_H

#include "client_fake.h"

#include "client/mapping.h"
#include "envelope.pb-c.h"
#include "planner/document.h"
#include "sharding/fragment.h"

#define WORLD_MICRO_BATCHES 2u
#define WORLD_CP            2u
#define WORLD_ROWS          4u /* of one rank */
#define WORLD_TOKENS        8u /* of a micro-batch */
#define WORLD_SLOT_BYTES    128u
#define WORLD_SLOTS         64u

struct world_memory {
    int fd;
    uint8_t *bytes; /* writable, from before the seals */
    uint64_t count;
};

void world_memory_create(struct world_memory *memory, uint64_t bytes);
void world_memory_destroy(struct world_memory *memory);

/* The client's view of it, through the seals and a real descriptor message. */
struct mapping *world_memory_map(const struct world_memory *memory);
void world_memory_stamp(struct world_memory *memory, uint64_t offset, uint64_t generation);
void world_send_fd(int socket, int fd);

/* A batch message with one rank's fragments filled in, the other ranks' empty. */
struct world_batch {
    Ballast__V1__Batch message;
    Ballast__V1__BatchId id;
    Ballast__V1__MicroBatch plan;
    Ballast__V1__Sharding sharding;
    uint8_t digest[16];
    struct arena arena;
};

void world_batch_make(struct world_batch *batch, const struct document *documents, uint32_t count,
                      const struct fragment *fragments, uint32_t fragment_count, uint64_t rows,
                      uint64_t pad_rows, uint32_t cp, uint32_t rank);
/* Gives the world's batch a pool of its one replica: two head shards, four blocks of four rows cut
 * where the home changes; one tile of rank 1 is computed here, one of this rank's there. All of it
 * may be changed before the message is read or sent. */
#define WORLD_TILES     5u
#define WORLD_TRANSFERS 7u
void world_pool_add(struct world_batch *batch);

/* The message as a client unpacks it, in the world's arena. */
const Ballast__V1__BatchEnvelope *world_batch_envelope(struct world_batch *batch);

void world_batch_free(struct world_batch *batch);

/* Token `i` of micro-batch (step, index); i = WORLD_TOKENS is the successor. */
uint32_t world_token(uint64_t step, uint32_t index, uint32_t i);

/* Says hello, with the fields of `hello` that the script changed; then passes the memory. */
void world_hello_init(Ballast__V1__HelloResponse *hello, const struct fake *fake);
void world_greet(struct fake *fake, const Ballast__V1__HelloResponse *hello);
void world_pass(struct fake *fake, const struct world_memory *memory);

/* Waits for the stream and its first request. */
Ballast__V1__StreamRequest *world_stream(struct fake *fake, uint32_t *stream);

/* Everything up to the first request of the stream, which must ask for (step, index). */
uint32_t world_serve(struct fake *fake, const struct world_memory *memory, uint64_t step,
                     uint32_t index, uint32_t credits);

/* The world's batch (step, index), its tokens written to its slot under generation step + 1. */
void world_batch_init(struct world_batch *batch, struct world_memory *memory, uint64_t step,
                      uint32_t index);
void world_send(struct fake *fake, uint32_t stream, struct world_batch *batch);
void world_send_batch(struct fake *fake, uint32_t stream, struct world_memory *memory,
                      uint64_t step, uint32_t index);
void world_send_end_of_step(struct fake *fake, uint32_t stream, uint64_t step);
void world_send_end_of_data(struct fake *fake, uint32_t stream, uint64_t step);

/* Waits for the release of (step, index), with its credit. */
void world_expect_release(struct fake *fake, uint32_t stream, uint64_t step, uint32_t index);

/* A whole step as a good client takes it: batches, end, releases, commit. */
void world_serve_step(struct fake *fake, uint32_t stream, struct world_memory *memory,
                      uint64_t step);

#endif
