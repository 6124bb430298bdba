/* backward: dK, dV by key tiles, dQ as sums over them (FlashAttention-3's products, our ownership).
 *
 * A block owns 128 keys of one K/V head and walks every step of 64 packed query rows that sees
 * them, so dK and dV stay in registers and are stored once: no atomics, no float buffers, whatever
 * the group. Keys are rows of the products (S^T = K Q^T, dP^T = V dO^T), so P^T and dS^T feed
 * dV += P^T dO and dK += dS^T Q from registers. dQ = dS K needs all 128 keys: dS passes through
 * shared memory, dQ leaves as a bulk addition to a buffer of floats. At head dimension 128 each
 * consumer makes half the columns of dQ; at 64 each adds the part of its own keys.
 *
 *     shared memory: K | V | Q, Q | dO, dO | dS | dQ, dQ | statistics, 2 x 512 | barriers */
#ifndef BALLAST_GPU_ATTN_BACKWARD_H
#define BALLAST_GPU_ATTN_BACKWARD_H

#include "gpu_attn/block.h"

#define BACKWARD_KV_BYTES (ATTN_KEYS * HEAD_DIM * 2u)
#define BACKWARD_Q_BYTES  (ATTN_STEP_ROWS * HEAD_DIM * 2u)
#define BACKWARD_K        0u
#define BACKWARD_V        (BACKWARD_K + BACKWARD_KV_BYTES)
#define BACKWARD_Q        (BACKWARD_V + BACKWARD_KV_BYTES)
#define BACKWARD_DO       (BACKWARD_Q + STAGES * BACKWARD_Q_BYTES)
#define BACKWARD_DS       (BACKWARD_DO + STAGES * BACKWARD_Q_BYTES)
#define BACKWARD_DQ       (BACKWARD_DS + ATTN_KEYS * ROW_BYTES)
#define BACKWARD_DQ_BYTES                                                                          \
    (2u * ATTN_STEP_ROWS * ROW_BYTES) /* of a consumer: 2 panels of floats                         \
                                       */
#define BACKWARD_STATS    (BACKWARD_DQ + 2u * BACKWARD_DQ_BYTES)
#define STATS_BYTES       (2u * ATTN_STEP_ROWS * 4u)
#define BACKWARD_BARRIERS (BACKWARD_STATS + STAGES * STATS_BYTES)
#define BACKWARD_SHARED   (BACKWARD_BARRIERS + 8u * (2 + 2 * STAGES))
static_assert(BACKWARD_SHARED == BACKWARD_SHARED_AT(HEAD_DIM), "as launched");

/* Named barriers; ALONE and DQ + consumer. */
enum { BACKWARD_BOTH = 1, BACKWARD_ALONE = 2, BACKWARD_STAGED = 4 };

struct backward_block {
    uint32_t k, v, q, d_o, ds, dq, stats;
    uint32_t kv_full, kv_empty;
    uint32_t q_full, q_empty; /* + 8 * stage; of Q, dO and the statistics */
};

DEVICE struct backward_block backward_block_of(void) {
    uint32_t base = shared_base();
    struct backward_block block;
    block.k = base + BACKWARD_K;
    block.v = base + BACKWARD_V;
    block.q = base + BACKWARD_Q;
    block.d_o = base + BACKWARD_DO;
    block.ds = base + BACKWARD_DS;
    block.dq = base + BACKWARD_DQ;
    block.stats = base + BACKWARD_STATS;
    block.kv_full = base + BACKWARD_BARRIERS;
    block.kv_empty = block.kv_full + 8;
    block.q_full = block.kv_empty + 8;
    block.q_empty = block.q_full + 8 * STAGES;
    return block;
}

DEVICE void backward_barriers_init(const struct backward_block *block) {
    buffers_init(block->kv_full, block->kv_empty, 1);
    buffers_init(block->q_full, block->q_empty, STAGES);
}

/* Rows of a step that TMA writes. */
DEVICE uint32_t backward_loaded_rows(const struct backward_params *params) {
    return (uint32_t)(ATTN_STEP_ROWS / params->pack * params->pack);
}

