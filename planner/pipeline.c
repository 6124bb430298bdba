/* pipeline: see pipeline.h. One cursor per stage; stages are swept up, as forwards pass through
 * them, and down, each advances while its next operation's inputs are known. */
#include "planner/pipeline.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#define END_UNKNOWN UINT64_MAX
#define NONE_BEFORE UINT32_MAX

static const struct {
    enum pipeline_schedule schedule;
    const char *name;
} schedules[] = {
    {PIPELINE_1F1B, "1f1b"},
    {PIPELINE_INTERLEAVED, "interleaved"},
    {PIPELINE_AFAB, "afab"},
};

#define SCHEDULES (sizeof schedules / sizeof schedules[0])

const char *pipeline_schedule_name(enum pipeline_schedule schedule) {
    for (size_t i = 0; i < SCHEDULES; i++) {
        if (schedules[i].schedule == schedule) {
            return schedules[i].name;
        }
    }
    return NULL;
}

int pipeline_schedule_parse(const char *name, enum pipeline_schedule *out) {
    for (size_t i = 0; i < SCHEDULES; i++) {
        if (strcmp(schedules[i].name, name) == 0) {
            *out = schedules[i].schedule;
            return 0;
        }
    }
    return -EINVAL;
}

int pipeline_check(const struct pipeline_shape *shape, struct error *error) {
    uint64_t virtual_stages = (uint64_t)shape->stages * shape->chunks;
    if (shape->stages == 0 || shape->micro_batches == 0 || shape->chunks == 0 ||
        pipeline_schedule_name(shape->schedule) == NULL) {
        return error_set(error, -EINVAL,
                         "pipeline of %" PRIu32 " stages with %" PRIu32 " chunks and %" PRIu32
                         " micro-batches: give at least one of each",
                         shape->stages, shape->chunks, shape->micro_batches);
    }
    if (virtual_stages > PIPELINE_OPERATIONS_MAX ||
        2 * virtual_stages * shape->micro_batches > PIPELINE_OPERATIONS_MAX) {
        return error_set(error, -EINVAL,
                         "pipeline of %" PRIu64 " virtual stages and %" PRIu32
                         " micro-batches: more than %u operations; lower one of them",
                         virtual_stages, shape->micro_batches, PIPELINE_OPERATIONS_MAX);
    }
    if (shape->schedule == PIPELINE_1F1B && shape->chunks > 1) {
        return error_set(error, -EINVAL,
                         "1f1b runs one chunk a stage, not %" PRIu32 "; interleaved runs several",
                         shape->chunks);
    }
    if (shape->chunks > 1 && shape->micro_batches % shape->stages != 0) {
        return error_set(error, -EINVAL,
                         "%" PRIu32 " micro-batches a replica: not a multiple of the %" PRIu32
                         " stages, as chunks by turns need; take %" PRIu32 " or one chunk a stage",
                         shape->micro_batches, shape->stages,
                         (shape->micro_batches / shape->stages + 1) * shape->stages);
    }
    return 0;
}

static uint32_t pipeline_virtual_stages(const struct pipeline_shape *shape) {
    return shape->stages * shape->chunks;
}

/* Forwards of one stage, and as many backwards. */
static uint32_t pipeline_half(const struct pipeline_shape *shape) {
    return shape->micro_batches * shape->chunks;
}

static size_t pipeline_operations(const struct pipeline_shape *shape) {
    return 2 * (size_t)shape->stages * pipeline_half(shape);
}

/* Forwards in the first half of the ends, then backwards, by micro-batch. */
static size_t pipeline_number(const struct pipeline_shape *shape, struct pipeline_operation op) {
    size_t direction = op.backward ? shape->micro_batches : 0;
    return (direction + op.micro_batch) * pipeline_virtual_stages(shape) + op.virtual_stage;
}

static struct pipeline_operation pipeline_numbered(const struct pipeline_shape *shape,
                                                   size_t number) {
    uint32_t row = (uint32_t)(number / pipeline_virtual_stages(shape));
    bool backward = row >= shape->micro_batches;
    return (struct pipeline_operation){
        .micro_batch = backward ? row - shape->micro_batches : row,
        .virtual_stage = (uint32_t)(number % pipeline_virtual_stages(shape)),
        .backward = backward,
    };
}

static size_t pipeline_round_up(size_t bytes) {
    return (bytes + 7) / 8 * 8;
}

