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

static struct layout_candidate literal_price(const struct world *world, enum layout layout,
                                             uint64_t *rank_ps) {
    struct layout_candidate candidate = {.layout = layout};
    for (uint32_t rank = 0; rank < world->cp; rank++) {
        struct fragment fragments[2 * DOCUMENTS_MAX + 2];
        uint32_t count = layout_fragments(layout, &world->sequence, world->cp, rank, fragments,
                                          2 * DOCUMENTS_MAX + 2);
        uint64_t cost_ps = tile_cost_ps(&world->model, fragments, count);
        candidate.fragments += count;
        candidate.slowest_ps = cost_ps > candidate.slowest_ps ? cost_ps : candidate.slowest_ps;
        rank_ps[rank] = cost_ps;
    }
    return candidate;
}

static bool literal_wins(struct layout_candidate a, struct layout_candidate b) {
    if (a.slowest_ps < b.slowest_ps) {
        return true;
    }
    if (a.slowest_ps == b.slowest_ps && a.fragments < b.fragments) {
        return true;
    }
    return a.slowest_ps == b.slowest_ps && a.fragments == b.fragments && a.layout < b.layout;
}

static enum layout literal_choice(const struct world *world) {
    uint64_t rank_ps[CP_MAX];
    struct layout_candidate sequence = literal_price(world, LAYOUT_PER_SEQUENCE, rank_ps);
    struct layout_candidate document = literal_price(world, LAYOUT_PER_DOCUMENT, rank_ps);
    bool sequence_stands = (world->options.allowed & 1u << LAYOUT_PER_SEQUENCE) != 0 &&
                           sequence.fragments <= world->options.fragments_max;
    bool document_stands = (world->options.allowed & 1u << LAYOUT_PER_DOCUMENT) != 0 &&
                           document.fragments <= world->options.fragments_max;
    if (world->cp == 1 || !document_stands) {
        return LAYOUT_PER_SEQUENCE;
    }
    return sequence_stands && literal_wins(sequence, document) ? LAYOUT_PER_SEQUENCE
                                                               : LAYOUT_PER_DOCUMENT;
}

static void world_draw(struct world *world, uint64_t *random) {
    world->options.allowed = splitmix_between(random, 1, 3) << LAYOUT_PER_SEQUENCE;
    world->options.fragments_max = splitmix_between(random, 0, 3) == 0
                                       ? splitmix_between(random, 0, 300)
                                       : UINT32_MAX;
    world->cp = splitmix_between(random, 1, CP_MAX);
    world->sequence = (struct packed_sequence){.lengths = world->lengths};
    world->sequence.documents = splitmix_between(random, 0, DOCUMENTS_MAX);
    uint32_t longest = 1u << splitmix_between(random, 0, 17);
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
}

/* Scratch is exactly as large as the contract asks for: a sanitizer sees one fragment more. */
static void selector_picks_the_smallest_slowest_rank(void **state) {
    (void)state;
    uint32_t chosen[LAYOUT_ULYSSES + 1] = {0};
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        uint64_t random = seed;
        struct world world;
        world_draw(&world, &random);
        struct fragment *scratch = malloc(layout_rank_fragments_max(world.sequence.documents) *
                                          sizeof scratch[0]);
        assert_non_null(scratch);
        struct layout_choice choice;
        uint64_t rank_ps[2 * CP_MAX];
        uint64_t literal_ps[CP_MAX];
        layout_select(&world.options, &world.sequence, world.cp, &world.model, scratch, rank_ps,
                      &choice);
        free(scratch);
        if (choice.layout != literal_choice(&world)) {
            fail_msg("seed %" PRIu64 ": chose %s", seed, layout_name(choice.layout));
        }
        for (uint32_t i = 0; i < choice.candidate_count; i++) {
            struct layout_candidate priced = literal_price(&world, choice.candidates[i].layout,
                                                           literal_ps);
            assert_int_equal(choice.candidates[i].fragments, priced.fragments);
            assert_int_equal(choice.candidates[i].slowest_ps, priced.slowest_ps);
        }
        (void)literal_price(&world, choice.layout, literal_ps);
        assert_memory_equal(rank_ps, literal_ps, world.cp * sizeof rank_ps[0]);
        assert_int_equal(layout_chosen(&choice)->layout, choice.layout);
        chosen[choice.layout]++;
    }
    assert_true(chosen[LAYOUT_PER_SEQUENCE] > 100 && chosen[LAYOUT_PER_DOCUMENT] > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(selector_picks_the_smallest_slowest_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