DEVICE void backward_load_step(const struct backward_params *params,
                               const struct backward_block *block, int index, struct ring ring) {
    const struct attn_step *step = &params->steps[index];
    uint32_t full = block->q_full + 8 * ring.stage;
    mbarrier_wait(block->q_empty + 8 * ring.stage, ring.parity ^ 1);
    mbarrier_expect(full, 2 * backward_loaded_rows(params) * PANELS * ROW_BYTES + STATS_BYTES);
    load_panels(block->q + ring.stage * BACKWARD_Q_BYTES, &params->q, full, step->head, step->q_row,
                ATTN_STEP_ROWS);
    load_panels(block->d_o + ring.stage * BACKWARD_Q_BYTES, &params->d_o, full, step->head,
                step->q_row, ATTN_STEP_ROWS);
    bulk_load(block->stats + ring.stage * STATS_BYTES,
              params->stats + (int64_t)index * 2 * ATTN_STEP_ROWS, STATS_BYTES, full);
}

DEVICE void backward_produce(const struct backward_params *params,
                             const struct backward_block *block) {
    struct ring q = {0, 0};
    struct ring kv = {0, 0};
    for (int turn = 0; turn * block_count() < params->key_tile_count; turn++) {
        int t = turn_tile(turn);
        if (t >= params->key_tile_count || params->key_tiles[t].steps == 0) {
            continue;
        }
        struct attn_key_tile tile = params->key_tiles[t];
        mbarrier_wait(block->kv_empty, kv.parity ^ 1);
        mbarrier_expect(block->kv_full, 2 * BACKWARD_KV_BYTES);
        load_panels(block->k, &params->k, block->kv_full, tile.kv_head, tile.kv_row, ATTN_KEYS);
        load_panels(block->v, &params->v, block->kv_full, tile.kv_head, tile.kv_row, ATTN_KEYS);
        ring_flip(&kv);
        for (int r = tile.range_begin; r < tile.range_end; r++) {
            struct attn_range range = params->ranges[r];
            for (int index = range.step_begin; index < range.step_end; index++) {
                backward_load_step(params, block, index, q);
                ring_advance(&q);
            }
        }
    }
}

/* Keys as rows against query rows as columns, both K-major: S^T or dP^T. */
DEVICE void backward_product(uint32_t keys, uint32_t queries, uint32_t consumer, float *d) {
    wgmma_hold(d, 32);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++) {
        wgmma_ss_kk_n64(d, columns_at(keys, ATTN_KEYS, consumer * 64, k),
                        columns_at(queries, ATTN_STEP_ROWS, 0, k), k > 0);
    }
    wgmma_commit();
}

/* Sums over query rows from registers: dV += P^T dO or dK += dS^T Q. */
DEVICE void backward_accumulate(uint32_t (*a)[4], uint32_t queries, float *d) {
    wgmma_hold(d, HEAD_DIM / 2);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < ATTN_STEP_ROWS / 16; k++) {
        wgmma_rs_m(d, a[k], rows_at(queries, ATTN_STEP_ROWS, k), 1);
    }
}

/* S^T becomes P^T. Statistics of rows that are not there make it 0. */
DEVICE void backward_probabilities(uint32_t stats, uint32_t column, float scale_log2, float *s) {
#pragma unroll
    for (int j = 0; j < ATTN_STEP_ROWS / 8; j++) {
        float lse[2];
        shared_load_pair(stats + (uint32_t)(8 * j) * 4 + column * 4, &lse[0], &lse[1]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[4 * j + i] = exp2_fast(s[4 * j + i] * scale_log2 - lse[i % 2]);
        }
    }
}

/* dP^T becomes dS^T = P^T (dP^T - delta). */
DEVICE void backward_score_gradients(uint32_t stats, uint32_t column, const float *p, float *d) {
#pragma unroll
    for (int j = 0; j < ATTN_STEP_ROWS / 8; j++) {
        float delta[2];
        shared_load_pair(stats + ATTN_STEP_ROWS * 4 + (uint32_t)(8 * j) * 4 + column * 4, &delta[0],
                         &delta[1]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            d[4 * j + i] = p[4 * j + i] * (d[4 * j + i] - delta[i % 2]);
        }
    }
}

