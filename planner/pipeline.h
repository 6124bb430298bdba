/* pipeline: how long a pipeline of stages takes over micro-batches of unequal work.
 *
 * An event simulation in whole nanoseconds. A stage holds `chunks` of the model's layers; virtual
 * stage q = chunk * stages + stage, of which there are Q = stages * chunks. F(i,q), the forward of
 * micro-batch i there, needs F(i,q-1); B(i,Q-1) needs F(i,Q-1); B(i,q) needs B(i,q+1). The order of
 * a stage's operations is fixed in advance:
 *   1f1b         p-1-s forwards, then forward and backward in turn, then the rest of the backwards
 *   interleaved  forwards by groups of p micro-batches, chunk by chunk inside a group; backwards
 *                likewise with the chunks reversed; 2(p-1-s) + (v-1)p forwards first (Megatron-LM,
 *                SC 2021). With one chunk it is 1f1b.
 *   afab         all forwards in that order, then all backwards
 * An operation starts when its stage's previous one has ended and its input has arrived. A stage
 * may send ahead as it likes (eager), or hold at most `send_depth` outputs on a link that their
 * receiver has not begun to use; then an order can block itself, which is reported, never waited
 * for. Times are max-plus: scaled, raised or added durations give scaled, not smaller, not larger
 * than added times. No allocation, no clock. */
#ifndef BALLAST_PLANNER_PIPELINE_H
#define BALLAST_PLANNER_PIPELINE_H

#include "planner/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PIPELINE_OPERATIONS_MAX (1u << 30)

enum pipeline_schedule { PIPELINE_1F1B = 0, PIPELINE_INTERLEAVED = 1, PIPELINE_AFAB = 2 };

struct pipeline_shape {
    enum pipeline_schedule schedule;
    uint32_t stages;        /* p */
    uint32_t micro_batches; /* m, of one replica */
    uint32_t chunks;        /* v */
    uint32_t send_depth;    /* k; 0: eager */
};

/* Durations, ns: element i * Q + q is micro-batch i on virtual stage q. Sums fit 64 bits. */
struct pipeline_times {
    const uint64_t *forward;
    const uint64_t *backward;
    const uint64_t *send; /* by micro-batch, between stages, either way; NULL: no time */
};

struct pipeline_operation {
    uint32_t micro_batch;
    uint32_t virtual_stage;
    bool backward;
};

/* A pipeline and its last run: results, and what walking through it needs. Shape and times are
 * borrowed. */
struct pipeline {
    const struct pipeline_shape *shape;
    const struct pipeline_times *times;
    uint64_t time_ns; /* the last operation's end */
    uint64_t busy_ns; /* sum of all operations */
    uint64_t *ends;   /* by operation; these five lie in the caller's memory */
    uint32_t *befores;
    struct pipeline_operation *orders; /* of the stages, one behind the other */
    uint32_t *cursors;                 /* by stage; behind them, outputs by stage and direction */
    uint32_t *sent;
};

/* Name <-> schedule ("1f1b", "interleaved", "afab"). -EINVAL for unknown names. */
const char *pipeline_schedule_name(enum pipeline_schedule schedule);
int pipeline_schedule_parse(const char *name, enum pipeline_schedule *out);

/* Refuses with -EINVAL what no schedule runs: counts of 0, 1f1b with several chunks, micro-batches
 * that are not a multiple of the stages where chunks are interleaved, too many operations. */
int pipeline_check(const struct pipeline_shape *shape, struct error *error);

/* Bytes that a pipeline needs, aligned to 8; the shape was checked. */
size_t pipeline_bytes(const struct pipeline_shape *shape);

/* Makes a pipeline to run, once or more often. `memory` belongs to it until the caller reuses it.
 */
void pipeline_init(struct pipeline *pipeline, const struct pipeline_shape *shape, void *memory);

/* Runs. -EDEADLK when the order blocks itself, naming an operation that waits; there are no results
 * then. */
int pipeline_run(struct pipeline *pipeline, const struct pipeline_times *times,
                 struct error *error);

uint64_t pipeline_start_ns(const struct pipeline *pipeline, struct pipeline_operation operation);
uint64_t pipeline_end_ns(const struct pipeline *pipeline, struct pipeline_operation operation);

/* Operation `position` in the order of `stage`, of 2 * m * v. */
struct pipeline_operation pipeline_operation_at(const struct pipeline_shape *shape, uint32_t stage,
                                                uint32_t position);

/* The critical path, from its end: the operation that ends last (ties: the lowest stage), and the
 * one whose end set the start of `operation`, false when nothing did. What lies between the two is
 * a send; behind a link that was full the path goes on from what held up the receiver. */
struct pipeline_operation pipeline_last(const struct pipeline *pipeline);
bool pipeline_before(const struct pipeline *pipeline, struct pipeline_operation operation,
                     struct pipeline_operation *out);

#endif
