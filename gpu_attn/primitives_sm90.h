/* primitives_sm90: the primitives as inline PTX. Contracts in primitives.h. */
#ifndef BALLAST_GPU_ATTN_PRIMITIVES_SM90_H
#define BALLAST_GPU_ATTN_PRIMITIVES_SM90_H

#include <math.h>
#include <stdint.h>

#define DEVICE static __device__ __forceinline__

#define KERNEL_DEFINE(name, type, threads)                                                         \
    DEVICE void name##_body(const type *params);                                                   \
    extern "C" __global__ void __launch_bounds__(threads, 1)                                       \
        name(const __grid_constant__ type params) {                                                \
        name##_body(&params);                                                                      \
    }                                                                                              \
    DEVICE void name##_body(const type *params)

extern __shared__ __align__(1024) unsigned char shared_memory[];

DEVICE uint32_t shared_base(void) {
    return (uint32_t)__cvta_generic_to_shared(shared_memory);
}

DEVICE int thread_index(void) {
    return (int)threadIdx.x;
}

DEVICE int block_index(void) {
    return (int)blockIdx.x;
}

DEVICE int block_count(void) {
    return (int)gridDim.x;
}

DEVICE void block_sync(void) {
    __syncthreads();
}

DEVICE void barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

DEVICE void barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#define REGISTERS_DECREASE(n) asm volatile("setmaxnreg.dec.sync.aligned.u32 " #n ";")
#define REGISTERS_INCREASE(n) asm volatile("setmaxnreg.inc.sync.aligned.u32 " #n ";")

DEVICE void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}

DEVICE void mbarrier_init_fence(void) {
    asm volatile("fence.mbarrier_init.release.cluster;\n\t"
                 "fence.proxy.async.shared::cta;" ::
                     : "memory");
}

DEVICE void mbarrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

DEVICE void mbarrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

DEVICE void mbarrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile("{\n\t"
                 ".reg .pred done;\n\t"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
                 "@done bra ended;\n\t"
                 "bra again;\n\t"
                 "ended:\n\t"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

DEVICE void tma_load(uint32_t to, const struct tensor_map *map, uint32_t barrier, int x, int y,
                     int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

DEVICE void tma_reduce_add(const struct tensor_map *map, uint32_t from, int x, int y, int z) {
    asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group "
                 "[%0, {%2, %3, %4}], [%1];" ::"l"(map),
                 "r"(from), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

DEVICE void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
                 : "memory");
}

DEVICE void bulk_commit(void) {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

#define BULK_WAIT_READ(n) asm volatile("cp.async.bulk.wait_group.read " #n ";" ::: "memory")
#define BULK_WAIT(n)      asm volatile("cp.async.bulk.wait_group " #n ";" ::: "memory")

DEVICE uint32_t fresh(uint32_t value) {
    asm volatile("" : "+r"(value));
    return value;
}

DEVICE float shuffle_xor(float value, int mask) {
    return __shfl_xor_sync(0xffffffffu, value, mask);
}

DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE uint32_t bf16_pair(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

DEVICE float bf16_low(uint32_t pair) {
    return __uint_as_float(pair << 16);
}

DEVICE float bf16_high(uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

DEVICE void shared_store(uint32_t to, uint32_t value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}

DEVICE void shared_store_pair(uint32_t to, float a, float b) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(a), "f"(b) : "memory");
}

DEVICE void shared_load_pair(uint32_t from, float *a, float *b) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(*a), "=f"(*b) : "r"(from) : "memory");
}

DEVICE void shared_clear(uint32_t to) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
}

DEVICE void fence_async(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

DEVICE void wgmma_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DEVICE void wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

#define WGMMA_WAIT(n) asm volatile("wgmma.wait_group.sync.aligned " #n ";" ::: "memory")

DEVICE void wgmma_hold(float *d, int count) {
#pragma unroll
    for (int i = 0; i < count; i++) {
        asm volatile("" : "+f"(d[i])::"memory");
    }
}

#define SUMS_8(d, i)                                                                               \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define SUMS_32(d, i) SUMS_8(d, i), SUMS_8(d, i + 8), SUMS_8(d, i + 16), SUMS_8(d, i + 24)
#define SUMS_64(d)    SUMS_32(d, 0), SUMS_32(d, 32)

#define NAMES_0_31                                                                                 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "   \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_0_63                                                                                 \
    NAMES_0_31 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "     \
               "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "       \
               "%62, %63"

/* Scale factors of A and B, then their majors: 0 K-major, 1 M- or N-major. */
#define WGMMA(shape, sums, a, b, add, majors)                                                      \
    "{\n\t.reg .pred adds;\n\tsetp.ne.b32 adds, " add ", 0;\n\t"                                   \
    "wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" sums "}, " a ", " b                   \
    ", adds, 1, 1, " majors ";\n\t}"

DEVICE void wgmma_ss_kk_n128(float *d, uint64_t a, uint64_t b, int add) {
    asm volatile(WGMMA("m64n128k16", NAMES_0_63, "%64", "%65", "%66", "0, 0")
                 : SUMS_64(d)
                 : "l"(a), "l"(b), "r"(add));
}

DEVICE void wgmma_ss_kk_n64(float *d, uint64_t a, uint64_t b, int add) {
    asm volatile(WGMMA("m64n64k16", NAMES_0_31, "%32", "%33", "%34", "0, 0")
                 : SUMS_32(d, 0)
                 : "l"(a), "l"(b), "r"(add));
}

DEVICE void wgmma_ss_mm_n64(float *d, uint64_t a, uint64_t b, int add) {
    asm volatile(WGMMA("m64n64k16", NAMES_0_31, "%32", "%33", "%34", "1, 1")
                 : SUMS_32(d, 0)
                 : "l"(a), "l"(b), "r"(add));
}

DEVICE void wgmma_rs_m_n128(float *d, const uint32_t *a, uint64_t b, int add) {
    asm volatile(WGMMA("m64n128k16", NAMES_0_63, "{%64, %65, %66, %67}", "%68", "%69", "1")
                 : SUMS_64(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

DEVICE void wgmma_rs_m_n64(float *d, const uint32_t *a, uint64_t b, int add) {
    asm volatile(WGMMA("m64n64k16", NAMES_0_31, "{%32, %33, %34, %35}", "%36", "%37", "1")
                 : SUMS_32(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

#endif
