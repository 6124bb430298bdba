/* batch: a micro-batch from its message to what a rank reads.
 *
 * Everything that a caller will index with is checked once, here, against the slab and the job; the
 * gather loops then run without a check. A daemon that sends nonsense is a protocol error. */
#ifndef BALLAST_CLIENT_BATCH_H
#define BALLAST_CLIENT_BATCH_H

#include "envelope.pb-c.h"
#include "client/ballast.h"
#include "client/gather.h"
#include "client/mapping.h"
#include "proto/arena.h"

#include <stdbool.h>

struct batch {
    struct ballast_batch view; /* what the caller holds; its arrays stand in the arena */
    struct arena arena;        /* reset when the next batch is read into this record */
    bool held;                 /* given out and not released */
    uint64_t connection;       /* number of the connection that brought it */
    uint64_t generation;       /* of the job then */
    struct mapping *mapping;   /* a reference while held, NULL without a slot */
    const uint8_t *slot;       /* header of the slot, or of the copy */
    uint64_t slot_bytes;       /* behind the header */
    uint8_t *copy; /* where a fetched slot goes, header first; kept for the next batch */
    uint64_t copy_capacity;
    uint64_t payload_hash; /* XXH3-64 of the slot's bytes, 0: unknown */
    uint64_t slot_generation;
    uint64_t slot_tokens; /* of all parts, without successors */
    struct gather_rows rows;
};

/* What the batch must agree with. */
struct batch_context {
    const struct ballast_job *job;
    struct arena *arena;     /* room for the plan, while it is read */
    struct mapping *mapping; /* NULL: plans only */
    uint32_t cp;
    bool slot_wanted; /* tokens or labels */
    bool fetches;     /* slots come over the connection, into `copy` */
};

/* Of the batch's step, per replica: what the message says, or the job. */
uint32_t batch_micro_batches(const Ballast__V1__BatchEnvelope *message,
                             const struct ballast_job *job);

void batch_init(struct batch *batch);
void batch_deinit(struct batch *batch);

/* Fills a free record from a message, without keeping pointers into it; the caller then marks it
 * held. -EPROTO with the contradiction named, -ENOMEM; the record stays free. */
int batch_read(struct batch *batch, const Ballast__V1__BatchEnvelope *message,
               const struct batch_context *context, struct error *error);

/* The part of batch_read that needs the plan's bytes alone: documents, shards, layout and exchange
 * of the view, and the rows to be gathered but for where their tokens lie. `ranks` are those of the
 * context-parallel group, `rank` is the reader's place in it; `arena` has room for the message
 * while it is read. *successors: how many tokens the slot has behind those of the parts. */
int batch_read_plan(struct batch *batch, const uint8_t *message, size_t bytes, struct arena *arena,
                    uint64_t tokens_max, uint32_t ranks, uint32_t rank, uint64_t *successors,
                    struct error *error);

/* Whether the slot's bytes are still to be fetched. */
bool batch_wants_fetch(const struct batch *batch);

/* Compares the bytes of the slot with their hash, where the daemon told one: 0, or -EBADMSG. A slot
 * that was reused meanwhile is no difference; batch_gather will tell. */
int batch_verify(const struct batch *batch, struct error *error);

/* Gives up the slot. */
void batch_release(struct batch *batch);

/* ballast_gather's work: rows written, -ENOBUFS, -ESTALE, or -EINVAL without a slot to read. */
int64_t batch_gather(const struct batch *batch, enum ballast_column column, enum ballast_type type,
                     void *out, size_t capacity);

#endif
