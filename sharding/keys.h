/* keys: how many K and V rows a rank needs of the others, when only those are exchanged.
 *
 * A rank sees, of every document that it has rows of, the keys before the end of its last ones.
 * What of these is another rank's comes from there. Fragments are a rank's in row order, as layouts
 * give them: documents ascend. Pure, no allocation. */
#ifndef BALLAST_SHARDING_KEYS_H
#define BALLAST_SHARDING_KEYS_H

#include "sharding/fragment.h"

/* Rows that the fragments see and that are not among them. */
uint64_t keys_needed(const struct fragment *fragments, uint32_t count);

/* Of these, those that the owner of other fragments has: what it sends, the count of a
 * v-collective. */
uint64_t keys_needed_from(const struct fragment *reader, uint32_t reader_count,
                          const struct fragment *owner, uint32_t owner_count);

#endif
