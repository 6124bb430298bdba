/* level: variable-length packing with outliers released where a step can hide them.
 *
 * queues/level decides; here is what it looks at. Behind what waits lies what is looked at ahead of
 * the step: the parts from the front on that were not delivered early. They are not state. When
 * planning goes on from the state that it made last, they still lie there, else they are read
 * again; either way they follow from the state alone.
 *
 * A decision is about what the step may take: what waits, what its look ahead reaches, and as many
 * shorts as could ever join it. These lie in `after->waiting`. What lies further ahead changes
 * nothing and stays in a queue, where it costs nothing: where a section of small steps follows on
 * one of large steps, these are the parts up to the last that was delivered early, thousands of
 * steps' worth.
 *
 * Settled here: every step has a document for every micro-batch while there are any, in stream
 * order, whatever level wants; a step takes at most documents_max; what waits and what is looked at
 * is at most waiting_max parts, so that a limit shortens the look ahead instead of losing a part.
 */
#include "planner/step.h"

#include "packer/order.h"

#include <assert.h>
#include <string.h>

static bool level_is_candidate(const struct planner *p, uint32_t length) {
    return length >= p->options.level.candidate_length;
}

/* Parts that wait or are looked at, once those of the last step are counted among them. */
static uint32_t level_in_hand(const struct planner *p) {
    return p->after->waiting_count + p->far_count;
}

/* Whether the nominal step of a part at this offset is at most `steps` ahead. */
static bool level_is_near(const struct planner *p, uint64_t offset, uint32_t steps) {
    return offset < p->after->target_tokens + (steps + UINT64_C(1)) * p->options.step_tokens;
}

/* Whether the part at the end of what was looked at is still to be. */
static bool level_looks_on(const struct planner *p) {
    const struct plan_state *after = p->after;
    if (p->scan->stream_parts < plan_state_known_end(after)) {
        return true;
    }
    bool near = level_is_near(p, p->scan->stream_tokens, p->options.level.horizon) ||
                level_in_hand(p) < p->options.micro_batches;
    return near && level_in_hand(p) < p->options.waiting_max &&
           p->scan->stream_parts - after->stream_parts < LOOK_AHEAD_LIMIT;
}

static struct far_part *level_far(const struct planner *p, uint32_t i) {
    return &p->far[p->far_begin + i];
}

/* Once more have left than are there, these move to the beginning: no more pages are touched than
 * were ever needed, and there is room for as many as may be in hand. */
static void level_far_settle(struct planner *p) {
    if (p->far_begin > p->far_count) {
        memcpy(p->far, level_far(p, 0), p->far_count * sizeof *p->far);
        p->far_begin = 0;
    }
}

/* Looks at the next part. It joins the others unless it was delivered. */
static bool level_look(struct planner *p, uint32_t *run) {
    const struct plan_state *after = p->after;
    uint64_t offset = p->scan->stream_tokens;
    struct document document;
    if (p->scan_ended || !step_read(p, p->scan, p->part_limit, &document)) {
        p->scan_ended = true;
        p->ended = true;
        return false;
    }
    while (*run < after->run_count &&
           after->runs[*run].index + after->runs[*run].count <= document.stream_index) {
        ++*run;
    }
    if (*run == after->run_count || document.stream_index < after->runs[*run].index) {
        assert(level_in_hand(p) < p->parts_max);
        *level_far(p, p->far_count++) = (struct far_part){document, offset};
        p->far_tokens += document.length;
    }
    return true;
}

/* Puts the end of what was looked at back to the front. */
static void level_look_anew(struct planner *p) {
    plan_state_copy_front(p->scan, p->after);
    p->scan_ended = false;
    p->ahead = 0;
    p->far_begin = 0;
    p->far_count = 0;
    p->far_tokens = 0;
}

/* Whether all that still lies there is to be looked at now, too: up to the last part that was
 * delivered early always. */
static bool level_keeps(const struct planner *p) {
    const struct plan_state *after = p->after;
    uint32_t ahead = p->ahead + p->far_count;
    if (ahead == 0 || p->scan->stream_parts == plan_state_known_end(after)) {
        return true;
    }
    uint64_t last = p->far_count > 0 ? level_far(p, p->far_count - 1)->offset
                                     : p->offsets[after->waiting_count + p->ahead - 1];
    return after->waiting_count + ahead <= p->options.waiting_max &&
           level_is_near(p, last, p->options.level.horizon);
}

