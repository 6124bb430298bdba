/* forward: O and LSE by query tiles (FlashAttention-3's schedule).
 *
 * A block walks tiles of 128 packed query rows, longest first. Key blocks are taken from the
 * diagonal backwards, so only the first need masks. Each consumer issues Q K^T of the next block
 * before P V of this one and does its softmax while both run; named barriers let one consumer's
 * products run under the other's softmax. O stays in registers and is rescaled when a row's
 * maximum moves (Milakov and Gimelshein's online softmax).
 *
 *     shared memory: Q | K, K | V, V | barriers */
#ifndef BALLAST_GPU_ATTN_FORWARD_H
#define BALLAST_GPU_ATTN_FORWARD_H

#include "gpu_attn/block.h"

#define FORWARD_Q        0u
#define FORWARD_BYTES    (ATTN_KEYS * HEAD_DIM * 2u) /* of Q, of one K or V block */
#define FORWARD_K        (FORWARD_Q + FORWARD_BYTES)
#define FORWARD_V        (FORWARD_K + STAGES * FORWARD_BYTES)
#define FORWARD_BARRIERS (FORWARD_V + STAGES * FORWARD_BYTES)
#define FORWARD_SHARED   (FORWARD_BARRIERS + 8u * (2 + 4 * STAGES))
static_assert(FORWARD_SHARED == FORWARD_SHARED_AT(HEAD_DIM), "as launched");

enum { FORWARD_TURN = 1, FORWARD_CLEARED = 3 }; /* named barriers; TURN + consumer */

/* Shared addresses. */
struct forward_block {
    uint32_t q, k, v;
    uint32_t q_full, q_empty;
    uint32_t k_full, k_empty, v_full, v_empty; /* + 8 * stage */
};

DEVICE struct forward_block forward_block_of(void) {
    uint32_t base = shared_base();
    struct forward_block block;
    block.q = base + FORWARD_Q;
    block.k = base + FORWARD_K;
    block.v = base + FORWARD_V;
    block.q_full = base + FORWARD_BARRIERS;
    block.q_empty = block.q_full + 8;
    block.k_full = block.q_empty + 8;
    block.k_empty = block.k_full + 8 * STAGES;
    block.v_full = block.k_empty + 8 * STAGES;
    block.v_empty = block.v_full + 8 * STAGES;
    return block;
}

DEVICE void forward_barriers_init(const struct forward_block *block) {
    buffers_init(block->q_full, block->q_empty, 1);
    buffers_init(block->k_full, block->k_empty, STAGES);
    buffers_init(block->v_full, block->v_empty, STAGES);
}

DEVICE void forward_load_block(const struct forward_params *params,
                               const struct forward_block *block, const struct attn_tile *tile,
                               int b, struct ring ring) {
    int row = tile->kv_row + b * ATTN_KEYS;
    mbarrier_wait(block->k_empty + 8 * ring.stage, ring.parity ^ 1);
    mbarrier_expect(block->k_full + 8 * ring.stage, FORWARD_BYTES);
    load_panels(block->k + ring.stage * FORWARD_BYTES, &params->k, block->k_full + 8 * ring.stage,
                tile->kv_head, row, ATTN_KEYS);
    mbarrier_wait(block->v_empty + 8 * ring.stage, ring.parity ^ 1);
    mbarrier_expect(block->v_full + 8 * ring.stage, FORWARD_BYTES);
    load_panels(block->v + ring.stage * FORWARD_BYTES, &params->v, block->v_full + 8 * ring.stage,
                tile->kv_head, row, ATTN_KEYS);
}

/* One thread: loads what the consumers will read, in their order. */
DEVICE void forward_produce(const struct forward_params *params,
                            const struct forward_block *block) {
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
        mbarrier_expect(block->q_full, q_rows * PANELS * ROW_BYTES);
        load_panels(block->q, &params->q, block->q_full, tile.head, tile.q_row, ATTN_TILE_ROWS);
        ring_flip(&q);
        for (int b = tile.blocks - 1; b >= 0; b--) {
            forward_load_block(params, block, &tile, b, kv);
            ring_advance(&kv);
        }
    }
}

/* The online softmax of a thread's two rows. */
struct softmax {
    float largest[2];
    float sum[2];
    float rescale[2]; /* what O has to be multiplied by before the next product is added */
};

