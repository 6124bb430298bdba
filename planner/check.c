/* check: whether a state that came from outside belongs to this corpus and these options.
 *
 * plan_state_decode has vouched for the form; here is what only the source and the options know. */
#include "planner/step.h"

#include <inttypes.h>
#include <string.h>

#define STEP_MAX   (UINT64_C(1) << 40)
#define TOKENS_MAX (UINT64_C(1) << 60)

static int check_exists(const struct document_source *source, const char *what, uint32_t dataset,
                        uint64_t document, uint32_t length, struct error *error) {
    uint32_t found = source->length(source->context, dataset, document);
    if (found != length || found == 0) {
        return error_set(error, -EBADMSG,
                         "state: %s: document %" PRIu64 " of dataset %" PRIu32 " has %" PRIu32
                         " tokens there and %" PRIu32
                         " in the corpus; restore the state that was made with this corpus",
                         what, document, dataset, length, found);
    }
    return 0;
}

/* Numbers that no stream reaches leave no room to go on counting. */
static int check_counter(const char *name, uint64_t value, uint64_t max, struct error *error) {
    if (value > max) {
        return error_set(error, -EBADMSG,
                         "state: %s = %" PRIu64 ", which no stream reaches; restore another one",
                         name, value);
    }
    return 0;
}

static int check_dataset_counters(const struct plan_state *state, uint32_t dataset,
                                  struct error *error) {
    const struct dataset_cursor *cursor = &state->cursor.datasets[dataset];
    const struct delay_counts *delays = &state->delays[dataset];
    int code = check_counter("arrived_tokens", cursor->arrived_tokens, TOKENS_MAX, error);
    if (code == 0) {
        code = check_counter("arrived_documents", cursor->arrived_documents, TOKENS_MAX, error);
    }
    if (code == 0) {
        code = check_counter("delivered_documents", delays->delivered_documents, TOKENS_MAX, error);
    }
    return code;
}

static int check_counters(const struct plan_state *state, struct error *error) {
    const struct {
        const char *name;
        uint64_t value;
        uint64_t max;
    } counters[] = {
        {"step", state->step, STEP_MAX},
        {"target_tokens", state->target_tokens, TOKENS_MAX},
        {"slip_tokens", state->slip_tokens, TOKENS_MAX},
        {"stream_tokens", state->stream_tokens, TOKENS_MAX},
        {"stream_parts", state->stream_parts, TOKENS_MAX},
        {"delivered_tokens", state->delivered_tokens, TOKENS_MAX},
        {"leftover_released", state->leftover_released, TOKENS_MAX},
    };
    int code = 0;
    for (size_t i = 0; code == 0 && i < sizeof counters / sizeof counters[0]; i++) {
        code = check_counter(counters[i].name, counters[i].value, counters[i].max, error);
    }
    for (uint32_t i = 0; code == 0 && i < BANDS_MAX; i++) {
        code = check_counter("queue_released", state->queue_released[i], TOKENS_MAX, error);
    }
    for (uint32_t i = 0; code == 0 && i < state->cursor.dataset_count; i++) {
        code = check_dataset_counters(state, i, error);
    }
    return code;
}

static int check_part(const struct planner *planner, const struct waiting *part,
                      struct error *error) {
    const struct document *document = &part->document;
    if (document->length > planner->part_limit) {
        return error_set(error, -EBADMSG,
                         "state: a waiting part of document %" PRIu64 " of dataset %" PRIu32
                         " has %" PRIu32 " tokens, parts have at most %" PRIu32
                         "; restore it under the window and tokens_max that it was made with",
                         document->document, document->dataset, document->length,
                         planner->part_limit);
    }
    return check_exists(planner->source, "a waiting part", document->dataset, document->document,
                        document->document_length, error);
}

/* Bins follow one another without a gap, which decoding has seen; here: they are the bins of the
 * steps to come, and each fits. */
static int check_drain(const struct planner *planner, const struct plan_state *state,
                       struct error *error) {
    uint32_t micro_batches = planner->options.micro_batches;
    uint64_t first = (state->step - state->drain_start) * micro_batches;
    uint64_t last = state->waiting[state->waiting_count - 1].bin;
    bool fits = state->waiting[0].bin == first && last / micro_batches + 1 == state->drain_steps;
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < state->waiting_count; i++) {
        bool same = i > 0 && state->waiting[i].bin == state->waiting[i - 1].bin;
        tokens = (same ? tokens : 0) + state->waiting[i].document.length;
        fits = fits && tokens <= planner->bin_tokens;
    }
    if (!fits) {
        return error_set(error, -EBADMSG,
                         "state: its drain of %" PRIu32 " steps does not have %" PRIu32
                         " micro-batches of at most %" PRIu64
                         " tokens a step; restore it under the options that it was made with",
                         state->drain_steps, micro_batches, planner->bin_tokens);
    }
    return 0;
}

