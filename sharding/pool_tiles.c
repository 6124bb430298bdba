/* pool_tiles: one walk over the rows of each sequence, with its documents and its homes in step. */
#include "sharding/pool_tiles.h"

#include "sharding/fragment.h"

#include <assert.h>

struct pool_walk {
    const struct pool_sequence *sequence;
    uint32_t number;   /* of the sequence */
    uint32_t run;      /* with the piece */
    uint32_t document; /* with the piece's first row */
    uint32_t document_row;
    uint32_t span; /* of this document, if an earlier piece has it */
};

uint32_t pool_home_contiguous(const struct pool_shape *shape, uint32_t sequence, uint32_t rows,
                              uint32_t tokens, struct pool_run *out) {
    assert(tokens <= rows && rows % shape->ranks == 0);
    uint32_t share = rows / shape->ranks;
    uint32_t count = 0;
    for (uint32_t row = 0; row < tokens; row += share) {
        uint32_t left = tokens - row;
        out[count] = (struct pool_run){
            .row = row,
            .rows = left < share ? left : share,
            .worker = sequence * shape->ranks + count,
        };
        count++;
    }
    return count;
}

/* Every piece but the last of a run ends at a multiple of B. */
size_t pool_pieces_max(const struct pool *pool) {
    size_t pieces = 0;
    for (uint32_t s = 0; s < pool->shape.sequences; s++) {
        const struct pool_sequence *sequence = &pool->sequences[s];
        for (uint32_t i = 0; i < sequence->run_count; i++) {
            const struct pool_run *run = &sequence->runs[i];
            uint32_t first = run->row / pool->shape.block_rows;
            uint32_t last = (run->row + run->rows - 1) / pool->shape.block_rows;
            pieces += last - first + 1;
        }
    }
    return pieces;
}

static uint32_t pool_add_span(const struct pool_walk *walk, struct pool_tiles *out) {
    out->spans[out->span_count] = (struct pool_span){
        .sequence = walk->number,
        .row = walk->document_row,
        .length = walk->sequence->lengths[walk->document],
        .run = walk->run,
    };
    return out->span_count++;
}

/* Adds rows [start, end) of the document that the walk is at, counted in it. */
static void pool_piece_add(const struct pool_walk *walk, uint32_t start, uint32_t end,
                           uint64_t *most_pairs, struct pool_piece *piece) {
    uint64_t pairs = fragment_pairs((struct fragment){.start = start, .length = end - start});
    piece->pairs += pairs;
    if (pairs > *most_pairs) {
        *most_pairs = pairs;
        piece->document = walk->document;
        piece->document_rows = walk->sequence->lengths[walk->document];
    }
}

/* The documents of the piece, whose rows are set. The walk moves to the one with the row behind
 * it. */
static void pool_piece_fill(struct pool_walk *walk, struct pool_piece *piece,
                            struct pool_tiles *out) {
    uint32_t piece_end = piece->row + piece->rows;
    uint64_t most_pairs = 0;
    piece->lead = POOL_NONE;
    piece->tail = POOL_NONE;
    for (uint32_t row = piece->row; row < piece_end;) {
        uint32_t length = walk->sequence->lengths[walk->document];
        uint32_t document_end = walk->document_row + length;
        uint32_t end = document_end < piece_end ? document_end : piece_end;
        pool_piece_add(walk, row - walk->document_row, end - walk->document_row, &most_pairs,
                       piece);
        if (walk->document_row == row && document_end > piece_end) {
            walk->span = pool_add_span(walk, out);
        }
        if (walk->span == POOL_NONE) {
            piece->inner_rows += length;
        } else if (row == piece->row) {
            piece->lead = walk->span;
            piece->lead_end = end - walk->document_row;
        } else {
            piece->tail = walk->span;
            piece->tail_end = end - walk->document_row;
        }
        if (document_end <= piece_end) {
            walk->document++;
            walk->document_row = document_end;
            walk->span = POOL_NONE;
        }
        row = end;
    }
}

static void pool_cut_sequence(const struct pool *pool, uint32_t number, struct pool_tiles *out) {
    struct pool_walk walk = {
        .sequence = &pool->sequences[number], .number = number, .span = POOL_NONE};
    uint32_t block_rows = pool->shape.block_rows;
    uint32_t block = 0;
    for (; walk.run < walk.sequence->run_count; walk.run++) {
        const struct pool_run *run = &walk.sequence->runs[walk.run];
        assert(run->rows > 0 && run->worker < pool_workers(&pool->shape));
        uint32_t run_end = run->row + run->rows;
        for (uint32_t row = run->row; row < run_end;) {
            uint32_t block_left = block_rows - row % block_rows;
            struct pool_piece *piece = &out->pieces[out->piece_count++];
            *piece = (struct pool_piece){
                .sequence = number,
                .block = block++,
                .row = row,
                .rows = run_end - row < block_left ? run_end - row : block_left,
                .home = run->worker,
            };
            pool_piece_fill(&walk, piece, out);
            out->pairs += piece->pairs;
            row += piece->rows;
        }
    }
    assert(walk.document == walk.sequence->documents);
}

void pool_cut(const struct pool *pool, struct pool_piece *pieces, struct pool_span *spans,
              struct pool_tiles *out) {
    const struct pool_shape *shape = &pool->shape;
    assert(shape->head_shards > 0 && shape->q_heads % shape->head_shards == 0);
    assert(shape->kv_heads > 0 && shape->q_heads % shape->kv_heads == 0);
    assert(shape->kv_heads % pool_ranges(shape) == 0 &&
           shape->head_shards % pool_ranges(shape) == 0);
    *out = (struct pool_tiles){.pieces = pieces, .spans = spans};
    for (uint32_t i = 0; i < shape->sequences; i++) {
        pool_cut_sequence(pool, i, out);
    }
}
