/* Options: defaults that follow from others, and what contradicts. */
#include "planner/planner.h"
#include "tests/property/planner_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* 8 micro-batches of 128K over 2 x 2 ranks. */
static struct plan_options job(void) {
    struct plan_options options = world_options();
    options.policy = POLICY_WLB_BANDS;
    options.window = 131072;
    options.tokens_max = 163840;
    options.micro_batches = 8;
    options.dp = 2;
    options.cp = 2;
    return options;
}

static void refuses(struct plan_options options, const char *key) {
    struct plan_options before = options;
    struct error error = {0};
    assert_int_equal(plan_options_resolve(&options, &error), -EINVAL);
    if (strstr(error.text, key) == NULL || strchr(error.text, ';') == NULL) {
        print_error("'%s' names no '%s', or no remedy\n", error.text, key);
        fail();
    }
    assert_memory_equal(&options, &before, sizeof options);
}

static struct plan_options resolved(struct plan_options options) {
    struct error error = {0};
    if (plan_options_resolve(&options, &error) != 0) {
        print_error("%s\n", error.text);
        fail();
    }
    struct plan_options again = options;
    assert_int_equal(plan_options_resolve(&again, &error), 0);
    assert_memory_equal(&options, &again, sizeof options);
    return options;
}

static void step_tokens_default_to_the_windows_or_95_percent_of_the_room(void **state) {
    (void)state;
    struct plan_options options = job();
    assert_int_equal(resolved(options).step_tokens, 8 * 131072);
    options.tokens_max = 131072;
    assert_int_equal(resolved(options).step_tokens, UINT64_C(8) * 131072 * 95 / 100);
    options.tokens_max = 131075; /* a micro-batch holds whole rows of all ranks */
    assert_int_equal(resolved(options).step_tokens, UINT64_C(8) * 131072 * 95 / 100);
    options.policy = POLICY_PLAIN;
    assert_int_equal(resolved(options).step_tokens, 8 * 131072);
}

static void bands_default_to_three_and_five_eighths(void **state) {
    (void)state;
    struct plan_options options = job();
    options.bands.bands = BANDS_AUTO;
    options = resolved(options);
    assert_int_equal(options.bands.bands, 2);
    assert_int_equal(options.bands.length_min[0], 49152);
    assert_int_equal(options.bands.length_min[1], 81920);
    assert_int_equal(options.bands.group, 8);
    options = job();
    options.policy = POLICY_WLB_NONE;
    assert_int_equal(resolved(options).bands.bands, 0);
    for (uint32_t window = 4; window < 40; window++) { /* too short for two, or for one */
        options = job();
        options.window = window;
        options.tokens_max = window;
        assert_true(resolved(options).bands.bands <= 2);
    }
}

static void rows_are_rounded_for_both_kinds_of_rank(void **state) {
    (void)state;
    struct plan_options options = job();
    const uint32_t meshes[][3] = {{1, 1, 2}, {2, 1, 4},  {2, 2, 4},  {2, 8, 16},
                                  {3, 2, 6}, {3, 4, 12}, {8, 1, 16}, {4, 3, 24}};
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        options.cp = meshes[i][0];
        options.tp = meshes[i][1];
        assert_int_equal(plan_row_unit(&options), meshes[i][2]);
    }
    options.cp = 3;
    options.tp = 1;
    options.tokens_max = 100;
    assert_int_equal(plan_bin_tokens(&options), 96);
    assert_int_equal(plan_part_limit(&options), 96);
    options.window = 50;
    assert_int_equal(plan_part_limit(&options), 50);
}

