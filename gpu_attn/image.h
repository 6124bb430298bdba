/* image: the compiled kernels, as the driver loads them, inside the library. */
#ifndef BALLAST_GPU_ATTN_IMAGE_H
#define BALLAST_GPU_ATTN_IMAGE_H

#include <stdint.h>

/* The fat binary for a head dimension; NULL when the library was built without nvcc. */
const void *attn_image(uint32_t head_dim);

/* Hash of kernel sources, compiler and flags; "" without nvcc. */
const char *attn_image_build(void);

#endif
