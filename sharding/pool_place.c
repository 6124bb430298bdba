/* pool_place: see pool_place.h. */
#include "sharding/pool_place.h"

#include <assert.h>
#include <string.h>

#define DIGIT_BITS 11u
#define DIGITS     (1u << DIGIT_BITS)

const struct pool_method pool_algorithm_2_literal = {.descending = true, .literal = true};
const struct pool_method pool_algorithm_2 = {.descending = true, .prefix = true};
const struct pool_method pool_home_first = {.home_first = true, .prefix = true};
const struct pool_method pool_coarse_first = {
    .home_first = true, .coarse_first = true, .descending = true, .prefix = true};

struct pool_key {
    uint64_t value;
    uint32_t piece;
};

struct pool_placing {
    const struct pool *pool;
    const struct pool_tiles *tiles;
    struct pool_method method;
    uint32_t workers_count;
    uint32_t ranges;
    uint64_t capacity;
    uint64_t *loads;
    uint32_t *workers;
    struct pool_key *keys;
    struct pool_key *spare;
    uint32_t *held; /* keys that a worker has, from 0: [(span * ranges + range) * workers + w] */
    uint32_t *rows; /* of K/V that the tile in hand adds, by worker */
};

uint64_t pool_capacity(const struct pool_shape *shape, const struct pool_tiles *tiles) {
    unsigned __int128 sum = (unsigned __int128)tiles->pairs * shape->q_heads;
    return (uint64_t)(sum * (100 + POOL_TOLERANCE_PERCENT) / 100 / pool_workers(shape));
}

static size_t pool_held_count(const struct pool_shape *shape, const struct pool_tiles *tiles) {
    return (size_t)tiles->span_count * pool_ranges(shape) * pool_workers(shape);
}

size_t pool_place_bytes(const struct pool_shape *shape, const struct pool_tiles *tiles) {
    return 2 * sizeof(struct pool_key) * (size_t)tiles->piece_count +
           sizeof(uint32_t) * (pool_held_count(shape, tiles) + pool_workers(shape));
}

/* Ascending by value, stable: radix passes over the digits in which values differ. */
static void pool_sort(struct pool_placing *p) {
    uint32_t count = p->tiles->piece_count;
    uint64_t differ = 0;
    for (uint32_t i = 1; i < count; i++) {
        differ |= p->keys[i].value ^ p->keys[0].value;
    }
    for (unsigned shift = 0; shift < 64; shift += DIGIT_BITS) {
        if ((differ >> shift & (DIGITS - 1)) == 0) {
            continue;
        }
        uint32_t starts[DIGITS] = {0};
        for (uint32_t i = 0; i < count; i++) {
            starts[p->keys[i].value >> shift & (DIGITS - 1)]++;
        }
        uint32_t start = 0;
        for (uint32_t digit = 0; digit < DIGITS; digit++) {
            uint32_t here = starts[digit];
            starts[digit] = start;
            start += here;
        }
        for (uint32_t i = 0; i < count; i++) {
            p->spare[starts[p->keys[i].value >> shift & (DIGITS - 1)]++] = p->keys[i];
        }
        struct pool_key *sorted = p->spare;
        p->spare = p->keys;
        p->keys = sorted;
    }
}

static uint64_t pool_load(const struct pool_placing *p, const struct pool_piece *piece) {
    return piece->pairs * pool_shard_heads(&p->pool->shape);
}

static uint32_t *pool_held(const struct pool_placing *p, uint32_t span, uint32_t shard) {
    size_t group = (size_t)span * p->ranges + pool_range_of(&p->pool->shape, shard);
    return p->held + group * p->workers_count;
}

static uint32_t pool_wanted(const struct pool_placing *p, uint32_t span, uint32_t end) {
    return p->method.prefix ? end : p->tiles->spans[span].length;
}

