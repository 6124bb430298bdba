/* lengths: streams of documents that have lengths and no tokens, for simulations.
 *
 * A list of lengths is read like a dataset with these documents: same order, same passes, so that
 * a corpus and the list of its lengths give the same plans. A built-in distribution gives document
 * i of stream `seed`, without end. Both have one dataset. `cut_source` puts a cut into any stream
 * wherever plain packing would put one: at every multiple of the window. */
#ifndef BALLAST_CORPUS_LENGTHS_H
#define BALLAST_CORPUS_LENGTHS_H

#include "corpus/source.h"
#include "planner/distribution.h"

#define LENGTHS_MAX (1u << 28) /* of one list */

/* Reads a file of one length a line, in decimal; blanks around it and empty lines are passed over.
 * The caller frees *out. Refuses, with file and line, what is no number below 2^31, with -EINVAL; a
 * file without a length above 0 too; -ENOENT, -ENOMEM and the like. */
int lengths_read(const char *path, uint32_t **out, uint64_t *count, struct error *error);

/* Immutable after init, any thread. Not to be copied: source.context points to the record. */
struct lengths_source {
    struct document_source source;
    struct corpus_source_options options;
    const uint32_t *lengths; /* borrowed; NULL: a distribution */
    uint64_t count;
    const struct distribution *distribution;
};

/* Over a list (with a length above 0). Under OVERLONG_REFUSE an overlong one is refused by line;
 * -EINVAL also when every one would be dropped. */
int lengths_source_init(struct lengths_source *source, const uint32_t *lengths, uint64_t count,
                        const struct corpus_source_options *options, struct error *error);

/* Over a distribution; the seed is options->order.seed, passes do not end. Under OVERLONG_REFUSE,
 * -EINVAL when a document could be overlong. */
int lengths_source_init_drawn(struct lengths_source *source,
                              const struct distribution *distribution,
                              const struct corpus_source_options *options, struct error *error);

/* `inner` with no part across a multiple of `window` (> 0) tokens of the stream. */
struct cut_source {
    struct document_source source;
    const struct document_source *inner; /* borrowed */
    uint32_t window;
};

void cut_source_init(struct cut_source *source, const struct document_source *inner,
                     uint32_t window);

#endif
