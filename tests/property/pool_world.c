/* pool_world: see pool_world.h. Rows are kept one by one: what is held is a byte each. */
#include "pool_world.h"

#include "splitmix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *allocate(size_t count, size_t bytes) {
    void *memory = calloc(count > 0 ? count : 1, bytes);
    if (memory == NULL) {
        fprintf(stderr, "pool_world: no memory\n");
        exit(1);
    }
    return memory;
}

static void run_append(struct pool_run *runs, uint32_t *count, uint32_t row, uint32_t end,
                       uint32_t worker) {
    if (row >= end) {
        return;
    }
    if (*count > 0 && runs[*count - 1].worker == worker) {
        runs[*count - 1].rows += end - row;
        return;
    }
    runs[(*count)++] = (struct pool_run){row, end - row, worker};
}

static uint32_t homes_zigzag(const struct pool_shape *shape, uint32_t sequence, uint32_t tokens,
                             struct pool_run *runs) {
    uint32_t chunks = 2 * shape->ranks;
    uint32_t share = (tokens + chunks - 1) / chunks;
    uint32_t count = 0;
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
        uint32_t rank = chunk < shape->ranks ? chunk : chunks - 1 - chunk;
        uint32_t end = (chunk + 1) * share < tokens ? (chunk + 1) * share : tokens;
        run_append(runs, &count, chunk * share, end, sequence * shape->ranks + rank);
    }
    return count;
}

/* Anywhere in the pool, not only at the sequence's own workers. */
static uint32_t homes_random(const struct pool_shape *shape, uint32_t tokens, uint64_t *random,
                             struct pool_run *runs) {
    uint32_t count = 0;
    for (uint32_t row = 0; row < tokens;) {
        uint32_t left = tokens - row;
        uint32_t rows = splitmix_between(random, 1, left < 9 ? left : 1 + left / 3);
        run_append(runs, &count, row, row + rows,
                   splitmix_between(random, 0, pool_workers(shape) - 1));
        row += rows;
    }
    return count;
}

static uint32_t homes_of(const struct pool_shape *shape, uint32_t sequence, uint32_t tokens,
                         enum world_homes homes, uint64_t *random, struct pool_run *runs) {
    uint32_t padded = (tokens + shape->ranks - 1) / shape->ranks * shape->ranks;
    switch (homes) {
    case HOMES_CONTIGUOUS:
        return pool_home_contiguous(shape, sequence, padded, tokens, runs);
    case HOMES_ZIGZAG:
        return homes_zigzag(shape, sequence, tokens, runs);
    default:
        return homes_random(shape, tokens, random, runs);
    }
}

void pool_world_init(struct pool_world *world, const struct pool_shape *shape,
                     const uint32_t *lengths, const uint32_t *counts, enum world_homes homes,
                     uint64_t seed) {
    struct pool_sequence *sequences = allocate(shape->sequences, sizeof *sequences);
    *world = (struct pool_world){.pool = {*shape, sequences}};
    world->rows = allocate(shape->sequences, sizeof *world->rows);
    for (uint32_t s = 0; s < shape->sequences; s++) {
        sequences[s].lengths = lengths;
        sequences[s].documents = counts[s];
        for (uint32_t i = 0; i < counts[s]; i++) {
            world->rows[s] += lengths[i];
        }
        struct pool_run *runs = allocate(world->rows[s] + 2 * shape->ranks, sizeof *runs);
        sequences[s].runs = runs;
        sequences[s].run_count = homes_of(shape, s, world->rows[s], homes, &seed, runs);
        lengths += counts[s];
    }
    size_t pieces = pool_pieces_max(&world->pool);
    struct pool_piece *piece = allocate(pieces, sizeof *piece);
    struct pool_span *span = allocate(pieces, sizeof *span);
    pool_cut(&world->pool, piece, span, &world->tiles);
    world->workers = allocate(pool_tile_count(shape, &world->tiles), sizeof *world->workers);
    world->loads = allocate(pool_workers(shape), sizeof *world->loads);
    world->links = allocate(pool_workers(shape), sizeof *world->links);
    world->scratch = allocate(pool_plan_bytes(shape, &world->tiles), 1);
}

