/* lists: the records of a plan's work lists, as the kernels read them.
 *
 * A plan's block is four arrays, one after the other: tiles, steps, key tiles, ranges; then
 * nothing. Row r of a tile or step holds token r / G, head r % G, where G is the pack of the shape:
 * the query heads of one K/V head in the forward pass, at most 64 of them in the backward pass. It
 * is valid when its token is below `tokens` and its head below `heads`. Common subset of C and CUDA
 * C++; plain little-endian records, no pointers. */
#ifndef BALLAST_GPU_ATTN_LISTS_H
#define BALLAST_GPU_ATTN_LISTS_H

#include <stdint.h>

#define ATTN_TILE_ROWS 128 /* packed query rows of a forward tile: two warpgroups of 64 */
#define ATTN_STEP_ROWS 64  /* packed query rows of a backward step */
#define ATTN_KEYS      128 /* keys of a block, of a key tile */

/* Forward, longest first: most blocks, then K/V head, then K/V row. */
struct attn_tile {
    int32_t q_row;  /* of token 0 */
    int32_t kv_row; /* of key 0 */
    int32_t keys;   /* of the slice */
    int32_t reach;  /* token t sees keys j <= reach + t, j < keys */
    int32_t blocks; /* of ATTN_KEYS that some row sees */
    uint16_t head;  /* first query head */
    uint16_t kv_head;
    uint16_t tokens;
    uint16_t heads;
    uint32_t reserved; /* 0 */
};

/* Backward: 64 packed query rows, in the order of K/V head, slice, fragment, position. */
struct attn_step {
    int32_t q_row;
    int32_t keys;
    int32_t reach;
    uint16_t head;
    uint16_t tokens;
    uint16_t heads;
    uint16_t reserved; /* 0 */
};

/* Backward, longest first: ATTN_KEYS keys of one K/V head and the steps that see any of them. */
struct attn_key_tile {
    int32_t kv_row; /* of its first key */
    int32_t rows;   /* keys of the slice from there on, at most ATTN_KEYS */
    int32_t key;    /* index of its first key in the slice */
    int32_t kv_head;
    int32_t range_begin;
    int32_t range_end;
    int32_t steps;  /* in all its ranges */
    int32_t blocks; /* tiles of ATTN_TILE_ROWS that see any of them: what the cost model prices. Two
                       steps are a block, one alone at either end of a fragment too */
};

struct attn_range {
    int32_t step_begin;
    int32_t step_end;
};

#endif
