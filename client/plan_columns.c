/* plan_columns: see plan_columns.h. */
#include "client/plan_columns.h"
#include "client/batch.h"
#include "proto/message.h"

#include <stdio.h>
#include <stdlib.h>

#define PLAN_MESSAGE_BYTES_MAX ((size_t)128 << 20)
#define PLAN_HEAD              6u /* numbers before those of the ranks */
#define PLAN_RANK              3u /* of each rank */
#define PLAN_DOCUMENT          7u /* of each document */
#define PLAN_FRAGMENT          4u

struct ballast_plan {
    struct arena message;
    struct batch batch; /* of which plan and rows are filled */
    bool read;
};

uint32_t ballast_plan_version(void) {
    return BALLAST_PLAN_VERSION;
}

struct ballast_plan *ballast_plan_create(void) {
    struct ballast_plan *plan = calloc(1, sizeof *plan);
    if (plan != NULL) {
        arena_init(&plan->message, PLAN_MESSAGE_BYTES_MAX);
        batch_init(&plan->batch);
    }
    return plan;
}

void ballast_plan_destroy(struct ballast_plan *plan) {
    if (plan != NULL) {
        batch_deinit(&plan->batch);
        arena_deinit(&plan->message);
        free(plan);
    }
}

static void plan_write_documents(const struct ballast_batch *view, int64_t *out) {
    size_t count = view->document_count;
    for (size_t i = 0; i < count; i++) {
        const struct ballast_document *document = &view->documents[i];
        out[i] = document->dataset;
        out[count + i] = (int64_t)document->document;
        out[2 * count + i] = document->offset;
        out[3 * count + i] = document->length;
        out[4 * count + i] = document->document_length;
        out[5 * count + i] = (int64_t)document->nominal_step;
        out[6 * count + i] = (int64_t)document->epoch;
    }
}

static void plan_write_fragments(const struct ballast_batch *view, size_t count, int64_t *out) {
    size_t at = 0;
    for (uint32_t rank = 0; rank < view->group_ranks; rank++) {
        for (uint32_t i = 0; i < view->shards[rank].fragment_count; i++, at++) {
            const struct ballast_fragment *fragment = &view->shards[rank].fragments[i];
            out[at] = fragment->document;
            out[count + at] = fragment->start;
            out[2 * count + at] = fragment->length;
            out[3 * count + at] = fragment->row;
        }
    }
}

/* Whether a column has a number that does not fit int64_t; the daemon has none. */
static bool plan_overflows(const struct ballast_batch *view) {
    uint64_t bits = 0;
    for (uint32_t i = 0; i < view->document_count; i++) {
        const struct ballast_document *document = &view->documents[i];
        bits |= document->document | document->nominal_step | document->epoch;
    }
    return bits > INT64_MAX;
}

static int64_t plan_write(const struct ballast_plan *plan, uint64_t slot_tokens, int64_t *out,
                          size_t capacity) {
    const struct ballast_batch *view = &plan->batch.view;
    size_t fragments = 0;
    for (uint32_t rank = 0; rank < view->group_ranks; rank++) {
        fragments += view->shards[rank].fragment_count;
    }
    size_t documents_at = PLAN_HEAD + (size_t)PLAN_RANK * view->group_ranks;
    size_t fragments_at = documents_at + (size_t)PLAN_DOCUMENT * view->document_count;
    size_t end = fragments_at + PLAN_FRAGMENT * fragments;
    if (end > capacity) {
        return -ENOBUFS;
    }
    out[0] = (int64_t)plan->batch.slot_tokens;
    out[1] = (int64_t)slot_tokens;
    out[2] = view->layout;
    out[3] = view->exchange;
    out[4] = view->document_count;
    out[5] = (int64_t)fragments;
    for (uint32_t rank = 0; rank < view->group_ranks; rank++) {
        const struct ballast_shard *shard = &view->shards[rank];
        int64_t *to = out + PLAN_HEAD + (size_t)PLAN_RANK * rank;
        to[0] = (int64_t)shard->rows;
        to[1] = (int64_t)shard->pad_rows;
        to[2] = shard->fragment_count;
    }
    plan_write_documents(view, out + documents_at);
    plan_write_fragments(view, fragments, out + fragments_at);
    return (int64_t)end;
}

int64_t ballast_plan_read(struct ballast_plan *plan, const uint8_t *message, size_t bytes,
                          const struct ballast_plan_job *job, int64_t *out, size_t capacity,
                          char *why, size_t why_bytes) {
    struct error error = {0};
    uint64_t successors = 0;
    plan->read = false;
    arena_reset(&plan->message);
    int code = batch_read_plan(&plan->batch, message, bytes, &plan->message, job->tokens_max,
                               job->ranks, job->rank, &successors, &error);
    if (code == 0 && plan_overflows(&plan->batch.view)) {
        code = error_set(&error, -EPROTO,
                         "a document's number of 64 bits where none is that large");
    }
    if (code < 0) {
        (void)snprintf(why, why_bytes, "%s", error.text);
        return code;
    }
    plan->read = true;
    return plan_write(plan, plan->batch.slot_tokens + successors, out, capacity);
}

int ballast_plan_gather(const struct ballast_plan *plan, enum ballast_column column,
                        enum ballast_type type, const void *slot, uint32_t token_bytes, void *out) {
    if (!plan->read) {
        return -EINVAL;
    }
    struct gather_rows rows = plan->batch.rows;
    rows.tokens = slot;
    rows.token_bytes = token_bytes;
    if (column == BALLAST_POSITIONS) {
        gather_positions(&rows, type, out);
    } else if (column == BALLAST_TOKENS) {
        gather_tokens(&rows, type, out);
    } else {
        gather_labels(&rows, type, out);
    }
    return 0;
}
