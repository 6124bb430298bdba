/* packer_bench: what packing costs, against libc's qsort of the same lengths.
 *
 * Documents by a fixed recipe (97.5 % lognormal around 2,000 tokens, the rest a Pareto tail up to
 * 131072), as they are and capped at 32768, work L * (L + 49152), bins of 1.5 times the mean
 * tokens. Sorting, packing, and packing with refinement to 1e-4 take turns; each figure is the
 * median of 7 turns, in CPU time of the thread, so that other work on the machine weighs little.
 * Then how it grows: with the bins, 32 documents each, and with the documents of 64 bins, time over
 * D log D is set beside that of the smallest. qsort, which is D log D itself, shows how much of a
 * growth is the memory's. */
#include "packer/greedy.h"
#include "packer/refine.h"
#include "tests/bench/figure.h"
#include "tests/property/splitmix.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEED          20250707u
#define TURNS         7u
#define GAP_PPM       100u
#define CAP_RAW       131072u
#define CAP_LOW       32768u
#define GROWTH_LIMIT  2.5 /* caches and memory are in it; D^1.25 would be at 2.8 */
#define GROWTH_BINS   64u
#define GROWTH_MOST   4096u
#define GROWTH_SHARE  32u   /* documents a bin */
#define GROWTH_REPEAT 4096u /* bins' worth of work in a turn */

struct world {
    uint32_t items;
    uint32_t bins;
    uint32_t cap;     /* longest document */
    uint32_t repeats; /* in one turn, so that the clock can see it */
};

struct bench {
    struct world world;
    struct pack_input input;
    uint32_t *lengths;
    uint64_t *works;
    uint32_t *unsorted; /* `repeats` copies of the lengths */
    uint32_t *bin_of;
    uint32_t *order;
    uint64_t *bin_work;
    uint64_t *bin_tokens;
    void *pack_scratch;
    void *refine_scratch;
    struct refine_report report;
};

/* One turn each, us per repeat. */
struct times {
    double qsort[TURNS];
    double pack[TURNS];
    double refined[TURNS];
};

static double draw_unit(uint64_t *random) {
    return ((double)(splitmix_next(random) >> 11) + 0.5) / 9007199254740992.0;
}

static uint32_t draw_length(uint64_t *random, uint32_t cap) {
    double a = draw_unit(random);
    double b = draw_unit(random);
    double c = draw_unit(random);
    double length = exp(7.6 + 0.9 * sqrt(-2.0 * log(b)) * cos(6.283185307179586 * c));
    if (a >= 0.975) {
        double low = pow(8192, -0.9);
        length = pow(low - b * (low - pow(131072, -0.9)), -1 / 0.9);
    }
    return length < 16 ? 16 : length > cap ? cap : (uint32_t)length;
}

static void *reserve(size_t bytes) {
    void *memory = malloc(bytes);
    assert(memory != NULL);
    return memset(memory, 0, bytes);
}

static void bench_open(struct bench *bench, const struct world *world) {
    uint32_t items = world->items;
    uint64_t random = SEED;
    uint64_t tokens = 0;
    bench->world = *world;
    bench->lengths = reserve(items * sizeof *bench->lengths);
    bench->works = reserve(items * sizeof *bench->works);
    bench->unsorted = reserve((size_t)items * world->repeats * sizeof *bench->unsorted);
    bench->bin_of = reserve(items * sizeof *bench->bin_of);
    bench->order = reserve(items * sizeof *bench->order);
    bench->bin_work = reserve(world->bins * sizeof *bench->bin_work);
    bench->bin_tokens = reserve(world->bins * sizeof *bench->bin_tokens);
    bench->pack_scratch = reserve(pack_greedy_bytes(items, world->bins));
    bench->refine_scratch = reserve(pack_refine_bytes(items, world->bins));
    for (uint32_t i = 0; i < items; i++) {
        bench->lengths[i] = draw_length(&random, world->cap);
        bench->works[i] = (uint64_t)bench->lengths[i] * (bench->lengths[i] + 49152);
        tokens += bench->lengths[i];
    }
    bench->input = (struct pack_input){
        bench->lengths,   bench->works, items, world->bins, tokens * 3 / 2 / world->bins,
        PACK_SEARCH_EXACT};
}

static void bench_close(struct bench *bench) {
    free(bench->lengths);
    free(bench->works);
    free(bench->unsorted);
    free(bench->bin_of);
    free(bench->order);
    free(bench->bin_work);
    free(bench->bin_tokens);
    free(bench->pack_scratch);
    free(bench->refine_scratch);
}

static int compare_lengths(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return (x < y) - (x > y);
}

static double time_qsort(struct bench *bench) {
    uint32_t items = bench->world.items;
    for (uint32_t i = 0; i < bench->world.repeats; i++) {
        memcpy(bench->unsorted + (size_t)i * items, bench->lengths, items * sizeof(uint32_t));
    }
    double start = figure_cpu_us();
    for (uint32_t i = 0; i < bench->world.repeats; i++) {
        qsort(bench->unsorted + (size_t)i * items, items, sizeof(uint32_t), compare_lengths);
    }
    return (figure_cpu_us() - start) / bench->world.repeats;
}