/* Adds to p->rows the keys [held, wanted) of a span; of those that live at a worker none. */
static void pool_count_span(const struct pool_placing *p, uint32_t span, uint32_t end,
                            uint32_t shard) {
    const uint32_t *held = pool_held(p, span, shard);
    uint32_t wanted = pool_wanted(p, span, end);
    for (uint32_t w = 0; w < p->workers_count; w++) {
        p->rows[w] += wanted > held[w] ? wanted - held[w] : 0;
    }
    if (p->method.literal) {
        return;
    }
    const struct pool_span *document = &p->tiles->spans[span];
    const struct pool_run *run = &p->pool->sequences[document->sequence].runs[document->run];
    for (uint32_t row = document->row; row < document->row + wanted; run++) {
        uint32_t run_end = run->row + run->rows - document->row;
        uint32_t local_end = run_end < wanted ? run_end : wanted;
        uint32_t start = row - document->row;
        start = held[run->worker] > start ? held[run->worker] : start;
        p->rows[run->worker] -= local_end > start ? local_end - start : 0;
        row = run->row + run->rows;
    }
}

/* Documents that are the piece's own: fetched once for all shards of a range, and already at home
 * where they are. */
static void pool_count_inner(const struct pool_placing *p, uint32_t number, uint32_t shard) {
    const struct pool_shape *shape = &p->pool->shape;
    const struct pool_piece *piece = &p->tiles->pieces[number];
    for (uint32_t w = 0; w < p->workers_count; w++) {
        p->rows[w] = piece->inner_rows;
    }
    uint32_t shared = shape->head_shards / p->ranges;
    uint32_t first = shard / shared * shared;
    for (uint32_t other = first; other < shard; other++) {
        uint32_t worker = p->workers[number * shape->head_shards + other];
        if (worker != POOL_NONE) {
            p->rows[worker] = 0;
        }
    }
    if (!p->method.literal) {
        p->rows[piece->home] = 0;
    }
}

static void pool_count(const struct pool_placing *p, uint32_t number, uint32_t shard) {
    const struct pool_piece *piece = &p->tiles->pieces[number];
    pool_count_inner(p, number, shard);
    if (piece->lead != POOL_NONE) {
        pool_count_span(p, piece->lead, piece->lead_end, shard);
    }
    if (piece->tail != POOL_NONE) {
        pool_count_span(p, piece->tail, piece->tail_end, shard);
    }
}

static void pool_hold(const struct pool_placing *p, uint32_t span, uint32_t end, uint32_t shard,
                      uint32_t worker) {
    uint32_t *held = &pool_held(p, span, shard)[worker];
    uint32_t wanted = pool_wanted(p, span, end);
    *held = wanted > *held ? wanted : *held;
}

static void pool_put(const struct pool_placing *p, uint32_t number, uint32_t shard,
                     uint32_t worker) {
    const struct pool_piece *piece = &p->tiles->pieces[number];
    p->workers[number * p->pool->shape.head_shards + shard] = worker;
    p->loads[worker] += pool_load(p, piece);
    if (piece->lead != POOL_NONE) {
        pool_hold(p, piece->lead, piece->lead_end, shard, worker);
    }
    if (piece->tail != POOL_NONE) {
        pool_hold(p, piece->tail, piece->tail_end, shard, worker);
    }
}

/* What decides between two workers, in this order. */
struct pool_bid {
    bool over; /* beyond the capacity */
    uint64_t first;
    uint64_t second;
};

static bool pool_better(struct pool_bid a, struct pool_bid b) {
    if (a.over != b.over) {
        return b.over;
    }
    return a.first < b.first || (a.first == b.first && a.second < b.second);
}

static uint32_t pool_choose(const struct pool_placing *p, const struct pool_piece *piece) {
    uint64_t kv_row_bytes = pool_kv_row_bytes(&p->pool->shape);
    uint64_t q_bytes = 2 * piece->rows * pool_q_row_bytes(&p->pool->shape);
    uint64_t load = pool_load(p, piece);
    uint32_t best = POOL_NONE;
    struct pool_bid best_bid = {true, UINT64_MAX, UINT64_MAX};
    for (uint32_t w = 0; w < p->workers_count; w++) {
        uint64_t bytes = p->rows[w] * kv_row_bytes + (w != piece->home ? q_bytes : 0);
        bool over = p->loads[w] + load > p->capacity;
        struct pool_bid bid = {over, over ? p->loads[w] : bytes, over ? bytes : p->loads[w]};
        if (pool_better(bid, best_bid)) {
            best = w;
            best_bid = bid;
        }
    }
    return best;
}

static bool pool_same_document(const struct pool_piece *a, const struct pool_piece *b) {
    return a->sequence == b->sequence && a->document == b->document;
}

