/* level_cells: what wlb:level promises on the built-in distributions, cell by cell: N micro-batches
 * of S_max windows, work L * (L + 24576), step_tokens by default.
 *
 * Excess imbalance is largest work over mean work, less 1, mean over the steps: at most 1.25 times
 * the cell's figure. Mean delay is in steps, over tokens: at most a tenth above it. Steady steps
 * are within 1 % of T. BALLAST_TEST_FULL=1: three seeds of 400 counted steps and more. */
#ifndef BALLAST_TESTS_LEVEL_CELLS_H
#define BALLAST_TESTS_LEVEL_CELLS_H

#include "queues/level.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

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

/* What one preset gave in one cell. */
struct cell_outcome {
    uint64_t excess_ppm;
    uint64_t worst_ppm;
    uint64_t delay_milli;
    uint64_t deviation_ppm; /* largest, of a step's tokens from T */
};

static inline bool cells_in_full(void) {
    return getenv("BALLAST_TEST_FULL") != NULL;
}

static inline uint64_t cell_seeds(void) {
    return cells_in_full() ? 3 : 1;
}

/* Steps before those that count. */
static inline uint32_t cell_warm_up(const struct cell *cell) {
    return cell->bins == 4 ? 100 : 70;
}

static inline uint32_t cell_steps(const struct cell *cell) {
    return cell->bins == 4 ? 1000 : cells_in_full() ? 400 : cell->bins == 16 ? 300 : 90;
}

static inline const struct promise *cell_promise(const struct cell *cell,
                                                 enum level_preset preset) {
    return preset == LEVEL_BALANCED ? &cell->balanced : &cell->steady;
}

/* Also prints it beside the promise. */
bool cell_keeps(const struct cell *cell, enum level_preset preset,
                const struct cell_outcome *outcome);

#endif
