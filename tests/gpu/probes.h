/* probes: single instructions of the primitives, on known data. The first thing that runs on a
 * device: kernels and emulator share one reading of the operand layouts, and this is what tells
 * whether it is the chip's. Operands are small integers, so every sum is exact and a device's
 * answers must equal the emulator's bit for bit. */
#ifndef BALLAST_TESTS_PROBES_H
#define BALLAST_TESTS_PROBES_H

#include "gpu_attn/primitives.h"

#define PROBE_ROWS   128 /* of B; A has 64 */
#define PROBE_VALUES 64  /* of a thread and form */

enum probe_form {
    PROBE_SS_KK_N128, /* columns 16 to 31 of A and B, K-major */
    PROBE_SS_KK_N64,
    PROBE_SS_MM_N64, /* rows 16 to 31 of A and B as K */
    PROBE_RS_M_N128, /* A from registers, rows 16 to 31 of B, two panels */
    PROBE_RS_M_N64,
    PROBE_BOX, /* A as TMA left it, unswizzled by our formula */
    PROBE_FORMS,
};

struct probe_params {
    struct tensor_map a;    /* [64, 1, 64] bf16, box 64 x 1 x 64 */
    struct tensor_map b;    /* [128, 1, 128] bf16, box 64 x 1 x 128 */
    struct tensor_map sums; /* [60, 1, 32] floats, box 32 x 1 x 64: the last rows are clipped */
    float *out;             /* [form][thread][PROBE_VALUES] */
};

#define PROBE_A       0u
#define PROBE_B       8192u
#define PROBE_SUMS    (PROBE_B + 2 * 16384u)
#define PROBE_BARRIER (PROBE_SUMS + 8192u)
#define PROBE_SHARED  (PROBE_BARRIER + 8u)

DEVICE void probe_load(const struct probe_params *params, uint32_t base) {
    if (thread_index() == 0) {
        mbarrier_init(base + PROBE_BARRIER, 1);
        mbarrier_init_fence();
        mbarrier_expect(base + PROBE_BARRIER, 8192 + 2 * 16384);
        tma_load(base + PROBE_A, &params->a, base + PROBE_BARRIER, 0, 0, 0);
        tma_load(base + PROBE_B, &params->b, base + PROBE_BARRIER, 0, 0, 0);
        tma_load(base + PROBE_B + 16384, &params->b, base + PROBE_BARRIER, 64, 0, 0);
    }
    block_sync();
    mbarrier_wait(base + PROBE_BARRIER, 0);
}

DEVICE void probe_store(const struct probe_params *params, enum probe_form form, const float *d,
                        int count) {
    float *out = params->out + ((int)form * 128 + thread_index()) * PROBE_VALUES;
    for (int i = 0; i < count; i++) {
        out[i] = d[i];
    }
}

DEVICE void probe_shared_products(const struct probe_params *params, uint32_t base) {
    float d[64];
    for (int i = 0; i < 64; i++) {
        d[i] = 1; /* not added to */
    }
    wgmma_hold(d, 64);
    wgmma_fence();
    wgmma_ss_kk_n128(d, matrix_at(base + PROBE_A + 32, 16, 1024),
                     matrix_at(base + PROBE_B + 32, 16, 1024), 0);
    wgmma_commit();
    WGMMA_WAIT(0);
    wgmma_hold(d, 64);
    probe_store(params, PROBE_SS_KK_N128, d, 64);
    wgmma_fence();
    wgmma_ss_kk_n64(d, matrix_at(base + PROBE_A + 32, 16, 1024),
                    matrix_at(base + PROBE_B + 32, 16, 1024), 1);
    wgmma_commit();
    WGMMA_WAIT(0);
    wgmma_hold(d, 32);
    probe_store(params, PROBE_SS_KK_N64, d, 32);
    wgmma_fence();
    wgmma_ss_mm_n64(d, matrix_at(base + PROBE_A + 2048, 8192, 1024),
                    matrix_at(base + PROBE_B + 2048, 16384, 1024), 0);
    wgmma_commit();
    WGMMA_WAIT(0);
    wgmma_hold(d, 32);
    probe_store(params, PROBE_SS_MM_N64, d, 32);
}

DEVICE void probe_register_products(const struct probe_params *params, uint32_t base) {
    float d[64];
    uint32_t a[4];
    for (int i = 0; i < 64; i++) {
        d[i] = (float)(i % 5);
    }
    for (int i = 0; i < 4; i++) {
        a[i] = bf16_pair((float)((thread_index() + i) % 7 - 3), (float)(i - 1));
    }
    wgmma_hold(d, 64);
    wgmma_fence();
    wgmma_rs_m_n128(d, a, matrix_at(base + PROBE_B + 2048, 16384, 1024), 1);
    wgmma_commit();
    WGMMA_WAIT(0);
    wgmma_hold(d, 64);
    probe_store(params, PROBE_RS_M_N128, d, 64);
    wgmma_fence();
    wgmma_rs_m_n64(d, a, matrix_at(base + PROBE_B + 16384 + 2048, 16384, 1024), 1);
    wgmma_commit();
    WGMMA_WAIT(0);
    wgmma_hold(d, 32);
    probe_store(params, PROBE_RS_M_N64, d, 32);
}

/* Thread t reads half a row of A, 32 elements as 16 pairs of bits. */
DEVICE void probe_box(const struct probe_params *params, uint32_t base) {
    float d[16];
    uint32_t row = (uint32_t)thread_index() / 2;
    for (uint32_t i = 0; i < 16; i += 2) {
        uint32_t column = (uint32_t)thread_index() % 2 * 64 + i * 4;
        shared_load_pair(swizzled(base + PROBE_A + row * 128 + column), &d[i], &d[i + 1]);
    }
    probe_store(params, PROBE_BOX, d, 16);
}

/* Adds row r, column c: r + 100 c, to 60 of 64 rows. */
DEVICE void probe_sums(const struct probe_params *params, uint32_t base) {
    uint32_t row = (uint32_t)thread_index() / 2;
    for (uint32_t i = 0; i < 16; i += 2) {
        uint32_t column = (uint32_t)thread_index() % 2 * 16 + i;
        shared_store_pair(swizzled(base + PROBE_SUMS + row * 128 + column * 4),
                          (float)(row + 100 * column), (float)(row + 100 * column + 100));
    }
    fence_async();
    block_sync();
    if (thread_index() == 0) {
        tma_reduce_add(&params->sums, base + PROBE_SUMS, 0, 0, 0);
        bulk_commit();
        BULK_WAIT(0);
    }
}

KERNEL_DEFINE(attn_probes, struct probe_params, 128) {
    uint32_t base = shared_base();
    probe_load(params, base);
    probe_shared_products(params, base);
    probe_register_products(params, base);
    probe_box(params, base);
    probe_sums(params, base);
}

#endif