static size_t pipeline_lay_out(const struct pipeline_shape *shape, uint8_t *memory,
                               struct pipeline *out) {
    size_t operations = pipeline_operations(shape);
    size_t sent_at = operations * sizeof *out->ends;
    size_t cursors_at = sent_at;
    if (shape->send_depth > 0) {
        cursors_at += pipeline_round_up(operations * sizeof *out->sent);
    }
    size_t befores_at = cursors_at +
                        pipeline_round_up(3 * (size_t)shape->stages * sizeof *out->cursors);
    size_t orders_at = befores_at + pipeline_round_up(operations * sizeof *out->befores);
    if (out != NULL) {
        out->ends = (uint64_t *)(void *)memory;
        out->sent = (uint32_t *)(void *)(memory + sent_at);
        out->cursors = (uint32_t *)(void *)(memory + cursors_at);
        out->befores = (uint32_t *)(void *)(memory + befores_at);
        out->orders = (struct pipeline_operation *)(void *)(memory + orders_at);
    }
    return orders_at + pipeline_round_up(operations * sizeof *out->orders);
}

size_t pipeline_bytes(const struct pipeline_shape *shape) {
    return pipeline_lay_out(shape, NULL, NULL);
}

static uint32_t pipeline_warm_up(const struct pipeline_shape *shape, uint32_t stage) {
    uint64_t half = pipeline_half(shape);
    uint64_t behind = shape->stages - 1 - stage;
    uint64_t forwards = half;
    if (shape->schedule != PIPELINE_AFAB) {
        forwards = shape->chunks == 1 ? behind
                                      : 2 * behind + (shape->chunks - 1) * (uint64_t)shape->stages;
    }
    return (uint32_t)(forwards < half ? forwards : half);
}

/* The n-th forward or backward of a stage. */
static struct pipeline_operation pipeline_turn(const struct pipeline_shape *shape, uint32_t stage,
                                               uint32_t n, bool backward) {
    uint32_t group = n / pipeline_virtual_stages(shape);
    uint32_t within = n % pipeline_virtual_stages(shape);
    uint32_t chunk = within / shape->stages;
    uint32_t micro_batch = group * shape->stages + within % shape->stages;
    if (shape->chunks == 1) {
        chunk = 0;
        micro_batch = n;
    }
    return (struct pipeline_operation){
        .micro_batch = micro_batch,
        .virtual_stage = (backward ? shape->chunks - 1 - chunk : chunk) * shape->stages + stage,
        .backward = backward,
    };
}

struct pipeline_operation pipeline_operation_at(const struct pipeline_shape *shape, uint32_t stage,
                                                uint32_t position) {
    uint32_t half = pipeline_half(shape);
    uint32_t warm_up = pipeline_warm_up(shape, stage);
    assert(stage < shape->stages && position < 2 * half);
    if (position < warm_up) {
        return pipeline_turn(shape, stage, position, false);
    }
    uint32_t after = position - warm_up;
    if (after >= 2 * (half - warm_up)) {
        return pipeline_turn(shape, stage, position - half, true);
    }
    bool backward = after % 2 == 1;
    return pipeline_turn(shape, stage, backward ? after / 2 : warm_up + after / 2, backward);
}

static uint32_t pipeline_stage(const struct pipeline_shape *shape, struct pipeline_operation op) {
    return op.virtual_stage % shape->stages;
}

/* The operation that `op` needs; false for the first. */
static bool pipeline_input(const struct pipeline_shape *shape, struct pipeline_operation op,
                           struct pipeline_operation *out) {
    *out = op;
    if (!op.backward) {
        out->virtual_stage = op.virtual_stage - 1;
        return op.virtual_stage > 0;
    }
    if (op.virtual_stage == pipeline_virtual_stages(shape) - 1) {
        out->backward = false;
    } else {
        out->virtual_stage = op.virtual_stage + 1;
    }
    return true;
}

/* The operation on another stage that takes the output of `op`; false when none does. */
static bool pipeline_receiver(const struct pipeline_shape *shape, struct pipeline_operation op,
                              struct pipeline_operation *out) {
    uint32_t end = op.backward ? 0 : pipeline_virtual_stages(shape) - 1;
    if (op.virtual_stage == end || shape->stages == 1) {
        return false;
    }
    *out = op;
    out->virtual_stage = op.backward ? op.virtual_stage - 1 : op.virtual_stage + 1;
    return true;
}

