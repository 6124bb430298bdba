/* Pooled attention against its execution, row by row, and against Algorithm 2 done literally: all
 * mixes of small documents, then random pools. */
#include "pool_world.h"
#include "sharding/pool_cost.h"
#include "splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEQUENCES_MAX 4u
#define DOCUMENTS_MAX 64u

static bool full(void) {
    return getenv("BALLAST_TEST_FULL") != NULL;
}

static const struct pool_method *const methods[] = {
    &pool_algorithm_2_literal,
    &pool_algorithm_2,
    &pool_home_first,
    &pool_coarse_first,
};

#define METHODS (sizeof methods / sizeof methods[0])

/* The largest load is at most the capacity, or the mean and the largest tile. */
static bool loads_are_bounded(const struct pool_world *world) {
    const struct pool_shape *shape = &world->pool.shape;
    uint64_t largest = 0;
    uint64_t sum = 0;
    uint64_t load_max = 0;
    for (uint32_t i = 0; i < world->tiles.piece_count; i++) {
        uint64_t load = world->tiles.pieces[i].pairs * pool_shard_heads(shape);
        largest = load > largest ? load : largest;
    }
    for (uint32_t w = 0; w < pool_workers(shape); w++) {
        sum += world->loads[w];
        load_max = world->loads[w] > load_max ? world->loads[w] : load_max;
    }
    return load_max <= pool_capacity(shape, &world->tiles) ||
           (load_max - largest) * pool_workers(shape) <= sum;
}

/* All methods, exchanges and directions of one pool; NULL when nothing is wrong. */
static const char *world_fault(struct pool_world *world) {
    const struct pool_shape *shape = &world->pool.shape;
    uint32_t tiles = pool_tile_count(shape, &world->tiles);
    uint32_t *workers = calloc(tiles + 1, sizeof *workers);
    uint64_t *loads = calloc(pool_workers(shape), sizeof *loads);
    const char *fault = NULL;
    for (size_t i = 0; fault == NULL && i < METHODS; i++) {
        pool_place(&world->pool, &world->tiles, methods[i], world->scratch, world->workers,
                   world->loads);
        pool_literal_place(world, methods[i], workers, loads);
        if (memcmp(workers, world->workers, tiles * sizeof *workers) != 0 ||
            memcmp(loads, world->loads, pool_workers(shape) * sizeof *loads) != 0) {
            fault = "the placement is not the literal one";
        } else if (!loads_are_bounded(world)) {
            fault = "a load is beyond the bound of list scheduling";
        }
        for (unsigned chain = 0; fault == NULL && chain < 2; chain++) {
            struct pool_exchange_options options = {methods[i]->prefix, chain == 1};
            pool_world_exchange(world, &options);
            fault = pool_world_fault(world, options.prefix);
        }
    }
    free(loads);
    free(workers);
    return fault;
}

static void shape_say(const struct pool_world *world, const char *fault) {
    const struct pool_shape *shape = &world->pool.shape;
    print_error("%s: P %u CP %u B %u H %u heads %u/%u, documents", fault, shape->sequences,
                shape->ranks, shape->block_rows, shape->head_shards, shape->q_heads,
                shape->kv_heads);
    for (uint32_t s = 0; s < shape->sequences; s++) {
        for (uint32_t i = 0; i < world->pool.sequences[s].documents && i < 20; i++) {
            print_error(" %u", world->pool.sequences[s].lengths[i]);
        }
        print_error(s + 1 < shape->sequences ? " |" : "\n");
    }
}

static void try_pool(const struct pool_shape *shape, const uint32_t *lengths,
                     const uint32_t *counts, enum world_homes homes, uint64_t seed) {
    struct pool_world world;
    pool_world_init(&world, shape, lengths, counts, homes, seed);
    const char *fault = world_fault(&world);
    if (fault != NULL) {
        print_error("homes %d seed %" PRIu64 ": ", (int)homes, seed);
        shape_say(&world, fault);
    }
    assert_null(fault);
    pool_world_deinit(&world);
}

