/* Pools as messages: what a plan says of them is what ranks and people receive. */
#include "proto/message.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Replicas 2 and 3 of two ranks each, one piece each of two head shards, the second shard of the
 * first one computed by the last worker. */
static struct step_plan *make_plan(void) {
    const struct plan_counts counts = {.micro_batches = 4,
                                       .cp = 2,
                                       .documents = 3,
                                       .pools = 2,
                                       .pieces = 4,
                                       .tiles = 8,
                                       .transfers = 3};
    struct step_plan *plan = step_plan_create_pooled(&counts);
    assert_non_null(plan);
    plan->dp = 4;
    plan->micro_batches[2] = (struct micro_batch){.dp = 2, .document_count = 2, .tokens = 512};
    plan->micro_batches[3] = (struct micro_batch){
        .dp = 3, .document_begin = 2, .document_count = 1, .tokens = 9};
    plan->documents[0].length = 500;
    plan->documents[1].length = 12;
    plan->documents[2].length = 9;
    plan->pool_shape = (struct pool_shape){2, 2, 64, 2, 8, 4, 128, 2};
    plan->pools[0] = (struct plan_pool){.piece_count = 2, .load_max = 5, .load_mean = 4};
    plan->pools[1] = (struct plan_pool){.dp_begin = 2,
                                        .piece_begin = 2,
                                        .piece_count = 2,
                                        .transfer_count = 3,
                                        .load_max = 90,
                                        .load_mean = 80};
    plan->pieces[2] = (struct pool_piece){.block = 7, .row = 448, .rows = 64, .pairs = 2080};
    plan->pieces[3] = (struct pool_piece){
        .sequence = 1, .row = 0, .rows = 9, .home = 2, .pairs = 45};
    static const uint32_t workers[] = {0, 0, 2, 2, 0, 3, 2, 2};
    memcpy(plan->tile_workers, workers, sizeof workers);
    plan->transfers[0] = (struct pool_transfer){POOL_Q, 0, 3, 0, 448, 64, 4, 4, 65536};
    plan->transfers[1] = (struct pool_transfer){POOL_KV, 0, 3, 0, 0, 512, 2, 2, 524288};
    plan->transfers[2] = (struct pool_transfer){POOL_O, 3, 0, 0, 448, 64, 4, 4, 65536};
    return plan;
}

static void expect_moved_tile(const Ballast__V1__Tile *tile) {
    assert_int_equal(tile->dp, 2);
    assert_int_equal(tile->block, 7);
    assert_int_equal(tile->head_shard, 1);
    assert_int_equal(tile->home, 0);
    assert_int_equal(tile->worker, 3);
    assert_int_equal(tile->pairs, 2080);
    assert_int_equal(tile->row, 448);
    assert_int_equal(tile->rows, 64);
}

static void expect_kv(const Ballast__V1__Transfer *transfer) {
    assert_int_equal(transfer->payload, BALLAST__V1__PAYLOAD__PAYLOAD_KV);
    assert_int_equal(transfer->source, 0);
    assert_int_equal(transfer->worker, 3);
    assert_int_equal(transfer->dp, 2);
    assert_int_equal(transfer->row, 0);
    assert_int_equal(transfer->rows, 512);
    assert_int_equal(transfer->head_begin, 2);
    assert_int_equal(transfer->head_count, 2);
    assert_int_equal(transfer->bytes, 524288);
}

static void a_plan_carries_its_pools_with_or_without_tiles(void **state) {
    (void)state;
    struct step_plan *plan = make_plan();
    for (unsigned details = 0; details < 2; details++) {
        struct arena arena;
        Ballast__V1__StepPlan out = BALLAST__V1__STEP_PLAN__INIT;
        arena_init(&arena, 1u << 20);
        assert_true(message_pools(&arena, plan, details == 1, &out));
        assert_int_equal(out.n_pools, 2);
        const Ballast__V1__Pool *pool = out.pools[1];
        assert_int_equal(pool->ga_index, 0);
        assert_int_equal(pool->n_dp, 2);
        assert_int_equal(pool->dp[0], 2);
        assert_int_equal(pool->dp[1], 3);
        assert_int_equal(pool->block_tokens, 64);
        assert_int_equal(pool->head_shards, 2);
        assert_int_equal(pool->heads, 8);
        assert_int_equal(pool->kv_heads, 4);
        assert_int_equal(pool->head_dim, 128);
        assert_int_equal(pool->element_bytes, 2);
        assert_int_equal(pool->load_max, 90);
        assert_int_equal(pool->load_mean, 80);
        assert_int_equal(pool->n_tiles, details == 1 ? 4 : 0);
        assert_int_equal(pool->n_transfers, details == 1 ? 3 : 0);
        if (details == 1) {
            expect_moved_tile(pool->tiles[1]);
            expect_kv(pool->transfers[1]);
        }
        arena_deinit(&arena);
    }
    step_plan_destroy(plan);
}

static void expect_shape(const Ballast__V1__PoolPart *part) {
    assert_int_equal(part->ga_index, 0);
    assert_int_equal(part->n_replicas, 2);
    assert_int_equal(part->block_tokens, 64);
    assert_int_equal(part->head_shards, 2);
    assert_int_equal(part->heads, 8);
    assert_int_equal(part->kv_heads, 4);
    assert_int_equal(part->head_dim, 128);
    assert_int_equal(part->element_bytes, 2);
}

