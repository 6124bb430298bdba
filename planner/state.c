/* state: memory and invariants of what planning remembers; see state.h.
 *
 * One allocation: the record, cursors, delays, runs, waiting parts. Runs and waiting parts are as
 * long as their limit, and pages are touched only as far as they were ever filled. */
#include "planner/state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(struct plan_state) % 8 == 0 && sizeof(struct dataset_cursor) % 8 == 0 &&
                   sizeof(struct delay_counts) % 8 == 0 && sizeof(struct delivered_run) % 8 == 0,
               "arrays follow the record");

struct plan_state *plan_state_create(uint32_t datasets, uint32_t waiting_max) {
    assert(datasets > 0);
    size_t bytes = sizeof(struct plan_state) +
                   datasets * (sizeof(struct dataset_cursor) + sizeof(struct delay_counts)) +
                   waiting_max * (sizeof(struct delivered_run) + sizeof(struct waiting));
    struct plan_state *state = calloc(1, bytes);
    if (state == NULL) {
        return NULL;
    }
    state->cursor.datasets = (struct dataset_cursor *)(state + 1);
    state->cursor.dataset_count = datasets;
    state->delays = (struct delay_counts *)(state->cursor.datasets + datasets);
    state->runs = (struct delivered_run *)(state->delays + datasets);
    state->waiting = (struct waiting *)(state->runs + waiting_max);
    state->waiting_max = waiting_max;
    return state;
}

void plan_state_destroy(struct plan_state *state) {
    free(state);
}

/* Takes everything of `from` but the arrays' addresses, whose contents follow. */
static void state_assign(struct plan_state *to, const struct plan_state *from) {
    struct plan_state own = *to;
    *to = *from;
    to->cursor.datasets = own.cursor.datasets;
    to->cursor.dataset_count = own.cursor.dataset_count;
    to->delays = own.delays;
    to->runs = own.runs;
    to->waiting = own.waiting;
    to->waiting_max = own.waiting_max;
}

void plan_state_copy_front(struct plan_state *to, const struct plan_state *from) {
    struct dataset_cursor *datasets = to->cursor.datasets;
    assert(to->cursor.dataset_count == from->cursor.dataset_count);
    to->stream_tokens = from->stream_tokens;
    to->stream_parts = from->stream_parts;
    to->blend_switch_count = from->blend_switch_count;
    memcpy(to->blend_switches, from->blend_switches,
           from->blend_switch_count * sizeof *to->blend_switches);
    to->cursor = from->cursor;
    to->cursor.datasets = datasets;
    memcpy(datasets, from->cursor.datasets, from->cursor.dataset_count * sizeof *datasets);
}

void plan_state_copy(struct plan_state *to, const struct plan_state *from) {
    assert(to->cursor.dataset_count == from->cursor.dataset_count);
    assert(to->waiting_max == from->waiting_max);
    uint32_t datasets = from->cursor.dataset_count;
    state_assign(to, from);
    memcpy(to->cursor.datasets, from->cursor.datasets, datasets * sizeof *to->cursor.datasets);
    memcpy(to->delays, from->delays, datasets * sizeof *to->delays);
    memcpy(to->runs, from->runs, from->run_count * sizeof *to->runs);
    memcpy(to->waiting, from->waiting, from->waiting_count * sizeof *to->waiting);
}

/* Switches of blend that the front has come to. Every dataset is then even with its weight. */
static void state_switch(struct plan_state *state) {
    while (state->blend_switch_count > 0 && state->blend_switches[0] <= state->stream_parts) {
        state->blend_switch_count--;
        memmove(state->blend_switches, state->blend_switches + 1,
                state->blend_switch_count * sizeof *state->blend_switches);
        state->cursor.blend++;
        for (uint32_t i = 0; i < state->cursor.dataset_count; i++) {
            state->cursor.datasets[i].stream_tokens = 0;
        }
    }
}

void plan_state_pass(struct plan_state *state, uint32_t tokens) {
    state->stream_parts++;
    state->stream_tokens += tokens;
    state_switch(state);
}

void plan_state_switch_blend(struct plan_state *state, uint64_t index) {
    assert(state->blend_switch_count < BLEND_SWITCHES_MAX && index >= state->stream_parts);
    state->blend_switches[state->blend_switch_count++] = index;
    state_switch(state);
}

uint64_t plan_state_known_end(const struct plan_state *state) {
    if (state->run_count == 0) {
        return state->stream_parts;
    }
    const struct delivered_run *last = &state->runs[state->run_count - 1];
    return last->index + last->count;
}

uint32_t plan_state_datasets(const struct plan_state *state) {
    static const struct dataset_cursor no_cursor;
    static const struct delay_counts no_delays;
    uint32_t count = state->cursor.dataset_count;
    while (count > 0 &&
           memcmp(&state->cursor.datasets[count - 1], &no_cursor, sizeof no_cursor) == 0 &&
           memcmp(&state->delays[count - 1], &no_delays, sizeof no_delays) == 0) {
        count--;
    }
    return count;
}

void plan_state_reset(struct plan_state *state) {
    uint32_t datasets = state->cursor.dataset_count;
    state_assign(state, &(struct plan_state){0});
    memset(state->cursor.datasets, 0, datasets * sizeof *state->cursor.datasets);
    memset(state->delays, 0, datasets * sizeof *state->delays);
}

static bool state_same_cursor(const struct source_cursor *a, const struct source_cursor *b) {
    return a->blend == b->blend && a->open == b->open && a->open_dataset == b->open_dataset &&
           a->open_offset == b->open_offset && a->open_document == b->open_document &&
           a->open_epoch == b->open_epoch && a->open_length == b->open_length &&
           memcmp(a->datasets, b->datasets, a->dataset_count * sizeof *a->datasets) == 0;
}

