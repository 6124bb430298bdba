/* planner_level: the whole of plan_step keeps what level_cells.h promises: parts, front, queue,
 * packer, refinement and drain, as `ballastctl simulate` runs and counts them. Beside the queue and
 * the packer alone (queues_level) packings are refined here, and other documents are drawn: those
 * of the source that the simulator reads. */
#include "client/ctl/measure.h"
#include "tests/sim/level_cells.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void scenario_of(const struct cell *cell, enum level_preset preset, struct scenario *out) {
    static char micro_batches[16];
    static char tokens_max[16];
    struct error error = {0};
    (void)snprintf(micro_batches, sizeof micro_batches, "%" PRIu32, cell->bins);
    (void)snprintf(tokens_max, sizeof tokens_max, "%.2fw", cell->room_percent / 100.0);
    const struct config_override overrides[] = {
        {"plan.micro_batches", micro_batches},
        {"plan.tokens_max", tokens_max},
        {"model.cost", "L2/24576"},
        {"level.preset", level_preset_name(preset)},
    };
    *out = (struct scenario){.distribution = cell->distribution};
    for (size_t i = 0; i < sizeof overrides / sizeof overrides[0]; i++) {
        assert_int_equal(scenario_override(out, overrides[i].key, overrides[i].value, &error), 0);
    }
    assert_int_equal(scenario_open(out, &error), 0);
}

static struct outcome cell_measure(const struct cell *cell, struct scenario *scenario,
                                   uint64_t seed) {
    const struct measure_options options = {
        .steps = cell_steps(cell), .warm_up = cell_warm_up(cell), .times = step_time_defaults};
    struct measurement measured;
    struct trial trial;
    struct error error = {0};
    char text[24];
    (void)snprintf(text, sizeof text, "%" PRIu64, seed);
    if (trial_open(&trial, scenario, "wlb:level", text, &error) < 0 ||
        measure(&trial, cell->distribution, &options, &measured, &error) < 0) {
        fail_msg("%s", error.text);
    }
    struct outcome outcome = measured.outcome;
    assert_int_equal(outcome.steps, options.steps);
    measurement_deinit(&measured);
    trial_close(&trial);
    return outcome;
}

static bool cell_check(const struct cell *cell, enum level_preset preset) {
    struct cell_outcome sum = {0};
    struct scenario scenario;
    scenario_of(cell, preset, &scenario);
    for (uint64_t seed = 101; seed < 101 + cell_seeds(); seed++) {
        struct outcome outcome = cell_measure(cell, &scenario, seed);
        sum.excess_ppm += outcome.total_ppm - LEVEL_PPM;
        sum.delay_milli += outcome.delay_mean_milli;
        sum.worst_ppm = outcome.worst_ppm > sum.worst_ppm ? outcome.worst_ppm : sum.worst_ppm;
        sum.deviation_ppm = outcome.tokens_off_ppm > sum.deviation_ppm ? outcome.tokens_off_ppm
                                                                       : sum.deviation_ppm;
    }
    scenario_close(&scenario);
    sum.excess_ppm /= cell_seeds();
    sum.delay_milli /= cell_seeds();
    return cell_keeps(cell, preset, &sum);
}

static void check_cells(enum level_preset preset) {
    uint32_t broken = 0;
    for (uint32_t i = 0; i < CELLS; i++) {
        bool quick = cells[i].bins < 64 || cells[i].room_percent == 125;
        broken += (quick || cells_in_full()) && !cell_check(&cells[i], preset);
    }
    assert_int_equal(broken, 0);
}

static void plans_keep_the_promise_of_balanced_in_every_cell(void **state) {
    (void)state;
    check_cells(LEVEL_BALANCED);
}

static void plans_keep_the_promise_of_steady_and_its_tokens_in_every_cell(void **state) {
    (void)state;
    if (!cells_in_full()) {
        skip();
    }
    check_cells(LEVEL_STEADY);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_keep_the_promise_of_balanced_in_every_cell),
        cmocka_unit_test(plans_keep_the_promise_of_steady_and_its_tokens_in_every_cell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
