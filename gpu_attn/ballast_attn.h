/* ballast_attn: attention over exactly the fragments of a plan, forward and backward, on Hopper.
 *
 *     O = softmax(scale * Q K^T + mask) V        LSE = log(sum(exp(scale * Q K^T + mask)))
 *
 * A fragment is a run of query rows against one K/V slice. The layouts of context parallelism, the
 * block x document pieces of head-sharded tiles and plain packed documents are all lists of
 * fragments, and a list of fragments becomes work lists once per plan, by one pure function. All
 * layers of all micro-batches with this plan launch the same lists.
 *
 *     struct ballast_attn_plan plan;
 *     size_t bytes = ballast_attn_plan_bytes(&shape, fragments, count);
 *     ballast_attn_plan_init(&plan, &shape, fragments, count, malloc(bytes), bytes, &error);
 *     cudaMemcpyAsync(lists, plan.lists, plan.lists_bytes, ...);          // once per plan
 *     ballast_attn_open(&attn, &error);                                   // once per process
 *     ballast_attn_forward(attn, &call, &error);                          // per layer
 *
 * Shapes: q, o, do, dq are [q_rows, q_heads, head_dim]; k, v, dk, dv [kv_rows, kv_heads, head_dim];
 * lse [q_rows, q_heads]. bf16 but for lse, which is float, and dk and dv if asked. Rows and heads
 * have strides; the elements of a head are contiguous. All offsets are computed in 64 bits.
 *
 * What the kernels promise
 * - Rows and heads of O, LSE and dQ that no fragment covers, and keys of a K/V head in no covering
 *   fragment's slice, in dK and dV, are never written.
 * - A covered row that sees no key gets O = 0, LSE = -inf and a gradient of 0. A key that no row
 *   sees gets gradients of 0. Fragments of no rows, or of no keys, are legal.
 * - LSE is the natural logarithm.
 * - O, LSE, dK and dV are the same bits whenever lists and inputs are. So is dQ with
 *   BALLAST_ATTN_DETERMINISTIC; without it dQ is summed in an order that varies.
 *
 * What the caller promises
 * - Rows of k, v, q and do next to a fragment, inside the same tile of 128, are finite: 0 * NaN is
 *   NaN. Zeroed buffers whose padding stays zero are enough, and cost nothing. Otherwise
 *   BALLAST_ATTN_ZERO_TAILS makes the kernels clear those rows after loading them.
 * - q_rows and kv_rows are the live rows of the buffers, not their capacity: the hardware fills
 *   with zeros what lies beyond.
 * - Data and lists are device memory, 16-byte aligned; strides are multiples of 8 elements.
 * - dK and dV of gathered K/V are partial sums: take them in float and reduce them in float.
 *
 * Everything returns 0 or a negative errno and fills `error` (may be NULL) with a sentence:
 *   -EINVAL    an argument or fragment that breaks a rule; the sentence says which
 *   -E2BIG     more tiles, rows or bytes than 31-bit counts hold
 *   -ENOSPC    memory or workspace smaller than asked for
 *   -ENOSYS    this library was built without the kernels (no nvcc)
 *   -ENODEV    no NVIDIA driver, or one too old
 *   -ENOTSUP   the current device is not of compute capability 9.0
 *   -EIO       the driver refused a call; the sentence names it
 * Launches are asynchronous: an error of the device shows up at the stream's next check. */
#ifndef BALLAST_ATTN_H
#define BALLAST_ATTN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of struct ballast_attn_fragment and of the lists; part of a latency profile's key. */
#define BALLAST_ATTN_ABI 1

struct ballast_attn_error {
    int code;
    char text[256];
};

/* Query row i, in [0, q_length), of the fragment is row q_row + i of Q and O. It sees key j, in
 * [0, kv_length), of the slice, row kv_row + j of K and V, when j <= q_position + i or the fragment
 * is full. kv_length may exceed what any row sees. 32 bytes, little endian.
 *
 * Rules: nothing is negative but q_position, which may be (its first rows see nothing); ranges lie
 * in the buffers; no (row, head) is covered twice; fragments with the same kv_row share
 * a slice, whatever their kv_length, and different slices do not overlap. A head range of 0 heads
 * covers nothing. Ranges that are whole groups of q_heads / kv_heads fill the tiles best. */