/* The clock was set back: what lies ahead of it comes later. */
static void level_slip(struct planner *p) {
    struct plan_state *after = p->after;
    for (uint32_t i = after->waiting_count; i < after->waiting_count + p->ahead; i++) {
        after->waiting[i].document.nominal_step = step_nominal(p, p->offsets[i]);
    }
}

static void level_scan(struct planner *p) {
    struct plan_state *after = p->after;
    uint32_t run = 0;
    if (!p->ahead_kept || !level_keeps(p)) {
        level_look_anew(p);
    }
    if (p->ahead_slipped) {
        level_slip(p);
    }
    level_far_settle(p);
    after->waiting_count += p->ahead;
    while (level_looks_on(p) && level_look(p, &run)) {
    }
    p->in_hand = level_in_hand(p);
    if (p->ended) { /* for the drain alone */
        p->held_tokens = plan_state_waiting_tokens(after, UINT32_MAX) + p->far_tokens;
    }
}

/* The first of those far ahead comes near. */
static const struct document *level_draw(struct planner *p) {
    struct plan_state *after = p->after;
    const struct far_part *part = level_far(p, 0);
    struct document *document = &after->waiting[after->waiting_count].document;
    p->offsets[after->waiting_count] = part->offset;
    after->waiting[after->waiting_count++] = (struct waiting){.document = part->document};
    document->nominal_step = step_nominal(p, part->offset);
    p->far_tokens -= document->length;
    p->far_begin++;
    p->far_count--;
    return document;
}

/* The shorts that a step could look at, counted one by one. */
struct level_reach {
    uint64_t tokens;
    uint32_t beyond; /* of them, in more tokens than the micro-batches hold */
};

/* Another short; false when it is the last. */
static bool level_reach_on(const struct planner *p, struct level_reach *reach, uint32_t length) {
    reach->tokens += length;
    reach->beyond += reach->tokens > p->options.micro_batches * p->bin_tokens;
    return reach->beyond <= p->options.level.fit_window;
}

/* Brings near what the step may take: candidates by their nominal steps, shorts until there are
 * more than it could look at, and so more than micro-batches. */
static void level_come_near(struct planner *p) {
    const struct plan_state *after = p->after;
    uint32_t steps = p->options.level.look_ahead;
    struct level_reach reach = {0};
    bool short_of = true;
    for (uint32_t i = 0; p->far_count > 0 && short_of && i < after->waiting_count; i++) {
        uint32_t length = after->waiting[i].document.length;
        short_of = level_is_candidate(p, length) || level_reach_on(p, &reach, length);
    }
    while (p->far_count > 0 && (short_of || level_is_near(p, level_far(p, 0)->offset, steps))) {
        uint32_t length = level_draw(p)->length;
        if (short_of && !level_is_candidate(p, length)) {
            short_of = level_reach_on(p, &reach, length);
        }
    }
}

/* The pool, by (length, stream index) ascending. */
static uint32_t level_pool(struct planner *p) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->after->waiting_count; i++) {
        uint32_t length = p->after->waiting[i].document.length;
        if (level_is_candidate(p, length)) {
            p->indexes[count] = i;
            p->lengths[count++] = UINT32_MAX - length;
        }
    }
    order_by_length(p->lengths, count, p->pack_scratch, p->order);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = p->indexes[p->order[i]];
        const struct document *document = &p->after->waiting[index].document;
        p->pool[i] = index;
        p->pool_lengths[i] = document->length;
        p->works[i] = work_of(&p->model, document->length);
        p->keys[i] = document->nominal_step;
        p->pool_indices[i] = document->stream_index;
    }
    return count;
}

/* The first shorts, as many as a step could look at. */
static uint32_t level_shorts(struct planner *p) {
    uint64_t room = p->options.micro_batches * p->bin_tokens;
    struct level_reach reach = {0};
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->after->waiting_count; i++) {
        uint32_t length = p->after->waiting[i].document.length;
        if (level_is_candidate(p, length)) {
            continue;
        }
        p->shorts[count] = i;
        p->lengths[count] = length;
        if (reach.tokens < room) {
            p->short_works[count] = work_of(&p->model, length);
        }
        count++;
        if (!level_reach_on(p, &reach, length)) {
            break;
        }
    }
    return count;
}

static void level_depart(struct planner *p, uint32_t i, enum departure departure) {
    if (p->leaving < p->options.documents_max) {
        p->departures[i] = (uint8_t)departure;
        p->leaving++;
    }
}

