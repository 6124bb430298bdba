/* emulator: the kernels' primitives on a CPU, one fiber a thread.
 *
 * A launch runs every block's threads as fibers until all have returned. mbarriers keep their real
 * state in the emulated shared memory (arrivals, bytes, phase). TMA, bulk copies, bulk additions
 * and wgmma are asynchronous: when they happen is the schedule's choice, and a correct kernel gives
 * the same under all of them.
 *
 *   EAGER   at issue
 *   LAZY    at the last legal moment: when nothing else can move
 *   RANDOM  any moment, threads in any order
 *   STARVE  as RANDOM, one warp held back until nothing else can move
 *
 * What the chip leaves undefined is an error here: addresses outside the block's shared memory,
 * misaligned operands, more arrivals than a barrier expects, lanes that disagree about a product,
 * asynchronous reads of bytes that were stored without a proxy fence, stores to or products of
 * bytes with a copy in flight, exits with copies in flight, deadlock. Shared memory starts as NaN,
 * and so does what a copy will overwrite. `resident` blocks run interleaved.
 *
 * Cannot show: speed, registers, bank conflicts, memory order between blocks, and whether this
 * reading of the operand layouts is the chip's (tests/gpu/run probes that first).
 * Not thread-safe, one launch at a time. x86-64. */
#ifndef BALLAST_TESTS_EMULATOR_H
#define BALLAST_TESTS_EMULATOR_H

#include "gpu_attn/tensor_map.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

enum emulator_schedule { EMULATOR_EAGER, EMULATOR_LAZY, EMULATOR_RANDOM, EMULATOR_STARVE };

#define EMULATOR_SCHEDULES 4

struct emulator_launch {
    int blocks;
    int threads;
    int resident; /* blocks that run at a time; at least 1 */
    uint32_t shared_bytes;
    enum emulator_schedule schedule;
    uint64_t seed;
};

struct emulator_counts {
    uint64_t products; /* wgmma, a warp's share each */
    uint64_t loads;
    uint64_t load_bytes;
    uint64_t additions;
    uint64_t switches;
    uint64_t barriers; /* passed or arrived at, named ones, a thread each */
    uint64_t drains;   /* waits for all products that a thread has in flight */
    uint64_t overlaps; /* waits that leave some in flight */
    uint64_t busiest;  /* products of each launch's block with the most */
};

typedef void emulator_kernel(const void *params);

/* Runs a kernel to its end. 0, or -1 with emulator_error() set. */
int emulator_run(const struct emulator_launch *launch, emulator_kernel *kernel, const void *params);

/* What went wrong, with block and thread; static memory. */
const char *emulator_error(void);

/* Since the program began. */
struct emulator_counts emulator_counts(void);

/* Encodes a map of [z, y, x] elements of `element_bytes` (2 or 4). Strides in bytes of y and z.
 * -1 where the driver would refuse. */
int emulator_encode(struct tensor_map *map, const void *base, uint32_t element_bytes,
                    const uint64_t *size, const uint64_t *stride_bytes, const uint32_t *box);

#define DEVICE static inline

#define KERNEL_DEFINE(name, type, threads)                                                         \
    static void name##_body(const type *params);                                                   \
    emulator_kernel name;                                                                          \
    void name(const void *params) {                                                                \
        name##_body((const type *)params);                                                         \
    }                                                                                              \
    static void name##_body(const type *params)

/* The primitives, as primitives.h says. */
uint32_t shared_base(void);
int thread_index(void);
int block_index(void);
int block_count(void);
void block_sync(void);
void barrier_sync(int id, int threads);
void barrier_arrive(int id, int threads);
void mbarrier_init(uint32_t barrier, uint32_t arrivals);
void mbarrier_init_fence(void);
void mbarrier_arrive(uint32_t barrier);
void mbarrier_expect(uint32_t barrier, uint32_t bytes);
void mbarrier_wait(uint32_t barrier, uint32_t parity);
void tma_load(uint32_t to, const struct tensor_map *map, uint32_t barrier, int x, int y, int z);
void tma_reduce_add(const struct tensor_map *map, uint32_t from, int x, int y, int z);
void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier);
void bulk_commit(void);
void emulator_bulk_wait(uint32_t groups, int landed);
float shuffle_xor(float value, int mask);
void shared_store(uint32_t to, uint32_t value);
void shared_store_pair(uint32_t to, float a, float b);
void shared_load_pair(uint32_t from, float *a, float *b);
void shared_clear(uint32_t to);
void fence_async(void);
void wgmma_fence(void);
void wgmma_commit(void);
void emulator_wgmma_wait(uint32_t groups);

/* Majors: 0 K-major, 1 M- or N-major. `a` is NULL for an operand in shared memory. */
struct emulator_product {
    int columns;
    int a_major;
    int b_major;
    int add;
    uint64_t a_matrix;
    uint64_t b_matrix;
};
void emulator_wgmma(float *d, const uint32_t *a, const struct emulator_product *product);

#define REGISTERS_DECREASE(n) ((void)0)
#define REGISTERS_INCREASE(n) ((void)0)
#define BULK_WAIT_READ(n)     emulator_bulk_wait(n, 0)
#define BULK_WAIT(n)          emulator_bulk_wait(n, 1)
#define WGMMA_WAIT(n)         emulator_wgmma_wait(n)

static inline void wgmma_hold(float *d, int count) {
    (void)d, (void)count;
}

static inline uint32_t fresh(uint32_t value) {
    return value;
}

static inline float exp2_fast(float x) {
    return exp2f(x);
}

static inline float log2_fast(float x) {
    return log2f(x);
}

static inline float bf16_low(uint32_t pair) {
    uint32_t bits = pair << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float bf16_high(uint32_t pair) {
    return bf16_low(pair >> 16);
}

/* Round to nearest even; NaN stays NaN. */
static inline uint32_t bf16_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return isnan(value) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static inline uint32_t bf16_pair(float low, float high) {
    return bf16_of(low) | bf16_of(high) << 16;
}

static inline void emulator_ss(float *d, uint64_t a, uint64_t b, int add, int columns, int major) {
    struct emulator_product product = {columns, major, major, add, a, b};
    emulator_wgmma(d, NULL, &product);
}

static inline void emulator_rs(float *d, const uint32_t *a, uint64_t b, int add, int columns) {
    struct emulator_product product = {columns, 0, 1, add, 0, b};
    emulator_wgmma(d, a, &product);
}

#define wgmma_ss_kk_n128(d, a, b, add) emulator_ss(d, a, b, add, 128, 0)
#define wgmma_ss_kk_n64(d, a, b, add)  emulator_ss(d, a, b, add, 64, 0)
#define wgmma_ss_mm_n64(d, a, b, add)  emulator_ss(d, a, b, add, 64, 1)
#define wgmma_rs_m_n128(d, a, b, add)  emulator_rs(d, a, b, add, 128)
#define wgmma_rs_m_n64(d, a, b, add)   emulator_rs(d, a, b, add, 64)

#endif
