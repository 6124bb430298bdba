/* backward_queries: dQ by query tiles, the second pass of the deterministic mode.
 *
 * Owns 128 packed query rows, as the forward pass does, and recomputes S and dP for every 64 keys
 * that they see: dS feeds dQ += dS K from registers. Nothing is shared between blocks, so dQ is the
 * same bits every time, for two products more.
 *
 *     shared memory: Q | dO | K, K | V, V | barriers */
#ifndef BALLAST_GPU_ATTN_BACKWARD_QUERIES_H
#define BALLAST_GPU_ATTN_BACKWARD_QUERIES_H

#include "gpu_attn/block.h"

#define QUERY_Q_BYTES  (ATTN_TILE_ROWS * HEAD_DIM * 2u)
#define QUERY_KV_BYTES (QUERY_KEYS * HEAD_DIM * 2u)
#define QUERY_Q        0u
#define QUERY_DO       (QUERY_Q + QUERY_Q_BYTES)
#define QUERY_K        (QUERY_DO + QUERY_Q_BYTES)
#define QUERY_V        (QUERY_K + STAGES * QUERY_KV_BYTES)
#define QUERY_BARRIERS (QUERY_V + STAGES * QUERY_KV_BYTES)
#define QUERY_SHARED   (QUERY_BARRIERS + 8u * (2 + 2 * STAGES))
static_assert(QUERY_SHARED == QUERY_SHARED_AT(HEAD_DIM), "as launched");

enum { QUERY_CLEARED = 1 }; /* named barrier */

struct query_block {
    uint32_t q, d_o, k, v;
    uint32_t q_full, q_empty;   /* of Q and dO */
    uint32_t kv_full, kv_empty; /* + 8 * stage */
};

DEVICE struct query_block query_block_of(void) {
    uint32_t base = shared_base();
    struct query_block block;
    block.q = base + QUERY_Q;
    block.d_o = base + QUERY_DO;
    block.k = base + QUERY_K;
    block.v = base + QUERY_V;
    block.q_full = base + QUERY_BARRIERS;
    block.q_empty = block.q_full + 8;
    block.kv_full = block.q_empty + 8;
    block.kv_empty = block.kv_full + 8 * STAGES;
    return block;
}

DEVICE void query_barriers_init(const struct query_block *block) {
    buffers_init(block->q_full, block->q_empty, 1);
    buffers_init(block->kv_full, block->kv_empty, STAGES);
}

/* Blocks of QUERY_KEYS that some row of the tile sees. */
DEVICE int query_blocks(const struct attn_tile *tile) {
    int seen = min_int(tile->keys, tile->reach + tile->tokens);
    return seen > 0 ? (seen + QUERY_KEYS - 1) / QUERY_KEYS : 0;
}

DEVICE void query_load_keys(const struct query_params *params, const struct query_block *block,
                            const struct attn_tile *tile, int b, struct ring ring) {
    uint32_t full = block->kv_full + 8 * ring.stage;
    int row = tile->kv_row + b * QUERY_KEYS;
    mbarrier_wait(block->kv_empty + 8 * ring.stage, ring.parity ^ 1);
    mbarrier_expect(full, 2 * QUERY_KV_BYTES);
    load_panels(block->k + ring.stage * QUERY_KV_BYTES, &params->k, full, tile->kv_head, row,
                QUERY_KEYS);
    load_panels(block->v + ring.stage * QUERY_KV_BYTES, &params->v, full, tile->kv_head, row,
                QUERY_KEYS);
}

DEVICE void query_produce(const struct query_params *params, const struct query_block *block) {
    struct ring kv = {0, 0};
    struct ring q = {0, 0};
    uint32_t q_rows = (uint32_t)(ATTN_TILE_ROWS / params->group * params->group);
    for (int turn = 0; turn * block_count() < params->tile_count; turn++) {
        int t = turn_tile(turn);
        if (t >= params->tile_count || params->tiles[t].blocks == 0) {
            continue;
        }
        struct attn_tile tile = params->tiles[t];
        mbarrier_wait(block->q_empty, q.parity ^ 1);
        mbarrier_expect(block->q_full, 2 * q_rows * PANELS * ROW_BYTES);
        load_panels(block->q, &params->q, block->q_full, tile.head, tile.q_row, ATTN_TILE_ROWS);
        load_panels(block->d_o, &params->d_o, block->q_full, tile.head, tile.q_row, ATTN_TILE_ROWS);
        ring_flip(&q);
        for (int b = query_blocks(&tile) - 1; b >= 0; b--) {
            query_load_keys(params, block, &tile, b, kv);
            ring_advance(&kv);
        }
    }
}

/* A thread's two rows. */
struct query_row {
    int valid;
    int q_row;
    int q_head;
    int last_key;
    float lse_log2; /* +inf when there is nothing to see */
    float delta;
};

DEVICE struct query_row query_row_of(const struct query_params *params,
                                     const struct attn_tile *tile, struct place place, int h) {
    struct packed_place at = packed_place_of(place, h, params->group, params->group_inverse);
    struct query_row found = {0, 0, 0, 0, INFINITY, 0};
    found.valid = at.token < tile->tokens && at.head < tile->heads;
    found.q_row = tile->q_row + (int)at.token;
    found.q_head = tile->head + (int)at.head;
    found.last_key = min_int(tile->keys - 1, tile->reach + (int)at.token);
    if (found.valid) {
        int64_t index = (int64_t)found.q_row * params->q_heads + found.q_head;
        float lse = params->lse[index];
        found.lse_log2 = lse == -INFINITY ? INFINITY : lse * LOG2_E;
        found.delta = params->delta[index];
    }
    return found;
}

