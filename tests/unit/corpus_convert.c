/* Conversion of token ids: small types exhaustively, wide ones at every position around the blocks
 * in which they are checked. */
#include "corpus/convert.h"
#include "corpus/megatron.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

#define COUNT_MAX 1100u

static const uint8_t dtypes[] = {MEGATRON_U8,  MEGATRON_I16, MEGATRON_I32, MEGATRON_I64,
                                 MEGATRON_U16, MEGATRON_U32, MEGATRON_U64};

/* What the specification says, in words of signed 128-bit numbers. */
static bool is_id(uint8_t dtype, uint32_t token_bytes, uint64_t bits) {
    __int128 value = (__int128)bits;
    switch (dtype) {
    case MEGATRON_I16:
        value = (int16_t)bits;
        break;
    case MEGATRON_I32:
        value = (int32_t)bits;
        break;
    case MEGATRON_I64:
        value = (int64_t)bits;
        break;
    default:
        break;
    }
    return value >= 0 && value <= (token_bytes == 2 ? 65535 : 2147483647);
}

static bool is_accepted(uint8_t dtype, uint32_t token_bytes, uint64_t bits) {
    uint64_t forbidden = convert_forbidden_bits(dtype, token_bytes);
    return convert_check(&bits, megatron_width(dtype), 1, forbidden) == 1;
}

static void every_16_bit_value_is_accepted_exactly_when_it_is_an_id(void **state) {
    (void)state;
    for (uint64_t bits = 0; bits <= UINT16_MAX; bits++) {
        for (uint32_t token_bytes = 2; token_bytes <= 4; token_bytes += 2) {
            assert_int_equal(is_accepted(MEGATRON_U16, token_bytes, bits),
                             is_id(MEGATRON_U16, token_bytes, bits));
            assert_int_equal(is_accepted(MEGATRON_I16, token_bytes, bits),
                             is_id(MEGATRON_I16, token_bytes, bits));
        }
    }
}

/* Values one below, at and one above every power of two. */
static void wide_values_are_accepted_exactly_when_they_are_ids(void **state) {
    (void)state;
    for (size_t t = 0; t < sizeof dtypes; t++) {
        uint32_t width = megatron_width(dtypes[t]);
        uint64_t mask = width == 8 ? UINT64_MAX : (UINT64_C(1) << 8 * width) - 1;
        for (uint32_t bit = 0; bit < 8 * width; bit++) {
            for (int step = -1; step <= 1; step++) {
                uint64_t bits = ((UINT64_C(1) << bit) + (uint64_t)(int64_t)step) & mask;
                assert_int_equal(is_accepted(dtypes[t], 2, bits), is_id(dtypes[t], 2, bits));
                assert_int_equal(is_accepted(dtypes[t], 4, bits), is_id(dtypes[t], 4, bits));
            }
        }
    }
}

static void a_type_whose_every_value_is_an_id_needs_no_check(void **state) {
    (void)state;
    assert_int_equal(convert_forbidden_bits(MEGATRON_U8, 2), 0);
    assert_int_equal(convert_forbidden_bits(MEGATRON_U8, 4), 0);
    assert_int_equal(convert_forbidden_bits(MEGATRON_U16, 2), 0);
    assert_int_equal(convert_forbidden_bits(MEGATRON_U16, 4), 0);
}

static void the_first_offence_is_found_at_every_position(void **state) {
    (void)state;
    static uint64_t memory[COUNT_MAX];
    for (size_t t = 0; t < sizeof dtypes; t++) {
        uint32_t width = megatron_width(dtypes[t]);
        uint64_t forbidden = convert_forbidden_bits(dtypes[t], 2);
        uint8_t *bytes = (uint8_t *)memory;
        for (uint32_t at = 0; at < COUNT_MAX && forbidden != 0; at++) {
            memset(memory, 0, sizeof memory);
            memcpy(bytes + at * width, &forbidden, width);
            memcpy(bytes + (COUNT_MAX - 1) * width, &forbidden, width);
            assert_int_equal(convert_check(memory, width, COUNT_MAX, forbidden), at);
            assert_int_equal(convert_check(memory, width, at, forbidden), at);
        }
    }
}

static void any_number_of_values_is_converted_and_no_more(void **state) {
    (void)state;
    static uint64_t from[COUNT_MAX], to[COUNT_MAX], expected[COUNT_MAX];
    for (size_t t = 0; t < sizeof dtypes; t++) {
        uint32_t width = megatron_width(dtypes[t]);
        for (uint32_t i = 0; i < COUNT_MAX; i++) {
            uint64_t id = (i * UINT64_C(2654435761)) & (width == 1 ? 0xFF : 0x7FFF);
            memcpy((uint8_t *)from + i * width, &id, width);
        }
        for (uint32_t count = 0; count < COUNT_MAX; count += count < 40 ? 1 : 37) {
            for (uint32_t token_bytes = 2; token_bytes <= 4; token_bytes += 2) {
                if (token_bytes == width) {
                    continue;
                }
                memset(to, 0xEE, sizeof to);
                memset(expected, 0xEE, sizeof expected);
                for (uint32_t i = 0; i < count; i++) {
                    uint64_t id = 0;
                    memcpy(&id, (uint8_t *)from + i * width, width);
                    memcpy((uint8_t *)expected + i * token_bytes, &id, token_bytes);
                }
                convert_tokens(from, width, to, token_bytes, count);
                assert_memory_equal(to, expected, sizeof to);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_16_bit_value_is_accepted_exactly_when_it_is_an_id),
        cmocka_unit_test(wide_values_are_accepted_exactly_when_they_are_ids),
        cmocka_unit_test(a_type_whose_every_value_is_an_id_needs_no_check),
        cmocka_unit_test(the_first_offence_is_found_at_every_position),
        cmocka_unit_test(any_number_of_values_is_converted_and_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
