/* simulate_bench: what it takes to simulate a job of 2,048 GPUs (tensor 8, context 4, pipeline 16,
 * data 4; 64 micro-batches of 128K tokens, two chunks a stage), by part.
 *
 *     simulate_bench [STEPS]
 *
 * Planning is the daemon's own plan_step; loads are prices of its fragments; times are the
 * pipelines of four replicas a step. */
#include "corpus/lengths.h"
#include "planner/planner.h"
#include "planner/step_time.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define WINDOW        131072u
#define MICRO_BATCHES 64u

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

static uint64_t clock_ns(void) {
    struct timespec time;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

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

static void measure(enum policy policy, uint32_t steps) {
    struct plan_options options = options_of(policy);
    struct corpus_source_options reading = {.order = {.seed = 7}, .part_limit = WINDOW};
    struct step_time_model model = model_of(&options);
    struct lengths_source source;
    struct step_load loads[MICRO_BATCHES];
    uint64_t spent_ns[3] = {0};
    uint64_t step_ns = 0;
    lengths_source_init_drawn(&source, distribution_find("wlb128k"), &reading);
    struct planner *planner = planner_create(&options, &source.source, NULL);
    struct plan_state *state = planner_state_create(planner);
    struct plan_state *next = planner_state_create(planner);
    void *scratch = malloc(step_time_bytes(&model));
    assert(state != NULL && next != NULL && scratch != NULL);
    for (uint32_t step = 0; step < steps; step++) {
        struct step_plan *plan;
        struct step_time time;
        uint64_t start_ns = clock_ns();
        int code = plan_step(planner, state, next, &plan, NULL);
        uint64_t planned_ns = clock_ns();
        assert(code == 1);
        step_load_of(plan, &planner_model(planner)->tiles, loads);
        uint64_t priced_ns = clock_ns();
        code = step_time_of(&model, loads, scratch, &time, NULL);
        assert(code == 0);
        spent_ns[0] += planned_ns - start_ns;
        spent_ns[1] += priced_ns - planned_ns;
        spent_ns[2] += clock_ns() - priced_ns;
        step_ns += time.step_ns / steps;
        step_plan_destroy(plan);
        struct plan_state *behind = state;
        state = next;
        next = behind;
    }
    printf("%-9s %" PRIu32
           " steps: planning %.3f s, loads %.3f s, step times %.3f s (%zu bytes); a "
           "step takes %.3f s\n",
           policy_name(policy), steps, (double)spent_ns[0] / 1e9, (double)spent_ns[1] / 1e9,
           (double)spent_ns[2] / 1e9, step_time_bytes(&model), (double)step_ns / 1e9);
    free(scratch);
    plan_state_destroy(next);
    plan_state_destroy(state);
    planner_destroy(planner);
}

int main(int argc, char **argv) {
    uint32_t steps = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1000;
    if (steps == 0) {
        fprintf(stderr, "usage: simulate_bench [STEPS]\n");
        return 2;
    }
    measure(POLICY_PLAIN, steps);
    measure(POLICY_WLB_BANDS, steps);
    return 0;
}
