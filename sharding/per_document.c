/* per_document: the zigzag over every document, exact for any length (WLB-LLM section 5).
 *
 * The paper deals the tokens that 2*CP does not divide round-robin; here they lengthen the chunks
 * instead, so that a chunk stays one run of its document. The columns that get one row more are a
 * cyclic run that starts at the pointer, and the next document's run starts where it ended: over
 * the whole sequence the columns are visited in turn, so the totals of any two columns, and of any
 * two ranks, differ by at most one row. */
#include "sharding/deal.h"

struct columns {
    uint64_t count;
    uint64_t base;      /* rows of every column */
    uint64_t remainder; /* columns with one row more */
    uint64_t pointer;   /* the first of them, cyclic */
};

/* First row of a column; column `count` starts at the document's end. */
static uint32_t columns_start(const struct columns *columns, uint64_t column) {
    uint64_t end = columns->pointer + columns->remainder;
    uint64_t wrapped = end > columns->count ? end - columns->count : 0;
    uint64_t straight_end = end - wrapped;
    uint64_t longer = column < wrapped ? column : wrapped;
    if (column > columns->pointer) {
        longer += (column < straight_end ? column : straight_end) - columns->pointer;
    }
    return (uint32_t)(column * columns->base + longer);
}

static void columns_append(const struct columns *columns, uint32_t document, uint64_t column,
                           struct fragment_list *list) {
    uint32_t start = columns_start(columns, column);
    uint32_t end = columns_start(columns, column + 1);
    fragment_list_append(list, document, start, end - start);
}

void per_document_deal(const struct packed_sequence *sequence, uint32_t cp, uint32_t rank,
                       struct fragment_list *list) {
    struct columns columns = {.count = 2 * (uint64_t)cp};
    for (uint32_t document = 0; document < sequence->documents; document++) {
        columns.base = sequence->lengths[document] / columns.count;
        columns.remainder = sequence->lengths[document] % columns.count;
        columns_append(&columns, document, rank, list);
        columns_append(&columns, document, columns.count - 1 - rank, list);
        columns.pointer = (columns.pointer + columns.remainder) % columns.count;
    }
}
