/* layout_bench: time to choose among all layouts for one packed sequence of 256K tokens at CP 16,
 * against sorting as many bytes as it deals in fragments, all candidates together, with qsort; and
 * the time a candidate. Windows of libra256k by best-fit, 64 of them a turn. */
#include "sharding/select.h"
#include "tests/bench/figure.h"
#include "tests/sim/pools_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS     15u
#define WINDOWS    64u
#define CP         16u
#define LIMIT      0.4 /* of qsort: 0.5 ms a sequence on the slowest machine it was tried on */
#define CANDIDATES 15u /* layouts without levels, and the levels of those with */

static int by_value(const void *a, const void *b) {
    uint64_t x;
    uint64_t y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return x < y ? -1 : x > y;
}

static void choose(const struct windows *windows, const struct layout_options *options,
                   const struct tile_model *model, struct layout_dealer *dealer,
                   uint64_t *fragments) {
    for (uint32_t i = 0; i < WINDOWS; i++) {
        struct packed_sequence sequence = {
            .lengths = windows->lengths + windows->begins[i],
            .documents = windows->begins[i + 1] - windows->begins[i],
        };
        for (uint32_t k = 0; k < sequence.documents; k++) {
            sequence.tokens += sequence.lengths[k];
        }
        sequence.pad_tokens = windows->window - sequence.tokens;
        struct layout_choice choice;
        uint64_t rank_ps[2 * CP];
        layout_select(options, &sequence, model, dealer, rank_ps, &choice);
        for (uint32_t k = 0; k < choice.candidate_count; k++) {
            uint32_t levels = spread_levels(choice.candidates[k].layout);
            *fragments += choice.candidates[k].fragments * (levels > 0 ? levels : 1);
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

static void measure(struct figures *figures, const struct windows *windows) {
    struct layout_options options = {LAYOUTS_ALLOWED & ~(1u << LAYOUT_ULYSSES), 65536, 0};
    uint32_t documents_max = windows->begins[windows->count];
    struct layout_dealer dealer;
    struct tile_model model;
    double choose_us[ROUNDS];
    double qsort_us[ROUNDS];
    uint32_t rounds = figures->smoke ? 1 : ROUNDS;
    void *memory = malloc(layout_dealer_bytes(&options, documents_max, CP));
    uint64_t *words = NULL;
    if (memory == NULL || tile_model_analytic(128, 32, 8, 0, &model) < 0) {
        fprintf(stderr, "layout_bench: no memory\n");
        exit(1);
    }
    layout_dealer_init(&dealer, memory, &options, documents_max, CP);
    for (uint32_t round = 0; round < rounds; round++) {
        uint64_t fragments = 0;
        double start = figure_cpu_us();
        choose(windows, &options, &model, &dealer, &fragments);
        choose_us[round] = (figure_cpu_us() - start) / WINDOWS;
        uint64_t count = fragments * sizeof(struct fragment) / sizeof *words;
        words = words != NULL ? words : malloc(count * sizeof *words);
        qsort_us[round] = words != NULL ? sort_us(words, count) / WINDOWS : 0;
    }
    struct figure figure = {
        .subject = "256K tokens, CP 16", .name = "choose", .unit = "us", .peer = "qsort"};
    figure.rule = FIGURE_AT_MOST;
    figure.limit = LIMIT;
    figures_add_turns(figures, &figure, choose_us, qsort_us, rounds);
    figure = (struct figure){
        .subject = "256K tokens, CP 16", .name = "choose / candidate", .unit = "us"};
    figure.value = figure_median(choose_us, rounds) / CANDIDATES;
    figures_add(figures, &figure);
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
