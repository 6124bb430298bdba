/* batch: see batch.h. */
#include "client/batch.h"
#include "client/pool_part.h"
#include "proto/message.h"

#include <assert.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Of one batch's arrays, which are smaller than the message that they come from. */
#define BATCH_ARENA_BYTES_MAX ((size_t)128 << 20)
#define BATCH_DIGEST_BYTES    16u

uint32_t batch_micro_batches(const Ballast__V1__BatchEnvelope *message,
                             const struct ballast_job *job) {
    return message->micro_batches > 0 ? message->micro_batches : job->micro_batches;
}

void batch_init(struct batch *batch) {
    *batch = (struct batch){0};
    arena_init(&batch->arena, BATCH_ARENA_BYTES_MAX);
}

void batch_deinit(struct batch *batch) {
    batch_release(batch);
    free(batch->copy);
    batch->copy = NULL;
    arena_deinit(&batch->arena);
}

void batch_release(struct batch *batch) {
    mapping_drop(batch->mapping);
    batch->mapping = NULL;
    batch->slot = NULL;
    batch->slot_bytes = 0;
    batch->held = false;
}

static int batch_impossible(const char *what, struct error *error) {
    return error_set(error, -EPROTO, "the daemon sent an impossible batch: %s", what);
}

/* Lays the documents out as in the slot: their tokens one after the other, then successors. */
static int batch_lay_out(struct batch *batch, uint64_t *successor_count, struct error *error) {
    const struct ballast_document *documents = batch->view.documents;
    uint32_t count = batch->view.document_count;
    uint64_t *first_rows = arena_room(&batch->arena, count, sizeof *first_rows);
    uint64_t *successors = arena_room(&batch->arena, count, sizeof *successors);
    if (first_rows == NULL || successors == NULL) {
        return error_set(error, -ENOMEM, "a batch of %u documents: out of memory", count);
    }
    uint64_t row = 0;
    for (uint32_t i = 0; i < count; i++) {
        first_rows[i] = row;
        row += documents[i].length;
    }
    uint64_t end = row;
    for (uint32_t i = 0; i < count; i++) {
        bool last = documents[i].offset + documents[i].length == documents[i].document_length;
        successors[i] = last ? GATHER_NO_SUCCESSOR : end++;
    }
    *successor_count = end - row;
    batch->rows.first_rows = first_rows;
    batch->rows.successors = successors;
    return 0;
}

static int batch_read_documents(struct batch *batch, const Ballast__V1__MicroBatch *plan,
                                uint64_t tokens_max, struct error *error) {
    size_t count = plan->n_documents;
    struct ballast_document *documents = arena_room(&batch->arena, count, sizeof *documents);
    if (documents == NULL) {
        return error_set(error, -ENOMEM, "a batch of %zu documents: out of memory", count);
    }
    uint64_t tokens = 0;
    for (size_t i = 0; i < count; i++) {
        const Ballast__V1__Document *from = plan->documents[i];
        if (from->length == 0 || (uint64_t)from->offset + from->length > from->document_length) {
            return batch_impossible("a part that is not within its document", error);
        }
        documents[i] = (struct ballast_document){
            .dataset = from->dataset,
            .document = from->document,
            .offset = from->offset,
            .length = from->length,
            .document_length = from->document_length,
            .nominal_step = from->nominal_step,
            .epoch = from->epoch,
        };
        tokens += from->length;
    }
    if (tokens != plan->tokens || tokens > tokens_max) {
        return batch_impossible("its documents are not as long as it says", error);
    }
    batch->view.documents = documents;
    batch->view.document_count = (uint32_t)count;
    batch->slot_tokens = tokens;
    batch->rows.documents = documents;
    return 0;
}

static int batch_read_shard(struct batch *batch, const Ballast__V1__RankShard *from,
                            struct ballast_shard *out, struct error *error) {
    size_t count = from->n_fragments;
    struct ballast_fragment *fragments = arena_room(&batch->arena, count, sizeof *fragments);
    if (fragments == NULL) {
        return error_set(error, -ENOMEM, "a batch of %zu fragments: out of memory", count);
    }
    uint64_t row = 0;
    for (size_t i = 0; i < count; i++) {
        const Ballast__V1__Fragment *fragment = from->fragments[i];
        if (fragment->document >= batch->view.document_count || fragment->length == 0 ||
            (uint64_t)fragment->start + fragment->length >
                batch->view.documents[fragment->document].length) {
            return batch_impossible("a fragment that is not within its part", error);
        }
        if (i > 0 && fragment->document < fragments[i - 1].document) {
            return batch_impossible("fragments out of the order of documents", error);
        }
        fragments[i] = (struct ballast_fragment){
            .document = fragment->document,
            .start = fragment->start,
            .length = fragment->length,
            .row = (uint32_t)row,
        };
        row += fragment->length;
        if (row > from->rows) {
            return batch_impossible("more fragments than rows", error);
        }
    }
    if (from->pad_rows != from->rows - row) {
        return batch_impossible("its fragments and pad rows are not its rows", error);
    }
    *out = (struct ballast_shard){from->rows, from->pad_rows, (uint32_t)count, fragments};
    return 0;
}

