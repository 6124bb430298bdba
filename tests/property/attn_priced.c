/* What the planner prices is what the kernels run: a rank's predicted time, computed in closed form
 * from its fragments, equals the time of the tiles of the lists built from them, one by one,
 * forward and backward; with a straight price of tiles and with a measured, bent one. */
#include "gpu_attn/plan.h"
#include "sharding/curve.h"
#include "sharding/layout.h"

#include "splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define DOCUMENTS_MAX 9u
#define FRAGMENTS_MAX (2 * DOCUMENTS_MAX + 2)

struct rank {
    uint32_t lengths[DOCUMENTS_MAX];
    struct packed_sequence sequence;
    struct fragment fragments[FRAGMENTS_MAX];
    uint32_t count;
};

/* One rank of a random packed sequence under one of the layouts. */
static void rank_draw(struct rank *rank, uint64_t *random) {
    uint32_t cp = splitmix_between(random, 1, 6);
    rank->sequence = (struct packed_sequence){
        .lengths = rank->lengths, .documents = splitmix_between(random, 1, DOCUMENTS_MAX)};
    for (uint32_t i = 0; i < rank->sequence.documents; i++) {
        rank->lengths[i] = splitmix_between(random, 1, 1u << splitmix_between(random, 0, 12));
        rank->sequence.tokens += rank->lengths[i];
    }
    uint64_t unit = 2 * (uint64_t)cp;
    rank->sequence.pad_tokens = (unit - rank->sequence.tokens % unit) % unit;
    enum layout layout = splitmix_between(random, LAYOUT_PER_SEQUENCE, LAYOUT_PER_DOCUMENT);
    rank->count = layout_fragments(layout, &rank->sequence, cp, splitmix_between(random, 0, cp - 1),
                                   rank->fragments, FRAGMENTS_MAX);
}

/* The launch of the rank: its queries packed, the keys of all documents gathered. */
static uint32_t rank_launch(const struct rank *rank, struct ballast_attn_shape *shape,
                            struct ballast_attn_fragment *out) {
    for (uint32_t i = 0; i < rank->count; i++) {
        struct fragment fragment = rank->fragments[i];
        int32_t kv_row = 0;
        for (uint32_t document = 0; document < fragment.document; document++) {
            kv_row += (int32_t)rank->lengths[document];
        }
        out[i] = (struct ballast_attn_fragment){
            .q_row = (int32_t)shape->q_rows,
            .q_length = (int32_t)fragment.length,
            .kv_row = kv_row,
            .kv_length = (int32_t)(fragment.start + fragment.length),
            .q_position = (int32_t)fragment.start,
            .head_count = (uint16_t)shape->q_heads,
        };
        shape->q_rows += fragment.length;
    }
    shape->kv_rows = (uint32_t)rank->sequence.tokens;
    return rank->count;
}

/* Times of tiles, one by one. */
struct listed {
    const struct tile_model *model;
    const struct tile_direction *direction;
    uint64_t sum_ps;
    uint64_t longest_ps;
};

static void listed_add(struct listed *listed, int32_t blocks) {
    uint64_t tile_ps = (uint64_t)tile_time_ps(listed->direction, (uint64_t)blocks);
    listed->sum_ps += tile_ps;
    listed->longest_ps = tile_ps > listed->longest_ps ? tile_ps : listed->longest_ps;
}

static uint64_t listed_ps(const struct listed *listed) {
    uint64_t sms = listed->model->sms - listed->model->sm_margin;
    uint64_t machine_ps = (listed->sum_ps + sms - 1) / sms;
    return listed->direction->launch_ps +
           (machine_ps > listed->longest_ps ? machine_ps : listed->longest_ps);
}

static uint64_t listed_forward_ps(const struct tile_model *model,
                                  const struct ballast_attn_plan *plan) {
    struct attn_lists lists = attn_lists_at(plan, plan->lists);
    struct listed listed = {.model = model, .direction = &model->forward};
    for (uint32_t i = 0; i < plan->tiles; i++) {
        listed_add(&listed, lists.tiles[i].blocks);
    }
    return listed_ps(&listed);
}

/* The kernel walks steps, and their rows are those of the priced blocks, but for what the first and
 * the last of a range round. */
static void check_steps(const struct ballast_attn_plan *plan, const struct attn_key_tile *tile) {
    int32_t group = (int32_t)attn_group(&plan->shape);
    int32_t pack = (int32_t)attn_pack(&plan->shape);
    int32_t halves = (group + pack - 1) / pack;
    int32_t block_tokens = ATTN_TILE_ROWS / group;
    int32_t walked = tile->steps * (ATTN_STEP_ROWS / pack);
    int32_t priced = tile->blocks * block_tokens * halves;
    int32_t rounded = 2 * block_tokens * (tile->range_end - tile->range_begin);
    if (walked > priced + rounded || priced > walked + rounded) {
        fail_msg("group %d: %d steps of %d ranges priced as %d blocks", group, tile->steps,
                 tile->range_end - tile->range_begin, tile->blocks);
    }
}

static uint64_t listed_backward_ps(const struct tile_model *model,
                                   const struct ballast_attn_plan *plan) {
    struct attn_lists lists = attn_lists_at(plan, plan->lists);
    struct listed listed = {.model = model, .direction = &model->backward};
    for (uint32_t i = 0; i < plan->key_tiles; i++) {
        check_steps(plan, &lists.key_tiles[i]);
        listed_add(&listed, lists.key_tiles[i].blocks);
    }
    return listed_ps(&listed);
}

static void check_rank(uint64_t seed) {
    uint64_t random = seed;
    struct rank rank;
    struct tile_model model;
    struct ballast_attn_plan plan;
    struct ballast_attn_fragment fragments[FRAGMENTS_MAX];
    uint32_t group = splitmix_between(&random, 1, seed % 4 == 0 ? 128 : 16);
    uint32_t kv_heads = splitmix_between(&random, 1, 3);
    struct ballast_attn_shape shape = {128, group * kv_heads, kv_heads, 0, 0};
    rank_draw(&rank, &random);
    assert_int_equal(tile_model_analytic(128, shape.q_heads, kv_heads,
                                         splitmix_between(&random, 0, 131), &model),
                     0);
    if (seed % 2 == 0) {
        const struct tile_point measured[] = {
            {1, 5100000}, {2, 7000000}, {16, 30000000}, {32, 70000000}};
        tile_curve(measured, 4, &model.forward);
        tile_curve(measured, 4, &model.backward);
    }
    uint32_t count = rank_launch(&rank, &shape, fragments);
    size_t bytes = ballast_attn_plan_bytes(&shape, fragments, count);
    void *memory = malloc(bytes);
    assert_int_equal(ballast_attn_plan_init(&plan, &shape, fragments, count, memory, bytes, NULL),
                     0);
    uint64_t forward_ps = count > 0 ? listed_forward_ps(&model, &plan) : 0;
    uint64_t both_ps = count > 0 ? forward_ps + listed_backward_ps(&model, &plan) : 0;
    if (forward_ps != tile_forward_ps(&model, rank.fragments, count) ||
        both_ps != tile_cost_ps(&model, rank.fragments, count)) {
        fail_msg("seed %" PRIu64 ": listed %" PRIu64 " ps, priced %" PRIu64
                 "; with backward %" PRIu64 ", %" PRIu64,
                 seed, forward_ps, tile_forward_ps(&model, rank.fragments, count), both_ps,
                 tile_cost_ps(&model, rank.fragments, count));
    }
    free(memory);
}

static void attn_lists_cost_what_the_planner_predicts(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        check_rank(seed);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attn_lists_cost_what_the_planner_predicts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
