/* What the chip leaves undefined, the emulator refuses; what it leaves open, it delays. */
#define HEAD_DIM 64
#include "gpu_attn/primitives.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define SHARED 65536u

static _Alignas(64) float memory[4096];

static int run(emulator_kernel *kernel, const void *params, enum emulator_schedule schedule) {
    struct emulator_launch launch = {.blocks = 2,
                                     .threads = 128,
                                     .resident = 2,
                                     .shared_bytes = SHARED,
                                     .schedule = schedule,
                                     .seed = 3};
    return emulator_run(&launch, kernel, params);
}

/* Refused under every schedule, with these words in the sentence. */
static void refused(emulator_kernel *kernel, const char *words) {
    for (uint32_t schedule = 0; schedule < EMULATOR_SCHEDULES; schedule++) {
        if (run(kernel, NULL, (enum emulator_schedule)schedule) == 0) {
            fail_msg("schedule %u: not refused: %s", schedule, words);
        }
        if (strstr(emulator_error(), words) == NULL) {
            fail_msg("schedule %u: '%s' is not in '%s'", schedule, words, emulator_error());
        }
    }
}

static void stores_outside(const void *params) {
    (void)params;
    shared_store(shared_base() + SHARED, 0);
}

static void stores_misaligned(const void *params) {
    (void)params;
    shared_store_pair(shared_base() + 4, 0, 0);
}

static void emulator_refuses_stores_that_the_chip_faults_on(void **state) {
    (void)state;
    refused(stores_outside, "outside the block's 65536 bytes");
    refused(stores_misaligned, "not aligned to 8");
}

static void waits_uninitialised(const void *params) {
    (void)params;
    mbarrier_wait(shared_base(), 0);
}

static void arrives_too_often(const void *params) {
    (void)params;
    if (thread_index() == 0) {
        mbarrier_init(shared_base(), 1);
        mbarrier_expect(shared_base(), 128);
        mbarrier_arrive(shared_base());
    }
}

static void waits_for_ever(const void *params) {
    (void)params;
    if (thread_index() == 0) {
        mbarrier_init(shared_base(), 1);
    }
    block_sync();
    mbarrier_wait(shared_base(), 0);
}

static void counts_differently(const void *params) {
    (void)params;
    barrier_sync(1, thread_index() < 64 ? 128 : 96);
}

static void leaves_a_barrier_half_full(const void *params) {
    (void)params;
    if (thread_index() < 32) {
        barrier_arrive(2, 128);
    }
}

static void emulator_refuses_barriers_that_do_not_add_up(void **state) {
    (void)state;
    refused(waits_uninitialised, "was not initialised");
    refused(arrives_too_often, "more than its 1 arrivals");
    refused(waits_for_ever, "deadlock:");
    refused(counts_differently, "others said");
    refused(leaves_a_barrier_half_full, "ended with threads at named barrier 2");
}

static void encode(struct tensor_map *map) {
    const uint64_t size[3] = {32, 1, 64};
    const uint64_t stride_bytes[2] = {128, 128};
    const uint32_t box[3] = {32, 1, 8};
    assert_int_equal(emulator_encode(map, memory, 4, size, stride_bytes, box), 0);
}

static void loads_misaligned(const void *params) {
    struct tensor_map map;
    (void)params;
    encode(&map);
    if (thread_index() == 0) {
        mbarrier_init(shared_base(), 1);
        tma_load(shared_base() + 1536, &map, shared_base(), 0, 0, 0);
    }
}

static void ends_while_loading(const void *params) {
    struct tensor_map map;
    (void)params;
    encode(&map);
    if (thread_index() == 0) {
        mbarrier_init(shared_base(), 1);
        mbarrier_expect(shared_base(), 4096);
        tma_load(shared_base() + 1024, &map, shared_base(), 0, 0, 0);
    }
}

static void stores_while_loading(const void *params) {
    struct tensor_map map;
    (void)params;
    encode(&map);
    if (thread_index() == 0) {
        mbarrier_init(shared_base(), 1);
        mbarrier_expect(shared_base(), 1024);
        tma_load(shared_base() + 1024, &map, shared_base(), 0, 0, 0);
        shared_store(shared_base() + 1040, 1);
    }
}

static void adds_without_a_group(const void *params) {
    struct tensor_map map;
    (void)params;
    encode(&map);
    if (thread_index() == 0) {
        shared_store(shared_base(), 0);
        fence_async();
        tma_reduce_add(&map, shared_base(), 0, 0, 56);
    }
}

/* In flight only where copies take time. */
static void refused_when_late(emulator_kernel *kernel, const char *words) {
    assert_int_equal(run(kernel, NULL, EMULATOR_LAZY), -1);
    if (strstr(emulator_error(), words) == NULL) {
        fail_msg("'%s' is not in '%s'", words, emulator_error());
    }
}

static void emulator_refuses_copies_that_are_not_awaited(void **state) {
    (void)state;
    refused(loads_misaligned, "1024-byte alignment");
    refused_when_late(ends_while_loading, "ended with copies in flight");
    refused_when_late(stores_while_loading, "while a copy is in flight");
    refused(adds_without_a_group, "that no group holds");
}

static void multiplies_unfenced(const void *params) {
    float d[32] = {0};
    (void)params;
    shared_store(shared_base() + (uint32_t)thread_index() * 4, 0);
    block_sync();
    wgmma_fence();
    wgmma_ss_kk_n64(d, matrix_at(shared_base(), 16, 1024), matrix_at(shared_base(), 16, 1024), 0);
    wgmma_commit();
    WGMMA_WAIT(0);
}

