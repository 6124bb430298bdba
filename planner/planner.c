/* planner: memory of the planner, and the step as a whole; see planner.h and step.h. */
#include "planner/step.h"

#include "packer/refine.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

/* Time for refinement, in its searches of some 15 ns: some of what sorting takes. */
#define REFINE_PROBES_BASE     4096u
#define REFINE_PROBES_PER_PART 16u

/* An array of `count` at the running offset `at`; NULL while only measuring. */
static void *planner_array(uint8_t *memory, size_t *at, size_t count, size_t item_bytes) {
    const size_t alignment = _Alignof(max_align_t);
    size_t begin = (*at + alignment - 1) / alignment * alignment;
    *at = begin + count * item_bytes;
    return memory != NULL ? memory + begin : NULL;
}

/* Lays the arrays out behind the record; returns the bytes of all. */
static size_t planner_lay_out(struct planner *p, uint8_t *memory) {
    const struct plan_options *options = &p->options;
    uint32_t parts_max = p->parts_max;
    size_t held = parts_max;
    size_t bins = step_bins_max(options);
    size_t micro_batches = options->micro_batches;
    size_t dealing = layout_dealer_bytes(&options->layouts, parts_max, options->cp);
    size_t pack_bytes = pack_greedy_bytes(parts_max, step_bins_max(options));
    size_t at = sizeof *p;
    p->rows = planner_array(memory, &at, held, sizeof *p->rows);
    p->departures = planner_array(memory, &at, held, sizeof *p->departures);
    p->verdicts = planner_array(memory, &at, held, sizeof *p->verdicts);
    p->indexes = planner_array(memory, &at, held, sizeof *p->indexes);
    p->lengths = planner_array(memory, &at, held, sizeof *p->lengths);
    p->bins = planner_array(memory, &at, held, sizeof *p->bins);
    p->order = planner_array(memory, &at, held, sizeof *p->order);
    p->works = planner_array(memory, &at, held, sizeof *p->works);
    p->keys = planner_array(memory, &at, held, sizeof *p->keys);
    size_t level = options->policy == POLICY_WLB_LEVEL ? held : 0;
    size_t level_scratch = level > 0 ? level_bytes(&options->level, parts_max) : 0;
    p->pool = planner_array(memory, &at, level, sizeof *p->pool);
    p->pool_lengths = planner_array(memory, &at, level, sizeof *p->pool_lengths);
    p->pool_indices = planner_array(memory, &at, level, sizeof *p->pool_indices);
    p->shorts = planner_array(memory, &at, level, sizeof *p->shorts);
    p->short_works = planner_array(memory, &at, level, sizeof *p->short_works);
    p->offsets = planner_array(memory, &at, level, sizeof *p->offsets);
    p->far = planner_array(memory, &at, 2 * level, sizeof *p->far);
    p->level_scratch = planner_array(memory, &at, level_scratch, 1);
    size_t fixed = plan_batches(options) > 0 ? options->documents_max : 0;
    uint32_t fixed_bins = plan_batches(options) * options->micro_batches;
    size_t fixed_scratch = fixed > 0 ? fixed_bytes(options->documents_max, fixed_bins) : 0;
    p->pieces = planner_array(memory, &at, fixed, sizeof *p->pieces);
    p->fixed_scratch = planner_array(memory, &at, fixed_scratch, 1);
    uint8_t *dealer = planner_array(memory, &at, dealing, 1);
    if (dealer != NULL) {
        layout_dealer_init(&p->dealer, dealer, &options->layouts, parts_max, options->cp);
    }
    p->row_begins = planner_array(memory, &at, bins + 1, sizeof *p->row_begins);
    p->bin_works = planner_array(memory, &at, bins, sizeof *p->bin_works);
    p->bin_tokens_held = planner_array(memory, &at, bins, sizeof *p->bin_tokens_held);
    p->bin_order = planner_array(memory, &at, bins, sizeof *p->bin_order);
    p->bin_numbers = planner_array(memory, &at, bins, sizeof *p->bin_numbers);
    p->pack_scratch = planner_array(memory, &at, pack_bytes, 1);
    size_t refine_bytes = options->refine_gap_ppm == REFINE_NOT
                              ? 0
                              : pack_refine_bytes(parts_max, step_bins_max(options));
    p->refine_scratch = planner_array(memory, &at, refine_bytes, 1);
    p->slots = planner_array(memory, &at, micro_batches, sizeof *p->slots);
    p->loads = planner_array(memory, &at, micro_batches, sizeof *p->loads);
    p->replica_heap = planner_array(memory, &at, options->dp, sizeof *p->replica_heap);
    p->replica_taken = planner_array(memory, &at, options->dp, sizeof *p->replica_taken);
    p->replica_loads = planner_array(memory, &at, options->dp, sizeof *p->replica_loads);
    p->choices = planner_array(memory, &at, micro_batches, sizeof *p->choices);
    size_t prices = (micro_batches + 1) * options->cp;
    p->rank_ps = planner_array(memory, &at, prices, sizeof *p->rank_ps);
    if (options->pools.size > 0) {
        p->pools = planner_array(memory, &at, pools_memory_bytes(options, parts_max), 1);
        p->ordered_rows = planner_array(memory, &at, held, sizeof *p->ordered_rows);
    }
    return at;
}

