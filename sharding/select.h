/* select: the layout of one packed sequence, chosen by the predicted slowest rank.
 *
 * WLB-LLM section 5.3 with the tile model: every allowed candidate is priced, the smallest slowest
 * rank wins, exact ties go to fewer fragments, then to the lower layout number. */
#ifndef BALLAST_SHARDING_SELECT_H
#define BALLAST_SHARDING_SELECT_H

#include "sharding/cost.h"
#include "sharding/layout.h"

#define LAYOUT_CANDIDATES_MAX 5u

struct layout_candidate {
    enum layout layout;
    uint32_t fragments;  /* over all ranks */
    uint64_t slowest_ps; /* largest tile_cost_ps over ranks */
};

struct layout_choice {
    enum layout layout;
    uint32_t candidate_count;
    struct layout_candidate candidates[LAYOUT_CANDIDATES_MAX]; /* by layout number */
};

/* The candidate that was chosen; there is one. */
static inline const struct layout_candidate *layout_chosen(const struct layout_choice *choice) {
    uint32_t i = 0;
    while (choice->candidates[i].layout != choice->layout) {
        i++;
    }
    return &choice->candidates[i];
}

struct layout_options {
    uint32_t allowed;       /* bit (1 << layout) for each allowed layout; at least one */
    uint32_t fragments_max; /* candidates with more fragments over all ranks are not considered;
                               if none is left, per-sequence is used whatever its count */
};

/* Chooses. `scratch` holds layout_rank_fragments_max(sequence->documents) fragments. `rank_ps` is
 * 2 * cp long: the first cp become the ranks' tile_cost_ps in the chosen layout, the others are
 * scratch. With cp 1 the answer is per-sequence and the only candidate. */
void layout_select(const struct layout_options *options, const struct packed_sequence *sequence,
                   uint32_t cp, const struct tile_model *model, struct fragment *scratch,
                   uint64_t *rank_ps, struct layout_choice *out);

/* The same with a layout that is settled, whatever its fragments: the only candidate. */
void layout_settle(enum layout layout, const struct packed_sequence *sequence, uint32_t cp,
                   const struct tile_model *model, struct fragment *scratch, uint64_t *rank_ps,
                   struct layout_choice *out);

#endif
