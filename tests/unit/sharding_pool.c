/* Pooled attention by example: pools small enough to draw, and the schedule of its chunks. */
#include "sharding/pool_plan.h"
#include "sharding/pool_schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define PIECES_MAX    16u
#define TRANSFERS_MAX 32u

/* Two sequences on one rank each, one head of one byte: a document of 8 rows beside eight of 1. */
struct drawn {
    struct pool pool;
    struct pool_sequence sequences[2];
    struct pool_run runs[2];
    struct pool_tiles tiles;
    struct pool_piece pieces[PIECES_MAX];
    struct pool_span spans[PIECES_MAX];
    uint32_t workers[PIECES_MAX];
    uint64_t loads[2];
    struct pool_link links[2];
    struct pool_transfer transfers[TRANSFERS_MAX];
    _Alignas(max_align_t) unsigned char scratch[4096];
};

static const uint32_t one_of_eight[] = {8};
static const uint32_t eight_of_one[] = {1, 1, 1, 1, 1, 1, 1, 1};

static void drawn_init(struct drawn *drawn) {
    memset(drawn, 0, sizeof *drawn);
    drawn->pool = (struct pool){{2, 1, 2, 1, 1, 1, 1, 1}, drawn->sequences};
    drawn->runs[0] = (struct pool_run){0, 8, 0};
    drawn->runs[1] = (struct pool_run){0, 8, 1};
    drawn->sequences[0] = (struct pool_sequence){one_of_eight, 1, &drawn->runs[0], 1};
    drawn->sequences[1] = (struct pool_sequence){eight_of_one, 8, &drawn->runs[1], 1};
    assert_true(pool_pieces_max(&drawn->pool) <= PIECES_MAX);
    pool_cut(&drawn->pool, drawn->pieces, drawn->spans, &drawn->tiles);
    assert_true(pool_plan_bytes(&drawn->pool.shape, &drawn->tiles) <= sizeof drawn->scratch);
}

static void blocks_know_their_pairs_and_what_they_share(void **state) {
    (void)state;
    static const uint64_t pairs[] = {3, 7, 11, 15, 2, 2, 2, 2};
    struct drawn drawn;
    drawn_init(&drawn);
    assert_int_equal(drawn.tiles.piece_count, 8);
    assert_int_equal(drawn.tiles.span_count, 1);
    assert_int_equal(drawn.tiles.pairs, 36 + 8);
    for (uint32_t i = 0; i < 8; i++) {
        const struct pool_piece *piece = &drawn.pieces[i];
        assert_int_equal(piece->pairs, pairs[i]);
        assert_int_equal(piece->sequence, i / 4);
        assert_int_equal(piece->block, i % 4);
        assert_int_equal(piece->row, i % 4 * 2);
        assert_int_equal(piece->home, i / 4);
        assert_int_equal(piece->lead, i < 4 ? 0 : POOL_NONE);
        assert_int_equal(piece->inner_rows, i < 4 ? 0 : 2);
        assert_int_equal(piece->tail, POOL_NONE);
    }
    assert_int_equal(drawn.pieces[2].lead_end, 6);
}

/* C is floor(1.03 * 44 / 2) = 22. Home-first keeps 15 and 7 of the long document, and all short
 * ones; 11 and 3 go next door, which has 8. */
static void home_first_moves_what_does_not_fit_at_home(void **state) {
    (void)state;
    static const uint32_t workers[] = {1, 0, 1, 0, 1, 1, 1, 1};
    struct drawn drawn;
    drawn_init(&drawn);
    assert_int_equal(pool_capacity(&drawn.pool.shape, &drawn.tiles), 22);
    pool_place(&drawn.pool, &drawn.tiles, &pool_home_first, drawn.scratch, drawn.workers,
               drawn.loads);
    assert_int_equal(drawn.loads[0], 15 + 7);
    assert_int_equal(drawn.loads[1], 11 + 3 + 8);
    assert_memory_equal(drawn.workers, workers, sizeof workers);
}

static void the_exchange_sends_rows_there_and_back_and_the_prefix_once(void **state) {
    (void)state;
    static const uint32_t workers[] = {0, 1, 1, 0, 1, 1, 1, 0};
    const struct pool_exchange_options options = {.prefix = true};
    static const struct pool_transfer expected[] = {
        {POOL_Q, 0, 1, 0, 2, 2, 0, 1, 2},   {POOL_Q, 0, 1, 0, 4, 2, 0, 1, 2},
        {POOL_Q, 1, 0, 1, 6, 2, 0, 1, 2},   {POOL_KV, 1, 0, 1, 6, 2, 0, 1, 4},
        {POOL_KV, 0, 1, 0, 0, 6, 0, 1, 12}, {POOL_O, 1, 0, 0, 2, 2, 0, 1, 2},
        {POOL_O, 1, 0, 0, 4, 2, 0, 1, 2},   {POOL_O, 0, 1, 1, 6, 2, 0, 1, 2},
    };
    struct drawn drawn;
    drawn_init(&drawn);
    size_t count = pool_exchange(&drawn.pool, &drawn.tiles, workers, &options, drawn.scratch,
                                 drawn.transfers, TRANSFERS_MAX, drawn.links);
    assert_int_equal(count, sizeof expected / sizeof expected[0]);
    assert_memory_equal(drawn.transfers, expected, sizeof expected);
    assert_int_equal(pool_link_in(&drawn.links[0]), 2 + 4 + 4);
    assert_int_equal(pool_link_out(&drawn.links[0]), 4 + 12 + 2);
    uint64_t counts[4];
    pool_counts(drawn.transfers, count, POOL_KV, 2, counts);
    assert_int_equal(counts[0 * 2 + 1], 6);
    assert_int_equal(counts[1 * 2 + 0], 2);
    assert_int_equal(counts[0] + counts[3], 0);
}

