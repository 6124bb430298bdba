/* plan_bench: time of a whole plan_step, both layouts at CP 8, against sorting that step's lengths
 * with qsort right after it.
 *
 * Documents of the 128K list, 33 a micro-batch. Then how it grows: with the micro-batches, and with
 * the documents of 4 micro-batches, shorter ones each time; time over D log D is set beside that of
 * the smallest, and qsort's, which is D log D itself, shows how much of it is the memory's. */
#include "planner/distribution.h"
#include "planner/planner.h"
#include "tests/bench/figure.h"
#include "tests/property/fake_source.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW        131072u
#define STEPS_MAX     200u
#define RATIO_LIMIT   12.0
#define GROWTH_LIMIT  2.5 /* caches and memory are in it; D^1.25 would be at 2.8 */
#define GROWTH_STEPS  7u
#define DRAWN_A_SHARE 40u /* documents a micro-batch, with some to spare */
#define STEPS_AHEAD   12u /* that level looks at */

struct world {
    enum policy policy;
    uint32_t micro_batches;
    uint32_t shrink; /* documents are so many times shorter */
    uint32_t steps;
    uint32_t warm_steps;
};

/* One step each, us. */
struct times {
    double plan[STEPS_MAX];
    double qsort[STEPS_MAX];
    double documents; /* of a step, mean */
};

struct bench {
    struct world world;
    uint32_t *lengths;
    uint32_t *unsorted;
    struct fake_dataset dataset;
    struct fake_source source;
    struct planner *planner;
    struct plan_state *state;
    struct plan_state *next;
};

