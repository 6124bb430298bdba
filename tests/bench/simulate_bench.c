/* simulate_bench: what it takes to simulate a job of 2,048 GPUs (tensor 8, context 4, pipeline 16,
 * data 4; 64 micro-batches of 128K tokens, two chunks a stage), by part, for 1,000 steps.
 *
 * Planning is the daemon's own plan_step; loads are prices of its fragments; times are the
 * pipelines of four replicas a step. */
#include "corpus/lengths.h"
#include "planner/planner.h"
#include "planner/step_time.h"
#include "tests/bench/figure.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define WINDOW        131072u
#define MICRO_BATCHES 64u
#define STEPS         1000u
#define LIMIT_S       3.0

static const struct model_options shape = {
    .layers = 80,
    .hidden = 8192,
    .ffn = 28672,
    .q_heads = 64,
    .kv_heads = 8,
    .head_dim = 128,
    .sm_margin = 8,
    .gemm_flops_per_ns = 600000,
    .memory_bytes_per_us = 2800000,
};

static struct plan_options options_of(enum policy policy) {
    struct plan_options options = {
        .policy = policy,
        .window = WINDOW,
        .micro_batches = MICRO_BATCHES,
        .dp = 4,
        .pp = 16,
        .cp = 4,
        .tp = 8,
        .tokens_max = WINDOW + WINDOW / 4,
        .documents_max = 65536,
        .waiting_max = 65536,
        .backlog_max = 4,
        .bands = {.bands = BANDS_AUTO, .age_max = 64},
        .level = LEVEL_AUTO_OPTIONS,
        .refine_gap_ppm = REFINE_NOT,
        .layouts = {.allowed = 1u << LAYOUT_PER_SEQUENCE | 1u << LAYOUT_PER_DOCUMENT,
                    .fragments_max = 65536},
        .model = shape,
    };
    int code = plan_options_resolve(&options, NULL);
    assert(code == 0);
    return options;
}

static struct step_time_model model_of(const struct plan_options *plan) {
    struct step_time_options options = step_time_defaults;
    struct step_time_model model;
    options.shape = plan->model;
    options.vocab = 128256;
    options.dp = plan->dp;
    options.pp = plan->pp;
    options.cp = plan->cp;
    options.tp = plan->tp;
    options.micro_batches = plan->micro_batches;
    options.chunks = 2;
    options.layers = NULL;
    options.schedule = PIPELINE_INTERLEAVED;
    int code = step_time_init(&model, &options, NULL);
    assert(code == 0);
    return model;
}

struct bench {
    struct plan_options options;
    struct step_time_model model;
    struct lengths_source source;
    struct planner *planner;
    struct plan_state *state;
    struct plan_state *next;
    void *scratch;
    struct step_load loads[MICRO_BATCHES];
};

enum part { PART_PLANNING, PART_LOADS, PART_TIMES, PARTS };

static void bench_open(struct bench *bench, enum policy policy) {
    struct corpus_source_options reading = {.order = {.seed = 7}, .part_limit = WINDOW};
    bench->options = options_of(policy);
    bench->model = model_of(&bench->options);
    int code = lengths_source_init_drawn(&bench->source, distribution_find("wlb128k"), &reading,
                                         NULL);
    assert(code == 0);
    bench->planner = planner_create(&bench->options, &bench->source.source, NULL);
    assert(bench->planner != NULL);
    bench->state = planner_state_create(bench->planner);
    bench->next = planner_state_create(bench->planner);
    bench->scratch = malloc(step_time_bytes(&bench->model));
    assert(bench->state != NULL && bench->next != NULL && bench->scratch != NULL);
}

static void bench_close(struct bench *bench) {
    free(bench->scratch);
    plan_state_destroy(bench->next);
    plan_state_destroy(bench->state);
    planner_destroy(bench->planner);
}

static void bench_step(struct bench *bench, double us[PARTS]) {
    struct step_plan *plan;
    struct step_time time;
    double start = figure_cpu_us();
    int code = plan_step(bench->planner, bench->state, bench->next, &plan, NULL);
    double planned = figure_cpu_us();
    assert(code == 1);
    step_load_of(plan, &planner_model(bench->planner)->tiles, bench->loads);
    double priced = figure_cpu_us();
    code = step_time_of(&bench->model, bench->loads, bench->scratch, &time, NULL);
    assert(code == 0);
    us[PART_PLANNING] += planned - start;
    us[PART_LOADS] += priced - planned;
    us[PART_TIMES] += figure_cpu_us() - priced;
    step_plan_destroy(plan);
    struct plan_state *behind = bench->state;
    bench->state = bench->next;
    bench->next = behind;
}

static void measure(struct figures *figures, enum policy policy) {
    static const char *const parts[PARTS] = {"planning", "loads", "step times"};
    uint32_t steps = figures->smoke ? STEPS / 50 : STEPS;
    struct bench bench;
    double us[PARTS] = {0};
    bench_open(&bench, policy);
    for (uint32_t step = 0; step < steps; step++) {
        bench_step(&bench, us);
    }
    bench_close(&bench);
    struct figure all = {
        .subject = policy_name(policy),
        .name = "1,000 steps",
        .unit = "s",
        .rule = FIGURE_AT_MOST,
        .limit = LIMIT_S,
    };
    for (int part = 0; part < PARTS; part++) {
        double s = us[part] / 1e6 * STEPS / steps;
        all.value += s;
        struct figure figure = {
            .subject = policy_name(policy), .name = parts[part], .unit = "s", .value = s};
        figures_add(figures, &figure);
    }
    figures_add(figures, &all);
}

int main(int argc, char **argv) {
    static const enum policy policies[] = {POLICY_PLAIN, POLICY_WLB_NONE, POLICY_WLB_BANDS,
                                           POLICY_WLB_LEVEL};
    struct figures figures;
    figures_begin(&figures, "simulate", &argc, argv);
    if (argc > 1) {
        fprintf(stderr, "usage: simulate_bench [--json] [--smoke]\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        measure(&figures, policies[i]);
    }
    return figures_end(&figures);
}
