/* drain: the end of the data, so that nothing that waits is lost and no rank runs short.
 *
 * All that is left is packed at once into m whole steps of N micro-batches, m as few as hold it;
 * heavier bins go first, so a step's micro-batches are alike. Bin numbers are kept in the state:
 * each later step only takes its N. */
#include "planner/step.h"

#include "packer/order.h"

#include <assert.h>
#include <string.h>

static uint64_t drain_leaving_tokens(const struct planner *planner) {
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < planner->after->waiting_count; i++) {
        if (planner->departures[i] != DEPARTURE_NONE) {
            tokens += planner->after->waiting[i].document.length;
        }
    }
    return tokens;
}

bool drain_due(const struct planner *planner) {
    uint64_t step_tokens = planner->options.step_tokens;
    return planner->ended && planner->after->waiting_count > 0 &&
           (planner->held_tokens <= DRAIN_STEPS * step_tokens ||
            drain_leaving_tokens(planner) < step_tokens);
}

/* Numbers the bins by (work descending, bin) and counts the documents of each step. Whether every
 * step keeps within documents_max. */
static bool drain_number_bins(struct planner *p, uint32_t steps) {
    uint32_t micro_batches = p->options.micro_batches;
    uint32_t bins = steps * micro_batches;
    for (uint32_t i = 0; i < bins; i++) {
        p->bin_order[i] = i;
        p->row_begins[i] = 0;
    }
    order_by_work(p->bin_works, p->bin_order, bins);
    for (uint32_t i = 0; i < bins; i++) {
        p->bin_numbers[p->bin_order[i]] = i;
    }
    uint32_t largest = 0;
    for (uint32_t i = 0; i < p->after->waiting_count; i++) {
        p->bins[i] = p->bin_numbers[p->bins[i]];
        uint32_t documents = ++p->row_begins[p->bins[i] / micro_batches];
        largest = documents > largest ? documents : largest;
    }
    return largest <= p->options.documents_max;
}

/* Packs everything into as few steps as hold it; returns their number. A bin for every part always
 * does. */
static uint32_t drain_pack(struct planner *p) {
    uint32_t micro_batches = p->options.micro_batches;
    uint32_t parts = p->after->waiting_count;
    uint32_t steps_max = (parts + micro_batches - 1) / micro_batches;
    uint64_t steps = (p->held_tokens + p->options.step_tokens - 1) / p->options.step_tokens;
    for (uint32_t i = 0; i < parts; i++) {
        p->indexes[i] = i;
    }
    uint32_t m = steps < steps_max ? (uint32_t)steps : steps_max;
    while (step_pack(p, parts, m * micro_batches) > 0 || !drain_number_bins(p, m)) {
        m++;
        assert(m <= steps_max);
    }
    return m;
}

static void drain_count(struct planner *planner, const struct waiting *part, bool waited) {
    bool left_over = part->kind == WAITING_LEFT_OVER;
    if (!left_over || planner->options.policy == POLICY_WLB_LEVEL) {
        step_count_release(planner, &part->document);
    }
    planner->after->leftover_released += left_over && waited;
}

/* Keeps rows [begin, end) waiting, or ends the drain if there are none. */
static void drain_keep(struct planner *planner, const struct waiting *parts, uint32_t count) {
    struct plan_state *after = planner->after;
    memmove(after->waiting, parts, count * sizeof *parts);
    after->waiting_count = count;
    if (count == 0) {
        after->draining = false;
        after->drain_start = 0;
        after->drain_steps = 0;
    }
}

void drain_serve(struct planner *p, uint32_t rows) {
    struct plan_state *after = p->after;
    uint32_t micro_batches = p->options.micro_batches;
    uint32_t delivered = p->row_begins[micro_batches];
    after->draining = true;
    after->drain_start = after->step;
    after->drain_steps = p->rows[rows - 1].bin / micro_batches + 1;
    drain_keep(p, p->rows + delivered, rows - delivered);
}

void drain_begin(struct planner *p) {
    struct plan_state *after = p->after;
    uint32_t micro_batches = p->options.micro_batches;
    uint32_t parts = after->waiting_count;
    uint32_t bins = drain_pack(p) * micro_batches;
    for (uint32_t i = 0; i < parts; i++) {
        if (p->bins[i] < micro_batches) {
            drain_count(p, &after->waiting[i], i < p->held_before);
        }
    }
    step_group(p, parts, bins);
    drain_serve(p, parts);
}

void drain_continue(struct planner *p) {
    struct plan_state *after = p->after;
    uint32_t micro_batches = p->options.micro_batches;
    uint32_t first = (uint32_t)(after->step - after->drain_start) * micro_batches;
    uint32_t delivered = 0;
    for (uint32_t m = 0; m < micro_batches; m++) {
        p->row_begins[m] = delivered;
        while (delivered < after->waiting_count && after->waiting[delivered].bin == first + m) {
            p->rows[delivered] = after->waiting[delivered];
            drain_count(p, &p->rows[delivered], true);
            delivered++;
        }
    }
    assert(delivered > 0);
    p->row_begins[micro_batches] = delivered;
    drain_keep(p, after->waiting + delivered, after->waiting_count - delivered);
}
