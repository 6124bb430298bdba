/* The two layouts by example: sequences short enough to draw. */
#include "sharding/layout.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define FRAGMENTS_MAX 16u

#define FRAGMENTS(...)                                                                             \
    (const struct fragment[]){__VA_ARGS__},                                                        \
        sizeof((const struct fragment[]){__VA_ARGS__}) / sizeof(struct fragment)

static void expect(enum layout layout, const struct packed_sequence *sequence, uint32_t cp,
                   uint32_t rank, const struct fragment *expected, size_t count) {
    struct fragment fragments[FRAGMENTS_MAX];
    assert_int_equal(layout_fragments(layout, sequence, cp, rank, fragments, FRAGMENTS_MAX), count);
    assert_memory_equal(fragments, expected, count * sizeof fragments[0]);
}

static void layouts_have_names_that_parse_back(void **state) {
    (void)state;
    assert_string_equal(layout_name(LAYOUT_PER_SEQUENCE), "per-sequence");
    assert_string_equal(layout_name(LAYOUT_PER_DOCUMENT), "per-document");
    assert_null(layout_name(LAYOUT_NONE));
    assert_string_equal(layout_name(LAYOUT_VARIABLE_DEGREE), "variable-degree");
    assert_string_equal(layout_name(LAYOUT_HYBRID), "hybrid");
    assert_string_equal(layout_name(LAYOUT_ULYSSES), "ulysses");
    enum layout layout = LAYOUT_NONE;
    assert_int_equal(layout_parse("per-document", &layout), 0);
    assert_int_equal(layout, LAYOUT_PER_DOCUMENT);
    assert_int_equal(layout_parse("per-documents", &layout), -EINVAL);
    assert_int_equal(layout_parse("", &layout), -EINVAL);
    assert_int_equal(layout, LAYOUT_PER_DOCUMENT);
}

/* aaaaabbbbb.. over 2 ranks: chunks aaa aab bbb b.. */
static void per_sequence_deals_chunk_r_and_its_mirror(void **state) {
    (void)state;
    const uint32_t lengths[] = {5, 5};
    struct packed_sequence sequence = {lengths, 2, 10, 2};
    expect(LAYOUT_PER_SEQUENCE, &sequence, 2, 0, FRAGMENTS({0, 0, 3}, {1, 4, 1}));
    expect(LAYOUT_PER_SEQUENCE, &sequence, 2, 1, FRAGMENTS({0, 3, 2}, {1, 0, 4}));
}

/* The same twelve rows: aaaaab bbbb.. */
static void contiguous_deals_equal_shards(void **state) {
    (void)state;
    const uint32_t lengths[] = {5, 5};
    struct packed_sequence sequence = {lengths, 2, 10, 2};
    expect(LAYOUT_CONTIGUOUS, &sequence, 2, 0, FRAGMENTS({0, 0, 5}, {1, 0, 1}));
    expect(LAYOUT_CONTIGUOUS, &sequence, 2, 1, FRAGMENTS({1, 1, 4}));
    expect(LAYOUT_CONTIGUOUS, &sequence, 1, 0, FRAGMENTS({0, 0, 5}, {1, 0, 5}));
}

static void per_sequence_joins_the_two_middle_chunks(void **state) {
    (void)state;
    const uint32_t lengths[] = {12};
    struct packed_sequence sequence = {lengths, 1, 12, 0};
    expect(LAYOUT_PER_SEQUENCE, &sequence, 3, 0, FRAGMENTS({0, 0, 2}, {0, 10, 2}));
    expect(LAYOUT_PER_SEQUENCE, &sequence, 3, 2, FRAGMENTS({0, 4, 4}));
    expect(LAYOUT_PER_SEQUENCE, &sequence, 1, 0, FRAGMENTS({0, 0, 12}));
}

/* 10 tokens on 4 columns: 3 3 2 2, and the next document goes on at column 2: 1 1 2 2. */
static void per_document_lengthens_columns_in_turn(void **state) {
    (void)state;
    const uint32_t lengths[] = {10, 6};
    struct packed_sequence sequence = {lengths, 2, 16, 0};
    expect(LAYOUT_PER_DOCUMENT, &sequence, 2, 0,
           FRAGMENTS({0, 0, 3}, {0, 8, 2}, {1, 0, 1}, {1, 4, 2}));
    expect(LAYOUT_PER_DOCUMENT, &sequence, 2, 1, FRAGMENTS({0, 3, 5}, {1, 1, 3}));
}

/* 3 tokens from column 0, then 3 from column 3: the run wraps to columns 3, 0, 1. */
static void per_document_wraps_the_run_of_longer_columns(void **state) {
    (void)state;
    const uint32_t lengths[] = {3, 3};
    struct packed_sequence sequence = {lengths, 2, 6, 2};
    expect(LAYOUT_PER_DOCUMENT, &sequence, 2, 0, FRAGMENTS({0, 0, 1}, {1, 0, 1}, {1, 2, 1}));
    expect(LAYOUT_PER_DOCUMENT, &sequence, 2, 1, FRAGMENTS({0, 1, 2}, {1, 1, 1}));
}

static void layouts_give_an_empty_micro_batch_no_fragments(void **state) {
    (void)state;
    struct packed_sequence sequence = {NULL, 0, 0, 8};
    for (uint32_t rank = 0; rank < 4; rank++) {
        assert_int_equal(layout_fragments(LAYOUT_PER_SEQUENCE, &sequence, 4, rank, NULL, 0), 0);
        assert_int_equal(layout_fragments(LAYOUT_PER_DOCUMENT, &sequence, 4, rank, NULL, 0), 0);
    }
}

static void layouts_count_what_does_not_fit(void **state) {
    (void)state;
    const uint32_t lengths[] = {10, 6};
    struct packed_sequence sequence = {lengths, 2, 16, 0};
    struct fragment fragments[3];
    memset(fragments, 0xee, sizeof fragments);
    assert_int_equal(layout_fragments(LAYOUT_PER_DOCUMENT, &sequence, 2, 0, fragments, 2), 4);
    assert_memory_equal(&fragments[1], &((struct fragment){0, 8, 2}), sizeof fragments[1]);
    assert_int_equal(fragments[2].length, 0xeeeeeeee);
}

static void layouts_hold_the_longest_lengths(void **state) {
    (void)state;
    const uint32_t lengths[] = {UINT32_MAX, UINT32_MAX, 2};
    struct packed_sequence sequence = {lengths, 3, UINT64_C(1) << 33, 0};
    const uint32_t half = 1u << 31;
    expect(LAYOUT_PER_SEQUENCE, &sequence, 2, 0,
           FRAGMENTS({0, 0, half}, {1, half + 1, half - 2}, {2, 0, 2}));
    expect(LAYOUT_PER_DOCUMENT, &sequence, 1, 0,
           FRAGMENTS({0, 0, UINT32_MAX}, {1, 0, UINT32_MAX}, {2, 0, 2}));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_have_names_that_parse_back),
        cmocka_unit_test(per_sequence_deals_chunk_r_and_its_mirror),
        cmocka_unit_test(contiguous_deals_equal_shards),
        cmocka_unit_test(per_sequence_joins_the_two_middle_chunks),
        cmocka_unit_test(per_document_lengthens_columns_in_turn),
        cmocka_unit_test(per_document_wraps_the_run_of_longer_columns),
        cmocka_unit_test(layouts_give_an_empty_micro_batch_no_fragments),
        cmocka_unit_test(layouts_count_what_does_not_fit),
        cmocka_unit_test(layouts_hold_the_longest_lengths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