void pool_world_deinit(struct pool_world *world) {
    for (uint32_t s = 0; s < world->pool.shape.sequences; s++) {
        free((void *)(uintptr_t)world->pool.sequences[s].runs);
    }
    free((void *)(uintptr_t)world->pool.sequences);
    free(world->scratch);
    free(world->transfers);
    free(world->links);
    free(world->loads);
    free(world->workers);
    free(world->tiles.spans);
    free(world->tiles.pieces);
    free(world->rows);
}

void pool_world_exchange(struct pool_world *world, const struct pool_exchange_options *options) {
    size_t count = pool_exchange(&world->pool, &world->tiles, world->workers, options,
                                 world->scratch, NULL, 0, world->links);
    free(world->transfers);
    world->transfers = allocate(count, sizeof *world->transfers);
    world->transfer_count = pool_exchange(&world->pool, &world->tiles, world->workers, options,
                                          world->scratch, world->transfers, count, world->links);
}

/* One number for every (worker, row of the pool, head). */
struct table {
    uint32_t *cells;
    uint32_t rows;
    uint32_t heads;
};

struct execution {
    const struct pool_world *world;
    uint32_t *row_begins; /* of sequences, in the pool */
    uint32_t rows;
    struct table queries;   /* held */
    struct table keys;      /* held */
    struct table used;      /* keys that some tile saw */
    struct table gradients; /* of keys: query rows and heads that saw them */
    struct table outputs;   /* held: computed, or returned */
    uint32_t *homes;
    uint32_t *document_begins; /* of every row's document, in the pool */
    uint32_t *document_ends;
};

static struct table table_of(uint32_t workers, uint32_t rows, uint32_t heads) {
    return (struct table){allocate((size_t)workers * rows * heads, sizeof(uint32_t)), rows, heads};
}

static uint32_t *cell(const struct table *table, uint32_t worker, uint32_t row, uint32_t head) {
    return &table->cells[((size_t)worker * table->rows + row) * table->heads + head];
}

static void execution_rows(struct execution *e) {
    const struct pool *pool = &e->world->pool;
    for (uint32_t s = 0; s < pool->shape.sequences; s++) {
        const struct pool_sequence *sequence = &pool->sequences[s];
        uint32_t row = e->row_begins[s];
        for (uint32_t i = 0; i < sequence->documents; i++) {
            uint32_t end = row + sequence->lengths[i];
            for (uint32_t begin = row; row < end; row++) {
                e->document_begins[row] = begin;
                e->document_ends[row] = end;
            }
        }
        for (uint32_t i = 0; i < sequence->run_count; i++) {
            for (uint32_t r = 0; r < sequence->runs[i].rows; r++) {
                e->homes[e->row_begins[s] + sequence->runs[i].row + r] = sequence->runs[i].worker;
            }
        }
    }
}

static void execution_init(struct execution *e, const struct pool_world *world) {
    const struct pool_shape *shape = &world->pool.shape;
    uint32_t workers = pool_workers(shape);
    *e = (struct execution){.world = world};
    e->row_begins = allocate(shape->sequences, sizeof *e->row_begins);
    for (uint32_t s = 0; s < shape->sequences; s++) {
        e->row_begins[s] = e->rows;
        e->rows += world->rows[s];
    }
    e->homes = allocate(e->rows, sizeof *e->homes);
    e->document_begins = allocate(e->rows, sizeof *e->document_begins);
    e->document_ends = allocate(e->rows, sizeof *e->document_ends);
    execution_rows(e);
    e->queries = table_of(workers, e->rows, shape->q_heads);
    e->outputs = table_of(workers, e->rows, shape->q_heads);
    e->keys = table_of(workers, e->rows, shape->kv_heads);
    e->used = table_of(workers, e->rows, shape->kv_heads);
    e->gradients = table_of(workers, e->rows, shape->kv_heads);
    for (uint32_t row = 0; row < e->rows; row++) {
        for (uint32_t head = 0; head < shape->q_heads; head++) {
            *cell(&e->queries, e->homes[row], row, head) = 1;
        }
        for (uint32_t head = 0; head < shape->kv_heads; head++) {
            *cell(&e->keys, e->homes[row], row, head) = 1;
        }
    }
}