/* In stream order, so that what documents_max holds back is the youngest. */
static void level_release(struct planner *p, const uint8_t *verdicts, uint32_t candidates) {
    static const uint8_t departures[] = {
        [LEVEL_WAITS] = DEPARTURE_NONE,
        [LEVEL_RELEASED] = DEPARTURE_RELEASED,
        [LEVEL_EARLY] = DEPARTURE_RELEASED,
        [LEVEL_DUE] = DEPARTURE_DUE,
    };
    for (uint32_t i = 0; i < candidates; i++) {
        p->departures[p->pool[i]] = departures[verdicts[i]];
    }
    for (uint32_t i = 0; i < p->after->waiting_count; i++) {
        enum departure departure = p->departures[i];
        p->departures[i] = DEPARTURE_NONE;
        if (departure != DEPARTURE_NONE) {
            level_depart(p, i, departure);
        }
    }
}

static void level_take(struct planner *p, uint32_t shorts, const struct level_decision *decision) {
    (void)level_take_shorts(&p->options.level, p->lengths, shorts, decision->released_tokens,
                            decision->tokens, p->verdicts);
    for (uint32_t i = 0; i < shorts; i++) {
        if (p->verdicts[i] != 0) {
            level_depart(p, p->shorts[i], DEPARTURE_JOINS);
        }
    }
}

static struct level_state level_clock(const struct plan_state *state) {
    return (struct level_state){
        .step = state->step,
        .target_tokens = state->target_tokens,
        .delivered_tokens = state->delivered_tokens,
        .slip_tokens = state->slip_tokens,
    };
}

static void level_decide_step(struct planner *p) {
    struct level_state clock = level_clock(p->after);
    struct level_decision decision;
    uint32_t candidates = level_pool(p);
    uint32_t shorts = level_shorts(p);
    struct level_view view = {
        .candidates = candidates,
        .lengths = p->pool_lengths,
        .works = p->works,
        .nominal_steps = p->keys,
        .stream_indices = p->pool_indices,
        .shorts = shorts,
        .short_lengths = p->lengths,
        .short_works = p->short_works,
    };
    level_decide(&p->options.level, &clock, &view, p->level_scratch, p->verdicts, &decision);
    level_release(p, p->verdicts, candidates);
    level_take(p, shorts, &decision);
    p->release.allowance_ppm = decision.allowance_ppm;
    p->release.urgency_ppm = decision.urgency_ppm;
    p->predicted_ppm = decision.predicted_ppm != UINT64_MAX ? decision.predicted_ppm : 0;
}

/* First in, first out until every micro-batch can have one, shorts before candidates: so few leave
 * only when they are long, and one more of these would be too many tokens. */
static void level_fill(struct planner *p) {
    const struct plan_state *after = p->after;
    for (int candidates = 0; candidates < 2; candidates++) {
        for (uint32_t i = 0; i < after->waiting_count; i++) {
            bool candidate = level_is_candidate(p, after->waiting[i].document.length);
            if (p->leaving >= p->options.micro_batches) {
                return;
            }
            if (p->departures[i] == DEPARTURE_NONE && candidate == (candidates == 1)) {
                level_depart(p, i, DEPARTURE_FILLS);
            }
        }
    }
}

static uint32_t level_list(struct planner *p) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->after->waiting_count; i++) {
        if (p->departures[i] != DEPARTURE_NONE) {
            p->indexes[count++] = i;
        }
    }
    return count;
}

static void level_count(struct planner *p, uint32_t index) {
    const struct waiting *part = &p->after->waiting[index];
    struct delay_counts *delays = &p->after->delays[part->document.dataset];
    if (index >= p->held_before) {
        delays->early_tokens += part->document.length;
        delays->early_documents += part->document.offset == 0;
    }
    p->after->leftover_released += part->kind == WAITING_LEFT_OVER;
    p->release.forced += p->departures[index] == DEPARTURE_DUE;
    step_count_release(p, &part->document);
}

/* Counts what was placed; the rest stays. Returns the tokens placed. */
static uint64_t level_settle(struct planner *p, uint32_t count) {
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t index = p->indexes[i];
        struct waiting *part = &p->after->waiting[index];
        if (p->bins[i] == PACK_LEFT_OVER) {
            part->kind = WAITING_LEFT_OVER;
            p->departures[index] = DEPARTURE_NONE;
        } else {
            tokens += part->document.length;
            level_count(p, index);
        }
    }
    return tokens;
}

static void level_remove(struct planner *p) {
    struct plan_state *after = p->after;
    uint32_t kept = 0;
    uint32_t held = 0;
    for (uint32_t i = 0; i < after->waiting_count; i++) {
        if (p->departures[i] == DEPARTURE_NONE) {
            held += i < p->held_before;
            if (kept != i) {
                after->waiting[kept] = after->waiting[i];
                p->offsets[kept] = p->offsets[i];
            }
            kept++;
        }
    }
    p->held_before = held;
    after->waiting_count = kept;
}

