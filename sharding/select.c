/* select: price every candidate on every rank, keep the best.
 *
 * Candidates are visited by layout number, so a later one replaces the choice only when it is
 * strictly better: that is the last tie-break. */
#include "sharding/select.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

static struct layout_candidate layout_price(enum layout layout,
                                            const struct packed_sequence *sequence, uint32_t cp,
                                            const struct tile_model *model,
                                            struct fragment *scratch, uint64_t *rank_ps) {
    uint32_t capacity = layout_rank_fragments_max(sequence->documents);
    struct layout_candidate candidate = {.layout = layout};
    for (uint32_t rank = 0; rank < cp; rank++) {
        uint32_t count = layout_fragments(layout, sequence, cp, rank, scratch, capacity);
        assert(count <= capacity);
        rank_ps[rank] = tile_cost_ps(model, scratch, count);
        candidate.fragments += count;
        if (rank_ps[rank] > candidate.slowest_ps) {
            candidate.slowest_ps = rank_ps[rank];
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

/* Adds a candidate, the ranks' prices behind those of the best so far. */
static void layout_offer(struct layout_choice *choice, const struct layout_candidate *candidate,
                         uint32_t cp, uint64_t *rank_ps) {
    if (choice->candidate_count == 0 || layout_better(candidate, layout_chosen(choice))) {
        choice->layout = candidate->layout;
        memcpy(rank_ps, rank_ps + cp, cp * sizeof *rank_ps);
    }
    choice->candidates[choice->candidate_count++] = *candidate;
}

void layout_select(const struct layout_options *options, const struct packed_sequence *sequence,
                   uint32_t cp, const struct tile_model *model, struct fragment *scratch,
                   uint64_t *rank_ps, struct layout_choice *out) {
    *out = (struct layout_choice){0};
    for (enum layout layout = LAYOUT_PER_SEQUENCE; cp > 1 && layout <= LAYOUT_ULYSSES; layout++) {
        if ((options->allowed & 1u << layout) == 0 || layout_name(layout) == NULL) {
            continue;
        }
        struct layout_candidate candidate = layout_price(layout, sequence, cp, model, scratch,
                                                         rank_ps + cp);
        if (candidate.fragments <= options->fragments_max) {
            layout_offer(out, &candidate, cp, rank_ps);
        }
    }
    if (out->candidate_count == 0) {
        struct layout_candidate candidate = layout_price(LAYOUT_PER_SEQUENCE, sequence, cp, model,
                                                         scratch, rank_ps + cp);
        layout_offer(out, &candidate, cp, rank_ps);
    }
}

void layout_settle(enum layout layout, const struct packed_sequence *sequence, uint32_t cp,
                   const struct tile_model *model, struct fragment *scratch, uint64_t *rank_ps,
                   struct layout_choice *out) {
    *out = (struct layout_choice){.layout = layout, .candidate_count = 1};
    out->candidates[0] = layout_price(layout, sequence, cp, model, scratch, rank_ps);
}
