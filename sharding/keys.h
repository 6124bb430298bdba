/* keys: which K and V rows a rank needs of the others, when only those are exchanged.
 *
 * A rank sees, of every document that it has rows of, the keys before the end of its last ones.
 * What of these is another rank's comes from there: a run for each fragment of that rank, so that
 * what one sends is what the other receives, by construction. Both lists of fragments are one
 * rank's in row order, as layouts give them. Pure, no allocation. */
#ifndef BALLAST_SHARDING_KEYS_H
#define BALLAST_SHARDING_KEYS_H

#include "sharding/fragment.h"

/* A run of rows that a peer sends, both K and V. */
struct key_run {
    uint32_t document;
    uint32_t start; /* in the document */
    uint32_t length;
    uint32_t row; /* the first one's, in the peer's rows */
};

/* Rows that the fragments see and that are not among them. */
uint64_t keys_needed(const struct fragment *fragments, uint32_t count);

/* The runs that the rank of `own` needs of the rank of `theirs`, in the order of its rows; writes
 * at most `capacity` and returns how many there are, never more than `their_count`. Their lengths'
 * sum is the pair's count in a v-collective; it may be 0, then both ends have it so. */
uint32_t keys_from(const struct fragment *own, uint32_t own_count, const struct fragment *theirs,
                   uint32_t their_count, struct key_run *out, uint32_t capacity);

#endif
