/* tensor_map: 128 bytes that a driver encoded (CUtensorMap), or the emulator. Opaque here. */
#ifndef BALLAST_GPU_ATTN_TENSOR_MAP_H
#define BALLAST_GPU_ATTN_TENSOR_MAP_H

#include <stdint.h>

#ifdef __cplusplus
#define ALIGNED(bytes) alignas(bytes)
#else
#define ALIGNED(bytes) _Alignas(bytes)
#endif

struct tensor_map {
    ALIGNED(64) uint64_t opaque[16];
};

#endif