/* The mix-th way to cut `tokens` rows into documents: bit i ends one after row i. */
static uint32_t compose(uint32_t tokens, uint32_t mix, uint32_t *lengths) {
    uint32_t count = 0;
    uint32_t length = 0;
    for (uint32_t row = 0; row < tokens; row++) {
        length++;
        if (row + 1 == tokens || (mix >> row & 1) != 0) {
            lengths[count++] = length;
            length = 0;
        }
    }
    return count;
}

static void try_mixes(const struct pool_shape *shape, uint32_t first, uint32_t second) {
    uint32_t lengths[32];
    uint32_t counts[2];
    for (uint32_t a = 0; a < (first > 0 ? 1u << (first - 1) : 1); a++) {
        for (uint32_t b = 0; b < (second > 0 ? 1u << (second - 1) : 1); b++) {
            counts[0] = compose(first, a, lengths);
            counts[1] = compose(second, b, lengths + counts[0]);
            for (enum world_homes homes = 0; homes < HOMES; homes++) {
                try_pool(shape, lengths, counts, homes, a * 64 + b);
            }
        }
    }
}

static void every_small_pool_computes_each_pair_once(void **state) {
    (void)state;
    static const struct {
        uint32_t block_rows, head_shards, q_heads, kv_heads;
    } cells[] = {{1, 1, 1, 1}, {2, 2, 2, 1}, {3, 2, 4, 2},
                 {2, 4, 4, 2}, {4, 1, 4, 4}, {9, 4, 4, 4}};
    uint32_t tokens_max = full() ? 7 : 5;
    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++) {
        struct pool_shape shape = {
            2, 2, cells[i].block_rows, cells[i].head_shards, cells[i].q_heads, cells[i].kv_heads,
            3, 2};
        for (uint32_t first = 0; first <= tokens_max; first++) {
            for (uint32_t second = 0; second <= first; second++) {
                if (first > 0) {
                    try_mixes(&shape, first, second);
                }
            }
        }
    }
}

static struct pool_shape random_shape(uint64_t *random) {
    static const uint32_t shards[] = {1, 2, 4, 8};
    uint32_t kv_heads = 1u << splitmix_between(random, 0, 2);
    return (struct pool_shape){
        .sequences = splitmix_between(random, 1, SEQUENCES_MAX),
        .ranks = splitmix_between(random, 1, 4),
        .block_rows = splitmix_between(random, 1, 64),
        .head_shards = shards[splitmix_between(random, 0, 3)],
        .q_heads = 8,
        .kv_heads = kv_heads,
        .head_dim = splitmix_between(random, 1, 128),
        .element_bytes = 2,
    };
}

static void random_pools_compute_each_pair_once(void **state) {
    (void)state;
    uint32_t worlds = full() ? 8000 : 600;
    for (uint64_t seed = 1; seed <= worlds; seed++) {
        uint64_t random = seed;
        struct pool_shape shape = random_shape(&random);
        uint32_t lengths[SEQUENCES_MAX * DOCUMENTS_MAX];
        uint32_t counts[SEQUENCES_MAX];
        uint32_t documents = 0;
        uint32_t spread = splitmix_between(&random, 1, 40);
        for (uint32_t s = 0; s < shape.sequences; s++) {
            counts[s] = splitmix_between(&random, 0, 8);
            for (uint32_t i = 0; i < counts[s]; i++) {
                bool heavy = splitmix_between(&random, 0, 9) == 0;
                lengths[documents++] = splitmix_between(&random, 1, heavy ? 300 : spread);
            }
        }
        try_pool(&shape, lengths, counts, (enum world_homes)(seed % HOMES), seed);
    }
}

static void extreme_sequences_compute_each_pair_once(void **state) {
    (void)state;
    enum { TOKENS = 10000 };
    static uint32_t lengths[TOKENS + 4];
    struct pool_shape shape = {.sequences = 4,
                               .ranks = 2,
                               .block_rows = 4096,
                               .head_shards = 2,
                               .q_heads = 2,
                               .kv_heads = 1,
                               .head_dim = 64,
                               .element_bytes = 2};
    /* A full window, ten thousand documents, one token, nothing. */
    const uint32_t counts[] = {1, TOKENS, 1, 0};
    lengths[0] = TOKENS;
    for (uint32_t i = 1; i <= TOKENS; i++) {
        lengths[i] = 1;
    }
    lengths[TOKENS + 1] = 1;
    for (enum world_homes homes = 0; homes < HOMES; homes++) {
        try_pool(&shape, lengths, counts, homes, 1);
    }
}

