/* The bulk loops, of every small count and with one value wrong anywhere: what they say of it. */
#include "corpus/bulk.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define COUNT_MAX 70u /* several vectors and what is left over */
#define WIDTH     4u

static void lengths_are_summed_and_the_longest_found(void **state) {
    (void)state;
    for (uint32_t count = 0; count <= COUNT_MAX; count++) {
        for (uint32_t i = 0; i < count; i++) {
            uint32_t lengths[COUNT_MAX];
            memset(lengths, 0xfe, sizeof lengths);
            lengths[i] = UINT32_MAX;
            struct bulk_lengths found = bulk_lengths(lengths, count);
            assert_int_equal(found.sum, (uint64_t)0xfefefefe * (count - 1) + UINT32_MAX);
            assert_int_equal(found.longest, UINT32_MAX);
        }
        assert_int_equal(bulk_lengths((const uint32_t[COUNT_MAX]){0}, count).longest, 0);
    }
}

static void values_rise_unless_one_falls_or_is_negative(void **state) {
    (void)state;
    for (uint32_t count = 1; count <= COUNT_MAX; count++) {
        uint64_t values[COUNT_MAX];
        for (uint32_t i = 0; i < COUNT_MAX; i++) {
            values[i] = INT64_MAX - COUNT_MAX + i / 2; /* equal ones too */
        }
        assert_true(bulk_rises(values, count));
        for (uint32_t i = 0; i < count; i++) {
            uint64_t sound = values[i];
            values[i] = i == 0 ? sound + COUNT_MAX : values[i - 1] - 1;
            assert_int_equal(bulk_rises(values, count), count == 1 && i == 0);
            values[i] = (uint64_t)INT64_MAX + 1;
            assert_false(bulk_rises(values, count));
            values[i] = sound;
        }
    }
}

static void offsets_chain_unless_one_is_elsewhere(void **state) {
    (void)state;
    uint32_t lengths[COUNT_MAX];
    uint64_t offsets[COUNT_MAX];
    for (uint32_t i = 0; i < COUNT_MAX; i++) {
        lengths[i] = i % 3 == 0 ? UINT32_MAX : i;
        offsets[i] = i == 0 ? 12 : offsets[i - 1] + (uint64_t)lengths[i - 1] * WIDTH;
    }
    for (uint32_t count = 1; count <= COUNT_MAX; count++) {
        assert_true(bulk_chains(offsets, lengths, count, WIDTH));
        for (uint32_t i = 0; i < count; i++) {
            offsets[i] ^= UINT64_C(1) << i % 64;
            assert_int_equal(bulk_chains(offsets, lengths, count, WIDTH), count == 1);
            offsets[i] ^= UINT64_C(1) << i % 64;
        }
    }
}

static void hashes_are_the_library_s(void **state) {
    (void)state;
    uint8_t bytes[4096];
    for (uint32_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)(i * 2654435761u >> 24);
    }
    for (uint32_t count = 0; count <= sizeof bytes; count++) {
        assert_int_equal(bulk_hash(bytes, count), XXH3_64bits(bytes, count));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_are_summed_and_the_longest_found),
        cmocka_unit_test(values_rise_unless_one_falls_or_is_negative),
        cmocka_unit_test(offsets_chain_unless_one_is_elsewhere),
        cmocka_unit_test(hashes_are_the_library_s),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
