/* Work lists against what fragments mean, row by row, head by head, key by key. */
#include "gpu_attn/plan.h"
#include "gpu_attn/reference.h"

#include "splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FRAGMENTS_MAX 12u
#define ROWS_MAX      900u

struct world {
    struct ballast_attn_shape shape;
    struct ballast_attn_fragment fragments[FRAGMENTS_MAX];
    uint32_t count;
    struct ballast_attn_plan plan;
    struct attn_lists lists;
    void *memory;
    uint64_t seed;
};

/* Slices of one to three fragments; some fragments have a head range, some nothing at all. */
static void world_draw(struct world *world, uint64_t seed) {
    uint64_t random = seed;
    uint32_t group = splitmix_between(&random, 1, seed % 3 == 0 ? 128 : 9);
    uint32_t kv_heads = splitmix_between(&random, 1, 3);
    *world = (struct world){.seed = seed};
    world->shape = (struct ballast_attn_shape){
        .head_dim = 64, .q_heads = group * kv_heads, .kv_heads = kv_heads};
    world->count = splitmix_between(&random, 0, FRAGMENTS_MAX);
    int32_t q_row = 0;
    int32_t kv_row = 0;
    int32_t kv_end = 0;
    for (uint32_t i = 0; i < world->count; i++) {
        if (splitmix_between(&random, 0, 2) == 0) {
            kv_row = kv_end + (int32_t)splitmix_between(&random, 0, 5);
        }
        uint32_t head = splitmix_between(&random, 0, world->shape.q_heads);
        bool whole = splitmix_between(&random, 0, 2) > 0;
        q_row += (int32_t)splitmix_between(&random, 0, 3);
        world->fragments[i] = (struct ballast_attn_fragment){
            .q_row = q_row,
            .q_length = (int32_t)splitmix_between(&random, 0, i % 4 == 0 ? 2 : 60),
            .kv_row = kv_row,
            .kv_length = (int32_t)splitmix_between(&random, 0, 300),
            .q_position = (int32_t)splitmix_between(&random, 0, 300) - 30,
            .head_begin = (uint16_t)(whole ? 0 : head),
            .head_count = (uint16_t)(whole ? world->shape.q_heads : world->shape.q_heads - head),
            .flags = splitmix_between(&random, 0, 4) == 0 ? BALLAST_ATTN_FULL : 0,
        };
        q_row += world->fragments[i].q_length;
        int32_t end = kv_row + world->fragments[i].kv_length;
        kv_end = end > kv_end ? end : kv_end;
    }
    world->shape.q_rows = (uint32_t)q_row;
    world->shape.kv_rows = (uint32_t)kv_end;
}

static void world_build(struct world *world) {
    struct ballast_attn_error error;
    size_t bytes = ballast_attn_plan_bytes(&world->shape, world->fragments, world->count);
    world->memory = malloc(bytes);
    int result = ballast_attn_plan_init(&world->plan, &world->shape, world->fragments, world->count,
                                        world->memory, bytes, &error);
    if (result != 0) {
        fail_msg("seed %" PRIu64 ": %s", world->seed, error.text);
    }
    world->lists = attn_lists_at(&world->plan, world->plan.lists);
}

/* The fragment that covers a row and head; NULL for none. */
static const struct ballast_attn_fragment *owner(const struct world *world, int32_t row,
                                                 uint32_t head) {
    for (uint32_t i = 0; i < world->count; i++) {
        const struct ballast_attn_fragment *fragment = &world->fragments[i];
        if (row >= fragment->q_row && row < fragment->q_row + fragment->q_length &&
            head >= fragment->head_begin &&
            head < (uint32_t)fragment->head_begin + fragment->head_count) {
            return fragment;
        }
    }
    return NULL;
}

/* Counts one visit of every (row, head) of a packed tile and checks what it says of the row. */
static void visit(const struct world *world, int32_t q_row, uint32_t tokens, uint32_t head,
                  uint32_t heads, int32_t keys, int32_t reach, uint8_t *visits) {
    for (uint32_t token = 0; token < tokens; token++) {
        for (uint32_t h = head; h < head + heads; h++) {
            int32_t row = q_row + (int32_t)token;
            const struct ballast_attn_fragment *fragment = owner(world, row, h);
            assert_non_null(fragment);
            visits[(uint32_t)row * world->shape.q_heads + h]++;
            int64_t seen = (int64_t)reach + token + 1;
            seen = seen > keys ? keys : seen < 0 ? 0 : seen;
            assert_int_equal(seen,
                             attn_reference_keys(fragment, (uint32_t)(row - fragment->q_row)));
        }
    }
}

static void check_visits(const struct world *world, const uint8_t *visits, const char *list) {
    for (uint32_t row = 0; row < world->shape.q_rows; row++) {
        for (uint32_t head = 0; head < world->shape.q_heads; head++) {
            uint8_t want = owner(world, (int32_t)row, head) != NULL;
            if (visits[row * world->shape.q_heads + head] != want) {
                fail_msg("seed %" PRIu64 ": %s: row %u head %u visited %u times", world->seed, list,
                         row, head, visits[row * world->shape.q_heads + head]);
            }
        }
    }
}

