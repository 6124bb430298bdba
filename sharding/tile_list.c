/* tile_list: closed forms over tiles of equal length. */
#include "sharding/tile_list.h"

/* Few models need it: kept out of the loop over fragments. */
__attribute__((noinline)) uint64_t tile_floor_sum(uint64_t count, uint64_t divisor, uint64_t slope,
                                                  uint64_t offset) {
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
        struct tile_size size = tile_size_of(tokens);
        sum += tile_blocks_run(&size, capped - blind, (uint64_t)end);
    }
    return sum;
}
