/* tile_list: which tiles a run of query rows is computed in, and how many key blocks each sees.
 *
 * The one place that knows. The kernels' work lists are written with tile_blocks, tile by tile;
 * the cost model prices with tile_blocks_sum, without visiting a tile. That the two agree is a
 * property test, so a predicted time is the time of the very list that the kernels run.
 *
 * Rows are cut every `tile_tokens` from the first; the last tile may be short. Row i of a causal
 * run sees keys [0, position + i] of its K/V slice, never more than `keys`; of a full run, all of
 * them. Key blocks are TILE_KEYS keys from the slice's first key on; a block counts when any row of
 * the tile sees any key of it. Pure, 64-bit, no allocation. */
#ifndef BALLAST_SHARDING_TILE_LIST_H
#define BALLAST_SHARDING_TILE_LIST_H

#include <stdbool.h>
#include <stdint.h>

#define TILE_ROWS 128u /* query heads x tokens of a forward tile */
#define TILE_KEYS 128u /* keys of a block */

struct tile_rows {
    int64_t position; /* of the first row in the slice; below 0 the first rows see nothing */
    uint64_t length;
    uint64_t keys;
    bool causal;
};

/* Tokens of one tile when `heads` query heads share its rows. heads in [1, rows]. */
static inline uint32_t tile_tokens(uint32_t rows, uint32_t heads) {
    return rows / heads;
}

/* How many tiles there are. tokens > 0. */
static inline uint64_t tile_count(const struct tile_rows *rows, uint32_t tokens) {
    return rows->length / tokens + (rows->length % tokens != 0);
}

/* Keys that some row of [0, end) sees: [0, result). */
static inline uint64_t tile_keys_seen(const struct tile_rows *rows, uint64_t end) {
    int64_t reach = rows->position + (int64_t)end;
    if (!rows->causal || reach >= (int64_t)rows->keys) {
        return rows->keys;
    }
    return reach > 0 ? (uint64_t)reach : 0;
}

/* Key blocks of tile `index` < tile_count. */
static inline uint64_t tile_blocks(const struct tile_rows *rows, uint32_t tokens, uint64_t index) {
    uint64_t end = (index + 1) * tokens;
    uint64_t seen = tile_keys_seen(rows, end < rows->length ? end : rows->length);
    return (seen + TILE_KEYS - 1) / TILE_KEYS;
}

/* The first tile some row of which sees key `key`; all later ones do as well. tile_count if none
 * does. */
uint64_t tile_first_seeing(const struct tile_rows *rows, uint32_t tokens, uint64_t key);

/* Sum over i in [0, tiles) of ceil((end + i * tokens) / TILE_KEYS), tokens in [1, TILE_ROWS]:
 * the blocks of `tiles` tiles of `tokens` causal rows, the first of which ends at row `end`. */
uint64_t tile_blocks_run(uint64_t tiles, uint32_t tokens, uint64_t end);

/* Sum of tile_blocks over all tiles, in closed form. */
uint64_t tile_blocks_sum(const struct tile_rows *rows, uint32_t tokens);

#endif
