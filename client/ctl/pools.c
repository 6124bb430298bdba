/* pools: see pools.h. */
#include "client/ctl/pools.h"

#include "client/ctl/pools_windows.h"
#include "client/ctl/progress.h"
#include "packer/pools.h"
#include "sharding/pool_schedule.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PPM            1000000u
#define TILES_MAX      (1u << 24)
#define SWAPS_MAX      256u
#define SEARCH_SHARDS  16u /* most head shards that --search tries */
#define SEARCH_BLOCKS  4u  /* block sizes that --search tries, halving */
#define ELEMENT_BYTES  2u
#define DEFAULT_CHUNKS 4u
#define PROPOSE_WITHIN 10000u /* ppm of cost that fewer bytes are worth */

typedef unsigned __int128 u128;

/* Sums over the steps and pools of one candidate. */
struct sums {
    uint64_t steps;
    uint64_t pools;
    uint64_t inter_before_ppm;
    uint64_t inter_after_ppm;
    uint64_t bound_ppm;
    uint64_t straggler_ppm;
    uint64_t intra_ppm;
    uint64_t moved_ppm;
    uint64_t tile_ppm;
    uint64_t tiles;
    uint64_t plan_ns;
    uint64_t compute_ns;
    uint64_t exposed_ns;
    u128 q_bytes; /* of all workers, as the next two */
    u128 kv_bytes;
    u128 o_bytes;
    u128 bytes_in_max;
    u128 bytes_out_max;
};

struct pools_run {
    const struct pools_request *options;
    const struct plan_options *plan;
    struct pools_windows windows;
    struct pool_shape shape; /* of the candidate in hand */
    uint32_t replicas;
    uint32_t *members;
    uint32_t *positions;
    uint32_t *scratch;
    uint64_t *loads;
    struct pools_row *row;
    struct sums sums;
};

/* Memory of one pool. */
struct pooled {
    struct pool pool;
    struct pool_tiles tiles;
    struct pool_sequence *sequences;
    struct pool_run *runs;
    uint32_t *workers;
    uint64_t *loads;
    struct pool_link *links;
    void *scratch;
};

/* max / mean - 1, where mean is sum / count. */
static uint64_t over_mean_ppm(uint64_t max, uint64_t sum, uint64_t count) {
    if (sum == 0) {
        return 0;
    }
    uint64_t ratio = (uint64_t)((u128)max * count * PPM / sum);
    return ratio > PPM ? ratio - PPM : 0;
}

static uint64_t sum_of(const uint64_t *values, uint32_t count, uint64_t *max) {
    uint64_t sum = 0;
    *max = 0;
    for (uint32_t i = 0; i < count; i++) {
        sum += values[i];
        *max = values[i] > *max ? values[i] : *max;
    }
    return sum;
}

/* Neighbours in reading order grouped as they come. */
static uint64_t before_ppm(const uint64_t *works, uint32_t sequences, uint32_t size) {
    uint64_t max = 0;
    uint64_t sum = 0;
    for (uint32_t pool = 0; pool < sequences / size; pool++) {
        uint64_t ignored;
        uint64_t load = sum_of(works + (size_t)pool * size, size, &ignored);
        max = load > max ? load : max;
        sum += load;
    }
    return over_mean_ppm(max, sum, sequences / size);
}

/* Mean over gradient-accumulation indexes of the largest pool. */
static uint64_t straggler_ppm(struct pools_run *run, const struct pools_input *input) {
    uint32_t indexes = input->sequences / run->replicas;
    uint64_t ignored;
    uint64_t sum = sum_of(run->loads, input->sequences / input->pool_size, &ignored);
    uint64_t largest = 0;
    pools_emit(input, run->replicas, run->options->snake, run->members, run->loads, run->scratch,
               run->positions);
    for (uint32_t ga = 0; ga < indexes; ga++) {
        uint64_t max = 0;
        for (uint32_t pool = 0; pool < input->sequences / input->pool_size; pool++) {
            uint32_t first = run->members[(size_t)pool * input->pool_size];
            bool here = run->positions[first] / run->replicas == ga;
            max = here && run->loads[pool] > max ? run->loads[pool] : max;
        }
        largest += max;
    }
    uint64_t pools = input->sequences / input->pool_size;
    uint64_t ratio = sum > 0 ? (uint64_t)((u128)largest * pools * PPM / sum / indexes) : PPM;
    return ratio > PPM ? ratio - PPM : 0;
}