static int by_length(const void *a, const void *b) {
    uint32_t x;
    uint32_t y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
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

static void bench_open(struct bench *bench, const struct world *world) {
    const struct distribution *list = distribution_find("wlb128k");
    struct plan_options options = bench_options(world->policy, world->micro_batches);
    uint32_t steps = world->steps + world->warm_steps + STEPS_AHEAD;
    uint32_t documents = world->micro_batches * steps * DRAWN_A_SHARE * world->shrink;
    struct error error;
    bench->world = *world;
    bench->lengths = calloc(documents, sizeof *bench->lengths);
    bench->unsorted = calloc(documents, sizeof *bench->unsorted);
    if (bench->lengths == NULL || bench->unsorted == NULL ||
        plan_options_resolve(&options, &error) != 0) {
        fprintf(stderr, "plan_bench: no memory, or options\n");
        exit(1);
    }
    for (uint32_t i = 0; i < documents; i++) {
        bench->lengths[i] = distribution_length(list, 7, i) / world->shrink + 1;
    }
    bench->dataset = (struct fake_dataset){bench->lengths, documents, 1};
    fake_source_init(&bench->source, &bench->dataset, 1, 0);
    bench->planner = planner_create(&options, &bench->source.source, NULL);
    bench->state = planner_state_create(bench->planner);
    bench->next = planner_state_create(bench->planner);
}

static void bench_close(struct bench *bench) {
    plan_state_destroy(bench->state);
    plan_state_destroy(bench->next);
    planner_destroy(bench->planner);
    free(bench->unsorted);
    free(bench->lengths);
}

static struct step_plan *time_plan(struct bench *bench, double *us) {
    struct step_plan *plan = NULL;
    struct plan_state *made = bench->next;
    double start = figure_cpu_us();
    int code = plan_step(bench->planner, bench->state, made, &plan, NULL);
    *us = figure_cpu_us() - start;
    if (code != 1) {
        fprintf(stderr, "plan_bench: no step\n");
        exit(1);
    }
    bench->next = bench->state;
    bench->state = made;
    return plan;
}

static double time_qsort(struct bench *bench, const struct step_plan *plan) {
    for (uint32_t i = 0; i < plan->document_count; i++) {
        uint32_t mixed = (uint32_t)((uint64_t)i * 2654435761u % plan->document_count);
        bench->unsorted[i] = plan->documents[mixed].length;
    }
    double start = figure_cpu_us();
    qsort(bench->unsorted, plan->document_count, sizeof *bench->unsorted, by_length);
    return figure_cpu_us() - start;
}

static void bench_run(const struct world *world, struct times *times) {
    struct bench bench = {0};
    uint64_t documents = 0;
    bench_open(&bench, world);
    for (uint32_t step = 0; step < world->warm_steps + world->steps; step++) {
        double us;
        struct step_plan *plan = time_plan(&bench, &us);
        if (step >= world->warm_steps) {
            times->plan[step - world->warm_steps] = us;
            times->qsort[step - world->warm_steps] = time_qsort(&bench, plan);
            documents += plan->document_count;
        }
        step_plan_destroy(plan);
    }
    times->documents = (double)documents / world->steps;
    bench_close(&bench);
}

static void measure(struct figures *figures, enum policy policy, uint32_t micro_batches) {
    struct world world = {policy, micro_batches, 1, micro_batches < 512 ? 100 : 20, 8};
    struct times times;
    char subject[64];
    world.steps = figures->smoke ? 2 : world.steps;
    bench_run(&world, &times);
    (void)snprintf(subject, sizeof subject, "%s, N %" PRIu32, policy_name(policy), micro_batches);
    struct figure figure = {
        .subject = subject,
        .name = "plan_step",
        .unit = "us",
        .peer = "qsort",
        .rule = FIGURE_AT_MOST,
        .limit = RATIO_LIMIT,
    };
    figures_add_turns(figures, &figure, times.plan, times.qsort, world.steps);
}

/* Time over D log D. */
static void measure_growth(struct figures *figures, const struct world *world, double first_ns[2]) {
    static const char *const names[] = {"plan / D log D", "qsort / D log D"};
    struct times times;
    char subject[64];
    bench_run(world, &times);
    double *ways[] = {times.plan, times.qsort};
    (void)snprintf(subject, sizeof subject, "%s, N %" PRIu32 ", D %.0f", policy_name(world->policy),
                   world->micro_batches, times.documents);
    for (int i = 0; i < 2; i++) {
        double ns = figure_least(ways[i], world->steps) * 1e3 / times.documents /
                    log2(times.documents);
        first_ns[i] = first_ns[i] > 0 ? first_ns[i] : ns;
        struct figure figure = {
            .subject = subject,
            .name = names[i],
            .unit = "ns",
            .value = ns,
            .peer = "smallest",
            .peer_value = first_ns[i],
            .ratio = ns / first_ns[i],
            .rule = i == 0 ? FIGURE_AT_MOST : FIGURE_REPORTED,
            .limit = GROWTH_LIMIT,
        };
        figures_add(figures, &figure);
    }
}

static void grow(struct figures *figures, enum policy policy) {
    double first_ns[2] = {0};
    uint32_t most = figures->smoke ? 256 : 4096;
    for (uint32_t micro_batches = 64; micro_batches <= most; micro_batches *= 4) {
        struct world world = {policy, micro_batches, 1, GROWTH_STEPS, 1};
        measure_growth(figures, &world, first_ns);
    }
    memset(first_ns, 0, sizeof first_ns);
    for (uint32_t shrink = 1; shrink <= most / 64; shrink *= 4) {
        struct world world = {policy, 4, shrink, 10 * GROWTH_STEPS / shrink + GROWTH_STEPS, 8};
        measure_growth(figures, &world, first_ns);
    }
}

int main(int argc, char **argv) {
    static const uint32_t sizes[] = {4, 16, 64, 512};
    static const enum policy policies[] = {POLICY_WLB_BANDS, POLICY_WLB_LEVEL};
    struct figures figures;
    figures_begin(&figures, "plan", &argc, argv);
    if (argc > 1) {
        fprintf(stderr, "usage: plan_bench [--json] [--smoke]\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (size_t k = 0; k < 2; k++) {
            measure(&figures, policies[k], sizes[i]);
        }
    }
    for (size_t k = 0; k < 2; k++) {
        grow(&figures, policies[k]);
    }
    return figures_end(&figures);
}
