/* params: what the launcher hands to each kernel, by value.
 *
 * Every kernel exists once for each head dimension. Strides are in elements.
 * attn_inverse(n) divides packed rows: r / n == r * inverse >> 16 for r < 128, n <= 128. */
#ifndef BALLAST_GPU_ATTN_PARAMS_H
#define BALLAST_GPU_ATTN_PARAMS_H

#include "gpu_attn/lists.h"
#include "gpu_attn/tensor_map.h"

#define ATTN_THREADS     384 /* a producer and two consumer warpgroups */
#define ATTN_ROW_THREADS 256 /* of the kernels that walk rows: 8 warps, a row each */

static inline uint32_t attn_inverse(uint32_t count) {
    return 65536 / count + 1;
}

/* [row, head, head_dim] */
struct attn_view {
    void *data;
    int64_t row_stride;
    int64_t head_stride;
};

struct forward_params {
    struct tensor_map q; /* boxes of 64 columns, group heads, 128 / group tokens */
    struct tensor_map k; /* 64 columns, 1 head, 128 rows */
    struct tensor_map v;
    const struct attn_tile *tiles;
    int32_t tile_count;
    int32_t group;
    uint32_t group_inverse;
    uint32_t zero_tails;
    float scale_log2; /* scale * log2(e) */
    int32_t q_heads;
    float *lse;
    struct attn_view o;
};

/* Before the backward pass: statistics of each step's rows, and cleared sums. */
struct rows_params {
    const struct attn_step *steps;
    int32_t step_count;
    int32_t pack;
    uint32_t pack_inverse;
    int32_t q_heads;
    struct attn_view o;
    struct attn_view d_o;
    const float *lse;
    float *stats;  /* [step][2][64]: log2(e) * LSE, +inf for rows that are not there or see
                      nothing; rowsum(dO * O) */
    float *delta;  /* [q_rows, q_heads] rowsum(dO * O), or NULL */
    float *dq_sum; /* [q_rows, q_heads, head_dim] to clear, or NULL */
};

/* dK, dV by key tiles; dQ added to dq_sum by the kernel that does. */
struct backward_params {
    struct tensor_map q;   /* 64 columns, pack heads, 64 / pack tokens */
    struct tensor_map d_o; /* as q */
    struct tensor_map k;   /* 64 columns, 1 head, 128 rows */
    struct tensor_map v;
    struct tensor_map dq_sum; /* floats: 32 columns, pack heads, 64 / pack tokens */
    const struct attn_key_tile *key_tiles;
    const struct attn_range *ranges;
    const struct attn_step *steps;
    const float *stats;
    int32_t key_tile_count;
    int32_t pack;
    uint32_t pack_inverse;
    uint32_t zero_tails;
    float scale;
    float scale_log2;
    uint32_t float_dkdv;
    struct attn_view dk;
    struct attn_view dv;
};

/* dQ by query tiles, the deterministic second pass. */
struct query_params {
    struct tensor_map q; /* 64 columns, group heads, 128 / group tokens */
    struct tensor_map d_o;
    struct tensor_map k; /* 64 columns, 1 head, 64 rows */
    struct tensor_map v;
    const struct attn_tile *tiles;
    int32_t tile_count;
    int32_t group;
    uint32_t group_inverse;
    uint32_t zero_tails;
    float scale;
    float scale_log2;
    int32_t q_heads;
    const float *lse;
    const float *delta;
    struct attn_view dq;
};

/* dq = bf16(scale * dq_sum) of all covered rows. */
struct finish_params {
    const struct attn_step *steps;
    int32_t step_count;
    int32_t pack;
    uint32_t pack_inverse;
    int32_t q_heads;
    float scale;
    const float *dq_sum;
    struct attn_view dq;
};

#endif
