/* Curves of measured tile times by example, that they meet, and never fall below, what was
 * measured, and the floors below them. */
#include "sharding/curve.h"
#include "sharding/floor.h"
#include "tests/property/splitmix.h"

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

/* Keys that 10 query tiles see, 100 + 10 * 10 + 5 * 90 = 650: in halves 2 * 150. */
static void floor_is_below_what_parts_of_a_long_tile_take(void **state) {
    (void)state;
    struct tile_model model = {
        .backward = {100, 100, 10, 1, {{5, 100}}}, .sms = 1, .q_heads = 1, .kv_heads = 1};
    const uint32_t length = 1280;
    struct tile_model floor;
    assert_true(tile_model_floor(&model, &length, 1, &floor));
    assert_int_equal(tile_time_ps(&model.backward, 10), 650);
    assert_int_equal(floor.backward.bend_count, 0);
    assert_int_equal(floor.backward.tile_ps, 0);
    assert_int_equal(floor.backward.block_ps, 30); /* as of 5 blocks, 150 */
    model.backward.bends[0].block_ps = 10;
    assert_false(tile_model_floor(&model, &length, 1, &floor));
    assert_memory_equal(&floor, &model, sizeof model);
}

static void floor_is_a_line_nowhere_above_its_curve(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        uint64_t random = seed;
        struct tile_model model = {.sms = 132, .q_heads = 8, .kv_heads = 2};
        struct tile_direction *curve = &model.backward;
        struct tile_model floor;
        uint64_t blocks = 0;
        curve->tile_ps = splitmix_between(&random, 0, 1000);
        curve->block_ps = splitmix_between(&random, 0, 100);
        curve->bend_count = splitmix_between(&random, 0, 6);
        for (uint32_t i = 0; i < curve->bend_count; i++) {
            blocks += splitmix_between(&random, 1, 20);
            curve->bends[i] = (struct tile_bend){blocks, splitmix_between(&random, 0, 100)};
        }
        const uint32_t lengths[] = {splitmix_between(&random, 1, 2000),
                                    splitmix_between(&random, 1, 100)};
        bool bent = tile_model_floor(&model, lengths, 2, &floor);
        assert_true(!bent || floor.backward.bend_count == 0);
        for (uint64_t tile = 1; bent && tile <= (lengths[0] + 31) / 32 + 1; tile++) {
            assert_true(tile_time_ps(&floor.backward, tile) <= tile_time_ps(curve, tile));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(curve_of_a_line_is_that_line),
        cmocka_unit_test(curve_bends_where_it_was_measured_to),
        cmocka_unit_test(curve_never_begins_below_nothing),
        cmocka_unit_test(curve_never_falls),
        cmocka_unit_test(curve_does_not_drift_from_what_was_measured),
        cmocka_unit_test(floor_is_below_what_parts_of_a_long_tile_take),
        cmocka_unit_test(floor_is_a_line_nowhere_above_its_curve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