static void multiplies_without_swizzle(const void *params) {
    float d[32] = {0};
    (void)params;
    wgmma_fence();
    wgmma_ss_kk_n64(d, 64, matrix_at(shared_base(), 16, 1024), 0);
    wgmma_commit();
    WGMMA_WAIT(0);
}

static void multiplies_apart(const void *params) {
    float d[32] = {0};
    (void)params;
    wgmma_fence();
    wgmma_ss_kk_n64(d, matrix_at(shared_base(), 16, 1024), matrix_at(shared_base(), 16, 1024),
                    thread_index() % 2);
    wgmma_commit();
    WGMMA_WAIT(0);
}

static void multiplies_outside(const void *params) {
    float d[32] = {0};
    (void)params;
    wgmma_fence();
    wgmma_ss_kk_n64(d, matrix_at(shared_base(), 16, 1024), matrix_at(shared_base() + SHARED, 16, 8),
                    0);
    wgmma_commit();
    WGMMA_WAIT(0);
}

static void multiplies_again(const void *params) {
    float d[32] = {0};
    (void)params;
    for (int i = 0; i < 2; i++) {
        if (i == 0) {
            wgmma_fence();
        }
        wgmma_ss_mm_n64(d, matrix_at(shared_base(), 16, 1024), matrix_at(shared_base(), 16, 1024),
                        0);
        wgmma_commit();
        WGMMA_WAIT(0);
    }
}

static void emulator_refuses_products_of_what_is_not_there(void **state) {
    (void)state;
    refused(multiplies_unfenced, "without a proxy fence");
    refused(multiplies_without_swizzle, "not of 128-byte swizzle");
    refused(multiplies_apart, "disagree");
    refused(multiplies_again, "since the last fence");
    refused(multiplies_outside, "outside the block's");
}

/* Shared memory that nobody wrote is NaN. */
static void multiplies_nothing(const void *params) {
    float d[32] = {0};
    float *out = *(float *const *)params;
    wgmma_fence();
    wgmma_ss_kk_n64(d, matrix_at(shared_base(), 16, 1024), matrix_at(shared_base(), 16, 1024), 0);
    wgmma_commit();
    WGMMA_WAIT(0);
    out[thread_index()] = d[0];
}

static void emulator_makes_uninitialised_memory_visible(void **state) {
    (void)state;
    float *out = memory;
    assert_int_equal(run(multiplies_nothing, &out, EMULATOR_EAGER), 0);
    assert_true(isnan(memory[0]) && isnan(memory[127]));
}

/* Sums are read before the wait. The last lane to issue, 126 as 127 ended the barrier, has them
 * when eager, no lane when lazy. */
static void reads_early(const void *params) {
    float d[32] = {7};
    float *out = *(float *const *)params;
    for (uint32_t i = 0; i < 4; i++) {
        shared_clear(shared_base() + ((uint32_t)thread_index() * 4 + i) * 16);
    }
    fence_async();
    block_sync();
    wgmma_fence();
    wgmma_ss_kk_n64(d, matrix_at(shared_base(), 16, 1024), matrix_at(shared_base(), 16, 1024), 0);
    wgmma_commit();
    out[thread_index()] = d[0];
    WGMMA_WAIT(0);
}

static void emulator_lazy_keeps_products_until_they_are_awaited(void **state) {
    (void)state;
    float *out = memory;
    assert_int_equal(run(reads_early, &out, EMULATOR_EAGER), 0);
    assert_true(memory[126] == 0);
    assert_int_equal(run(reads_early, &out, EMULATOR_LAZY), 0);
    assert_true(memory[126] == 7);
}

/* A box of floats is added where the tensor is, and nowhere beyond. */
static void adds_ones(const void *params) {
    const struct tensor_map *map = params;
    if (thread_index() == 0 && block_index() == 0) {
        for (uint32_t row = 0; row < 8; row++) {
            for (uint32_t pair = 0; pair < 16; pair++) {
                shared_store_pair(swizzled(shared_base() + row * 128 + pair * 8), 1, (float)row);
            }
        }
        fence_async();
        tma_reduce_add(map, shared_base(), 0, 0, 60);
        bulk_commit();
        BULK_WAIT(0);
    }
}

static void emulator_adds_boxes_inside_the_tensor_only(void **state) {
    (void)state;
    struct tensor_map map;
    for (int i = 0; i < 4096; i++) {
        memory[i] = 0.5f;
    }
    encode(&map);
    assert_int_equal(run(adds_ones, &map, EMULATOR_RANDOM), 0);
    assert_true(memory[60 * 32] == 1.5f && memory[63 * 32 + 31] == 3.5f);
    assert_true(memory[59 * 32 + 31] == 0.5f && memory[64 * 32] == 0.5f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(emulator_refuses_stores_that_the_chip_faults_on),
        cmocka_unit_test(emulator_refuses_barriers_that_do_not_add_up),
        cmocka_unit_test(emulator_refuses_copies_that_are_not_awaited),
        cmocka_unit_test(emulator_refuses_products_of_what_is_not_there),
        cmocka_unit_test(emulator_makes_uninitialised_memory_visible),
        cmocka_unit_test(emulator_lazy_keeps_products_until_they_are_awaited),
        cmocka_unit_test(emulator_adds_boxes_inside_the_tensor_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
