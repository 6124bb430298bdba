/* ballast_lists: where rows of a plan live, and who computes which of them; what libballast says of
 * a batch and libballast_attn's exchange works by. Installed beside both. */
#ifndef BALLAST_LISTS_H
#define BALLAST_LISTS_H

#include <stdint.h>

/* Rows [start, start + rows) of a document live at `rank`. A rank's own rows are its homes in the
 * order of the list; pad rows come after them. The fragments of all shards of a batch, shard by
 * shard, are such a list; with all heads they are its works too, but for Ulysses, where every rank
 * computes all documents for its part of the heads. A pool's works are its tiles, a piece of the
 * rows of each document that it holds, for one shard of the heads. */
struct ballast_exchange_home {
    uint32_t document; /* any number; one for each document part of the group's sequences */
    uint32_t start;
    uint32_t rows; /* > 0 */
    uint32_t rank;
};

/* `rank` computes query rows [start, start + rows) of a document, which see keys [0, start + rows)
 * causally, for query heads [head_begin, head_begin + head_count). */
struct ballast_exchange_work {
    uint32_t document;
    uint32_t start;
    uint32_t rows; /* > 0 */
    uint32_t rank;
    uint16_t head_begin;
    uint16_t head_count; /* > 0, a multiple of the chunks */
};

#endif
