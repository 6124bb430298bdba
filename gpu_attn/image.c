/* image: two fat binaries, taken in by the assembler. */
#include "gpu_attn/image.h"

#include <stddef.h>

#ifdef ATTN_FATBIN_64

#define INCLUDE_IMAGE(name, path)                                                                  \
    __asm__(".section .rodata\n"                                                                   \
            ".balign 64\n"                                                                         \
            ".local " #name "\n" #name ":\n"                                                       \
            ".incbin \"" path "\"\n"                                                               \
            ".previous\n");                                                                        \
    extern const unsigned char name[] __attribute__((visibility("hidden")))

INCLUDE_IMAGE(attn_image_64, ATTN_FATBIN_64);
INCLUDE_IMAGE(attn_image_128, ATTN_FATBIN_128);

const void *attn_image(uint32_t head_dim) {
    return head_dim == 64 ? attn_image_64 : attn_image_128;
}

const char *attn_image_build(void) {
    return ATTN_BUILD;
}

#else

const void *attn_image(uint32_t head_dim) {
    (void)head_dim;
    return NULL;
}

const char *attn_image_build(void) {
    return "";
}

#endif