static struct planner *planner_make(const struct plan_options *options,
                                    const struct plan_section *sections, uint32_t section_count,
                                    uint32_t parts_max, const struct document_source *source,
                                    struct error *error) {
    assert(options->step_tokens > 0 && source->dataset_count > 0);
    assert(parts_max >= plan_parts_max(options));
    struct planner made = {
        .options = *options,
        .sections = sections,
        .section_count = section_count,
        .parts_max = parts_max,
        .source = source,
        .row_unit = plan_row_unit(options),
        .bin_tokens = plan_bin_tokens(options),
        .part_limit = plan_part_limit(options),
    };
    if (work_model_init(&made.model, &options->model, options->cp, options->pp, options->tp,
                        made.part_limit, error) < 0) {
        return NULL;
    }
    made.after = planner_state_create(&made);
    made.scan = plan_state_create(source->dataset_count, 0);
    size_t bytes = planner_lay_out(&made, NULL);
    struct planner *planner = calloc(1, bytes);
    if (planner == NULL || made.after == NULL || made.scan == NULL) {
        plan_state_destroy(made.scan);
        plan_state_destroy(made.after);
        free(planner);
        (void)error_set(error, -ENOMEM,
                        "no memory to plan with: %zu bytes; lower queues.waiting_max = %" PRIu32,
                        bytes, options->waiting_max);
        return NULL;
    }
    *planner = made;
    (void)planner_lay_out(planner, (uint8_t *)planner);
    if (options->pools.size > 0) {
        pools_memory_init(planner->pools, options, parts_max);
    }
    return planner;
}

struct planner *planner_create(const struct plan_options *options,
                               const struct document_source *source, struct error *error) {
    return planner_make(options, NULL, 0, plan_parts_max(options), source, error);
}

struct planner *planner_create_section(const struct plan_section *sections, uint32_t count,
                                       uint32_t parts_max, const struct document_source *source,
                                       struct error *error) {
    assert(count > 0);
    return planner_make(&sections[count - 1].options, sections, count, parts_max, source, error);
}

void planner_destroy(struct planner *planner) {
    if (planner != NULL) {
        plan_state_destroy(planner->scan);
        plan_state_destroy(planner->after);
        free(planner);
    }
}

const struct plan_options *planner_options(const struct planner *planner) {
    return &planner->options;
}

const struct work_model *planner_model(const struct planner *planner) {
    return &planner->model;
}

uint32_t planner_in_hand(const struct planner *planner) {
    return planner->in_hand;
}

struct plan_state *planner_state_create(const struct planner *planner) {
    return plan_state_create(planner->source->dataset_count, planner->parts_max);
}

/* Steps are T tokens long behind the current one, and before it by the section that each is in. */
uint64_t step_nominal(const struct planner *planner, uint64_t offset) {
    uint64_t step_tokens = planner->options.step_tokens;
    uint64_t step = planner->after->step;
    uint64_t target = planner->after->target_tokens;
    if (offset >= target) {
        return step + (offset - target) / step_tokens;
    }
    uint64_t behind = target - offset;
    uint64_t steps = (behind + step_tokens - 1) / step_tokens;
    for (uint32_t i = planner->section_count; i > 1; i--) {
        const struct plan_section *section = &planner->sections[i - 1];
        if (step < section->step || steps <= step - section->step) {
            break;
        }
        behind -= (step - section->step) * section->options.step_tokens;
        step = section->step;
        step_tokens = section[-1].options.step_tokens;
        steps = (behind + step_tokens - 1) / step_tokens;
    }
    return steps < step ? step - steps : 0;
}

bool step_read(const struct planner *planner, struct plan_state *front, uint32_t limit,
               struct document *out) {
    if (planner->source->next(planner->source->context, &front->cursor, limit, out) == 0) {
        return false;
    }
    assert(0 < out->length && out->length <= limit);
    assert(out->dataset < front->cursor.dataset_count);
    out->nominal_step = step_nominal(planner, front->stream_tokens);
    out->stream_index = front->stream_parts;
    plan_state_pass(front, out->length);
    return true;
}

static void step_refine(struct planner *p, const struct pack_input *input) {
    struct refine_options options = {
        .gap_ppm = p->options.refine_gap_ppm,
        .probes_max = REFINE_PROBES_BASE + (uint64_t)REFINE_PROBES_PER_PART * input->items,
    };
    if (options.gap_ppm != REFINE_NOT) {
        (void)pack_refine(input, &options, p->refine_scratch, p->bins, p->order, p->bin_works,
                          p->bin_tokens_held);
    }
}