static void group(struct pools_run *run, const struct pools_input *input) {
    enum pools_placement placement = run->options->placement;
    bool vrsp = placement == POOLS_VRSP || placement == POOLS_VRSP_SWAP;
    (vrsp ? pools_vrsp : pools_zigzag)(input, run->scratch, run->members, run->loads);
    if (placement == POOLS_VRSP_SWAP || placement == POOLS_ZIGZAG_SWAP) {
        (void)pools_swap(input, SWAPS_MAX, run->members, run->loads);
    }
}

static void pooled_deinit(struct pooled *pooled) {
    free(pooled->scratch);
    free(pooled->links);
    free(pooled->loads);
    free(pooled->workers);
    free(pooled->tiles.spans);
    free(pooled->tiles.pieces);
    free(pooled->runs);
    free(pooled->sequences);
}

static void pooled_sequences(const struct pools_run *run, uint32_t first, const uint32_t *members,
                             struct pooled *pooled) {
    const struct pool_shape *shape = &run->shape;
    for (uint32_t i = 0; i < shape->sequences; i++) {
        uint32_t window = first + members[i];
        uint32_t begin = run->windows.begins[window];
        struct pool_sequence *sequence = &pooled->sequences[i];
        struct pool_run *runs = pooled->runs + (size_t)i * shape->ranks;
        sequence->lengths = run->windows.lengths + begin;
        sequence->documents = run->windows.begins[window + 1] - begin;
        uint32_t tokens = 0;
        for (uint32_t j = 0; j < sequence->documents; j++) {
            tokens += sequence->lengths[j];
        }
        sequence->runs = runs;
        sequence->run_count = pool_home_contiguous(shape, i, run->plan->window, tokens, runs);
    }
}

/* Windows members[0..P) behind the step's first one, cut into tiles. */
static bool pooled_init(const struct pools_run *run, uint32_t first, const uint32_t *members,
                        struct pooled *pooled) {
    const struct pool_shape *shape = &run->shape;
    uint32_t workers = pool_workers(shape);
    *pooled = (struct pooled){.pool.shape = *shape};
    pooled->sequences = calloc(shape->sequences, sizeof *pooled->sequences);
    pooled->runs = calloc(workers, sizeof *pooled->runs);
    pooled->loads = calloc(workers, sizeof *pooled->loads);
    pooled->links = calloc(workers, sizeof *pooled->links);
    if (pooled->sequences == NULL || pooled->runs == NULL || pooled->loads == NULL ||
        pooled->links == NULL) {
        return false;
    }
    pooled_sequences(run, first, members, pooled);
    pooled->pool.sequences = pooled->sequences;
    size_t most = pool_pieces_max(&pooled->pool);
    struct pool_piece *pieces = malloc((most + 1) * sizeof *pieces);
    struct pool_span *spans = malloc((most + 1) * sizeof *spans);
    pooled->tiles = (struct pool_tiles){.pieces = pieces, .spans = spans};
    if (pieces == NULL || spans == NULL) {
        return false;
    }
    pool_cut(&pooled->pool, pieces, spans, &pooled->tiles);
    pooled->workers = calloc((size_t)pool_tile_count(shape, &pooled->tiles) + 1,
                             sizeof *pooled->workers);
    pooled->scratch = malloc(pool_plan_bytes(shape, &pooled->tiles));
    return pooled->workers != NULL && pooled->scratch != NULL;
}

