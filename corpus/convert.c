/* convert: see the header. */
#include "corpus/convert.h"
#include "corpus/megatron.h"

#include <assert.h>

bool convert_is_signed(uint8_t dtype) {
    return dtype == MEGATRON_I16 || dtype == MEGATRON_I32 || dtype == MEGATRON_I64;
}

uint64_t convert_forbidden_bits(uint8_t dtype, uint32_t token_bytes) {
    uint32_t bits = 8 * megatron_width(dtype);
    assert(bits > 0);
    uint64_t type = bits == 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
    uint64_t legal = convert_is_signed(dtype) ? type >> 1 : type;
    return type & ~(legal & (token_bytes == 2 ? UINT16_MAX : (uint64_t)INT32_MAX));
}

/* Blocks of a fixed length, so that the compiler makes vectors of them. */
#define BLOCK_TOKENS 512u

#define DEFINE_CHECK(name, type)                                                                   \
    static uint64_t name(const type *from, uint64_t count, uint64_t forbidden) {                   \
        uint64_t i = 0;                                                                            \
        for (; i + BLOCK_TOKENS <= count; i += BLOCK_TOKENS) {                                     \
            type seen = 0;                                                                         \
            for (uint64_t j = 0; j < BLOCK_TOKENS; j++) {                                          \
                seen |= from[i + j];                                                               \
            }                                                                                      \
            if (seen & forbidden) {                                                                \
                break;                                                                             \
            }                                                                                      \
        }                                                                                          \
        while (i < count && !(from[i] & forbidden)) {                                              \
            i++;                                                                                   \
        }                                                                                          \
        return i;                                                                                  \
    }

#define DEFINE_CONVERT(name, from_type, to_type)                                                   \
    static void name(const from_type *restrict from, to_type *restrict to, uint64_t count) {       \
        uint64_t i = 0;                                                                            \
        for (; i + BLOCK_TOKENS <= count; i += BLOCK_TOKENS) {                                     \
            for (uint64_t j = 0; j < BLOCK_TOKENS; j++) {                                          \
                to[i + j] = (to_type)from[i + j];                                                  \
            }                                                                                      \
        }                                                                                          \
        for (; i < count; i++) {                                                                   \
            to[i] = (to_type)from[i];                                                              \
        }                                                                                          \
    }

DEFINE_CHECK(check_u16, uint16_t)
DEFINE_CHECK(check_u32, uint32_t)
DEFINE_CHECK(check_u64, uint64_t)
DEFINE_CONVERT(convert_u8_u16, uint8_t, uint16_t)
DEFINE_CONVERT(convert_u8_u32, uint8_t, uint32_t)
DEFINE_CONVERT(convert_u16_u32, uint16_t, uint32_t)
DEFINE_CONVERT(convert_u32_u16, uint32_t, uint16_t)
DEFINE_CONVERT(convert_u64_u16, uint64_t, uint16_t)
DEFINE_CONVERT(convert_u64_u32, uint64_t, uint32_t)

uint64_t convert_check(const void *from, uint32_t width, uint64_t count, uint64_t forbidden) {
    if (forbidden == 0) {
        return count;
    }
    switch (width) {
    case 2:
        return check_u16(from, count, forbidden);
    case 4:
        return check_u32(from, count, forbidden);
    default:
        assert(width == 8);
        return check_u64(from, count, forbidden);
    }
}

void convert_tokens(const void *from, uint32_t width, void *to, uint32_t token_bytes,
                    uint64_t count) {
    bool narrow = token_bytes == 2;
    switch (width) {
    case 1:
        narrow ? convert_u8_u16(from, to, count) : convert_u8_u32(from, to, count);
        break;
    case 2:
        convert_u16_u32(from, to, count);
        break;
    case 4:
        convert_u32_u16(from, to, count);
        break;
    default:
        assert(width == 8);
        narrow ? convert_u64_u16(from, to, count) : convert_u64_u32(from, to, count);
        break;
    }
}