/* Thousands of rows a sequence: too many to place literally, all are executed. */
static void large_random_pools_compute_each_pair_once(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= (full() ? 200 : 6); seed++) {
        static uint32_t lengths[SEQUENCES_MAX * 1000];
        uint64_t random = seed;
        struct pool_shape shape = random_shape(&random);
        uint32_t counts[SEQUENCES_MAX] = {0};
        uint32_t documents = 0;
        shape.block_rows = splitmix_between(&random, 16, 512);
        for (uint32_t s = 0; s < shape.sequences; s++) {
            for (uint32_t rows = 0; rows < 3000 && counts[s] < 1000; counts[s]++) {
                bool heavy = splitmix_between(&random, 0, 30) == 0;
                uint32_t length = splitmix_between(&random, 1, heavy ? 3000 : 60);
                lengths[documents++] = length;
                rows += length;
            }
        }
        struct pool_world world;
        struct pool_outcome outcome;
        const struct pool_exchange_options options = {true, seed % 2 == 0};
        pool_world_init(&world, &shape, lengths, counts, (enum world_homes)(seed % HOMES), seed);
        pool_plan(&world.pool, &world.tiles, options.chain, world.scratch, world.workers,
                  world.loads, world.links, &outcome);
        pool_world_exchange(&world, &options);
        const char *fault = pool_world_fault(&world, true);
        if (fault != NULL) {
            print_error("large, seed %" PRIu64 ": ", seed);
            shape_say(&world, fault);
        }
        assert_null(fault);
        assert_true(loads_are_bounded(&world));
        assert_int_equal(outcome.transfers, world.transfer_count);
        pool_world_deinit(&world);
    }
}

/* How often each key had been passed on before it came, row by row, at its most by worker. */
static void literal_hops(const struct pool_world *world, uint32_t heads, uint64_t *most) {
    enum { ROWS = 8 * 500 };
    static uint8_t depths[4 * SEQUENCES_MAX][SEQUENCES_MAX][ROWS][4];
    memset(depths, 0, sizeof depths);
    memset(most, 0, pool_workers(&world->pool.shape) * sizeof *most);
    for (size_t i = 0; i < world->transfer_count; i++) {
        const struct pool_transfer *transfer = &world->transfers[i];
        uint32_t range = transfer->head_begin / heads;
        for (uint32_t k = 0; transfer->payload == POOL_KV && k < transfer->rows; k++) {
            uint32_t row = transfer->row + k;
            uint8_t depth = depths[transfer->source][transfer->sequence][row][range];
            depths[transfer->worker][transfer->sequence][row][range] = (uint8_t)(depth + 1);
            most[transfer->worker] = depth > most[transfer->worker] ? depth
                                                                    : most[transfer->worker];
        }
    }
}

static void hops_of_a_chain_are_no_fewer_than_keys_make(void **state) {
    (void)state;
    uint32_t passed_on = 0;
    for (uint64_t seed = 1; seed <= (full() ? 2000 : 200); seed++) {
        uint64_t random = seed;
        struct pool_shape shape = random_shape(&random);
        uint32_t lengths[SEQUENCES_MAX * 8];
        uint32_t counts[SEQUENCES_MAX];
        uint32_t documents = 0;
        for (uint32_t s = 0; s < shape.sequences; s++) {
            counts[s] = splitmix_between(&random, 0, 8);
            for (uint32_t i = 0; i < counts[s]; i++) {
                lengths[documents++] = splitmix_between(&random, 1, i % 5 == 0 ? 500 : 50);
            }
        }
        struct pool_world world;
        uint64_t most[4 * SEQUENCES_MAX];
        pool_world_init(&world, &shape, lengths, counts, (enum world_homes)(seed % HOMES), seed);
        pool_place(&world.pool, &world.tiles, methods[seed % METHODS], world.scratch, world.workers,
                   world.loads);
        for (unsigned chain = 0; chain < 2; chain++) {
            struct pool_exchange_options options = {methods[seed % METHODS]->prefix, chain == 1};
            pool_world_exchange(&world, &options);
            literal_hops(&world, pool_range_heads(&shape), most);
            for (uint32_t w = 0; w < pool_workers(&shape); w++) {
                const struct pool_link *link = &world.links[w];
                assert_true(link->hops >= most[w] && link->hops < pool_workers(&shape));
                assert_true(link->hop_bytes >= link->hops &&
                            link->hop_bytes <= link->hops * link->kv_in);
                assert_true(chain == 1 || link->hops == 0);
                passed_on += most[w] > 1;
            }
        }
        pool_world_deinit(&world);
    }
    assert_true(passed_on > 50);
}

