/* queues_level: what wlb:level promises on the built-in distributions, cell by cell: N
 * micro-batches of S_max windows, work L * (L + 24576). Every figure is printed beside its promise.
 *
 * Excess imbalance is largest work over mean work, less 1, mean over the steps: at most 1.25 times
 * the cell's figure. Mean delay is in steps, over tokens: at most a tenth above it. Steady steps
 * are within 1 % of T. BALLAST_TEST_FULL=1: three seeds of 400 counted steps and more. */
#include "tests/property/level_world.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

struct promise {
    uint32_t excess_milli;
    uint32_t delay_milli;
};

static const struct cell {
    uint32_t bins;
    const char *distribution;
    uint32_t room_percent;
    struct promise balanced;
    struct promise steady;
} cells[] = {
    {4, "wlb128k", 100, {12, 650}, {16, 490}},    {4, "wlb128k", 125, {6, 430}, {12, 380}},
    {4, "wlb128k", 200, {6, 320}, {10, 360}},     {4, "prolong", 100, {9, 680}, {10, 520}},
    {4, "prolong", 125, {6, 390}, {7, 370}},      {4, "prolong", 200, {4, 380}, {7, 390}},
    {4, "libra256k", 100, {13, 680}, {18, 630}},  {4, "libra256k", 125, {7, 480}, {10, 420}},
    {4, "libra256k", 200, {6, 350}, {10, 420}},   {4, "libra1m", 100, {37, 830}, {42, 730}},
    {4, "libra1m", 125, {12, 490}, {17, 450}},    {4, "libra1m", 200, {14, 380}, {20, 420}},
    {16, "wlb128k", 100, {17, 730}, {26, 640}},   {16, "wlb128k", 125, {12, 560}, {21, 490}},
    {16, "wlb128k", 200, {8, 390}, {17, 430}},    {16, "prolong", 100, {11, 670}, {16, 610}},
    {16, "prolong", 125, {8, 620}, {10, 530}},    {16, "prolong", 200, {6, 410}, {10, 530}},
    {16, "libra256k", 100, {18, 710}, {26, 630}}, {16, "libra256k", 125, {19, 670}, {24, 550}},
    {16, "libra256k", 200, {14, 380}, {22, 520}}, {16, "libra1m", 100, {25, 700}, {30, 530}},
    {16, "libra1m", 125, {43, 760}, {30, 450}},   {16, "libra1m", 200, {15, 290}, {34, 410}},
    {64, "wlb128k", 100, {35, 860}, {48, 810}},   {64, "wlb128k", 125, {22, 630}, {33, 540}},
    {64, "wlb128k", 200, {12, 400}, {30, 510}},   {64, "prolong", 100, {28, 1120}, {28, 1030}},
    {64, "prolong", 125, {15, 1010}, {22, 860}},  {64, "prolong", 200, {8, 710}, {16, 680}},
    {64, "libra256k", 100, {23, 900}, {40, 790}}, {64, "libra256k", 125, {35, 730}, {40, 710}},
    {64, "libra256k", 200, {25, 410}, {44, 620}}, {64, "libra1m", 100, {28, 640}, {32, 530}},
    {64, "libra1m", 125, {66, 890}, {58, 630}},   {64, "libra1m", 200, {22, 290}, {51, 340}},
};

#define CELLS (sizeof cells / sizeof cells[0])

struct figures {
    uint64_t steps;
    uint64_t excess_ppm; /* sum */
    uint64_t worst_ppm;
    uint64_t tokens;
    uint64_t late_token_steps;
    uint64_t deviation_ppm; /* largest, of a step's tokens from T */
};

static void figures_add(struct figures *figures, const struct level_world *world) {
    uint64_t imbalance = level_world_imbalance(world);
    uint64_t target = world->options.step_tokens;
    uint64_t tokens = world->packed_tokens;
    uint64_t deviation = (tokens > target ? tokens - target : target - tokens) * LEVEL_PPM / target;
    figures->steps++;
    figures->excess_ppm += imbalance - LEVEL_PPM;
    figures->worst_ppm = imbalance > figures->worst_ppm ? imbalance : figures->worst_ppm;
    figures->deviation_ppm = deviation > figures->deviation_ppm ? deviation
                                                                : figures->deviation_ppm;
    for (uint32_t i = 0; i < world->packed; i++) {
        uint32_t document = world->packed_documents[i];
        uint64_t step = world->state.step - 1;
        uint64_t nominal = world->nominal_steps[document];
        figures->tokens += world->lengths[document];
        figures->late_token_steps += world->lengths[document] *
                                     (step > nominal ? step - nominal : 0);
    }
}

