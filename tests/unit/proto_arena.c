/* The arena: aligned, zeroed, bounded by what it holds, and steady after a reset. */
#include "proto/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static void expect_zeroed(const uint8_t *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(bytes[i], 0);
    }
}

static void memory_is_zeroed_and_aligned_also_after_a_reset(void **state) {
    (void)state;
    struct arena arena;
    arena_init(&arena, 1u << 20);
    for (int round = 0; round < 3; round++) {
        for (size_t bytes = 0; bytes < 200; bytes++) {
            uint8_t *out = arena_alloc(&arena, bytes);
            assert_non_null(out);
            assert_int_equal((uintptr_t)out % _Alignof(max_align_t), 0);
            expect_zeroed(out, bytes);
            memset(out, 0xff, bytes);
        }
        arena_reset(&arena);
    }
    arena_deinit(&arena);
    arena_deinit(&arena);
}

static void allocations_do_not_overlap(void **state) {
    (void)state;
    enum { COUNT = 500 };
    struct arena arena;
    uint8_t *blocks[COUNT];
    arena_init(&arena, 1u << 20);
    for (size_t i = 0; i < COUNT; i++) {
        blocks[i] = i % 2 == 0 ? arena_alloc(&arena, 1 + i) : arena_room(&arena, 1 + i, 1);
        assert_non_null(blocks[i]);
        memset(blocks[i], (int)(i % 251), 1 + i);
    }
    for (size_t i = 0; i < COUNT; i++) {
        for (size_t j = 0; j <= i; j++) {
            assert_int_equal(blocks[i][j], i % 251);
        }
    }
    arena_deinit(&arena);
}

static void the_arena_never_holds_more_than_its_bound(void **state) {
    (void)state;
    for (size_t bytes_max = 0; bytes_max < 40000; bytes_max += 997) {
        for (size_t bytes = 1; bytes < 3000; bytes += 411) {
            struct arena arena;
            arena_init(&arena, bytes_max);
            size_t given = 0;
            while (arena_alloc(&arena, bytes) != NULL) {
                given += bytes;
                assert_true(arena.held_bytes <= bytes_max);
            }
            assert_true(arena.held_bytes <= bytes_max);
            assert_true(given <= bytes_max);
            arena_deinit(&arena);
        }
    }
}

static void sizes_that_overflow_are_refused(void **state) {
    (void)state;
    struct arena arena;
    arena_init(&arena, 1u << 16);
    assert_null(arena_alloc(&arena, SIZE_MAX));
    assert_null(arena_alloc(&arena, SIZE_MAX - 8));
    assert_null(arena_array(&arena, SIZE_MAX / 2, 3));
    assert_null(arena_room(&arena, SIZE_MAX / 2, 3));
    assert_null(arena_alloc(&arena, (1u << 16) + 1));
    assert_int_equal(arena.held_bytes, 0);
    assert_true(arena.full);
    arena_reset(&arena);
    assert_non_null(arena_array(&arena, 10, 100));
    assert_false(arena.full);
    arena_deinit(&arena);
}

static void a_reset_keeps_one_chunk_so_that_the_same_work_needs_no_malloc(void **state) {
    (void)state;
    struct arena arena;
    arena_init(&arena, 1u << 20);
    for (int i = 0; i < 1000; i++) {
        assert_non_null(arena_alloc(&arena, 64));
    }
    arena_reset(&arena);
    size_t kept = arena.held_bytes;
    assert_true(kept > 0);
    for (int i = 0; i < 400; i++) {
        assert_non_null(arena_alloc(&arena, 64));
    }
    assert_int_equal(arena.held_bytes, kept);
    arena_deinit(&arena);
}

static void a_kept_chunk_does_not_eat_into_the_bound(void **state) {
    (void)state;
    struct arena arena;
    arena_init(&arena, 10000);
    assert_non_null(arena_alloc(&arena, 1));
    arena_reset(&arena);
    assert_non_null(arena_alloc(&arena, 9000));
    arena_deinit(&arena);
}

static void strings_are_copied(void **state) {
    (void)state;
    struct arena arena;
    arena_init(&arena, 1u << 16);
    char text[] = "band 0";
    char *copy = arena_strdup(&arena, text);
    text[0] = 'x';
    assert_string_equal(copy, "band 0");
    arena_deinit(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_zeroed_and_aligned_also_after_a_reset),
        cmocka_unit_test(allocations_do_not_overlap),
        cmocka_unit_test(the_arena_never_holds_more_than_its_bound),
        cmocka_unit_test(sizes_that_overflow_are_refused),
        cmocka_unit_test(a_reset_keeps_one_chunk_so_that_the_same_work_needs_no_malloc),
        cmocka_unit_test(a_kept_chunk_does_not_eat_into_the_bound),
        cmocka_unit_test(strings_are_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
