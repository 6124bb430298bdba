/* The tile walk against rows that are really looked at, and its closed forms against the walk. */
#include "sharding/tile_list.h"

#include "splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static bool row_sees(const struct tile_rows *rows, uint64_t row, uint64_t key) {
    return key < rows->keys && (!rows->causal || (int64_t)key <= rows->position + (int64_t)row);
}

/* Does a row of the tile see a key of the block? */
static bool tile_sees(const struct tile_rows *rows, uint32_t tokens, uint64_t tile, uint64_t key,
                      uint64_t key_end) {
    for (uint64_t row = tile * tokens; row < (tile + 1) * tokens && row < rows->length; row++) {
        for (uint64_t k = key; k < key_end && k < rows->keys; k++) {
            if (row_sees(rows, row, k)) {
                return true;
            }
        }
    }
    return false;
}

static void check_walk(const struct tile_rows *rows, uint32_t tokens, uint64_t seed) {
    uint64_t tiles = tile_count(rows, tokens);
    uint64_t sum = 0;
    for (uint64_t tile = 0; tile < tiles; tile++) {
        uint64_t blocks = tile_blocks(rows, tokens, tile);
        sum += blocks;
        for (uint64_t block = 0; block * TILE_KEYS < rows->keys; block++) {
            uint64_t key = block * TILE_KEYS;
            if (tile_sees(rows, tokens, tile, key, key + TILE_KEYS) != (block < blocks)) {
                fail_msg("seed %" PRIu64 ": tile %" PRIu64 " block %" PRIu64, seed, tile, block);
            }
        }
    }
    if (tile_blocks_sum(rows, tokens) != sum) {
        fail_msg("seed %" PRIu64 ": sum %" PRIu64 ", walked %" PRIu64, seed,
                 tile_blocks_sum(rows, tokens), sum);
    }
}

static void check_first(const struct tile_rows *rows, uint32_t tokens, uint64_t seed) {
    uint64_t tiles = tile_count(rows, tokens);
    for (uint64_t key = 0; key < rows->keys + 3; key += 1 + key % 7) {
        uint64_t first = 0;
        while (first < tiles && !tile_sees(rows, tokens, first, key, key + 1)) {
            first++;
        }
        if (tile_first_seeing(rows, tokens, key) != first) {
            fail_msg("seed %" PRIu64 ": key %" PRIu64, seed, key);
        }
    }
}

static void tile_walk_lists_exactly_the_blocks_that_rows_see(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        uint64_t random = seed;
        struct tile_rows rows = {
            .position = (int64_t)splitmix_between(&random, 0, 400) - 100,
            .length = splitmix_between(&random, 0, 200),
            .keys = splitmix_between(&random, 0, 400),
            .causal = splitmix_between(&random, 0, 3) > 0,
        };
        uint32_t tokens = splitmix_between(&random, 1, TILE_ROWS);
        check_walk(&rows, tokens, seed);
        check_first(&rows, tokens, seed);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tile_walk_lists_exactly_the_blocks_that_rows_see),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
