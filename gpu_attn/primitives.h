/* primitives: everything the kernels ask of the machine, in two back ends.
 *
 * nvcc gets inline PTX for sm_90a (primitives_sm90.h). A C compiler gets an emulation with one
 * fiber a thread (tests/kernels/emulator.h), which checks what the chip would leave undefined.
 * Kernels are written in the common subset of C and CUDA C++ and do everything asynchronous,
 * everything in shared memory and every reduction through these; global memory they read and write
 * as usual.
 *
 * Shared addresses are 32-bit numbers, `shared_base()` the block's first, 1024-byte aligned.
 *
 *   thread_index block_index block_count
 *   block_sync                            all threads of the block
 *   barrier_sync barrier_arrive           named barriers 1 to 15, a whole number of warps
 *   REGISTERS_DECREASE REGISTERS_INCREASE of this warpgroup, to a literal count
 *   mbarrier_init mbarrier_init_fence mbarrier_arrive mbarrier_expect mbarrier_wait
 *       a phase ends when its arrivals and its bytes are complete; wait(parity) returns once the
 *       phase of that parity has ended
 *   tma_load                              a 3-D box into shared memory, 128-byte swizzle
 *   tma_reduce_add                        a 3-D box of floats from shared memory added to global
 *   bulk_load                             bytes into shared memory; multiples of 16
 *   bulk_commit BULK_WAIT_READ BULK_WAIT  groups of reductions, of this thread: the source may be
 *       overwritten; the sums are in memory
 *   shuffle_xor exp2_fast log2_fast bf16_pair bf16_low bf16_high
 *   shared_store shared_store_pair shared_load_pair shared_clear   ordinary accesses
 *   fresh                                 the same value, known to the compiler only from here on:
 *                                         keeps addresses out of registers that sums need
 *   fence_async                           orders this thread's shared stores before async reads
 *   wgmma_* WGMMA_WAIT wgmma_hold         D[64 x N] (+)= A[64 x 16] B[16 x N], bf16 in, float out:
 *       ss: A in shared memory, rs: A in registers; k: K-major, m: M- or N-major; of A, then B.
 *       A warpgroup issues together. wgmma_hold keeps the compiler from moving accumulators across.
 */
#ifndef BALLAST_GPU_ATTN_PRIMITIVES_H
#define BALLAST_GPU_ATTN_PRIMITIVES_H

#include "gpu_attn/tensor_map.h"

#ifdef __CUDACC__
#include "gpu_attn/primitives_sm90.h"
#else
#include "tests/kernels/emulator.h"
#endif

/* Defines a kernel for HEAD_DIM: KERNEL(forward, struct forward_params, ATTN_THREADS) { body } is
 * attn_forward_d128. In the body, `params` points to its parameters. */
#define KERNEL_NAME_OF(name, dim)   attn_##name##_d##dim
#define KERNEL_NAME_AT(name, dim)   KERNEL_NAME_OF(name, dim)
#define KERNEL_NAME(name)           KERNEL_NAME_AT(name, HEAD_DIM)
#define KERNEL_DEFINE_AT(...)       KERNEL_DEFINE(__VA_ARGS__)
#define KERNEL(name, type, threads) KERNEL_DEFINE_AT(KERNEL_NAME(name), type, threads)

/* Matrix descriptor of a shared operand with 128-byte swizzle. K-major: 8-row groups lie `stride`
 * apart, `lead` is not used. M- or N-major: 64-element chunks lie `lead` apart, groups of 8 along K
 * `stride`. Bytes, multiples of 16. */
DEVICE uint64_t matrix_at(uint32_t address, uint32_t lead, uint32_t stride) {
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(lead >> 4 & 0x3fff) << 16 |
           (uint64_t)(stride >> 4 & 0x3fff) << 32 | (uint64_t)1 << 62;
}

/* Where byte `address` of a 128-byte-swizzled panel lies. */
DEVICE uint32_t swizzled(uint32_t address) {
    return address ^ (address >> 7 & 7) << 4;
}

#endif
