/* pool_bench: time of a whole pool plan, three placements, prices and the exchange written out,
 * against sorting its tiles' loads with qsort, from 512 to 65,536 tiles over 128 workers; and time
 * a tile, which should not rise with their number. 8 sequences of 1M tokens, CP 16, 4 head shards.
 */
#include "sharding/pool_cost.h"
#include "tests/bench/figure.h"
#include "tests/sim/pools_world.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS       15u
#define LIMIT_TILES  4096u
#define LIMIT_MS     10.0 /* for so many tiles */
#define LIMIT_GROWTH 1.2  /* of the time a tile, over the fewest tiles' */

static int by_value(const void *a, const void *b) {
    uint64_t x;
    uint64_t y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

static double sort_us(const struct pooled *pooled, uint32_t tiles, uint64_t *loads) {
    for (uint32_t i = 0; i < tiles; i++) {
        loads[i] = pooled->tiles.pieces[i / 4].pairs;
    }
    double start = figure_cpu_us();
    qsort(loads, tiles, sizeof *loads, by_value);
    return figure_cpu_us() - start;
}

struct outcome_of {
    uint32_t block_rows;
    uint32_t tiles;
    size_t transfers;
    const struct pool_shape *shape;
    const struct pool_outcome *outcome;
};

static void report(struct figures *figures, const struct outcome_of *of, double *plan_us,
                   double *qsort_us, uint32_t rounds, double *first_ns) {
    char subject[64];
    (void)snprintf(subject, sizeof subject, "%" PRIu32 " tiles of %" PRIu32, of->tiles,
                   of->block_rows);
    struct figure figure = {.subject = subject, .name = "plan", .unit = "us", .peer = "qsort"};
    figures_add_turns(figures, &figure, plan_us, qsort_us, rounds);
    double tile_ns = figure_least(plan_us, rounds) * 1e3 / of->tiles;
    *first_ns = *first_ns > 0 ? *first_ns : tile_ns;
    if (of->tiles == LIMIT_TILES) {
        figure = (struct figure){.subject = subject, .name = "plan", .unit = "ms"};
        figure.value = figure_median(plan_us, rounds) / 1e3;
        figure.rule = FIGURE_AT_MOST;
        figure.limit = LIMIT_MS;
        figures_add(figures, &figure);
    }
    figure = (struct figure){
        .subject = subject,
        .name = "plan / tile",
        .unit = "ns",
        .value = tile_ns,
        .peer = "smallest",
        .peer_value = *first_ns,
        .ratio = tile_ns / *first_ns,
        .rule = FIGURE_AT_MOST,
        .limit = LIMIT_GROWTH,
    };
    figures_add(figures, &figure);
    figure = (struct figure){.subject = subject, .name = "imbalance", .unit = "x mean"};
    figure.value = (double)of->outcome->load_max * pool_workers(of->shape) /
                   (double)of->outcome->load_sum;
    figures_add(figures, &figure);
    figure = (struct figure){.subject = subject, .name = "transfers", .unit = ""};
    figure.value = (double)of->transfers;
    figures_add(figures, &figure);
}

/* `first_ns`: the time a tile of the fewest, 0 before. */
static void measure(struct figures *figures, const struct windows *windows, uint32_t block_rows,
                    double *first_ns) {
    static const uint32_t members[] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const struct pool_exchange_options options = {.prefix = true};
    struct pool_shape shape = {8, 16, block_rows, 4, 128, 4, 256, 2};
    uint32_t rounds = figures->smoke ? 1 : ROUNDS;
    double plan_us[ROUNDS];
    double qsort_us[ROUNDS];
    struct pooled pooled;
    struct pool_outcome outcome;
    pooled_init(&pooled, &shape, windows, members);
    uint32_t tiles = pool_tile_count(&shape, &pooled.tiles);
    uint64_t *loads = calloc(tiles, sizeof *loads);
    size_t capacity = 1u << 20;
    struct pool_transfer *transfers = calloc(capacity, sizeof *transfers);
    size_t count = 0;
    struct tile_model model;
    uint64_t worker_ps[128];
    void *cost_scratch = malloc(
        pool_cost_bytes(&shape, windows->begins[windows->count], pooled.tiles.piece_count));
    if (loads == NULL || transfers == NULL || cost_scratch == NULL ||
        tile_model_analytic(128, 128, 4, 0, &model) < 0) {
        fprintf(stderr, "pool_bench: no memory\n");
        exit(1);
    }
    for (uint32_t round = 0; round < rounds; round++) {
        struct pool_tiles cut;
        double start = figure_cpu_us();
        pool_cut(&pooled.pool, pooled.tiles.pieces, pooled.tiles.spans, &cut);
        pool_plan(&pooled.pool, &cut, false, pooled.scratch, pooled.workers, pooled.loads,
                  pooled.links, &outcome);
        pool_cost(&pooled.pool, &cut, pooled.workers, &model, cost_scratch, worker_ps);
        count = pool_exchange(&pooled.pool, &cut, pooled.workers, &options, pooled.scratch,
                              transfers, capacity, pooled.links);
        plan_us[round] = figure_cpu_us() - start;
        qsort_us[round] = sort_us(&pooled, tiles, loads);
    }
    report(figures, &(struct outcome_of){block_rows, tiles, count, &shape, &outcome}, plan_us,
           qsort_us, rounds, first_ns);
    free(cost_scratch);
    free(transfers);
    free(loads);
    pooled_deinit(&pooled);
}

int main(int argc, char **argv) {
    struct figures figures;
    struct windows windows;
    double first_ns = 0;
    figures_begin(&figures, "pool", &argc, argv);
    if (argc > 1) {
        fprintf(stderr, "usage: pool_bench [--json] [--smoke]\n");
        return 2;
    }
    windows_init(&windows, "libra1m", 1, 8);
    for (uint32_t tiles = 512; tiles <= 65536; tiles *= 2) {
        measure(&figures, &windows, 8 * 1048576 / (tiles / 4), &first_ns);
    }
    windows_deinit(&windows);
    return figures_end(&figures);
}
