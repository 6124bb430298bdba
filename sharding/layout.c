/* layout: the table of the layouts this build knows, and the way to them. */
#include "sharding/layout.h"

#include "sharding/deal.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

struct layout_entry {
    enum layout layout;
    const char *name;
    /* NULL: spread.h */
    uint32_t (*deal)(const struct packed_sequence *sequence, uint32_t cp, uint32_t rank,
                     struct fragment *out, uint32_t capacity);
};

static const struct layout_entry layout_entries[] = {
    {LAYOUT_PER_SEQUENCE, "per-sequence", per_sequence_deal},
    {LAYOUT_PER_DOCUMENT, "per-document", per_document_deal},
    {LAYOUT_VARIABLE_DEGREE, "variable-degree", NULL},
    {LAYOUT_HYBRID, "hybrid", NULL},
    {LAYOUT_ULYSSES, "ulysses", contiguous_deal},
    {LAYOUT_CONTIGUOUS, "contiguous", contiguous_deal},
};

#define LAYOUT_ENTRIES (sizeof layout_entries / sizeof layout_entries[0])

static const struct layout_entry *layout_find(enum layout layout) {
    for (size_t i = 0; i < LAYOUT_ENTRIES; i++) {
        if (layout_entries[i].layout == layout) {
            return &layout_entries[i];
        }
    }
    return NULL;
}

const char *layout_name(enum layout layout) {
    const struct layout_entry *entry = layout_find(layout);
    return entry != NULL ? entry->name : NULL;
}

int layout_parse(const char *name, enum layout *out) {
    for (size_t i = 0; i < LAYOUT_ENTRIES; i++) {
        if (strcmp(layout_entries[i].name, name) == 0) {
            *out = layout_entries[i].layout;
            return 0;
        }
    }
    return -EINVAL;
}

uint32_t layout_fragments(enum layout layout, const struct packed_sequence *sequence, uint32_t cp,
                          uint32_t rank, struct fragment *out, uint32_t capacity) {
    const struct layout_entry *entry = layout_find(layout);
    assert(entry != NULL && entry->deal != NULL && rank < cp);
    uint64_t rows = sequence->tokens + sequence->pad_tokens;
    assert(rows > 0 && rows % (2 * (uint64_t)cp) == 0);
    return entry->deal(sequence, cp, rank, out, capacity);
}
