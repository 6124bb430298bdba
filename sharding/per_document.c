/* per_document: the zigzag over every document, exact for any length (WLB-LLM section 5).
 *
 * The paper deals the tokens that 2*CP does not divide round-robin; here they lengthen the chunks
 * instead, so that a chunk stays one run of its document. As many rows as round-robin over the
 * whole sequence would give a column are what it gets: the totals of any two columns, and of any
 * two ranks, differ by at most one row. */
#include "sharding/deal.h"

uint32_t per_document_deal(const struct packed_sequence *sequence, uint32_t cp, uint32_t rank,
                           struct fragment *out, uint32_t capacity) {
    struct fragment_list list = {.out = out, .capacity = capacity};
    struct dealt before = {0};
    uint64_t columns = 2 * (uint64_t)cp;
    uint64_t rows = 0;
    for (uint32_t document = 0; document < sequence->documents; document++) {
        rows += sequence->lengths[document];
        struct dealt after = {rows / columns, rows % columns};
        uint64_t low = dealt_begin(&before, &after, rank);
        uint64_t low_end = dealt_begin(&before, &after, (uint64_t)rank + 1);
        uint64_t high = dealt_begin(&before, &after, columns - 1 - rank);
        uint64_t high_end = dealt_begin(&before, &after, columns - rank);
        if (low_end == high) {
            fragment_list_append(&list, document, low, high_end);
        } else {
            fragment_list_append(&list, document, low, low_end);
            fragment_list_append(&list, document, high, high_end);
        }
        before = after;
    }
    return list.count;
}