static void pooled_place(const struct pools_run *run, struct pooled *pooled,
                         struct pool_outcome *outcome) {
    static const struct pool_method *const methods[] = {
        [POOLS_BEST] = &pool_home_first, /* not used */
        [POOLS_HOME_FIRST] = &pool_home_first,
        [POOLS_COARSE_FIRST] = &pool_coarse_first,
        [POOLS_ALGORITHM_2] = &pool_algorithm_2_literal,
    };
    const struct pool_method *method = methods[run->options->tiles];
    const struct pool_exchange_options options = {method->prefix, run->options->chain};
    if (run->options->tiles == POOLS_BEST) {
        pool_plan(&pooled->pool, &pooled->tiles, run->options->chain, pooled->scratch,
                  pooled->workers, pooled->loads, pooled->links, outcome);
    } else {
        pool_place(&pooled->pool, &pooled->tiles, method, pooled->scratch, pooled->workers,
                   pooled->loads);
        pool_price(&pooled->pool, &pooled->tiles, pooled->workers, pooled->loads, &options,
                   pooled->scratch, pooled->links, outcome);
    }
}

/* Chunks that divide the query heads of a shard, at most as many as were asked for. */
static uint32_t chunks_of(const struct pools_run *run) {
    uint32_t heads = pool_shard_heads(&run->shape);
    uint32_t chunks = run->options->chunks > 0 ? run->options->chunks : DEFAULT_CHUNKS;
    chunks = chunks < heads ? chunks : heads;
    while (heads % chunks != 0) {
        chunks--;
    }
    return chunks;
}

static uint64_t link_ns(const struct pools_run *run, uint64_t in, uint64_t out) {
    uint64_t bytes = in > out ? in : out;
    return (uint64_t)((u128)bytes * 1000 / run->options->link_mbps);
}

/* The slowest worker of a pool, without and with its exchange. 4 * head_dim FLOPs a pair and head.
 */
static void sums_add_times(struct pools_run *run, const struct pooled *pooled) {
    uint64_t flops_per_ns = run->plan->model.gemm_flops_per_ns;
    uint32_t pieces = pool_kv_pieces(&run->shape, chunks_of(run));
    uint64_t slowest_ns = 0;
    uint64_t total_ns = 0;
    for (uint32_t w = 0; run->options->link_mbps > 0 && w < pool_workers(&run->shape); w++) {
        const struct pool_link *link = &pooled->links[w];
        struct pool_times times = {
            .q = link_ns(run, link->q_in, link->q_out),
            .kv = link_ns(run, link->kv_in, link->kv_out),
            .o = link_ns(run, link->o_in, link->o_out),
            .compute = (uint64_t)((u128)pooled->loads[w] * 4 * run->shape.head_dim / flops_per_ns),
            .hops = link->hops * run->plan->model.link_latency_ns +
                    link_ns(run, link->hop_bytes / pieces, 0),
        };
        struct pool_schedule schedule = pool_schedule_of(&run->shape, chunks_of(run), true, &times);
        slowest_ns = times.compute > slowest_ns ? times.compute : slowest_ns;
        total_ns = schedule.total > total_ns ? schedule.total : total_ns;
    }
    run->sums.compute_ns += slowest_ns;
    run->sums.exposed_ns += total_ns - slowest_ns;
}

static void sums_add(struct pools_run *run, const struct pooled *pooled,
                     const struct pool_outcome *outcome) {
    struct sums *sums = &run->sums;
    uint32_t workers = pool_workers(&run->shape);
    uint32_t tiles = pool_tile_count(&run->shape, &pooled->tiles);
    uint64_t intra_ppm = over_mean_ppm(outcome->load_max, outcome->load_sum, workers);
    uint64_t largest = 0;
    for (uint32_t i = 0; i < pooled->tiles.piece_count; i++) {
        uint64_t load = pooled->tiles.pieces[i].pairs * pool_shard_heads(&run->shape);
        largest = load > largest ? load : largest;
    }
    sums->pools++;
    sums->intra_ppm += intra_ppm;
    run->row->intra_max_ppm = intra_ppm > run->row->intra_max_ppm ? intra_ppm
                                                                  : run->row->intra_max_ppm;
    sums->tile_ppm += outcome->load_sum > 0
                          ? (uint64_t)((u128)largest * workers * PPM / outcome->load_sum)
                          : 0;
    sums->moved_ppm += tiles > 0 ? (uint64_t)outcome->tiles_moved * PPM / tiles : 0;
    sums->tiles += tiles;
    sums->bytes_in_max += outcome->bytes_in_max;
    sums->bytes_out_max += outcome->bytes_out_max;
    for (uint32_t w = 0; w < workers; w++) {
        sums->q_bytes += pooled->links[w].q_in;
        sums->kv_bytes += pooled->links[w].kv_in;
        sums->o_bytes += pooled->links[w].o_in;
    }
}

