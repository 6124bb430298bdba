/* Work lists by example: what is refused, in which words, and rows beyond 31-bit products. */
#include "gpu_attn/plan.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static const struct ballast_attn_shape small = {
    .head_dim = 128, .q_heads = 8, .kv_heads = 2, .q_rows = 100, .kv_rows = 200};
static const struct ballast_attn_fragment whole = {
    .q_length = 100, .kv_length = 200, .q_position = 100, .head_count = 8};

static int build(const struct ballast_attn_shape *shape,
                 const struct ballast_attn_fragment *fragments, uint32_t count,
                 struct ballast_attn_error *error) {
    static uint64_t memory[1 << 16];
    struct ballast_attn_plan plan;
    return ballast_attn_plan_init(&plan, shape, fragments, count, memory, sizeof memory, error);
}

static void refused(const struct ballast_attn_shape *shape,
                    const struct ballast_attn_fragment *fragments, uint32_t count,
                    const char *text) {
    struct ballast_attn_error error = {0};
    assert_int_equal(build(shape, fragments, count, &error), -EINVAL);
    assert_int_equal(error.code, -EINVAL);
    assert_string_equal(error.text, text);
}

static void attn_plan_refuses_shapes_that_no_kernel_takes(void **state) {
    (void)state;
    struct ballast_attn_shape shape = small;
    shape.head_dim = 96;
    refused(&shape, &whole, 1, "head_dim 96: only 64 and 128");
    shape = small;
    shape.kv_heads = 3;
    refused(&shape, &whole, 1, "8 query heads over 3 K/V heads: groups are 1 to 128");
    shape.q_heads = 387;
    refused(&shape, &whole, 1, "387 query heads over 3 K/V heads: groups are 1 to 128");
    assert_int_equal(ballast_attn_plan_bytes(&shape, &whole, 1), 0);
}

static void attn_plan_refuses_fragments_outside_the_buffers(void **state) {
    (void)state;
    struct ballast_attn_fragment fragment = whole;
    fragment.q_row = 1;
    refused(&small, &fragment, 1, "fragment 0: query rows 1 + 100 of 100");
    fragment = whole;
    fragment.kv_row = INT32_MAX;
    refused(&small, &fragment, 1, "fragment 0: K/V rows 2147483647 + 200 of 200");
    fragment = whole;
    fragment.q_length = -1;
    refused(&small, &fragment, 1, "fragment 0: query rows 0 + -1 of 100");
    fragment = whole;
    fragment.head_begin = 1;
    refused(&small, &fragment, 1, "fragment 0: heads 1 + 8 of 8");
    fragment = whole;
    fragment.q_position = INT32_MAX - 50;
    refused(&small, &fragment, 1, "fragment 0: position 2147483597");
    fragment = whole;
    fragment.flags = 4;
    refused(&small, &fragment, 1, "fragment 0: unknown flags 0x4");
}

static void attn_plan_refuses_more_than_31_bits_count(void **state) {
    (void)state;
    struct ballast_attn_error error;
    struct ballast_attn_shape shape = small;
    struct ballast_attn_fragment fragment = whole;
    shape.q_rows = (uint32_t)INT32_MAX + 1;
    assert_int_equal(build(&shape, &whole, 1, &error), -E2BIG);
    assert_string_equal(error.text, "2147483648 query and 200 K/V rows: at most 2^31 - 1");
    shape = (struct ballast_attn_shape){128, 200, 200, 100, INT32_MAX};
    fragment.kv_length = INT32_MAX;
    fragment.head_count = 200; /* of 2^24 key tiles each */
    assert_int_equal(build(&shape, &fragment, 1, &error), -E2BIG);
    assert_string_equal(error.text, "more than 2^31 - 1 tiles");
    assert_int_equal(ballast_attn_plan_bytes(&shape, &fragment, 1), 0);
}

static void attn_plan_refuses_rows_with_two_owners(void **state) {
    (void)state;
    struct ballast_attn_fragment fragments[2] = {
        {.q_length = 60, .kv_length = 50, .head_count = 8},
        {.q_row = 59, .q_length = 41, .kv_row = 50, .kv_length = 50, .head_count = 8},
    };
    refused(&small, fragments, 2, "fragments 0 and 1 both cover row 59");
    fragments[0].head_count = 4;
    fragments[1].head_begin = 4;
    fragments[1].head_count = 4;
    assert_int_equal(build(&small, fragments, 2, NULL), 0);
    fragments[0].head_begin = 4;
    fragments[1].head_begin = 0;
    assert_int_equal(build(&small, fragments, 2, NULL), 0);
    fragments[0].head_begin = 0;
    fragments[1].q_length = 0;
    assert_int_equal(build(&small, fragments, 2, NULL), 0);
}

static void attn_plan_refuses_slices_that_overlap(void **state) {
    (void)state;
    struct ballast_attn_fragment fragments[2] = {
        {.q_length = 50, .kv_length = 60, .head_count = 8},
        {.q_row = 50, .q_length = 50, .kv_row = 59, .kv_length = 50, .head_count = 8},
    };
    refused(&small, fragments, 2, "fragment 1: its K/V slice overlaps another");
    fragments[1].kv_row = 60;
    assert_int_equal(build(&small, fragments, 2, NULL), 0);
    fragments[1].kv_row = 0;
    assert_int_equal(build(&small, fragments, 2, NULL), 0);
}

