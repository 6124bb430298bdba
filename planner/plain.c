/* plain: fixed-length packing, the yardstick: documents in reading order, cut every window.
 *
 * Micro-batch i of a step is its i-th window. Nothing waits; the piece of a document behind a cut
 * starts the next window, and the source's cursor remembers it. */
#include "planner/step.h"

#include <assert.h>

/* Fills one window, as long as the step has fewer than `parts_max` parts. */
static uint32_t plain_fill(struct planner *planner, uint32_t parts, uint32_t parts_max) {
    uint32_t room = planner->options.window;
    while (room > 0 && parts < parts_max) {
        struct waiting *row = &planner->rows[parts];
        if (!step_read(planner, planner->after, room, &row->document)) {
            break;
        }
        row->kind = WAITING_LEFT_OVER;
        row->bin = 0;
        room -= row->document.length;
        parts++;
    }
    return parts;
}

bool plain_step(struct planner *planner) {
    assert(planner->after->waiting_count == 0);
    uint64_t micro_batches = planner->options.micro_batches;
    uint32_t parts = 0;
    for (uint32_t m = 0; m < micro_batches; m++) {
        planner->row_begins[m] = parts;
        uint32_t parts_max = (uint32_t)(planner->options.documents_max * (m + 1) / micro_batches);
        parts = plain_fill(planner, parts, parts_max);
    }
    planner->row_begins[micro_batches] = parts;
    return parts > 0;
}