static uint64_t pipeline_duration(const struct pipeline *pipeline, struct pipeline_operation op) {
    const uint64_t *durations = op.backward ? pipeline->times->backward : pipeline->times->forward;
    return durations[(size_t)op.micro_batch * pipeline_virtual_stages(pipeline->shape) +
                     op.virtual_stage];
}

uint64_t pipeline_end_ns(const struct pipeline *pipeline, struct pipeline_operation op) {
    return pipeline->ends[pipeline_number(pipeline->shape, op)];
}

uint64_t pipeline_start_ns(const struct pipeline *pipeline, struct pipeline_operation op) {
    return pipeline_end_ns(pipeline, op) - pipeline_duration(pipeline, op);
}

/* The outputs that a stage has put on its link of one direction. */
static uint32_t *pipeline_sent_count(const struct pipeline *pipeline,
                                     struct pipeline_operation op) {
    uint32_t stages = pipeline->shape->stages;
    return &pipeline->cursors[(op.backward ? 2 : 1) * stages + pipeline_stage(pipeline->shape, op)];
}

static uint32_t *pipeline_sent(const struct pipeline *pipeline, struct pipeline_operation op) {
    const struct pipeline_shape *shape = pipeline->shape;
    size_t link = 2 * (size_t)pipeline_stage(shape, op) + (op.backward ? 1 : 0);
    return &pipeline->sent[link * pipeline_half(shape)];
}

/* The receiver whose start `op` has to wait for; false when the link has room anyway. */
static bool pipeline_link(const struct pipeline *pipeline, struct pipeline_operation op,
                          struct pipeline_operation *out) {
    const struct pipeline_shape *shape = pipeline->shape;
    if (shape->send_depth == 0 || !pipeline_receiver(shape, op, out)) {
        return false;
    }
    uint32_t sent = *pipeline_sent_count(pipeline, op);
    if (sent < shape->send_depth) {
        return false;
    }
    size_t oldest = pipeline_sent(pipeline, op)[sent - shape->send_depth];
    return pipeline_receiver(shape, pipeline_numbered(shape, oldest), out);
}

static void pipeline_end(struct pipeline *pipeline, struct pipeline_operation op, uint64_t start_ns,
                         uint32_t before) {
    const struct pipeline_shape *shape = pipeline->shape;
    size_t number = pipeline_number(shape, op);
    uint64_t duration_ns = pipeline_duration(pipeline, op);
    struct pipeline_operation receiver;
    pipeline->ends[number] = start_ns + duration_ns;
    pipeline->befores[number] = before;
    pipeline->busy_ns += duration_ns;
    if (pipeline->ends[number] > pipeline->time_ns) {
        pipeline->time_ns = pipeline->ends[number];
    }
    if (shape->send_depth > 0 && pipeline_receiver(shape, op, &receiver)) {
        pipeline_sent(pipeline, op)[(*pipeline_sent_count(pipeline, op))++] = (uint32_t)number;
    }
}

/* When a stage is free, and the operation that it was busy with. */
struct pipeline_free {
    uint64_t at_ns;
    uint32_t before;
};

/* Ends `op`, the next of its stage, if all that sets its start is known. */
static bool pipeline_try(struct pipeline *pipeline, struct pipeline_operation op,
                         struct pipeline_free start) {
    const struct pipeline_shape *shape = pipeline->shape;
    struct pipeline_operation other;
    if (pipeline_input(shape, op, &other)) {
        uint64_t arrival_ns = pipeline_end_ns(pipeline, other);
        if (arrival_ns == END_UNKNOWN) {
            return false;
        }
        if (pipeline->times->send != NULL && shape->stages > 1 &&
            other.virtual_stage != op.virtual_stage) {
            arrival_ns += pipeline->times->send[op.micro_batch];
        }
        if (arrival_ns > start.at_ns) {
            start.at_ns = arrival_ns;
            start.before = (uint32_t)pipeline_number(shape, other);
        }
    }
    if (pipeline_link(pipeline, op, &other)) {
        if (pipeline_end_ns(pipeline, other) == END_UNKNOWN) {
            return false;
        }
        if (pipeline_start_ns(pipeline, other) > start.at_ns) {
            start.at_ns = pipeline_start_ns(pipeline, other);
            start.before = pipeline->befores[pipeline_number(shape, other)];
        }
    }
    pipeline_end(pipeline, op, start.at_ns, start.before);
    return true;
}

static struct pipeline_free pipeline_after(const struct pipeline *pipeline,
                                           struct pipeline_operation op) {
    return (struct pipeline_free){
        .at_ns = pipeline_end_ns(pipeline, op),
        .before = (uint32_t)pipeline_number(pipeline->shape, op),
    };
}

