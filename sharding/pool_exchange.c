/* pool_exchange: see pool_exchange.h. What every worker needs of a span is found first, from the
 * placement alone. */
#include "sharding/pool_exchange.h"

#include <assert.h>
#include <string.h>

#define STATISTICS_BYTES 8u /* log-sum-exp and rowsum(dO * O), fp32 each */

struct pool_exchanging {
    const struct pool *pool;
    const struct pool_tiles *tiles;
    const uint32_t *workers;
    struct pool_exchange_options options;
    uint32_t worker_count;
    uint32_t ranges;
    struct pool_transfer *out;
    size_t capacity;
    size_t count;
    struct pool_link *links;
    uint32_t *needed; /* keys from 0: [(span * ranges + range) * worker_count + w] */
    uint32_t *chain;  /* workers that need a group */
};

static size_t pool_needed_count(const struct pool_shape *shape, const struct pool_tiles *tiles) {
    return (size_t)tiles->span_count * pool_ranges(shape) * pool_workers(shape);
}

size_t pool_exchange_bytes(const struct pool_shape *shape, const struct pool_tiles *tiles) {
    return sizeof(uint32_t) * (pool_needed_count(shape, tiles) + pool_workers(shape));
}

static void pool_emit(struct pool_exchanging *x, struct pool_transfer transfer) {
    struct pool_link *from = &x->links[transfer.source];
    struct pool_link *to = &x->links[transfer.worker];
    assert(transfer.source != transfer.worker && transfer.rows > 0);
    switch (transfer.payload) {
    case POOL_Q:
        from->q_out += transfer.bytes;
        to->q_in += transfer.bytes;
        break;
    case POOL_KV:
        from->kv_out += transfer.bytes;
        to->kv_in += transfer.bytes;
        break;
    case POOL_O:
        from->o_out += transfer.bytes;
        to->o_in += transfer.bytes;
        break;
    }
    if (x->count < x->capacity) {
        x->out[x->count] = transfer;
    }
    x->count++;
}

static void pool_emit_kv(struct pool_exchanging *x, uint32_t sequence, uint32_t range,
                         uint32_t source, uint32_t worker, uint32_t row, uint32_t rows) {
    uint32_t heads = pool_range_heads(&x->pool->shape);
    pool_emit(x, (struct pool_transfer){
                     .payload = POOL_KV,
                     .source = source,
                     .worker = worker,
                     .sequence = sequence,
                     .row = row,
                     .rows = rows,
                     .head_begin = range * heads,
                     .head_count = heads,
                     .bytes = rows * pool_kv_row_bytes(&x->pool->shape),
                 });
}

static void pool_need(struct pool_exchanging *x, uint32_t span, uint32_t end, uint32_t range,
                      uint32_t worker) {
    size_t group = (size_t)span * x->ranges + range;
    uint32_t *needed = &x->needed[group * x->worker_count + worker];
    uint32_t wanted = x->options.prefix ? end : x->tiles->spans[span].length;
    *needed = wanted > *needed ? wanted : *needed;
}

static void pool_needs(struct pool_exchanging *x) {
    const struct pool_shape *shape = &x->pool->shape;
    memset(x->needed, 0, pool_needed_count(shape, x->tiles) * sizeof *x->needed);
    for (uint32_t number = 0; number < x->tiles->piece_count; number++) {
        const struct pool_piece *piece = &x->tiles->pieces[number];
        for (uint32_t shard = 0; shard < shape->head_shards; shard++) {
            uint32_t worker = x->workers[number * shape->head_shards + shard];
            uint32_t range = pool_range_of(shape, shard);
            assert(worker < x->worker_count);
            if (piece->lead != POOL_NONE) {
                pool_need(x, piece->lead, piece->lead_end, range, worker);
            }
            if (piece->tail != POOL_NONE) {
                pool_need(x, piece->tail, piece->tail_end, range, worker);
            }
        }
    }
}

/* Q from home, or O to it. */
static void pool_exchange_rows(struct pool_exchanging *x, enum pool_payload payload) {
    const struct pool_shape *shape = &x->pool->shape;
    uint32_t heads = pool_shard_heads(shape);
    for (uint32_t tile = 0; tile < pool_tile_count(shape, x->tiles); tile++) {
        const struct pool_piece *piece = &x->tiles->pieces[tile / shape->head_shards];
        uint32_t away = x->workers[tile];
        if (away != piece->home) {
            pool_emit(x, (struct pool_transfer){
                             .payload = payload,
                             .source = payload == POOL_Q ? piece->home : away,
                             .worker = payload == POOL_Q ? away : piece->home,
                             .sequence = piece->sequence,
                             .row = piece->row,
                             .rows = piece->rows,
                             .head_begin = tile % shape->head_shards * heads,
                             .head_count = heads,
                             .bytes = piece->rows * pool_q_row_bytes(shape),
                         });
        }
    }
}

static bool pool_sent_before(const uint32_t *workers, uint32_t first, uint32_t shard) {
    for (uint32_t other = first; other < shard; other++) {
        if (workers[other] == workers[shard]) {
            return true;
        }
    }
    return false;
}

/* Documents that only this piece has are neighbours, and all of them are needed. */
static void pool_exchange_inner(struct pool_exchanging *x, uint32_t number) {
    const struct pool_shape *shape = &x->pool->shape;
    const struct pool_piece *piece = &x->tiles->pieces[number];
    const uint32_t *workers = &x->workers[(size_t)number * shape->head_shards];
    uint32_t shared = shape->head_shards / x->ranges;
    uint32_t behind = piece->tail != POOL_NONE ? piece->tail_end : 0;
    uint32_t row = piece->row + piece->rows - behind - piece->inner_rows;
    for (uint32_t shard = 0; piece->inner_rows > 0 && shard < shape->head_shards; shard++) {
        if (workers[shard] != piece->home &&
            !pool_sent_before(workers, shard / shared * shared, shard)) {
            pool_emit_kv(x, piece->sequence, shard / shared, piece->home, workers[shard], row,
                         piece->inner_rows);
        }
    }
}

