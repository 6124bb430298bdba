/* deal: what the layout rules write to, one list of fragments for one rank.
 *
 * Private to sharding/: layout.h is the way in. A rule says which runs of rows the rank owns, in
 * the rank's row order; the list drops empty runs and joins touching ones, so no rule has to. It is
 * the rule's own, so that it can stay in registers. */
#ifndef BALLAST_SHARDING_DEAL_H
#define BALLAST_SHARDING_DEAL_H

#include "sharding/layout.h"

struct fragment_list {
    struct fragment *out;
    uint32_t capacity;
    uint32_t count; /* may exceed capacity */
    struct fragment last;
};

/* Appends rows [start, start + length) of a document. Never copies `last` to `out`: to read whole
 * what was just stored in parts makes the processor wait. */
static inline void fragment_list_append(struct fragment_list *list, uint32_t document,
                                        uint32_t start, uint32_t length) {
    if (length == 0) {
        return;
    }
    if (list->count > 0 && list->last.document == document &&
        list->last.start + list->last.length == start) {
        start = list->last.start;
        length += list->last.length;
    } else {
        list->count++;
    }
    struct fragment last = {.document = document, .start = start, .length = length};
    list->last = last;
    if (list->count <= list->capacity) {
        list->out[list->count - 1] = last;
    }
}

/* The rules, called as layout_fragments. */
uint32_t per_sequence_deal(const struct packed_sequence *sequence, uint32_t cp, uint32_t rank,
                           struct fragment *out, uint32_t capacity);
uint32_t per_document_deal(const struct packed_sequence *sequence, uint32_t cp, uint32_t rank,
                           struct fragment *out, uint32_t capacity);

#endif
