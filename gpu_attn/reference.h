/* reference: attention as its formula says, in double precision. The specification of the kernels,
 * which every test of theirs links; not for speed. */
#ifndef BALLAST_GPU_ATTN_REFERENCE_H
#define BALLAST_GPU_ATTN_REFERENCE_H

#include "gpu_attn/ballast_attn.h"

/* Packed, in elements: q, o, d_o, dq [q_rows, q_heads, head_dim]; k, v, dk, dv
 * [kv_rows, kv_heads, head_dim]; lse [q_rows, q_heads]. */
struct attn_reference {
    const struct ballast_attn_shape *shape;
    const struct ballast_attn_fragment *fragments;
    uint32_t count;
    double scale;
    const double *q, *k, *v;
    double *o, *lse; /* written by forward, read by backward; rows not covered stay as they are */
    const double *d_o;
    double *dq, *dk, *dv; /* added to by backward */
};

/* `scores` holds kv_rows doubles. */
void attn_reference_forward(const struct attn_reference *reference, double *scores);
void attn_reference_backward(const struct attn_reference *reference, double *scores);

/* Keys that query row `row` of the fragment sees: [0, result). */
uint32_t attn_reference_keys(const struct ballast_attn_fragment *fragment, uint32_t row);

#endif
