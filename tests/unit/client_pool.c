/* A rank's part of its pool: what the client accepts of a daemon, and what --verify makes of it. */
#include "client_world.h"

#include "client/batch.h"
#include "client/rank_verify.h"

#include <errno.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

/* The batch of client_world.h with its pool, changed (NULL: not), as rank 0 reads it. */
struct reading {
    struct world_memory memory;
    struct mapping *mapping;
    struct world_batch world;
    struct batch batch;
    struct error error;
    int code;
};

static void reading_init_within(struct reading *reading,
                                void (*change)(Ballast__V1__PoolPart *part), size_t bytes_max) {
    struct ballast_job job = {
        .dp = 2, .cp = WORLD_CP, .tokens_max = WORLD_TOKENS, .token_bytes = 2};
    *reading = (struct reading){0};
    world_memory_create(&reading->memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    reading->mapping = world_memory_map(&reading->memory);
    world_batch_init(&reading->world, &reading->memory, 0, 1);
    world_pool_add(&reading->world);
    if (change != NULL) {
        change(reading->world.message.pool);
    }
    struct batch_context context = {.job = &job,
                                    .arena = &reading->world.arena,
                                    .mapping = reading->mapping,
                                    .cp = 0,
                                    .slot_wanted = true};
    batch_init(&reading->batch);
    reading->batch.arena.bytes_max = bytes_max;
    reading->code = batch_read(&reading->batch, world_batch_envelope(&reading->world), &context,
                               &reading->error);
}

static void reading_init(struct reading *reading, void (*change)(Ballast__V1__PoolPart *part)) {
    reading_init_within(reading, change, 1u << 20);
}

static void reading_deinit(struct reading *reading) {
    batch_deinit(&reading->batch);
    mapping_drop(reading->mapping);
    world_batch_free(&reading->world);
    world_memory_destroy(&reading->memory);
}

static void a_rank_reads_its_part_of_a_pool(void **state) {
    (void)state;
    struct reading reading;
    reading_init(&reading, NULL);
    assert_int_equal(reading.code, 0);
    const struct ballast_pool *pool = reading.batch.view.pool;
    assert_non_null(pool);
    assert_int_equal(pool->ga_index, 1);
    assert_int_equal(pool->worker, 0);
    assert_int_equal(pool->workers, 2);
    assert_int_equal(pool->replica_count, 1);
    assert_int_equal(pool->replicas[0].dp, 0);
    assert_int_equal(pool->replicas[0].tokens, WORLD_TOKENS);
    assert_int_equal(pool->replicas[0].length_count, 2);
    assert_int_equal(pool->replicas[0].lengths[1], 3);
    assert_int_equal(pool->block_tokens, 4);
    assert_int_equal(pool->head_shards, 2);
    assert_int_equal(pool->heads, 4);
    assert_int_equal(pool->kv_heads, 2);
    assert_int_equal(pool->head_dim, 8);
    assert_int_equal(pool->element_bytes, 2);
    assert_int_equal(pool->tile_count, WORLD_TILES);
    assert_int_equal(pool->transfer_count, WORLD_TRANSFERS);
    assert_int_equal(pool->tiles[4].dp, 0);
    assert_int_equal(pool->tiles[4].block, 3);
    assert_int_equal(pool->tiles[4].head_shard, 1);
    assert_int_equal(pool->tiles[4].home, 0);
    assert_int_equal(pool->tiles[4].worker, 1);
    assert_int_equal(pool->tiles[4].pairs, 5);
    assert_int_equal(pool->tiles[4].row, 6);
    assert_int_equal(pool->tiles[4].rows, 2);
    const struct ballast_transfer keys = {BALLAST_PAYLOAD_KV, 1, 0, 0, 5, 1, 0, 1, 32};
    assert_memory_equal(&pool->transfers[3], &keys, sizeof keys);
    reading_deinit(&reading);
}

static void say_no_shape(Ballast__V1__PoolPart *part) {
    part->n_replicas = 0;
    part->heads = 0;
}

static void a_daemon_that_does_not_say_the_shape_gives_no_pool(void **state) {
    (void)state;
    struct reading reading;
    reading_init(&reading, say_no_shape);
    assert_int_equal(reading.code, 0);
    assert_null(reading.batch.view.pool);
    reading_deinit(&reading);
}

/* An arena grows in chunks, so tiles enough for many of them. */
static void have_many_of_each(Ballast__V1__PoolPart *part) {
    static Ballast__V1__Tile *tiles[1000];
    static Ballast__V1__Transfer *transfers[1000];
    for (uint32_t i = 0; i < 1000; i++) {
        tiles[i] = part->tiles[0];
        transfers[i] = part->transfers[0];
    }
    part->tiles = tiles;
    part->transfers = transfers;
    part->n_tiles = part->n_transfers = 1000;
}

static void too_little_memory_is_no_batch_and_no_pool(void **state) {
    (void)state;
    uint32_t refused = 0;
    int code = -ENOMEM;
    for (size_t bytes_max = 4096; code < 0; bytes_max += 4096) {
        struct reading reading;
        reading_init_within(&reading, have_many_of_each, bytes_max);
        code = reading.code;
        assert_true(code == 0 || code == -ENOMEM);
        assert_int_equal(reading.batch.view.pool == NULL, code < 0);
        refused += code < 0 && strstr(reading.error.text, "a pool of 1000") != NULL;
        reading_deinit(&reading);
    }
    assert_true(refused > 1);
}

#define CHANGE(name, assignment)                                                                   \
    static void name(Ballast__V1__PoolPart *part) {                                                \
        part->assignment;                                                                          \
    }

CHANGE(no_block, block_tokens = 0)
CHANGE(no_shards, head_shards = 0)
CHANGE(no_heads, heads = 0)
CHANGE(no_kv_heads, kv_heads = 0)
CHANGE(no_dim, head_dim = 0)
CHANGE(no_element, element_bytes = 0)
CHANGE(many_heads, heads = 1u << 17)
CHANGE(long_dim, head_dim = 1u << 17)
CHANGE(long_element, element_bytes = 17)
CHANGE(uneven_shards, head_shards = 3)
CHANGE(uneven_kv_heads, kv_heads = 3)
CHANGE(other_replica, replicas[0]->dp = 1)
CHANGE(no_replica, replicas[0]->dp = 2)
CHANGE(long_replica, replicas[0]->tokens = WORLD_TOKENS + 1)
CHANGE(short_replica, replicas[0]->tokens = 7)
CHANGE(empty_document, replicas[0]->lengths[0] = 0)
CHANGE(long_document, replicas[0]->lengths[1] = 4)
CHANGE(short_document, replicas[0]->lengths[1] = 2)
CHANGE(other_index, ga_index = 0)
CHANGE(other_worker, worker = 1)
CHANGE(tile_dp, tiles[4]->dp = 1)
CHANGE(tile_row, tiles[4]->row = 7)
CHANGE(tile_row_wraps, tiles[4]->row = UINT64_MAX)
CHANGE(tile_rows_wrap, tiles[4]->rows = UINT64_MAX)
CHANGE(tile_rows_none, tiles[4]->rows = 0)
CHANGE(tile_over_a_block, tiles[0]->rows = 5)
CHANGE(tile_shard, tiles[4]->head_shard = 2)
CHANGE(tile_worker, tiles[4]->worker = 2)
CHANGE(tile_home, tiles[2]->home = UINT32_MAX)
CHANGE(tile_elsewhere, tiles[2]->worker = 1)
CHANGE(transfer_payload, transfers[0]->payload = (Ballast__V1__Payload)4)
CHANGE(transfer_nothing, transfers[0]->payload = BALLAST__V1__PAYLOAD__PAYLOAD_UNSPECIFIED)
CHANGE(transfer_to_itself, transfers[0]->worker = 1)
CHANGE(transfer_worker, transfers[1]->worker = 2)
CHANGE(transfer_dp, transfers[0]->dp = 1)
CHANGE(transfer_row, transfers[0]->row = 7)
CHANGE(transfer_rows_none, transfers[0]->rows = 0)
CHANGE(transfer_rows_wrap, transfers[0]->rows = UINT64_MAX)
CHANGE(transfer_heads, transfers[1]->head_count = 3)
CHANGE(transfer_heads_wrap, transfers[1]->head_count = UINT32_MAX)
CHANGE(transfer_no_heads, transfers[1]->head_count = 0)
CHANGE(transfer_kv_heads, transfers[4]->head_begin = 2)
CHANGE(transfer_bytes, transfers[3]->bytes++)

static void no_pool_that_could_not_be_indexed_is_accepted(void **state) {
    (void)state;
    static const struct {
        void (*change)(Ballast__V1__PoolPart *part);
        const char *sentence;
    } cases[] = {
        {no_block, "its shape"},
        {no_shards, "its shape"},
        {no_heads, "its shape"},
        {no_kv_heads, "its shape"},
        {no_dim, "its shape"},
        {no_element, "its shape"},
        {many_heads, "its shape"},
        {long_dim, "its shape"},
        {long_element, "its shape"},
        {uneven_shards, "its shape"},
        {uneven_kv_heads, "its shape"},
        {other_replica, "not of this micro-batch"},
        {no_replica, "not of the mesh"},
        {long_replica, "longer than tokens_max"},
        {short_replica, "not within its micro-batch"},
        {empty_document, "not within its micro-batch"},
        {long_document, "not within its micro-batch"},
        {short_document, "not their micro-batch"},
        {other_index, "not of this micro-batch"},
        {other_worker, "not this rank"},
        {tile_dp, "a tile that is not within"},
        {tile_row, "a tile that is not within"},
        {tile_row_wraps, "a tile that is not within"},
        {tile_rows_wrap, "a tile that is not within"},
        {tile_rows_none, "a tile that is not within"},
        {tile_over_a_block, "a tile that is not within"},
        {tile_shard, "a tile that is not this rank's"},
        {tile_worker, "a tile that is not this rank's"},
        {tile_home, "a tile that is not this rank's"},
        {tile_elsewhere, "a tile that is not this rank's"},
        {transfer_payload, "nothing known"},
        {transfer_nothing, "nothing known"},
        {transfer_to_itself, "a transfer that is not this rank's"},
        {transfer_worker, "a transfer that is not this rank's"},
        {transfer_dp, "a transfer that is not within"},
        {transfer_row, "a transfer that is not within"},
        {transfer_rows_none, "a transfer that is not within"},
        {transfer_rows_wrap, "a transfer that is not within"},
        {transfer_heads, "a transfer that is not within"},
        {transfer_heads_wrap, "a transfer that is not within"},
        {transfer_no_heads, "a transfer that is not within"},
        {transfer_kv_heads, "a transfer that is not within"},
        {transfer_bytes, "not as long as its rows"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct reading reading;
        reading_init(&reading, cases[i].change);
        if (reading.code != -EPROTO || strstr(reading.error.text, cases[i].sentence) == NULL) {
            fail_msg("case %zu: %d, '%s' is not '%s'", i, reading.code, reading.error.text,
                     cases[i].sentence);
        }
        assert_null(reading.batch.view.pool);
        reading_deinit(&reading);
    }
}

static void shift_home_rows(Ballast__V1__PoolPart *part) {
    part->tiles[3]->row = part->tiles[4]->row = 5;
}

static void send_one_more_q(Ballast__V1__PoolPart *part) {
    part->transfers[2]->payload = BALLAST__V1__PAYLOAD__PAYLOAD_Q;
    part->transfers[2]->head_count = 2;
}

static void swap_the_shards(Ballast__V1__PoolPart *part) {
    part->tiles[0]->head_shard = 1;
    part->tiles[1]->head_shard = 0;
}

static void lose_the_documents(Ballast__V1__PoolPart *part) {
    part->replicas[0]->n_lengths = 0;
}

static void send_a_key_twice(Ballast__V1__PoolPart *part) {
    part->transfers[3]->row = 3;
    part->transfers[3]->rows = 3;
    part->transfers[3]->bytes = 96;
}

static void send_keys_of_two_ranges(Ballast__V1__PoolPart *part) {
    part->transfers[3]->head_count = 2;
    part->transfers[3]->bytes = 64;
}

static void answer_elsewhere(Ballast__V1__PoolPart *part) {
    part->transfers[5]->row = 3;
    part->transfers[5]->rows = 1;
    part->transfers[5]->bytes = 32;
}

static void send_keys_of_other_heads(Ballast__V1__PoolPart *part) {
    part->transfers[3]->head_begin = 1;
}

static void send_a_key_of_its_own(Ballast__V1__PoolPart *part) {
    part->transfers[3]->row = 5;
    part->transfers[3]->rows = 2;
    part->transfers[3]->bytes = 64;
}

static void send_a_key_behind_the_tile(Ballast__V1__PoolPart *part) {
    part->transfers[3]->row = 4;
    part->transfers[3]->rows = 2;
    part->transfers[3]->bytes = 64;
}

static void pass_on_a_key_that_is_not_here(Ballast__V1__PoolPart *part) {
    part->transfers[4]->row = 2;
}

CHANGE(repeat_a_tile, tiles[1]->head_shard = 0)
CHANGE(shift_a_tile, tiles[2]->row = 3)
CHANGE(lose_the_last_tile, n_tiles--)
CHANGE(other_pairs, tiles[3]->pairs++)
CHANGE(no_way_back, n_transfers = 3)
CHANGE(other_heads_of_q, transfers[1]->head_begin = 1)
CHANGE(other_row_of_keys, transfers[3]->row = 4)

static void no_part_of_a_plan_that_does_not_hold_is_verified(void **state) {
    (void)state;
    static const struct {
        void (*change)(Ballast__V1__PoolPart *part);
        const char *why;
    } cases[] = {
        {lose_the_last_tile, "leave out rows"},
        {swap_the_shards, "out of order"},
        {repeat_a_tile, "out of order"},
        {shift_a_tile, "of two blocks"},
        {shift_home_rows, "not this rank's rows"},
        {other_pairs, "pairs are not those"},
        {lose_the_documents, "pairs are not those"},
        {no_way_back, "without Q or O"},
        {answer_elsewhere, "Q or O is not that"},
        {other_heads_of_q, "Q or O is not that"},
        {send_one_more_q, "Q or O of no tile"},
        {other_row_of_keys, "does not come"},
        {send_keys_of_other_heads, "does not come"},
        {send_a_key_twice, "comes twice"},
        {send_keys_of_two_ranges, "not of a range of heads"},
        {send_a_key_of_its_own, "comes that is here"},
        {send_a_key_behind_the_tile, "that no tile here sees"},
        {pass_on_a_key_that_is_not_here, "goes that is not here"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct reading reading;
        const char *why = "nothing";
        reading_init(&reading, cases[i].change);
        int64_t code = reading.code < 0 ? reading.code : rank_verify(&reading.batch.view, &why);
        if (code >= 0 || strstr(why, cases[i].why) == NULL) {
            fail_msg("case %zu: %d, '%s' is not '%s'; %s", i, (int)code, why, cases[i].why,
                     reading.error.text);
        }
        reading_deinit(&reading);
    }
}

static void a_part_that_holds_is_counted(void **state) {
    (void)state;
    struct reading reading;
    const char *why = NULL;
    reading_init(&reading, NULL);
    assert_int_equal(reading.code, 0);
    assert_int_equal(rank_verify(&reading.batch.view, &why), WORLD_TILES + WORLD_TRANSFERS);
    reading_deinit(&reading);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_reads_its_part_of_a_pool),
        cmocka_unit_test(a_daemon_that_does_not_say_the_shape_gives_no_pool),
        cmocka_unit_test(too_little_memory_is_no_batch_and_no_pool),
        cmocka_unit_test(no_pool_that_could_not_be_indexed_is_accepted),
        cmocka_unit_test(no_part_of_a_plan_that_does_not_hold_is_verified),
        cmocka_unit_test(a_part_that_holds_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
