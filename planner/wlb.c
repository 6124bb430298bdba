/* wlb: variable-length packing with outliers held back (WLB-LLM section 4, Algorithm 1).
 *
 * Settled here, open in the paper: reading is a pull that stops at limits and resumes by the same
 * token clock, so that a backlog never grows without end; every step has a document for every
 * micro-batch while there are any; documents left over take part in the next step's order as if
 * they had just arrived. */
#include "planner/step.h"

#include <assert.h>

/* Held parts that no band claims are this step's. */
static void wlb_admit(struct planner *planner, uint32_t i) {
    const struct waiting *part = &planner->after->waiting[i];
    bool waits = part->kind == WAITING_IN_QUEUE &&
                 bands_of(&planner->options.bands, part->document.length) != BAND_NONE;
    planner->departures[i] = waits ? DEPARTURE_NONE : DEPARTURE_JOINS;
    planner->leaving += waits ? 0 : 1;
}

static bool wlb_take(struct planner *planner, struct document *out) {
    planner->ended = !step_read(planner, planner->after, planner->part_limit, out);
    return !planner->ended;
}

static bool wlb_read(struct planner *planner) {
    struct plan_state *after = planner->after;
    struct waiting *part = &after->waiting[after->waiting_count];
    if (!wlb_take(planner, &part->document)) {
        return false;
    }
    uint32_t band = bands_of(&planner->options.bands, part->document.length);
    part->kind = band != BAND_NONE ? WAITING_IN_QUEUE : WAITING_LEFT_OVER;
    part->bin = 0;
    planner->held_tokens += part->document.length;
    wlb_admit(planner, after->waiting_count++);
    return true;
}

static bool wlb_may_read(const struct planner *planner) {
    const struct plan_options *options = &planner->options;
    const struct plan_state *after = planner->after;
    return after->stream_tokens < after->target_tokens + options->step_tokens &&
           planner->leaving < options->documents_max &&
           after->waiting_count < options->waiting_max &&
           planner->held_tokens <= (options->backlog_max + 1) * options->step_tokens;
}

static void wlb_depart(struct planner *planner, uint32_t i, enum departure departure) {
    planner->departures[i] = (uint8_t)departure;
    planner->leaving++;
}

static void wlb_release(struct planner *p) {
    uint32_t candidates = 0;
    for (uint32_t i = 0; i < p->after->waiting_count; i++) {
        if (p->departures[i] == DEPARTURE_NONE) {
            const struct document *document = &p->after->waiting[i].document;
            p->indexes[candidates] = i;
            p->lengths[candidates] = document->length;
            p->keys[candidates] = document->nominal_step;
            candidates++;
        }
    }
    if (candidates == 0) {
        return;
    }
    (void)bands_decide(&p->options.bands, p->lengths, p->keys, candidates, p->after->step,
                       p->verdicts);
    for (uint32_t i = 0; i < candidates; i++) {
        if (p->verdicts[i] != BAND_WAITS) {
            wlb_depart(p, p->indexes[i],
                       p->verdicts[i] == BAND_DUE ? DEPARTURE_DUE : DEPARTURE_RELEASED);
        }
    }
}

/* Oldest first; once nothing waits, from the stream ahead. */
static void wlb_fill(struct planner *planner) {
    struct plan_state *after = planner->after;
    uint32_t needed = planner->options.micro_batches;
    for (uint32_t i = 0; i < after->waiting_count && planner->leaving < needed; i++) {
        if (planner->departures[i] == DEPARTURE_NONE) {
            wlb_depart(planner, i, DEPARTURE_FILLS);
        }
    }
    while (planner->leaving < needed && wlb_read(planner)) {
        uint32_t last = after->waiting_count - 1;
        if (planner->departures[last] == DEPARTURE_NONE) {
            wlb_depart(planner, last, DEPARTURE_FILLS);
        }
    }
}

static void wlb_count_release(struct planner *planner, uint32_t i) {
    enum departure departure = planner->departures[i];
    if (departure == DEPARTURE_NONE || departure == DEPARTURE_JOINS) {
        return;
    }
    step_count_release(planner, &planner->after->waiting[i].document);
    planner->release.forced += departure == DEPARTURE_DUE;
}

/* The list to pack, in stream order. What leaves beyond documents_max is left over. */
static uint32_t wlb_list(struct planner *planner) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < planner->after->waiting_count; i++) {
        wlb_count_release(planner, i);
        if (planner->departures[i] == DEPARTURE_NONE) {
            continue;
        }
        if (count < planner->options.documents_max) {
            planner->indexes[count++] = i;
        } else {
            planner->after->waiting[i].kind = WAITING_LEFT_OVER;
            planner->departures[i] = DEPARTURE_NONE;
        }
    }
    return count;
}

/* Takes what was placed out of the held parts; the rest keeps its order. */
static void wlb_remove_placed(struct planner *planner, uint32_t count) {
    struct plan_state *after = planner->after;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = planner->indexes[i];
        struct waiting *part = &after->waiting[index];
        if (planner->bins[i] == PACK_LEFT_OVER) {
            part->kind = WAITING_LEFT_OVER;
            planner->departures[index] = DEPARTURE_NONE;
        } else if (index < planner->held_before && part->kind == WAITING_LEFT_OVER) {
            after->leftover_released++;
        }
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < after->waiting_count; i++) {
        if (planner->departures[i] == DEPARTURE_NONE) {
            after->waiting[kept++] = after->waiting[i];
        }
    }
    after->waiting_count = kept;
}

bool wlb_step(struct planner *planner) {
    uint32_t micro_batches = planner->options.micro_batches;
    for (uint32_t i = 0; i < planner->held_before; i++) {
        wlb_admit(planner, i);
    }
    while (wlb_may_read(planner) && wlb_read(planner)) {
    }
    wlb_release(planner);
    if (!drain_due(planner)) {
        wlb_fill(planner);
    }
    planner->in_hand = planner->after->waiting_count;
    if (planner->after->waiting_count == 0) {
        return false;
    }
    if (drain_due(planner)) {
        drain_begin(planner);
        return true;
    }
    uint32_t count = wlb_list(planner);
    (void)step_pack(planner, count, micro_batches);
    step_group(planner, count, micro_batches);
    wlb_remove_placed(planner, count);
    return true;
}