/* One global batch, from window `first` on; false: out of memory. */
static bool step_measure(struct pools_run *run, uint32_t first) {
    struct pools_input input = {
        .works = run->windows.works + first,
        .sequences = run->plan->micro_batches,
        .pool_size = run->shape.sequences,
    };
    uint32_t pools = input.sequences / input.pool_size;
    uint64_t start_ns = progress_clock_ns();
    group(run, &input);
    run->sums.plan_ns += progress_clock_ns() - start_ns;
    uint64_t max;
    uint64_t sum = sum_of(run->loads, pools, &max);
    run->sums.steps++;
    run->sums.inter_before_ppm += before_ppm(input.works, input.sequences, input.pool_size);
    run->sums.inter_after_ppm += over_mean_ppm(max, sum, pools);
    run->sums.bound_ppm += over_mean_ppm(pools_bound(&input, run->scratch), sum, pools);
    run->sums.straggler_ppm += straggler_ppm(run, &input);
    bool made = true;
    for (uint32_t pool = 0; made && pool < pools; pool++) {
        struct pooled pooled;
        struct pool_outcome outcome;
        made = pooled_init(run, first, run->members + (size_t)pool * input.pool_size, &pooled);
        if (made) {
            start_ns = progress_clock_ns();
            pooled_place(run, &pooled, &outcome);
            run->sums.plan_ns += progress_clock_ns() - start_ns;
            sums_add(run, &pooled, &outcome);
            sums_add_times(run, &pooled);
        }
        pooled_deinit(&pooled);
    }
    return made;
}

static void row_finish(struct pools_row *row, const struct sums *sums, uint32_t workers) {
    u128 received = (u128)sums->pools * workers;
    row->inter_before_ppm = sums->inter_before_ppm / sums->steps;
    row->inter_after_ppm = sums->inter_after_ppm / sums->steps;
    row->bound_ppm = sums->bound_ppm / sums->steps;
    row->straggler_ppm = sums->straggler_ppm / sums->steps;
    row->plan_ns = sums->plan_ns / sums->steps;
    row->compute_ns = sums->compute_ns / sums->pools;
    row->exposed_ns = sums->exposed_ns / sums->pools;
    row->intra_ppm = sums->intra_ppm / sums->pools;
    row->moved_ppm = sums->moved_ppm / sums->pools;
    row->tile_ppm = sums->tile_ppm / sums->pools;
    row->tiles = sums->tiles / sums->pools;
    row->q_bytes = (uint64_t)(sums->q_bytes / received);
    row->kv_bytes = (uint64_t)(sums->kv_bytes / received);
    row->o_bytes = (uint64_t)(sums->o_bytes / received);
    row->bytes_mean = (uint64_t)((sums->q_bytes + sums->kv_bytes + sums->o_bytes) / received);
    row->bytes_in_max = (uint64_t)(sums->bytes_in_max / sums->pools);
    row->bytes_out_max = (uint64_t)(sums->bytes_out_max / sums->pools);
}

static bool row_measure(struct pools_run *run, struct pools_row *row) {
    run->shape.sequences = row->p;
    run->shape.head_shards = row->h;
    run->shape.block_rows = row->b;
    run->row = row;
    run->sums = (struct sums){0};
    bool made = true;
    for (uint32_t first = 0; made && first < run->windows.count;
         first += run->plan->micro_batches) {
        made = step_measure(run, first);
    }
    if (made) {
        row->kv_pieces = pool_kv_pieces(&run->shape, chunks_of(run));
        row_finish(row, &run->sums, pool_workers(&run->shape));
    }
    return made;
}