/* Advances a stage as far as it goes; returns by how many operations. */
static uint32_t pipeline_advance(struct pipeline *pipeline, uint32_t stage) {
    const struct pipeline_shape *shape = pipeline->shape;
    uint32_t *cursor = &pipeline->cursors[stage];
    uint32_t begin = *cursor;
    uint32_t end = 2 * pipeline_half(shape);
    const struct pipeline_operation *order = &pipeline->orders[(size_t)stage * end];
    struct pipeline_free start = {.before = NONE_BEFORE};
    if (begin > 0) {
        start = pipeline_after(pipeline, order[begin - 1]);
    }
    while (*cursor < end) {
        if (!pipeline_try(pipeline, order[*cursor], start)) {
            break;
        }
        start = pipeline_after(pipeline, order[*cursor]);
        (*cursor)++;
    }
    return *cursor - begin;
}

static int pipeline_blocked(const struct pipeline *pipeline, struct error *error) {
    const struct pipeline_shape *shape = pipeline->shape;
    uint32_t stage = 0;
    while (pipeline->cursors[stage] == 2 * pipeline_half(shape)) {
        stage++;
    }
    struct pipeline_operation op = pipeline_operation_at(shape, stage, pipeline->cursors[stage]);
    return error_set(error, -EDEADLK,
                     "%s blocks itself: the %s of micro-batch %" PRIu32 " in chunk %" PRIu32
                     " of stage %" PRIu32 " and the others wait for one another; let stages hold "
                     "more than %" PRIu32 " outputs",
                     pipeline_schedule_name(shape->schedule), op.backward ? "backward" : "forward",
                     op.micro_batch, op.virtual_stage / shape->stages, stage, shape->send_depth);
}

void pipeline_init(struct pipeline *pipeline, const struct pipeline_shape *shape, void *memory) {
    assert((uintptr_t)memory % 8 == 0);
    *pipeline = (struct pipeline){.shape = shape};
    (void)pipeline_lay_out(shape, memory, pipeline);
    struct pipeline_operation *next = pipeline->orders;
    for (uint32_t stage = 0; stage < shape->stages; stage++) {
        for (uint32_t position = 0; position < 2 * pipeline_half(shape); position++) {
            *next++ = pipeline_operation_at(shape, stage, position);
        }
    }
}

/* Returns by how many operations. */
static size_t pipeline_sweep(struct pipeline *pipeline) {
    uint32_t stages = pipeline->shape->stages;
    size_t advanced = 0;
    for (uint32_t stage = 0; stage < stages; stage++) {
        advanced += pipeline_advance(pipeline, stage);
    }
    for (uint32_t stage = stages; stage-- > 0;) {
        advanced += pipeline_advance(pipeline, stage);
    }
    return advanced;
}

int pipeline_run(struct pipeline *pipeline, const struct pipeline_times *times,
                 struct error *error) {
    const struct pipeline_shape *shape = pipeline->shape;
    size_t left = pipeline_operations(shape);
    pipeline->times = times;
    pipeline->time_ns = 0;
    pipeline->busy_ns = 0;
    memset(pipeline->ends, 0xff, left * sizeof *pipeline->ends);
    memset(pipeline->cursors, 0, 3 * (size_t)shape->stages * sizeof *pipeline->cursors);
    while (left > 0) {
        size_t advanced = pipeline_sweep(pipeline);
        if (advanced == 0) {
            return pipeline_blocked(pipeline, error);
        }
        left -= advanced;
    }
    return 0;
}

struct pipeline_operation pipeline_last(const struct pipeline *pipeline) {
    const struct pipeline_shape *shape = pipeline->shape;
    uint32_t final = 2 * pipeline_half(shape) - 1;
    for (uint32_t stage = 0; stage + 1 < shape->stages; stage++) {
        struct pipeline_operation op = pipeline_operation_at(shape, stage, final);
        if (pipeline_end_ns(pipeline, op) == pipeline->time_ns) {
            return op;
        }
    }
    return pipeline_operation_at(shape, shape->stages - 1, final);
}

bool pipeline_before(const struct pipeline *pipeline, struct pipeline_operation operation,
                     struct pipeline_operation *out) {
    uint32_t before = pipeline->befores[pipeline_number(pipeline->shape, operation)];
    if (before == NONE_BEFORE) {
        return false;
    }
    *out = pipeline_numbered(pipeline->shape, before);
    return true;
}
