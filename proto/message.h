/* message: plans and states as wire messages.
 *
 * Built in an arena, so nothing is freed one by one; strings and digests stay borrowed from the
 * plan, which must outlive the message. NULL means the arena is full. Nothing is decided here:
 * field meanings are ballast.proto's, figures are the planner's. Unpacking needs no code of ours:
 * protobuf_c_message_unpack(type, &arena->allocator, bytes, data). */
#ifndef BALLAST_PROTO_MESSAGE_H
#define BALLAST_PROTO_MESSAGE_H

#include "ballast.pb-c.h"
#include "envelope.pb-c.h"
#include "planner/planner.h"
#include "proto/arena.h"

/* Any message of `type`, with its fields at their defaults. */
void *message_create(struct arena *arena, const ProtobufCMessageDescriptor *type);

Ballast__V1__Document *message_document(struct arena *arena, const struct document *document);

/* fragments false leaves RankShard.fragments empty (Plan without them). */
Ballast__V1__MicroBatch *message_micro_batch(struct arena *arena, const struct step_plan *plan,
                                             uint32_t micro_batch, bool fragments);

/* The same with fragments, packed: BatchEnvelope.plan. Written to the end of `out`, of `capacity`
 * bytes, which are at least message_wire_bytes_max. Returns how many. */
size_t message_wire_micro_batch(const struct step_plan *plan, uint32_t micro_batch, uint8_t *out,
                                size_t capacity);
size_t message_wire_bytes_max(const struct step_plan *plan, uint32_t micro_batch);

/* Unpacks BatchEnvelope.plan into the arena; NULL when the bytes are no such message or the arena
 * is full. */
Ballast__V1__MicroBatch *message_read_micro_batch(struct arena *arena, const uint8_t *bytes,
                                                  size_t count);

/* BatchEnvelope as it stands in the message: digest (16 bytes), plan and pool are borrowed. */
struct message_batch {
    uint64_t step;
    uint32_t dp, index, micro_batches;
    uint64_t slab_offset, slab_bytes, slot_generation, payload_hash;
    uint64_t loss_denominator, label_tokens;
    const uint8_t *digest, *plan, *pool; /* pool NULL without one */
    size_t plan_bytes, pool_bytes;
};

/* Reads a StreamEnvelope that is a batch with an id, a plan and a digest, each field once, whatever
 * else a later version adds. False for everything else, which protobuf_c_message_unpack is for. */
bool message_read_batch(const uint8_t *bytes, size_t count, struct message_batch *out);

/* Micro-batches [first, first + count) as far as the plan has them, with everything else of
 * StepPlan but the pools. */
Ballast__V1__StepPlan *message_step_plan(struct arena *arena, const struct step_plan *plan,
                                         uint32_t first, uint32_t count, bool fragments);

/* Adds the pools to a plan's message; `details`: with their tiles and transfers. False when the
 * arena is full. */
bool message_pools(struct arena *arena, const struct step_plan *plan, bool details,
                   Ballast__V1__StepPlan *out);

/* What context-parallel rank `cp` of replica `dp`, one of the pool's, needs of its pool. */
Ballast__V1__PoolPart *message_pool_part(struct arena *arena, const struct step_plan *plan,
                                         const struct plan_pool *pool, uint32_t dp, uint32_t cp);

Ballast__V1__Balance *message_balance(struct arena *arena, const struct balance *balance);
Ballast__V1__Release *message_release(struct arena *arena, const struct release *release);

/* The policy's queues ("band 0" and on; "level" and "short"), then "leftover", from a state;
 * waiting documents listed when `documents`. `options` are those that the state was made with. */
Ballast__V1__QueuesResponse *message_queues(struct arena *arena, const struct plan_state *state,
                                            const struct plan_options *options, bool documents);

/* One dataset's counters; name and sizes are the caller's knowledge of the corpus. */
Ballast__V1__DatasetStatus *message_dataset(struct arena *arena, const struct plan_state *state,
                                            uint32_t dataset, const char *name, uint64_t documents,
                                            uint64_t tokens);

/* Delays of datasets or domains, weighted by tokens: p50 and p99 are the smallest delays that at
 * least this share of the tokens does not exceed, 0 when nothing was delivered. `name` gives that
 * of each. */
Ballast__V1__DatasetDelay **message_delays(struct arena *arena, const struct delay_counts *delays,
                                           uint32_t count,
                                           const char *(*name)(const void *context, uint32_t i),
                                           const void *context);

#endif