DEVICE void query_product(uint32_t queries, uint32_t keys, uint32_t consumer, float *d) {
    wgmma_hold(d, 32);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++) {
        wgmma_ss_kk_n64(d, columns_at(queries, ATTN_TILE_ROWS, consumer * 64, k),
                        columns_at(keys, QUERY_KEYS, 0, k), k > 0);
    }
    wgmma_commit();
}

DEVICE void query_mask(const struct attn_tile *tile, const struct query_row *rows, int b,
                       uint32_t column, float *s) {
    int key = b * QUERY_KEYS;
    if (key + QUERY_KEYS - 1 <= min_int(tile->keys - 1, tile->reach)) {
        return;
    }
    const int last_key[2] = {rows[0].last_key, rows[1].last_key};
    hide_keys(s, QUERY_KEYS / 2, key, column, last_key);
}

/* dQ += scale-free dS K of one block of keys. */
DEVICE void query_step(const struct query_params *params, const struct query_block *block,
                       const struct attn_tile *tile, const struct query_row *rows,
                       struct place place, int b, uint32_t stage, float *dq) {
    float s[QUERY_KEYS / 2];
    float d[QUERY_KEYS / 2];
    uint32_t ds[QUERY_KEYS / 16][4];
    uint32_t k = block->k + stage * QUERY_KV_BYTES;
    query_product(block->q, k, place.consumer, s);
    query_product(block->d_o, block->v + stage * QUERY_KV_BYTES, place.consumer, d);
    WGMMA_WAIT(1);
    wgmma_hold(s, QUERY_KEYS / 2);
    query_mask(tile, rows, b, place.column, s);
#pragma unroll
    for (int i = 0; i < QUERY_KEYS / 2; i++) {
        s[i] = exp2_fast(s[i] * params->scale_log2 - rows[i / 2 % 2].lse_log2);
    }
    WGMMA_WAIT(0);
    wgmma_hold(d, QUERY_KEYS / 2);
#pragma unroll
    for (int i = 0; i < QUERY_KEYS / 2; i++) {
        d[i] = s[i] * (d[i] - rows[i / 2 % 2].delta);
    }
#pragma unroll
    for (int i = 0; i < QUERY_KEYS / 16; i++) {
        pack_operand(ds[i], d + 8 * i);
    }
    wgmma_hold(dq, HEAD_DIM / 2);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < QUERY_KEYS / 16; i++) {
        wgmma_rs_m(dq, ds[i], rows_at(k, QUERY_KEYS, i), 1);
    }
    wgmma_commit();
    WGMMA_WAIT(0);
    wgmma_hold(dq, HEAD_DIM / 2);
    warp_arrive(block->kv_empty + 8 * stage, place.lane);
}

DEVICE void query_clear_tail(const struct query_block *block, uint32_t stage, uint32_t rows) {
    clear_rows(block->k + stage * QUERY_KV_BYTES, QUERY_KEYS, rows, QUERY_KEYS, QUERY_CLEARED);
    clear_rows(block->v + stage * QUERY_KV_BYTES, QUERY_KEYS, rows, QUERY_KEYS, QUERY_CLEARED);
}

DEVICE void query_tile_run(const struct query_params *params, const struct query_block *block,
                           const struct attn_tile *tile, const struct query_row *rows,
                           struct place place, struct ring *kv, float *dq) {
    for (int b = query_blocks(tile) - 1; b >= 0; b--) {
        mbarrier_wait(block->kv_full + 8 * kv->stage, kv->parity);
        if (params->zero_tails && (b + 1) * QUERY_KEYS > tile->keys) {
            query_clear_tail(block, kv->stage, (uint32_t)(tile->keys - b * QUERY_KEYS));
        }
        query_step(params, block, tile, rows, place, b, kv->stage, dq);
        ring_advance(kv);
    }
}

DEVICE void query_consume(const struct query_params *params, const struct query_block *block) {
    struct place place = place_of_thread();
    struct ring kv = {0, 0};
    struct ring q = {0, 0};
    for (int turn = 0; turn * block_count() < params->tile_count; turn++) {
        int t = turn_tile(turn);
        if (t >= params->tile_count) {
            continue;
        }
        float dq[HEAD_DIM / 2];
        struct attn_tile tile = params->tiles[t];
        struct query_row rows[2] = {query_row_of(params, &tile, place, 0),
                                    query_row_of(params, &tile, place, 1)};
        clear_sums(dq, HEAD_DIM / 2);
        if (tile.blocks > 0) {
            mbarrier_wait(block->q_full, q.parity);
            ring_flip(&q);
            query_tile_run(params, block, &tile, rows, place, &kv, dq);
            warp_arrive(block->q_empty, place.lane);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (rows[h].valid) {
                store_row(view_pairs(&params->dq, rows[h].q_row, rows[h].q_head), dq, h,
                          place.column, params->scale);
            }
        }
    }
}

KERNEL(backward_queries, struct query_params, ATTN_THREADS) {
    struct query_block block = query_block_of();
    BLOCK_ROLES(query_barriers_init(&block), query_produce(params, &block),
                query_consume(params, &block));
}

#endif
