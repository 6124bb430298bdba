/* Curves of measured tile times by example, and that they meet, and never fall below, what was
 * measured. */
#include "sharding/curve.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const uint64_t blocks_of[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
#define POINTS (sizeof blocks_of / sizeof blocks_of[0])

static void curve_of_a_line_is_that_line(void **state) {
    (void)state;
    const uint32_t head_dims[] = {64, 128};
    for (uint32_t d = 0; d < 2; d++) {
        struct tile_model model;
        assert_int_equal(tile_model_analytic(head_dims[d], 32, 8, 8, &model), 0);
        const struct tile_direction *directions[] = {&model.forward, &model.backward};
        for (uint32_t way = 0; way < 2; way++) {
            struct tile_point points[POINTS];
            struct tile_direction made = {.launch_ps = directions[way]->launch_ps};
            for (uint32_t i = 0; i < POINTS; i++) {
                points[i].blocks = blocks_of[i];
                points[i].ps = (uint64_t)tile_time_ps(directions[way], blocks_of[i]);
            }
            tile_curve(points, POINTS, &made);
            assert_memory_equal(&made, directions[way], sizeof made);
        }
    }
}

/* 10 and 4 a block, then 7: bends behind 2 and 5 blocks. */
static void curve_bends_where_it_was_measured_to(void **state) {
    (void)state;
    const struct tile_point points[] = {{1, 100}, {2, 110}, {5, 122}, {7, 136}};
    struct tile_direction curve = {0};
    tile_curve(points, 4, &curve);
    assert_int_equal(curve.tile_ps, 90);
    assert_int_equal(curve.block_ps, 10);
    assert_int_equal(curve.bend_count, 2);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(tile_time_ps(&curve, points[i].blocks), points[i].ps);
    }
    assert_int_equal(tile_time_ps(&curve, 3), 114);
    assert_int_equal(tile_time_ps(&curve, 9), 150);
}

/* 30 a block from 4 blocks of 40 on would make t0 -80: up to there 10 a block. */
static void curve_never_begins_below_nothing(void **state) {
    (void)state;
    const struct tile_point points[] = {{4, 41}, {6, 101}};
    struct tile_direction curve = {0};
    tile_curve(points, 2, &curve);
    assert_int_equal(curve.tile_ps, 1);
    assert_int_equal(tile_time_ps(&curve, 1), 11);
    assert_int_equal(tile_time_ps(&curve, 4), 41);
    assert_int_equal(tile_time_ps(&curve, 6), 101);
}

/* Noise makes it flat until the times are above it again. */
static void curve_never_falls(void **state) {
    (void)state;
    const struct tile_point points[] = {{1, 100}, {2, 99}, {3, 98}, {5, 110}};
    struct tile_direction curve = {0};
    tile_curve(points, 4, &curve);
    for (uint64_t blocks = 1; blocks < 20; blocks++) {
        assert_true(tile_time_ps(&curve, blocks) <= tile_time_ps(&curve, blocks + 1));
    }
    assert_int_equal(tile_time_ps(&curve, 3), 100);
    assert_int_equal(tile_time_ps(&curve, 5), 110);
}

/* A third of a picosecond a block is lost on one stretch, not added up along the curve. */
static void curve_does_not_drift_from_what_was_measured(void **state) {
    (void)state;
    struct tile_point points[TILE_POINTS_MAX];
    struct tile_direction curve = {0};
    for (uint32_t i = 0; i < TILE_POINTS_MAX; i++) {
        points[i] = (struct tile_point){1 + 3 * i, 1000 + 100 * i};
    }
    tile_curve(points, TILE_POINTS_MAX, &curve);
    for (uint32_t i = 0; i < TILE_POINTS_MAX; i++) {
        int64_t off = (int64_t)tile_time_ps(&curve, points[i].blocks) - (int64_t)points[i].ps;
        assert_true(off >= -2 && off <= 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(curve_of_a_line_is_that_line),
        cmocka_unit_test(curve_bends_where_it_was_measured_to),
        cmocka_unit_test(curve_never_begins_below_nothing),
        cmocka_unit_test(curve_never_falls),
        cmocka_unit_test(curve_does_not_drift_from_what_was_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
