/* packer_bench: what packing costs, against libc's qsort of the same lengths.
 *
 *     packer_bench [--json] [--smoke]
 *
 * Documents by a fixed recipe (97.5 % lognormal around 2,000 tokens, the rest a Pareto tail up to
 * 131072), as they are and capped at 32768, work L * (L + 49152), bins of 1.5 times the mean
 * tokens. Sorting, packing, and packing with refinement to 1e-4 take turns; each figure is the
 * median of 7 turns, in CPU time of the thread, so that other work on the machine weighs little.
 * Every figure stands beside its limit; exit 1 if one is over. --smoke: one turn, and limits are
 * not judged. */
#include "packer/greedy.h"
#include "packer/refine.h"
#include "tests/property/splitmix.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SEED      20250707u
#define TURNS_MAX 7u
#define GAP_PPM   100u

struct world {
    const char *name;
    uint32_t items;
    uint32_t bins;
    uint32_t cap;     /* longest document */
    uint32_t repeats; /* in one turn, so that the clock can see it */
};

static const struct world worlds[] = {
    {"512 -> 16 raw", 512, 16, 131072, 64},        {"512 -> 16 capped", 512, 16, 32768, 64},
    {"8192 -> 64 raw", 8192, 64, 131072, 4},       {"8192 -> 64 capped", 8192, 64, 32768, 4},
    {"100000 -> 512 raw", 100000, 512, 131072, 1}, {"100000 -> 512 capped", 100000, 512, 32768, 1},
};

#define WORLDS (sizeof worlds / sizeof worlds[0])

struct bench {
    const struct world *world;
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
    double qsort[TURNS_MAX];
    double pack[TURNS_MAX];
    double refined[TURNS_MAX];
};

struct figures {
    double qsort_us;
    double pack_us;
    double refined_us;
    double pack_ratio;
    double refined_ratio;
    double above_bound_ppm;
};

static const double pack_ratio_max = 1.0;
static const double refined_ratio_max = 2.0;
static const double above_bound_ppm_max = GAP_PPM;

static double now_us(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

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
    bench->world = world;
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
    uint32_t items = bench->world->items;
    for (uint32_t i = 0; i < bench->world->repeats; i++) {
        memcpy(bench->unsorted + (size_t)i * items, bench->lengths, items * sizeof(uint32_t));
    }
    double start = now_us();
    for (uint32_t i = 0; i < bench->world->repeats; i++) {
        qsort(bench->unsorted + (size_t)i * items, items, sizeof(uint32_t), compare_lengths);
    }
    return (now_us() - start) / bench->world->repeats;
}

static double time_pack(struct bench *bench, bool refine) {
    const struct refine_options options = {GAP_PPM, UINT64_MAX};
    double start = now_us();
    for (uint32_t i = 0; i < bench->world->repeats; i++) {
        pack_greedy(&bench->input, bench->pack_scratch, bench->bin_of, bench->order,
                    bench->bin_work, bench->bin_tokens);
        if (refine) {
            bench->report = pack_refine(&bench->input, &options, bench->refine_scratch,
                                        bench->bin_of, bench->order, bench->bin_work,
                                        bench->bin_tokens);
        }
    }
    return (now_us() - start) / bench->world->repeats;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t count) {
    qsort(values, count, sizeof *values, compare_doubles);
    return values[count / 2];
}

/* The median over the turns of `above` over `below`; both keep their order. */
static double median_ratio(const double *above, const double *below, uint32_t turns) {
    double ratios[TURNS_MAX];
    for (uint32_t turn = 0; turn < turns; turn++) {
        ratios[turn] = above[turn] / below[turn];
    }
    return median(ratios, turns);
}

static struct figures bench_run(struct bench *bench, uint32_t turns) {
    struct times times;
    for (uint32_t turn = 0; turn < turns; turn++) {
        times.qsort[turn] = time_qsort(bench);
        times.pack[turn] = time_pack(bench, false);
        times.refined[turn] = time_pack(bench, true);
    }
    struct refine_report report = bench->report;
    return (struct figures){
        .pack_ratio = median_ratio(times.pack, times.qsort, turns),
        .refined_ratio = median_ratio(times.refined, times.qsort, turns),
        .above_bound_ppm = (double)(report.max - report.bound) * 1e6 / (double)report.bound,
        .qsort_us = median(times.qsort, turns),
        .pack_us = median(times.pack, turns),
        .refined_us = median(times.refined, turns),
    };
}

static bool figures_within(const struct figures *figures) {
    return figures->pack_ratio <= pack_ratio_max && figures->refined_ratio <= refined_ratio_max &&
           figures->above_bound_ppm <= above_bound_ppm_max;
}

static void print_table(const struct figures *figures) {
    printf("%-20s %9s  %9s %16s  %10s %16s  %18s\n", "WORLD", "QSORT us", "PACK us",
           "x QSORT (LIMIT)", "REFINED us", "x QSORT (LIMIT)", "ABOVE BOUND, ppm");
    for (size_t i = 0; i < WORLDS; i++) {
        printf("%-20s %9.1f  %9.1f %9.2f (%.2f)  %10.1f %9.2f (%.2f)  %9.2f (%.0f)%s\n",
               worlds[i].name, figures[i].qsort_us, figures[i].pack_us, figures[i].pack_ratio,
               pack_ratio_max, figures[i].refined_us, figures[i].refined_ratio, refined_ratio_max,
               figures[i].above_bound_ppm, above_bound_ppm_max,
               figures_within(&figures[i]) ? "" : "  OVER");
    }
}

static void print_figure(const char *world, const char *name, double value, double limit,
                         bool last) {
    printf("    {\"world\": \"%s\", \"figure\": \"%s\", \"value\": %.4f, \"limit\": %.4f, "
           "\"within\": %s}%s\n",
           world, name, value, limit, value <= limit ? "true" : "false", last ? "" : ",");
}

static void print_json(const struct figures *figures) {
    printf("{\"bench\": \"packer\", \"figures\": [\n");
    for (size_t i = 0; i < WORLDS; i++) {
        const char *name = worlds[i].name;
        print_figure(name, "pack_over_qsort", figures[i].pack_ratio, pack_ratio_max, false);
        print_figure(name, "refined_over_qsort", figures[i].refined_ratio, refined_ratio_max,
                     false);
        print_figure(name, "above_bound_ppm", figures[i].above_bound_ppm, above_bound_ppm_max,
                     i + 1 == WORLDS);
    }
    printf("]}\n");
}

int main(int argc, char **argv) {
    bool json = false;
    bool smoke = false;
    for (int i = 1; i < argc; i++) {
        json = json || strcmp(argv[i], "--json") == 0;
        smoke = smoke || strcmp(argv[i], "--smoke") == 0;
        if (strcmp(argv[i], "--json") != 0 && strcmp(argv[i], "--smoke") != 0) {
            fprintf(stderr, "usage: packer_bench [--json] [--smoke]\n");
            return 2;
        }
    }
    struct figures figures[WORLDS];
    bool within = true;
    for (size_t i = 0; i < WORLDS; i++) {
        struct bench bench = {0};
        bench_open(&bench, &worlds[i]);
        figures[i] = bench_run(&bench, smoke ? 1 : TURNS_MAX);
        bench_close(&bench);
        within = within && figures_within(&figures[i]);
    }
    if (json) {
        print_json(figures);
    } else {
        print_table(figures);
    }
    return within || smoke ? 0 : 1;
}
