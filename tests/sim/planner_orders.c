/* planner_orders: why the order of a pipeline is a rule and not searched for. All orders of a step
 * are run through the pipeline engine: the mountain that plans have is hardly above the best of
 * them, a random one is. */
#include "corpus/lengths.h"
#include "planner/pipeline.h"
#include "planner/planner.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define WINDOW            131072u
#define MICRO_BATCHES_MAX 6u
#define CHUNKS_MAX        4u
#define STAGES_MAX        6u
#define WARM_UP           70u

static struct plan_options options_of(enum policy policy, uint32_t micro_batches) {
    struct plan_options options = {
        .policy = policy,
        .window = WINDOW,
        .micro_batches = micro_batches,
        .dp = 1,
        .pp = micro_batches,
        .cp = 1,
        .tp = 1,
        .tokens_max = WINDOW + WINDOW / 4,
        .documents_max = 8192,
        .waiting_max = 32768,
        .backlog_max = 4,
        .bands = {.bands = BANDS_AUTO, .age_max = 64},
        .level = LEVEL_AUTO_OPTIONS,
        .refine_gap_ppm = REFINE_NOT,
        .layouts = {.allowed = 1u << LAYOUT_PER_SEQUENCE, .fragments_max = 65536},
        .model = {.layers = 32,
                  .hidden = 4096,
                  .ffn = 11008,
                  .q_heads = 32,
                  .kv_heads = 32,
                  .head_dim = 128,
                  .gemm_flops_per_ns = 600000,
                  .memory_bytes_per_us = 2800000,
                  .cost_linear = 24576},
    };
    struct error error = {0};
    if (plan_options_resolve(&options, &error) < 0) {
        fail_msg("%s", error.text);
    }
    return options;
}

/* As many stages as micro-batches; backward takes twice as long as forward. */
static uint64_t time_of(const struct pipeline_shape *shape, const uint64_t *works) {
    static uint64_t forward[MICRO_BATCHES_MAX * STAGES_MAX * CHUNKS_MAX];
    static uint64_t backward[MICRO_BATCHES_MAX * STAGES_MAX * CHUNKS_MAX];
    uint32_t virtual_stages = shape->stages * shape->chunks;
    struct pipeline_times times = {.forward = forward, .backward = backward};
    struct pipeline pipeline;
    for (uint32_t i = 0; i < shape->micro_batches * virtual_stages; i++) {
        forward[i] = works[i / virtual_stages] / shape->chunks;
        backward[i] = 2 * forward[i];
    }
    void *memory = malloc(pipeline_bytes(shape));
    pipeline_init(&pipeline, shape, memory);
    assert_int_equal(pipeline_run(&pipeline, &times, NULL), 0);
    free(memory);
    return pipeline.time_ns;
}

/* Of all orders of the works from `fixed` on. */
struct orders {
    uint64_t best;
    uint64_t sum;
    uint64_t count;
};

static void orders_try(const struct pipeline_shape *shape, uint64_t *works, uint32_t fixed,
                       struct orders *orders) {
    if (fixed == shape->micro_batches) {
        uint64_t time = time_of(shape, works);
        orders->best = time < orders->best ? time : orders->best;
        orders->sum += time;
        orders->count++;
        return;
    }
    for (uint32_t i = fixed; i < shape->micro_batches; i++) {
        uint64_t swapped = works[i];
        works[i] = works[fixed];
        works[fixed] = swapped;
        orders_try(shape, works, fixed + 1, orders);
        works[fixed] = works[i];
        works[i] = swapped;
    }
}

/* Over steps and chunks, in ppm of the best order. */
struct loss {
    uint64_t planned_ppm;
    uint64_t random_ppm;
    uint64_t orders;
};

static void loss_add(struct loss *loss, const struct step_plan *plan) {
    for (uint32_t chunks = 1; chunks <= CHUNKS_MAX; chunks *= 2) {
        uint32_t count = plan->micro_batch_count;
        uint64_t works[MICRO_BATCHES_MAX];
        struct pipeline_shape shape = {PIPELINE_INTERLEAVED, count, count, chunks, 0};
        struct orders orders = {.best = UINT64_MAX};
        for (uint32_t m = 0; m < count; m++) {
            works[m] = plan->micro_batches[m].work_ns;
        }
        uint64_t planned = time_of(&shape, works);
        orders_try(&shape, works, 0, &orders);
        loss->planned_ppm += (planned - orders.best) * 1000000 / orders.best;
        loss->random_ppm += (orders.sum / orders.count - orders.best) * 1000000 / orders.best;
        loss->orders++;
    }
}

static struct loss loss_of(enum policy policy, uint32_t micro_batches, uint32_t steps) {
    struct plan_options options = options_of(policy, micro_batches);
    struct corpus_source_options reading = {.order = {.seed = 7}, .part_limit = WINDOW};
    struct lengths_source source;
    struct loss loss = {0};
    assert_int_equal(
        lengths_source_init_drawn(&source, distribution_find("wlb128k"), &reading, NULL), 0);
    struct planner *planner = planner_create(&options, &source.source, NULL);
    struct plan_state *state = planner_state_create(planner);
    struct plan_state *next = planner_state_create(planner);
    for (uint32_t step = 0; step < WARM_UP + steps; step++) {
        struct step_plan *plan;
        assert_int_equal(plan_step(planner, state, next, &plan, NULL), 1);
        if (step >= WARM_UP) {
            loss_add(&loss, plan);
        }
        step_plan_destroy(plan);
        struct plan_state *behind = state;
        state = next;
        next = behind;
    }
    plan_state_destroy(next);
    plan_state_destroy(state);
    planner_destroy(planner);
    loss.planned_ppm /= loss.orders;
    loss.random_ppm /= loss.orders;
    return loss;
}

static void a_search_over_all_orders_would_save_next_to_nothing(void **state) {
    static const struct {
        enum policy policy;
        uint32_t micro_batches;
        uint32_t steps;
        uint64_t ppm_max;
    } jobs[] = {
        {POLICY_WLB_LEVEL, 4, 200, 1000},
        {POLICY_WLB_LEVEL, 6, 20, 1000},
        {POLICY_WLB_BANDS, 4, 200, 4000},
        {POLICY_WLB_BANDS, 6, 20, 4000},
    };
    (void)state;
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
        struct loss loss = loss_of(jobs[i].policy, jobs[i].micro_batches, jobs[i].steps);
        printf("%s, %" PRIu32 " micro-batches: %" PRIu64
               " ppm above the best order, random %" PRIu64 "\n",
               policy_name(jobs[i].policy), jobs[i].micro_batches, loss.planned_ppm,
               loss.random_ppm);
        assert_in_range(loss.planned_ppm, 0, jobs[i].ppm_max);
        assert_true(loss.planned_ppm < loss.random_ppm);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_search_over_all_orders_would_save_next_to_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
