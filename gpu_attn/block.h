/* block: what the kernels have in common: one block's panels, rings, rows and turns.
 *
 * HEAD_DIM (64 or 128) is a macro of the compilation; each kernel is compiled once for each. A
 * matrix of R rows lies in shared memory as PANELS panels of 64 columns, R rows of 128 bytes each,
 * swizzled as TMA writes them. Warpgroup 0 produces, 1 and 2 consume; consumer w has rows
 * [64 w, 64 w + 64) of the block's 128. In an accumulator of wgmma, a thread has rows
 * `row` and row + 8 and of every 8 columns two, from `column` on: element 4 j + 2 h + e is row
 * row + 8 h, column 8 j + column + e. */
#ifndef BALLAST_GPU_ATTN_BLOCK_H
#define BALLAST_GPU_ATTN_BLOCK_H

#include "gpu_attn/params.h"
#include "gpu_attn/primitives.h"
#include "gpu_attn/shared_bytes.h"

#include <assert.h>
#include <math.h>

#define PANELS    (HEAD_DIM / 64)
#define ROW_BYTES 128u /* of a panel */
#define STAGES    2
#define LOG2_E    1.4426950408889634f
#define LN_2      0.6931471805599453f

#define CONSUMER_THREADS 256
#define CONSUMER_WARPS   8

#if HEAD_DIM == 128
#define wgmma_rs_m wgmma_rs_m_n128
#else
#define wgmma_rs_m wgmma_rs_m_n64
#endif

/* The longest tiles first, one a block; then back and forth, so that no block is always last. */
DEVICE int turn_tile(int turn) {
    int blocks = block_count();
    return turn * blocks + (turn % 2 == 0 ? block_index() : blocks - 1 - block_index());
}

/* A place in a ring of STAGES buffers. The first pass over the ring has parity 0: a consumer waits
 * on "full" with it, a producer on "empty" with its opposite. */
struct ring {
    uint32_t stage;
    uint32_t parity;
};

DEVICE void ring_advance(struct ring *ring) {
    ring->stage++;
    if (ring->stage == STAGES) {
        ring->stage = 0;
        ring->parity ^= 1;
    }
}

/* One buffer alone is a ring of one. */
DEVICE void ring_flip(struct ring *ring) {
    ring->parity ^= 1;
}

/* Barriers of `count` buffers: one arrival fills a buffer, one of each consumer warp empties it. */
DEVICE void buffers_init(uint32_t full, uint32_t empty, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        mbarrier_init(full + 8 * i, 1);
        mbarrier_init(empty + 8 * i, CONSUMER_WARPS);
    }
}

DEVICE void warp_arrive(uint32_t barrier, uint32_t lane) {
    if (lane == 0) {
        mbarrier_arrive(barrier);
    }
}

/* A block's life: one thread makes the barriers and one loads, with few registers; the consumers
 * get what is left. */
#define BLOCK_ROLES(init, produce, consume)                                                        \
    if (thread_index() == 0) {                                                                     \
        init;                                                                                      \
        mbarrier_init_fence();                                                                     \
    }                                                                                              \
    block_sync();                                                                                  \
    if (thread_index() < 128) {                                                                    \
        REGISTERS_DECREASE(24);                                                                    \
        if (thread_index() == 0) {                                                                 \
            produce;                                                                               \
        }                                                                                          \
    } else {                                                                                       \
        REGISTERS_INCREASE(240);                                                                   \
        consume;                                                                                   \
    }

/* The thread's place among the consumers. */
struct place {
    uint32_t consumer; /* 0 or 1 */
    uint32_t row;      /* in the warpgroup's 64 */
    uint32_t column;   /* 0, 2, 4, 6 */
    uint32_t lane;
};

DEVICE struct place place_of_thread(void) {
    uint32_t thread = fresh((uint32_t)thread_index());
    struct place place;
    place.lane = thread & 31;
    place.consumer = (thread >> 7) - 1;
    place.row = (thread >> 5 & 3) * 16 + (place.lane >> 2);
    place.column = (place.lane & 3) * 2;
    return place;
}

/* Token of a packed row; its head within the pack is row - token * pack. */
DEVICE uint32_t packed_token(uint32_t row, uint32_t inverse) {
    return row * inverse >> 16;
}

/* Query token and head, within their tile, of a consumer thread's row h. */
struct packed_place {
    uint32_t token;
    uint32_t head;
};