/* Pieces by document, last rows first, then the documents by length. */
static void pool_order_documents(struct pool_placing *p) {
    const struct pool_piece *pieces = p->tiles->pieces;
    uint32_t count = p->tiles->piece_count;
    for (uint32_t begin = 0; begin < count;) {
        uint32_t end = begin + 1;
        while (end < count && pool_same_document(&pieces[begin], &pieces[end])) {
            end++;
        }
        for (uint32_t i = begin; i < end; i++) {
            p->keys[i] = (struct pool_key){UINT64_MAX - pieces[begin].document_rows,
                                           begin + (end - 1 - i)};
        }
        begin = end;
    }
    pool_sort(p);
}

static void pool_stay(const struct pool_placing *p, uint32_t number, uint32_t shard) {
    const struct pool_piece *piece = &p->tiles->pieces[number];
    bool placed = p->workers[number * p->pool->shape.head_shards + shard] != POOL_NONE;
    if (!placed && p->loads[piece->home] + pool_load(p, piece) <= p->capacity) {
        pool_put(p, number, shard, piece->home);
    }
}

static void pool_move(const struct pool_placing *p, uint32_t number, uint32_t shard) {
    if (p->workers[number * p->pool->shape.head_shards + shard] == POOL_NONE) {
        pool_count(p, number, shard);
        pool_put(p, number, shard, pool_choose(p, &p->tiles->pieces[number]));
    }
}

/* Visits tiles by document, in each by shard, in each from the last block to the first. */
static void pool_visit(const struct pool_placing *p,
                       void (*visit)(const struct pool_placing *, uint32_t, uint32_t)) {
    const struct pool_piece *pieces = p->tiles->pieces;
    uint32_t count = p->tiles->piece_count;
    for (uint32_t begin = 0; begin < count;) {
        uint32_t end = begin + 1;
        while (end < count &&
               pool_same_document(&pieces[p->keys[begin].piece], &pieces[p->keys[end].piece])) {
            end++;
        }
        for (uint32_t shard = 0; shard < p->pool->shape.head_shards; shard++) {
            for (uint32_t i = begin; i < end; i++) {
                visit(p, p->keys[i].piece, shard);
            }
        }
        begin = end;
    }
}

/* Those of at least this load. */
static void pool_move_descending(struct pool_placing *p, uint64_t load_min) {
    for (uint32_t i = 0; i < p->tiles->piece_count; i++) {
        p->keys[i] = (struct pool_key){UINT64_MAX - p->tiles->pieces[i].pairs, i};
    }
    pool_sort(p);
    for (uint32_t i = 0; i < p->tiles->piece_count; i++) {
        if (pool_load(p, &p->tiles->pieces[p->keys[i].piece]) < load_min) {
            break;
        }
        for (uint32_t shard = 0; shard < p->pool->shape.head_shards; shard++) {
            pool_move(p, p->keys[i].piece, shard);
        }
    }
}

void pool_place(const struct pool *pool, const struct pool_tiles *tiles,
                const struct pool_method *method, void *scratch, uint32_t *workers,
                uint64_t *loads) {
    struct pool_placing placing = {
        .pool = pool,
        .tiles = tiles,
        .method = *method,
        .workers_count = pool_workers(&pool->shape),
        .ranges = pool_ranges(&pool->shape),
        .capacity = pool_capacity(&pool->shape, tiles),
        .loads = loads,
        .workers = workers,
        .keys = scratch,
    };
    placing.spare = placing.keys + tiles->piece_count;
    placing.held = (uint32_t *)(placing.spare + tiles->piece_count);
    placing.rows = placing.held + pool_held_count(&pool->shape, tiles);
    memset(placing.held, 0, pool_held_count(&pool->shape, tiles) * sizeof *placing.held);
    memset(loads, 0, placing.workers_count * sizeof *loads);
    memset(workers, 0xff, pool_tile_count(&pool->shape, tiles) * sizeof *workers);
    if (method->coarse_first) {
        pool_move_descending(&placing, placing.capacity / 2 + 1);
    }
    if (!method->descending || method->home_first) {
        pool_order_documents(&placing);
    }
    if (method->home_first) {
        pool_visit(&placing, pool_stay);
    }
    if (method->descending) {
        pool_move_descending(&placing, 0);
    } else {
        pool_visit(&placing, pool_move);
    }
}
