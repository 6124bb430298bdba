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

/* How many see it: what a block that owns the keys from `key` on loops over. */
static inline uint64_t tile_count_seeing(const struct tile_rows *rows, uint32_t tokens,
                                         uint64_t key) {
    return tile_count(rows, tokens) - tile_first_seeing(rows, tokens, key);
}

/* Tokens of a tile, in [1, TILE_ROWS]; if they divide a key block, as powers of two. */
struct tile_size {
    uint32_t tokens;
    bool shifts;
    unsigned shift;       /* tokens are 1 << shift */
    unsigned block_shift; /* tiles of a key block, likewise */
};

static inline struct tile_size tile_size_of(uint32_t tokens) {
    unsigned shift = (unsigned)__builtin_ctz(tokens);
    return (struct tile_size){
        .tokens = tokens,
        .shifts = TILE_KEYS % tokens == 0,
        .shift = shift,
        .block_shift = (unsigned)__builtin_ctz(TILE_KEYS) - shift,
    };
}

/* Whole tiles in `length` rows. */
static inline uint64_t tile_whole(const struct tile_size *size, uint64_t length) {
    return size->shifts ? length >> size->shift : length / size->tokens;
}

/* Sum over i in [0, count) of floor((slope * i + offset) / divisor), by Euclid's algorithm. */
uint64_t tile_floor_sum(uint64_t count, uint64_t divisor, uint64_t slope, uint64_t offset);

/* Sum over j in [first, end) of floor(j / 2^shift): whole * j is too much by 2^shift for each of
 * the whole before. */
static inline uint64_t tile_shift_sum(uint64_t first, uint64_t end, unsigned shift) {
    uint64_t low = first >> shift;
    uint64_t high = end >> shift;
    return high * end - low * first - (((high - low) * (high + low + 1) / 2) << shift);
}

/* Sum over i in [0, tiles) of ceil((end + i * tokens) / TILE_KEYS): the blocks of `tiles` whole
 * tiles of causal rows, the first of which ends at row `end` of the slice. */
static inline uint64_t tile_blocks_run(const struct tile_size *size, uint64_t tiles, uint64_t end) {
    uint64_t offset = end + TILE_KEYS - 1;
    uint64_t first = offset >> size->shift;
    return size->shifts ? tile_shift_sum(first, first + tiles, size->block_shift)
                        : tile_floor_sum(tiles, TILE_KEYS, size->tokens, offset);
}

/* Sum of tile_blocks over all tiles, in closed form. */
uint64_t tile_blocks_sum(const struct tile_rows *rows, uint32_t tokens);

#endif
