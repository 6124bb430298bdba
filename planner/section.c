/* section: what changes where a section of the config begins, so that a stream goes on under other
 * options as if it had always been made by both.
 *
 * Most carries over as it is: the clock (target_tokens has added up the steps as they were), the
 * front, nominal steps, delays, what waits; queues sort what waits by length in every step, so that
 * it is in the new bands at once. Two things are decided here. A drain is given up: it was packed
 * for other micro-batches, and a dataset that is appended may let the stream go on; the policy
 * decides anew whether the end is near. New weights hold for what nothing is known of yet: from the
 * front on, or from behind the last part that was delivered ahead of it. */
#include "planner/step.h"

#include "packer/order.h"

#include <assert.h>
#include <string.h>

bool section_begins(const struct planner *planner) {
    uint32_t count = planner->section_count;
    return count > 1 && planner->after->step == planner->sections[count - 1].step;
}

/* What waits is in stream order again, all of it; whole, since policies that cut have no drain. */
static void section_stop_drain(struct planner *p) {
    struct plan_state *after = p->after;
    uint32_t count = after->waiting_count;
    for (uint32_t i = 0; i < count; i++) {
        p->keys[i] = UINT64_MAX - after->waiting[i].document.stream_index;
        p->order[i] = i;
    }
    order_by_work(p->keys, p->order, count);
    for (uint32_t i = 0; i < count; i++) {
        p->rows[i] = after->waiting[p->order[i]];
        p->rows[i].bin = 0;
    }
    memcpy(after->waiting, p->rows, count * sizeof *p->rows);
    after->draining = false;
    after->drain_start = 0;
    after->drain_steps = 0;
}

void section_begin(struct planner *p) {
    const struct plan_section *section = &p->sections[p->section_count - 1];
    struct plan_state *after = p->after;
    p->ahead_kept = false;
    if (after->draining && plan_batches(&p->options) == 0) {
        section_stop_drain(p);
    }
    if (section->blend > after->cursor.blend + after->blend_switch_count) {
        plan_state_switch_blend(after, plan_state_known_end(after));
    }
}
