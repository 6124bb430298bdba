/* reference: one query row of one head at a time.
 *
 *     s_j = scale * q.k_j    p_j = exp(s_j - lse)    o = sum_j p_j v_j
 *     dv_j += p_j do         dp_j = do.v_j           ds_j = p_j (dp_j - do.o)
 *     dq += scale ds_j k_j   dk_j += scale ds_j q */
#include "gpu_attn/reference.h"

#include <math.h>
#include <stddef.h>

/* One row of one head: where its data lies. */
struct row {
    size_t q;          /* offset in q, o, d_o, dq */
    size_t lse;        /* offset in lse */
    size_t k;          /* offset of key 0 in k, v, dk, dv */
    size_t key_stride; /* from key to key */
    uint32_t keys;     /* that it sees */
};

typedef void row_function(const struct attn_reference *reference, const struct row *row,
                          double *scores);

uint32_t attn_reference_keys(const struct ballast_attn_fragment *fragment, uint32_t row) {
    int64_t seen = (int64_t)fragment->q_position + row + 1;
    if ((fragment->flags & BALLAST_ATTN_FULL) != 0 || seen > fragment->kv_length) {
        seen = fragment->kv_length;
    }
    return seen > 0 ? (uint32_t)seen : 0;
}

static struct row row_of(const struct attn_reference *reference,
                         const struct ballast_attn_fragment *fragment, uint32_t i, uint32_t head) {
    const struct ballast_attn_shape *shape = reference->shape;
    size_t kv_head = head / (shape->q_heads / shape->kv_heads);
    size_t lse = ((size_t)fragment->q_row + i) * shape->q_heads + head;
    return (struct row){
        .q = lse * shape->head_dim,
        .lse = lse,
        .k = ((size_t)fragment->kv_row * shape->kv_heads + kv_head) * shape->head_dim,
        .key_stride = (size_t)shape->kv_heads * shape->head_dim,
        .keys = attn_reference_keys(fragment, i),
    };
}

static void each_row(const struct attn_reference *reference, row_function *function,
                     double *scores) {
    for (uint32_t f = 0; f < reference->count; f++) {
        const struct ballast_attn_fragment *fragment = &reference->fragments[f];
        for (uint32_t i = 0; i < (uint32_t)fragment->q_length; i++) {
            for (uint32_t head = 0; head < fragment->head_count; head++) {
                struct row row = row_of(reference, fragment, i, fragment->head_begin + head);
                function(reference, &row, scores);
            }
        }
    }
}

static double dot(const double *a, const double *b, uint32_t length) {
    double sum = 0;
    for (uint32_t i = 0; i < length; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

static void add_scaled(double *sum, double factor, const double *x, uint32_t length) {
    for (uint32_t i = 0; i < length; i++) {
        sum[i] += factor * x[i];
    }
}

/* log(sum(exp(scores))), through the largest. */
static double log_sum_exp(const double *scores, uint32_t count) {
    double largest = -INFINITY;
    for (uint32_t j = 0; j < count; j++) {
        largest = fmax(largest, scores[j]);
    }
    double sum = 0;
    for (uint32_t j = 0; j < count; j++) {
        sum += exp(scores[j] - largest);
    }
    return count > 0 ? largest + log(sum) : -INFINITY;
}

static void row_scores(const struct attn_reference *reference, const struct row *row,
                       double *scores) {
    for (uint32_t j = 0; j < row->keys; j++) {
        const double *key = reference->k + row->k + j * row->key_stride;
        scores[j] = reference->scale * dot(reference->q + row->q, key, reference->shape->head_dim);
    }
}

static void row_forward(const struct attn_reference *reference, const struct row *row,
                        double *scores) {
    uint32_t head_dim = reference->shape->head_dim;
    double *o = reference->o + row->q;
    row_scores(reference, row, scores);
    double lse = log_sum_exp(scores, row->keys);
    for (uint32_t i = 0; i < head_dim; i++) {
        o[i] = 0;
    }
    for (uint32_t j = 0; j < row->keys; j++) {
        add_scaled(o, exp(scores[j] - lse), reference->v + row->k + j * row->key_stride, head_dim);
    }
    reference->lse[row->lse] = lse;
}

static void row_backward(const struct attn_reference *reference, const struct row *row,
                         double *scores) {
    uint32_t head_dim = reference->shape->head_dim;
    double scale = reference->scale;
    const double *q = reference->q + row->q;
    const double *d_o = reference->d_o + row->q;
    double delta = dot(d_o, reference->o + row->q, head_dim);
    row_scores(reference, row, scores);
    for (uint32_t j = 0; j < row->keys; j++) {
        size_t key = row->k + j * row->key_stride;
        double p = exp(scores[j] - reference->lse[row->lse]);
        double ds = p * (dot(d_o, reference->v + key, head_dim) - delta);
        add_scaled(reference->dv + key, p, d_o, head_dim);
        add_scaled(reference->dq + row->q, scale * ds, reference->k + key, head_dim);
        add_scaled(reference->dk + key, scale * ds, q, head_dim);
    }
}

void attn_reference_forward(const struct attn_reference *reference, double *scores) {
    each_row(reference, row_forward, scores);
}

void attn_reference_backward(const struct attn_reference *reference, double *scores) {
    each_row(reference, row_backward, scores);
}
