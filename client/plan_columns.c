/* plan_columns: see plan_columns.h. */
#include "client/plan_columns.h"
#include "client/batch.h"
#include "proto/frame.h"
#include "proto/message.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <xxhash.h>

#define PLAN_MESSAGE_BYTES_MAX ((size_t)128 << 20)
#define PLAN_HEAD              2u /* numbers before those of the ranks */
#define PLAN_RANK              3u /* of each rank */
#define PLAN_DOCUMENT          7u /* of each document */
#define PLAN_FRAGMENT          4u

#define PLAN_ROWS_MAX     (1 << 18) /* of a column filled while Python waits: 0.1 ms, mostly */
#define PLAN_BUFFER_FLAGS (0x1 | 0x4 | 0x8) /* to be written, with its format, contiguous */

/* Py_buffer, whose layout is of Python's stable ABI. */
struct plan_buffer {
    void *buf, *object;
    ptrdiff_t len, itemsize;
    int readonly, ndim;
    char *format;
    ptrdiff_t *shape, *strides, *suboffsets;
    void *internal;
};

struct ballast_plan {
    struct ballast_plan_head *head; /* the caller's, as is `python` */
    const struct ballast_plan_python *python;
    struct arena message;
    struct batch batch; /* of which plan, rows and slot are filled; no mapping is held */
    struct error why;
    uint32_t parts; /* of the stream */
    bool read;
};

uint32_t ballast_plan_version(void) {
    return BALLAST_PLAN_VERSION;
}

