/* fake_source: a stream of documents over arrays of lengths, with everything that a real one does:
 * blending by token deficit, epochs, parts, empty and overlong documents. Header only, tests only.
 */
#ifndef BALLAST_TESTS_FAKE_SOURCE_H
#define BALLAST_TESTS_FAKE_SOURCE_H

#include "planner/source.h"

#include <assert.h>

enum fake_overlong { FAKE_SPLIT = 0, FAKE_TRUNCATE, FAKE_DROP };

struct fake_dataset {
    const uint32_t *lengths;
    uint64_t documents;
    uint64_t weight;
};

struct fake_source {
    struct document_source source; /* context is the record itself: do not move it */
    struct fake_dataset *datasets;
    uint64_t epochs; /* 0: for ever */
    enum fake_overlong overlong;
    uint32_t overlong_limit; /* longer documents are truncated or dropped */
    const uint64_t *weights; /* of the blends after the first, a row each; 0 takes no part */
};

/* Another order in every epoch. */
static inline uint64_t fake_document(const struct fake_dataset *dataset, uint64_t epoch,
                                     uint64_t position) {
    return (position + epoch * (dataset->documents / 2 + 1)) % dataset->documents;
}

static inline uint64_t fake_weight(const struct fake_source *fake, uint32_t blend, uint32_t i) {
    return blend == 0 ? fake->datasets[i].weight
                      : fake->weights[(size_t)(blend - 1) * fake->source.dataset_count + i];
}

static inline int fake_choose(const struct fake_source *fake, const struct source_cursor *cursor,
                              uint32_t *out) {
    uint64_t weights = 0;
    uint64_t tokens = 0;
    __int128 best = 0;
    int found = 0;
    for (uint32_t i = 0; i < cursor->dataset_count; i++) {
        weights += fake_weight(fake, cursor->blend, i);
        tokens += cursor->datasets[i].stream_tokens;
    }
    for (uint32_t i = 0; i < cursor->dataset_count; i++) {
        const struct fake_dataset *dataset = &fake->datasets[i];
        uint64_t weight = fake_weight(fake, cursor->blend, i);
        if (dataset->documents == 0 || weight == 0 ||
            (fake->epochs > 0 && cursor->datasets[i].epoch == fake->epochs)) {
            continue;
        }
        __int128 deficit = (__int128)weight * tokens -
                           (__int128)cursor->datasets[i].stream_tokens * weights;
        if (found == 0 || deficit > best) {
            best = deficit;
            *out = i;
            found = 1;
        }
    }
    return found;
}

/* Takes one document of a dataset; 1 if it is to be given, 0 if it was dropped. */
static inline int fake_open(const struct fake_source *fake, struct source_cursor *cursor,
                            uint32_t i) {
    const struct fake_dataset *dataset = &fake->datasets[i];
    struct dataset_cursor *at = &cursor->datasets[i];
    uint64_t document = fake_document(dataset, at->epoch, at->position);
    uint32_t length = dataset->lengths[document];
    uint64_t epoch = at->epoch;
    bool overlong = fake->overlong_limit > 0 && length > fake->overlong_limit;
    if (++at->position == dataset->documents) {
        at->position = 0;
        at->epoch++;
    }
    at->arrived_documents++;
    at->overlong_documents += overlong;
    at->empty_documents += length == 0;
    if (length == 0 || (overlong && fake->overlong == FAKE_DROP)) {
        at->dropped_documents++;
        at->arrived_tokens += length;
        at->dropped_tokens += length;
        return 0;
    }
    if (overlong && fake->overlong == FAKE_TRUNCATE) {
        uint32_t cut = length - fake->overlong_limit;
        at->arrived_tokens += cut;
        at->dropped_tokens += cut;
        at->truncated_tokens += cut;
        length = fake->overlong_limit;
    }
    cursor->open = true;
    cursor->open_dataset = i;
    cursor->open_document = document;
    cursor->open_epoch = epoch;
    cursor->open_offset = 0;
    cursor->open_length = length;
    return 1;
}

static inline int fake_next(const void *context, struct source_cursor *cursor, uint32_t limit,
                            struct document *out) {
    const struct fake_source *fake = context;
    assert(limit > 0);
    uint32_t i;
    while (!cursor->open) {
        if (!fake_choose(fake, cursor, &i)) {
            return 0;
        }
        (void)fake_open(fake, cursor, i);
    }
    uint32_t left = cursor->open_length - cursor->open_offset;
    *out = (struct document){
        .dataset = cursor->open_dataset,
        .document = cursor->open_document,
        .epoch = cursor->open_epoch,
        .offset = cursor->open_offset,
        .length = left < limit ? left : limit,
        .document_length = cursor->open_length,
    };
    cursor->datasets[out->dataset].arrived_tokens += out->length;
    cursor->datasets[out->dataset].stream_tokens += out->length;
    cursor->open_offset += out->length;
    if (cursor->open_offset == cursor->open_length) {
        cursor->open = false;
        cursor->open_dataset = 0;
        cursor->open_document = 0;
        cursor->open_epoch = 0;
        cursor->open_offset = 0;
        cursor->open_length = 0;
    }
    return 1;
}

static inline uint32_t fake_length(const void *context, uint32_t dataset, uint64_t document) {
    const struct fake_source *fake = context;
    if (dataset >= fake->source.dataset_count || document >= fake->datasets[dataset].documents) {
        return 0;
    }
    uint32_t length = fake->datasets[dataset].lengths[document];
    if (fake->overlong_limit == 0 || length <= fake->overlong_limit ||
        fake->overlong == FAKE_SPLIT) {
        return length;
    }
    return fake->overlong == FAKE_TRUNCATE ? fake->overlong_limit : 0;
}

static inline void fake_source_init(struct fake_source *fake, struct fake_dataset *datasets,
                                    uint32_t count, uint64_t epochs) {
    *fake = (struct fake_source){
        .source = {.next = fake_next, .length = fake_length, .dataset_count = count},
        .datasets = datasets,
        .epochs = epochs,
    };
    fake->source.context = fake;
}

#endif
