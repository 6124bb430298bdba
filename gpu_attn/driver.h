/* driver: the dozen functions of the CUDA driver that we call, found at run time.
 *
 * libcuda.so.1 belongs to the machine's driver, so it is never linked; one build runs with or
 * without a GPU. Types and numbers are those of cuda.h, which kernels.cu checks them against. */
#ifndef BALLAST_GPU_ATTN_DRIVER_H
#define BALLAST_GPU_ATTN_DRIVER_H

#include "gpu_attn/ballast_attn.h"
#include "gpu_attn/tensor_map.h"

#define DRIVER_LIBRARY "libcuda.so.1"

enum {
    DRIVER_SMS = 16,         /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */
    DRIVER_MAJOR = 75,       /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR */
    DRIVER_MINOR = 76,       /* CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR */
    DRIVER_SHARED_BYTES = 8, /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
    DRIVER_FLOAT32 = 7,      /* CU_TENSOR_MAP_DATA_TYPE_FLOAT32 */
    DRIVER_BFLOAT16 = 9,     /* CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 */
    DRIVER_SWIZZLE_128B = 3, /* CU_TENSOR_MAP_SWIZZLE_128B */
    DRIVER_PROMOTE_256B = 3, /* CU_TENSOR_MAP_L2_PROMOTION_L2_256B */
};

struct attn_driver {
    void *library;
    int (*init)(unsigned flags);
    int (*error_name)(int result, const char **name);
    int (*context_device)(int *device);
    int (*device_attribute)(int *value, int attribute, int device);
    int (*module_load)(void **module, const void *image);
    int (*module_unload)(void *module);
    int (*module_function)(void **function, void *module, const char *name);
    int (*function_set)(void *function, int attribute, int value);
    int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                  void *stream, void **params, void **extra);
    int (*encode)(struct tensor_map *map, int type, uint32_t rank, void *base, const uint64_t *size,
                  const uint64_t *stride_bytes, const uint32_t *box, const uint32_t *element_stride,
                  int interleave, int swizzle, int promotion, int fill);
};

/* -ENODEV when there is no driver, or it lacks a function. */
int attn_driver_open(struct attn_driver *driver, struct ballast_attn_error *error);
void attn_driver_close(struct attn_driver *driver);

/* 0, or -EIO with what was being done and the driver's name for the failure. */
int attn_driver_check(const struct attn_driver *driver, int result, const char *doing,
                      struct ballast_attn_error *error);

#endif
