/* The chosen layout against a plain reading of the rule, on random sequences. */
#include "sharding/select.h"

#include "splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DOCUMENTS_MAX 64u
#define CP_MAX        9u

struct world {
    struct layout_options options;
    uint32_t lengths[DOCUMENTS_MAX];
    struct packed_sequence sequence;
    uint32_t cp;
    struct tile_model model;
};

static struct layout_candidate literal_price(const struct world *world,
                                             struct layout_dealer *dealer, enum layout layout,
                                             uint32_t level, uint64_t *rank_ps) {
    struct layout_candidate candidate = {.layout = layout, .level = level};
    layout_begin(dealer, &world->sequence, &world->model);
    if (!layout_deal(dealer, layout, level)) {
        candidate.fragments = UINT32_MAX;
        return candidate;
    }
    for (uint32_t rank = 0; rank < world->cp; rank++) {
        uint32_t count;
        const struct fragment *fragments = layout_dealt(dealer, rank, &count);
        uint64_t cost_ps = tile_cost_ps(&world->model, fragments, count) +
                           wait_keys_ps(&world->options.link, &world->model, fragments, count);
        candidate.fragments += count;
        candidate.slowest_ps = cost_ps > candidate.slowest_ps ? cost_ps : candidate.slowest_ps;
        rank_ps[rank] = cost_ps;
    }
    return candidate;
}

/* Strictly: an earlier layout or level keeps what is equal. */
static bool literal_wins(struct layout_candidate later, struct layout_candidate earlier) {
    return later.slowest_ps < earlier.slowest_ps ||
           (later.slowest_ps == earlier.slowest_ps && later.fragments < earlier.fragments);
}

/* Every layout at every level, priced rank by rank; the winner. */
static struct layout_candidate literal_choice(const struct world *world,
                                              struct layout_dealer *dealer, uint64_t *rank_ps) {
    struct layout_candidate chosen = {.layout = LAYOUT_NONE};
    uint64_t ps[CP_MAX];
    for (enum layout layout = LAYOUT_PER_SEQUENCE; layout <= LAYOUT_HYBRID; layout++) {
        uint32_t levels = spread_levels(layout) > 0 ? spread_levels(layout) : 1;
        bool allowed = (world->options.allowed & 1u << layout) != 0 && world->cp > 1;
        for (uint32_t level = 0; allowed && level < levels; level++) {
            struct layout_candidate candidate = literal_price(world, dealer, layout, level, ps);
            if (candidate.fragments <= world->options.fragments_max &&
                (chosen.layout == LAYOUT_NONE || literal_wins(candidate, chosen))) {
                chosen = candidate;
                memcpy(rank_ps, ps, sizeof ps);
            }
        }
    }
    return chosen.layout != LAYOUT_NONE
               ? chosen
               : literal_price(world, dealer, LAYOUT_PER_SEQUENCE, 0, rank_ps);
}

/* As it may come out of a profile: up, down or both, from a t0 that may be nothing. */
static void bend(struct tile_direction *direction, uint64_t *random) {
    uint64_t blocks = 0;
    direction->tile_ps = splitmix_between(random, 0, 1) * direction->tile_ps;
    direction->bend_count = splitmix_between(random, 1, 5);
    for (uint32_t i = 0; i < direction->bend_count; i++) {
        blocks += splitmix_between(random, 1, 64);
        direction->bends[i] = (struct tile_bend){blocks, splitmix_between(random, 0, 29999999)};
    }
}

static void world_draw(struct world *world, uint64_t *random) {
    world->options.allowed = splitmix_between(random, 1, 15) << LAYOUT_PER_SEQUENCE;
    world->options.fragments_max = splitmix_between(random, 0, 3) == 0
                                       ? splitmix_between(random, 0, 300)
                                       : UINT32_MAX;
    world->options.link = (struct wait_link){
        .bytes_per_us = splitmix_between(random, 0, 1) * splitmix_between(random, 1, 999999),
        .alpha_ps = splitmix_between(random, 0, 30000000),
        .head_dim = 128,
        .needed_only = splitmix_between(random, 0, 3) > 0,
    };
    world->cp = splitmix_between(random, 1, CP_MAX);
    world->sequence = (struct packed_sequence){.lengths = world->lengths};
    world->sequence.documents = splitmix_between(random, 0, DOCUMENTS_MAX);
    uint32_t longest = 1u << splitmix_between(random, 0,
                                              splitmix_between(random, 0, 9) > 0 ? 17 : 24);
    for (uint32_t i = 0; i < world->sequence.documents; i++) {
        uint32_t limit = splitmix_between(random, 1, longest);
        world->lengths[i] = splitmix_between(random, 1, limit);
        world->sequence.tokens += world->lengths[i];
    }
    uint64_t unit = 2 * (uint64_t)world->cp;
    world->sequence.pad_tokens = unit - world->sequence.tokens % unit;
    uint32_t kv_heads = splitmix_between(random, 1, 8);
    assert_int_equal(tile_model_analytic(128, kv_heads * splitmix_between(random, 1, 16), kv_heads,
                                         splitmix_between(random, 0, 16), &world->model),
                     0);
    if (splitmix_between(random, 0, 2) == 0) {
        bend(splitmix_between(random, 0, 1) == 0 ? &world->model.forward : &world->model.backward,
             random);
    }
}

