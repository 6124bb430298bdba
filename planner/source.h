/* source: where the planner's documents come from.
 *
 * A source turns a cursor into the next part of the stream. It holds no position of its own: the
 * cursor is the caller's and is all there is to save, restore, copy or run ahead with, so looking
 * ahead is "copy the cursor and go on", and several planners can share one source.
 * corpus/source.c implements it over datasets on disk; tests implement it over arrays. */
#ifndef BALLAST_PLANNER_SOURCE_H
#define BALLAST_PLANNER_SOURCE_H

#include "planner/document.h"

#include <stddef.h>

/* Position and counters of one dataset. arrived includes dropped, always. */
struct dataset_cursor {
    uint64_t position;          /* documents taken in this epoch, in reading order */
    uint64_t epoch;             /* passes finished */
    uint64_t stream_tokens;     /* tokens given since the blend in force began: blending's memory */
    uint64_t arrived_documents; /* first parts given, and documents dropped */
    uint64_t arrived_tokens;    /* tokens given, and tokens dropped */
    uint64_t dropped_documents; /* whole documents dropped: empty, or overlong under `drop` */
    uint64_t dropped_tokens;    /* tokens of dropped documents, and those cut off by `truncate` */
    uint64_t truncated_tokens;  /* the part of dropped_tokens that `truncate` cut off */
    uint64_t overlong_documents; /* documents over the part limit, whichever rule applied */
    uint64_t empty_documents;
};

/* Position in the whole stream. `datasets` points to `dataset_count` records of the owner. */
struct source_cursor {
    struct dataset_cursor *datasets;
    uint32_t dataset_count;
    bool open;             /* the last document has tokens left: it goes on before anything else */
    uint32_t open_dataset; /* meaningful while open, 0 otherwise, like the next four */
    uint32_t open_offset;  /* first token not yet given */
    uint64_t open_document;
    uint64_t open_epoch;
    uint32_t open_length; /* tokens of the whole document (after truncation) */
    uint32_t blend;       /* which of the source's blends is in force; a source may know only 0 */
};

struct document_source {
    /* Takes the next part, at most `limit` (> 0) tokens long, and moves the cursor behind it.
     * Fills all of `out` but nominal_step and stream_index, which are the planner's (set to 0).
     * Returns 1 with a part, 0 at the end of the stream (all epochs of all datasets are done; the
     * cursor then stays), never fails. Pure: same cursor, same answer. Any thread. */
    int (*next)(const void *context, struct source_cursor *cursor, uint32_t limit,
                struct document *out);
    /* Tokens of a document as the stream gives it (after truncation), so that restored state can be
     * checked against the corpus; 0 for a dropped one, and with `document` out of range or
     * `dataset` unknown. Any thread. */
    uint32_t (*length)(const void *context, uint32_t dataset, uint64_t document);
    const void *context;
    uint32_t dataset_count;
};

#endif
