/* deal: what the layout rules write to, one list of fragments for one rank.
 *
 * Private to sharding/: layout.h is the way in. A rule says which runs of rows the rank owns, in
 * the rank's row order, touching ones as one; the list drops empty runs. It is the rule's own, so
 * that it can stay in registers. */
#ifndef BALLAST_SHARDING_DEAL_H
#define BALLAST_SHARDING_DEAL_H

#include "sharding/layout.h"

struct fragment_list {
    struct fragment *out;
    uint32_t capacity;
    uint32_t count; /* may exceed capacity */
};

/* Appends rows [start, end) of a document. */
static inline void fragment_list_append(struct fragment_list *list, uint32_t document,
                                        uint64_t start, uint64_t end) {
    if (start == end) {
        return;
    }
    if (list->count < list->capacity) {
        list->out[list->count] = (struct fragment){
            .document = document, .start = (uint32_t)start, .length = (uint32_t)(end - start)};
    }
    list->count++;
}

/* The rows of the documents so far, dealt to the 2*CP columns of per-document in turn. */
struct dealt {
    uint64_t rounds;
    uint64_t rest; /* columns with one more */
};

static inline uint64_t dealt_least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* First row of a column in the document dealt between the two: what the columns before it got. */
static inline uint64_t dealt_begin(const struct dealt *before, const struct dealt *after,
                                   uint64_t column) {
    return column * (after->rounds - before->rounds) + dealt_least(column, after->rest) -
           dealt_least(column, before->rest);
}

/* The rules, called as layout_fragments. */
uint32_t per_sequence_deal(const struct packed_sequence *sequence, uint32_t cp, uint32_t rank,
                           struct fragment *out, uint32_t capacity);
uint32_t per_document_deal(const struct packed_sequence *sequence, uint32_t cp, uint32_t rank,
                           struct fragment *out, uint32_t capacity);
uint32_t contiguous_deal(const struct packed_sequence *sequence, uint32_t cp, uint32_t rank,
                         struct fragment *out, uint32_t capacity);

#endif