DEVICE struct packed_place packed_place_of(struct place place, int h, int group, uint32_t inverse) {
    uint32_t row = place.consumer * 64 + place.row + 8 * (uint32_t)h;
    struct packed_place found;
    found.token = packed_token(row, inverse);
    found.head = row - found.token * (uint32_t)group;
    return found;
}

DEVICE int packed_row_is_valid(uint32_t row, uint32_t pack, uint32_t inverse, uint32_t tokens,
                               uint32_t heads) {
    uint32_t token = packed_token(row, inverse);
    return token < tokens && row - token * pack < heads;
}

/* Loads all panels of a box of `rows` rows, in shared memory `panel_rows` rows apart. */
DEVICE void load_panels(uint32_t to, const struct tensor_map *map, uint32_t full, int head, int row,
                        uint32_t panel_rows) {
#pragma unroll
    for (int panel = 0; panel < PANELS; panel++) {
        tma_load(to + (uint32_t)panel * panel_rows * ROW_BYTES, map, full, panel * 64, head, row);
    }
}

/* Operand rows as A or B, K-major: 16 columns `k` of HEAD_DIM. */
DEVICE uint64_t columns_at(uint32_t panels, uint32_t panel_rows, uint32_t row, int k) {
    return matrix_at(panels + (uint32_t)(k / 4) * panel_rows * ROW_BYTES + row * ROW_BYTES +
                         (uint32_t)(k % 4) * 32,
                     16, 8 * ROW_BYTES);
}

/* Operand rows [16 k, 16 k + 16) as B, N-major: all HEAD_DIM columns. */
DEVICE uint64_t rows_at(uint32_t panels, uint32_t panel_rows, int k) {
    return matrix_at(panels + (uint32_t)k * 16 * ROW_BYTES, panel_rows * ROW_BYTES, 8 * ROW_BYTES);
}

/* Clears row `row` of every panel: 8 calls of 16 bytes each. Fence afterwards. */
DEVICE void clear_row(uint32_t panels, uint32_t panel_rows, uint32_t row) {
    for (uint32_t chunk = 0; chunk < PANELS * 8; chunk++) {
        shared_clear(panels + (chunk / 8 * panel_rows + row) * ROW_BYTES + chunk % 8 * 16);
    }
}

/* Clears rows [begin, end) with the consumers' threads. All consumers call it; it ends with their
 * barrier, so what follows may read. */
DEVICE void clear_rows(uint32_t panels, uint32_t panel_rows, uint32_t begin, uint32_t end,
                       int barrier) {
    uint32_t thread = (uint32_t)thread_index() - 128;
    if (begin + thread < end) {
        clear_row(panels, panel_rows, begin + thread);
    }
    fence_async();
    barrier_sync(barrier, CONSUMER_THREADS);
}

/* A operands of wgmma from an accumulator of 16 columns: the layouts agree. */
DEVICE void pack_operand(uint32_t *a, const float *d) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        a[i] = bf16_pair(d[2 * i], d[2 * i + 1]);
    }
}

DEVICE uint32_t min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

DEVICE int min_int(int a, int b) {
    return a < b ? a : b;
}

/* Row pointer of a view of bf16. */
DEVICE uint32_t *view_pairs(const struct attn_view *view, int row, int head) {
    uint16_t *data = (uint16_t *)view->data;
    return (uint32_t *)(data + (int64_t)row * view->row_stride + (int64_t)head * view->head_stride);
}

/* A thread's part of one accumulator row, scaled, as bf16. */
DEVICE void store_row(uint32_t *to, const float *d, int h, uint32_t column, float scale) {
#pragma unroll
    for (int j = 0; j < HEAD_DIM / 8; j++) {
        to[(j * 8 + (int)column) / 2] = bf16_pair(d[4 * j + 2 * h] * scale,
                                                  d[4 * j + 2 * h + 1] * scale);
    }
}

/* Hides keys beyond the last that a thread's two rows see. `first` is of the block's first key. */
DEVICE void hide_keys(float *s, int count, int first, uint32_t column, const int *last_key) {
#pragma unroll
    for (int i = 0; i < count; i++) {
        if (first + i / 4 * 8 + (int)column + i % 2 > last_key[i / 2 % 2]) {
            s[i] = -INFINITY;
        }
    }
}

DEVICE void clear_sums(float *d, int count) {
#pragma unroll
    for (int i = 0; i < count; i++) {
        d[i] = 0;
    }
}

#endif
