/* The tile model by example: its figures, tiles counted by hand, and its limits. */
#include "sharding/cost.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* 3 SMs, 2 KV heads, groups of 4 heads: 32 tokens a tile. */
static const struct tile_model small_model = {
    .forward = {.launch_ps = 1000000, .tile_ps = 1000, .block_ps = 10},
    .backward = {.launch_ps = 5000000, .tile_ps = 3000, .block_ps = 20},
    .sms = 4,
    .sm_margin = 1,
    .q_heads = 8,
    .kv_heads = 2,
};

static void tile_model_has_the_figures_of_an_h100(void **state) {
    (void)state;
    struct tile_model model;
    assert_int_equal(tile_model_analytic(128, 32, 8, 8, &model), 0);
    assert_int_equal(model.sms, 132);
    assert_int_equal(model.sm_margin, 8);
    assert_int_equal(model.q_heads, 32);
    assert_int_equal(model.kv_heads, 8);
    assert_int_equal(model.forward.launch_ps, 8000000);
    assert_int_equal(model.forward.tile_ps, 2700000);
    assert_int_equal(model.forward.block_ps, 2266667);
    assert_int_equal(model.backward.launch_ps, 15000000);
    assert_int_equal(model.backward.tile_ps, 15000000);
    assert_int_equal(model.backward.block_ps, 6857143);
    assert_int_equal(tile_model_analytic(64, 1, 1, 0, &model), 0);
    assert_int_equal(model.forward.launch_ps, 8000000);
    assert_int_equal(model.forward.tile_ps, 2250000);
    assert_int_equal(model.forward.block_ps, 1440000);
    assert_int_equal(model.backward.launch_ps, 15000000);
    assert_int_equal(model.backward.tile_ps, 8500000);
    assert_int_equal(model.backward.block_ps, 4014286);
}

static void tile_model_refuses_what_it_has_no_figures_for(void **state) {
    (void)state;
    struct tile_model model = small_model;
    assert_int_equal(tile_model_analytic(96, 32, 8, 0, &model), -EINVAL);
    assert_int_equal(tile_model_analytic(128, 0, 8, 0, &model), -EINVAL);
    assert_int_equal(tile_model_analytic(128, 32, 0, 0, &model), -EINVAL);
    assert_int_equal(tile_model_analytic(128, 32, 5, 0, &model), -EINVAL);
    assert_int_equal(tile_model_analytic(128, 129, 1, 0, &model), -EINVAL);
    assert_int_equal(tile_model_analytic(128, 32, 8, 132, &model), -EINVAL);
    assert_memory_equal(&model, &small_model, sizeof model);
    assert_int_equal(tile_model_analytic(128, 128, 1, 131, &model), 0);
}

static void tile_cost_of_nothing_is_nothing(void **state) {
    (void)state;
    assert_int_equal(tile_cost_ps(&small_model, NULL, 0), 0);
    assert_int_equal(tile_document_ps(&small_model, 0), 0);
}

/* One row is one tile of one block per KV head, forward and backward: nothing fills 3 SMs, so each
 * direction takes its longest tile. */
static void tile_cost_of_one_row_is_a_launch_and_a_tile_each_way(void **state) {
    (void)state;
    const struct fragment row = {0, 0, 1};
    assert_int_equal(tile_cost_ps(&small_model, &row, 1), 1001010 + 5003020);
}

/* 100 rows from 120 on are tiles of 32, 32, 32, 4 ending at 152, 184, 216, 220: 2 blocks each.
 * Forward 2 * (4 * 1000 + 8 * 10) / 3 = 2720 over the longest tile's 1020; backward 2 key tiles,
 * 2 * (2 * 3000 + 8 * 20) / 3 = 4106.7 over 3000 + 4 * 20. */
static void tile_cost_counts_tiles_of_packed_heads(void **state) {
    (void)state;
    const struct fragment rows = {0, 120, 100};
    assert_int_equal(tile_cost_ps(&small_model, &rows, 1), 1002720 + 5004107);
}

