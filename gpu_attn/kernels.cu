/* kernels: all of them, for one HEAD_DIM. */
#include "gpu_attn/backward.h"
#include "gpu_attn/backward_queries.h"
#include "gpu_attn/forward.h"
#include "gpu_attn/rows.h"

#include "gpu_attn/driver.h"

#include <cuda.h>

static_assert(sizeof(CUtensorMap) == sizeof(struct tensor_map), "the driver's map");
static_assert(DRIVER_SMS == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, "cuda.h");
static_assert(DRIVER_MAJOR == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, "cuda.h");
static_assert(DRIVER_MINOR == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, "cuda.h");
static_assert(DRIVER_SHARED_BYTES == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, "cuda.h");
static_assert(DRIVER_FLOAT32 == CU_TENSOR_MAP_DATA_TYPE_FLOAT32, "cuda.h");
static_assert(DRIVER_BFLOAT16 == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, "cuda.h");
static_assert(DRIVER_SWIZZLE_128B == CU_TENSOR_MAP_SWIZZLE_128B, "cuda.h");
static_assert(DRIVER_PROMOTE_256B == CU_TENSOR_MAP_L2_PROMOTION_L2_256B, "cuda.h");
