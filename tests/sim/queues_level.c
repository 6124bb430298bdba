/* queues_level: the queue and the packer alone keep what level_cells.h promises. Every figure is
 * printed beside its promise. */
#include "tests/property/level_world.h"
#include "tests/sim/level_cells.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

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
    uint32_t first = cell_warm_up(cell);
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

static bool cell_check(const struct cell *cell, enum level_preset preset) {
    struct figures figures = {0};
    for (uint64_t seed = 101; seed < 101 + cell_seeds(); seed++) {
        cell_run(cell, preset, seed, cell_steps(cell), &figures);
    }
    struct cell_outcome outcome = {
        .excess_ppm = figures.excess_ppm / figures.steps,
        .worst_ppm = figures.worst_ppm,
        .delay_milli = figures.late_token_steps * 1000 / figures.tokens,
        .deviation_ppm = figures.deviation_ppm,
    };
    return cell_keeps(cell, preset, &outcome);
}

static void check_cells(enum level_preset preset) {
    uint32_t broken = 0;
    for (uint32_t i = 0; i < CELLS; i++) {
        broken += !cell_check(&cells[i], preset);
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
