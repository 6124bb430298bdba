/* planner_balance: how even steps are, over 100 steps of a public list of document lengths of a
 * 128K-window job, by policy. The bounds are those that the product promises. */
#include "planner/planner.h"
#include "tests/property/fake_source.h"
#include "tests/property/splitmix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WINDOW 131072u
#define STEPS  100u
#define SEEDS  3u
#define DRAWN  60000u

static uint32_t *list;
static uint32_t list_count;

static int load_list(void **state) {
    (void)state;
    FILE *file = fopen(BALLAST_SHARED "/data/lengths/wlb128k.txt", "r");
    if (file == NULL) {
        return -1;
    }
    list = malloc(200000 * sizeof *list);
    while (list_count < 200000 && fscanf(file, "%u", &list[list_count]) == 1) {
        list_count++;
    }
    (void)fclose(file);
    return 0;
}

static int free_list(void **state) {
    (void)state;
    free(list);
    return 0;
}

struct figures {
    uint64_t mean_ppm; /* total imbalance */
    uint64_t worst_ppm;
    uint64_t attention_ppm;
    uint64_t original_ppm;
    uint64_t delay_milli;
    uint64_t delay_max;
    uint64_t documents;
};

static struct plan_options options_of(enum policy policy, enum pack_search search) {
    return (struct plan_options){
        .policy = policy,
        .window = WINDOW,
        .micro_batches = 8,
        .dp = 2,
        .pp = 1,
        .cp = 2,
        .tp = 1,
        .tokens_max = WINDOW + WINDOW / 4,
        .documents_max = 65536,
        .waiting_max = 65536,
        .backlog_max = 4,
        .bands = {.bands = BANDS_AUTO, .age_max = 64},
        .level = LEVEL_AUTO_OPTIONS,
        .refine_gap_ppm = REFINE_NOT,
        .search = search,
        .layouts = {.allowed = 1u << LAYOUT_PER_SEQUENCE | 1u << LAYOUT_PER_DOCUMENT,
                    .fragments_max = 65536},
        .model = {.layers = 32,
                  .hidden = 4096,
                  .ffn = 14336,
                  .q_heads = 32,
                  .kv_heads = 8,
                  .head_dim = 128,
                  .sm_margin = 8,
                  .gemm_flops_per_ns = 600000,
                  .memory_bytes_per_us = 2800000,
                  .cost_linear = 24576},
    };
}

static void run_steps(struct planner *planner, struct figures *figures) {
    struct plan_state *now = planner_state_create(planner);
    struct plan_state *next = planner_state_create(planner);
    for (uint32_t step = 0; step < STEPS; step++) {
        struct step_plan *plan;
        assert_int_equal(plan_step(planner, now, next, &plan, NULL), 1);
        figures->mean_ppm += plan->balance.total_ppm / STEPS;
        figures->attention_ppm += plan->balance.attention_ppm / STEPS;
        figures->original_ppm += plan->balance.original_ppm / STEPS;
        figures->documents += plan->document_count;
        if (plan->balance.total_ppm > figures->worst_ppm) {
            figures->worst_ppm = plan->balance.total_ppm;
        }
        figures->delay_milli = plan->balance.delay_mean_milli;
        figures->delay_max = plan->balance.delay_max;
        step_plan_destroy(plan);
        struct plan_state *swapped = now;
        now = next;
        next = swapped;
    }
    plan_state_destroy(now);
    plan_state_destroy(next);
}

static struct figures measure(const char *name, enum policy policy, enum pack_search search,
                              uint64_t seed) {
    uint32_t *drawn = malloc(DRAWN * sizeof *drawn);
    uint64_t dice = seed;
    for (uint32_t i = 0; i < DRAWN; i++) {
        drawn[i] = list[splitmix_next(&dice) % list_count];
    }
    struct fake_dataset dataset = {.lengths = drawn, .documents = DRAWN, .weight = 1};
    struct fake_source source;
    fake_source_init(&source, &dataset, 1, 1);
    struct plan_options options = options_of(policy, search);
    struct error error = {0};
    assert_int_equal(plan_options_resolve(&options, &error), 0);
    struct planner *planner = planner_create(&options, &source.source, &error);
    assert_non_null(planner);
    struct figures figures = {0};
    run_steps(planner, &figures);
    printf("%-17s seed %lu: total mean %.4f worst %.4f, attention %.4f, delay mean %.3f max %lu, "
           "original attention %.3f, %lu documents\n",
           name, seed, (double)figures.mean_ppm / 1e6, (double)figures.worst_ppm / 1e6,
           (double)figures.attention_ppm / 1e6, (double)figures.delay_milli / 1e3,
           figures.delay_max, (double)figures.original_ppm / 1e6, figures.documents);
    planner_destroy(planner);
    free(drawn);
    return figures;
}

static void bands_level_the_public_list_and_plain_does_not(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct figures exact = measure("wlb:bands exact", POLICY_WLB_BANDS, PACK_SEARCH_EXACT,
                                       seed);
        struct figures paper = measure("wlb:bands paper", POLICY_WLB_BANDS, PACK_SEARCH_PAPER,
                                       seed);
        struct figures none = measure("wlb:none", POLICY_WLB_NONE, PACK_SEARCH_EXACT, seed);
        struct figures plain = measure("plain", POLICY_PLAIN, PACK_SEARCH_EXACT, seed);
        assert_true(exact.mean_ppm <= 1080000 && exact.worst_ppm <= 1900000);
        assert_true(exact.delay_milli <= 850 && exact.delay_max <= 64);
        assert_true(exact.mean_ppm <= paper.mean_ppm);
        assert_true(plain.mean_ppm >= 1600000 && plain.delay_max == 0);
        assert_true(none.mean_ppm >= 1600000 && none.delay_max == 0);
    }
}

int main(void) {
    if (load_list(NULL) < 0) {
        printf("skipped: no " BALLAST_SHARED "/data/lengths/wlb128k.txt\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bands_level_the_public_list_and_plain_does_not),
    };
    return cmocka_run_group_tests(tests, NULL, free_list);
}