/* Stream index of the first part far ahead, or of the end of what was looked at. */
static uint64_t level_far_index(const struct planner *p) {
    return p->far_count > 0 ? level_far(p, 0)->document.stream_index : p->scan->stream_parts;
}

/* Moves the front behind what has arrived with the step: parts before `target` tokens, and those
 * behind them that were delivered. Delivered is what is not there any more. No part far ahead has
 * arrived. */
static void level_advance_front(struct planner *p, uint64_t target) {
    struct plan_state *after = p->after;
    uint32_t kept = after->waiting_count;
    uint32_t front = p->held_before;
    while (after->stream_parts < level_far_index(p)) {
        bool stays = front < kept &&
                     after->waiting[front].document.stream_index == after->stream_parts;
        if (stays && after->stream_tokens >= target) {
            break;
        }
        struct document document;
        bool read = step_read(p, after, p->part_limit, &document);
        assert(read);
        front += stays;
        if (!stays) {
            struct delay_counts *delays = &after->delays[document.dataset];
            delays->early_tokens -= document.length;
            delays->early_documents -= document.offset == 0;
        }
    }
    after->waiting_count = front;
    p->ahead = kept - front;
}

/* Runs between the front and `end` of what is not there any more; counts them alone with NULL. What
 * is there was not left over, since it did not arrive. */
static uint32_t level_near_runs(const struct planner *p, uint64_t end, struct delivered_run *runs) {
    struct plan_state *after = p->after;
    uint64_t next = after->stream_parts;
    uint32_t count = 0;
    for (uint32_t i = 0; i <= p->ahead; i++) {
        struct waiting *part = &after->waiting[after->waiting_count + i];
        uint64_t index = i < p->ahead ? part->document.stream_index : end;
        if (i < p->ahead) {
            part->kind = WAITING_IN_QUEUE;
        }
        if (index > next) {
            if (runs != NULL) {
                runs[count] = (struct delivered_run){next, index - next};
            }
            count++;
        }
        next = index + 1;
    }
    return count;
}

/* What was delivered ahead of the front: all that was looked at and is not there any more. Among
 * what lies far ahead that is what it was. */
static void level_note_runs(struct planner *p) {
    struct plan_state *after = p->after;
    uint64_t end = level_far_index(p);
    uint32_t far = after->run_count;
    while (far > 0 && after->runs[far - 1].index > end) {
        far--;
    }
    uint32_t far_runs = after->run_count - far;
    if (far_runs > 0) {
        uint32_t near = level_near_runs(p, end, NULL);
        memmove(after->runs + near, after->runs + far, far_runs * sizeof *after->runs);
    }
    after->run_count = level_near_runs(p, end, after->runs) + far_runs;
}

/* All that was looked at arrives: the drain's. */
static void level_arrive(struct planner *p) {
    struct plan_state *after = p->after;
    while (p->far_count > 0) {
        (void)level_draw(p);
    }
    plan_state_copy_front(after, p->scan);
    after->run_count = 0;
    p->ahead = 0;
    for (uint32_t i = 0; i < after->cursor.dataset_count; i++) {
        after->delays[i].early_tokens = 0;
        after->delays[i].early_documents = 0;
    }
}

static bool level_drain_due(const struct planner *p) {
    return p->ended && (p->held_tokens <= DRAIN_STEPS * p->options.step_tokens ||
                        level_in_hand(p) < p->options.micro_batches);
}

bool level_step(struct planner *p) {
    uint32_t micro_batches = p->options.micro_batches;
    level_scan(p);
    if (p->in_hand == 0) {
        return false;
    }
    if (level_drain_due(p)) {
        level_arrive(p);
        drain_begin(p);
        return true;
    }
    level_come_near(p);
    memset(p->departures, DEPARTURE_NONE, p->after->waiting_count);
    level_decide_step(p);
    level_fill(p);
    uint32_t count = level_list(p);
    (void)step_pack(p, count, micro_batches);
    step_group(p, count, micro_batches);
    struct level_state clock = level_clock(p->after);
    level_advance(&p->options.level, &clock, level_settle(p, count));
    level_remove(p);
    level_advance_front(p, clock.target_tokens);
    level_note_runs(p);
    p->slip_tokens = clock.slip_tokens - p->after->slip_tokens;
    return true;
}
