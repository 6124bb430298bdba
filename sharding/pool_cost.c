/* pool_cost: see pool_cost.h. For one head shard after the other pieces are sorted by worker, which
 * keeps their order, and so that of rows. */
#include "sharding/pool_cost.h"

#include <string.h>

struct pool_costing {
    const struct pool *pool;
    const struct pool_tiles *tiles;
    const uint32_t *workers;
    struct tile_model model; /* of a head shard */
    struct tile_loads *loads;
    struct fragment *fragments; /* of one worker and shard */
    uint32_t *first_documents;  /* by piece: its first document in the sequence, */
    uint32_t *first_rows;       /* and that one's first row in the sequence */
    uint32_t *order;            /* pieces by worker */
    uint32_t *ends;             /* of workers, in order */
};

static size_t pool_cost_lay_out(struct pool_costing *c, const struct pool_shape *shape,
                                size_t documents, size_t pieces, void *scratch) {
    size_t workers = pool_workers(shape);
    c->loads = scratch;
    c->fragments = (struct fragment *)(c->loads + workers);
    c->first_documents = (uint32_t *)(c->fragments + documents + pieces);
    c->first_rows = c->first_documents + pieces;
    c->order = c->first_rows + pieces;
    c->ends = c->order + pieces;
    return workers * (sizeof *c->loads + sizeof *c->ends) +
           (documents + pieces) * sizeof *c->fragments + 3 * pieces * sizeof *c->order;
}

size_t pool_cost_bytes(const struct pool_shape *shape, uint32_t documents, uint32_t pieces) {
    static struct tile_loads none;
    struct pool_costing c;
    return pool_cost_lay_out(&c, shape, documents, pieces, &none);
}

static void pool_cost_begin_pieces(struct pool_costing *c) {
    uint32_t document = 0;
    uint32_t row = 0;
    for (uint32_t i = 0; i < c->tiles->piece_count; i++) {
        const struct pool_piece *piece = &c->tiles->pieces[i];
        const uint32_t *lengths = c->pool->sequences[piece->sequence].lengths;
        if (i == 0 || piece->sequence != piece[-1].sequence) {
            document = 0;
            row = 0;
        }
        while (row + lengths[document] <= piece->row) {
            row += lengths[document++];
        }
        c->first_documents[i] = document;
        c->first_rows[i] = row;
    }
}

static void pool_cost_sort(struct pool_costing *c, uint32_t shard) {
    uint32_t shards = c->pool->shape.head_shards;
    uint32_t workers = pool_workers(&c->pool->shape);
    uint32_t begin = 0;
    memset(c->ends, 0, workers * sizeof *c->ends);
    for (uint32_t i = 0; i < c->tiles->piece_count; i++) {
        c->ends[c->workers[(size_t)i * shards + shard]]++;
    }
    for (uint32_t w = 0; w < workers; w++) {
        uint32_t here = c->ends[w];
        c->ends[w] = begin;
        begin += here;
    }
    for (uint32_t i = 0; i < c->tiles->piece_count; i++) {
        c->order[c->ends[c->workers[(size_t)i * shards + shard]]++] = i;
    }
}

/* The rows of a piece, document by document; `base` tells sequences apart. */
static uint32_t pool_cost_piece(const struct pool_costing *c, uint32_t number, uint32_t base,
                                struct fragment *out) {
    const struct pool_piece *piece = &c->tiles->pieces[number];
    const uint32_t *lengths = c->pool->sequences[piece->sequence].lengths;
    uint32_t document = c->first_documents[number];
    uint32_t first = c->first_rows[number];
    uint32_t end = piece->row + piece->rows;
    uint32_t count = 0;
    for (uint32_t row = piece->row; row < end; document++) {
        uint32_t stop = first + lengths[document] < end ? first + lengths[document] : end;
        out[count++] = (struct fragment){base + document, row - first, stop - row};
        first += lengths[document];
        row = stop;
    }
    return count;
}

static void pool_cost_worker(struct pool_costing *c, uint32_t worker) {
    uint32_t begin = worker > 0 ? c->ends[worker - 1] : 0;
    uint32_t base = 0;
    uint32_t sequence = 0;
    uint32_t count = 0;
    for (uint32_t i = begin; i < c->ends[worker]; i++) {
        while (sequence < c->tiles->pieces[c->order[i]].sequence) {
            base += c->pool->sequences[sequence++].documents;
        }
        count += pool_cost_piece(c, c->order[i], base, c->fragments + count);
    }
    tile_loads_add(&c->model, &c->loads[worker], c->fragments, count);
}

void pool_cost(const struct pool *pool, const struct pool_tiles *tiles, const uint32_t *workers,
               const struct tile_model *model, void *scratch, uint64_t *worker_ps) {
    const struct pool_shape *shape = &pool->shape;
    struct pool_costing c = {.pool = pool, .tiles = tiles, .workers = workers, .model = *model};
    uint32_t documents = 0;
    for (uint32_t i = 0; i < shape->sequences; i++) {
        documents += pool->sequences[i].documents;
    }
    (void)pool_cost_lay_out(&c, shape, documents, tiles->piece_count, scratch);
    c.model.q_heads = pool_shard_heads(shape);
    c.model.kv_heads = pool_range_heads(shape);
    memset(c.loads, 0, pool_workers(shape) * sizeof *c.loads);
    pool_cost_begin_pieces(&c);
    for (uint32_t shard = 0; shard < shape->head_shards; shard++) {
        pool_cost_sort(&c, shard);
        for (uint32_t w = 0; w < pool_workers(shape); w++) {
            pool_cost_worker(&c, w);
        }
    }
    for (uint32_t w = 0; w < pool_workers(shape); w++) {
        worker_ps[w] = tile_loads_ps(&c.model, &c.loads[w]);
    }
}
