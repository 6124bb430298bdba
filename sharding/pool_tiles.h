/* pool_tiles: a pool of packed sequences cut into tiles, the pieces of attention that can move.
 *
 * Libra's sequence-head tiles: a pool is P sequences whose P * CP workers share their attention.
 * Rows stay where their home is; what moves is the attention of a block of rows for one share of
 * the heads. Blocks end at multiples of B rows and, so that every tile has one home, where the home
 * changes; not where documents change, so a block may hold many. A block is called a piece here,
 * and tile `piece * H + shard` is one of its H head shards, which all have the same pairs.
 *
 * What tiles share is K/V: a group is one document's K/V for one range of K/V heads. Only documents
 * that more than one piece holds rows of, called spans, have to be looked up; a piece has at most
 * two, its first document and its last. Those in between are its own.
 *
 * Pad rows are in no tile. Integers only; no allocation. Rows of a sequence fit 2^26. */
#ifndef BALLAST_SHARDING_POOL_TILES_H
#define BALLAST_SHARDING_POOL_TILES_H

#include <stddef.h>
#include <stdint.h>

#define POOL_NONE UINT32_MAX

struct pool_shape {
    uint32_t sequences;     /* P, > 0 */
    uint32_t ranks;         /* CP, > 0; worker w is rank w % CP of sequence w / CP */
    uint32_t block_rows;    /* B, > 0 */
    uint32_t head_shards;   /* H, divides q_heads, and divides kv_heads or is a multiple of them */
    uint32_t q_heads;       /* per tensor-parallel rank, as the next */
    uint32_t kv_heads;      /* divides q_heads */
    uint32_t head_dim;      /* > 0 */
    uint32_t element_bytes; /* of Q, K, V and O, > 0 */
};

/* Rows [row, row + rows) of a sequence live at `worker`, any of the pool's. */
struct pool_run {
    uint32_t row;
    uint32_t rows; /* > 0 */
    uint32_t worker;
};

struct pool_sequence {
    const uint32_t *lengths; /* of the documents, in row order, never 0 */
    uint32_t documents;
    const struct pool_run *runs; /* ascending, without gap, all rows of the documents; touching
                                    ones have different workers */
    uint32_t run_count;
};

struct pool {
    struct pool_shape shape;
    const struct pool_sequence *sequences;
};

struct pool_piece {
    uint32_t sequence;
    uint32_t block; /* number in the sequence */
    uint32_t row;   /* first, in the sequence */
    uint32_t rows;
    uint32_t home;
    uint32_t document;      /* the one with the most pairs here, of equals the first */
    uint32_t document_rows; /* its length */
    uint32_t lead;          /* span of the first document; POOL_NONE: no other piece has it */
    uint32_t lead_end;      /* its first row behind the piece, counted in the document */
    uint32_t tail;          /* span of the last document, if that begins behind the first one's */
    uint32_t tail_end;
    uint32_t inner_rows; /* of documents that only this piece has */
    uint64_t pairs;      /* exact, causal, one head */
};

struct pool_span {
    uint32_t sequence;
    uint32_t row; /* its first, in the sequence */
    uint32_t length;
    uint32_t run; /* of the sequence's, with its first row */
};

struct pool_tiles {
    struct pool_piece *pieces; /* by (sequence, row) */
    uint32_t piece_count;
    struct pool_span *spans; /* by (sequence, row) */
    uint32_t span_count;
    uint64_t pairs; /* of all pieces, one head */
};

static inline uint32_t pool_workers(const struct pool_shape *shape) {
    return shape->sequences * shape->ranks;
}

/* Different ranges of K/V heads: R = min(H, kv_heads). */
static inline uint32_t pool_ranges(const struct pool_shape *shape) {
    return shape->head_shards < shape->kv_heads ? shape->head_shards : shape->kv_heads;
}

/* The range that a head shard sees. */
static inline uint32_t pool_range_of(const struct pool_shape *shape, uint32_t shard) {
    return shard / (shape->head_shards / pool_ranges(shape));
}

static inline uint32_t pool_shard_heads(const struct pool_shape *shape) {
    return shape->q_heads / shape->head_shards;
}

static inline uint32_t pool_range_heads(const struct pool_shape *shape) {
    return shape->kv_heads / pool_ranges(shape);
}

/* Bytes of one row of Q or O of a head shard; of K and V of a range. */
static inline uint64_t pool_q_row_bytes(const struct pool_shape *shape) {
    return (uint64_t)pool_shard_heads(shape) * shape->head_dim * shape->element_bytes;
}

static inline uint64_t pool_kv_row_bytes(const struct pool_shape *shape) {
    return 2 * (uint64_t)pool_range_heads(shape) * shape->head_dim * shape->element_bytes;
}

static inline uint32_t pool_tile_count(const struct pool_shape *shape,
                                       const struct pool_tiles *tiles) {
    return tiles->piece_count * shape->head_shards;
}

/* Homes by contiguous shards: rank r of `sequence` has rows [r, r + 1) * rows / ranks, as far as
 * they are not pad. ranks divides rows. Writes at most `ranks` runs and returns how many. */
uint32_t pool_home_contiguous(const struct pool_shape *shape, uint32_t sequence, uint32_t rows,
                              uint32_t tokens, struct pool_run *out);

/* Most pieces of a pool; there are fewer spans than pieces. */
size_t pool_pieces_max(const struct pool *pool);

/* Cuts. `pieces` and `spans` have room for pool_pieces_max each; `out` borrows them. */
void pool_cut(const struct pool *pool, struct pool_piece *pieces, struct pool_span *spans,
              struct pool_tiles *out);

#endif