uint32_t step_pack(struct planner *p, uint32_t count, uint32_t bins) {
    struct pack_input input = {
        .lengths = p->lengths,
        .works = p->works,
        .items = count,
        .bins = bins,
        .tokens_max = p->bin_tokens,
        .search = p->options.search,
    };
    for (uint32_t i = 0; i < count; i++) {
        p->lengths[i] = p->after->waiting[p->indexes[i]].document.length;
        p->works[i] = work_of(&p->model, p->lengths[i]);
    }
    pack_greedy(&input, p->pack_scratch, p->bins, p->order, p->bin_works, p->bin_tokens_held);
    step_refine(p, &input);
    uint32_t left_over = 0;
    for (uint32_t i = 0; i < count; i++) {
        left_over += p->bins[i] == PACK_LEFT_OVER;
    }
    return left_over;
}

void step_group(struct planner *p, uint32_t count, uint32_t bins) {
    uint32_t *begins = p->row_begins;
    for (uint32_t bin = 0; bin <= bins; bin++) {
        begins[bin] = 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (p->bins[i] != PACK_LEFT_OVER) {
            begins[p->bins[i] + 1]++;
        }
    }
    for (uint32_t bin = 0; bin < bins; bin++) {
        begins[bin + 1] += begins[bin];
        p->bin_order[bin] = begins[bin];
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t item = p->order[i];
        uint32_t bin = p->bins[item];
        if (bin != PACK_LEFT_OVER) {
            struct waiting *row = &p->rows[p->bin_order[bin]++];
            *row = p->after->waiting[p->indexes[item]];
            row->bin = bin;
        }
    }
}

/* Its queue, and whether a document in it is an outlier. */
static uint32_t step_queue(const struct plan_options *options, uint32_t length, bool *outlier) {
    if (options->policy == POLICY_WLB_LEVEL) {
        *outlier = length >= options->level.candidate_length;
        return *outlier ? QUEUE_LEVEL : QUEUE_SHORT;
    }
    if (plan_batches(options) > 0) {
        *outlier = false;
        return QUEUE_FIXED;
    }
    *outlier = true;
    return bands_of(&options->bands, length);
}

void step_count_release(struct planner *planner, const struct document *document) {
    bool outlier;
    uint32_t queue = step_queue(&planner->options, document->length, &outlier);
    if (queue < BANDS_MAX) {
        planner->after->queue_released[queue]++;
    }
    planner->release.outliers += outlier;
    planner->release.early += outlier && document->nominal_step > planner->after->step;
}

static void step_begin(struct planner *planner, const struct plan_state *state) {
    planner->ahead_kept = planner->ahead_kept && plan_state_same_front(planner->after, state) &&
                          planner->after->waiting_count == state->waiting_count;
    plan_state_copy(planner->after, state);
    if (section_begins(planner)) {
        section_begin(planner);
    }
    planner->held_before = state->waiting_count;
    planner->held_tokens = plan_state_waiting_tokens(state, UINT32_MAX);
    planner->leaving = 0;
    planner->in_hand = state->waiting_count;
    planner->ended = false;
    planner->release = (struct release){0};
    planner->predicted_ppm = 0;
    planner->slip_tokens = 0;
}

static bool step_choose(struct planner *planner) {
    if (planner->after->draining) {
        drain_continue(planner);
        return true;
    }
    if (plan_batches(&planner->options) > 0) {
        return fixed_step(planner);
    }
    switch (planner->options.policy) {
    case POLICY_PLAIN:
    case POLICY_POOL:
        return plain_step(planner);
    case POLICY_WLB_NONE:
    case POLICY_WLB_BANDS:
        return wlb_step(planner);
    case POLICY_WLB_LEVEL:
        return level_step(planner);
    case POLICY_FIXED:
        break;
    }
    assert(false);
    return false;
}

int plan_step(struct planner *planner, const struct plan_state *state, struct plan_state *next,
              struct step_plan **plan, struct error *error) {
    assert(next != state && next != planner->after);
    step_begin(planner, state);
    bool chosen = step_choose(planner);
    planner->ahead_kept = false;
    if (!chosen) {
        return 0;
    }
    struct step_plan *made = compose_plan(planner);
    if (made == NULL) {
        return error_set(error, -ENOMEM, "no memory for the plan of step %" PRIu64, state->step);
    }
    assert(plan_state_conserves(planner->after));
    plan_state_copy(next, planner->after);
    /* The drain looks at nothing: what lies there is another state's. */
    planner->ahead_kept = !state->draining;
    planner->ahead_slipped = planner->slip_tokens > 0;
    *plan = made;
    return 1;
}