static void execution_deinit(struct execution *e) {
    free(e->queries.cells);
    free(e->outputs.cells);
    free(e->keys.cells);
    free(e->used.cells);
    free(e->gradients.cells);
    free(e->document_ends);
    free(e->document_begins);
    free(e->homes);
    free(e->row_begins);
}

/* Copies rows that the source has and the receiver has not. */
static const char *transfer_fault(const struct execution *e, const struct table *held,
                                  const struct pool_transfer *t) {
    uint64_t row_bytes = (uint64_t)e->world->pool.shape.head_dim *
                         e->world->pool.shape.element_bytes * (t->payload == POOL_KV ? 2 : 1);
    if (t->source == t->worker || t->rows == 0 || t->head_count == 0) {
        return "a transfer of nothing, or to itself";
    }
    if (t->bytes != t->rows * t->head_count * row_bytes) {
        return "a transfer's bytes are not its rows' and heads'";
    }
    for (uint32_t i = 0; i < t->rows; i++) {
        uint32_t row = e->row_begins[t->sequence] + t->row + i;
        for (uint32_t head = t->head_begin; head < t->head_begin + t->head_count; head++) {
            if (*cell(held, t->source, row, head) == 0) {
                return "the source does not have what it sends";
            }
            if ((*cell(held, t->worker, row, head))++ != 0) {
                return "the receiver has a row already";
            }
        }
    }
    return NULL;
}

static const char *receive_fault(const struct execution *e, enum pool_payload payload,
                                 const struct table *held) {
    const char *fault = NULL;
    for (size_t i = 0; fault == NULL && i < e->world->transfer_count; i++) {
        if (e->world->transfers[i].payload == payload) {
            fault = transfer_fault(e, held, &e->world->transfers[i]);
        }
    }
    return fault;
}

/* Rows of one document in a tile: [row, end) of the pool, in query heads [first, behind). */
static const char *segment_fault(const struct execution *e, uint32_t worker, uint32_t row,
                                 uint32_t end, uint32_t first, uint32_t behind) {
    uint32_t group = e->world->pool.shape.q_heads / e->world->pool.shape.kv_heads;
    for (uint32_t head = first; head < behind; head++) {
        for (uint32_t q = row; q < end; q++) {
            if (*cell(&e->queries, worker, q, head) == 0) {
                return "a query row is not where it is computed";
            }
            if ((*cell(&e->outputs, worker, q, head))++ != 0) {
                return "a query row is computed twice";
            }
        }
        for (uint32_t k = e->document_begins[row]; k < end; k++) {
            if (*cell(&e->keys, worker, k, head / group) == 0) {
                return "a key is not where it is seen";
            }
            *cell(&e->used, worker, k, head / group) = 1;
            *cell(&e->gradients, worker, k, head / group) += end - (k > row ? k : row);
        }
    }
    return NULL;
}

static const char *compute_fault(const struct execution *e) {
    const struct pool_shape *shape = &e->world->pool.shape;
    uint32_t heads = shape->q_heads / shape->head_shards;
    uint64_t *loads = allocate(pool_workers(shape), sizeof *loads);
    const char *fault = NULL;
    for (uint32_t tile = 0; tile < pool_tile_count(shape, &e->world->tiles); tile++) {
        const struct pool_piece *piece = &e->world->tiles.pieces[tile / shape->head_shards];
        uint32_t shard = tile % shape->head_shards;
        uint32_t row = e->row_begins[piece->sequence] + piece->row;
        uint32_t tile_end = row + piece->rows;
        for (uint32_t end; fault == NULL && row < tile_end; row = end) {
            end = e->document_ends[row] < tile_end ? e->document_ends[row] : tile_end;
            fault = segment_fault(e, e->world->workers[tile], row, end, shard * heads,
                                  (shard + 1) * heads);
            for (uint32_t q = row; q < end; q++) {
                loads[e->world->workers[tile]] += (uint64_t)heads * (q + 1 - e->document_begins[q]);
            }
        }
    }
    for (uint32_t w = 0; fault == NULL && w < pool_workers(shape); w++) {
        fault = loads[w] != e->world->loads[w] ? "a load is not the pairs of its tiles" : NULL;
    }
    free(loads);
    return fault;
}

