/* The tile model against published speeds on an H100 (132 SMs): three numbers a curve meet the
 * FlashAttention-3 paper within 4 % and a build of 2025 (MagiAttention's benchmark, 64:8 heads)
 * within 9 %. That build owns key tiles by query head, so its heads are priced as 64:64; ours walks
 * a group's heads in one tile, eight times as long. Curves are read off charts, good to a few
 * percent. Speeds are TFLOP/s of useful work, backward counted as 2.5 times forward. */
#include "sharding/cost.h"
#include "sharding/tile_list.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#define POINTS 6
#define SMS    132u

struct curve {
    const char *name;
    bool backward;
    bool causal;
    uint32_t head_dim;
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t tokens; /* in all; 0: one sequence */
    uint32_t shortest;
    double tflops[POINTS]; /* at shortest, twice that, ... */
    struct tile_direction fit;
    double error_max;
};

/* Paper: 16k tokens, hidden 2048. Fits in microseconds: launch, a tile, a block. */
#define US(x) ((uint64_t)((x)*1000000))

static const struct curve curves[] = {
    {"forward d128 full",
     false,
     false,
     128,
     16,
     16,
     16384,
     512,
     {467, 565, 625, 638, 646, 648},
     {.launch_ps = US(5), .tile_ps = US(2.50), .block_ps = US(1.64)},
     0.04},
    {"forward d128 causal",
     false,
     true,
     128,
     16,
     16,
     16384,
     512,
     {292, 423, 521, 579, 602, 616},
     {.launch_ps = US(5), .tile_ps = US(2.75), .block_ps = US(1.71)},
     0.04},
    {"forward d64 full",
     false,
     false,
     64,
     32,
     32,
     16384,
     512,
     {333, 392, 460, 476, 496, 497},
     {.launch_ps = US(5), .tile_ps = US(2.25), .block_ps = US(1.08)},
     0.04},
    {"backward d128 full",
     true,
     false,
     128,
     16,
     16,
     16384,
     512,
     {316, 424, 501, 542, 559, 561},
     {.launch_ps = US(5), .tile_ps = US(15.25), .block_ps = US(4.69)},
     0.04},
    {"backward d64 full",
     true,
     false,
     64,
     32,
     32,
     16384,
     512,
     {272, 363, 422, 453, 472, 474},
     {.launch_ps = US(5), .tile_ps = US(8.50), .block_ps = US(2.81)},
     0.04},
    {"forward d128 causal, 2025",
     false,
     true,
     128,
     64,
     64,
     0,
     1024,
     {283, 585, 662, 657, 672, 680},
     {.launch_ps = US(30), .tile_ps = US(0), .block_ps = US(1.50)},
     0.09},
    {"backward d128 causal, 2025",
     true,
     true,
     128,
     64,
     64,
     0,
     1024,
     {208, 353, 462, 518, 562, 586},
     {.launch_ps = US(30), .tile_ps = US(19.75), .block_ps = US(4.90)},
     0.09},
};

/* Tiles and blocks of one sequence and K/V head: forward tiles own packed rows, backward tiles
 * keys; both see the same blocks. */
static double curve_time_us(const struct curve *curve, uint32_t length) {
    uint32_t sequences = curve->tokens > 0 ? curve->tokens / length : 1;
    uint32_t tokens = tile_tokens(TILE_ROWS, curve->q_heads / curve->kv_heads);
    struct tile_rows rows = {0, length, length, curve->causal};
    double query_tiles = (double)tile_count(&rows, tokens);
    double key_tiles = (double)((length + TILE_KEYS - 1) / TILE_KEYS);
    double blocks = (double)tile_blocks_sum(&rows, tokens);
    double tiles = curve->backward ? key_tiles : query_tiles;
    double longest = curve->backward ? query_tiles : key_tiles;
    double tile_us = (double)curve->fit.tile_ps / 1e6;
    double block_us = (double)curve->fit.block_ps / 1e6;
    double all_us = sequences * curve->kv_heads * (tiles * tile_us + blocks * block_us) / SMS;
    return (double)curve->fit.launch_ps / 1e6 + fmax(tile_us + longest * block_us, all_us);
}

static double curve_flops(const struct curve *curve, uint32_t length) {
    double sequences = curve->tokens > 0 ? curve->tokens / length : 1;
    double pairs = curve->causal ? (double)length * (length + 1) / 2 : (double)length * length;
    double forward = 4.0 * curve->head_dim * curve->q_heads * sequences * pairs;
    return curve->backward ? 2.5 * forward : forward;
}

static double curve_error(const struct curve *curve, int point) {
    uint32_t length = curve->shortest << point;
    double tflops = curve_flops(curve, length) / curve_time_us(curve, length) / 1e6;
    return tflops / curve->tflops[point] - 1;
}

static void tile_model_meets_the_published_curves(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof curves / sizeof *curves; c++) {
        double worst = 0;
        for (int point = 0; point < POINTS; point++) {
            double error = curve_error(&curves[c], point);
            worst = fabs(error) > fabs(worst) ? error : worst;
        }
        printf("%-28s worst %+.1f %%\n", curves[c].name, 100 * worst);
        assert_true(fabs(worst) <= curves[c].error_max);
    }
}

/* What the planner prices with is those fits, a block longer by the share that our kernels are
 * expected to reach: three quarters forward, seven tenths backward. */
static void tile_model_is_the_fit_at_our_share_of_it(void **state) {
    (void)state;
    struct tile_model model;
    for (size_t c = 0; c < 5; c++) {
        const struct curve *curve = &curves[c];
        assert_int_equal(tile_model_analytic(curve->head_dim, 16, 16, 0, &model), 0);
        const struct tile_direction *ours = curve->backward ? &model.backward : &model.forward;
        double share = curve->backward ? 0.7 : 0.75;
        double block = (double)ours->block_ps * share / (double)curve->fit.block_ps - 1;
        double tile = (double)ours->tile_ps / (double)curve->fit.tile_ps - 1;
        assert_true(fabs(block) <= 0.04 && fabs(tile) <= 0.09);
    }
}

/* The walk of this test and the planner's closed forms are one arithmetic. */
static void tile_model_prices_a_causal_curve_as_the_planner_does(void **state) {
    (void)state;
    const struct curve *curve = &curves[5];
    struct tile_model model = {.forward = curve->fit,
                               .backward = curves[6].fit,
                               .sms = SMS,
                               .q_heads = 64,
                               .kv_heads = 64};
    for (int point = 0; point < POINTS; point++) {
        struct fragment whole = {.length = curve->shortest << point};
        double forward_us = (double)tile_forward_ps(&model, &whole, 1) / 1e6;
        double both_us = (double)tile_cost_ps(&model, &whole, 1) / 1e6;
        assert_true(fabs(forward_us - curve_time_us(curve, whole.length)) < 1e-3);
        assert_true(fabs(both_us - forward_us - curve_time_us(&curves[6], whole.length)) < 1e-3);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tile_model_meets_the_published_curves),
        cmocka_unit_test(tile_model_is_the_fit_at_our_share_of_it),
        cmocka_unit_test(tile_model_prices_a_causal_curve_as_the_planner_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
