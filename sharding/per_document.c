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

static uint64_t columns_wrap(const struct columns *columns, uint64_t place) {
    return place < columns->count ? place : place - columns->count;
}

/* Columns before this one that have a row more: those of the straight run and of what wrapped. */
static uint64_t columns_longer(const struct columns *columns, uint64_t column) {
    uint64_t end = columns->pointer + columns->remainder;
    uint64_t wrapped = end > columns->count ? end - columns->count : 0;
    uint64_t reached = column > columns->pointer ? column : columns->pointer;
    reached = reached < end ? reached : end;
    return reached - columns->pointer + (column < wrapped ? column : wrapped);
}

static void columns_append(const struct columns *columns, uint32_t document, uint64_t column,
                           struct fragment_list *list) {
    uint64_t turn = columns_wrap(columns, columns->count - columns->pointer + column);
    uint64_t start = column * columns->base + columns_longer(columns, column);
    uint64_t rows = columns->base + (turn < columns->remainder ? 1 : 0);
    fragment_list_append(list, document, (uint32_t)start, (uint32_t)rows);
}

void per_document_deal(const struct packed_sequence *sequence, uint32_t cp, uint32_t rank,
                       struct fragment_list *list) {
    struct columns columns = {.count = 2 * (uint64_t)cp};
    for (uint32_t document = 0; document < sequence->documents; document++) {
        columns.base = sequence->lengths[document] / columns.count;
        columns.remainder = sequence->lengths[document] % columns.count;
        columns_append(&columns, document, rank, list);
        columns_append(&columns, document, columns.count - 1 - rank, list);
        columns.pointer = columns_wrap(&columns, columns.pointer + columns.remainder);
    }
}
