/* select: the layout of one packed sequence, chosen by the predicted slowest rank.
 *
 * WLB-LLM section 5.3 with the tile model: every allowed candidate is priced, the smallest slowest
 * rank wins, exact ties go to fewer fragments, then to the lower layout number, then to the lower
 * level of layouts that have them (spread.h).
 * Where the link's rate is known, a rank's price includes what its attention waits for the exchange
 * (wait.h).
 * Ulysses is a candidate where every rank gets as many query heads, and K/V heads or one that it
 * shares with others. Its price is that of all documents, whole, on a rank's heads.
 * Levels that cannot be their layout's best are given up as soon as that is certain; the choice,
 * and every candidate, is what pricing all of them in full would find. */
#ifndef BALLAST_SHARDING_SELECT_H
#define BALLAST_SHARDING_SELECT_H

#include "sharding/cost.h"
#include "sharding/layout.h"
#include "sharding/spread.h"
#include "sharding/wait.h"

#define LAYOUT_CANDIDATES_MAX 5u

struct layout_candidate {
    enum layout layout;
    uint32_t fragments;  /* over all ranks */
    uint64_t slowest_ps; /* largest price of a rank */
    uint32_t level;      /* the best of its levels */
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
    struct wait_link link;  /* over which ranks exchange */
};

/* What dealing needs; one sequence and one layout at a time. */
struct layout_dealer {
    uint32_t cp;
    struct wait_link link;
    enum layout layout; /* of the last deal */
    const struct packed_sequence *sequence;
    const struct tile_model *model;
    struct spread spread;
    struct fragment *scratch; /* layout_rank_fragments_max(documents_max) */
};

/* Bytes for sequences of up to `documents_max`, and laying them out: `memory` aligned to 8. */
size_t layout_dealer_bytes(const struct layout_options *options, uint32_t documents_max,
                           uint32_t cp);
void layout_dealer_init(struct layout_dealer *dealer, void *memory,
                        const struct layout_options *options, uint32_t documents_max, uint32_t cp);

/* Takes up a sequence; both are borrowed until the next. */
void layout_begin(struct layout_dealer *dealer, const struct packed_sequence *sequence,
                  const struct tile_model *model);

/* Deals the sequence in a layout that the options allow, or per-sequence or contiguous; `level` is
 * a candidate's. False if it takes more fragments than the options let. */
bool layout_deal(struct layout_dealer *dealer, enum layout layout, uint32_t level);

/* The fragments of a rank, valid until the next call. */
const struct fragment *layout_dealt(struct layout_dealer *dealer, uint32_t rank, uint32_t *count);

/* The time of a rank in the last deal, one layer, forward + backward, and its forward part, ps. */
uint64_t layout_rank_ps(struct layout_dealer *dealer, uint32_t rank);
uint64_t layout_forward_ps(struct layout_dealer *dealer, uint32_t rank);

/* Whether the heads of a tensor-parallel rank can be dealt to `cp` ranks. */
bool layout_heads_divide(const struct tile_model *model, uint32_t cp);

/* One of `cp` ranks of such heads. */
struct tile_model layout_heads_of(const struct tile_model *model, uint32_t cp);

/* Chooses. `rank_ps` is 2 * cp long: the first cp become the ranks' prices in the chosen layout,
 * the others are scratch. With cp 1 the answer is per-sequence and the only candidate. */
void layout_select(const struct layout_options *options, const struct packed_sequence *sequence,
                   const struct tile_model *model, struct layout_dealer *dealer, uint64_t *rank_ps,
                   struct layout_choice *out);

/* The same with a layout that is settled and follows from the lengths alone, whatever its
 * fragments: the only candidate. */
void layout_settle(enum layout layout, const struct packed_sequence *sequence,
                   const struct tile_model *model, struct layout_dealer *dealer, uint64_t *rank_ps,
                   struct layout_choice *out);

/* What the slowest rank would take if every document were whole and all ranks shared it evenly, ps,
 * by the floor of the model (floor.h): no layout is faster, as long as query tiles divide key
 * blocks (K/V groups of a power of two). */
uint64_t layout_bound_ps(const struct packed_sequence *sequence, const struct tile_model *model,
                         uint32_t cp);

#endif