DEVICE void backward_mask(const struct backward_params *params, const struct attn_key_tile *tile,
                          const struct attn_step *step, struct place place, float *s) {
    if (tile->key + ATTN_KEYS - 1 <= min_int(step->keys - 1, step->reach)) {
        return;
    }
    int key = tile->key + (int)(place.consumer * 64 + place.row);
#pragma unroll
    for (int i = 0; i < ATTN_STEP_ROWS / 2; i++) {
        uint32_t row = (uint32_t)(i / 4 * 8 + i % 2) + place.column;
        int reach = step->reach + (int)packed_token(row, params->pack_inverse);
        if (key + i / 2 % 2 * 8 > min_int(step->keys - 1, reach)) {
            s[i] = -INFINITY;
        }
    }
}

/* This consumer's 64 keys of dS, as rows of 64 query columns. Flipping a chunk's bits is all that
 * the swizzle leaves to do for each store. */
DEVICE void backward_store_ds(uint32_t to, struct place place, uint32_t (*ds)[4]) {
    uint32_t key = place.consumer * 64 + place.row;
    uint32_t first = fresh(swizzled(to + key * ROW_BYTES + place.column * 2));
#pragma unroll
    for (uint32_t k = 0; k < ATTN_STEP_ROWS / 16; k++) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            shared_store((first ^ (2 * k + i / 2) * 16) + i % 2 * 8 * ROW_BYTES, ds[k][i]);
        }
    }
}

/* dS reaches whoever multiplies it: the other consumer as well, or this one alone. */
DEVICE void backward_ds_barrier(uint32_t consumer) {
    if (PANELS == 2) {
        barrier_sync(BACKWARD_BOTH, CONSUMER_THREADS);
    } else {
        barrier_sync(BACKWARD_ALONE + (int)consumer, CONSUMER_THREADS / 2);
    }
}

DEVICE void backward_query_product(const struct backward_block *block, uint32_t consumer,
                                   float *d) {
    uint32_t first_key = PANELS == 2 ? 0 : consumer * 64;
    uint32_t panel = PANELS == 2 ? consumer : 0;
    uint32_t ds = block->ds + first_key * ROW_BYTES;
    uint32_t k = block->k + (panel * ATTN_KEYS + first_key) * ROW_BYTES;
    wgmma_hold(d, 32);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < ATTN_KEYS * PANELS / 32; i++) {
        wgmma_ss_mm_n64(d, rows_at(ds, ATTN_KEYS, i), rows_at(k, ATTN_KEYS, i), i > 0);
    }
}

/* Two panels of 32 floats. */
DEVICE void backward_stage_dq(uint32_t to, struct place place, const float *d) {
    uint32_t first = fresh(swizzled(to + place.row * ROW_BYTES + place.column * 4));
#pragma unroll
    for (uint32_t j = 0; j < 8; j++) {
#pragma unroll
        for (uint32_t h = 0; h < 2; h++) {
            shared_store_pair((first ^ j % 4 * 32) + (j / 4 * ATTN_STEP_ROWS + 8 * h) * ROW_BYTES,
                              d[4 * j + 2 * h], d[4 * j + 2 * h + 1]);
        }
    }
}

/* 64 query rows x 64 columns of dQ: staged, then added by one thread's bulk operations. */
DEVICE void backward_add_dq(const struct backward_params *params,
                            const struct backward_block *block, const struct attn_step *step,
                            struct place place, const float *d) {
    uint32_t staged = block->dq + place.consumer * BACKWARD_DQ_BYTES;
    int barrier = BACKWARD_STAGED + (int)place.consumer;
    int speaks = thread_index() % 128 == 0;
    if (speaks) {
        BULK_WAIT_READ(0);
    }
    barrier_sync(barrier, CONSUMER_THREADS / 2);
    backward_stage_dq(staged, place, d);
    fence_async();
    barrier_sync(barrier, CONSUMER_THREADS / 2);
    if (speaks) {
        int column = PANELS == 2 ? (int)place.consumer * 64 : 0;
        tma_reduce_add(&params->dq_sum, staged, column, step->head, step->q_row);
        tma_reduce_add(&params->dq_sum, staged + ATTN_STEP_ROWS * ROW_BYTES, column + 32,
                       step->head, step->q_row);
        bulk_commit();
    }
}