/* Two fragments of one document read one K/V slice up to row 256, 2 key tiles; of two documents,
 * 1 and 2 key tiles. */
static void tile_cost_shares_keys_between_neighbouring_fragments_of_a_document(void **state) {
    (void)state;
    struct fragment fragments[] = {{0, 0, 32}, {0, 224, 32}};
    assert_int_equal(tile_cost_ps(&small_model, fragments, 2), 1001354 + 5004040);
    fragments[1].document = 1;
    assert_int_equal(tile_cost_ps(&small_model, fragments, 2), 1001354 + 5006040);
}

/* Both directions of 64 rows: 2 tiles and blocks, 1 key tile: 2 * (2020 + 3040) / 3. */
static void tile_document_is_work_over_the_machine_without_launches(void **state) {
    (void)state;
    assert_int_equal(tile_document_ps(&small_model, 64), 3374);
}

/* 2^26 rows against each other, 256 query heads whatever the group, 64 SMs. */
static void tile_cost_of_the_longest_sequence_fits_64_bits(void **state) {
    (void)state;
    const struct fragment whole = {0, 0, 1u << 26};
    for (uint32_t group = 1; group <= 128; group++) {
        struct tile_model model;
        uint32_t kv_heads = 256 / group;
        assert_int_equal(tile_model_analytic(128, kv_heads * group, kv_heads, 68, &model), 0);
        uint64_t cost_ps = tile_cost_ps(&model, &whole, 1);
        assert_true(cost_ps < UINT64_MAX);
        assert_true(cost_ps > tile_document_ps(&model, whole.length));
    }
}

/* The same with one KV head: each of the 2^19 runs of 128 rows is 128 tiles of one token, which see
 * as many key blocks as runs so far. The sums need 68 bits. */
static void tile_cost_of_the_longest_sequence_is_exact(void **state) {
    (void)state;
    const struct fragment whole = {0, 0, 1u << 26};
    struct tile_model model;
    assert_int_equal(tile_model_analytic(128, 128, 1, 68, &model), 0);
    const unsigned __int128 runs = 1u << 19;
    const unsigned __int128 blocks = 128 * (runs * (runs + 1) / 2);
    uint64_t forward_ps = (uint64_t)((128 * runs * 2700000 + blocks * 2266667 + 63) / 64);
    uint64_t backward_ps = (uint64_t)((runs * 15000000 + blocks * 6857143 + 63) / 64);
    assert_true(tile_cost_ps(&model, &whole, 1) == 8000000 + forward_ps + 15000000 + backward_ps);
}

static void tile_cost_beyond_64_bits_saturates(void **state) {
    (void)state;
    const struct fragment whole = {0, 0, UINT32_MAX};
    struct tile_model model;
    assert_int_equal(tile_model_analytic(128, 8192, 64, 131, &model), 0);
    assert_true(tile_cost_ps(&model, &whole, 1) == UINT64_MAX);
    assert_true(tile_document_ps(&model, whole.length) == UINT64_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tile_model_has_the_figures_of_an_h100),
        cmocka_unit_test(tile_model_refuses_what_it_has_no_figures_for),
        cmocka_unit_test(tile_cost_of_nothing_is_nothing),
        cmocka_unit_test(tile_cost_of_one_row_is_a_launch_and_a_tile_each_way),
        cmocka_unit_test(tile_cost_counts_tiles_of_packed_heads),
        cmocka_unit_test(tile_cost_shares_keys_between_neighbouring_fragments_of_a_document),
        cmocka_unit_test(tile_document_is_work_over_the_machine_without_launches),
        cmocka_unit_test(tile_cost_of_the_longest_sequence_fits_64_bits),
        cmocka_unit_test(tile_cost_of_the_longest_sequence_is_exact),
        cmocka_unit_test(tile_cost_beyond_64_bits_saturates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
