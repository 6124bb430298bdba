/* emulator_products: wgmma, decoded strictly from its 64-bit descriptors, a warp's 16 rows at a
 * time. Operands in registers are read when the product happens, not when it is issued, so a kernel
 * that changes them too early is seen. */
#include "tests/kernels/emulator_block.h"

#define K_DEPTH     16
#define WARP_ROWS   16
#define COLUMNS_MAX 256

static float operand_a[WARP_ROWS][K_DEPTH];
static float operand_b[K_DEPTH][COLUMNS_MAX];

/* Shared address of element (outer, k) behind a descriptor of 128-byte swizzle. */
static uint32_t matrix_address(uint64_t matrix, int major, int outer, int k) {
    uint32_t start = (uint32_t)(matrix & 0x3fff) << 4;
    uint32_t lead = (uint32_t)(matrix >> 16 & 0x3fff) << 4;
    uint32_t stride = (uint32_t)(matrix >> 32 & 0x3fff) << 4;
    uint32_t o = (uint32_t)outer;
    uint32_t d = (uint32_t)k;
    uint32_t address = major ? start + o / 64 * lead + o % 64 * 2 + d / 8 * stride + d % 8 * 128
                             : start + o / 8 * stride + o % 8 * 128 + d * 2;
    return address ^ (address >> 7 & 7) << 4;
}

/* Eight neighbouring elements: along k when K-major, along rows or columns otherwise. */
static void matrix_eight(struct block *block, uint64_t matrix, int major, int outer, int k,
                         float *out) {
    uint32_t address = matrix_address(matrix, major, outer, k);
    const unsigned char *at = shared_at(block, address, CHUNK_BYTES, "wgmma");
    chunk_check_read(block, address, "wgmma");
    for (int i = 0; i < 8; i++) {
        uint16_t half;
        memcpy(&half, at + 2 * i, sizeof half);
        out[i] = bf16_low(half);
    }
}

static void load_a_shared(struct block *block, const struct emulator_product *what, int row) {
    float eight[8];
    for (int r = 0; what->a_major == 0 && r < WARP_ROWS; r++) {
        for (int k = 0; k < K_DEPTH; k += 8) {
            matrix_eight(block, what->a_matrix, 0, row + r, k, &operand_a[r][k]);
        }
    }
    for (int k = 0; what->a_major == 1 && k < K_DEPTH; k++) {
        for (int r = 0; r < WARP_ROWS; r += 8) {
            matrix_eight(block, what->a_matrix, 1, row + r, k, eight);
            for (int i = 0; i < 8; i++) {
                operand_a[r + i][k] = eight[i];
            }
        }
    }
}

static void load_a_registers(const struct product *product) {
    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 4; i++) {
            int row = lane / 4 + i % 2 * 8;
            int k = lane % 4 * 2 + i / 2 * 8;
            operand_a[row][k] = bf16_low(product->a[lane][i]);
            operand_a[row][k + 1] = bf16_high(product->a[lane][i]);
        }
    }
}

static void load_b(struct block *block, const struct emulator_product *what) {
    float eight[8];
    for (int n = 0; what->b_major == 0 && n < what->columns; n++) {
        for (int k = 0; k < K_DEPTH; k += 8) {
            matrix_eight(block, what->b_matrix, 0, n, k, eight);
            for (int i = 0; i < 8; i++) {
                operand_b[k + i][n] = eight[i];
            }
        }
    }
    for (int k = 0; what->b_major == 1 && k < K_DEPTH; k++) {
        for (int n = 0; n < what->columns; n += 8) {
            matrix_eight(block, what->b_matrix, 1, n, k, &operand_b[k][n]);
        }
    }
}

/* Half the time of the tests. For whatever vectors this machine has; or, as clang cannot have both,
 * without the sanitizers' marks, which keep it from any: it touches this file's operands and sums
 * alone. */
#ifdef __clang__
#define MULTIPLY __attribute__((no_sanitize("address", "undefined")))
#else
#define MULTIPLY __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
MULTIPLY static void multiply_columns(float *sums, const float *a, int columns) {
    for (int n = 0; n < columns; n++) {
        float sum = 0;
        for (int k = 0; k < K_DEPTH; k++) {
            sum += a[k] * operand_b[k][n];
        }
        sums[n] = sum;
    }
}

static void multiply_row(const struct product *product, int row) {
    float sums[COLUMNS_MAX];
    int columns = product->what.columns;
    multiply_columns(sums, operand_a[row], columns);
    for (int pair = 0; pair < 4; pair++) { /* a lane's columns: two of every eight */
        float *to = product->d[row % 8 * 4 + pair] + row / 8 * 2;
        for (int n = 0; n < columns; n += 8) {
            const float *from = &sums[n + 2 * pair];
            to[n / 2] = (product->what.add ? to[n / 2] : 0) + from[0];
            to[n / 2 + 1] = (product->what.add ? to[n / 2 + 1] : 0) + from[1];
        }
    }
}