DEVICE void softmax_init(struct softmax *softmax) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        softmax->largest[h] = -INFINITY;
        softmax->sum[h] = 0;
        softmax->rescale[h] = 1;
    }
}

/* Scores of one block become probabilities relative to the largest so far. A row that has seen
 * nothing yet is measured from 0, so that nothing becomes NaN. */
DEVICE void softmax_step(struct softmax *softmax, float *s, float scale_log2) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float largest = softmax->largest[h];
#pragma unroll
        for (int j = 0; j < ATTN_KEYS / 8; j++) {
            largest = fmaxf(largest, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
        }
        largest = fmaxf(largest, shuffle_xor(largest, 1));
        largest = fmaxf(largest, shuffle_xor(largest, 2));
        float origin = largest == -INFINITY ? 0 : largest * scale_log2;
        float rescale = exp2_fast(softmax->largest[h] * scale_log2 - origin);
        float sum = softmax->sum[h] * rescale;
#pragma unroll
        for (int j = 0; j < ATTN_KEYS / 8; j++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float p = exp2_fast(s[4 * j + 2 * h + e] * scale_log2 - origin);
                s[4 * j + 2 * h + e] = p;
                sum += p;
            }
        }
        softmax->largest[h] = largest;
        softmax->sum[h] = sum;
        softmax->rescale[h] = rescale;
    }
}

DEVICE void softmax_rescale(const struct softmax *softmax, float *o) {
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 8; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            o[4 * j + i] *= softmax->rescale[i / 2];
        }
    }
}

/* A consumer's view of its tile. */
struct forward_tile {
    struct attn_tile tile;
    int last_key[2]; /* that the thread's rows see */
};

DEVICE void forward_tile_init(struct forward_tile *tile, const struct forward_params *params,
                              struct place place) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        struct packed_place at = packed_place_of(place, h, params->group, params->group_inverse);
        tile->last_key[h] = min_int(tile->tile.keys - 1, tile->tile.reach + (int)at.token);
    }
}

/* Hides keys that a row does not see; only blocks beyond what every row sees have any. */
DEVICE void forward_mask(const struct forward_tile *tile, int b, uint32_t column, float *s) {
    int key = b * ATTN_KEYS;
    if (key + ATTN_KEYS - 1 <= min_int(tile->tile.keys - 1, tile->tile.reach)) {
        return;
    }
    hide_keys(s, ATTN_KEYS / 2, key, column, tile->last_key);
}

DEVICE void forward_scores(const struct forward_block *block, uint32_t consumer, uint32_t stage,
                           float *s) {
    wgmma_hold(s, ATTN_KEYS / 2);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++) {
        wgmma_ss_kk_n128(s, columns_at(block->q, ATTN_TILE_ROWS, consumer * 64, k),
                         columns_at(block->k + stage * FORWARD_BYTES, ATTN_KEYS, 0, k), k > 0);
    }
    wgmma_commit();
}

DEVICE void forward_values(const struct forward_block *block, uint32_t stage, uint32_t (*p)[4],
                           float *o) {
    wgmma_hold(o, HEAD_DIM / 2);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < ATTN_KEYS / 16; k++) {
        wgmma_rs_m(o, p[k], rows_at(block->v + stage * FORWARD_BYTES, ATTN_KEYS, k), 1);
    }
    wgmma_commit();
}

DEVICE void forward_pack(const float *s, uint32_t (*p)[4]) {
#pragma unroll
    for (int k = 0; k < ATTN_KEYS / 16; k++) {
        pack_operand(p[k], s + 8 * k);
    }
}

