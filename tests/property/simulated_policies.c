/* simulated_policies: what holds of all policies over the same documents: the same tokens and,
 * where documents are cut alike, the same attention comes out of a stream that ended; and jobs that
 * leave nothing to balance take every policy the same time. */
#include "corpus/lengths.h"
#include "planner/planner.h"
#include "planner/step_time.h"
#include "tests/property/splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WORLDS        40u
#define DOCUMENTS_MAX 600u
#define WINDOW        32768u
#define MICRO_BATCHES 4u

static const char *const policies[] = {"plain",     "wlb:none", "wlb:bands",
                                       "wlb:level", "fixed:1",  "fixed:3"};

#define POLICIES (sizeof policies / sizeof policies[0])

struct total {
    uint64_t steps;
    uint64_t tokens;
    unsigned __int128 pairs;
    uint64_t ns;
    uint64_t context_ppm_max;
};

static struct plan_options options_of(const char *policy, uint32_t cp) {
    struct plan_options options = {
        .window = WINDOW,
        .micro_batches = MICRO_BATCHES,
        .dp = 2,
        .pp = 2,
        .cp = cp,
        .tp = 1,
        .tokens_max = WINDOW + WINDOW / 4,
        .documents_max = 8192,
        .waiting_max = 32768,
        .backlog_max = 4,
        .bands = {.bands = BANDS_AUTO, .age_max = 16},
        .level = LEVEL_AUTO_OPTIONS,
        .refine_gap_ppm = REFINE_NOT,
        .layouts = {.allowed = 1u << LAYOUT_PER_SEQUENCE | 1u << LAYOUT_PER_DOCUMENT,
                    .fragments_max = 65536},
        .model = {.layers = 8,
                  .hidden = 1024,
                  .ffn = 2816,
                  .q_heads = 8,
                  .kv_heads = 8,
                  .head_dim = 128,
                  .gemm_flops_per_ns = 600000,
                  .memory_bytes_per_us = 2800000},
    };
    struct error error = {0};
    assert_int_equal(policy_pool_parse(policy, &options.policy, &options.pools.size), 0);
    if (plan_options_resolve(&options, &error) < 0) {
        fail_msg("%s: %s", policy, error.text);
    }
    return options;
}

static struct step_time_model model_of(const struct plan_options *plan, uint32_t attention) {
    struct step_time_options options = step_time_defaults;
    struct step_time_model model;
    options.shape = plan->model;
    options.dp = plan->dp;
    options.pp = plan->pp;
    options.cp = plan->cp;
    options.tp = plan->tp;
    options.micro_batches = plan->micro_batches;
    options.attention_permille = attention;
    assert_int_equal(step_time_init(&model, &options, NULL), 0);
    return model;
}

/* The slowest worker is as far above the mean as the plan predicts: within a part in 10,000. */
static void expect_pooled(const struct step_plan *plan, const struct step_load *loads) {
    const struct rank_shard *shards = plan->shards;
    uint32_t workers = plan->micro_batch_count * plan->cp;
    uint64_t slowest_ns = 0;
    uint64_t sum_ns = 0;
    assert_int_equal(plan->pool_count, plan->micro_batch_count / plan->dp);
    for (uint32_t i = 0; i < plan->pool_count; i++) {
        uint32_t m = plan->pools[i].ga_index;
        for (uint32_t worker = 0; worker < workers; worker++) {
            bool here = plan->micro_batches[worker / plan->cp].index == m;
            uint64_t ns = here ? shards[worker].predicted_ns : 0;
            sum_ns += ns;
            slowest_ns = ns > slowest_ns ? ns : slowest_ns;
        }
        double plan_ratio = (double)slowest_ns * plan->dp / (double)sum_ns;
        double load_ratio = (double)loads[m].attention_ps / (double)loads[m].attention_sum_ps;
        assert_true(load_ratio > plan_ratio * 0.9999 && load_ratio < plan_ratio * 1.0001);
        assert_int_equal(loads[m].attention_ps, loads[m + plan->pool_count].attention_ps);
        sum_ns = slowest_ns = 0;
    }
}

static void total_add(struct total *total, const struct step_time_model *model,
                      const struct planner *planner, const struct step_plan *plan) {
    struct step_load loads[MICRO_BATCHES];
    struct step_time time;
    void *scratch = malloc(step_time_bytes(model));
    step_load_of(plan, &planner_model(planner)->tiles, loads);
    if (plan->pool_count > 0) {
        expect_pooled(plan, loads);
    }
    assert_int_equal(step_time_of(model, loads, scratch, &time, NULL), 0);
    free(scratch);
    for (uint32_t i = 0; i < plan->micro_batch_count * plan->cp; i++) {
        total->pairs += plan->shards[i].pairs;
    }
    total->steps++;
    total->tokens += plan->tokens;
    total->ns += time.step_ns;
    if (time.context_ppm > total->context_ppm_max) {
        total->context_ppm_max = time.context_ppm;
    }
}

