/* planner_world: see planner_world.h. */
#include "planner_world.h"

#include "splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

void world_fail(const struct world *world, const char *what, const char *file, int line) {
    print_error("world of seed %" PRIu64 ": %s\n", world->seed, what);
    _fail(file, line);
    abort();
}

struct plan_options world_options(void) {
    return (struct plan_options){
        .policy = POLICY_WLB_NONE,
        .window = 64,
        .micro_batches = 1,
        .dp = 1,
        .pp = 1,
        .cp = 1,
        .tp = 1,
        .tokens_max = 80,
        .documents_max = WORLD_NO_LIMIT,
        .waiting_max = WORLD_NO_LIMIT,
        .backlog_max = 100,
        .bands = {.bands = BANDS_AUTO, .age_max = 64},
        .level = LEVEL_AUTO_OPTIONS,
        .refine_gap_ppm = REFINE_NOT,
        .layouts = {.allowed = 1u << LAYOUT_PER_SEQUENCE | 1u << LAYOUT_PER_DOCUMENT,
                    .fragments_max = 65536},
        .model = {.layers = 4,
                  .hidden = 256,
                  .ffn = 512,
                  .q_heads = 12,
                  .kv_heads = 12,
                  .head_dim = 64,
                  .sm_margin = 8,
                  .gemm_flops_per_ns = 600000,
                  .memory_bytes_per_us = 2800000,
                  .cost_linear = 8},
    };
}

static uint32_t world_length(uint64_t *dice, uint32_t style, const struct plan_options *options) {
    uint32_t limit = plan_part_limit(options);
    switch (style) {
    case 0: /* every kind */
        return splitmix_between(dice, 0, 2 * limit + 3);
    case 1: /* all equal */
        return limit / 2 + 1;
    case 2: /* exactly the limit */
        return limit;
    case 3: /* one token */
        return 1;
    default: /* many short, few long, some empty */
        return splitmix_between(dice, 0, 9) == 0 ? splitmix_between(dice, limit / 2, 4 * limit)
                                                 : splitmix_between(dice, 0, limit / 8 + 1);
    }
}

static void world_make_stream(struct world *world, uint64_t *dice) {
    uint32_t datasets = splitmix_between(dice, 1, WORLD_DATASETS_MAX);
    uint32_t style = splitmix_between(dice, 0, 7);
    for (uint32_t i = 0; i < datasets; i++) {
        uint32_t documents = splitmix_between(dice, 0, WORLD_DOCUMENTS_MAX);
        for (uint32_t j = 0; j < documents; j++) {
            world->lengths[i][j] = world_length(dice, style, &world->options);
        }
        world->datasets[i] = (struct fake_dataset){
            .lengths = world->lengths[i],
            .documents = documents,
            .weight = splitmix_between(dice, 1, 4),
        };
    }
    fake_source_init(&world->source, world->datasets, datasets, splitmix_between(dice, 1, 3));
    if (splitmix_between(dice, 0, 3) == 0) {
        world->source.overlong = splitmix_between(dice, FAKE_SPLIT, FAKE_DROP);
        world->source.overlong_limit = plan_part_limit(&world->options);
    }
}

static void world_make_lengths(struct plan_options *options, uint64_t *dice) {
    uint32_t unit = (uint32_t)plan_row_unit(options);
    options->window = splitmix_between(dice, unit, 6 * unit + 40);
    if (policy_cuts(options->policy)) {
        options->window -= options->window % unit;
        options->tokens_max = options->window + splitmix_between(dice, 0, unit);
    } else {
        options->tokens_max = splitmix_between(dice, unit, 2 * options->window);
        uint64_t held = options->micro_batches * plan_bin_tokens(options);
        if (splitmix_between(dice, 0, 1) == 0) {
            options->step_tokens = splitmix_between(dice, 0, (uint32_t)(held * 98 / 100));
        }
    }
}

static void world_make_queues(struct plan_options *options, uint64_t *dice) {
    struct bands_options *bands = &options->bands;
    bands->bands = splitmix_between(dice, 0, 4);
    for (uint32_t i = 0; i < bands->bands; i++) {
        uint32_t above = i > 0 ? bands->length_min[i - 1] : 0;
        bands->length_min[i] = above + splitmix_between(dice, 1, options->window / 2 + 1);
    }
    bands->bands = bands->bands == 4 ? BANDS_AUTO : bands->bands;
    bands->age_max = splitmix_between(dice, 1, 8);
    bands->release = splitmix_between(dice, BANDS_RELEASE_ONCE, BANDS_RELEASE_ALL);
    if (splitmix_between(dice, 0, 1) == 0) {
        uint32_t bins = 2 * plan_batches(options) * options->micro_batches;
        options->documents_max = options->micro_batches + splitmix_between(dice, 0, 12);
        options->documents_max += bins;
        options->waiting_max = options->documents_max + splitmix_between(dice, 0, 12);
        options->backlog_max = splitmix_between(dice, 0, 3);
    }
}