/* One block after another. On entry K of the first is awaited; `k` and `v` run one block apart. */
DEVICE void forward_tile_run(const struct forward_params *params, const struct forward_block *block,
                             const struct forward_tile *tile, struct place place, struct ring *k,
                             struct ring *v, struct softmax *softmax, float *o) {
    float s[ATTN_KEYS / 2];
    uint32_t p[ATTN_KEYS / 16][4];
    int b = tile->tile.blocks - 1;
    mbarrier_wait(block->k_full + 8 * k->stage, k->parity);
    forward_scores(block, place.consumer, k->stage, s);
    WGMMA_WAIT(0);
    wgmma_hold(s, ATTN_KEYS / 2);
    warp_arrive(block->k_empty + 8 * k->stage, place.lane);
    ring_advance(k);
    forward_mask(tile, b, place.column, s);
    softmax_step(softmax, s, params->scale_log2);
    forward_pack(s, p);
    if (params->zero_tails && b * ATTN_KEYS + ATTN_KEYS > tile->tile.keys) {
        mbarrier_wait(block->v_full + 8 * v->stage, v->parity);
        clear_rows(block->v + v->stage * FORWARD_BYTES, ATTN_KEYS,
                   (uint32_t)(tile->tile.keys - b * ATTN_KEYS), ATTN_KEYS, FORWARD_CLEARED);
    }
    for (b--; b >= 0; b--) {
        mbarrier_wait(block->k_full + 8 * k->stage, k->parity);
        barrier_sync(FORWARD_TURN + (int)place.consumer, CONSUMER_THREADS);
        forward_scores(block, place.consumer, k->stage, s);
        mbarrier_wait(block->v_full + 8 * v->stage, v->parity);
        forward_values(block, v->stage, p, o);
        barrier_arrive(FORWARD_TURN + (int)(place.consumer ^ 1), CONSUMER_THREADS);
        WGMMA_WAIT(1);
        wgmma_hold(s, ATTN_KEYS / 2);
        warp_arrive(block->k_empty + 8 * k->stage, place.lane);
        ring_advance(k);
        forward_mask(tile, b, place.column, s);
        softmax_step(softmax, s, params->scale_log2);
        WGMMA_WAIT(0);
        wgmma_hold(o, HEAD_DIM / 2);
        warp_arrive(block->v_empty + 8 * v->stage, place.lane);
        ring_advance(v);
        softmax_rescale(softmax, o);
        forward_pack(s, p);
    }
    warp_arrive(block->q_empty, place.lane);
    mbarrier_wait(block->v_full + 8 * v->stage, v->parity);
    forward_values(block, v->stage, p, o);
    WGMMA_WAIT(0);
    wgmma_hold(o, HEAD_DIM / 2);
    warp_arrive(block->v_empty + 8 * v->stage, place.lane);
    ring_advance(v);
}

DEVICE void forward_store(const struct forward_params *params, const struct attn_tile *tile,
                          struct place place, const struct softmax *softmax, const float *o) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = softmax->sum[h];
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
        struct packed_place at = packed_place_of(place, h, params->group, params->group_inverse);
        if (at.token >= tile->tokens || at.head >= tile->heads) {
            continue;
        }
        int q_row = tile->q_row + (int)at.token;
        int q_head = tile->head + (int)at.head;
        float lse = softmax->largest[h] * params->scale_log2 + log2_fast(sum);
        if (place.column == 0) {
            params->lse[(int64_t)q_row * params->q_heads + q_head] = sum > 0 ? lse * LN_2
                                                                             : -INFINITY;
        }
        store_row(view_pairs(&params->o, q_row, q_head), o, h, place.column, sum > 0 ? 1 / sum : 0);
    }
}

DEVICE void forward_consume(const struct forward_params *params,
                            const struct forward_block *block) {
    struct place place = place_of_thread();
    struct ring k = {0, 0};
    struct ring v = {0, 0};
    struct ring q = {0, 0};
    if (place.consumer == 1) {
        barrier_arrive(FORWARD_TURN, CONSUMER_THREADS);
    }
    for (int turn = 0; turn * block_count() < params->tile_count; turn++) {
        int t = turn_tile(turn);
        if (t >= params->tile_count) {
            continue;
        }
        float o[HEAD_DIM / 2];
        struct softmax softmax;
        struct forward_tile tile = {params->tiles[t], {0, 0}};
        forward_tile_init(&tile, params, place);
        softmax_init(&softmax);
        clear_sums(o, HEAD_DIM / 2);
        if (tile.tile.blocks > 0) {
            mbarrier_wait(block->q_full, q.parity);
            ring_flip(&q);
            forward_tile_run(params, block, &tile, place, &k, &v, &softmax, o);
        }
        forward_store(params, &tile.tile, place, &softmax, o);
    }
    if (place.consumer == 0) {
        barrier_sync(FORWARD_TURN, CONSUMER_THREADS);
    }
}

KERNEL(forward, struct forward_params, ATTN_THREADS) {
    struct forward_block block = forward_block_of();
    BLOCK_ROLES(forward_barriers_init(&block), forward_produce(params, &block),
                forward_consume(params, &block));
}

#endif
