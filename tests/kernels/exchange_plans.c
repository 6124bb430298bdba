/* exchange_plans: most documents are short, a few take most of a window. */
#include "exchange_plans.h"

#include "tests/property/planner_world.h"

#include <assert.h>

static const uint32_t lengths[] = {5,  61, 1,  9, 17, 3,  120, 2, 2,  33, 8,  4,  1,  1,  70, 6,
                                   12, 40, 24, 7, 3,  96, 11,  5, 64, 1,  19, 28, 10, 45, 2,  80};

bool exchange_plans_of(const struct plan_options *wanted, uint32_t steps,
                       exchange_plan_visit *visit, void *context) {
    struct plan_options options = *wanted;
    struct fake_dataset dataset = {lengths, sizeof lengths / sizeof lengths[0], 1};
    struct fake_source source;
    if (plan_options_resolve(&options, NULL) != 0) {
        return false;
    }
    fake_source_init(&source, &dataset, 1, 0);
    struct planner *planner = planner_create(&options, &source.source, NULL);
    assert(planner != NULL);
    struct plan_state *now = planner_state_create(planner);
    struct plan_state *next = planner_state_create(planner);
    for (uint32_t step = 0; step < steps; step++) {
        struct step_plan *plan = NULL;
        int result = plan_step(planner, now, next, &plan, NULL);
        assert(result == 1);
        visit(context, plan);
        step_plan_destroy(plan);
        struct plan_state *swapped = now;
        now = next;
        next = swapped;
    }
    plan_state_destroy(now);
    plan_state_destroy(next);
    planner_destroy(planner);
    return true;
}

static struct plan_options options_of(uint32_t replicas, uint32_t cp) {
    struct plan_options options = world_options();
    options.window = 120 / (2 * cp) * 2 * cp;
    options.tokens_max = options.window + 4 * cp;
    options.dp = replicas;
    options.micro_batches = replicas;
    options.cp = cp;
    options.model.q_heads = EXCHANGE_Q_HEADS;
    options.model.kv_heads = EXCHANGE_KV_HEADS;
    return options;
}

struct plan_options exchange_layout_options(enum layout layout, uint32_t cp) {
    struct plan_options options = options_of(1, cp);
    options.layouts.allowed = 1u << layout;
    options.keys_needed_only = true;
    return options;
}

struct plan_options exchange_pool_options(uint32_t replicas, uint32_t cp, uint32_t head_shards,
                                          bool chain) {
    struct plan_options options = options_of(replicas, cp);
    options.policy = POLICY_POOL;
    options.pools = (struct pools_options){.size = replicas,
                                           .look_ahead = 2,
                                           .head_shards = head_shards,
                                           .block_tokens = 16,
                                           .swaps = true,
                                           .chain = chain};
    return options;
}
