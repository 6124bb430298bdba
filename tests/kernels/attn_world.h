/* attn_world: one attention problem, its inputs, its reference, and the launches that are checked
 * against it through the public calls. */
#ifndef BALLAST_TESTS_ATTN_WORLD_H
#define BALLAST_TESTS_ATTN_WORLD_H

#include "gpu_attn/ballast_attn.h"
#include "tests/kernels/fake_cuda.h"

#include <stdbool.h>

#define WORLD_FRAGMENTS_MAX 64u

struct attn_problem {
    const char *name;
    struct ballast_attn_shape shape;
    struct ballast_attn_fragment fragments[WORLD_FRAGMENTS_MAX];
    uint32_t count;
    uint32_t flags;    /* of ballast_attn_call; ZERO_TAILS also fills foreign rows with NaN */
    int64_t row_extra; /* elements between rows and between heads, beyond packed; times 8 */
    int64_t head_extra;
    float scale;
};

/* One [rows, heads, head_dim] operand: bf16 or float. */
struct attn_operand {
    uint32_t rows;
    uint32_t heads;
    int64_t row_stride;
    int64_t head_stride;
    size_t elements; /* of the buffer, gaps included */
    uint16_t *bf16;
    float *floats; /* instead, if asked */
    double *exact; /* packed: the input, or the reference's answer */
};

/* Memory that a launch touches, as the host sees it: 64-byte aligned. Where the launch runs on it,
 * `on_device` is the same pointer, and `begin` and `finish` do nothing; a program for a device has
 * its copies there, which `begin` brings up to date before a launch and `finish`, after it, brings
 * back. `finish` returns NULL or what went wrong. */
struct attn_memory {
    void *(*allocate)(size_t bytes);
    void (*release)(void *memory, size_t bytes);
    void *(*on_device)(void *memory);
    void (*begin)(void);
    const char *(*finish)(void);
};

extern struct attn_memory attn_memory;

struct attn_world {
    const struct attn_problem *problem;
    struct attn_operand q, k, v, o, d_o, dq, dk, dv;
    float *lse;
    double *lse_exact;
    bool *covered;     /* [q_rows, q_heads] */
    bool *key_covered; /* [kv_rows, kv_heads] */
    struct ballast_attn_plan plan;
    void *plan_memory;
    void *workspace;
    size_t workspace_bytes;
    struct ballast_attn *attn;
};

/* Relative error of each output (L2), largest absolute error of LSE. */
struct attn_errors {
    double o, lse, dq, dk, dv;
};

/* Draws inputs and computes the reference, forward and backward. */
void attn_world_open(struct attn_world *world, const struct attn_problem *problem);
void attn_world_close(struct attn_world *world);

/* Fills outputs and workspace with sentinels or NaN, runs, compares. Returns NULL, or what is wrong
 * (static memory): a launch's error, a value that is not finite, a row written that nobody owns,
 * an error beyond the bounds. */
const char *attn_world_forward(struct attn_world *world, struct attn_errors *errors);
const char *attn_world_backward(struct attn_world *world, struct attn_errors *errors);

#endif
