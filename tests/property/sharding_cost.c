/* The closed forms of the tile model against tiles that are really listed, and what any cost must
 * be: monotone, independent of order, never less than the work. */
#include "sharding/cost.h"

#include "splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define FRAGMENTS_MAX 24u
#define TILES_MAX     8192u

/* The tiles of one direction, all KV heads. */
struct listed {
    uint64_t total_ps;
    uint64_t longest_ps;
};

/* Along the curve, from bend to bend. */
static uint64_t literal_tile_ps(const struct tile_direction *direction, uint64_t blocks) {
    uint64_t tile_ps = direction->tile_ps;
    uint64_t slope_ps = direction->block_ps;
    uint64_t done = 0;
    for (uint32_t i = 0; i < direction->bend_count && direction->bends[i].blocks < blocks; i++) {
        tile_ps += (direction->bends[i].blocks - done) * slope_ps;
        done = direction->bends[i].blocks;
        slope_ps = direction->bends[i].block_ps;
    }
    return tile_ps + (blocks - done) * slope_ps;
}

static void listed_add(struct listed *listed, const struct tile_direction *direction,
                       uint64_t blocks, uint32_t kv_heads) {
    uint64_t tile_ps = literal_tile_ps(direction, blocks);
    listed->total_ps += kv_heads * tile_ps;
    listed->longest_ps = tile_ps > listed->longest_ps ? tile_ps : listed->longest_ps;
}

/* Last document row of every query tile of a fragment; returns how many there are. */
static uint32_t query_tiles(const struct tile_model *model, struct fragment fragment,
                            uint64_t *last_rows) {
    uint32_t tile_tokens = 128 / (model->q_heads / model->kv_heads);
    uint32_t tiles = 0;
    for (uint32_t row = 0; row < fragment.length; row++) {
        if (row % tile_tokens == 0) {
            assert_true(tiles < TILES_MAX);
            tiles++;
        }
        last_rows[tiles - 1] = (uint64_t)fragment.start + row;
    }
    return tiles;
}

static uint64_t key_blocks_seen(uint64_t last_row) {
    uint64_t blocks = 0;
    for (uint64_t key = 0; key <= last_row; key += 128) {
        blocks++;
    }
    return blocks;
}

/* Lists the tiles of the leading fragments of one document; returns how many fragments. */
static uint32_t list_slice(const struct tile_model *model, const struct fragment *fragments,
                           uint32_t count, struct listed *forward, struct listed *backward) {
    static uint64_t last_rows[FRAGMENTS_MAX * TILES_MAX];
    uint32_t tiles = 0;
    uint32_t taken = 0;
    uint64_t keys = 0;
    while (taken < count && fragments[taken].document == fragments[0].document) {
        struct fragment fragment = fragments[taken++];
        uint64_t end = (uint64_t)fragment.start + fragment.length;
        tiles += query_tiles(model, fragment, last_rows + tiles);
        keys = end > keys ? end : keys;
    }
    for (uint32_t tile = 0; tile < tiles; tile++) {
        listed_add(forward, &model->forward, key_blocks_seen(last_rows[tile]), model->kv_heads);
    }
    for (uint64_t key = 0; key < keys; key += 128) {
        uint64_t seen_by = 0;
        for (uint32_t tile = 0; tile < tiles; tile++) {
            seen_by += last_rows[tile] >= key;
        }
        listed_add(backward, &model->backward, seen_by, model->kv_heads);
    }
    return taken;
}

static uint64_t listed_ps(const struct tile_model *model, const struct tile_direction *direction,
                          const struct listed *listed) {
    uint64_t sms = model->sms - model->sm_margin;
    uint64_t machine_ps = listed->total_ps / sms + (listed->total_ps % sms != 0);
    return direction->launch_ps +
           (machine_ps > listed->longest_ps ? machine_ps : listed->longest_ps);
}

static uint64_t literal_cost_ps(const struct tile_model *model, const struct fragment *fragments,
                                uint32_t count) {
    struct listed forward = {0};
    struct listed backward = {0};
    for (uint32_t i = 0; i < count;) {
        i += list_slice(model, fragments + i, count - i, &forward, &backward);
    }
    return count == 0 ? 0
                      : listed_ps(model, &model->forward, &forward) +
                            listed_ps(model, &model->backward, &backward);
}