static double time_pack(struct bench *bench, bool refine) {
    const struct refine_options options = {GAP_PPM, UINT64_MAX};
    double start = figure_cpu_us();
    for (uint32_t i = 0; i < bench->world.repeats; i++) {
        pack_greedy(&bench->input, bench->pack_scratch, bench->bin_of, bench->order,
                    bench->bin_work, bench->bin_tokens);
        if (refine) {
            bench->report = pack_refine(&bench->input, &options, bench->refine_scratch,
                                        bench->bin_of, bench->order, bench->bin_work,
                                        bench->bin_tokens);
        }
    }
    return (figure_cpu_us() - start) / bench->world.repeats;
}

static void bench_run(struct bench *bench, uint32_t turns, struct times *times) {
    for (uint32_t turn = 0; turn < turns; turn++) {
        times->qsort[turn] = time_qsort(bench);
        times->pack[turn] = time_pack(bench, false);
        times->refined[turn] = time_pack(bench, true);
    }
}

static void measure(struct figures *figures, const struct world *world) {
    uint32_t turns = figures->smoke ? 1 : TURNS;
    char subject[64];
    struct bench bench = {0};
    struct times times;
    double sorted[TURNS];
    bench_open(&bench, world);
    bench_run(&bench, turns, &times);
    memcpy(sorted, times.qsort, sizeof sorted);
    (void)snprintf(subject, sizeof subject, "%" PRIu32 " -> %" PRIu32 "%s", world->items,
                   world->bins, world->cap == CAP_RAW ? "" : " capped");
    struct figure figure = {.subject = subject, .name = "pack", .unit = "us", .peer = "qsort"};
    figure.rule = FIGURE_AT_MOST;
    figure.limit = 1.0;
    figures_add_turns(figures, &figure, times.pack, times.qsort, turns);
    figure.name = "pack and refine";
    figure.limit = 2.0;
    figures_add_turns(figures, &figure, times.refined, sorted, turns);
    uint64_t above = bench.report.max - bench.report.bound;
    figure = (struct figure){
        .subject = subject,
        .name = "above the bound",
        .unit = "ppm",
        .value = (double)above * 1e6 / (double)bench.report.bound,
        .rule = FIGURE_AT_MOST,
        .limit = GAP_PPM,
    };
    figures_add(figures, &figure);
    bench_close(&bench);
}

/* Time over D log D, ns. */
struct normalised {
    double qsort;
    double pack;
    double refined;
};

static struct normalised normalise(const struct world *world, uint32_t turns) {
    struct bench bench = {0};
    struct times times;
    bench_open(&bench, world);
    bench_run(&bench, turns, &times);
    bench_close(&bench);
    double unit = (double)world->items * log2(world->items) / 1e3;
    return (struct normalised){
        .qsort = figure_least(times.qsort, turns) / unit,
        .pack = figure_least(times.pack, turns) / unit,
        .refined = figure_least(times.refined, turns) / unit,
    };
}

static void grow(struct figures *figures, bool bins_grow) {
    struct normalised first = {0};
    for (uint32_t size = GROWTH_BINS; size <= GROWTH_MOST; size *= 4) {
        struct world world = {
            .items = size * GROWTH_SHARE,
            .bins = bins_grow ? size : GROWTH_BINS,
            .cap = CAP_RAW,
            .repeats = figures->smoke ? 1 : GROWTH_REPEAT / size,
        };
        struct normalised now = normalise(&world, figures->smoke ? 1 : TURNS);
        first = size == GROWTH_BINS ? now : first;
        const struct {
            const char *name;
            double now;
            double first;
        } growths[] = {
            {"pack / D log D", now.pack, first.pack},
            {"pack, refine / D log D", now.refined, first.refined},
            {"qsort / D log D", now.qsort, first.qsort},
        };
        char subject[64];
        (void)snprintf(subject, sizeof subject, "%" PRIu32 " -> %" PRIu32, world.items, world.bins);
        for (size_t i = 0; i < 3; i++) {
            struct figure figure = {
                .subject = subject,
                .name = growths[i].name,
                .unit = "ns",
                .value = growths[i].now,
                .peer = "smallest",
                .peer_value = growths[i].first,
                .ratio = growths[i].now / growths[i].first,
                .rule = i < 2 ? FIGURE_AT_MOST : FIGURE_REPORTED,
                .limit = GROWTH_LIMIT,
            };
            figures_add(figures, &figure);
        }
    }
}

int main(int argc, char **argv) {
    static const struct world worlds[] = {
        {512, 16, CAP_RAW, 64}, {512, 16, CAP_LOW, 64},    {8192, 64, CAP_RAW, 4},
        {8192, 64, CAP_LOW, 4}, {100000, 512, CAP_RAW, 1}, {100000, 512, CAP_LOW, 1},
    };
    struct figures figures;
    figures_begin(&figures, "packer", &argc, argv);
    if (argc > 1) {
        fprintf(stderr, "usage: packer_bench [--json] [--smoke]\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
        measure(&figures, &worlds[i]);
    }
    grow(&figures, true);
    grow(&figures, false);
    return figures_end(&figures);
}