/* Rows that belong to another fragment, another head or nobody. All consumers call it. */
DEVICE void backward_clear_step(const struct backward_params *params,
                                const struct backward_block *block, const struct attn_step *step,
                                uint32_t stage) {
    uint32_t row = (uint32_t)thread_index() - 128;
    if (row < ATTN_STEP_ROWS &&
        !packed_row_is_valid(row, (uint32_t)params->pack, params->pack_inverse, step->tokens,
                             step->heads)) {
        clear_row(block->q + stage * BACKWARD_Q_BYTES, ATTN_STEP_ROWS, row);
        clear_row(block->d_o + stage * BACKWARD_Q_BYTES, ATTN_STEP_ROWS, row);
    }
    fence_async();
    barrier_sync(BACKWARD_BOTH, CONSUMER_THREADS);
}

DEVICE void backward_step(const struct backward_params *params, const struct backward_block *block,
                          const struct attn_key_tile *tile, int index, uint32_t stage, int adds_dq,
                          float *dk, float *dv) {
    const struct attn_step *step = &params->steps[index];
    struct place place = place_of_thread();
    float s[32];
    float d[32];
    uint32_t p[4][4];
    uint32_t ds[4][4];
    uint32_t q = block->q + stage * BACKWARD_Q_BYTES;
    uint32_t d_o = block->d_o + stage * BACKWARD_Q_BYTES;
    uint32_t stats = block->stats + stage * STATS_BYTES;
    backward_product(block->k, q, place.consumer, s);
    backward_product(block->v, d_o, place.consumer, d);
    WGMMA_WAIT(1);
    wgmma_hold(s, 32);
    backward_mask(params, tile, step, place, s);
    backward_probabilities(stats, place.column, params->scale_log2, s);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        pack_operand(p[k], s + 8 * k);
    }
    backward_accumulate(p, d_o, dv);
    wgmma_commit();
    WGMMA_WAIT(1);
    wgmma_hold(d, 32);
    backward_score_gradients(stats, place.column, s, d);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        pack_operand(ds[k], d + 8 * k);
    }
    if (adds_dq) {
        backward_ds_barrier(place.consumer); /* the one before has been multiplied */
        backward_store_ds(block->ds, place, ds);
        fence_async();
        backward_ds_barrier(place.consumer);
        backward_query_product(block, place.consumer, s);
    }
    backward_accumulate(ds, q, dk);
    wgmma_commit();
    WGMMA_WAIT(0);
    wgmma_hold(dv, HEAD_DIM / 2);
    wgmma_hold(dk, HEAD_DIM / 2);
    wgmma_hold(s, 32);
    warp_arrive(block->q_empty + 8 * stage, place.lane);
    if (adds_dq) {
        backward_add_dq(params, block, step, place, s);
    }
}

/* A thread's part of one accumulator row, scaled, as floats or bf16. */
DEVICE void backward_store_row(const struct attn_view *view, uint32_t floats, int row, int head,
                               const float *d, int h, uint32_t column, float scale) {
    if (!floats) {
        store_row(view_pairs(view, row, head), d, h, column, scale);
        return;
    }
    float *to = (float *)view->data + (int64_t)row * view->row_stride +
                (int64_t)head * view->head_stride;
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 8; j++) {
        to[8 * j + (int)column] = d[4 * j + 2 * h] * scale;
        to[8 * j + (int)column + 1] = d[4 * j + 2 * h + 1] * scale;
    }
}