/* The fragments of a document's rows that a worker computes for a head shard. */
static uint32_t document_fragments(const struct pool_world *world, uint32_t sequence,
                                   uint32_t first, uint32_t length, uint32_t worker, uint32_t shard,
                                   struct fragment *out) {
    uint32_t shards = world->pool.shape.head_shards;
    uint32_t count = 0;
    for (uint32_t i = 0; i < world->tiles.piece_count; i++) {
        const struct pool_piece *piece = &world->tiles.pieces[i];
        uint32_t begin = piece->row > first ? piece->row : first;
        uint32_t end = piece->row + piece->rows < first + length ? piece->row + piece->rows
                                                                 : first + length;
        if (piece->sequence == sequence && begin < end &&
            world->workers[i * shards + shard] == worker) {
            out[count++] = (struct fragment){0, begin - first, end - begin};
        }
    }
    return count;
}

static uint64_t literal_worker_ps(const struct pool_world *world, const struct tile_model *model,
                                  uint32_t worker) {
    static struct fragment fragments[4096];
    struct tile_loads loads = {0};
    for (uint32_t s = 0; s < world->pool.shape.sequences; s++) {
        uint32_t first = 0;
        for (uint32_t d = 0; d < world->pool.sequences[s].documents; d++) {
            uint32_t length = world->pool.sequences[s].lengths[d];
            for (uint32_t shard = 0; shard < world->pool.shape.head_shards; shard++) {
                uint32_t count = document_fragments(world, s, first, length, worker, shard,
                                                    fragments);
                tile_loads_add(model, &loads, fragments, count);
            }
            first += length;
        }
    }
    return tile_loads_ps(model, &loads);
}

static void workers_are_priced_by_their_own_tiles(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= (full() ? 3000 : 300); seed++) {
        uint64_t random = seed;
        struct pool_shape shape = random_shape(&random);
        uint32_t lengths[SEQUENCES_MAX * 8];
        uint32_t counts[SEQUENCES_MAX];
        uint32_t documents = 0;
        for (uint32_t s = 0; s < SEQUENCES_MAX; s++) {
            counts[s] = splitmix_between(&random, 0, 8);
            for (uint32_t i = 0; i < counts[s] && s < shape.sequences; i++) {
                lengths[documents++] = splitmix_between(&random, 1, i % 5 == 0 ? 500 : 50);
            }
        }
        struct pool_world world;
        struct tile_model model;
        struct tile_model shard_model;
        uint64_t worker_ps[4 * SEQUENCES_MAX];
        pool_world_init(&world, &shape, lengths, counts, (enum world_homes)(seed % HOMES), seed);
        pool_place(&world.pool, &world.tiles, methods[seed % METHODS], world.scratch, world.workers,
                   world.loads);
        assert_int_equal(tile_model_analytic(128, shape.q_heads, shape.kv_heads, 0, &model), 0);
        shard_model = model;
        shard_model.q_heads = pool_shard_heads(&shape);
        shard_model.kv_heads = pool_range_heads(&shape);
        void *scratch = malloc(pool_cost_bytes(&shape, documents, world.tiles.piece_count));
        assert_non_null(scratch);
        pool_cost(&world.pool, &world.tiles, world.workers, &model, scratch, worker_ps);
        free(scratch);
        for (uint32_t w = 0; w < pool_workers(&shape); w++) {
            assert_int_equal(worker_ps[w], literal_worker_ps(&world, &shard_model, w));
        }
        pool_world_deinit(&world);
    }
}

