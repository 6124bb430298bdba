/* message_wire: a micro-batch's wire bytes without messages in between, see message.h. What ranks
 * are sent again and again is packed once, by this, at a fifth of the cost of building it. Written
 * from its end to its beginning, so that a length is known when it is due and nothing is sized
 * first. */
#include "proto/message.h"

#include <assert.h>
#include <string.h>

enum { WIRE_VARINT = 0, WIRE_BYTES = 2 };

/* Most bytes of each kind with its tag and length: varints take ten, narrow ones five. */
#define WIRE_DOCUMENT_MAX  72u
#define WIRE_FRAGMENT_MAX  20u
#define WIRE_RANK_MAX      72u
#define WIRE_CANDIDATE_MAX 32u
#define WIRE_REST_MAX      160u

struct wire {
    uint8_t *first; /* of what may be written */
    uint8_t *at;    /* the first byte written */
};

static void wire_number(struct wire *wire, uint64_t value) {
    uint8_t bytes[10];
    size_t count = 0;
    for (; value > 127; value >>= 7) {
        bytes[count++] = (uint8_t)(value | 128);
    }
    bytes[count++] = (uint8_t)value;
    assert((size_t)(wire->at - wire->first) >= count);
    wire->at -= count;
    memcpy(wire->at, bytes, count);
}

static void wire_tag(struct wire *wire, uint32_t field, uint32_t kind) {
    *--wire->at = (uint8_t)(field << 3 | kind); /* fields are below 16 */
}

static void wire_field(struct wire *wire, uint32_t field, uint64_t value) {
    if (value != 0) {
        wire_number(wire, value);
        wire_tag(wire, field, WIRE_VARINT);
    }
}

/* Closes the message whose bytes end at `end`. */
static void wire_message(struct wire *wire, uint32_t field, const uint8_t *end) {
    wire_number(wire, (uint64_t)(end - wire->at));
    wire_tag(wire, field, WIRE_BYTES);
}

static void wire_document(struct wire *wire, const struct document *document) {
    const uint8_t *end = wire->at;
    wire_field(wire, 7, document->document_length);
    wire_field(wire, 6, document->epoch);
    wire_field(wire, 5, document->nominal_step);
    wire_field(wire, 4, document->length);
    wire_field(wire, 3, document->offset);
    wire_field(wire, 2, document->document);
    wire_field(wire, 1, document->dataset);
    wire_message(wire, 3, end);
}

static void wire_fragment(struct wire *wire, const struct fragment *fragment) {
    const uint8_t *end = wire->at;
    wire_field(wire, 3, fragment->length);
    wire_field(wire, 2, fragment->start);
    wire_field(wire, 1, fragment->document);
    wire_message(wire, 1, end);
}

static void wire_rank(struct wire *wire, const struct step_plan *plan,
                      const struct rank_shard *shard) {
    const uint8_t *end = wire->at;
    wire_field(wire, 6, shard->kv_rows_in);
    wire_field(wire, 5, shard->pairs);
    wire_field(wire, 4, shard->predicted_ns);
    wire_field(wire, 3, shard->pad_rows);
    wire_field(wire, 2, shard->rows);
    for (uint32_t i = shard->fragment_count; i-- > 0;) {
        wire_fragment(wire, &plan->fragments[shard->fragment_begin + i]);
    }
    wire_message(wire, 3, end);
}

static void wire_candidate(struct wire *wire, const struct layout_candidate *candidate) {
    const uint8_t *end = wire->at;
    wire_field(wire, 3, candidate->fragments);
    wire_field(wire, 2, candidate->slowest_ps / 1000);
    wire_field(wire, 1, candidate->layout);
    wire_message(wire, 4, end);
}

static void wire_sharding(struct wire *wire, const struct step_plan *plan,
                          const struct micro_batch *micro_batch) {
    const uint8_t *end = wire->at;
    const struct layout_choice *choice = &micro_batch->choice;
    for (uint32_t i = choice->candidate_count; i-- > 0;) {
        wire_candidate(wire, &choice->candidates[i]);
    }
    for (uint32_t cp = plan->cp; cp-- > 0;) {
        wire_rank(wire, plan, &plan->shards[micro_batch->shard_begin + cp]);
    }
    wire_field(wire, 2, micro_batch->exchange);
    wire_field(wire, 1, choice->layout);
    wire_message(wire, 9, end);
}

size_t message_wire_bytes_max(const struct step_plan *plan, uint32_t micro_batch) {
    const struct micro_batch *from = &plan->micro_batches[micro_batch];
    size_t bytes = WIRE_REST_MAX + (size_t)from->document_count * WIRE_DOCUMENT_MAX +
                   (size_t)from->choice.candidate_count * WIRE_CANDIDATE_MAX;
    for (uint32_t cp = 0; cp < plan->cp; cp++) {
        const struct rank_shard *shard = &plan->shards[from->shard_begin + cp];
        bytes += WIRE_RANK_MAX + (size_t)shard->fragment_count * WIRE_FRAGMENT_MAX;
    }
    return bytes;
}

size_t message_wire_micro_batch(const struct step_plan *plan, uint32_t micro_batch, uint8_t *out,
                                size_t capacity) {
    const struct micro_batch *from = &plan->micro_batches[micro_batch];
    struct wire wire = {.first = out, .at = out + capacity};
    assert(capacity >= message_wire_bytes_max(plan, micro_batch));
    wire_sharding(&wire, plan, from);
    wire_field(&wire, 8, from->other_ns);
    wire_field(&wire, 7, from->attention_ns);
    wire_field(&wire, 6, from->work_ns);
    wire_field(&wire, 5, from->pad_tokens);
    wire_field(&wire, 4, from->tokens);
    for (uint32_t i = from->document_count; i-- > 0;) {
        wire_document(&wire, &plan->documents[from->document_begin + i]);
    }
    wire_field(&wire, 2, from->index);
    wire_field(&wire, 1, from->dp);
    return (size_t)(out + capacity - wire.at);
}