static void contradictions_are_refused_by_name(void **state) {
    (void)state;
    struct plan_options options = job();
    options.dp = 3;
    refuses(options, "plan.micro_batches = 8");
    options = job();
    options.step_tokens = 8 * UINT64_C(163840) * 98 / 100 + 1;
    refuses(options, "plan.step_tokens");
    options = job();
    options.tokens_max = 3;
    refuses(options, "plan.tokens_max = 3");
    options = job();
    options.documents_max = 7;
    refuses(options, "plan.documents_max");
    options = job();
    options.waiting_max = options.documents_max - 1;
    refuses(options, "queues.waiting_max");
    options = job();
    options.bands.bands = BANDS_MAX + 1;
    refuses(options, "bands.thresholds");
    options = job();
    options.bands.bands = 2;
    options.bands.length_min[0] = 9;
    options.bands.length_min[1] = 9;
    refuses(options, "bands.thresholds: 9 after 9");
    options = job();
    options.bands.age_max = 0;
    refuses(options, "queues.max_age");
    options = job();
    options.layouts.allowed = 0;
    refuses(options, "sharding.layouts");
    options = job();
    options.layouts.allowed = 1u << LAYOUT_CONTIGUOUS;
    refuses(options, "sharding.layouts");
    options = job();
    options.layouts.allowed = 1u << LAYOUT_ULYSSES;
    options.model.q_heads = 33;
    options.model.kv_heads = 33;
    refuses(options, "sharding.layouts = ulysses: 33 heads");
    options = job();
    options.model.head_dim = 80;
    refuses(options, "model.head_dim");
    options = job();
    options.window = TOKENS_MAX_LIMIT;
    options.micro_batches = MICRO_BATCHES_LIMIT;
    refuses(options, "plan.micro_batches");
    options = job();
    options.model.cost_linear = UINT64_C(1) << 40;
    refuses(options, "queues.max_backlog");
}

static void zeros_and_giants_are_refused_by_name(void **state) {
    (void)state;
    struct plan_options options = job();
    uint32_t *const counts[] = {
        &options.window, &options.micro_batches, &options.dp,         &options.pp, &options.cp,
        &options.tp,     &options.documents_max, &options.waiting_max};
    const char *const keys[] = {"plan.window",        "plan.micro_batches", "parallel.dp",
                                "parallel.pp",        "parallel.cp",        "parallel.tp",
                                "plan.documents_max", "queues.waiting_max"};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        options = job();
        *counts[i] = 0;
        refuses(options, keys[i]);
        options = job();
        *counts[i] = UINT32_MAX;
        refuses(options, keys[i]);
    }
    options = job();
    options.backlog_max = UINT64_MAX;
    refuses(options, "queues.max_backlog");
}

static void plain_wants_windows_that_the_ranks_divide(void **state) {
    (void)state;
    struct plan_options options = job();
    options.policy = POLICY_PLAIN;
    options.cp = 3;
    refuses(options, "plan.window = 131072");
    options = job();
    options.policy = POLICY_PLAIN;
    options.tokens_max = 131068;
    refuses(options, "plan.tokens_max");
    options.tokens_max = 131072;
    options.step_tokens = 1000;
    refuses(options, "plan.step_tokens");
    options.policy = POLICY_WLB_NONE;
    options.cp = 3;
    (void)resolved(options);
    options = job();
    options.policy = (enum policy)(POLICY_FIXED + 4);
    options.cp = 3;
    refuses(options, "fixed:4 fills it exactly");
    options = job();
    options.policy = (enum policy)(POLICY_FIXED + 4);
    assert_int_equal(resolved(options).step_tokens, 8 * 131072);
    options.documents_max = 63;
    refuses(options, "plan.documents_max = 63: fixed:4 packs 32");
}

static void the_smallest_job_resolves(void **state) {
    (void)state;
    struct plan_options options = world_options();
    options.window = 2;
    options.tokens_max = 2;
    options.documents_max = 1;
    options.waiting_max = 1;
    options.backlog_max = 0;
    assert_int_equal(resolved(options).step_tokens, 1);
    options.policy = (enum policy)177;
    refuses(options, "plan.policy");
}

static void level_parameters_are_the_presets_or_given(void **state) {
    (void)state;
    struct plan_options options = job();
    for (enum level_preset preset = LEVEL_BALANCED; preset <= LEVEL_FINE; preset++) {
        options.level_preset = preset;
        struct level_options level = resolved(options).level;
        struct level_options expected = level; /* what the job sets */
        level_options_preset(preset, options.window, &expected);
        assert_memory_equal(&level, &expected, sizeof level);
        assert_int_equal(level.bins, 8);
    }
    options.level.look_ahead = 0;
    assert_int_equal(resolved(options).level.look_ahead, 0);
    options.level.horizon = 3;
    refuses(options, "level.horizon = 3");
    options = job();
    options.level.allowance_urgent = 0;
    refuses(options, "level.allowance_urgent = 0");
    options = job();
    options.level.candidate_length = 0;
    refuses(options, "level.candidate_length = 0");
}

