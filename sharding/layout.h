/* layout: how the rows of one packed sequence are dealt to the context-parallel ranks.
 *
 * A packed sequence is its documents in row order followed by pad rows, rounded up to a multiple
 * of 2*CP (the planner rounds to lcm(2*CP, CP*TP)), so every rank has the same number of rows.
 * Layouts (WLB-LLM section 5):
 *   LAYOUT_PER_SEQUENCE  2*CP equal chunks of the padded sequence; rank r owns chunk r and chunk
 *                        2*CP-1-r, in this order; touching runs of one document are one fragment.
 *   LAYOUT_PER_DOCUMENT  every document in 2*CP chunks, exactly: column c gets length/(2*CP) rows
 *                        and one more if (c - pointer) mod 2*CP < length mod 2*CP; the pointer runs
 *                        over the documents of this sequence. Rank of column c: min(c, 2*CP-1-c).
 *                        Row order: document-major, start ascending; touching columns merged.
 *   LAYOUT_VARIABLE_DEGREE, LAYOUT_HYBRID
 *                        documents cut no further than balance asks for: spread.h.
 *   LAYOUT_ULYSSES       rows as in LAYOUT_CONTIGUOUS; for attention an all-to-all gives every rank
 *                        all rows of its share of the heads, which must divide (select.h).
 *   LAYOUT_CONTIGUOUS    equal shards of the padded sequence in rank order; uneven by itself, the
 *                        home of rows whose attention a pool shares (pool_tiles.h). Never chosen
 *                        by select.h.
 * Pad rows are always a rank's last rows. No fragment is empty. Every row is in exactly one
 * fragment of one rank. Pure, integers only, no allocation. */
#ifndef BALLAST_SHARDING_LAYOUT_H
#define BALLAST_SHARDING_LAYOUT_H

#include "sharding/fragment.h"

#include <stdbool.h>

/* Numbers of ballast.proto. */
enum layout {
    LAYOUT_NONE = 0,
    LAYOUT_PER_SEQUENCE = 1,
    LAYOUT_PER_DOCUMENT = 2,
    LAYOUT_VARIABLE_DEGREE = 3,
    LAYOUT_HYBRID = 4,
    LAYOUT_ULYSSES = 5,
    LAYOUT_CONTIGUOUS = 6,
};

struct packed_sequence {
    const uint32_t *lengths; /* tokens of each document part, in row order, never 0 */
    uint32_t documents;
    uint64_t tokens;     /* sum of lengths */
    uint64_t pad_tokens; /* tokens + pad_tokens is a multiple of 2*cp and > 0 */
};

/* The layouts that a job may allow, as bits (1 << layout). */
#define LAYOUTS_ALLOWED                                                                            \
    (1u << LAYOUT_PER_SEQUENCE | 1u << LAYOUT_PER_DOCUMENT | 1u << LAYOUT_VARIABLE_DEGREE |        \
     1u << LAYOUT_HYBRID | 1u << LAYOUT_ULYSSES)

/* Name as in the config ("per-sequence"); NULL for a layout this build does not know. */
const char *layout_name(enum layout layout);

/* The layout of a name. -EINVAL for a name this build does not know, with `out` untouched. */
int layout_parse(const char *name, enum layout *out);

/* Fragments of one rank in its row order, in a layout that follows from the lengths alone (all but
 * those of spread.h). Writes at most `capacity` of them and returns how many
 * there are (as snprintf does; `out` may be NULL with capacity 0). rank < cp, cp > 0. */
uint32_t layout_fragments(enum layout layout, const struct packed_sequence *sequence, uint32_t cp,
                          uint32_t rank, struct fragment *out, uint32_t capacity);

/* An upper bound on the fragments of one rank in such a layout: 2 * documents + 2. */
static inline uint32_t layout_rank_fragments_max(uint32_t documents) {
    return 2 * documents + 2;
}

#endif
