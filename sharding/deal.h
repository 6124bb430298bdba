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

/* The rules, called as layout_fragments. */
uint32_t per_sequence_deal(const struct packed_sequence *sequence, uint32_t cp, uint32_t rank,
                           struct fragment *out, uint32_t capacity);
uint32_t per_document_deal(const struct packed_sequence *sequence, uint32_t cp, uint32_t rank,
                           struct fragment *out, uint32_t capacity);
uint32_t contiguous_deal(const struct packed_sequence *sequence, uint32_t cp, uint32_t rank,
                         struct fragment *out, uint32_t capacity);

#endif