struct ballast_attn_fragment {
    int32_t q_row;
    int32_t q_length;
    int32_t kv_row;
    int32_t kv_length;
    int32_t q_position;
    uint16_t head_begin; /* query heads [head_begin, head_begin + head_count) */
    uint16_t head_count;
    uint32_t document; /* for the reader's eye; not used */
    uint32_t flags;    /* BALLAST_ATTN_FULL or 0 (causal) */
};

#define BALLAST_ATTN_FULL 1u /* every row sees every key of the slice */

struct ballast_attn_shape {
    uint32_t head_dim; /* 64 or 128 */
    uint32_t q_heads;  /* of this rank; a multiple of kv_heads, at most 128 times as many */
    uint32_t kv_heads;
    uint32_t q_rows;
    uint32_t kv_rows;
};

/* Work lists of one plan. `lists` is one block without pointers: copy its lists_bytes to device
 * memory as they are. Immutable after init; borrows the memory given to it. */
struct ballast_attn_plan {
    struct ballast_attn_shape shape;
    const void *lists;
    size_t lists_bytes;
    uint64_t hash;      /* XXH3 of shape and lists; equal on every rank that built the same */
    uint32_t tiles;     /* forward: 128 packed query rows */
    uint32_t steps;     /* backward: 64 packed query rows */
    uint32_t key_tiles; /* backward: 128 keys of one K/V head */
    uint32_t ranges;    /* runs of steps that key tiles walk */
};

/* Memory that ballast_attn_plan_init needs, an upper bound; 0 when the shape or a fragment breaks a
 * rule (init says which) or SIZE_MAX would be exceeded. */
size_t ballast_attn_plan_bytes(const struct ballast_attn_shape *shape,
                               const struct ballast_attn_fragment *fragments, uint32_t count);

/* Checks every rule above and builds the lists in `memory` (8-byte aligned), which must outlive the
 * plan. Deterministic. O(lists + count log count). `plan` is untouched on failure. */
int ballast_attn_plan_init(struct ballast_attn_plan *plan, const struct ballast_attn_shape *shape,
                           const struct ballast_attn_fragment *fragments, uint32_t count,
                           void *memory, size_t bytes, struct ballast_attn_error *error);

/* Strides in elements. */
struct ballast_attn_tensor {
    void *data;
    int64_t row_stride;
    int64_t head_stride;
};

#define BALLAST_ATTN_DETERMINISTIC                                                                 \
    1u                             /* dQ by a second pass that owns query rows: 7 products         \
                                      instead of 5, no float additions between blocks */
#define BALLAST_ATTN_ZERO_TAILS 2u /* clear rows next to fragments after loading them */
#define BALLAST_ATTN_FLOAT_DKDV 4u /* dk and dv are float */

/* What a call works on. Zero the struct, then set what the call reads:
 * forward reads q, k, v and writes o, lse;
 * backward reads q, k, v, o, lse, d_o and writes dq, dk, dv, with `workspace`. */
struct ballast_attn_call {
    const struct ballast_attn_plan *plan;
    const void *lists; /* plan->lists, on the device */
    struct ballast_attn_tensor q, k, v, o, d_o, dq, dk, dv;
    float *lse;
    float scale; /* not negative; 0: 1 / sqrt(head_dim) */
    uint32_t flags;
    uint32_t sm_margin; /* processors left to others, as an exchange that overlaps; < all of them */
    void *workspace;    /* device memory, 16-byte aligned, any content */
    size_t workspace_bytes;
    void *stream; /* CUstream or cudaStream_t; NULL is the default stream */
};

/* Device bytes that a backward call with these flags needs; calls on one stream may share them. */
size_t ballast_attn_workspace_bytes(const struct ballast_attn_plan *plan, uint32_t flags);

struct ballast_attn;

/* Finds the driver (libcuda.so.1 of the machine) and loads the kernels into the calling thread's
 * current context. One object per context; any thread that has this context current may use it.
 * `out` is untouched on failure. */
int ballast_attn_open(struct ballast_attn **out, struct ballast_attn_error *error);

/* NULL is fine. The context must still be current. */
void ballast_attn_close(struct ballast_attn *attn);

/* Enqueue on call->stream and return. */
int ballast_attn_forward(struct ballast_attn *attn, const struct ballast_attn_call *call,
                         struct ballast_attn_error *error);
int ballast_attn_backward(struct ballast_attn *attn, const struct ballast_attn_call *call,
                          struct ballast_attn_error *error);

/* Which kernels these are: a hash of their sources, the compiler and its flags; "" without
 * kernels. Part of a latency profile's key. Static memory. */
const char *ballast_attn_build(void);

#ifdef __cplusplus
}
#endif

#endif