static const char *outputs_fault(const struct execution *e) {
    for (uint32_t row = 0; row < e->rows; row++) {
        for (uint32_t head = 0; head < e->world->pool.shape.q_heads; head++) {
            if (*cell(&e->outputs, e->homes[row], row, head) != 1) {
                return "an output row does not come home";
            }
        }
    }
    return NULL;
}

static const char *useless_fault(const struct execution *e) {
    const struct pool_shape *shape = &e->world->pool.shape;
    for (uint32_t w = 0; w < pool_workers(shape); w++) {
        for (uint32_t row = 0; row < e->rows; row++) {
            for (uint32_t head = 0; head < shape->kv_heads; head++) {
                if (*cell(&e->keys, w, row, head) != 0 && e->homes[row] != w &&
                    *cell(&e->used, w, row, head) == 0) {
                    return "a key is fetched that no tile there sees";
                }
            }
        }
    }
    return NULL;
}

/* Gradients of keys go back along the transfers, the last first. */
static const char *gradients_fault(const struct execution *e) {
    const struct pool_shape *shape = &e->world->pool.shape;
    for (size_t i = e->world->transfer_count; i-- > 0;) {
        const struct pool_transfer *t = &e->world->transfers[i];
        for (uint32_t n = 0; t->payload == POOL_KV && n < t->rows; n++) {
            uint32_t row = e->row_begins[t->sequence] + t->row + n;
            for (uint32_t head = t->head_begin; head < t->head_begin + t->head_count; head++) {
                uint32_t *partial = cell(&e->gradients, t->worker, row, head);
                *cell(&e->gradients, t->source, row, head) += *partial;
                *partial = 0;
            }
        }
    }
    for (uint32_t row = 0; row < e->rows; row++) {
        uint32_t whole = (e->document_ends[row] - row) * (shape->q_heads / shape->kv_heads);
        for (uint32_t head = 0; head < shape->kv_heads; head++) {
            if (*cell(&e->gradients, e->homes[row], row, head) != whole) {
                return "a key's gradient does not come home whole";
            }
        }
    }
    return NULL;
}

static void link_add(struct pool_link *links, const struct pool_transfer *t) {
    struct pool_link *from = &links[t->source];
    struct pool_link *to = &links[t->worker];
    from->q_out += t->payload == POOL_Q ? t->bytes : 0;
    to->q_in += t->payload == POOL_Q ? t->bytes : 0;
    from->kv_out += t->payload == POOL_KV ? t->bytes : 0;
    to->kv_in += t->payload == POOL_KV ? t->bytes : 0;
    from->o_out += t->payload == POOL_O ? t->bytes : 0;
    to->o_in += t->payload == POOL_O ? t->bytes : 0;
}

void pool_world_sum(struct pool_world *world) {
    const struct pool_shape *shape = &world->pool.shape;
    memset(world->loads, 0, pool_workers(shape) * sizeof *world->loads);
    memset(world->links, 0, pool_workers(shape) * sizeof *world->links);
    for (uint32_t tile = 0; tile < pool_tile_count(shape, &world->tiles); tile++) {
        world->loads[world->workers[tile]] += world->tiles.pieces[tile / shape->head_shards].pairs *
                                              pool_shard_heads(shape);
    }
    for (size_t i = 0; i < world->transfer_count; i++) {
        link_add(world->links, &world->transfers[i]);
    }
}

