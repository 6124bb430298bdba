/* pool_bench: time of a whole pool plan, three placements and the exchange written out, against
 * sorting its tiles' loads with qsort, from 512 to 65,536 tiles over 128 workers; and time a tile,
 * which should not rise with their number. 8 sequences of 1M tokens, CP 16, 4 head shards. */
#include "tests/sim/pools_world.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS_MAX       50u
#define LIMIT_TILES      4096u
#define LIMIT_NS         10000000u /* for so many tiles */
#define LIMIT_GROWTH_PCT 20u       /* of the time a tile, over the fewest tiles' */

static uint64_t now_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    uint64_t x;
    uint64_t y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

static uint64_t median(uint64_t *values, uint32_t count) {
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

static uint64_t sort_ns(const struct pooled *pooled, uint32_t tiles, uint64_t *loads) {
    for (uint32_t i = 0; i < tiles; i++) {
        loads[i] = pooled->tiles.pieces[i / 4].pairs;
    }
    uint64_t start = now_ns();
    qsort(loads, tiles, sizeof *loads, by_value);
    return now_ns() - start;
}

/* Returns the time a tile. */
static uint64_t measure(const struct windows *windows, uint32_t block_rows, uint32_t rounds) {
    static const uint32_t members[] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const struct pool_exchange_options options = {.prefix = true};
    struct pool_shape shape = {8, 16, block_rows, 4, 128, 4, 256, 2};
    uint64_t plan_ns[ROUNDS_MAX];
    uint64_t qsort_ns[ROUNDS_MAX];
    struct pooled pooled;
    struct pool_outcome outcome;
    pooled_init(&pooled, &shape, windows, members);
    uint32_t tiles = pool_tile_count(&shape, &pooled.tiles);
    uint64_t *loads = calloc(tiles, sizeof *loads);
    size_t capacity = 1u << 20;
    struct pool_transfer *transfers = calloc(capacity, sizeof *transfers);
    size_t count = 0;
    if (loads == NULL || transfers == NULL) {
        fprintf(stderr, "pool_bench: no memory\n");
        exit(1);
    }
    for (uint32_t round = 0; round < rounds; round++) {
        struct pool_tiles cut;
        uint64_t start = now_ns();
        pool_cut(&pooled.pool, pooled.tiles.pieces, pooled.tiles.spans, &cut);
        pool_plan(&pooled.pool, &cut, false, pooled.scratch, pooled.workers, pooled.loads,
                  pooled.links, &outcome);
        count = pool_exchange(&pooled.pool, &cut, pooled.workers, &options, pooled.scratch,
                              transfers, capacity, pooled.links);
        plan_ns[round] = now_ns() - start;
        qsort_ns[round] = sort_ns(&pooled, tiles, loads);
    }
    uint64_t plan = median(plan_ns, rounds);
    uint64_t sort = median(qsort_ns, rounds);
    printf("B %6u: %6u tiles, %6zu transfers, imbalance %.3f, plan %8.3f ms, %5.0f ns a tile, "
           "qsort %7.3f ms, %6.1fx\n",
           block_rows, tiles, count,
           (double)outcome.load_max * pool_workers(&shape) / (double)outcome.load_sum,
           (double)plan / 1e6, (double)plan / tiles, (double)sort / 1e6,
           (double)plan / (double)sort);
    free(transfers);
    free(loads);
    pooled_deinit(&pooled);
    return plan / tiles;
}

/* pool_bench [ROUNDS]: fewer rounds for a quick look, at which no limit is judged. */
int main(int argc, char **argv) {
    uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 15;
    rounds = rounds < 1 ? 1 : rounds > ROUNDS_MAX ? ROUNDS_MAX : rounds;
    struct windows windows;
    uint64_t first = 0;
    bool over = false;
    windows_init(&windows, "libra1m", 1, 8);
    for (uint32_t tiles = 512; tiles <= 65536; tiles *= 2) {
        uint64_t each = measure(&windows, 8 * 1048576 / (tiles / 4), rounds);
        first = first > 0 ? first : each;
        over = over || each * 100 > first * (100 + LIMIT_GROWTH_PCT) ||
               (tiles == LIMIT_TILES && each * tiles > LIMIT_NS);
    }
    windows_deinit(&windows);
    return over && argc == 1 ? 1 : 0;
}