/* Of all ranks of the group; this rank's are the batch's own. */
static int batch_read_shards(struct batch *batch, const Ballast__V1__Sharding *sharding,
                             uint32_t rank, struct error *error) {
    size_t ranks = sharding->n_ranks;
    struct ballast_shard *shards = arena_array(&batch->arena, ranks, sizeof *shards);
    int code = shards != NULL
                   ? 0
                   : error_set(error, -ENOMEM, "a batch of %zu ranks: out of memory", ranks);
    for (size_t i = 0; code == 0 && i < ranks; i++) {
        code = batch_read_shard(batch, sharding->ranks[i], &shards[i], error);
        if (code == 0 && shards[i].rows != sharding->ranks[rank]->rows) {
            code = batch_impossible("ranks with unequal rows", error);
        }
    }
    if (code < 0) {
        return code;
    }
    batch->view.group_rank = rank;
    batch->view.group_ranks = (uint32_t)ranks;
    batch->view.shards = shards;
    batch->view.fragments = shards[rank].fragments;
    batch->view.fragment_count = shards[rank].fragment_count;
    batch->view.rows = shards[rank].rows;
    batch->view.pad_rows = shards[rank].pad_rows;
    batch->rows.fragments = shards[rank].fragments;
    batch->rows.fragment_count = shards[rank].fragment_count;
    batch->rows.pad_rows = shards[rank].pad_rows;
    return 0;
}

/* Where the slot lies in the slab. */
static int batch_share_slot(struct batch *batch, const Ballast__V1__BatchEnvelope *message,
                            struct mapping *mapping, struct error *error) {
    uint64_t end = mapping_bytes(mapping);
    if (message->slab_offset % MAPPING_SLOT_HEADER_BYTES != 0 || message->slab_offset > end ||
        end - message->slab_offset < MAPPING_SLOT_HEADER_BYTES ||
        end - message->slab_offset - MAPPING_SLOT_HEADER_BYTES < message->slab_bytes) {
        return batch_impossible("its slot is not within the slab", error);
    }
    batch->mapping = mapping_hold(mapping);
    batch->slot = mapping_at(mapping, message->slab_offset);
    return 0;
}

/* Room for a copy of the slot, whose header says once what no slab can change any more. */
static int batch_reserve_copy(struct batch *batch, const Ballast__V1__BatchEnvelope *message,
                              struct error *error) {
    uint64_t bytes = MAPPING_SLOT_HEADER_BYTES + message->slab_bytes;
    if (bytes > batch->copy_capacity) {
        free(batch->copy);
        batch->copy_capacity = (bytes + MAPPING_SLOT_HEADER_BYTES - 1) / MAPPING_SLOT_HEADER_BYTES *
                               MAPPING_SLOT_HEADER_BYTES;
        batch->copy = aligned_alloc(MAPPING_SLOT_HEADER_BYTES, batch->copy_capacity);
    }
    if (batch->copy == NULL) {
        batch->copy_capacity = 0;
        return error_set(error, -ENOMEM, "a copy of %llu bytes: out of memory",
                         (unsigned long long)message->slab_bytes);
    }
    uint64_t generation = htole64(message->slot_generation);
    memset(batch->copy, 0, MAPPING_SLOT_HEADER_BYTES);
    memcpy(batch->copy, &generation, sizeof generation);
    batch->slot = batch->copy;
    return 0;
}

static int batch_read_slot(struct batch *batch, const Ballast__V1__BatchEnvelope *message,
                           const struct batch_context *context, uint64_t successors,
                           struct error *error) {
    uint32_t token_bytes = context->job->token_bytes;
    if (message->slab_bytes == 0) {
        return context->slot_wanted && batch->slot_tokens > 0
                   ? batch_impossible("no slot, though tokens were asked for", error)
                   : 0;
    }
    if (context->mapping == NULL && (!context->fetches || !context->slot_wanted)) {
        return context->slot_wanted ? batch_impossible("a slot without a slab", error) : 0;
    }
    if (message->slab_bytes != (batch->slot_tokens + successors) * token_bytes) {
        return batch_impossible("its slot is not as long as its documents", error);
    }
    int code = context->fetches ? batch_reserve_copy(batch, message, error)
                                : batch_share_slot(batch, message, context->mapping, error);
    if (code < 0) {
        return code;
    }
    batch->slot_bytes = message->slab_bytes;
    batch->payload_hash = message->payload_hash;
    batch->slot_generation = message->slot_generation;
    batch->rows.tokens = batch->slot + MAPPING_SLOT_HEADER_BYTES;
    batch->rows.token_bytes = token_bytes;
    return 0;
}

/* Of a plan whose documents and shards are to be read. */
static int batch_check_plan(const Ballast__V1__MicroBatch *plan, uint64_t tokens_max,
                            uint32_t ranks, uint32_t rank, struct error *error) {
    if (plan->sharding == NULL) {
        return batch_impossible("id, plan, sharding or digest is missing", error);
    }
    if (plan->sharding->n_ranks != ranks) {
        return batch_impossible("not one shard per context-parallel rank", error);
    }
    if (plan->sharding->ranks[rank]->rows > tokens_max) {
        return batch_impossible("more rows than tokens_max", error);
    }
    return 0;
}