/* Links are the sums of transfers, and O is the mirror of Q in the same order. */
static const char *lists_fault(const struct pool_world *world) {
    uint32_t workers = pool_workers(&world->pool.shape);
    struct pool_link *links = allocate(workers, sizeof *links);
    size_t queries = 0;
    size_t outputs = 0;
    for (uint32_t w = 0; w < workers; w++) {
        links[w].hops = world->links[w].hops; /* are no sums */
        links[w].hop_bytes = world->links[w].hop_bytes;
    }
    for (size_t i = 0; i < world->transfer_count; i++) {
        link_add(links, &world->transfers[i]);
        queries += world->transfers[i].payload == POOL_Q;
        outputs += world->transfers[i].payload == POOL_O;
    }
    bool same = memcmp(links, world->links, workers * sizeof *links) == 0;
    free(links);
    if (!same || queries != outputs) {
        return "links are not what the transfers add up to";
    }
    for (size_t i = 0; i < queries; i++) {
        struct pool_transfer mirrored = world->transfers[world->transfer_count - queries + i];
        uint32_t source = mirrored.source;
        mirrored.payload = POOL_Q;
        mirrored.source = mirrored.worker;
        mirrored.worker = source;
        if (memcmp(&mirrored, &world->transfers[i], sizeof mirrored) != 0) {
            return "O does not mirror Q";
        }
    }
    return NULL;
}

const char *pool_world_fault(const struct pool_world *world, bool needed_only) {
    struct execution e;
    const char *fault = lists_fault(world);
    execution_init(&e, world);
    fault = fault != NULL ? fault : receive_fault(&e, POOL_Q, &e.queries);
    fault = fault != NULL ? fault : receive_fault(&e, POOL_KV, &e.keys);
    fault = fault != NULL ? fault : compute_fault(&e);
    fault = fault != NULL ? fault : receive_fault(&e, POOL_O, &e.outputs);
    fault = fault != NULL ? fault : outputs_fault(&e);
    fault = fault != NULL || !needed_only ? fault : useless_fault(&e);
    fault = fault != NULL ? fault : gradients_fault(&e);
    execution_deinit(&e);
    return fault;
}

struct literal {
    const struct pool_world *world;
    const struct pool_method *method;
    struct execution e; /* its keys: held; its used: one of a group's rows was placed there */
    uint32_t *workers;
    uint64_t *loads;
};

static uint64_t literal_load(const struct literal *l, uint32_t tile) {
    const struct pool_shape *shape = &l->world->pool.shape;
    return l->world->tiles.pieces[tile / shape->head_shards].pairs *
           (shape->q_heads / shape->head_shards);
}

/* Whether the tile stays within 1.03 of the mean. */
static bool literal_fits(const struct literal *l, uint32_t tile, uint32_t worker) {
    const struct pool_shape *shape = &l->world->pool.shape;
    unsigned __int128 sum = (unsigned __int128)l->world->tiles.pairs * shape->q_heads;
    return (unsigned __int128)(l->loads[worker] + literal_load(l, tile)) * 100 *
               pool_workers(shape) <=
           103 * sum;
}

/* Rows of K/V that the tile would bring to a worker; with `take` it has them from now on. */
static uint64_t literal_rows(const struct literal *l, uint32_t tile, uint32_t worker, bool take) {
    const struct pool_shape *shape = &l->world->pool.shape;
    const struct pool_piece *piece = &l->world->tiles.pieces[tile / shape->head_shards];
    uint32_t head = tile % shape->head_shards * (shape->q_heads / shape->head_shards) /
                    (shape->q_heads / shape->kv_heads);
    uint32_t row = l->e.row_begins[piece->sequence] + piece->row;
    uint32_t tile_end = row + piece->rows;
    uint64_t rows = 0;
    while (row < tile_end) {
        uint32_t begin = l->e.document_begins[row];
        uint32_t whole = l->e.document_ends[row];
        uint32_t seen = whole < tile_end ? whole : tile_end;
        uint32_t end = l->method->prefix ? seen : whole;
        bool known = *cell(&l->e.used, worker, begin, head) != 0;
        for (uint32_t k = begin; k < end; k++) {
            rows += l->method->literal ? !known : *cell(&l->e.keys, worker, k, head) == 0;
            *cell(&l->e.keys, worker, k, head) |= take;
        }
        *cell(&l->e.used, worker, begin, head) |= take;
        row = seen;
    }
    return rows;
}