static int check_held(const struct planner *planner, const struct plan_state *state,
                      struct error *error) {
    const struct plan_options *options = &planner->options;
    uint64_t tokens = plan_state_waiting_tokens(state, UINT32_MAX);
    bool cut = policy_cuts(options->policy) && plan_batches(options) == 0;
    uint64_t tokens_max = cut ? 0 : plan_tokens_held_max(options);
    if (plan_batches(options) > 0 && !state->draining) {
        tokens_max = 0;
    }
    if (tokens > tokens_max) {
        return error_set(error, -EBADMSG,
                         "state: %" PRIu64 " tokens wait, policy %s and its backlog allow %" PRIu64
                         "; restore it under the options that it was made with",
                         tokens, policy_name(options->policy), tokens_max);
    }
    return 0;
}

/* Parts up to the last run and what waits lie in one array. */
static int check_ahead(const struct planner *planner, const struct plan_state *state,
                       struct error *error) {
    uint64_t delivered = 0;
    for (uint32_t i = 0; i < state->run_count; i++) {
        delivered += state->runs[i].count;
    }
    const struct delivered_run *last = &state->runs[state->run_count - 1];
    uint64_t parts = last->index + last->count - state->stream_parts;
    if (planner->options.policy != POLICY_WLB_LEVEL || parts > LOOK_AHEAD_LIMIT ||
        parts - delivered + state->waiting_count > planner->parts_max) {
        return error_set(error, -EBADMSG,
                         "state: parts up to %" PRIu64
                         " ahead of its front are delivered, policy %s with queues.waiting_max = "
                         "%" PRIu32 " does not look so far; restore it under the options that it "
                         "was made with",
                         parts, policy_name(planner->options.policy), planner->parts_max);
    }
    return 0;
}

/* Reads the stream again up to the last run, taking what was delivered off the counts. */
static bool check_reread(struct planner *planner, const struct plan_state *state,
                         struct delay_counts *early) {
    struct plan_state *scan = planner->scan;
    uint32_t run = 0;
    plan_state_copy_front(scan, state);
    while (run < state->run_count) {
        const struct delivered_run *next = &state->runs[run];
        struct document document;
        if (!step_read(planner, scan, planner->part_limit, &document)) {
            return false;
        }
        if (document.stream_index >= next->index) {
            early[document.dataset].early_tokens -= document.length;
            early[document.dataset].early_documents -= document.offset == 0;
            run += scan->stream_parts == next->index + next->count;
        }
    }
    return true;
}

static int check_early(struct planner *planner, const struct plan_state *state,
                       struct error *error) {
    int code = check_ahead(planner, state, error);
    if (code < 0) {
        return code;
    }
    struct delay_counts *early = planner->after->delays;
    uint32_t datasets = state->cursor.dataset_count;
    planner->ahead_kept = false;
    memcpy(early, state->delays, datasets * sizeof *early);
    bool closed = check_reread(planner, state, early);
    for (uint32_t i = 0; i < datasets; i++) {
        closed = closed && early[i].early_tokens == 0 && early[i].early_documents == 0;
    }
    if (!closed) {
        return error_set(error, -EBADMSG,
                         "state: what was delivered ahead of its front is not what lies there; "
                         "restore the state that was made with this corpus");
    }
    return 0;
}

int planner_check_state(struct planner *planner, const struct plan_state *state,
                        struct error *error) {
    int code = check_counters(state, error);
    if (code == 0) {
        code = check_held(planner, state, error);
    }
    if (code == 0 && state->cursor.open) {
        code = check_exists(planner->source, "the open document", state->cursor.open_dataset,
                            state->cursor.open_document, state->cursor.open_length, error);
    }
    for (uint32_t i = 0; code == 0 && i < state->waiting_count; i++) {
        code = check_part(planner, &state->waiting[i], error);
    }
    if (code == 0 && state->draining) {
        code = check_drain(planner, state, error);
    }
    if (code == 0 && state->run_count > 0) {
        code = check_early(planner, state, error);
    }
    return code;
}