int batch_read_plan(struct batch *batch, const uint8_t *message, size_t bytes, struct arena *arena,
                    uint64_t tokens_max, uint32_t ranks, uint32_t rank, uint64_t *successors,
                    struct error *error) {
    const Ballast__V1__MicroBatch *plan = message_read_micro_batch(arena, message, bytes);
    if (plan == NULL && arena->full) {
        return error_set(error, -ENOMEM, "a plan of %zu bytes: out of memory", bytes);
    }
    if (plan == NULL) {
        return batch_impossible("its plan does not unpack", error);
    }
    int code = batch_check_plan(plan, tokens_max, ranks, rank, error);
    if (code < 0) {
        return code;
    }
    arena_reset(&batch->arena);
    batch->rows = (struct gather_rows){0};
    batch->view = (struct ballast_batch){
        .layout = (uint32_t)plan->sharding->layout,
        .exchange = (uint32_t)plan->sharding->exchange,
    };
    code = batch_read_documents(batch, plan, tokens_max, error);
    if (code == 0) {
        code = batch_lay_out(batch, successors, error);
    }
    if (code == 0) {
        code = batch_read_shards(batch, plan->sharding, rank, error);
    }
    return code;
}

int batch_read(struct batch *batch, const Ballast__V1__BatchEnvelope *message,
               const struct batch_context *context, struct error *error) {
    assert(!batch->held && batch->mapping == NULL);
    if (message->id == NULL || message->plan_digest.len != BATCH_DIGEST_BYTES) {
        return batch_impossible("id, plan, sharding or digest is missing", error);
    }
    uint64_t successors = 0;
    int code = batch_read_plan(batch, message->plan.data, message->plan.len, context->arena,
                               context->job->tokens_max, context->job->cp, context->cp, &successors,
                               error);
    if (code < 0) {
        return code;
    }
    struct ballast_batch *view = &batch->view;
    view->step = message->id->step;
    view->dp = message->id->dp;
    view->index = message->id->index;
    view->loss_denominator = message->loss_denominator;
    view->label_tokens = message->label_tokens;
    view->micro_batches = batch_micro_batches(message, context->job);
    memcpy(view->plan_digest, message->plan_digest.data, BATCH_DIGEST_BYTES);
    code = pool_part_read(view, &batch->arena, message->pool, context->job, error);
    if (code == 0) {
        code = batch_read_slot(batch, message, context, successors, error);
    }
    return code;
}

bool batch_wants_fetch(const struct batch *batch) {
    return batch->slot != NULL && batch->mapping == NULL;
}

int batch_verify(const struct batch *batch, struct error *error) {
    if (batch->slot == NULL || batch->payload_hash == 0 ||
        mapping_generation_begin(batch->slot) != batch->slot_generation) {
        return 0;
    }
    uint64_t hash = XXH3_64bits(batch->slot + MAPPING_SLOT_HEADER_BYTES, batch->slot_bytes);
    if (hash == batch->payload_hash ||
        mapping_generation_end(batch->slot) != batch->slot_generation) {
        return 0;
    }
    return error_set(error, -EBADMSG,
                     "the %llu bytes of step %llu, index %u hash to %016llx, not to %016llx as "
                     "when they were read: they were damaged on the way, by memory or a "
                     "connection; the next call asks for them again",
                     (unsigned long long)batch->slot_bytes, (unsigned long long)batch->view.step,
                     batch->view.index, (unsigned long long)hash,
                     (unsigned long long)batch->payload_hash);
}

static int64_t batch_gather_slot(const struct batch *batch, enum ballast_column column,
                                 enum ballast_type type, void *out) {
    if (batch->slot == NULL) {
        return -EINVAL;
    }
    if (mapping_generation_begin(batch->slot) != batch->slot_generation) {
        return -ESTALE;
    }
    if (column == BALLAST_TOKENS) {
        gather_tokens(&batch->rows, type, out);
    } else {
        gather_labels(&batch->rows, type, out);
    }
    if (mapping_generation_end(batch->slot) != batch->slot_generation) {
        return -ESTALE;
    }
    return (int64_t)batch->view.rows;
}

int64_t batch_gather(const struct batch *batch, enum ballast_column column, enum ballast_type type,
                     void *out, size_t capacity) {
    if (batch->view.rows > capacity) {
        return -ENOBUFS;
    }
    if (column == BALLAST_POSITIONS) {
        gather_positions(&batch->rows, type, out);
    } else if (batch->slot_tokens > 0) {
        return batch_gather_slot(batch, column, type, out);
    } else if (column == BALLAST_TOKENS) {
        gather_tokens(&batch->rows, type, out);
    } else {
        gather_labels(&batch->rows, type, out);
    }
    return (int64_t)batch->view.rows;
}
