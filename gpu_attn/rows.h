/* rows: what comes before and after the backward pass, a warp a row; bound by memory. */
#ifndef BALLAST_GPU_ATTN_ROWS_H
#define BALLAST_GPU_ATTN_ROWS_H

#include "gpu_attn/block.h"

#define ROW_WARPS (ATTN_ROW_THREADS / 32)

/* A packed row of a step. */
struct step_row {
    int valid;
    int q_row;
    int q_head;
};

DEVICE struct step_row step_row_of(const struct attn_step *step, uint32_t row, uint32_t pack,
                                   uint32_t inverse) {
    uint32_t token = packed_token(row, inverse);
    uint32_t head = row - token * pack;
    struct step_row found;
    found.valid = packed_row_is_valid(row, pack, inverse, step->tokens, step->heads);
    found.q_row = step->q_row + (int)token;
    found.q_head = step->head + (int)head;
    return found;
}

/* The row's dot product, in every lane. */
DEVICE float row_dot(const uint32_t *a, const uint32_t *b, uint32_t lane) {
    float sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < PANELS; i++) {
        uint32_t x = a[i * 32 + lane];
        uint32_t y = b[i * 32 + lane];
        sum += bf16_low(x) * bf16_low(y) + bf16_high(x) * bf16_high(y);
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
        sum += shuffle_xor(sum, mask);
    }
    return sum;
}

DEVICE void rows_prepare(const struct rows_params *params, int index, uint32_t row, uint32_t lane) {
    struct step_row found = step_row_of(&params->steps[index], row, (uint32_t)params->pack,
                                        params->pack_inverse);
    float lse_log2 = INFINITY;
    float delta = 0;
    if (found.valid) {
        int64_t at = (int64_t)found.q_row * params->q_heads + found.q_head;
        float lse = params->lse[at];
        lse_log2 = lse == -INFINITY ? INFINITY : lse * LOG2_E;
        delta = row_dot(view_pairs(&params->o, found.q_row, found.q_head),
                        view_pairs(&params->d_o, found.q_row, found.q_head), lane);
        for (uint32_t i = lane; params->dq_sum && i < HEAD_DIM; i += 32) {
            params->dq_sum[at * HEAD_DIM + i] = 0;
        }
        if (params->delta && lane == 0) {
            params->delta[at] = delta;
        }
    }
    if (lane == 0) {
        float *stats = params->stats + (int64_t)index * 2 * ATTN_STEP_ROWS;
        stats[row] = lse_log2;
        stats[ATTN_STEP_ROWS + row] = delta;
    }
}

KERNEL(rows, struct rows_params, ATTN_ROW_THREADS) {
    uint32_t warp = (uint32_t)thread_index() / 32;
    uint32_t lane = (uint32_t)thread_index() % 32;
    for (int index = block_index(); index < params->step_count; index += block_count()) {
        for (uint32_t row = warp; row < ATTN_STEP_ROWS; row += ROW_WARPS) {
            rows_prepare(params, index, row, lane);
        }
    }
}

KERNEL(finish, struct finish_params, ATTN_ROW_THREADS) {
    uint32_t warp = (uint32_t)thread_index() / 32;
    uint32_t lane = (uint32_t)thread_index() % 32;
    for (int index = block_index(); index < params->step_count; index += block_count()) {
        for (uint32_t row = warp; row < ATTN_STEP_ROWS; row += ROW_WARPS) {
            struct step_row found = step_row_of(&params->steps[index], row, (uint32_t)params->pack,
                                                params->pack_inverse);
            if (!found.valid) {
                continue;
            }
            const float *sum = params->dq_sum +
                               ((int64_t)found.q_row * params->q_heads + found.q_head) * HEAD_DIM;
            uint32_t *dq = view_pairs(&params->dq, found.q_row, found.q_head);
#pragma unroll
            for (uint32_t i = lane; i < HEAD_DIM / 2; i += 32) {
                dq[i] = bf16_pair(sum[2 * i] * params->scale, sum[2 * i + 1] * params->scale);
            }
        }
    }
}

#endif