static uint64_t literal_document_ps(const struct tile_model *model, uint32_t length) {
    struct fragment whole = {0, 0, length};
    struct listed forward = {0};
    struct listed backward = {0};
    list_slice(model, &whole, length > 0, &forward, &backward);
    uint64_t total_ps = forward.total_ps + backward.total_ps;
    uint64_t sms = model->sms - model->sm_margin;
    return total_ps / sms + (total_ps % sms != 0);
}

/* Half of them straight. */
static struct tile_direction direction_draw(uint64_t *random) {
    struct tile_direction direction = {
        .launch_ps = splitmix_between(random, 0, 20000000),
        .tile_ps = splitmix_between(random, 0, 20000000),
        .block_ps = splitmix_between(random, 0, 9000000),
    };
    uint32_t bends = splitmix_between(random, 0, 1) * splitmix_between(random, 1, TILE_BENDS_MAX);
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < bends; i++) {
        blocks += splitmix_between(random, 1, 1u << splitmix_between(random, 0, 5));
        direction.bends[i] = (struct tile_bend){blocks, splitmix_between(random, 0, 9000000)};
    }
    direction.bend_count = bends;
    return direction;
}

static struct tile_model model_draw(uint64_t *random) {
    uint32_t group = splitmix_between(random, 1, 128);
    uint32_t kv_heads = splitmix_between(random, 1, 8);
    uint32_t sms = splitmix_between(random, 1, 200);
    return (struct tile_model){
        .forward = direction_draw(random),
        .backward = direction_draw(random),
        .sms = sms,
        .sm_margin = splitmix_between(random, 0, sms - 1),
        .q_heads = group * kv_heads,
        .kv_heads = kv_heads,
    };
}

/* Documents of one to three fragments each, ascending, as layouts emit them. */
static uint32_t fragments_draw(uint64_t *random, struct fragment *fragments) {
    uint32_t count = splitmix_between(random, 0, FRAGMENTS_MAX);
    uint32_t document = 0;
    uint32_t start = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (splitmix_between(random, 0, 2) == 0) {
            document++;
            start = 0;
        }
        uint32_t reach = 1u << splitmix_between(random, 0, 12);
        fragments[i] = (struct fragment){
            .document = document,
            .start = start + splitmix_between(random, 0, reach),
            .length = splitmix_between(random, 1, 1u << splitmix_between(random, 0, 10)),
        };
        start = fragments[i].start + fragments[i].length + 1;
    }
    return count;
}

static void tile_cost_equals_the_listed_tiles_of_all_small_fragments(void **state) {
    (void)state;
    for (uint32_t group = 1; group <= 128; group++) {
        struct tile_model model = {
            .forward = {.launch_ps = 7,
                        .tile_ps = 11,
                        .block_ps = 1000,
                        .bend_count = 2,
                        .bends = {{1, 300}, {3, 5000}}},
            .backward = {.launch_ps = 5,
                         .tile_ps = 100000000,
                         .block_ps = 1000000,
                         .bend_count = 3,
                         .bends = {{1, 10000000}, {2, 0}, {7, 3000000}}},
            .sms = 1,
            .q_heads = group,
            .kv_heads = 1,
        };
        for (uint32_t start = 0; start <= 260; start += 1 + start % 3 * 31) {
            for (uint32_t length = 1; length <= 300; length += 1 + length % 5 * 3) {
                struct fragment fragment = {0, start, length};
                if (tile_cost_ps(&model, &fragment, 1) != literal_cost_ps(&model, &fragment, 1)) {
                    fail_msg("group %u, start %u, length %u", group, start, length);
                }
            }
        }
    }
}