/* Steps that count: behind the first 70 or 100, and before the stream is scanned to its end. */
static void cell_run(const struct cell *cell, enum level_preset preset, uint64_t seed,
                     uint32_t counted, struct figures *figures) {
    const struct distribution *distribution = distribution_find(cell->distribution);
    assert_non_null(distribution);
    struct level_options options = level_world_options(preset, distribution_window(distribution),
                                                       cell->bins, cell->room_percent);
    uint32_t first = cell->bins == 4 ? 100 : 70;
    uint32_t steps = first + counted + options.horizon + 1;
    uint32_t documents;
    uint32_t *lengths = level_world_draw(distribution, seed, steps * options.step_tokens,
                                         &documents);
    struct level_world world;
    level_world_open(&world, &options, 24576, lengths, documents);
    while (world.state.step < first + counted) {
        assert_true(level_world_step(&world));
        if (world.state.step > first) {
            figures_add(figures, &world);
        }
    }
    level_world_close(&world);
    free(lengths);
}

static uint32_t cell_steps(const struct cell *cell) {
    bool full = getenv("BALLAST_TEST_FULL") != NULL;
    return cell->bins == 4 ? 1000 : full ? 400 : cell->bins == 16 ? 300 : 90;
}

static bool cell_keeps(const struct cell *cell, enum level_preset preset) {
    uint64_t seeds = getenv("BALLAST_TEST_FULL") != NULL ? 3 : 1;
    const struct promise *promise = preset == LEVEL_BALANCED ? &cell->balanced : &cell->steady;
    struct figures figures = {0};
    for (uint64_t seed = 101; seed < 101 + seeds; seed++) {
        cell_run(cell, preset, seed, cell_steps(cell), &figures);
    }
    uint64_t excess_ppm = figures.excess_ppm / figures.steps;
    uint64_t delay_milli = figures.late_token_steps * 1000 / figures.tokens;
    /* Where bins just hold the longest documents, one of 1M tokens may find no room. */
    bool coarse = cell->bins == 4 && cell->room_percent == 100;
    uint64_t deviation_max = preset == LEVEL_STEADY ? (coarse ? 20000 : 10000) : 400000;
    bool keeps = excess_ppm * 4 <= promise->excess_milli * UINT64_C(5000) &&
                 delay_milli <= promise->delay_milli + 100 &&
                 figures.deviation_ppm <= deviation_max;
    printf("%-8s %2u %-9s %.2f  excess %.4f (%.3f)  worst %.2f  delay %.3f (%.2f)  "
           "tokens +-%.4f%s\n",
           level_preset_name(preset), cell->bins, cell->distribution, cell->room_percent / 100.0,
           (double)excess_ppm / 1e6, promise->excess_milli / 1e3, (double)figures.worst_ppm / 1e6,
           (double)delay_milli / 1e3, promise->delay_milli / 1e3,
           (double)figures.deviation_ppm / 1e6, keeps ? "" : "  <- too much");
    return keeps;
}

static void check_cells(enum level_preset preset) {
    uint32_t broken = 0;
    for (uint32_t i = 0; i < CELLS; i++) {
        broken += !cell_keeps(&cells[i], preset);
    }
    assert_int_equal(broken, 0);
}

static void level_balanced_keeps_its_promise_in_every_cell(void **state) {
    (void)state;
    check_cells(LEVEL_BALANCED);
}

static void level_steady_keeps_its_promise_and_its_tokens_in_every_cell(void **state) {
    (void)state;
    check_cells(LEVEL_STEADY);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(level_balanced_keeps_its_promise_in_every_cell),
        cmocka_unit_test(level_steady_keeps_its_promise_and_its_tokens_in_every_cell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
