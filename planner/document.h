/* document: the unit that planning moves about.
 *
 * A record is one *part*: a whole document, or a piece of one that is longer than the part limit
 * (parts of exactly the limit, the last shorter, in order). Lengths and offsets are in tokens. */
#ifndef BALLAST_PLANNER_DOCUMENT_H
#define BALLAST_PLANNER_DOCUMENT_H

#include <stdbool.h>
#include <stdint.h>

struct document {
    uint64_t document;     /* index in its dataset */
    uint64_t epoch;        /* pass over its dataset, from 0 */
    uint64_t nominal_step; /* where reading order alone would have put it */
    uint64_t
        stream_index; /* number of the part in stream order, from 0: the tie-break everywhere */
    uint32_t dataset; /* index in the catalog */
    uint32_t offset;  /* first token of this part in the document */
    uint32_t length;  /* tokens of this part, never 0 */
    uint32_t document_length; /* tokens of the whole document */
};

/* Whether the part is its document's last; if not, its successor token travels with it. */
static inline bool document_is_last_part(const struct document *document) {
    return (uint64_t)document->offset + document->length == document->document_length;
}

#endif
