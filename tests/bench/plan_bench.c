/* plan_bench: time of a whole plan_step against sorting that step's lengths with qsort, for
 * wlb:level at 4, 16, 64 and 512 micro-batches of the 128K list, both layouts at CP 8. */
#include "planner/distribution.h"
#include "planner/planner.h"
#include "tests/property/fake_source.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WINDOW     131072u
#define WARM_STEPS 8u
#define STEPS_MAX  200u

static uint64_t now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    uint64_t x;
    uint64_t y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

static int by_length(const void *a, const void *b) {
    uint32_t x;
    uint32_t y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

static uint64_t median(uint64_t *values, uint32_t count) {
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

static struct plan_options bench_options(enum policy policy, uint32_t micro_batches) {
    return (struct plan_options){
        .policy = policy,
        .window = WINDOW,
        .micro_batches = micro_batches,
        .dp = 4,
        .pp = 1,
        .cp = 8,
        .tp = 1,
        .tokens_max = WINDOW / 4 * 5,
        .documents_max = 1u << 20,
        .waiting_max = 1u << 21,
        .backlog_max = 4,
        .bands = {.bands = BANDS_AUTO, .age_max = 64},
        .level = LEVEL_AUTO_OPTIONS,
        .refine_gap_ppm = 1000,
        .layouts = {.allowed = 1u << LAYOUT_PER_SEQUENCE | 1u << LAYOUT_PER_DOCUMENT,
                    .fragments_max = 65536},
        .model = {.layers = 32,
                  .hidden = 4096,
                  .ffn = 11008,
                  .q_heads = 32,
                  .kv_heads = 32,
                  .head_dim = 128,
                  .sm_margin = 8,
                  .gemm_flops_per_ns = 600000,
                  .memory_bytes_per_us = 2800000,
                  .cost_linear = 24576},
    };
}

static uint64_t sort_ns(const struct step_plan *plan, uint32_t *lengths) {
    for (uint32_t i = 0; i < plan->document_count; i++) {
        uint32_t mixed = (uint32_t)((uint64_t)i * 2654435761u % plan->document_count);
        lengths[i] = plan->documents[mixed].length;
    }
    uint64_t start = now_ns();
    qsort(lengths, plan->document_count, sizeof *lengths, by_length);
    return now_ns() - start;
}

static void measure(enum policy policy, uint32_t micro_batches, uint32_t steps) {
    static uint64_t plan_ns[STEPS_MAX];
    static uint64_t qsort_ns[STEPS_MAX];
    const struct distribution *list = distribution_find("wlb128k");
    uint32_t documents = micro_batches * (steps + WARM_STEPS + 12) * 40;
    uint32_t *lengths = calloc(documents, sizeof *lengths);
    uint32_t *scratch = calloc(documents, sizeof *scratch);
    struct plan_options options = bench_options(policy, micro_batches);
    struct error error;
    if (lengths == NULL || scratch == NULL || plan_options_resolve(&options, &error) != 0) {
        fprintf(stderr, "plan_bench: no memory, or options\n");
        exit(1);
    }
    for (uint32_t i = 0; i < documents; i++) {
        lengths[i] = distribution_length(list, 7, i);
    }
    struct fake_dataset dataset = {lengths, documents, 1};
    struct fake_source source;
    fake_source_init(&source, &dataset, 1, 0);
    struct planner *planner = planner_create(&options, &source.source, NULL);
    struct plan_state *state = planner_state_create(planner);
    struct plan_state *next = planner_state_create(planner);
    uint64_t parts = 0;
    for (uint32_t step = 0; step < steps + WARM_STEPS; step++) {
        struct step_plan *plan;
        uint64_t start = now_ns();
        (void)plan_step(planner, state, next, &plan, NULL);
        uint64_t spent = now_ns() - start;
        if (step >= WARM_STEPS) {
            plan_ns[step - WARM_STEPS] = spent;
            qsort_ns[step - WARM_STEPS] = sort_ns(plan, scratch);
            parts += plan->document_count;
        }
        step_plan_destroy(plan);
        struct plan_state *swapped = state;
        state = next;
        next = swapped;
    }
    uint64_t plan_p50 = median(plan_ns, steps);
    uint64_t qsort_p50 = median(qsort_ns, steps);
    printf("%-9s N %3u: %6" PRIu64 " documents a step, plan %9.3f ms, qsort %7.3f ms, %5.2fx\n",
           policy_name(policy), micro_batches, parts / steps, (double)plan_p50 / 1e6,
           (double)qsort_p50 / 1e6, (double)plan_p50 / (double)qsort_p50);
    plan_state_destroy(state);
    plan_state_destroy(next);
    planner_destroy(planner);
    free(scratch);
    free(lengths);
}

/* plan_bench [STEPS]: fewer steps for a quick look. */
int main(int argc, char **argv) {
    static const uint32_t sizes[] = {4, 16, 64, 512};
    uint32_t most = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 100;
    most = most < 1 ? 1 : most > STEPS_MAX ? STEPS_MAX : most;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint32_t steps = sizes[i] < 512 || most < 20 ? most : 20;
        measure(POLICY_WLB_BANDS, sizes[i], steps);
        measure(POLICY_WLB_LEVEL, sizes[i], steps);
    }
    return 0;
}