/* To the end of the stream, or for `steps` steps. */
static struct total run(const struct document_source *source, const char *policy, uint32_t cp,
                        uint32_t attention, uint64_t steps) {
    struct plan_options options = options_of(policy, cp);
    struct step_time_model model = model_of(&options, attention);
    struct planner *planner = planner_create(&options, source, NULL);
    struct plan_state *state = planner_state_create(planner);
    struct plan_state *next = planner_state_create(planner);
    struct total total = {0};
    struct step_plan *plan;
    while (total.steps < steps && plan_step(planner, state, next, &plan, NULL) == 1) {
        total_add(&total, &model, planner, plan);
        step_plan_destroy(plan);
        struct plan_state *behind = state;
        state = next;
        next = behind;
    }
    plan_state_destroy(state);
    plan_state_destroy(next);
    planner_destroy(planner);
    return total;
}

static uint32_t world_lengths(uint64_t seed, uint32_t *lengths) {
    uint32_t count = splitmix_between(&seed, 30, DOCUMENTS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t high = splitmix_between(&seed, 0, 9) == 0 ? 2 * WINDOW : WINDOW / 8;
        lengths[i] = splitmix_between(&seed, 1, high);
    }
    return count;
}

static const struct corpus_source_options one_pass = {
    .order = {.shuffle = ORDER_FULL, .block_documents = 1, .window_blocks = 1},
    .epochs = 1,
    .part_limit = WINDOW,
};

static void every_policy_delivers_all_tokens_and_pieces_cut_alike_the_same_attention(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= WORLDS; seed++) {
        uint32_t lengths[DOCUMENTS_MAX];
        uint32_t count = world_lengths(seed, lengths);
        struct lengths_source list;
        struct cut_source cut;
        uint64_t tokens = 0;
        assert_int_equal(lengths_source_init(&list, lengths, count, &one_pass, NULL), 0);
        cut_source_init(&cut, &list.source, WINDOW);
        for (uint32_t i = 0; i < count; i++) {
            tokens += lengths[i];
        }
        struct total plain = run(&cut.source, "plain", 2, 1000, UINT64_MAX);
        for (size_t i = 0; i < POLICIES; i++) {
            struct total total = run(&cut.source, policies[i], 1u << seed % 3, 1000, UINT64_MAX);
            bool cuts_again = strncmp(policies[i], "fixed", 5) == 0;
            if (total.tokens != tokens || (!cuts_again && total.pairs != plain.pairs) ||
                (cuts_again && total.pairs > plain.pairs)) {
                fail_msg("seed %" PRIu64 ", %s: %" PRIu64 " of %" PRIu64 " tokens", seed,
                         policies[i], total.tokens, tokens);
            }
        }
    }
}

static void full_windows_leave_nothing_to_gain(void **state) {
    static const uint32_t lengths[] = {WINDOW};
    struct corpus_source_options endless = one_pass;
    struct lengths_source list;
    (void)state;
    endless.epochs = 0;
    assert_int_equal(lengths_source_init(&list, lengths, 1, &endless, NULL), 0);
    struct total plain = run(&list.source, "plain", 2, 1000, 20);
    assert_int_equal(plain.context_ppm_max, 1000000);
    for (size_t i = 0; i < POLICIES; i++) {
        struct total total = run(&list.source, policies[i], 2, 1000, 20);
        assert_int_equal(total.tokens, plain.tokens);
        assert_int_equal(total.ns, plain.ns);
        assert_int_equal(total.context_ppm_max, 1000000);
    }
}

static void without_attention_fixed_tokens_take_the_same_time(void **state) {
    static const char *const fixed[] = {"fixed:1", "fixed:2", "fixed:4"};
    struct corpus_source_options endless = one_pass;
    uint32_t lengths[DOCUMENTS_MAX];
    struct lengths_source list;
    (void)state;
    endless.epochs = 0;
    uint32_t count = world_lengths(7, lengths);
    assert_int_equal(lengths_source_init(&list, lengths, count, &endless, NULL), 0);
    struct total plain = run(&list.source, "plain", 2, 0, 40);
    assert_true(run(&list.source, "plain", 2, 1000, 40).ns > plain.ns);
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        struct total total = run(&list.source, fixed[i], 2, 0, 40);
        assert_int_equal(total.tokens, plain.tokens);
        assert_int_equal(total.ns, plain.ns);
    }
}

static void pools_are_timed_by_their_workers_tiles(void **state) {
    struct corpus_source_options endless = one_pass;
    uint32_t lengths[DOCUMENTS_MAX];
    struct lengths_source list;
    (void)state;
    endless.epochs = 0;
    uint32_t count = world_lengths(7, lengths);
    assert_int_equal(lengths_source_init(&list, lengths, count, &endless, NULL), 0);
    for (uint32_t cp = 1; cp <= 4; cp *= 2) {
        assert_int_equal(run(&list.source, "pool:2", cp, 1000, 10).steps, 10);
        assert_int_equal(run(&list.source, "wlb:level+pool:2", cp, 1000, 10).steps, 10);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_policy_delivers_all_tokens_and_pieces_cut_alike_the_same_attention),
        cmocka_unit_test(full_windows_leave_nothing_to_gain),
        cmocka_unit_test(without_attention_fixed_tokens_take_the_same_time),
        cmocka_unit_test(pools_are_timed_by_their_workers_tiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
