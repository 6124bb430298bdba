/* pool_plan: see pool_plan.h. */
#include "sharding/pool_plan.h"

#include <string.h>

/* The arrays of the plan in hand, before the memory that both use in turn. */
struct pool_second {
    uint64_t *loads;
    struct pool_link *links;
    uint32_t *workers;
    void *rest;
};

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static size_t pool_even(size_t count) {
    return count + count % 2;
}

size_t pool_plan_bytes(const struct pool_shape *shape, const struct pool_tiles *tiles) {
    size_t place = pool_place_bytes(shape, tiles);
    size_t exchange = pool_exchange_bytes(shape, tiles);
    return pool_workers(shape) * (sizeof(uint64_t) + sizeof(struct pool_link)) +
           pool_even(pool_tile_count(shape, tiles)) * sizeof(uint32_t) +
           (place > exchange ? place : exchange);
}

static struct pool_second pool_second_of(const struct pool_shape *shape,
                                         const struct pool_tiles *tiles, void *scratch) {
    struct pool_second second = {.loads = scratch};
    second.links = (struct pool_link *)(second.loads + pool_workers(shape));
    second.workers = (uint32_t *)(second.links + pool_workers(shape));
    second.rest = second.workers + pool_even(pool_tile_count(shape, tiles));
    return second;
}

bool pool_outcome_better(const struct pool_outcome *a, const struct pool_outcome *b) {
    const uint64_t keys[][2] = {
        {larger(a->load_max, a->capacity), larger(b->load_max, b->capacity)},
        {a->bytes_link_max, b->bytes_link_max},
        {a->bytes, b->bytes},
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (keys[i][0] != keys[i][1]) {
            return keys[i][0] < keys[i][1];
        }
    }
    return false;
}

void pool_price(const struct pool *pool, const struct pool_tiles *tiles, const uint32_t *workers,
                const uint64_t *loads, const struct pool_exchange_options *options, void *scratch,
                struct pool_link *links, struct pool_outcome *out) {
    const struct pool_shape *shape = &pool->shape;
    *out = (struct pool_outcome){.capacity = pool_capacity(shape, tiles)};
    out->transfers = pool_exchange(pool, tiles, workers, options, scratch, NULL, 0, links);
    for (uint32_t w = 0; w < pool_workers(shape); w++) {
        out->load_max = larger(out->load_max, loads[w]);
        out->load_sum += loads[w];
        out->bytes_in_max = larger(out->bytes_in_max, pool_link_in(&links[w]));
        out->bytes_out_max = larger(out->bytes_out_max, pool_link_out(&links[w]));
        out->bytes_link_max = larger(out->bytes_link_max,
                                     pool_link_in(&links[w]) + pool_link_out(&links[w]));
        out->bytes += pool_link_in(&links[w]);
    }
    for (uint32_t tile = 0; tile < pool_tile_count(shape, tiles); tile++) {
        out->tiles_moved += workers[tile] != tiles->pieces[tile / shape->head_shards].home;
    }
}

void pool_plan(const struct pool *pool, const struct pool_tiles *tiles, bool chain, void *scratch,
               uint32_t *workers, uint64_t *loads, struct pool_link *links,
               struct pool_outcome *out) {
    static const struct pool_method *const others[] = {&pool_coarse_first, &pool_algorithm_2};
    const struct pool_shape *shape = &pool->shape;
    const struct pool_exchange_options options = {.prefix = true, .chain = chain};
    struct pool_second second = pool_second_of(shape, tiles, scratch);
    pool_place(pool, tiles, &pool_home_first, second.rest, workers, loads);
    pool_price(pool, tiles, workers, loads, &options, second.rest, links, out);
    out->method = &pool_home_first;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        struct pool_outcome outcome;
        pool_place(pool, tiles, others[i], second.rest, second.workers, second.loads);
        pool_price(pool, tiles, second.workers, second.loads, &options, second.rest, second.links,
                   &outcome);
        outcome.method = others[i];
        if (pool_outcome_better(&outcome, out)) {
            memcpy(workers, second.workers, pool_tile_count(shape, tiles) * sizeof *workers);
            memcpy(loads, second.loads, pool_workers(shape) * sizeof *loads);
            memcpy(links, second.links, pool_workers(shape) * sizeof *links);
            *out = outcome;
        }
    }
}