static void refuses_to_follow(struct plan_options options, const struct plan_options *before,
                              const char *key) {
    struct plan_options given = options;
    struct error error = {0};
    assert_int_equal(plan_options_follow(&options, before, &error), -EINVAL);
    if (strstr(error.text, key) == NULL || strchr(error.text, ';') == NULL) {
        print_error("'%s' names no '%s', or no remedy\n", error.text, key);
        fail();
    }
    assert_memory_equal(&options, &given, sizeof options);
}

static void a_job_keeps_policy_window_and_longest_parts(void **state) {
    (void)state;
    struct plan_options before = resolved(job());
    struct plan_options options = job();
    options.policy = POLICY_WLB_NONE;
    refuses_to_follow(options, &before, "plan.policy");
    options = job();
    options.window = 65536;
    refuses_to_follow(options, &before, "plan.window");
    options = job();
    options.tokens_max = 131071;
    refuses_to_follow(options, &before, "plan.tokens_max");
    options = job();
    options.dp = 3;
    refuses_to_follow(options, &before, "plan.micro_batches");
    options = job();
    options.micro_batches = 24;
    options.tokens_max = 2 * 131072;
    assert_int_equal(plan_options_follow(&options, &before, NULL), 0);
    assert_int_equal(plan_part_limit(&options), 131072);
    assert_int_equal(options.step_tokens, 24 * 131072);
}

/* A micro-batch that held less at first keeps parts short for ever, and what waits for it fits. */
static void a_job_keeps_the_bounds_of_its_sections(void **state) {
    (void)state;
    struct plan_options before = job();
    before.tokens_max = 100000;
    before = resolved(before);
    struct plan_options options = job();
    options.waiting_max = before.waiting_max - 100;
    options.documents_max = 100;
    options.backlog_max = 0;
    assert_int_equal(plan_options_follow(&options, &before, NULL), 0);
    assert_int_equal(plan_part_limit(&options), 100000);
    assert_int_equal(plan_parts_max(&options), before.waiting_max);
    assert_int_equal(plan_tokens_held_max(&options), plan_tokens_held_max(&before));
}

static void fixed_packs_as_many_windows_ahead_as_it_began_with(void **state) {
    (void)state;
    struct plan_options options = job();
    options.policy = (enum policy)(POLICY_FIXED + 4);
    struct plan_options before = resolved(options);
    options.micro_batches = 16;
    refuses_to_follow(options, &before, "plan.micro_batches");
    options.policy = (enum policy)(POLICY_FIXED + 1);
    before = resolved(options);
    options.micro_batches = 24;
    assert_int_equal(plan_options_follow(&options, &before, NULL), 0);
}

static void policies_have_names(void **state) {
    (void)state;
    enum policy policy = POLICY_PLAIN;
    assert_int_equal(policy_parse("wlb:bands", &policy), 0);
    assert_int_equal(policy, POLICY_WLB_BANDS);
    assert_int_equal(policy_parse("wlb:levels", &policy), -EINVAL);
    assert_int_equal(policy, POLICY_WLB_BANDS);
    assert_int_equal(policy_parse("wlb:level", &policy), 0);
    assert_int_equal(policy, POLICY_WLB_LEVEL);
    for (uint32_t batches = 1; batches <= FIXED_BATCHES_MAX; batches++) {
        char name[16];
        (void)snprintf(name, sizeof name, "fixed:%u", batches);
        assert_int_equal(policy_parse(name, &policy), 0);
        assert_int_equal(policy_batches(policy), batches);
        assert_string_equal(policy_name(policy), name);
    }
    assert_int_equal(policy_parse("fixed:65", &policy), -EINVAL);
    assert_int_equal(policy_parse("fixed:0", &policy), -EINVAL);
    assert_null(policy_name(POLICY_FIXED));
    assert_string_equal(policy_name(POLICY_PLAIN), "plain");
    assert_string_equal(policy_name(POLICY_WLB_NONE), "wlb:none");
    assert_null(policy_name((enum policy)177));
}

