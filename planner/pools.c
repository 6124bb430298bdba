/* pools: groups of replicas that share the attention of their micro-batches (Libra).
 *
 * Micro-batches are grouped by the sum of their documents' squared lengths (packer/pools), so that
 * pools are alike; rows stay in contiguous shards and their attention is cut into tiles and placed
 * over all workers of the pool (sharding/pool_*). Documents and micro-batches are not changed by
 * it. As elsewhere in compose.c there are two passes: the first decides, and counts what the plan
 * has to hold; the second writes, from the workers that the first one chose. */
#include "planner/step.h"

#include "packer/order.h"
#include "packer/pools.h"
#include "sharding/pool_cost.h"
#include "sharding/pool_plan.h"

#include <assert.h>
#include <string.h>

#define ELEMENT_BYTES 2u /* bf16 */

struct pools_memory {
    struct pool_shape shape;
    uint32_t count;          /* pools of a step */
    uint64_t *works;         /* by micro-batch */
    uint64_t *loads;         /* by pool, then by worker of the pool in hand */
    struct pool_link *links; /* by worker */
    struct pool_outcome *outcomes;
    struct pool_piece *pieces; /* of the pool in hand, as the next four */
    struct pool_span *spans;
    struct pool_sequence *sequences;
    void *place_scratch;
    void *cost_scratch;
    uint64_t *worker_ps; /* by worker */
    struct pool_run *runs;
    uint32_t *members; /* micro-batches by pool */
    uint32_t *group_scratch;
    uint32_t *tile_workers; /* of all pools, one behind the other */
};

struct pool_shape plan_pool_shape(const struct plan_options *options) {
    uint32_t kv_heads = options->model.kv_heads;
    return (struct pool_shape){
        .sequences = options->pools.size,
        .ranks = options->cp,
        .block_rows = options->pools.block_tokens,
        .head_shards = options->pools.head_shards,
        .q_heads = options->model.q_heads / options->tp,
        .kv_heads = kv_heads < options->tp ? 1 : kv_heads / options->tp,
        .head_dim = options->model.head_dim,
        .element_bytes = ELEMENT_BYTES,
    };
}

/* Every sequence is cut at its blocks and at its ranks' borders. */
uint32_t plan_pool_pieces(const struct plan_options *options) {
    uint64_t blocks = options->tokens_max / options->pools.block_tokens + 1 + options->cp;
    uint64_t pieces = options->pools.size * blocks;
    return pieces < UINT32_MAX ? (uint32_t)pieces : UINT32_MAX;
}

/* An array of `count` at the running offset `at`. */
static void *pools_array(void *memory, size_t *at, size_t count, size_t item_bytes) {
    const size_t alignment = _Alignof(max_align_t);
    size_t begin = (*at + alignment - 1) / alignment * alignment;
    *at = begin + count * item_bytes;
    return memory != NULL ? (uint8_t *)memory + begin : NULL;
}

static size_t pools_lay_out(struct pools_memory *p, const struct plan_options *options,
                            uint32_t parts_max, void *memory) {
    uint32_t micro_batches = options->micro_batches;
    uint32_t workers = pool_workers(&p->shape);
    uint32_t pieces = plan_pool_pieces(options);
    struct pool_tiles tiles = {.piece_count = pieces, .span_count = pieces};
    size_t all_tiles = (size_t)pieces * p->shape.head_shards * p->count;
    size_t loads = p->count > workers ? p->count : workers;
    size_t cost_bytes = pool_cost_bytes(&p->shape, parts_max, pieces);
    size_t at = sizeof *p;
    p->works = pools_array(memory, &at, micro_batches, sizeof *p->works);
    p->loads = pools_array(memory, &at, loads, sizeof *p->loads);
    p->links = pools_array(memory, &at, workers, sizeof *p->links);
    p->outcomes = pools_array(memory, &at, p->count, sizeof *p->outcomes);
    p->pieces = pools_array(memory, &at, pieces, sizeof *p->pieces);
    p->spans = pools_array(memory, &at, pieces, sizeof *p->spans);
    p->sequences = pools_array(memory, &at, p->shape.sequences, sizeof *p->sequences);
    p->place_scratch = pools_array(memory, &at, pool_plan_bytes(&p->shape, &tiles), 1);
    p->cost_scratch = pools_array(memory, &at, cost_bytes, 1);
    p->worker_ps = pools_array(memory, &at, workers, sizeof *p->worker_ps);
    p->runs = pools_array(memory, &at, workers, sizeof *p->runs);
    p->members = pools_array(memory, &at, micro_batches, sizeof *p->members);
    p->group_scratch = pools_array(memory, &at, pools_bytes(micro_batches), 1);
    p->tile_workers = pools_array(memory, &at, all_tiles, sizeof *p->tile_workers);
    return at;
}

