/* layout_bench: time to choose among all layouts for one packed sequence of 256K tokens at CP 16,
 * against sorting as many bytes as it deals in fragments, all candidates together, with qsort, and
 * against dealing and pricing every level in full; the time a candidate; and the same with the
 * exchange of needed keys priced. Windows of libra256k by best-fit, 64 of them a turn. */
#include "sharding/curve.h"
#include "sharding/select.h"
#include "tests/bench/figure.h"
#include "tests/sim/pools_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS      15u
#define WINDOWS     64u
#define CP          16u
#define LIMIT       0.4 /* of qsort: 0.5 ms a sequence on the slowest machine it was tried on */
#define CANDIDATES  15u /* layouts without levels, and the levels of those with */
#define PRUNED      0.9 /* of pricing every level in full */
#define BENT_POINTS 11u
#define MEASURED    0.5 /* with a profile all of whose points are bends */

static const struct layout_options gathered = {
    LAYOUTS_ALLOWED & ~(1u << LAYOUT_ULYSSES), 65536, {0}};
static const struct layout_options needed = {
    LAYOUTS_ALLOWED & ~(1u << LAYOUT_ULYSSES), 65536, {330000, 15000000, 128, true}};

static int by_value(const void *a, const void *b) {
    uint64_t x;
    uint64_t y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

static struct packed_sequence sequence_of(const struct windows *windows, uint32_t i) {
    struct packed_sequence sequence = {
        .lengths = windows->lengths + windows->begins[i],
        .documents = windows->begins[i + 1] - windows->begins[i],
    };
    for (uint32_t k = 0; k < sequence.documents; k++) {
        sequence.tokens += sequence.lengths[k];
    }
    sequence.pad_tokens = windows->window - sequence.tokens;
    return sequence;
}

static void choose(const struct windows *windows, const struct layout_options *options,
                   const struct tile_model *model, struct layout_dealer *dealer,
                   uint64_t *fragments) {
    for (uint32_t i = 0; i < WINDOWS; i++) {
        struct packed_sequence sequence = sequence_of(windows, i);
        struct layout_choice choice;
        uint64_t rank_ps[2 * CP];
        layout_select(options, &sequence, model, dealer, rank_ps, &choice);
        for (uint32_t k = 0; k < choice.candidate_count; k++) {
            uint32_t levels = spread_levels(choice.candidates[k].layout);
            *fragments += choice.candidates[k].fragments * (levels > 0 ? levels : 1);
        }
    }
}

/* Every level that deals the sequence in its own way, on every rank. */
static void price_all(const struct windows *windows, const struct tile_model *model,
                      struct layout_dealer *dealer, uint64_t *sum_ps) {
    for (uint32_t i = 0; i < WINDOWS; i++) {
        struct packed_sequence sequence = sequence_of(windows, i);
        layout_begin(dealer, &sequence, model);
        for (enum layout layout = LAYOUT_PER_SEQUENCE; layout <= LAYOUT_HYBRID; layout++) {
            uint32_t levels = spread_levels(layout) > 0 ? spread_levels(layout) : 1;
            for (uint32_t level = 0; level < levels; level++) {
                bool repeats = level > 0 &&
                               spread_repeats(&dealer->spread, (struct spread_rule){layout, level});
                bool dealt = !repeats && layout_deal(dealer, layout, level);
                for (uint32_t rank = 0; dealt && rank < CP; rank++) {
                    *sum_ps += layout_rank_ps(dealer, rank);
                }
            }
        }
    }
}

static double sort_us(uint64_t *words, uint64_t count) {
    uint64_t value = 1;
    for (uint64_t i = 0; i < count; i++) {
        value = value * UINT64_C(6364136223846793005) + 1442695040888963407u;
        words[i] = value;
    }
    double start = figure_cpu_us();
    qsort(words, count, sizeof *words, by_value);
    return figure_cpu_us() - start;
}

static void add_choose(struct figures *figures, const char *name, const char *peer, double limit,
                       const double *choose_us, const double *peer_us) {
    uint32_t rounds = figures->smoke ? 1 : ROUNDS;
    double values[ROUNDS];
    double peer_values[ROUNDS];
    struct figure figure = {
        .subject = "256K tokens, CP 16", .name = name, .unit = "us", .peer = peer};
    figure.rule = FIGURE_AT_MOST;
    figure.limit = limit;
    memcpy(values, choose_us, rounds * sizeof *values);
    memcpy(peer_values, peer_us, rounds * sizeof *peer_values);
    figures_add_turns(figures, &figure, values, peer_values, rounds);
}

static double choose_timed(const struct windows *windows, const struct layout_options *options,
                           const struct tile_model *model, void *memory, uint64_t *fragments) {
    struct layout_dealer dealer;
    layout_dealer_init(&dealer, memory, options, windows->begins[windows->count], CP);
    double start = figure_cpu_us();
    choose(windows, options, model, &dealer, fragments);
    return (figure_cpu_us() - start) / WINDOWS;
}

/* As a profile has it: eleven points a direction, each a bend. */
static struct tile_model measured(const struct tile_model *model) {
    struct tile_model bent = *model;
    struct tile_direction *directions[] = {&bent.forward, &bent.backward};
    for (uint32_t way = 0; way < 2; way++) {
        struct tile_point points[BENT_POINTS];
        for (uint32_t i = 0; i < BENT_POINTS; i++) {
            points[i].blocks = UINT64_C(1) << i;
            points[i].ps = (uint64_t)tile_time_ps(directions[way], UINT64_C(1) << i) * (100 + i) /
                           100;
        }
        tile_curve(points, BENT_POINTS, directions[way]);
    }
    return bent;
}

static void measure(struct figures *figures, const struct windows *windows) {
    uint32_t documents_max = windows->begins[windows->count];
    struct layout_dealer dealer;
    struct tile_model model;
    double choose_us[ROUNDS];
    double needed_us[ROUNDS];
    double measured_us[ROUNDS];
    double full_us[ROUNDS];
    double qsort_us[ROUNDS];
    uint64_t sum_ps = 0;
    uint32_t rounds = figures->smoke ? 1 : ROUNDS;
    void *memory = malloc(layout_dealer_bytes(&gathered, documents_max, CP));
    uint64_t *words = NULL;
    if (memory == NULL || tile_model_analytic(128, 32, 8, 0, &model) < 0) {
        fprintf(stderr, "layout_bench: no memory\n");
        exit(1);
    }
    const struct tile_model bent = measured(&model);
    for (uint32_t round = 0; round < rounds; round++) {
        uint64_t fragments = 0;
        uint64_t ignored = 0;
        measured_us[round] = choose_timed(windows, &gathered, &bent, memory, &ignored);
        needed_us[round] = choose_timed(windows, &needed, &model, memory, &ignored);
        choose_us[round] = choose_timed(windows, &gathered, &model, memory, &fragments);
        layout_dealer_init(&dealer, memory, &gathered, documents_max, CP);
        double start = figure_cpu_us();
        price_all(windows, &model, &dealer, &sum_ps);
        full_us[round] = (figure_cpu_us() - start) / WINDOWS;
        uint64_t count = fragments * sizeof(struct fragment) / sizeof *words;
        words = words != NULL ? words : malloc(count * sizeof *words);
        qsort_us[round] = words != NULL ? sort_us(words, count) / WINDOWS : 0;
    }
    add_choose(figures, "choose", "qsort", LIMIT, choose_us, qsort_us);
    add_choose(figures, "choose", "all in full", PRUNED, choose_us, full_us);
    add_choose(figures, "choose, profile", "qsort", MEASURED, measured_us, qsort_us);
    add_choose(figures, "choose, needed-only", "qsort", LIMIT, needed_us, qsort_us);
    struct figure figure = {
        .subject = "256K tokens, CP 16", .name = "choose / candidate", .unit = "us"};
    figure.value = figure_median(choose_us, rounds) / CANDIDATES;
    figures_add(figures, &figure);
    if (sum_ps == 0) {
        fprintf(stderr, "layout_bench: nothing was priced\n");
        exit(1);
    }
    free(words);
    free(memory);
}

int main(int argc, char **argv) {
    struct figures figures;
    struct windows windows;
    figures_begin(&figures, "layout", &argc, argv);
    if (argc > 1) {
        fprintf(stderr, "usage: layout_bench [--json] [--smoke]\n");
        return 2;
    }
    windows_init(&windows, "libra256k", 1, WINDOWS);
    measure(&figures, &windows);
    windows_deinit(&windows);
    return figures_end(&figures);
}