static void policies_with_pools_have_names_that_parse_back(void **state) {
    (void)state;
    static const struct {
        const char *name;
        enum policy policy;
        uint32_t size;
    } names[] = {
        {"pool:1", POLICY_POOL, 1},
        {"pool:4096", POLICY_POOL, 4096},
        {"wlb:level+pool:8", POLICY_WLB_LEVEL, 8},
        {"wlb:bands+pool:16", POLICY_WLB_BANDS, 16},
        {"wlb:none+pool:2", POLICY_WLB_NONE, 2},
        {"wlb:none", POLICY_WLB_NONE, 0},
        {"fixed:3", (enum policy)(POLICY_FIXED + 3), 0},
    };
    static const char *const wrong[] = {
        "pool",           "pool:",          "pool:0",           "pool:01",
        "pool:4097",      "pool:8x",        "pool:-1",          "pool:8 ",
        "plain+pool:2",   "fixed:4+pool:2", "wlb:level+pool",   "wlb:level+pool:",
        "wlb:lev+pool:2", "+pool:2",        "pool:2+wlb:level", "pool:99999999999999999999"};
    char name[POLICY_NAME_BYTES];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        enum policy policy = POLICY_PLAIN;
        uint32_t size = 77;
        assert_int_equal(policy_pool_parse(names[i].name, &policy, &size), 0);
        assert_int_equal(policy, names[i].policy);
        assert_int_equal(size, names[i].size);
        policy_pool_name(policy, size, name);
        assert_string_equal(name, names[i].name);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        enum policy policy = POLICY_PLAIN;
        uint32_t size = 77;
        assert_int_equal(policy_pool_parse(wrong[i], &policy, &size), -EINVAL);
        assert_int_equal(policy, POLICY_PLAIN);
        assert_int_equal(size, 77);
    }
}

static void pools_default_to_what_the_model_and_the_window_allow(void **state) {
    (void)state;
    struct plan_options options = job();
    struct error error = {0};
    options.pools.size = 2;
    assert_int_equal(plan_options_resolve(&options, &error), 0);
    uint32_t kv_heads = options.model.kv_heads / options.tp;
    assert_int_equal(options.pools.head_shards, kv_heads % 4 == 0 ? 4 : kv_heads % 2 == 0 ? 2 : 1);
    uint32_t block = options.window / 64;
    assert_int_equal(options.pools.block_tokens, block < 128 ? 128 : block > 8192 ? 8192 : block);
    struct plan_options again = options;
    assert_int_equal(plan_options_resolve(&again, &error), 0);
    assert_memory_equal(&again.pools, &options.pools, sizeof options.pools);
}

static void pools_that_do_not_fit_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        struct pools_options pools;
        const char *key;
    } wrong[] = {
        {{.size = 3}, "parallel.dp = 2"},
        {{.size = 2, .look_ahead = 65}, "pools.look_ahead = 65"},
        {{.size = 2, .head_shards = 7}, "pools.head_shards = 7"},
        {{.size = 2, .block_tokens = 1}, "pools.block_tokens = 1"},
        {{.size = 2, .block_tokens = 1, .head_shards = 1536}, "pools.block_tokens = 1"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct plan_options options = job();
        options.pools = wrong[i].pools;
        bool shards = wrong[i].pools.head_shards == 1536;
        options.model.q_heads = shards ? 1536 : options.model.q_heads;
        options.cp = wrong[i].pools.block_tokens == 1 && !shards ? 1024 : options.cp;
        refuses(options, wrong[i].key);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(step_tokens_default_to_the_windows_or_95_percent_of_the_room),
        cmocka_unit_test(bands_default_to_three_and_five_eighths),
        cmocka_unit_test(rows_are_rounded_for_both_kinds_of_rank),
        cmocka_unit_test(contradictions_are_refused_by_name),
        cmocka_unit_test(zeros_and_giants_are_refused_by_name),
        cmocka_unit_test(plain_wants_windows_that_the_ranks_divide),
        cmocka_unit_test(the_smallest_job_resolves),
        cmocka_unit_test(policies_with_pools_have_names_that_parse_back),
        cmocka_unit_test(pools_default_to_what_the_model_and_the_window_allow),
        cmocka_unit_test(pools_that_do_not_fit_are_refused_by_name),
        cmocka_unit_test(level_parameters_are_the_presets_or_given),
        cmocka_unit_test(a_job_keeps_policy_window_and_longest_parts),
        cmocka_unit_test(a_job_keeps_the_bounds_of_its_sections),
        cmocka_unit_test(fixed_packs_as_many_windows_ahead_as_it_began_with),
        cmocka_unit_test(policies_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