static void world_make_parameters(struct plan_options *options, uint64_t *dice) {
    struct level_options *level = &options->level;
    options->level_preset = splitmix_between(dice, LEVEL_BALANCED, LEVEL_FINE);
    if (splitmix_between(dice, 0, 1) == 0) {
        return;
    }
    level->look_ahead = splitmix_between(dice, 0, 4);
    level->horizon = level->look_ahead + splitmix_between(dice, 3, 6);
    level->max_backlog = splitmix_between(dice, 0, 3 * LEVEL_PPM);
    level->horizon += level->horizon < 5 ? 5 : 0;
    level->max_age = splitmix_between(dice, 0, 8);
    level->candidate_length = splitmix_between(dice, 1, options->window);
    level->max_evaluations = splitmix_between(dice, 1, 8);
    level->fit_window = splitmix_between(dice, 1, 4);
}

/* Pools of any size that divides dp, of no more head shards than a tensor-parallel rank has. */
static void world_make_pools(struct plan_options *options, uint64_t seed) {
    uint64_t dice = ~seed;
    options->pools = (struct pools_options){
        .size = 1 + (options->dp - 1) * splitmix_between(&dice, 0, 1),
        .look_ahead = splitmix_between(&dice, 0, 3),
        .head_shards = splitmix_between(&dice, 0, 2),
        .block_tokens = splitmix_between(&dice, 0, 20),
        .swaps = splitmix_between(&dice, 0, 1) == 0,
        .snake = splitmix_between(&dice, 0, 1) == 0,
        .chain = splitmix_between(&dice, 0, 1) == 0,
    };
}

/* `policy` in place of the one that the seed says, if it is not POLICY_PLAIN. */
static void world_make_policy(struct world *world, uint64_t seed, enum policy policy, bool pools) {
    uint64_t dice = seed;
    struct plan_options *options = &world->options;
    world->seed = seed;
    *options = world_options();
    options->policy = splitmix_between(&dice, POLICY_PLAIN, POLICY_WLB_BANDS);
    options->policy = policy != POLICY_PLAIN ? policy : options->policy;
    options->dp = splitmix_between(&dice, 1, 3);
    options->cp = splitmix_between(&dice, 1, 4);
    options->tp = splitmix_between(&dice, 1, 3);
    options->pp = splitmix_between(&dice, 1, 4);
    options->micro_batches = options->dp * splitmix_between(&dice, 1, 4);
    options->search = splitmix_between(&dice, PACK_SEARCH_EXACT, PACK_SEARCH_PAPER);
    options->refine_gap_ppm = seed % 2 == 0 ? 100 : REFINE_NOT;
    options->loss_denominator = splitmix_between(&dice, LOSS_CONSTANT, LOSS_LABEL_TOKENS);
    options->layouts.allowed = splitmix_between(&dice, 1, 15) << LAYOUT_PER_SEQUENCE;
    options->keys_needed_only = splitmix_between(&dice, 0, 2) == 0;
    options->model.link_bytes_per_us = splitmix_between(&dice, 0, 1) * 50000;
    options->model.cost_linear = splitmix_between(&dice, 0, 1) == 0 ? 0 : 8;
    if (pools) {
        world_make_pools(options, seed);
    }
    world_make_lengths(options, &dice);
    world_make_queues(options, &dice);
    if (options->policy == POLICY_WLB_LEVEL) {
        world_make_parameters(options, &dice);
    }
    struct error error;
    if (plan_options_resolve(options, &error) != 0) {
        print_error("%s\n", error.text);
        world_fail(world, "the options hold together", __FILE__, __LINE__);
    }
    world_make_stream(world, &dice);
}

void world_make(struct world *world, uint64_t seed) {
    world_make_policy(world, seed, POLICY_PLAIN, false);
}

void world_make_level(struct world *world, uint64_t seed) {
    world_make_policy(world, seed, POLICY_WLB_LEVEL, false);
}

void world_make_fixed(struct world *world, uint64_t seed) {
    world_make_policy(world, seed, (enum policy)(POLICY_FIXED + 1 + seed % 8), false);
}

void world_make_pool(struct world *world, uint64_t seed) {
    static const enum policy policies[] = {POLICY_POOL,      POLICY_WLB_NONE, POLICY_POOL,
                                           POLICY_WLB_LEVEL, POLICY_POOL,     POLICY_WLB_BANDS};
    world_make_policy(world, seed, policies[seed % 6], true);
}