DEVICE void backward_store(const struct backward_params *params, const struct attn_key_tile *tile,
                           struct place place, const float *dk, const float *dv) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int key = (int)(place.consumer * 64 + place.row) + 8 * h;
        if (key < tile->rows) {
            backward_store_row(&params->dk, params->float_dkdv, tile->kv_row + key, tile->kv_head,
                               dk, h, place.column, params->scale);
            backward_store_row(&params->dv, params->float_dkdv, tile->kv_row + key, tile->kv_head,
                               dv, h, place.column, 1);
        }
    }
}

/* Rows of Q and dO that no load ever writes are 0 from the start. */
DEVICE void backward_clear_unloaded(const struct backward_params *params,
                                    const struct backward_block *block) {
    uint32_t loaded = backward_loaded_rows(params);
    for (uint32_t stage = 0; stage < STAGES && loaded < ATTN_STEP_ROWS; stage++) {
        clear_rows(block->q + stage * BACKWARD_Q_BYTES, ATTN_STEP_ROWS, loaded, ATTN_STEP_ROWS,
                   BACKWARD_BOTH);
        clear_rows(block->d_o + stage * BACKWARD_Q_BYTES, ATTN_STEP_ROWS, loaded, ATTN_STEP_ROWS,
                   BACKWARD_BOTH);
    }
}

DEVICE void backward_tile_run(const struct backward_params *params,
                              const struct backward_block *block, const struct attn_key_tile *tile,
                              struct ring *q, int adds_dq, float *dk, float *dv) {
    for (int r = tile->range_begin; r < tile->range_end; r++) {
        struct attn_range range = params->ranges[r];
        for (int index = range.step_begin; index < range.step_end; index++) {
            mbarrier_wait(block->q_full + 8 * q->stage, q->parity);
            if (params->zero_tails) {
                backward_clear_step(params, block, &params->steps[index], q->stage);
            }
            backward_step(params, block, tile, index, q->stage, adds_dq, dk, dv);
            ring_advance(q);
        }
    }
}

DEVICE void backward_consume(const struct backward_params *params,
                             const struct backward_block *block, int adds_dq) {
    struct ring q = {0, 0};
    struct ring kv = {0, 0};
    backward_clear_unloaded(params, block);
    for (int turn = 0; turn * block_count() < params->key_tile_count; turn++) {
        int t = turn_tile(turn);
        if (t >= params->key_tile_count) {
            continue;
        }
        float dk[HEAD_DIM / 2];
        float dv[HEAD_DIM / 2];
        const struct attn_key_tile *tile = &params->key_tiles[t];
        clear_sums(dk, HEAD_DIM / 2);
        clear_sums(dv, HEAD_DIM / 2);
        if (tile->steps > 0) {
            mbarrier_wait(block->kv_full, kv.parity);
            ring_flip(&kv);
            if (params->zero_tails && tile->rows < ATTN_KEYS) {
                clear_rows(block->k, ATTN_KEYS, (uint32_t)tile->rows, ATTN_KEYS, BACKWARD_BOTH);
                clear_rows(block->v, ATTN_KEYS, (uint32_t)tile->rows, ATTN_KEYS, BACKWARD_BOTH);
            }
            backward_tile_run(params, block, tile, &q, adds_dq, dk, dv);
            warp_arrive(block->kv_empty, (uint32_t)thread_index() % 32);
        }
        backward_store(params, tile, place_of_thread(), dk, dv);
    }
    if (adds_dq && thread_index() % 128 == 0) {
        BULK_WAIT(0);
    }
}

DEVICE void backward_run(const struct backward_params *params, int adds_dq) {
    struct backward_block block = backward_block_of();
    BLOCK_ROLES(backward_barriers_init(&block), backward_produce(params, &block),
                backward_consume(params, &block, adds_dq));
}

KERNEL(backward, struct backward_params, ATTN_THREADS) {
    backward_run(params, 1);
}

/* dK and dV alone; dQ is the second pass's. */
KERNEL(backward_keys, struct backward_params, ATTN_THREADS) {
    backward_run(params, 0);
}

#endif