/* Of capacity 3 only three are written, and all are counted. */
static void transfers_beyond_the_capacity_are_only_counted(void **state) {
    (void)state;
    static const uint32_t workers[] = {0, 1, 1, 0, 1, 1, 1, 0};
    const struct pool_exchange_options options = {.prefix = true};
    struct drawn drawn;
    drawn_init(&drawn);
    assert_int_equal(pool_exchange(&drawn.pool, &drawn.tiles, workers, &options, drawn.scratch,
                                   drawn.transfers, 3, drawn.links),
                     8);
    assert_int_equal(drawn.transfers[2].payload, POOL_Q);
    assert_int_equal(drawn.transfers[3].payload, 0);
}

static void the_backward_pass_mirrors_the_forward_pass(void **state) {
    (void)state;
    const struct pool_shape shape = {.head_dim = 128, .element_bytes = 2};
    const struct pool_link forward = {.q_in = 256 * 10,
                                      .q_out = 256 * 3,
                                      .kv_in = 1024,
                                      .kv_out = 512,
                                      .o_in = 256 * 3,
                                      .o_out = 256 * 10};
    struct pool_link backward = pool_backward(&shape, &forward, 4);
    assert_int_equal(backward.q_in, 2 * 256 * 10 + 8 * 10);
    assert_int_equal(backward.q_out, 2 * 256 * 3 + 8 * 3);
    assert_int_equal(backward.kv_in, 1024 + 2 * 512);
    assert_int_equal(backward.kv_out, 512 + 2 * 1024);
    assert_int_equal(backward.o_in, forward.o_in);
    assert_int_equal(backward.o_out, forward.o_out);
}

/* Nothing can start before the keys are there; after them the pipeline is as it was. */
static void hops_of_a_chain_are_exposed_once(void **state) {
    (void)state;
    const struct pool_shape shape = {.head_shards = 1, .q_heads = 4, .kv_heads = 4};
    struct pool_times times = {.q = 8, .kv = 8, .o = 8, .compute = 40};
    struct pool_schedule direct = pool_schedule_of(&shape, 4, true, &times);
    times.hops = 7;
    struct pool_schedule chained = pool_schedule_of(&shape, 4, true, &times);
    assert_int_equal(chained.total, direct.total + 7);
    assert_int_equal(chained.exposed, direct.exposed + 7);
}

/* Q 8, O 8 and K/V 8 over four chunks of compute 10. */
static void chunks_hide_all_but_the_first_dispatch_and_the_last_return(void **state) {
    (void)state;
    const struct pool_shape shape = {.head_shards = 1, .q_heads = 8, .kv_heads = 4};
    const struct pool_times times = {.q = 8, .kv = 8, .o = 8, .compute = 40};
    struct pool_schedule schedule = pool_schedule_of(&shape, 4, true, &times);
    assert_int_equal(schedule.kv_pieces, 4);
    assert_int_equal(schedule.total, 4 + 40 + 2);
    assert_int_equal(schedule.exposed, 6);
    schedule = pool_schedule_of(&shape, 1, true, &times);
    assert_int_equal(schedule.total, 16 + 40 + 8);
}

/* One K/V head a shard: all of K/V has to be there before the first chunk. */
static void kv_that_has_no_pieces_is_exposed(void **state) {
    (void)state;
    const struct pool_shape shape = {.head_shards = 4, .q_heads = 16, .kv_heads = 4};
    const struct pool_times times = {.q = 8, .kv = 8, .o = 8, .compute = 40};
    struct pool_schedule schedule = pool_schedule_of(&shape, 4, true, &times);
    assert_int_equal(schedule.kv_pieces, 1);
    assert_int_equal(schedule.exposed, 2 + 8 + 2);
    assert_int_equal(pool_kv_pieces(&shape, 1), 1);
}

/* A link that cannot do both at once delays the middle chunks: 2 + 4 + 2 each way and 3 to
 * compute. */
static void a_half_duplex_link_adds_both_directions_up(void **state) {
    (void)state;
    const struct pool_shape shape = {.head_shards = 1, .q_heads = 4, .kv_heads = 4};
    const struct pool_times times = {.q = 8, .kv = 8, .o = 8, .compute = 12};
    assert_int_equal(pool_schedule_of(&shape, 4, true, &times).total, 4 + 4 + 4 + 4 + 3 + 2);
    assert_int_equal(pool_schedule_of(&shape, 4, false, &times).total, 4 + 4 + 6 + 6 + 3 + 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_know_their_pairs_and_what_they_share),
        cmocka_unit_test(home_first_moves_what_does_not_fit_at_home),
        cmocka_unit_test(the_exchange_sends_rows_there_and_back_and_the_prefix_once),
        cmocka_unit_test(transfers_beyond_the_capacity_are_only_counted),
        cmocka_unit_test(the_backward_pass_mirrors_the_forward_pass),
        cmocka_unit_test(hops_of_a_chain_are_exposed_once),
        cmocka_unit_test(chunks_hide_all_but_the_first_dispatch_and_the_last_return),
        cmocka_unit_test(kv_that_has_no_pieces_is_exposed),
        cmocka_unit_test(a_half_duplex_link_adds_both_directions_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
