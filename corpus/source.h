/* source: planner/source.h over a catalog.
 *
 * Blending: the next document comes from the dataset with the largest token deficit
 * weight * total - tokens * sum(weights) (128-bit, ties to the lower dataset) among those not
 * finished; total and sum are over those too, so that the shares of the rest stay in proportion
 * when one ends. Weights may change along the stream: the cursor says which blend is in force, and
 * tokens count since it began, so that a dataset that is new there does not catch up on all that
 * went before. All parts of a document follow one another. A dataset that has made its passes
 * leaves the blend, one without documents was never in it. Order within a dataset is
 * order_document's. Empty documents are skipped and counted; overlong ones are treated by rule and
 * counted. A pass ends when its last document is taken: position is then 0 and epoch one more, even
 * while parts of that document are still to come. Documents that are skipped at the very end are
 * counted by the call that returns 0. */
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
    uint32_t part_limit; /* tokens, > 0; longer documents are overlong */
    /* Borrowed: `blends` rows of a weight for every dataset, 0 where it takes no part, and never
     * after a row in which it does. NULL: one blend, the catalog's weights. */
    const uint64_t *weights;
    uint32_t blends;
};

/* Tokens that the stream gives of a document of `length` tokens; 0: it is dropped. */
static inline uint32_t corpus_given_length(const struct corpus_source_options *options,
                                           uint32_t length) {
    if (length <= options->part_limit) {
        return length;
    }
    switch (options->overlong) {
    case OVERLONG_TRUNCATE:
        return options->part_limit;
    case OVERLONG_DROP:
        return 0;
    case OVERLONG_SPLIT:
    case OVERLONG_REFUSE:
        break;
    }
    return length;
}

/* Immutable after init, any thread. Not to be copied: source.context points to the record. Its
 * `length` is what the stream gives of a document: after truncation, 0 if it is dropped. */
struct corpus_source {
    struct document_source source; /* give this to the planner; context is the record itself */
    struct corpus_source_options options;
    const struct catalog *catalog; /* borrowed */
};

/* Refuses, naming the document, an overlong one under OVERLONG_REFUSE (scans all lengths), and,
 * naming the dataset, one of whose documents every one is empty or dropped (it could never meet its
 * weight, and the search for its next document would not end). A dataset without any document is
 * legal unless all of the first blend are. */
int corpus_source_init(struct corpus_source *source, const struct catalog *catalog,
                       const struct corpus_source_options *options, struct error *error);

/* 0, or why lengths have become unknown (dataset_failed): whatever next() gave since some earlier
 * time, an end of the stream too, is not to be used. */
int corpus_source_failed(const struct corpus_source *source, struct error *error);

/* Whether a cursor that was restored can be one of this source: positions and passes in range, the
 * open document the one that was taken last. -EBADMSG with what does not fit; next() would assert
 * on such a cursor or read past the end of a dataset. */
int corpus_source_check(const struct corpus_source *source, const struct source_cursor *cursor,
                        struct error *error);

#endif