bool plan_state_same_front(const struct plan_state *a, const struct plan_state *b) {
    assert(a->cursor.dataset_count == b->cursor.dataset_count);
    return a->step == b->step && a->target_tokens == b->target_tokens &&
           a->stream_tokens == b->stream_tokens && a->stream_parts == b->stream_parts &&
           a->run_count == b->run_count &&
           memcmp(a->runs, b->runs, a->run_count * sizeof *a->runs) == 0 &&
           a->blend_switch_count == b->blend_switch_count &&
           memcmp(a->blend_switches, b->blend_switches,
                  a->blend_switch_count * sizeof *a->blend_switches) == 0 &&
           state_same_cursor(&a->cursor, &b->cursor);
}

uint64_t plan_state_arrived_tokens(const struct plan_state *state, uint32_t dataset) {
    return state->cursor.datasets[dataset].arrived_tokens + state->delays[dataset].early_tokens;
}

uint64_t plan_state_arrived_documents(const struct plan_state *state, uint32_t dataset) {
    return state->cursor.datasets[dataset].arrived_documents +
           state->delays[dataset].early_documents;
}

uint64_t plan_state_waiting_tokens(const struct plan_state *state, uint32_t dataset) {
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < state->waiting_count; i++) {
        const struct document *document = &state->waiting[i].document;
        if (dataset == UINT32_MAX || document->dataset == dataset) {
            tokens += document->length;
        }
    }
    return tokens;
}

/* Tokens and first parts of one dataset that arrived and are not accounted for; 0 and 0 when the
 * books balance. 128 bits wide: the counters may come from a damaged blob. */
struct state_gap {
    __int128 tokens;
    __int128 documents;
};

#define STATE_GAPS 64u /* datasets balanced in one pass over the waiting parts */

static bool state_gaps_closed(const struct plan_state *state, uint32_t first, uint32_t count) {
    struct state_gap gaps[STATE_GAPS];
    for (uint32_t i = 0; i < count; i++) {
        const struct dataset_cursor *cursor = &state->cursor.datasets[first + i];
        const struct delay_counts *delays = &state->delays[first + i];
        gaps[i].tokens = (__int128)cursor->arrived_tokens + delays->early_tokens -
                         cursor->dropped_tokens - delays->delivered_tokens;
        gaps[i].documents = (__int128)cursor->arrived_documents + delays->early_documents -
                            cursor->dropped_documents - delays->delivered_documents;
    }
    for (uint32_t i = 0; i < state->waiting_count; i++) {
        const struct document *document = &state->waiting[i].document;
        if (document->dataset >= first && document->dataset - first < count) {
            gaps[document->dataset - first].tokens -= document->length;
            gaps[document->dataset - first].documents -= document->offset == 0;
        }
    }
    bool closed = true;
    for (uint32_t i = 0; i < count; i++) {
        closed = closed && gaps[i].tokens == 0 && gaps[i].documents == 0;
    }
    return closed;
}

bool plan_state_conserves(const struct plan_state *state) {
    __int128 given = state->stream_tokens;
    __int128 delivered = state->delivered_tokens;
    for (uint32_t i = 0; i < state->cursor.dataset_count; i++) {
        given -= (__int128)state->cursor.datasets[i].arrived_tokens -
                 state->cursor.datasets[i].dropped_tokens;
        delivered -= state->delays[i].delivered_tokens;
    }
    bool conserves = given == 0 && delivered == 0;
    for (uint32_t i = 0; i < state->cursor.dataset_count; i += STATE_GAPS) {
        uint32_t left = state->cursor.dataset_count - i;
        conserves = conserves && state_gaps_closed(state, i, left < STATE_GAPS ? left : STATE_GAPS);
    }
    return conserves;
}

static uint64_t delay_saturated(unsigned __int128 token_steps) {
    return token_steps < PLAN_STATE_NUMBER_MAX ? (uint64_t)token_steps : PLAN_STATE_NUMBER_MAX;
}

void delay_counts_add(struct delay_counts *delays, const struct document *document, uint64_t step) {
    uint64_t delay = step > document->nominal_step ? step - document->nominal_step : 0;
    delays->delivered_tokens += document->length;
    delays->delivered_documents += document->offset == 0;
    delays->delay_token_steps = delay_saturated(delays->delay_token_steps +
                                                (unsigned __int128)document->length * delay);
    delays->delay_max = delay > delays->delay_max ? delay : delays->delay_max;
    delays->tokens_by_delay[delay < DELAY_BUCKETS ? delay : DELAY_BUCKETS - 1] += document->length;
}

void delay_counts_join(struct delay_counts *delays, const struct delay_counts *others) {
    delays->delivered_tokens += others->delivered_tokens;
    delays->delivered_documents += others->delivered_documents;
    delays->delay_token_steps = delay_saturated((unsigned __int128)delays->delay_token_steps +
                                                others->delay_token_steps);
    delays->delay_max = others->delay_max > delays->delay_max ? others->delay_max
                                                              : delays->delay_max;
    for (uint32_t delay = 0; delay < DELAY_BUCKETS; delay++) {
        delays->tokens_by_delay[delay] += others->tokens_by_delay[delay];
    }
}

uint64_t delay_percentile(const struct delay_counts *delays, unsigned percent) {
    uint64_t seen = 0;
    for (uint32_t delay = 0; delay < DELAY_BUCKETS; delay++) {
        seen += delays->tokens_by_delay[delay];
        if ((unsigned __int128)seen * 100 >=
            (unsigned __int128)delays->delivered_tokens * percent) {
            return delay;
        }
    }
    return DELAY_BUCKETS - 1;
}