/* What a list leaves open: one value, or with --search those to try. */
static void lists_fill(const struct pools_request *options, const struct plan_options *plan,
                       const struct pool_shape *shape, struct pools_list lists[3]) {
    uint32_t block = plan->window / 64 < 8192 ? plan->window / 64 : 8192;
    lists[0] = options->sizes;
    lists[1] = options->head_shards;
    lists[2] = options->blocks;
    for (uint32_t p = 1;
         lists[0].count < POOLS_LIST_MAX && options->sizes.count == 0 && p <= plan->dp; p *= 2) {
        lists[0].values[lists[0].count++] = p;
    }
    uint32_t shards = shape->kv_heads % 4 == 0 ? 4 : shape->kv_heads % 2 == 0 ? 2 : 1;
    for (uint32_t h = options->search ? 1 : shards;
         options->head_shards.count == 0 && h <= (options->search ? SEARCH_SHARDS : shards);
         h *= 2) {
        lists[1].values[lists[1].count++] = h;
    }
    for (uint32_t i = 0; options->blocks.count == 0 && i < (options->search ? SEARCH_BLOCKS : 1);
         i++) {
        uint32_t rows = (options->search ? 2 * block : block) >> i;
        lists[2].values[lists[2].count++] = rows > 0 ? rows : 1;
    }
}

static bool shards_fit(const struct pool_shape *shape, uint32_t shards) {
    return shape->q_heads % shards == 0 &&
           (shape->kv_heads % shards == 0 || shards % shape->kv_heads == 0);
}

/* Blocks of full windows, and a cut at every home's border. */
static bool tiles_fit(const struct pools_run *run, const struct pools_row *row) {
    uint64_t blocks = run->plan->window / row->b + UINT64_C(1) + run->plan->cp;
    return blocks * row->p * row->h <= TILES_MAX;
}

/* Rows of all candidates, by P, H, B; those that --search would only try are left out where they do
 * not fit. */
static int rows_list(const struct pools_run *run, struct pools_row *rows, size_t *count,
                     struct error *error) {
    struct pools_list lists[3];
    lists_fill(run->options, run->plan, &run->shape, lists);
    *count = 0;
    for (size_t i = 0; i < lists[0].count * lists[1].count * lists[2].count; i++) {
        struct pools_row row = {
            .p = lists[0].values[i / lists[2].count / lists[1].count],
            .h = lists[1].values[i / lists[2].count % lists[1].count],
            .b = lists[2].values[i % lists[2].count],
        };
        bool divides = run->replicas % row.p == 0 && shards_fit(&run->shape, row.h);
        bool fits = tiles_fit(run, &row);
        if (divides && fits && *count < POOLS_CANDIDATES_MAX) {
            rows[(*count)++] = row;
        } else if (!run->options->search && divides && !fits) {
            return error_set(error, -EINVAL,
                             "P %" PRIu32 ", H %" PRIu32 ", B %" PRIu32
                             ": a pool of over %u tiles takes too long to plan; set a larger "
                             "--block",
                             row.p, row.h, row.b, TILES_MAX);
        } else if (!run->options->search) {
            return error_set(error, -EINVAL,
                             "P %" PRIu32 ", H %" PRIu32 ": P must divide parallel.dp = %" PRIu32
                             ", H the %" PRIu32 " heads, and the %" PRIu32 " K/V heads or be a "
                             "multiple of them; set --dp, --head-shards or --heads",
                             row.p, row.h, run->replicas, run->shape.q_heads, run->shape.kv_heads);
        }
    }
    return *count > 0 ? 0 : error_set(error, -EINVAL, "--search finds no candidate that fits");
}

/* What a step's attention takes: with a link the time that it is waited for, else its imbalance. */
static uint64_t row_cost(const struct pools_row *row) {
    uint64_t worker = row->compute_ns > 0 ? row->compute_ns + row->exposed_ns
                                          : PPM + row->intra_ppm;
    return (uint64_t)((u128)(PPM + row->straggler_ppm) * worker / PPM);
}

static uint64_t row_link(const struct pools_row *row) {
    return row->bytes_in_max > row->bytes_out_max ? row->bytes_in_max : row->bytes_out_max;
}