static void expect_choice(const struct world *world, struct layout_dealer *dealer, uint64_t seed,
                          const struct layout_choice *choice, const uint64_t *rank_ps) {
    uint64_t literal_ps[CP_MAX];
    struct layout_candidate literal = literal_choice(world, dealer, literal_ps);
    const struct layout_candidate *chosen = layout_chosen(choice);
    if (choice->layout != literal.layout || chosen->level != literal.level) {
        fail_msg("seed %" PRIu64 ": chose %s, level %u", seed, layout_name(choice->layout),
                 chosen->level);
    }
    assert_memory_equal(rank_ps, literal_ps, world->cp * sizeof rank_ps[0]);
    if (128 % (128 / (world->model.q_heads / world->model.kv_heads)) == 0) {
        assert_true(chosen->slowest_ps >=
                    layout_bound_ps(&world->sequence, &world->model, world->cp));
    }
    for (uint32_t i = 0; i < choice->candidate_count; i++) {
        const struct layout_candidate *candidate = &choice->candidates[i];
        struct layout_candidate priced = literal_price(world, dealer, candidate->layout,
                                                       candidate->level, literal_ps);
        assert_int_equal(candidate->fragments, priced.fragments);
        assert_int_equal(candidate->slowest_ps, priced.slowest_ps);
        assert_true(i == 0 || candidate->layout > candidate[-1].layout);
    }
}

/* Memory is exactly as large as the contract asks for: a sanitizer sees one fragment more. */
static void selector_picks_the_smallest_slowest_rank(void **state) {
    (void)state;
    uint32_t chosen[LAYOUT_ULYSSES + 1] = {0};
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        uint64_t random = seed;
        struct world world;
        struct layout_dealer dealer;
        struct layout_choice choice;
        uint64_t rank_ps[2 * CP_MAX];
        world_draw(&world, &random);
        void *memory = malloc(
            layout_dealer_bytes(&world.options, world.sequence.documents, world.cp));
        assert_non_null(memory);
        layout_dealer_init(&dealer, memory, &world.options, world.sequence.documents, world.cp);
        layout_select(&world.options, &world.sequence, &world.model, &dealer, rank_ps, &choice);
        expect_choice(&world, &dealer, seed, &choice, rank_ps);
        free(memory);
        chosen[choice.layout]++;
    }
    for (enum layout layout = LAYOUT_PER_SEQUENCE; layout <= LAYOUT_HYBRID; layout++) {
        assert_true(chosen[layout] > 100);
    }
}

/* Given up is only what takes longer than the limit, and of that a good part is. */
static void dealing_gives_up_only_beyond_the_limit(void **state) {
    (void)state;
    uint32_t beyond = 0;
    uint32_t given_up = 0;
    for (uint64_t seed = 1; seed <= 1000; seed++) {
        uint64_t random = seed;
        struct world world;
        struct layout_dealer dealer;
        uint64_t rank_ps[CP_MAX];
        world_draw(&world, &random);
        world.options.allowed = LAYOUTS_ALLOWED;
        world.options.fragments_max = UINT32_MAX;
        void *memory = malloc(
            layout_dealer_bytes(&world.options, world.sequence.documents, world.cp));
        assert_non_null(memory);
        layout_dealer_init(&dealer, memory, &world.options, world.sequence.documents, world.cp);
        for (enum layout layout = LAYOUT_VARIABLE_DEGREE; layout <= LAYOUT_HYBRID; layout++) {
            for (uint32_t level = 0; level < spread_levels(layout); level++) {
                struct spread_rule rule = {layout, level};
                uint64_t ps = literal_price(&world, &dealer, layout, level, rank_ps).slowest_ps;
                uint64_t below_ps = ps - ps / splitmix_between(&random, 2, 100);
                assert_true(spread_deal(&dealer.spread, rule, ps));
                beyond += below_ps < ps;
                given_up += !spread_deal(&dealer.spread, rule, below_ps);
            }
        }
        free(memory);
    }
    assert_true(given_up > beyond / 4);
}

/* All documents whole on a share of the heads; where heads do not divide it is no candidate. */
static void selector_prices_ulysses_by_its_heads(void **state) {
    (void)state;
    const uint32_t lengths[] = {100000, 31072};
    struct packed_sequence sequence = {lengths, 2, 131072, 0};
    struct fragment whole[] = {{0, 0, 100000}, {1, 0, 31072}};
    struct layout_options options = {LAYOUTS_ALLOWED, UINT32_MAX, {0}};
    const uint32_t kv_heads[] = {8, 4, 2, 1, 3, 6};
    for (uint32_t i = 0; i < 6; i++) {
        struct tile_model model;
        struct layout_dealer dealer;
        struct layout_choice choice;
        uint64_t rank_ps[8];
        void *memory = malloc(layout_dealer_bytes(&options, 2, 4));
        assert_non_null(memory);
        layout_dealer_init(&dealer, memory, &options, 2, 4);
        assert_int_equal(tile_model_analytic(128, 24, kv_heads[i], 0, &model), 0);
        layout_select(&options, &sequence, &model, &dealer, rank_ps, &choice);
        free(memory);
        assert_int_equal(choice.candidate_count, i < 4 ? 5 : 4);
        if (i < 4) {
            model.q_heads = 6;
            model.kv_heads = kv_heads[i] / 4 > 0 ? kv_heads[i] / 4 : 1;
            assert_int_equal(choice.candidates[4].slowest_ps, tile_cost_ps(&model, whole, 2));
            assert_int_equal(choice.candidates[4].fragments, 5);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(selector_picks_the_smallest_slowest_rank),
        cmocka_unit_test(dealing_gives_up_only_beyond_the_limit),
        cmocka_unit_test(selector_prices_ulysses_by_its_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