static void a_pool_of_nothing_has_no_tiles(void **state) {
    (void)state;
    struct pool_shape shape = {2, 2, 4, 1, 1, 1, 1, 2};
    const uint32_t counts[] = {0, 0};
    const uint32_t none[] = {0};
    struct pool_world world;
    struct pool_outcome outcome;
    pool_world_init(&world, &shape, none, counts, HOMES_CONTIGUOUS, 0);
    pool_plan(&world.pool, &world.tiles, false, world.scratch, world.workers, world.loads,
              world.links, &outcome);
    assert_int_equal(world.tiles.piece_count, 0);
    assert_int_equal(outcome.load_max, 0);
    assert_int_equal(outcome.transfers, 0);
    pool_world_deinit(&world);
}

static void one_block_and_one_head_shard_stay_at_home(void **state) {
    (void)state;
    struct pool_shape shape = {1, 1, 1000, 1, 8, 2, 128, 2};
    const uint32_t counts[] = {3};
    const uint32_t lengths[] = {400, 1, 500};
    for (size_t i = 0; i < METHODS; i++) {
        struct pool_world world;
        struct pool_exchange_options options = {methods[i]->prefix, false};
        pool_world_init(&world, &shape, lengths, counts, HOMES_CONTIGUOUS, 0);
        pool_place(&world.pool, &world.tiles, methods[i], world.scratch, world.workers,
                   world.loads);
        pool_world_exchange(&world, &options);
        assert_int_equal(world.tiles.piece_count, 1);
        assert_int_equal(world.workers[0], 0);
        assert_int_equal(world.transfer_count, 0);
        pool_world_deinit(&world);
    }
}

/* The plan is one of the candidates, and none of them is better. */
static void the_plan_is_the_best_candidate(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        uint64_t random = seed;
        struct pool_shape shape = random_shape(&random);
        uint32_t lengths[SEQUENCES_MAX * 3];
        uint32_t counts[SEQUENCES_MAX];
        for (uint32_t s = 0; s < SEQUENCES_MAX; s++) {
            counts[s] = 3;
        }
        for (uint32_t i = 0; i < SEQUENCES_MAX * 3; i++) {
            lengths[i] = splitmix_between(&random, 1, i % 5 == 0 ? 500 : 50);
        }
        struct pool_world world;
        struct pool_outcome plan;
        const struct pool_exchange_options options = {true, seed % 2 == 0};
        pool_world_init(&world, &shape, lengths, counts, HOMES_CONTIGUOUS, seed);
        pool_plan(&world.pool, &world.tiles, options.chain, world.scratch, world.workers,
                  world.loads, world.links, &plan);
        pool_world_exchange(&world, &options);
        assert_null(pool_world_fault(&world, true));
        bool found = false;
        for (size_t i = 1; i < METHODS; i++) {
            struct pool_outcome other;
            pool_place(&world.pool, &world.tiles, methods[i], world.scratch, world.workers,
                       world.loads);
            pool_price(&world.pool, &world.tiles, world.workers, world.loads, &options,
                       world.scratch, world.links, &other);
            assert_false(pool_outcome_better(&other, &plan));
            found = found || (plan.method == methods[i] && other.bytes == plan.bytes &&
                              other.load_max == plan.load_max);
        }
        assert_true(found);
        pool_world_deinit(&world);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_small_pool_computes_each_pair_once),
        cmocka_unit_test(random_pools_compute_each_pair_once),
        cmocka_unit_test(extreme_sequences_compute_each_pair_once),
        cmocka_unit_test(large_random_pools_compute_each_pair_once),
        cmocka_unit_test(hops_of_a_chain_are_no_fewer_than_keys_make),
        cmocka_unit_test(workers_are_priced_by_their_own_tiles),
        cmocka_unit_test(a_pool_of_nothing_has_no_tiles),
        cmocka_unit_test(one_block_and_one_head_shard_stay_at_home),
        cmocka_unit_test(the_plan_is_the_best_candidate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
