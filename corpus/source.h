/* source: planner/source.h over a catalog.
 *
 * Blending: the next document comes from the dataset with the largest token deficit
 * weight * total - tokens * sum(weights) (128-bit, ties to the lower dataset) among those not
 * finished; all parts of a document follow one another. A finished dataset leaves the blend.
 * Empty documents are skipped and counted; overlong ones are treated by rule and counted. */
#ifndef BALLAST_CORPUS_SOURCE_H
#define BALLAST_CORPUS_SOURCE_H

#include "corpus/catalog.h"
#include "corpus/order.h"
#include "planner/source.h"

enum overlong { OVERLONG_SPLIT = 0, OVERLONG_TRUNCATE = 1, OVERLONG_DROP = 2, OVERLONG_REFUSE = 3 };

struct corpus_source_options {
    struct order order;
    uint64_t epochs; /* passes over each dataset; 0: repeat for ever */
    enum overlong overlong;
    uint32_t part_limit; /* tokens; longer documents are overlong */
};

struct corpus_source {
    struct document_source source; /* give this to the planner; context is the record itself */
    struct corpus_source_options options;
    const struct catalog *catalog; /* borrowed */
};

/* Refuses, naming the document, an overlong one under OVERLONG_REFUSE (scans all lengths), and a
 * catalog in which every document is empty or dropped (the stream would never yield anything). */
int corpus_source_init(struct corpus_source *source, const struct catalog *catalog,
                       const struct corpus_source_options *options, struct error *error);

#endif
