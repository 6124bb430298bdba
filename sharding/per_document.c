/* per_document: the zigzag over every document, exact for any length (WLB-LLM section 5).
 *
 * The paper deals the tokens that 2*CP does not divide round-robin; here they lengthen the chunks
 * instead, so that a chunk stays one run of its document. The columns that get one row more are a
 * cyclic run that starts at the pointer, and the next document's run starts where it ended: over
 * the whole sequence the columns are visited in turn, so the totals of any two columns, and of any
 * two ranks, differ by at most one row. */
#include "sharding/deal.h"

struct columns {
    uint32_t count;
    uint32_t base;      /* rows of every column */
    uint32_t remainder; /* columns with one row more */
    uint32_t pointer;   /* the first of them, cyclic */
    uint32_t wrapped;   /* of them, those that come round to column 0 on */
};

static inline uint32_t columns_least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* `longer` counts the columns before this one that have a row more: those of the straight run and
 * of what wrapped. */
static inline void columns_append(const struct columns *columns, uint32_t document, uint32_t column,
                                  struct fragment_list *list) {
    uint32_t behind = column > columns->pointer ? column - columns->pointer : 0;
    uint32_t longer = columns_least(behind, columns->remainder) +
                      columns_least(column, columns->wrapped);
    bool is_longer = column - columns->pointer < columns->remainder || column < columns->wrapped;
    fragment_list_append(list, document, column * columns->base + longer,
                         columns->base + is_longer);
}

/* Moves on to a document of this length. */
static inline void columns_take(struct columns *columns, uint32_t length) {
    uint32_t end = columns->pointer + columns->remainder;
    columns->pointer = end < columns->count ? end : end - columns->count;
    columns->base = length / columns->count;
    columns->remainder = length % columns->count;
    end = columns->pointer + columns->remainder;
    columns->wrapped = end > columns->count ? end - columns->count : 0;
}

uint32_t per_document_deal(const struct packed_sequence *sequence, uint32_t cp, uint32_t rank,
                           struct fragment *out, uint32_t capacity) {
    struct fragment_list list = {.out = out, .capacity = capacity};
    struct columns columns = {.count = 2 * cp};
    for (uint32_t document = 0; document < sequence->documents; document++) {
        columns_take(&columns, sequence->lengths[document]);
        columns_append(&columns, document, rank, &list);
        columns_append(&columns, document, columns.count - 1 - rank, &list);
    }
    return list.count;
}