/* Documents stand where tiles of them are computed. */
static void expect_replica(const Ballast__V1__PoolReplica *replica, uint32_t dp, bool documents) {
    assert_int_equal(replica->dp, dp);
    assert_int_equal(replica->tokens, dp == 2 ? 512 : 9);
    if (!documents) {
        assert_int_equal(replica->n_lengths, 0);
    } else if (dp == 2) {
        assert_int_equal(replica->n_lengths, 2);
        assert_int_equal(replica->lengths[0], 500);
        assert_int_equal(replica->lengths[1], 12);
    } else {
        assert_int_equal(replica->n_lengths, 1);
        assert_int_equal(replica->lengths[0], 9);
    }
}

static void a_rank_receives_its_own_part(void **state) {
    (void)state;
    static const struct {
        uint32_t dp, cp, worker;
        size_t tiles, transfers;
        bool documents[2]; /* of replicas 2 and 3 */
    } parts[] = {{2, 0, 0, 2, 3, {true, false}},
                 {2, 1, 1, 0, 0, {false, false}},
                 {3, 0, 2, 2, 0, {false, true}},
                 {3, 1, 3, 1, 3, {true, false}}};
    struct step_plan *plan = make_plan();
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        struct arena arena;
        arena_init(&arena, 1u << 20);
        const struct plan_pool *pool = step_plan_pool(plan, parts[i].dp, 0);
        assert_ptr_equal(pool, &plan->pools[1]);
        const Ballast__V1__PoolPart *part = message_pool_part(&arena, plan, pool, parts[i].dp,
                                                              parts[i].cp);
        assert_non_null(part);
        assert_int_equal(part->worker, parts[i].worker);
        assert_int_equal(part->n_tiles, parts[i].tiles);
        assert_int_equal(part->n_transfers, parts[i].transfers);
        expect_shape(part);
        for (uint32_t j = 0; j < 2; j++) {
            expect_replica(part->replicas[j], 2 + j, parts[i].documents[j]);
        }
        arena_deinit(&arena);
    }
    assert_null(step_plan_pool(plan, 2, 1));
    assert_null(step_plan_pool(plan, 4, 0));
    step_plan_destroy(plan);
}

static void a_full_arena_is_no_pools_at_every_allocation(void **state) {
    (void)state;
    struct step_plan *plan = make_plan();
    bool made = false;
    size_t bytes_max = 0;
    for (; !made; bytes_max += 16) {
        struct arena arena;
        Ballast__V1__StepPlan out = BALLAST__V1__STEP_PLAN__INIT;
        arena_init(&arena, bytes_max);
        made = message_pools(&arena, plan, true, &out) &&
               message_pool_part(&arena, plan, &plan->pools[1], 3, 1) != NULL;
        arena_deinit(&arena);
    }
    assert_true(bytes_max > 1000);
    step_plan_destroy(plan);
}

static bool digest_sees(void (*change)(struct step_plan *plan)) {
    uint8_t before[PLAN_DIGEST_BYTES];
    uint8_t after[PLAN_DIGEST_BYTES];
    struct step_plan *plan = make_plan();
    step_plan_digest(plan, before);
    change(plan);
    step_plan_digest(plan, after);
    step_plan_destroy(plan);
    return memcmp(before, after, sizeof before) != 0;
}

#define CHANGE(name, field)                                                                        \
    static void change_##name(struct step_plan *plan) {                                            \
        plan->field++;                                                                             \
    }
CHANGE(ga, pools[1].ga_index)
CHANGE(dp, pools[1].dp_begin)
CHANGE(max, pools[0].load_max)
CHANGE(mean, pools[0].load_mean)
CHANGE(block_rows, pool_shape.block_rows)
CHANGE(q_heads, pool_shape.q_heads)
CHANGE(kv_heads, pool_shape.kv_heads)
CHANGE(head_dim, pool_shape.head_dim)
CHANGE(element, pool_shape.element_bytes)
CHANGE(sequence, pieces[2].sequence)
CHANGE(block, pieces[2].block)
CHANGE(home, pieces[2].home)
CHANGE(row, pieces[2].row)
CHANGE(rows, pieces[2].rows)
CHANGE(pairs, pieces[2].pairs)
CHANGE(worker, tile_workers[7])
CHANGE(payload, transfers[0].payload)
CHANGE(source, transfers[0].source)
CHANGE(receiver, transfers[0].worker)
CHANGE(of, transfers[0].sequence)
CHANGE(transfer_row, transfers[0].row)
CHANGE(transfer_rows, transfers[0].rows)
CHANGE(head_begin, transfers[0].head_begin)
CHANGE(head_count, transfers[0].head_count)
CHANGE(bytes, transfers[0].bytes)
CHANGE(span, pieces[2].lead)

static void the_digest_sees_every_field_of_a_pool(void **state) {
    (void)state;
    void (*const changes[])(struct step_plan *) = {
        change_ga,           change_dp,
        change_max,          change_mean,
        change_block_rows,   change_q_heads,
        change_kv_heads,     change_head_dim,
        change_element,      change_sequence,
        change_block,        change_home,
        change_row,          change_rows,
        change_pairs,        change_worker,
        change_payload,      change_source,
        change_receiver,     change_of,
        change_transfer_row, change_transfer_rows,
        change_head_begin,   change_head_count,
        change_bytes,
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        if (!digest_sees(changes[i])) {
            fail_msg("change %zu is not seen", i);
        }
    }
    assert_false(digest_sees(change_span)); /* follows from the documents */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_carries_its_pools_with_or_without_tiles),
        cmocka_unit_test(a_rank_receives_its_own_part),
        cmocka_unit_test(a_full_arena_is_no_pools_at_every_allocation),
        cmocka_unit_test(the_digest_sees_every_field_of_a_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