static struct pools_memory pools_memory_of(const struct plan_options *options) {
    return (struct pools_memory){
        .shape = plan_pool_shape(options),
        .count = options->micro_batches / options->pools.size,
    };
}

size_t pools_memory_bytes(const struct plan_options *options, uint32_t parts_max) {
    struct pools_memory pools = pools_memory_of(options);
    return pools_lay_out(&pools, options, parts_max, NULL);
}

void pools_memory_init(struct pools_memory *pools, const struct plan_options *options,
                       uint32_t parts_max) {
    *pools = pools_memory_of(options);
    (void)pools_lay_out(pools, options, parts_max, pools);
}

/* Pieces of one part are in their order already, which a sort by ties keeps. */
void pools_order_rows(struct planner *planner) {
    for (uint32_t m = 0; m < planner->options.micro_batches; m++) {
        uint32_t begin = planner->row_begins[m];
        uint32_t count = planner->row_begins[m + 1] - begin;
        for (uint32_t i = 0; i < count; i++) {
            const struct document *document = &planner->rows[begin + i].document;
            planner->keys[i] = UINT64_MAX - document->stream_index;
            planner->order[i] = i;
        }
        order_by_work(planner->keys, planner->order, count);
        for (uint32_t i = 0; i < count; i++) {
            planner->ordered_rows[i] = planner->rows[begin + planner->order[i]];
        }
        memcpy(planner->rows + begin, planner->ordered_rows, count * sizeof *planner->rows);
    }
}

/* Position ga * dp + replica becomes slot replica * (N / dp) + ga. */
void pools_deal(struct planner *planner) {
    struct pools_memory *p = planner->pools;
    const struct plan_options *options = &planner->options;
    uint32_t share = options->micro_batches / options->dp;
    struct pools_input input = {p->works, options->micro_batches, options->pools.size};
    for (uint32_t m = 0; m < options->micro_batches; m++) {
        p->works[m] = 0;
        for (uint32_t row = planner->row_begins[m]; row < planner->row_begins[m + 1]; row++) {
            uint64_t length = planner->rows[row].document.length;
            p->works[m] += length * length;
        }
    }
    pools_vrsp(&input, p->group_scratch, p->members, p->loads);
    if (options->pools.swaps) {
        (void)pools_swap(&input, POOL_SWAPS_MAX, p->members, p->loads);
    }
    pools_emit(&input, options->dp, options->pools.snake, p->members, p->loads, p->group_scratch,
               planner->slots);
    for (uint32_t m = 0; m < options->micro_batches; m++) {
        uint32_t position = planner->slots[m];
        planner->slots[m] = position % options->dp * share + position / options->dp;
        planner->bin_order[planner->slots[m]] = m;
    }
}

/* The micro-batch of sequence `i` of pool `k`; pools are by (index, replica). */
static uint32_t pools_micro_batch(const struct planner *planner, uint32_t k, uint32_t i) {
    const struct plan_options *options = &planner->options;
    uint32_t row = options->dp / options->pools.size;
    uint32_t share = options->micro_batches / options->dp;
    uint32_t replica = k % row * options->pools.size + i;
    return planner->bin_order[replica * share + k / row];
}

static struct pool pools_pool(const struct planner *planner, uint32_t k) {
    struct pools_memory *p = planner->pools;
    struct pool_run *runs = p->runs;
    for (uint32_t i = 0; i < p->shape.sequences; i++) {
        uint32_t m = pools_micro_batch(planner, k, i);
        struct packed_sequence packed = compose_sequence(planner, m);
        p->sequences[i] = (struct pool_sequence){
            .lengths = packed.lengths,
            .documents = packed.documents,
            .runs = runs,
            .run_count = pool_home_contiguous(&p->shape, i,
                                              (uint32_t)(packed.tokens + packed.pad_tokens),
                                              (uint32_t)packed.tokens, runs),
        };
        runs += p->shape.ranks;
    }
    return (struct pool){p->shape, p->sequences};
}