static void check_tiles(const struct world *world, uint8_t *visits) {
    uint32_t group = attn_group(&world->shape);
    int32_t before = INT32_MAX;
    memset(visits, 0, (size_t)world->shape.q_rows * world->shape.q_heads);
    for (uint32_t i = 0; i < world->plan.tiles; i++) {
        const struct attn_tile *tile = &world->lists.tiles[i];
        assert_true(tile->tokens * group <= ATTN_TILE_ROWS && tile->heads <= group);
        assert_int_equal(tile->kv_head, tile->head / group);
        assert_true(tile->blocks <= before);
        before = tile->blocks;
        int64_t seen = (int64_t)tile->reach + tile->tokens;
        seen = seen > tile->keys ? tile->keys : seen < 0 ? 0 : seen;
        assert_int_equal(tile->blocks, (seen + ATTN_KEYS - 1) / ATTN_KEYS);
        visit(world, tile->q_row, tile->tokens, tile->head, tile->heads, tile->keys, tile->reach,
              visits);
    }
    check_visits(world, visits, "tiles");
}

static void check_steps(const struct world *world, uint8_t *visits) {
    uint32_t pack = attn_pack(&world->shape);
    memset(visits, 0, (size_t)world->shape.q_rows * world->shape.q_heads);
    for (uint32_t i = 0; i < world->plan.steps; i++) {
        const struct attn_step *step = &world->lists.steps[i];
        assert_true(step->tokens * pack <= ATTN_STEP_ROWS && step->heads <= pack);
        visit(world, step->q_row, step->tokens, step->head, step->heads, step->keys, step->reach,
              visits);
    }
    check_visits(world, visits, "steps");
}

/* Every (K/V head, key) that a fragment covers is in one key tile, which walks exactly the steps
 * of its head and slice that see it. */
static bool step_is_due(const struct world *world, const struct attn_key_tile *tile,
                        const struct attn_step *step) {
    const struct ballast_attn_fragment *fragment = owner(world, step->q_row, step->head);
    bool here = fragment->kv_row == tile->kv_row - tile->key &&
                step->head / attn_group(&world->shape) == (uint32_t)tile->kv_head;
    int64_t seen = (int64_t)step->reach + step->tokens;
    seen = seen > step->keys ? step->keys : seen;
    return here && seen > tile->key;
}

static void check_key_tile(const struct world *world, const struct attn_key_tile *tile,
                           uint8_t *walked) {
    int32_t steps = 0;
    memset(walked, 0, world->plan.steps);
    for (int32_t r = tile->range_begin; r < tile->range_end; r++) {
        for (int32_t s = world->lists.ranges[r].step_begin; s < world->lists.ranges[r].step_end;
             s++) {
            walked[s]++;
            steps++;
        }
    }
    assert_int_equal(steps, tile->steps);
    for (uint32_t s = 0; s < world->plan.steps; s++) {
        if (walked[s] != step_is_due(world, tile, &world->lists.steps[s])) {
            fail_msg("seed %" PRIu64 ": key tile %d of head %d, step %u", world->seed, tile->kv_row,
                     tile->kv_head, s);
        }
    }
}

static bool key_is_covered(const struct world *world, int32_t row, uint32_t kv_head) {
    uint32_t group = attn_group(&world->shape);
    for (uint32_t i = 0; i < world->count; i++) {
        const struct ballast_attn_fragment *fragment = &world->fragments[i];
        if (row >= fragment->kv_row && row < fragment->kv_row + fragment->kv_length &&
            fragment->head_begin < (kv_head + 1) * group &&
            (uint32_t)fragment->head_begin + fragment->head_count > kv_head * group) {
            return true;
        }
    }
    return false;
}

static void check_key_tiles(const struct world *world, uint8_t *visits, uint8_t *walked) {
    int32_t before = INT32_MAX;
    uint32_t kv_heads = world->shape.kv_heads;
    memset(visits, 0, (size_t)world->shape.kv_rows * kv_heads);
    for (uint32_t i = 0; i < world->plan.key_tiles; i++) {
        const struct attn_key_tile *tile = &world->lists.key_tiles[i];
        assert_true(tile->steps <= before && tile->rows > 0 && tile->rows <= ATTN_KEYS);
        before = tile->steps;
        for (int32_t row = tile->kv_row; row < tile->kv_row + tile->rows; row++) {
            visits[(uint32_t)row * kv_heads + (uint32_t)tile->kv_head]++;
        }
        check_key_tile(world, tile, walked);
    }
    for (uint32_t row = 0; row < world->shape.kv_rows; row++) {
        for (uint32_t head = 0; head < kv_heads; head++) {
            if (visits[row * kv_heads + head] != key_is_covered(world, (int32_t)row, head)) {
                fail_msg("seed %" PRIu64 ": K/V row %u head %u", world->seed, row, head);
            }
        }
    }
}

static void attn_lists_cover_every_row_and_key_once(void **state) {
    (void)state;
    static uint8_t visits[ROWS_MAX * 128 * 4];
    static uint8_t walked[1 << 16];
    for (uint64_t seed = 1; seed <= 250; seed++) {
        struct world world;
        world_draw(&world, seed);
        world_build(&world);
        assert_true(world.shape.q_rows <= ROWS_MAX && world.plan.steps <= sizeof walked);
        check_tiles(&world, visits);
        check_steps(&world, visits);
        check_key_tiles(&world, visits, walked);
        free(world.memory);
    }
}

static void attn_lists_are_the_same_bytes_wherever_they_are_built(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct world a;
        struct world b;
        world_draw(&a, seed);
        world_draw(&b, seed);
        world_build(&a);
        world_build(&b);
        assert_true(a.plan.hash == b.plan.hash);
        assert_int_equal(a.plan.lists_bytes, b.plan.lists_bytes);
        assert_memory_equal(a.plan.lists, b.plan.lists, a.plan.lists_bytes);
        free(b.memory);
        free(a.memory);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attn_lists_cover_every_row_and_key_once),
        cmocka_unit_test(attn_lists_are_the_same_bytes_wherever_they_are_built),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
