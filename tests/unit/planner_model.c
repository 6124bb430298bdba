/* The latency model as planning sees it. */
#include "planner/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* A Llama-like 7B: 32 layers of 4096, 11008 wide, 32 heads of 128. */
static const struct model_options seven_billion = {
    .layers = 32,
    .hidden = 4096,
    .ffn = 11008,
    .q_heads = 32,
    .kv_heads = 32,
    .head_dim = 128,
    .sm_margin = 0,
    .gemm_flops_per_ns = 600000,
    .memory_bytes_per_us = 2800000,
};

static struct work_model model_of(const struct model_options *options, uint32_t cp, uint32_t pp,
                                  uint32_t tp, uint32_t length_max) {
    struct work_model model;
    assert_int_equal(work_model_init(&model, options, cp, pp, tp, length_max, NULL), 0);
    return model;
}

static void refuses(struct model_options options, uint32_t pp, uint32_t tp, const char *key) {
    struct work_model model;
    struct error error = {0};
    assert_int_equal(work_model_init(&model, &options, 1, pp, tp, 4096, &error), -EINVAL);
    assert_non_null(strstr(error.text, key));
}

static void a_plain_cost_is_exact(void **state) {
    (void)state;
    struct model_options options = seven_billion;
    options.cost_linear = 24576;
    struct work_model model = model_of(&options, 4, 2, 8, 131072);
    assert_string_equal(model.name, "cost:L2/24576");
    assert_int_equal(work_of(&model, 0), 0);
    assert_int_equal(work_of(&model, 1), 24577);
    assert_int_equal(work_of(&model, 131072), UINT64_C(131072) * (131072 + 24576));
}

/* 404,750,336 FLOPs and 540,672 bytes a token and layer: worked out by hand from the formula. */
static void the_linear_part_follows_the_shape(void **state) {
    (void)state;
    uint64_t flops = UINT64_C(2) * (4 * 4096 * 4096 + UINT64_C(3) * 4096 * 11008) * 3;
    uint64_t row_ps = flops * 1000 / 600000 + UINT64_C(4096) * 2 * 22 * 3 * 1000000 / 2800000;
    struct work_model model = model_of(&seven_billion, 1, 1, 1, 4096);
    assert_int_equal(work_other_ns(&model, 1000), row_ps * 32 * 1000 / 1000);
    assert_int_equal(work_other_ns(&model, 0), 0);
    struct work_model sliced = model_of(&seven_billion, 2, 4, 8, 4096);
    assert_int_equal(sliced.stage_layers, 8);
    uint64_t tp_ps = flops * 1000 / (600000 * 8) + UINT64_C(4096) * 2 * 22 * 3 * 1000000 / 22400000;
    assert_int_equal(work_other_ns(&sliced, 1000), tp_ps * 8);
}

/* At a knot W is the tile model's price, a context-parallel rank's share, and the linear part. */
static void work_is_attention_plus_the_rest(void **state) {
    (void)state;
    struct work_model model = model_of(&seven_billion, 4, 2, 1, 131072);
    const uint32_t knots[] = {128, 256, 1024, 4096, 131072};
    for (size_t i = 0; i < sizeof knots / sizeof knots[0]; i++) {
        uint64_t attention_ps = tile_document_ps(&model.tiles, knots[i]) * 16 / 4;
        uint64_t linear_ps = model.row_ps * knots[i] / 4;
        assert_int_equal(work_of(&model, knots[i]), (attention_ps + linear_ps) / 1000);
    }
    assert_string_equal(model.name, "analytic");
    assert_int_equal(model.lengths[1], 128);
    assert_true(model.knots <= WORK_KNOTS_MAX);
}

static void work_never_falls_and_only_nothing_is_free(void **state) {
    (void)state;
    struct model_options tiny = seven_billion;
    tiny.layers = 1;
    tiny.hidden = 1;
    tiny.ffn = 1;
    tiny.gemm_flops_per_ns = UINT64_C(1) << 40;
    tiny.memory_bytes_per_us = UINT64_C(1) << 40;
    const struct work_model models[] = {model_of(&seven_billion, 1, 1, 1, 20000),
                                        model_of(&tiny, 64, 1, 32, 20000)};
    for (size_t m = 0; m < 2; m++) {
        assert_int_equal(work_of(&models[m], 0), 0);
        for (uint32_t length = 1; length <= 20000; length++) {
            assert_true(work_of(&models[m], length) >= 1);
            assert_true(work_of(&models[m], length) >= work_of(&models[m], length - 1));
        }
    }
}

/* Between knots the line lies close to the curve: within a sixteenth of a document's price. */
static void interpolation_stays_near_the_tile_model(void **state) {
    (void)state;
    struct work_model model = model_of(&seven_billion, 1, 1, 1, 131072);
    for (uint32_t length = 4096; length < 131072; length += 331) {
        uint64_t exact = (tile_document_ps(&model.tiles, length) * 32 + model.row_ps * length) /
                         1000;
        uint64_t found = work_of(&model, length);
        assert_true(found > exact - exact / 64 && found < exact + exact / 64);
    }
}

static void the_largest_windows_fit_or_are_refused(void **state) {
    (void)state;
    for (uint32_t length_max = 1; length_max <= UINT32_C(1) << 26; length_max *= 2) {
        struct work_model model = model_of(&seven_billion, 1, 32, 8, length_max);
        assert_true(work_of(&model, length_max) > 0);
        assert_int_equal(model.lengths[model.knots - 1], length_max);
    }
    struct model_options slow = seven_billion;
    struct work_model model;
    struct error error;
    slow.gemm_flops_per_ns = 1;
    slow.hidden = UINT32_MAX;
    slow.ffn = UINT32_MAX;
    assert_int_equal(work_model_init(&model, &slow, 1, 1, 1, 1 << 26, &error), -EINVAL);
    assert_non_null(strstr(error.text, "63 bits"));
}

static void refusals_name_the_key(void **state) {
    (void)state;
    struct model_options options = seven_billion;
    options.layers = 0;
    refuses(options, 1, 1, "model.layers");
    options = seven_billion;
    options.gemm_flops_per_ns = 0;
    refuses(options, 1, 1, "model.gemm_tflops");
    options = seven_billion;
    options.head_dim = 96;
    refuses(options, 1, 1, "model.head_dim");
    options = seven_billion;
    options.sm_margin = 132;
    refuses(options, 1, 1, "sm_margin");
    refuses(seven_billion, 33, 1, "parallel.pp");
    refuses(seven_billion, 1, 3, "model.q_heads");
    options = seven_billion;
    options.kv_heads = 6;
    options.q_heads = 48;
    refuses(options, 1, 4, "model.kv_heads");
}

static void few_kv_heads_are_replicated_over_tensor_parallel_ranks(void **state) {
    (void)state;
    struct model_options options = seven_billion;
    options.q_heads = 64;
    options.kv_heads = 8;
    struct work_model model = model_of(&options, 1, 1, 16, 4096);
    assert_int_equal(model.tiles.kv_heads, 1);
    assert_int_equal(model.tiles.q_heads, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_cost_is_exact),
        cmocka_unit_test(the_linear_part_follows_the_shape),
        cmocka_unit_test(work_is_attention_plus_the_rest),
        cmocka_unit_test(work_never_falls_and_only_nothing_is_free),
        cmocka_unit_test(interpolation_stays_near_the_tile_model),
        cmocka_unit_test(the_largest_windows_fit_or_are_refused),
        cmocka_unit_test(refusals_name_the_key),
        cmocka_unit_test(few_kv_heads_are_replicated_over_tensor_parallel_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