/* What each worker's own tiles take. */
static void pools_price(struct planner *planner, uint32_t k, const struct pool *pool,
                        const struct pool_tiles *tiles, const uint32_t *workers) {
    const struct pools_memory *p = planner->pools;
    uint32_t ranks = p->shape.ranks;
    pool_cost(pool, tiles, workers, &planner->model.tiles, p->cost_scratch, p->worker_ps);
    for (uint32_t i = 0; i < p->shape.sequences; i++) {
        uint32_t m = pools_micro_batch(planner, k, i);
        uint64_t *rank_ps = planner->rank_ps + (size_t)m * ranks;
        struct layout_candidate *candidate = &planner->choices[m].candidates[0];
        candidate->slowest_ps = 0;
        for (uint32_t rank = 0; rank < ranks; rank++) {
            rank_ps[rank] = p->worker_ps[i * ranks + rank];
            candidate->slowest_ps = rank_ps[rank] > candidate->slowest_ps ? rank_ps[rank]
                                                                          : candidate->slowest_ps;
        }
    }
}

void pools_place(struct planner *planner, struct plan_counts *counts) {
    struct pools_memory *p = planner->pools;
    uint64_t transfers = 0;
    counts->pools = p->count;
    for (uint32_t k = 0; k < p->count; k++) {
        struct pool pool = pools_pool(planner, k);
        struct pool_tiles tiles;
        pool_cut(&pool, p->pieces, p->spans, &tiles);
        assert(tiles.piece_count <= plan_pool_pieces(&planner->options));
        uint32_t *workers = p->tile_workers + counts->tiles;
        pool_plan(&pool, &tiles, planner->options.pools.chain, p->place_scratch, workers, p->loads,
                  p->links, &p->outcomes[k]);
        pools_price(planner, k, &pool, &tiles, workers);
        counts->pieces += tiles.piece_count;
        counts->tiles += pool_tile_count(&p->shape, &tiles);
        transfers += p->outcomes[k].transfers;
    }
    assert(transfers <= UINT32_MAX);
    counts->transfers = (uint32_t)transfers;
}

static uint32_t pools_fill_one(struct planner *planner, struct step_plan *plan, uint32_t k,
                               struct plan_pool *out) {
    struct pools_memory *p = planner->pools;
    const struct pool_exchange_options options = {.prefix = true,
                                                  .chain = planner->options.pools.chain};
    struct pool pool = pools_pool(planner, k);
    struct pool_tiles tiles;
    pool_cut(&pool, plan->pieces + out->piece_begin, p->spans, &tiles);
    out->piece_count = tiles.piece_count;
    out->transfer_count = (uint32_t)pool_exchange(
        &pool, &tiles, plan->tile_workers + (size_t)out->piece_begin * p->shape.head_shards,
        &options, p->place_scratch, plan->transfers + out->transfer_begin,
        plan->transfer_count - out->transfer_begin, p->links);
    return tiles.piece_count;
}

void pools_fill(struct planner *planner, struct step_plan *plan) {
    const struct pools_memory *p = planner->pools;
    const struct plan_options *options = &planner->options;
    uint32_t row = options->dp / options->pools.size;
    uint32_t pieces = 0;
    uint32_t transfers = 0;
    plan->pool_shape = p->shape;
    memcpy(plan->tile_workers, p->tile_workers,
           (size_t)plan->piece_count * p->shape.head_shards * sizeof *plan->tile_workers);
    for (uint32_t k = 0; k < p->count; k++) {
        struct plan_pool *out = &plan->pools[k];
        *out = (struct plan_pool){
            .ga_index = k / row,
            .dp_begin = k % row * options->pools.size,
            .piece_begin = pieces,
            .transfer_begin = transfers,
            .load_max = p->outcomes[k].load_max,
            .load_mean = p->outcomes[k].load_sum / pool_workers(&p->shape),
        };
        pieces += pools_fill_one(planner, plan, k, out);
        transfers += out->transfer_count;
    }
    assert(pieces == plan->piece_count && transfers == plan->transfer_count);
}