static void tile_cost_equals_the_listed_tiles_of_random_ranks(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 600; seed++) {
        uint64_t random = seed;
        struct tile_model model = model_draw(&random);
        struct fragment fragments[FRAGMENTS_MAX];
        uint32_t count = fragments_draw(&random, fragments);
        uint64_t cost_ps = tile_cost_ps(&model, fragments, count);
        uint64_t literal_ps = literal_cost_ps(&model, fragments, count);
        if (cost_ps != literal_ps) {
            fail_msg("seed %" PRIu64 ": %" PRIu64 ", listed %" PRIu64, seed, cost_ps, literal_ps);
        }
    }
}

static void tile_cost_never_falls_with_another_fragment_or_row(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        uint64_t random = seed;
        struct tile_model model = model_draw(&random);
        struct fragment fragments[FRAGMENTS_MAX];
        uint32_t count = fragments_draw(&random, fragments);
        uint64_t before_ps = 0;
        for (uint32_t i = 1; i <= count; i++) {
            uint64_t after_ps = tile_cost_ps(&model, fragments, i);
            fragments[i - 1].length++;
            uint64_t longer_ps = tile_cost_ps(&model, fragments, i);
            if (after_ps < before_ps || longer_ps < after_ps) {
                fail_msg("seed %" PRIu64 ", fragment %u", seed, i);
            }
            before_ps = longer_ps;
        }
    }
}

/* Documents may come in any order, and the fragments of one in any order among themselves. */
static void tile_cost_does_not_depend_on_the_order(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        uint64_t random = seed;
        struct tile_model model = model_draw(&random);
        struct fragment fragments[FRAGMENTS_MAX];
        struct fragment reversed[FRAGMENTS_MAX];
        uint32_t count = fragments_draw(&random, fragments);
        for (uint32_t i = 0; i < count; i++) {
            reversed[i] = fragments[count - 1 - i];
        }
        if (tile_cost_ps(&model, fragments, count) != tile_cost_ps(&model, reversed, count)) {
            fail_msg("seed %" PRIu64, seed);
        }
    }
}

/* With one SM, free launches and tiles, and a price of 1 a block, the cost is the block count. */
static void tile_blocks_cover_the_exact_pairs(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        uint64_t random = seed;
        struct tile_model model = {.forward = {.block_ps = 1}, .sms = 1, .kv_heads = 1};
        model.q_heads = splitmix_between(&random, 1, 128);
        struct fragment fragments[FRAGMENTS_MAX];
        uint32_t count = fragments_draw(&random, fragments);
        uint64_t pairs = 0;
        for (uint32_t i = 0; i < count; i++) {
            pairs += fragment_pairs(fragments[i]);
        }
        uint64_t block_pairs = 128 / model.q_heads * UINT64_C(128);
        if (tile_cost_ps(&model, fragments, count) * block_pairs < pairs) {
            fail_msg("seed %" PRIu64, seed);
        }
    }
}

static void tile_document_is_monotone_and_equals_the_listed_tiles(void **state) {
    (void)state;
    const uint32_t groups[] = {1, 4, 7, 8, 48, 128};
    for (uint32_t i = 0; i < 6; i++) {
        struct tile_model model;
        assert_int_equal(tile_model_analytic(128, 2 * groups[i], 2, 8, &model), 0);
        uint64_t before_ps = 0;
        for (uint32_t length = 1; length <= 4000; length++) {
            uint64_t document_ps = tile_document_ps(&model, length);
            struct fragment whole = {0, 0, length};
            bool listed = length % 97 == 0;
            if (document_ps < before_ps || document_ps > tile_cost_ps(&model, &whole, 1) ||
                (listed && document_ps != literal_document_ps(&model, length))) {
                fail_msg("group %u, length %u", groups[i], length);
            }
            before_ps = document_ps;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tile_cost_equals_the_listed_tiles_of_all_small_fragments),
        cmocka_unit_test(tile_cost_equals_the_listed_tiles_of_random_ranks),
        cmocka_unit_test(tile_cost_never_falls_with_another_fragment_or_row),
        cmocka_unit_test(tile_cost_does_not_depend_on_the_order),
        cmocka_unit_test(tile_blocks_cover_the_exact_pairs),
        cmocka_unit_test(tile_document_is_monotone_and_equals_the_listed_tiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
