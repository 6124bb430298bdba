/* select: price every candidate on every rank, keep the best.
 *
 * Candidates are visited by layout number, so a later one replaces the choice only when it is
 * strictly better: that is the last tie-break. */
#include "sharding/select.h"

#include <assert.h>
#include <stddef.h>

static struct layout_candidate layout_price(enum layout layout,
                                            const struct packed_sequence *sequence, uint32_t cp,
                                            const struct tile_model *model,
                                            struct fragment *scratch) {
    uint32_t capacity = layout_rank_fragments_max(sequence->documents);
    struct layout_candidate candidate = {.layout = layout};
    for (uint32_t rank = 0; rank < cp; rank++) {
        uint32_t count = layout_fragments(layout, sequence, cp, rank, scratch, capacity);
        assert(count <= capacity);
        uint64_t cost_ps = tile_cost_ps(model, scratch, count);
        candidate.fragments += count;
        if (cost_ps > candidate.slowest_ps) {
            candidate.slowest_ps = cost_ps;
        }
    }
    return candidate;
}

static bool layout_better(const struct layout_candidate *a, const struct layout_candidate *b) {
    if (a->slowest_ps != b->slowest_ps) {
        return a->slowest_ps < b->slowest_ps;
    }
    return a->fragments < b->fragments;
}

static void layout_choose(struct layout_choice *choice) {
    const struct layout_candidate *best = &choice->candidates[0];
    for (uint32_t i = 1; i < choice->candidate_count; i++) {
        if (layout_better(&choice->candidates[i], best)) {
            best = &choice->candidates[i];
        }
    }
    choice->layout = best->layout;
}

void layout_select(const struct layout_options *options, const struct packed_sequence *sequence,
                   uint32_t cp, const struct tile_model *model, struct fragment *scratch,
                   struct layout_choice *out) {
    *out = (struct layout_choice){0};
    for (enum layout layout = LAYOUT_PER_SEQUENCE; cp > 1 && layout <= LAYOUT_ULYSSES; layout++) {
        if ((options->allowed & 1u << layout) == 0 || layout_name(layout) == NULL) {
            continue;
        }
        struct layout_candidate candidate = layout_price(layout, sequence, cp, model, scratch);
        if (candidate.fragments <= options->fragments_max) {
            out->candidates[out->candidate_count++] = candidate;
        }
    }
    if (out->candidate_count == 0) {
        out->candidates[out->candidate_count++] = layout_price(LAYOUT_PER_SEQUENCE, sequence, cp,
                                                               model, scratch);
    }
    layout_choose(out);
}
