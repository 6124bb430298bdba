/* planner_version: plans are those of PLAN_ALGORITHM_VERSION. Whoever changes a plan learns here
 * that jobs of older binaries must be refused by name; and every build has the same plans. */
#include "corpus/lengths.h"
#include "planner/planner.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define WINDOW        131072u
#define MICRO_BATCHES 8u
#define STEPS         40u
#define DOCUMENTS     3000u

/* Those of WLB-LLM, and those that cut documents no further than needed. */
#define TWO     (1u << LAYOUT_PER_SEQUENCE | 1u << LAYOUT_PER_DOCUMENT)
#define SPREADS (1u << LAYOUT_VARIABLE_DEGREE | 1u << LAYOUT_HYBRID)

static const uint32_t version = 5;

static const struct {
    const char *policy;
    enum level_preset preset;
    uint32_t layouts; /* TWO: all keys are gathered; others: needed keys only */
    uint64_t endless; /* of the plans' digests: documents without end, and to their end */
    uint64_t ending;
} plans[] = {
    {"plain", LEVEL_BALANCED, TWO, UINT64_C(0x44a07a9b2201347e), UINT64_C(0x17c3cd0545436faf)},
    {"fixed:2", LEVEL_BALANCED, TWO, UINT64_C(0xffb27944dc42549e), UINT64_C(0xb8c7c428c347853d)},
    {"wlb:none", LEVEL_BALANCED, TWO, UINT64_C(0xa2b89fa8bec8dcdb), UINT64_C(0x28a5f83faf0d1c3c)},
    {"wlb:bands", LEVEL_BALANCED, TWO, UINT64_C(0x4ca5a0ce7e642662), UINT64_C(0x2006ca13913cd3db)},
    {"wlb:level", LEVEL_BALANCED, TWO, UINT64_C(0x5a70afe3d7c40133), UINT64_C(0xccba1189fc53f357)},
    {"wlb:level", LEVEL_STEADY, TWO, UINT64_C(0x0fdb9b7c43f7d07b), UINT64_C(0x26df477788e25e62)},
    {"wlb:level", LEVEL_PROMPT, TWO, UINT64_C(0xcff1b508e3204250), UINT64_C(0x3506315618c73182)},
    {"wlb:level", LEVEL_FINE, TWO, UINT64_C(0x220cc6b5a7595ce7), UINT64_C(0x716f0419a0fada78)},
    {"wlb:level", LEVEL_BALANCED, LAYOUTS_ALLOWED, UINT64_C(0xcbdd741d3d1deda3),
     UINT64_C(0x28b8efbbd7256d13)},
    {"wlb:level", LEVEL_BALANCED, SPREADS, UINT64_C(0x529b58da0afda896),
     UINT64_C(0x2db54673ba27a906)},
    {"pool:2", LEVEL_BALANCED, TWO, UINT64_C(0xdc7316d31ba11bda), UINT64_C(0x197ce7c3cb043e16)},
};

static struct plan_options options_of(const char *policy, enum level_preset preset,
                                      uint32_t layouts) {
    struct plan_options options = {
        .window = WINDOW,
        .micro_batches = MICRO_BATCHES,
        .dp = 2,
        .pp = 2,
        .cp = 2,
        .tp = 2,
        .tokens_max = WINDOW + WINDOW / 4,
        .documents_max = 8192,
        .waiting_max = 32768,
        .backlog_max = 4,
        .bands = {.bands = BANDS_AUTO, .age_max = 64},
        .level = LEVEL_AUTO_OPTIONS,
        .refine_gap_ppm = 1000,
        .layouts = {.allowed = layouts, .fragments_max = 65536},
        .keys_needed_only = layouts != TWO,
        .model = {.layers = 32,
                  .hidden = 4096,
                  .ffn = 11008,
                  .q_heads = 32,
                  .kv_heads = 8,
                  .head_dim = 128,
                  .gemm_flops_per_ns = 600000,
                  .memory_bytes_per_us = 2800000,
                  .link_bytes_per_us = 50000,
                  .link_latency_ns = 15000},
    };
    struct error error = {0};
    level_options_preset(preset, WINDOW, &options.level);
    assert_int_equal(policy_pool_parse(policy, &options.policy, &options.pools.size), 0);
    if (plan_options_resolve(&options, &error) < 0) {
        fail_msg("%s: %s", policy, error.text);
    }
    return options;
}

/* FNV-1a over the digests of up to STEPS plans. */
static uint64_t plans_hash(const struct plan_options *options,
                           const struct document_source *source) {
    struct planner *planner = planner_create(options, source, NULL);
    struct plan_state *state = planner_state_create(planner);
    struct plan_state *next = planner_state_create(planner);
    struct step_plan *plan;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (uint32_t step = 0; step < STEPS && plan_step(planner, state, next, &plan, NULL) == 1;
         step++) {
        for (size_t i = 0; i < PLAN_DIGEST_BYTES; i++) {
            hash = (hash ^ plan->digest[i]) * UINT64_C(0x100000001b3);
        }
        step_plan_destroy(plan);
        struct plan_state *behind = state;
        state = next;
        next = behind;
    }
    plan_state_destroy(next);
    plan_state_destroy(state);
    planner_destroy(planner);
    return hash;
}

static void plans_are_those_of_this_version(void **state) {
    const struct distribution *wlb128k = distribution_find("wlb128k");
    const struct corpus_source_options reading = {
        .order = {.shuffle = ORDER_FULL, .block_documents = 1, .window_blocks = 1, .seed = 3},
        .epochs = 1,
        .part_limit = WINDOW,
    };
    static uint32_t lengths[DOCUMENTS];
    struct lengths_source drawn;
    struct lengths_source list;
    bool same = true;
    (void)state;
    for (uint32_t i = 0; i < DOCUMENTS; i++) {
        lengths[i] = distribution_length(wlb128k, 5, i);
    }
    assert_int_equal(PLAN_ALGORITHM_VERSION, version);
    assert_int_equal(lengths_source_init_drawn(&drawn, wlb128k, &reading, NULL), 0);
    assert_int_equal(lengths_source_init(&list, lengths, DOCUMENTS, &reading, NULL), 0);
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        struct plan_options options = options_of(plans[i].policy, plans[i].preset,
                                                 plans[i].layouts);
        uint64_t endless = plans_hash(&options, &drawn.source);
        uint64_t ending = plans_hash(&options, &list.source);
        if (endless != plans[i].endless || ending != plans[i].ending) {
            print_error("%s, %s: UINT64_C(0x%016" PRIx64 "), UINT64_C(0x%016" PRIx64 ")\n",
                        plans[i].policy, level_preset_name(plans[i].preset), endless, ending);
            same = false;
        }
    }
    if (!same) {
        fail_msg("plans differ from those of version %" PRIu32
                 ": raise PLAN_ALGORITHM_VERSION and write the new ones here",
                 version);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_are_those_of_this_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
