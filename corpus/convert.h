/* convert: token ids from a file's type to a slot's (u16 or u32), and whether they are ids at all.
 *
 * Every legal range is 0 to a power of two less one, so that one test of bits finds both negative
 * and oversized ids: 0 to 65535 for 2-byte slots, 0 to 2^31-1 for 4-byte ones, and never the sign
 * bit of a signed type. Pure; unaligned memory is not for here. */
#ifndef BALLAST_CORPUS_CONVERT_H
#define BALLAST_CORPUS_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

/* Whether a dtype (corpus/megatron.h) can hold negative values. */
bool convert_is_signed(uint8_t dtype);

/* Bits, in the file's width, that no id may have in slots of token_bytes (2 or 4); 0 when every
 * value of the dtype is an id. */
uint64_t convert_forbidden_bits(uint8_t dtype, uint32_t token_bytes);

/* Index of the first of `count` values of `width` bytes with a forbidden bit; `count` when there is
 * none. */
uint64_t convert_check(const void *from, uint32_t width, uint64_t count, uint64_t forbidden);

/* Writes `count` values of `width` bytes as values of token_bytes, not equal to width; bits that do
 * not fit are lost, so check first. The two do not overlap. */
void convert_tokens(const void *from, uint32_t width, void *to, uint32_t token_bytes,
                    uint64_t count);

#endif