static void attn_plan_needs_the_memory_it_asked_for(void **state) {
    (void)state;
    struct ballast_attn_plan plan = {.hash = 7};
    size_t bytes = ballast_attn_plan_bytes(&small, &whole, 1);
    void *memory = malloc(bytes);
    assert_int_equal(ballast_attn_plan_init(&plan, &small, &whole, 1, memory, bytes - 1, NULL),
                     -ENOSPC);
    assert_int_equal(plan.hash, 7);
    assert_int_equal(ballast_attn_plan_init(&plan, &small, &whole, 1, memory, bytes, NULL), 0);
    free(memory);
}

static void attn_plan_of_nothing_is_empty(void **state) {
    (void)state;
    struct ballast_attn_plan plan;
    uint64_t memory[8];
    assert_true(ballast_attn_plan_bytes(&small, NULL, 0) <= sizeof memory);
    assert_int_equal(ballast_attn_plan_init(&plan, &small, NULL, 0, memory, sizeof memory, NULL),
                     0);
    assert_int_equal(plan.tiles + plan.steps + plan.key_tiles + plan.ranges, 0);
    assert_int_equal(plan.lists_bytes, 0);
}

/* 100 rows at the end of 2^31 - 1, whose element offsets need more than 41 bits. */
static uint64_t hash_of(const struct ballast_attn_shape *shape,
                        const struct ballast_attn_fragment *fragment) {
    static uint64_t memory[1 << 16];
    struct ballast_attn_plan plan;
    assert_int_equal(ballast_attn_plan_init(&plan, shape, fragment, 1, memory, sizeof memory, NULL),
                     0);
    return plan.hash;
}

/* Of the shape, heads of 64 and more rows leave the lists as they are. */
static void attn_plan_hash_follows_lists_and_shape(void **state) {
    (void)state;
    struct ballast_attn_shape shape = small;
    struct ballast_attn_fragment fragment = whole;
    uint64_t hash = hash_of(&small, &whole);
    fragment.document = 7;
    assert_true(hash_of(&small, &fragment) == hash);
    fragment.q_position--;
    assert_true(hash_of(&small, &fragment) != hash);
    shape.head_dim = 64;
    assert_true(hash_of(&shape, &whole) != hash);
    shape = small;
    shape.kv_rows++;
    assert_true(hash_of(&shape, &whole) != hash);
}

static void attn_plan_reaches_the_last_rows(void **state) {
    (void)state;
    struct ballast_attn_shape shape = small;
    shape.q_rows = shape.kv_rows = INT32_MAX;
    struct ballast_attn_fragment fragment = whole;
    fragment.q_row = INT32_MAX - 100;
    fragment.kv_row = INT32_MAX - 200;
    struct ballast_attn_plan plan;
    size_t bytes = ballast_attn_plan_bytes(&shape, &fragment, 1);
    void *memory = malloc(bytes);
    assert_int_equal(ballast_attn_plan_init(&plan, &shape, &fragment, 1, memory, bytes, NULL), 0);
    struct attn_lists lists = attn_lists_at(&plan, plan.lists);
    int32_t end = 0;
    for (uint32_t i = 0; i < plan.tiles; i++) {
        int32_t tile_end = lists.tiles[i].q_row + lists.tiles[i].tokens;
        end = tile_end > end ? tile_end : end;
    }
    assert_int_equal(end, INT32_MAX);
    assert_int_equal(lists.key_tiles[0].kv_row + lists.key_tiles[0].rows, INT32_MAX - 200 + 128);
    free(memory);
}

/* More documents than rows of a tile, all of one token. */
static void attn_plan_gives_a_one_token_document_a_tile_of_its_own(void **state) {
    (void)state;
    struct ballast_attn_shape shape = small;
    shape.q_rows = shape.kv_rows = 300;
    static struct ballast_attn_fragment fragments[300];
    for (int32_t i = 0; i < 300; i++) {
        fragments[i] = (struct ballast_attn_fragment){
            .q_row = i, .q_length = 1, .kv_row = i, .kv_length = 1, .head_count = 8};
    }
    struct ballast_attn_plan plan;
    size_t bytes = ballast_attn_plan_bytes(&shape, fragments, 300);
    void *memory = malloc(bytes);
    assert_int_equal(ballast_attn_plan_init(&plan, &shape, fragments, 300, memory, bytes, NULL), 0);
    assert_int_equal(plan.tiles, 600);
    assert_int_equal(plan.key_tiles, 600);
    free(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attn_plan_refuses_shapes_that_no_kernel_takes),
        cmocka_unit_test(attn_plan_refuses_fragments_outside_the_buffers),
        cmocka_unit_test(attn_plan_refuses_more_than_31_bits_count),
        cmocka_unit_test(attn_plan_refuses_rows_with_two_owners),
        cmocka_unit_test(attn_plan_refuses_slices_that_overlap),
        cmocka_unit_test(attn_plan_needs_the_memory_it_asked_for),
        cmocka_unit_test(attn_plan_of_nothing_is_empty),
        cmocka_unit_test(attn_plan_hash_follows_lists_and_shape),
        cmocka_unit_test(attn_plan_reaches_the_last_rows),
        cmocka_unit_test(attn_plan_gives_a_one_token_document_a_tile_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