struct ballast_plan *ballast_plan_create(struct ballast_plan_head *head,
                                         const struct ballast_plan_python *python) {
    struct ballast_plan *plan = calloc(1, sizeof *plan);
    if (plan != NULL) {
        plan->head = head;
        plan->python = python;
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

int ballast_plan_why(const struct ballast_plan *plan, char *why, size_t why_bytes) {
    (void)snprintf(why, why_bytes, "%s", plan->why.text);
    return plan->why.code;
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

static void plan_set_head(struct ballast_plan_head *head, const struct message_batch *message,
                          const uint8_t *begin) {
    *head = (struct ballast_plan_head){
        .step = message->step,
        .dp = message->dp,
        .index = message->index,
        .micro_batches = message->micro_batches,
        .slab_offset = message->slab_offset,
        .slab_bytes = message->slab_bytes,
        .slot_generation = message->slot_generation,
        .payload_hash = message->payload_hash,
        .loss_denominator = message->loss_denominator,
        .label_tokens = message->label_tokens,
        .pool_at = message->pool == NULL ? 0 : (uint64_t)(message->pool - begin),
        .pool_bytes = message->pool_bytes,
    };
    memcpy(head->plan_digest, message->digest, sizeof head->plan_digest);
}

/* Where the slot lies, if it is within the slab and as long as the plan says. */
static const uint8_t *plan_slot(const struct ballast_plan_stream *stream,
                                const struct ballast_plan_head *head) {
    uint64_t offset = head->slab_offset, bytes = head->slab_bytes;
    if (stream->slab == NULL || bytes != head->slot_tokens * stream->token_bytes ||
        offset % MAPPING_SLOT_HEADER_BYTES != 0 || offset > stream->slab_bytes ||
        stream->slab_bytes - offset < MAPPING_SLOT_HEADER_BYTES ||
        stream->slab_bytes - offset - MAPPING_SLOT_HEADER_BYTES < bytes) {
        return NULL;
    }
    return stream->slab + offset;
}

void ballast_plan_place(struct ballast_plan *plan, const void *slot) {
    plan->batch.slot = slot;
    plan->batch.rows.tokens = slot == NULL ? NULL : plan->batch.slot + MAPPING_SLOT_HEADER_BYTES;
}

uint64_t ballast_plan_hash(const struct ballast_plan *plan) {
    const struct gather_rows *rows = &plan->batch.rows;
    if (!plan->read || plan->batch.slot == NULL) {
        return 0;
    }
    return XXH3_64bits(rows->tokens, plan->head->slot_tokens * rows->token_bytes);
}

static int plan_read_plan(struct ballast_plan *plan, const struct ballast_plan_stream *stream,
                          const struct message_batch *message) {
    struct ballast_plan_head *head = plan->head;
    struct batch *batch = &plan->batch;
    uint64_t successors = 0;
    arena_reset(&plan->message);
    int code = batch_read_plan(batch, message->plan, message->plan_bytes, &plan->message,
                               stream->tokens_max, stream->ranks, stream->rank, &successors,
                               &plan->why);
    if (code < 0) {
        return code;
    }
    if (plan_overflows(&batch->view)) {
        return error_set(&plan->why, -EPROTO,
                         "a document's number of 64 bits where none is that large");
    }
    head->tokens = batch->slot_tokens;
    head->slot_tokens = batch->slot_tokens + successors;
    head->layout = batch->view.layout;
    head->exchange = batch->view.exchange;
    head->rows = batch->view.rows;
    head->pad_rows = batch->view.pad_rows;
    batch->slot_generation = head->slot_generation;
    batch->rows.token_bytes = stream->token_bytes;
    ballast_plan_place(plan, plan_slot(stream, head));
    return 0;
}

int ballast_plan_read(struct ballast_plan *plan, const struct ballast_plan_stream *stream,
                      const uint8_t *message, size_t bytes) {
    struct message_batch parts;
    plan->read = false;
    if (!message_read_batch(message, bytes, &parts)) {
        return BALLAST_PLAN_OTHER;
    }
    plan_set_head(plan->head, &parts, message);
    plan->parts = stream->parts;
    plan->read = plan_read_plan(plan, stream, &parts) == 0;
    return plan->read ? BALLAST_PLAN_BATCH : BALLAST_PLAN_REFUSED;
}

/* 1 with bytes in the buffer, 0 without, also at the end of the connection, or -errno. */
static int plan_receive(struct ballast_plan_stream *stream, bool *ended) {
    stream->begin = stream->end = 0;
    ssize_t got = recv(stream->fd, stream->buffer, stream->capacity, MSG_DONTWAIT);
    if (got < 0) {
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    }
    *ended = got == 0;
    stream->end = (uint64_t)got;
    return got > 0;
}

/* Whether it follows the batch before; it is the one before from now on. */
static bool plan_follows(const struct ballast_plan_head *head, struct ballast_plan_stream *stream) {
    bool follows = stream->follows != 0 && head->step == stream->step &&
                   head->index == stream->index + 1 &&
                   head->micro_batches == stream->step_micro_batches &&
                   memcmp(head->plan_digest, stream->plan_digest, sizeof stream->plan_digest) == 0;
    stream->follows = 1;
    stream->step = head->step;
    stream->index = head->index;
    stream->step_micro_batches = head->micro_batches;
    memcpy(stream->plan_digest, head->plan_digest, sizeof stream->plan_digest);
    return follows;
}

static bool plan_is_plain(const struct ballast_plan *plan,
                          const struct ballast_plan_stream *stream) {
    const struct ballast_plan_head *head = plan->head;
    uint64_t count = head->micro_batches != 0 ? head->micro_batches : stream->micro_batches;
    return head->pool_at == 0 && head->payload_hash == 0 && head->slab_bytes > 0 &&
           plan->batch.slot != NULL && head->dp == stream->dp && head->index < count;
}

int ballast_plan_next(struct ballast_plan *plan, struct ballast_plan_stream *stream) {
    struct frame_header header;
    bool ended = false;
    int code = stream->begin < stream->end ? 1 : plan_receive(stream, &ended);
    if (code <= 0) {
        return code < 0 ? code : ended ? BALLAST_PLAN_OTHER : BALLAST_PLAN_NOTHING;
    }
    uint64_t at = stream->begin + FRAME_HEADER_BYTES;
    if (at > stream->end) {
        return BALLAST_PLAN_OTHER;
    }
    frame_header_decode(stream->buffer + stream->begin, &header);
    if (header.type != FRAME_DATA || header.flags != 0 || header.stream != stream->id ||
        header.length > stream->end - at) {
        return BALLAST_PLAN_OTHER;
    }
    code = ballast_plan_read(plan, stream, stream->buffer + at, header.length);
    if (code == BALLAST_PLAN_OTHER) {
        return code;
    }
    struct ballast_plan_head *head = plan->head;
    head->pool_at += head->pool_at > 0 ? at : 0;
    stream->begin = at + header.length;
    bool follows = plan_follows(head, stream);
    return code == BALLAST_PLAN_BATCH && follows && plan_is_plain(plan, stream) ? BALLAST_PLAN_PLAIN
                                                                                : code;
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

int64_t ballast_plan_columns(const struct ballast_plan *plan, int64_t *out, size_t *capacity) {
    const struct ballast_batch *view = &plan->batch.view;
    size_t fragments = 0;
    if (!plan->read) {
        return -EINVAL;
    }
    for (uint32_t rank = 0; rank < view->group_ranks; rank++) {
        fragments += view->shards[rank].fragment_count;
    }
    size_t documents_at = PLAN_HEAD + (size_t)PLAN_RANK * view->group_ranks;
    size_t fragments_at = documents_at + (size_t)PLAN_DOCUMENT * view->document_count;
    size_t end = fragments_at + PLAN_FRAGMENT * fragments;
    if (out == NULL || end > *capacity) {
        *capacity = end;
        return -ENOBUFS;
    }
    out[0] = view->document_count;
    out[1] = (int64_t)fragments;
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

static bool plan_has(const struct ballast_plan *plan, enum ballast_column column) {
    uint32_t part = column == BALLAST_TOKENS   ? BALLAST_PART_TOKENS
                    : column == BALLAST_LABELS ? BALLAST_PART_LABELS
                                               : UINT32_MAX;
    return (plan->parts & part) != 0;
}

int ballast_plan_gather(const struct ballast_plan *plan, enum ballast_column column,
                        enum ballast_type type, void *out) {
    if (plan == NULL || !plan->read || !plan_has(plan, column)) {
        return -EINVAL;
    }
    int64_t rows = batch_gather(&plan->batch, column, type, out, (size_t)plan->batch.view.rows);
    return rows < 0 ? (int)rows : 0;
}

/* 0 for what is neither int32 nor int64. */
static int plan_type(const struct plan_buffer *buffer) {
    const char *format = buffer->format;
    if (format == NULL || format[0] == '\0' || format[1] != '\0') {
        return 0;
    }
    bool is32 = buffer->itemsize == BALLAST_INT32 && format[0] == 'i';
    bool is64 = buffer->itemsize == BALLAST_INT64 && (format[0] == 'l' || format[0] == 'q');
    return is32 || is64 ? (int)buffer->itemsize : 0;
}

int ballast_plan_fill(const struct ballast_plan *plan, enum ballast_column column, void *object) {
    struct plan_buffer buffer;
    if (plan == NULL || plan->python == NULL ||
        plan->python->get_buffer(object, &buffer, PLAN_BUFFER_FLAGS) < 0) {
        return -EINVAL;
    }
    int type = plan_type(&buffer), code = -EINVAL;
    ptrdiff_t rows = (ptrdiff_t)plan->batch.view.rows;
    if (rows > PLAN_ROWS_MAX) {
        code = -E2BIG;
    } else if (type != 0 && buffer.ndim == 1 && buffer.shape[0] >= rows) {
        code = ballast_plan_gather(plan, column, (enum ballast_type)type, buffer.buf);
    }
    if (code == 0 && buffer.shape[0] > rows) {
        code = 1;
    }
    plan->python->release_buffer(&buffer);
    return code;
}

int ballast_plan_release(const struct ballast_plan *plan, struct ballast_plan_stream *stream) {
    if (plan == NULL) {
        return -1;
    }
    Ballast__V1__StreamRequest request = BALLAST__V1__STREAM_REQUEST__INIT;
    Ballast__V1__BatchId id = BALLAST__V1__BATCH_ID__INIT;
    Ballast__V1__BatchId *released[] = {&id};
    id.step = plan->head->step;
    id.dp = (uint32_t)plan->head->dp;
    id.index = (uint32_t)plan->head->index;
    request.credits = 1;
    request.released = released;
    request.n_released = 1;
    request.waited_ns = &stream->waited_ns;
    request.n_waited_ns = 1;
    size_t bytes = protobuf_c_message_get_packed_size(&request.base);
    assert(FRAME_HEADER_BYTES + bytes <= sizeof stream->frame);
    const struct frame_header header = {
        .length = (uint32_t)bytes, .stream = stream->id, .type = FRAME_DATA};
    frame_header_encode(&header, stream->frame);
    (void)protobuf_c_message_pack(&request.base, stream->frame + FRAME_HEADER_BYTES);
    stream->frame_bytes = FRAME_HEADER_BYTES + bytes;
    ssize_t sent = send(stream->fd, stream->frame, stream->frame_bytes,
                        MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
        return -1;
    }
    stream->waited_ns = 0;
    return (int)(stream->frame_bytes - (uint64_t)sent);
}
