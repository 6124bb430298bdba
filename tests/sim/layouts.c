/* How far the slowest context-parallel rank is from an even split of whole documents, and how much
 * nearer the layouts come that cut documents only as far as needed.
 *
 * Windows of Libra's fitted corpora, Llama-3-8B heads, the tile model for all. Adaptive-2 is the
 * better of per-sequence and per-document (WLB-LLM section 5.3). docs/layouts.md has the table that
 * this prints. */
#include "pools_world.h"
#include "sharding/select.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define SEQUENCES   300u
#define CP_MAX      16u
#define CELLS       9u
#define PPM         1000000u
#define CUT_LEAST   0.30 /* of adaptive-2's gap, in every cell */
#define CUT_AVERAGE 0.45

struct cell {
    uint32_t window;
    uint32_t cp;
    uint64_t gap_two_ppm; /* sums over sequences */
    uint64_t gap_all_ppm;
    uint64_t worst_ppm;
    uint64_t fragments;
    uint32_t lost; /* sequences where adaptive-2 is faster */
    uint32_t picks[LAYOUT_ULYSSES + 1];
};

static uint64_t gap_ppm(uint64_t ps, uint64_t bound_ps) {
    return (uint64_t)((unsigned __int128)(ps - bound_ps) * PPM / bound_ps);
}

static uint64_t smaller_of_two(const struct layout_choice *choice) {
    uint64_t a = choice->candidates[0].slowest_ps;
    uint64_t b = choice->candidates[1].slowest_ps;
    return a < b ? a : b;
}

static void cell_add(struct cell *cell, const struct packed_sequence *sequence,
                     const struct layout_choice *choice, const struct tile_model *model) {
    uint64_t bound_ps = layout_bound_ps(sequence, model, cell->cp);
    uint64_t all_ps = layout_chosen(choice)->slowest_ps;
    uint64_t two_ps = smaller_of_two(choice);
    uint64_t gap = gap_ppm(all_ps, bound_ps);
    assert_true(all_ps >= bound_ps);
    cell->gap_all_ppm += gap;
    cell->gap_two_ppm += gap_ppm(two_ps, bound_ps);
    cell->worst_ppm = gap > cell->worst_ppm ? gap : cell->worst_ppm;
    cell->fragments += layout_chosen(choice)->fragments;
    cell->lost += two_ps < all_ps;
    cell->picks[choice->layout]++;
}

static void cell_measure(struct cell *cell, const struct windows *windows) {
    struct layout_options options = {LAYOUTS_ALLOWED & ~(1u << LAYOUT_ULYSSES), 65536, {0}};
    struct layout_dealer dealer;
    struct tile_model model;
    uint32_t documents_max = windows->begins[windows->count];
    void *memory = malloc(layout_dealer_bytes(&options, documents_max, cell->cp));
    assert_non_null(memory);
    assert_int_equal(tile_model_analytic(128, 32, 8, 0, &model), 0);
    layout_dealer_init(&dealer, memory, &options, documents_max, cell->cp);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        struct packed_sequence sequence = {
            .lengths = windows->lengths + windows->begins[i],
            .documents = windows->begins[i + 1] - windows->begins[i],
        };
        for (uint32_t k = 0; k < sequence.documents; k++) {
            sequence.tokens += sequence.lengths[k];
        }
        sequence.pad_tokens = windows->window - sequence.tokens;
        struct layout_choice choice;
        uint64_t rank_ps[2 * CP_MAX];
        layout_select(&options, &sequence, &model, &dealer, rank_ps, &choice);
        cell_add(cell, &sequence, &choice, &model);
    }
    free(memory);
}

static double cell_cut(const struct cell *cell) {
    return 1 - (double)cell->gap_all_ppm / (double)cell->gap_two_ppm;
}

static void cell_print(const struct cell *cell) {
    double percent = 1e4 * SEQUENCES;
    printf("| %uK, %u | %.2f | %.2f | %.0f | %.1f | %.0f | %u / %u / %u / %u |\n",
           cell->window / 1024, cell->cp, (double)cell->gap_two_ppm / percent,
           (double)cell->gap_all_ppm / percent, 100 * cell_cut(cell), (double)cell->worst_ppm / 1e4,
           (double)cell->fragments / SEQUENCES / cell->cp, cell->picks[LAYOUT_PER_SEQUENCE],
           cell->picks[LAYOUT_PER_DOCUMENT], cell->picks[LAYOUT_VARIABLE_DEGREE],
           cell->picks[LAYOUT_HYBRID]);
}

static void all_layouts_come_nearer_to_the_bound_than_two(void **state) {
    (void)state;
    static const struct {
        const char *distribution;
        uint32_t window;
    } corpora[] = {{"libra256k", 131072}, {"libra256k", 262144}, {"libra1m", 1048576}};
    struct windows windows;
    double average = 0;
    for (uint32_t i = 0; i < 3; i++) {
        windows_init_clipped(&windows, corpora[i].distribution, corpora[i].window, 1, SEQUENCES);
        for (uint32_t cp = 4; cp <= CP_MAX; cp *= 2) {
            struct cell cell = {.window = corpora[i].window, .cp = cp};
            cell_measure(&cell, &windows);
            cell_print(&cell);
            average += cell_cut(&cell) / CELLS;
            assert_int_equal(cell.lost, 0);
            assert_true(cell_cut(&cell) >= CUT_LEAST);
        }
        windows_deinit(&windows);
    }
    printf("average cut %.0f %%\n", 100 * average);
    assert_true(average >= CUT_AVERAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_layouts_come_nearer_to_the_bound_than_two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
