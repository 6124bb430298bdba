/* Stands for the compiled kernels: fake_cuda loads anything that is not NULL. */
#include "gpu_attn/image.h"

const void *attn_image(uint32_t head_dim) {
    return head_dim == 64 ? "64" : "128";
}

const char *attn_image_build(void) {
    return "emulated";
}
