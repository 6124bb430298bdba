/* The probes' answers under emulation against plain arithmetic: what a device will be asked is
 * itself right. */
#include "tests/gpu/probes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static _Alignas(64) uint16_t a[64][64];
static _Alignas(64) uint16_t b[PROBE_ROWS][128];
static _Alignas(64) float sums[64][32];
static float out[PROBE_FORMS][128][PROBE_VALUES];

static float a_value(int row, int column) {
    return bf16_low(a[row][column]);
}

static float b_value(int row, int column) {
    return bf16_low(b[row][column]);
}

static void probes_run(void) {
    const uint64_t a_size[3] = {64, 1, 64};
    const uint64_t b_size[3] = {128, 1, PROBE_ROWS};
    const uint64_t sums_size[3] = {32, 1, 60};
    const uint64_t narrow[2] = {128, 128};
    const uint64_t wide[2] = {256, 256};
    struct probe_params params = {.out = &out[0][0][0]};
    assert_int_equal(emulator_encode(&params.a, a, 2, a_size, narrow, (uint32_t[]){64, 1, 64}), 0);
    assert_int_equal(emulator_encode(&params.b, b, 2, b_size, wide, (uint32_t[]){64, 1, 128}), 0);
    assert_int_equal(
        emulator_encode(&params.sums, sums, 4, sums_size, narrow, (uint32_t[]){32, 1, 64}), 0);
    for (int row = 0; row < PROBE_ROWS; row++) {
        for (int column = 0; column < 128; column++) {
            b[row][column] = (uint16_t)bf16_of((float)((row * 5 + column * 3) % 9 - 4));
            if (row < 64 && column < 64) {
                a[row][column] = (uint16_t)bf16_of((float)((row * 3 + column * 7) % 9 - 4));
            }
        }
    }
    struct emulator_launch launch = {.blocks = 1,
                                     .threads = 128,
                                     .resident = 1,
                                     .shared_bytes = PROBE_SHARED,
                                     .schedule = EMULATOR_LAZY,
                                     .seed = 1};
    if (emulator_run(&launch, attn_probes, &params) != 0) {
        fail_msg("%s", emulator_error());
    }
}

/* Element `i` of a thread's accumulator. */
static int row_of(int thread, int i) {
    return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
}

static int column_of(int thread, int i) {
    return i / 4 * 8 + thread % 4 * 2 + i % 2;
}

static float kk(int row, int column) {
    float sum = 0;
    for (int k = 16; k < 32; k++) {
        sum += a_value(row, k) * b_value(column, k);
    }
    return sum;
}

static float mm(int row, int column) {
    float sum = 0;
    for (int k = 16; k < 32; k++) {
        sum += a_value(k, row) * b_value(k, column);
    }
    return sum;
}

static void probes_of_shared_operands_are_their_products(void **state) {
    (void)state;
    probes_run();
    for (int thread = 0; thread < 128; thread++) {
        for (int i = 0; i < 64; i++) {
            int row = row_of(thread, i);
            int column = column_of(thread, i);
            assert_true(out[PROBE_SS_KK_N128][thread][i] == kk(row, column));
            if (i < 32) {
                assert_true(out[PROBE_SS_KK_N64][thread][i] == 2 * kk(row, column));
                assert_true(out[PROBE_SS_MM_N64][thread][i] == mm(row, column));
            }
        }
    }
}

/* A's registers: lane l has rows l/4 and l/4 + 8, columns 2 (l%4) + {0, 1} and those + 8. */
static float register_a(int row, int k) {
    int i = row % 16 / 8 + k / 8 * 2;
    int thread = row / 16 * 32 + row % 8 * 4 + k % 8 / 2;
    return k % 2 == 0 ? (float)((thread + i) % 7 - 3) : (float)(i - 1);
}

static float rs(int row, int column) {
    float sum = 0;
    for (int k = 0; k < 16; k++) {
        sum += register_a(row, k) * b_value(16 + k, column);
    }
    return sum;
}

static void probes_of_register_operands_are_their_products(void **state) {
    (void)state;
    probes_run();
    for (int thread = 0; thread < 128; thread++) {
        for (int i = 0; i < 64; i++) {
            float first = (float)(i % 5) + rs(row_of(thread, i), column_of(thread, i));
            assert_true(out[PROBE_RS_M_N128][thread][i] == first);
            if (i < 32) {
                float second = first + rs(row_of(thread, i), 64 + column_of(thread, i));
                assert_true(out[PROBE_RS_M_N64][thread][i] == second);
            }
        }
    }
}

static void probes_see_what_tma_loaded_and_added(void **state) {
    (void)state;
    memset(sums, 0, sizeof sums);
    probes_run();
    for (int thread = 0; thread < 128; thread++) {
        assert_memory_equal(out[PROBE_BOX][thread], &a[thread / 2][thread % 2 * 32], 64);
    }
    for (int row = 0; row < 64; row++) {
        for (int column = 0; column < 32; column++) {
            assert_true(sums[row][column] == (row < 60 ? (float)(row + 100 * column) : 0));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(probes_of_shared_operands_are_their_products),
        cmocka_unit_test(probes_of_register_operands_are_their_products),
        cmocka_unit_test(probes_see_what_tma_loaded_and_added),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