/* Keys [0, needed) of a span that do not live at the worker: each from its home, or all from
 * `source`. */
static void pool_exchange_span(struct pool_exchanging *x, const struct pool_span *span,
                               uint32_t range, uint32_t source, uint32_t worker, uint32_t needed) {
    const struct pool_run *run = &x->pool->sequences[span->sequence].runs[span->run];
    uint32_t end = span->row + needed;
    for (uint32_t row = span->row; row < end; run++) {
        uint32_t run_end = run->row + run->rows < end ? run->row + run->rows : end;
        if (run->worker != worker) {
            pool_emit_kv(x, span->sequence, range, source == POOL_NONE ? run->worker : source,
                         worker, row, run_end - row);
        }
        row = run_end;
    }
}

/* Inserts a worker into the chain, which stays by (needed descending, worker ascending). */
static void pool_chain_insert(uint32_t *chain, uint32_t length, const uint32_t *needed,
                              uint32_t worker) {
    uint32_t at = length;
    for (; at > 0 && needed[chain[at - 1]] < needed[worker]; at--) {
        chain[at] = chain[at - 1];
    }
    chain[at] = worker;
}

static void pool_exchange_group(struct pool_exchanging *x, const struct pool_span *span,
                                uint32_t range, const uint32_t *needed) {
    uint32_t length = 0;
    for (uint32_t worker = 0; worker < x->worker_count; worker++) {
        if (needed[worker] == 0) {
            continue;
        }
        if (x->options.chain) {
            pool_chain_insert(x->chain, length++, needed, worker);
        } else {
            pool_exchange_span(x, span, range, POOL_NONE, worker, needed[worker]);
        }
    }
    uint64_t hops = 0;
    uint64_t before = 0; /* what the worker before got; one that got nothing has all itself */
    for (uint32_t i = 0; i < length; i++) {
        struct pool_link *link = &x->links[x->chain[i]];
        uint64_t had = link->kv_in;
        pool_exchange_span(x, span, range, i > 0 ? x->chain[i - 1] : POOL_NONE, x->chain[i],
                           needed[x->chain[i]]);
        hops = before > 0 ? hops + 1 : 0;
        before = link->kv_in - had;
        if (before > 0) {
            link->hops = hops > link->hops ? hops : link->hops;
            link->hop_bytes = hops * before > link->hop_bytes ? hops * before : link->hop_bytes;
        }
    }
}

static void pool_exchange_kv(struct pool_exchanging *x) {
    for (uint32_t number = 0; number < x->tiles->piece_count; number++) {
        pool_exchange_inner(x, number);
    }
    const uint32_t *needed = x->needed;
    for (uint32_t span = 0; span < x->tiles->span_count; span++) {
        for (uint32_t range = 0; range < x->ranges; range++) {
            pool_exchange_group(x, &x->tiles->spans[span], range, needed);
            needed += x->worker_count;
        }
    }
}

size_t pool_exchange(const struct pool *pool, const struct pool_tiles *tiles,
                     const uint32_t *workers, const struct pool_exchange_options *options,
                     void *scratch, struct pool_transfer *out, size_t capacity,
                     struct pool_link *links) {
    struct pool_exchanging exchanging = {
        .pool = pool,
        .tiles = tiles,
        .workers = workers,
        .options = *options,
        .worker_count = pool_workers(&pool->shape),
        .ranges = pool_ranges(&pool->shape),
        .out = out,
        .capacity = capacity,
        .links = links,
        .needed = scratch,
    };
    exchanging.chain = exchanging.needed + pool_needed_count(&pool->shape, tiles);
    memset(links, 0, exchanging.worker_count * sizeof *links);
    pool_needs(&exchanging);
    pool_exchange_rows(&exchanging, POOL_Q);
    pool_exchange_kv(&exchanging);
    pool_exchange_rows(&exchanging, POOL_O);
    return exchanging.count;
}

void pool_counts(const struct pool_transfer *transfers, size_t count, enum pool_payload payload,
                 uint32_t workers, uint64_t *counts) {
    memset(counts, 0, (size_t)workers * workers * sizeof *counts);
    for (size_t i = 0; i < count; i++) {
        const struct pool_transfer *transfer = &transfers[i];
        if (transfer->payload == payload) {
            counts[(size_t)transfer->source * workers + transfer->worker] +=
                (uint64_t)transfer->rows * transfer->head_count;
        }
    }
}

struct pool_link pool_backward(const struct pool_shape *shape, const struct pool_link *forward,
                               uint32_t gradient_bytes) {
    uint64_t row_bytes = (uint64_t)shape->head_dim * shape->element_bytes;
    return (struct pool_link){
        .q_in = 2 * forward->q_in + forward->q_in / row_bytes * STATISTICS_BYTES,
        .q_out = 2 * forward->q_out + forward->q_out / row_bytes * STATISTICS_BYTES,
        .kv_in = forward->kv_in + forward->kv_out / shape->element_bytes * gradient_bytes,
        .kv_out = forward->kv_out + forward->kv_in / shape->element_bytes * gradient_bytes,
        .o_in = forward->o_in,
        .o_out = forward->o_out,
        .hops = forward->hops,
        .hop_bytes = forward->hop_bytes,
    };
}
