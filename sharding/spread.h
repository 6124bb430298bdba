/* spread: layouts that cut a document only as far as balance asks for.
 *
 * Per-sequence lets whole documents fall where they lie; per-document cuts every one of them for
 * every rank, and each cut has its price: part tiles, keys that one more rank reads. Between the
 * two, by the tile model's own work of a document (cost.h):
 *   LAYOUT_VARIABLE_DEGREE  a document goes over the fewest ranks on which its share is at most a
 *                           fraction of the mean, the least loaded ones, so that they end level.
 *                           Borders are at multiples of 128 rows from its start.
 *   LAYOUT_HYBRID           documents of a threshold and more are cut for every rank, exactly as
 *                           per-document does; the others are whole.
 * Fraction and threshold are tried at several levels. A share is the next rows from both ends of
 * what is left of the document, as many as the rank is to have and split so that they hold the
 * wanted pairs: moving a row from one end to the other changes these by a constant. Whole documents
 * go, longest first, to the least loaded rank with room for them; those that find none are cut
 * where ranks are full, so that all ranks have the same rows. Row order: document-major, start
 * ascending; touching runs are one fragment.
 * Pure, integers only; memory is the caller's. */
#ifndef BALLAST_SHARDING_SPREAD_H
#define BALLAST_SHARDING_SPREAD_H

#include "sharding/cost.h"
#include "sharding/layout.h"

#include <stddef.h>

#define SPREAD_LEVELS_MAX 8u

/* Which documents are cut how far: a layout's parameter. */
struct spread_rule {
    enum layout layout; /* LAYOUT_VARIABLE_DEGREE or LAYOUT_HYBRID */
    uint32_t level;     /* below spread_levels */
};

struct spread_rank {
    uint64_t load; /* work */
    uint64_t room; /* free rows */
};

struct spread_key {
    uint64_t key;
    uint32_t index;
};

struct spread_piece {
    uint32_t rank;
    uint32_t next; /* piece of the document */
    uint32_t start;
    uint32_t length;
};

/* A deal and what it is made with; one sequence at a time. */
struct spread {
    uint32_t cp;
    uint32_t pieces_max;
    const struct packed_sequence *sequence; /* borrowed from spread_begin on */
    const struct tile_model *model;         /* likewise */
    uint32_t work_shift;                    /* works are ps of the whole machine >> this */
    uint64_t mean;                          /* work of a rank */
    struct tile_model floor;                /* of this sequence: floor.h */
    bool bends;                             /* whether it is another model */
    uint64_t total;                         /* of the documents, each whole, by the floor */
    uint32_t piece_count;                   /* may exceed pieces_max */
    bool even;                              /* no cut can bring a document below its floor */
    bool hopeless;                          /* some rank will be over the limit */
    uint64_t limit;                         /* work of a rank */
    uint64_t work;                          /* of the documents as far as they are cut, and
                                               the floor of the others */

    struct spread_key *order; /* documents, longest first */
    uint64_t *works;          /* of documents */
    uint32_t *heads;          /* of documents' lists of pieces */
    struct spread_rank *ranks;
    struct spread_key *turns; /* ranks */
    struct spread_piece *pieces;
    struct fragment *fragments; /* of the deal, by rank */
    uint32_t *begins;           /* by rank, in fragments */
    uint32_t *ends;
};

/* Bytes for sequences of up to `documents_max`; deals of more fragments than `fragments_max` are
 * given up. */
size_t spread_bytes(uint32_t documents_max, uint32_t cp, uint32_t fragments_max);

/* Lays out `memory`, aligned to 8. */
void spread_init(struct spread *spread, void *memory, uint32_t documents_max, uint32_t cp,
                 uint32_t fragments_max);

/* Takes up a sequence: weighs and sorts its documents. Both are borrowed until the next. */
void spread_begin(struct spread *spread, const struct packed_sequence *sequence,
                  const struct tile_model *model);

/* Levels of a layout: larger ones cut more. 0 for layouts that have none. */
uint32_t spread_levels(enum layout layout);

/* Whether a level cuts the sequence exactly as the one before it does. */
bool spread_repeats(const struct spread *spread, struct spread_rule rule);

/* Deals the sequence. False if it takes more fragments than the memory holds, or, as soon as that
 * is certain, some rank longer than limit_ps (cost.h): one has as much already, or the work of all
 * documents, as cut so far, is more than the ranks have time for. */
bool spread_deal(struct spread *spread, struct spread_rule rule, uint64_t limit_ps);

/* A rank's fragments in the last deal, valid until the next. */
static inline const struct fragment *spread_fragments(const struct spread *spread, uint32_t rank,
                                                      uint32_t *count) {
    *count = spread->ends[rank] - spread->begins[rank];
    return spread->fragments + spread->begins[rank];
}

#endif