static void product_run(struct block *block, int warp, struct product *product) {
    const struct emulator_product *what = &product->what;
    bool registers = product->a[0] != NULL;
    if (what->b_matrix >> 62 != 1 || (!registers && what->a_matrix >> 62 != 1)) {
        emulator_fail("wgmma: the descriptor is not of 128-byte swizzle");
    }
    if (registers) {
        load_a_registers(product);
    } else {
        load_a_shared(block, what, warp % 4 * WARP_ROWS);
    }
    load_b(block, what);
    for (int row = 0; row < WARP_ROWS; row++) {
        multiply_row(product, row);
    }
    product->done = true;
    block->products++;
    emulator.counts.products++;
    emulator.progress++;
}

/* Products happen in order; one that not all lanes have issued stops the rest. */
static void products_run(struct block *block, int index, uint64_t end) {
    struct warp *warp = &block->warps[index];
    for (uint64_t i = warp->first; i < end && i < warp->end; i++) {
        struct product *product = &warp->products[i % PRODUCTS_MAX];
        if (!product->done && product->lanes < 32) {
            return;
        }
        if (!product->done) {
            product_run(block, index, product);
        }
    }
}

void wgmma_fence(void) {
    fiber_current()->fenced = true;
}

void emulator_wgmma(float *d, const uint32_t *a, const struct emulator_product *what) {
    struct fiber *fiber = fiber_current();
    struct warp *warp = &fiber->block->warps[fiber->thread / 32];
    uint64_t index = fiber->products++;
    if (!fiber->fenced) {
        emulator_fail("wgmma: registers may have changed since the last fence");
    }
    struct product *product = &warp->products[index % PRODUCTS_MAX];
    if (index == warp->end) {
        if (warp->end - warp->first == PRODUCTS_MAX) {
            emulator_fail("wgmma: %u products in flight", PRODUCTS_MAX);
        }
        *product = (struct product){.what = *what};
        warp->end++;
    }
    if (memcmp(&product->what, what, sizeof *what) != 0) {
        emulator_fail("wgmma: lanes of a warp disagree");
    }
    product->d[fiber->thread % 32] = d;
    product->a[fiber->thread % 32] = a;
    product->lanes++;
    emulator.progress++;
    enum emulator_schedule schedule = emulator.launch->schedule;
    if (schedule == EMULATOR_EAGER || (schedule >= EMULATOR_RANDOM && emulator_random() % 8 == 0)) {
        products_run(fiber->block, fiber->thread / 32, index + 1);
    }
}

void wgmma_commit(void) {
    struct fiber *fiber = fiber_current();
    if (fiber->groups == GROUPS_MAX) {
        emulator_fail("wgmma: %u groups in flight", GROUPS_MAX);
    }
    fiber->group_ends[fiber->groups++] = fiber->products;
}

/* Forgets products that are done and that every lane has issued. */
static void products_retire(struct block *block, int index) {
    struct warp *warp = &block->warps[index];
    while (warp->first < warp->end && warp->products[warp->first % PRODUCTS_MAX].done) {
        warp->first++;
    }
}

/* May products that are waited for happen now? Lazily, only when nothing else can move. */
static bool products_may_run(void) {
    switch (emulator.launch->schedule) {
    case EMULATOR_EAGER:
        return true;
    case EMULATOR_LAZY:
        return emulator.products_due;
    case EMULATOR_RANDOM:
    case EMULATOR_STARVE:
        return emulator.products_due || emulator_random() % 64 == 0;
    }
    return true;
}

void emulator_wgmma_wait(uint32_t groups) {
    struct fiber *fiber = fiber_current();
    int index = fiber->thread / 32;
    struct warp *warp = &fiber->block->warps[index];
    if (fiber->groups <= groups) {
        return;
    }
    uint32_t over = fiber->groups - groups;
    uint64_t end = fiber->group_ends[over - 1];
    memmove(fiber->group_ends, fiber->group_ends + over, groups * sizeof *fiber->group_ends);
    fiber->groups = groups;
    emulator.counts.drains += groups == 0;
    emulator.counts.overlaps += groups > 0;
    fiber->waits_for = "wgmma";
    emulator.product_waiters++;
    for (;;) {
        if (products_may_run()) {
            products_run(fiber->block, index, end);
        }
        products_retire(fiber->block, index);
        if (warp->first >= end) {
            break;
        }
        fiber_yield();
    }
    fiber->fenced = false;
    emulator.product_waiters--;
    emulator.progress++;
    fiber->waits_for = NULL;
}
