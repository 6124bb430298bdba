/* exchange: the best trade of documents between a heavy bin and a light one.
 *
 * A trade takes one or two documents out of the heavy bin and brings none, one or two back, but not
 * two for two: a move, a swap, one for two, two for one, two for none. One long document for two
 * shorter ones levels work where the light bin has no room left, as work grows faster than length.
 * The best trade leaves the lowest maximum of the two works; of equals the first found stays.
 * Exact where a longer document always has more work; elsewhere trades may be overlooked, but none
 * is made that the room forbids. */
#ifndef BALLAST_PACKER_EXCHANGE_H
#define BALLAST_PACKER_EXCHANGE_H

#include <stdbool.h>
#include <stdint.h>

/* More room than any trade takes; its sums stay in 64 bits. */
#define EXCHANGE_ROOM_MAX (UINT64_C(1) << 62)

struct exchange_entry {
    uint64_t work;
    uint32_t length; /* tokens */
    uint32_t item;
};

struct exchange_bin {
    const struct exchange_entry *entries; /* by work, descending */
    uint32_t count;
    uint64_t work; /* of all entries; fits 63 bits */
    uint64_t room; /* tokens that still fit, at most EXCHANGE_ROOM_MAX */
};

struct exchange {
    uint64_t max;       /* the larger of the two works afterwards */
    uint32_t out_count; /* entries that leave the heavy bin */
    uint32_t in_count;  /* entries that come back for them */
    uint32_t out[2];    /* positions in the heavy bin, ascending */
    uint32_t in[2];     /* positions in the light bin, ascending */
};

struct exchange_limits {
    uint64_t probes; /* searches for the last document of a trade; counted down */
    uint64_t enough; /* best->max that ends the search */
};

/* Replaces *best by the best trade of its kind if that is below best->max, and says whether it did.
 * heavy->work >= light->work. */
typedef bool exchange_search(const struct exchange_bin *heavy, const struct exchange_bin *light,
                             struct exchange_limits *limits, struct exchange *best);

/* Moves and swaps: a probe for every document of the heavy bin, and one. */
exchange_search exchange_single;

/* Trades with a pair: about 2 * heavy->count * light->count probes at most. */
exchange_search exchange_pair;

#endif