static uint64_t literal_bytes(const struct literal *l, uint32_t tile, uint32_t worker) {
    const struct pool_shape *shape = &l->world->pool.shape;
    const struct pool_piece *piece = &l->world->tiles.pieces[tile / shape->head_shards];
    uint64_t row_bytes = (uint64_t)shape->head_dim * shape->element_bytes;
    uint64_t kv_heads = shape->kv_heads > shape->head_shards ? shape->kv_heads / shape->head_shards
                                                             : 1;
    uint64_t bytes = literal_rows(l, tile, worker, false) * 2 * kv_heads * row_bytes;
    if (worker != piece->home) {
        bytes += 2 * piece->rows * (shape->q_heads / shape->head_shards) * row_bytes;
    }
    return bytes;
}

static void literal_put(const struct literal *l, uint32_t tile, uint32_t worker) {
    (void)literal_rows(l, tile, worker, true);
    l->workers[tile] = worker;
    l->loads[worker] += literal_load(l, tile);
}

static void literal_choose(const struct literal *l, uint32_t tile) {
    uint32_t workers = pool_workers(&l->world->pool.shape);
    uint32_t best = 0;
    for (uint32_t w = 1; w < workers; w++) {
        bool fits = literal_fits(l, tile, w);
        bool best_fits = literal_fits(l, tile, best);
        uint64_t bytes = literal_bytes(l, tile, w);
        uint64_t best_bytes = literal_bytes(l, tile, best);
        bool lighter = l->loads[w] < l->loads[best];
        bool as_light = l->loads[w] == l->loads[best];
        if (fits != best_fits) {
            best = fits ? w : best;
        } else if (fits) {
            best = bytes < best_bytes || (bytes == best_bytes && lighter) ? w : best;
        } else {
            best = lighter || (as_light && bytes < best_bytes) ? w : best;
        }
    }
    literal_put(l, tile, best);
}

/* Whether tile a comes before tile b. */
static bool literal_before(const struct literal *l, bool descending, uint32_t a, uint32_t b) {
    uint32_t shards = l->world->pool.shape.head_shards;
    const struct pool_piece *x = &l->world->tiles.pieces[a / shards];
    const struct pool_piece *y = &l->world->tiles.pieces[b / shards];
    if (descending) {
        return x->pairs > y->pairs || (x->pairs == y->pairs && a < b);
    }
    if (x->document_rows != y->document_rows) {
        return x->document_rows > y->document_rows;
    }
    if (x->sequence != y->sequence || x->document != y->document) {
        return x->sequence < y->sequence ||
               (x->sequence == y->sequence && x->document < y->document);
    }
    return a % shards < b % shards || (a % shards == b % shards && x->row > y->row);
}

static void literal_order(const struct literal *l, bool descending, uint32_t *order,
                          uint32_t tiles) {
    for (uint32_t i = 0; i < tiles; i++) {
        uint32_t at = i;
        for (; at > 0 && literal_before(l, descending, i, order[at - 1]); at--) {
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
}

void pool_literal_place(const struct pool_world *world, const struct pool_method *method,
                        uint32_t *workers, uint64_t *loads) {
    struct literal l = {.world = world, .method = method, .workers = workers, .loads = loads};
    uint32_t tiles = pool_tile_count(&world->pool.shape, &world->tiles);
    uint32_t *order = allocate(tiles, sizeof *order);
    memset(workers, 0xff, tiles * sizeof *workers);
    memset(loads, 0, pool_workers(&world->pool.shape) * sizeof *loads);
    execution_init(&l.e, world);
    literal_order(&l, true, order, tiles);
    for (uint32_t i = 0; method->coarse_first && i < tiles; i++) {
        if (2 * literal_load(&l, order[i]) > pool_capacity(&world->pool.shape, &world->tiles)) {
            literal_choose(&l, order[i]);
        }
    }
    literal_order(&l, false, order, tiles);
    for (uint32_t i = 0; method->home_first && i < tiles; i++) {
        uint32_t home = world->tiles.pieces[order[i] / world->pool.shape.head_shards].home;
        if (workers[order[i]] == POOL_NONE && literal_fits(&l, order[i], home)) {
            literal_put(&l, order[i], home);
        }
    }
    literal_order(&l, method->descending, order, tiles);
    for (uint32_t i = 0; i < tiles; i++) {
        if (workers[order[i]] == POOL_NONE) {
            literal_choose(&l, order[i]);
        }
    }
    execution_deinit(&l.e);
    free(order);
}
