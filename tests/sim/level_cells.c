/* level_cells: see level_cells.h. */
#include "tests/sim/level_cells.h"

#include <inttypes.h>
#include <stdio.h>

bool cell_keeps(const struct cell *cell, enum level_preset preset,
                const struct cell_outcome *outcome) {
    const struct promise *promise = cell_promise(cell, preset);
    uint64_t deviation_max = preset == LEVEL_STEADY ? 10000 : 400000;
    bool keeps = outcome->excess_ppm * 4 <= promise->excess_milli * UINT64_C(5000) &&
                 outcome->delay_milli <= promise->delay_milli + 100 &&
                 outcome->deviation_ppm <= deviation_max;
    printf("%-8s %2" PRIu32 " %-9s %.2f  excess %.4f (%.3f)  worst %.2f  delay %.3f (%.2f)  "
           "tokens +-%.4f%s\n",
           level_preset_name(preset), cell->bins, cell->distribution, cell->room_percent / 100.0,
           (double)outcome->excess_ppm / 1e6, promise->excess_milli / 1e3,
           (double)outcome->worst_ppm / 1e6, (double)outcome->delay_milli / 1e3,
           promise->delay_milli / 1e3, (double)outcome->deviation_ppm / 1e6,
           keeps ? "" : "  <- too much");
    return keeps;
}