/* Of those within 1 % of the least cost the one with the fewest bytes at its busiest worker. */
static void rows_propose(struct pools_row *rows, size_t count) {
    uint64_t least = UINT64_MAX;
    size_t best = count;
    for (size_t i = 0; i < count; i++) {
        uint64_t cost = row_cost(&rows[i]);
        least = cost < least ? cost : least;
    }
    for (size_t i = 0; i < count; i++) {
        bool near = row_cost(&rows[i]) <=
                    least + least / PPM * PROPOSE_WITHIN + least % PPM * PROPOSE_WITHIN / PPM;
        if (near && (best == count || row_link(&rows[i]) < row_link(&rows[best]))) {
            best = i;
        }
    }
    if (best < count) {
        rows[best].proposed = true;
    }
}

static struct pool_shape shape_of(const struct pools_request *options,
                                  const struct plan_options *plan) {
    uint32_t kv_heads = plan->model.kv_heads < plan->tp ? 1 : plan->model.kv_heads / plan->tp;
    bool given = options->q_heads > 0;
    return (struct pool_shape){
        .ranks = plan->cp,
        .q_heads = given ? options->q_heads : plan->model.q_heads / plan->tp,
        .kv_heads = given ? options->kv_heads : kv_heads,
        .head_dim = given ? options->head_dim : plan->model.head_dim,
        .element_bytes = ELEMENT_BYTES,
    };
}

/* A job that names no replicas has as many as its largest pool. */
static uint32_t replicas_of(const struct pools_request *options, const struct plan_options *plan) {
    uint32_t largest = 1;
    for (size_t i = 0; i < options->sizes.count; i++) {
        largest = options->sizes.values[i] > largest ? options->sizes.values[i] : largest;
    }
    return plan->dp > 1 ? plan->dp : largest;
}

static int run_rows(struct pools_run *run, struct pools_row *rows, size_t count,
                    struct error *error) {
    struct progress progress;
    progress_start(&progress, "pools");
    bool made = true;
    for (size_t i = 0; made && i < count; i++) {
        progress_count(&progress, "candidate", i + 1, count);
        made = row_measure(run, &rows[i]);
    }
    progress_end(&progress);
    return made ? 0
                : error_set(error, -ENOMEM, "no memory for pools of %" PRIu32 " replicas",
                            run->shape.sequences);
}

static int run_init(struct pools_run *run, const struct trial *trial, uint64_t steps,
                    struct error *error) {
    uint32_t sequences = run->plan->micro_batches;
    if (sequences % run->replicas != 0) {
        return error_set(error, -EINVAL,
                         "plan.micro_batches = %" PRIu32 " is not a multiple of %" PRIu32
                         " replicas; set --global-batch",
                         sequences, run->replicas);
    }
    run->members = malloc(sequences * sizeof *run->members);
    run->positions = malloc(sequences * sizeof *run->positions);
    run->loads = malloc(sequences * sizeof *run->loads);
    run->scratch = malloc(pools_bytes(sequences));
    if (run->members == NULL || run->positions == NULL || run->loads == NULL ||
        run->scratch == NULL) {
        return error_set(error, -ENOMEM, "no memory for %" PRIu32 " sequences", sequences);
    }
    return pools_windows_init(&run->windows, trial, steps, error);
}

int pools_measure(const struct pools_request *options, const struct trial *trial, uint64_t steps,
                  struct pools_row *rows, size_t *count, struct error *error) {
    const struct plan_options *plan = &trial->config->plan;
    struct pools_run run = {
        .options = options,
        .plan = plan,
        .shape = shape_of(options, plan),
        .replicas = replicas_of(options, plan),
    };
    int rc = run_init(&run, trial, steps, error);
    if (rc == 0) {
        rc = rows_list(&run, rows, count, error);
    }
    if (rc == 0) {
        rc = run_rows(&run, rows, *count, error);
    }
    if (rc == 0 && options->search) {
        rows_propose(rows, *count);
    }
    pools_windows_deinit(&run.windows);
    free(run.scratch);
    free(run.loads);
    free(run.positions);
    free(run.members);
    return rc;
}
