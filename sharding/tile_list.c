/* tile_list: closed forms over tiles of equal length. */
#include "sharding/tile_list.h"

/* Sum over i in [0, count) of floor((slope * i + offset) / divisor), by Euclid's algorithm on
 * (slope, divisor). */
static uint64_t floor_sum(uint64_t count, uint64_t divisor, uint64_t slope, uint64_t offset) {
    uint64_t sum = 0;
    while (count > 0) {
        sum += count * (count - 1) / 2 * (slope / divisor) + count * (offset / divisor);
        slope %= divisor;
        uint64_t end = slope * count + offset % divisor;
        count = end / divisor;
        offset = end % divisor;
        uint64_t swapped = slope;
        slope = divisor;
        divisor = swapped;
    }
    return sum;
}

/* Sum over j in [0, count) of floor(j / 2^shift). */
static uint64_t shift_sum(uint64_t count, unsigned shift) {
    uint64_t whole = count >> shift;
    return whole > 0 ? ((whole * (whole - 1) / 2) << shift) + whole * (count - (whole << shift))
                     : 0;
}

uint64_t tile_blocks_run(uint64_t tiles, uint32_t tokens, uint64_t end) {
    uint64_t offset = end + TILE_KEYS - 1;
    if (TILE_KEYS % tokens != 0) {
        return floor_sum(tiles, TILE_KEYS, tokens, offset);
    }
    unsigned tile_shift = (unsigned)__builtin_ctz(tokens);
    unsigned block_shift = (unsigned)__builtin_ctz(TILE_KEYS) - tile_shift;
    uint64_t first = offset >> tile_shift;
    return shift_sum(first + tiles, block_shift) - shift_sum(first, block_shift);
}

uint64_t tile_first_seeing(const struct tile_rows *rows, uint32_t tokens, uint64_t key) {
    uint64_t tiles = tile_count(rows, tokens);
    if (key >= rows->keys) {
        return tiles;
    }
    if (!rows->causal || (int64_t)key <= rows->position) {
        return 0;
    }
    uint64_t first_row = (uint64_t)((int64_t)key - rows->position);
    return first_row < rows->length ? first_row / tokens : tiles;
}

uint64_t tile_blocks_sum(const struct tile_rows *rows, uint32_t tokens) {
    uint64_t tiles = tile_count(rows, tokens);
    if (tiles == 0 || rows->keys == 0) {
        return 0;
    }
    uint64_t blind = tile_first_seeing(rows, tokens, 0);
    uint64_t capped = tile_first_seeing(rows, tokens, rows->keys - 1);
    uint64_t sum = 0;
    if (capped == tiles && blind < tiles) {
        sum += tile_blocks(rows, tokens, tiles - 1);
        capped = tiles - 1;
    } else {
        sum += (tiles - capped) * ((rows->keys + TILE_KEYS - 1) / TILE_KEYS);
    }
    if (blind < capped) {
        int64_t end = rows->position + (int64_t)((blind + 1) * tokens);
        sum += tile_blocks_run(capped - blind, tokens, (uint64_t)end);
    }
    return sum;
}
