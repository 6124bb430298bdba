/* attention: what a tile takes, by a launch of many equal ones.
 *
 * With w equal tiles on every processor a launch takes launch + w * tile, so two numbers of tiles
 * give the launch, and then every cell its tile. Forward fragments may share K/V slices where
 * memory is short; backward ones may not: a key tile walks all fragments of its slice. */
#include "gpu_attn/ballast_attn.h"
#include "gpu_attn/error.h"
#include "gpu_attn/lists.h"
#include "gpu_attn/measure/measure.h"
#include "gpu_attn/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WAVES         4u
#define CAUSAL_WAVES  16u
#define PARTIAL_WAVES 64u
#define LAUNCH_TILES  8u /* a processor, in the launch that is compared with one of one tile */
#define Q_ROWS_MAX    (1u << 16)
#define KV_ROWS_MAX   (1u << 19)
#define COPIES_MAX    4096u

static const uint32_t q_lengths[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
static const uint32_t kv_lengths[] = {128,  256,   512,   1024,  2048,  4096,
                                      8192, 16384, 32768, 65536, 131072};
static const uint32_t quick_q_lengths[] = {1, 16, 64, 256, 1024, 4096};
static const uint32_t quick_kv_lengths[] = {128, 512, 2048, 8192, 32768};

struct bench {
    struct measure_device *device;
    struct measure_options *options;
    const struct profile_key *key;
    struct ballast_attn *attn;
    uint32_t processors;
    struct ballast_attn_plan plan;
    struct ballast_attn_call call;
    bool backward;
};

struct cell {
    uint32_t q, kv;
    bool causal; /* the last q of kv keys, each row up to its own */
    uint32_t fragments;
    uint32_t slices;
};

static uint32_t up(uint32_t length, uint32_t block) {
    return (length + block - 1) / block;
}

/* Tiles of one fragment, all K/V heads. */
static uint32_t fragment_tiles(const struct bench *bench, uint32_t q, uint32_t kv) {
    uint32_t tokens = (uint32_t)profile_tile_tokens(bench->key);
    return (uint32_t)bench->key->kv_heads * (bench->backward ? up(kv, ATTN_KEYS) : up(q, tokens));
}

static struct cell cell_of(const struct bench *bench, uint32_t q, uint32_t kv, uint32_t waves) {
    struct cell cell = {.q = q, .kv = kv};
    cell.fragments = up(waves * bench->processors, fragment_tiles(bench, q, kv));
    uint32_t room = Q_ROWS_MAX / q < COPIES_MAX ? Q_ROWS_MAX / q : COPIES_MAX;
    cell.fragments = cell.fragments < room ? cell.fragments : room;
    room = KV_ROWS_MAX / kv;
    cell.slices = cell.fragments < room ? cell.fragments : room;
    cell.fragments = bench->backward ? cell.slices : cell.fragments;
    return cell;
}

static uint32_t common_divisor(uint32_t a, uint32_t b) {
    return b == 0 ? a : common_divisor(b, a % b);
}

/* Tiles of several lengths: whole waves, where they fit, else so many that a part of one is
 * little. */
static struct cell causal_cell(const struct bench *bench, uint32_t q, uint32_t kv) {
    uint32_t tiles = fragment_tiles(bench, q, kv);
    uint32_t step = bench->processors / common_divisor(bench->processors, tiles);
    uint32_t whole = up(up(CAUSAL_WAVES * bench->processors, tiles), step) * step;
    struct cell most = cell_of(bench, q, kv, PARTIAL_WAVES);
    bool fits = whole <= Q_ROWS_MAX / q && whole <= COPIES_MAX &&
                (!bench->backward || whole <= KV_ROWS_MAX / kv);
    most.fragments = fits ? whole : most.fragments;
    most.slices = fits && whole < KV_ROWS_MAX / kv ? whole : most.slices;
    most.causal = true;
    return most;
}

/* Tiles that the busiest processor gets. */
static uint64_t cell_waves(const struct bench *bench, const struct cell *cell) {
    return up(cell->fragments * fragment_tiles(bench, cell->q, cell->kv), bench->processors);
}

static int cell_plan(struct bench *bench, const struct cell *cell, void **memory,
                     struct ballast_attn_error *error) {
    const struct ballast_attn_shape shape = {
        (uint32_t)bench->key->head_dim, (uint32_t)bench->key->q_heads,
        (uint32_t)bench->key->kv_heads, cell->fragments * cell->q, cell->slices * cell->kv};
    struct ballast_attn_fragment *fragments = calloc(cell->fragments, sizeof *fragments);
    for (uint32_t i = 0; fragments != NULL && i < cell->fragments; i++) {
        fragments[i] = (struct ballast_attn_fragment){
            .q_row = (int32_t)(i * cell->q),
            .q_length = (int32_t)cell->q,
            .kv_row = (int32_t)(i % cell->slices * cell->kv),
            .kv_length = (int32_t)cell->kv,
            .q_position = (int32_t)(cell->kv - cell->q),
            .head_count = (uint16_t)bench->key->q_heads,
            .flags = cell->causal ? 0 : BALLAST_ATTN_FULL,
        };
    }
    size_t bytes = fragments == NULL ? 0
                                     : ballast_attn_plan_bytes(&shape, fragments, cell->fragments);
    *memory = bytes > 0 ? malloc(bytes) : NULL;
    int result = fragments == NULL || (bytes > 0 && *memory == NULL)
                     ? attn_error(error, -ENOMEM, "out of memory for work lists")
                     : ballast_attn_plan_init(&bench->plan, &shape, fragments, cell->fragments,
                                              *memory, bytes, error);
    free(fragments);
    return result;
}

static int bench_launch(void *context, struct ballast_attn_error *error) {
    struct bench *bench = context;
    return bench->backward ? ballast_attn_backward(bench->attn, &bench->call, error)
                           : ballast_attn_forward(bench->attn, &bench->call, error);
}

static int cell_time(struct bench *bench, const struct cell *cell, struct measure_time *time,
                     struct ballast_attn_error *error) {
    void *memory = NULL;
    void *lists = NULL;
    int result = cell_plan(bench, cell, &memory, error);
    if (result == 0) {
        result = measure_device_alloc(bench->device, bench->plan.lists_bytes, "work lists", &lists,
                                      error);
    }
    if (result == 0) {
        result = measure_device_copy(bench->device, lists, bench->plan.lists,
                                     bench->plan.lists_bytes, error);
    }
    if (result == 0) {
        bench->call.plan = &bench->plan;
        bench->call.lists = lists;
        bench->call.workspace_bytes = ballast_attn_workspace_bytes(&bench->plan, bench->call.flags);
        result = measure_device_alloc(bench->device, bench->call.workspace_bytes, "a workspace",
                                      &bench->call.workspace, error);
    }
    if (result == 0) {
        result = measure_device_time(bench->device, bench_launch, bench, bench->options->runs, time,
                                     error);
        measure_device_free(bench->device, bench->call.workspace);
    }
    measure_device_free(bench->device, lists);
    free(memory);
    return result;
}

/* Of a launch that takes so long, what each of the waves takes. Never 0. */
static uint64_t wave_ps(uint64_t ps, uint64_t launch_ps, uint64_t waves) {
    uint64_t work_ps = ps > launch_ps ? ps - launch_ps : 1;
    return work_ps / waves > 0 ? work_ps / waves : 1;
}

static int causal_measure(struct bench *bench, struct profile_grid *grid, uint32_t i, uint32_t j,
                          struct ballast_attn_error *error) {
    uint32_t q = (uint32_t)grid->q.values[i], kv = (uint32_t)grid->kv.values[j];
    struct measure_time time;
    if (kv < q) {
        grid->causal.ps[i][j] = 0;
        return 0;
    }
    struct cell cell = causal_cell(bench, q, kv);
    int result = cell_time(bench, &cell, &time, error);
    if (result == 0) {
        grid->causal.ps[i][j] = wave_ps(time.ps, grid->launch_ps, cell_waves(bench, &cell));
    }
    return result;
}

static int cell_measure(struct bench *bench, struct profile_grid *grid, uint32_t i, uint32_t j,
                        struct ballast_attn_error *error) {
    struct cell cell = cell_of(bench, (uint32_t)grid->q.values[i], (uint32_t)grid->kv.values[j],
                               WAVES);
    struct measure_time time;
    int result = cell_time(bench, &cell, &time, error);
    if (result == 0) {
        uint64_t waves = cell_waves(bench, &cell);
        uint64_t spread = (time.high_ps - time.low_ps) * 1000 / time.ps;
        grid->ps_per_tile[i][j] = wave_ps(time.ps, grid->launch_ps, waves);
        grid->p10.ps[i][j] = wave_ps(time.low_ps, grid->launch_ps, waves);
        grid->p90.ps[i][j] = wave_ps(time.high_ps, grid->launch_ps, waves);
        if (spread > bench->options->spread_permille) {
            bench->options->spread_permille = (uint32_t)spread;
        }
    }
    return result;
}

/* One tile against LAUNCH_TILES a processor, of one block each or nearly. */
static int launch_measure(struct bench *bench, uint64_t *launch_ps,
                          struct ballast_attn_error *error) {
    uint32_t q = (uint32_t)profile_tile_tokens(bench->key);
    struct cell one = {.q = q, .kv = ATTN_KEYS, .fragments = 1, .slices = 1};
    struct cell many = cell_of(bench, q, ATTN_KEYS, LAUNCH_TILES);
    struct measure_time short_time, long_time;
    int result = cell_time(bench, &one, &short_time, error);
    result = result != 0 ? result : cell_time(bench, &many, &long_time, error);
    if (result == 0) {
        uint64_t waves = cell_waves(bench, &many) - cell_waves(bench, &one);
        uint64_t more_ps = long_time.ps > short_time.ps ? long_time.ps - short_time.ps : 0;
        uint64_t tile_ps = waves > 0 ? more_ps / waves : 0;
        *launch_ps = short_time.ps > tile_ps ? short_time.ps - tile_ps : 1;
    }
    return result;
}

static void axis(struct profile_list *list, const uint32_t *values, size_t count) {
    list->count = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        list->values[i] = values[i];
    }
}

static void axes(struct profile_grid *grid, bool quick) {
    if (quick) {
        axis(&grid->q, quick_q_lengths, sizeof quick_q_lengths / sizeof *quick_q_lengths);
        axis(&grid->kv, quick_kv_lengths, sizeof quick_kv_lengths / sizeof *quick_kv_lengths);
    } else {
        axis(&grid->q, q_lengths, sizeof q_lengths / sizeof *q_lengths);
        axis(&grid->kv, kv_lengths, sizeof kv_lengths / sizeof *kv_lengths);
    }
}

static int grid_measure(struct bench *bench, struct profile_grid *grid,
                        struct ballast_attn_error *error) {
    axes(grid, bench->options->quick);
    grid->causal.known = true;
    grid->p10.known = true;
    grid->p90.known = true;
    int result = launch_measure(bench, &grid->launch_ps, error);
    for (uint32_t i = 0; result == 0 && i < grid->q.count; i++) {
        for (uint32_t j = 0; result == 0 && j < grid->kv.count; j++) {
            result = cell_measure(bench, grid, i, j, error);
            result = result != 0 ? result : causal_measure(bench, grid, i, j, error);
        }
        measure_say(bench->options, "attention %s: %u of %u rows of lengths",
                    bench->backward ? "backward" : "forward", i + 1, grid->q.count);
    }
    return result;
}

static int bench_tensor(struct bench *bench, struct ballast_attn_tensor *tensor, uint32_t rows,
                        uint64_t heads, bool filled, struct ballast_attn_error *error) {
    size_t elements = (size_t)rows * heads * bench->key->head_dim;
    int result = measure_device_alloc(bench->device, elements * 2, "Q, K, V and their gradients",
                                      &tensor->data, error);
    tensor->row_stride = (int64_t)(heads * bench->key->head_dim);
    tensor->head_stride = (int64_t)bench->key->head_dim;
    return result == 0 && filled
               ? measure_device_fill(bench->device, tensor->data, elements * 2, error)
               : result;
}

static int bench_open(struct bench *bench, struct ballast_attn_error *error) {
    struct ballast_attn_call *call = &bench->call;
    const struct profile_key *key = bench->key;
    struct ballast_attn_tensor *queries[] = {&call->q, &call->o, &call->d_o, &call->dq};
    struct ballast_attn_tensor *keys[] = {&call->k, &call->v, &call->dk, &call->dv};
    int result = ballast_attn_open(&bench->attn, error);
    for (int i = 0; result == 0 && i < 4; i++) {
        result = bench_tensor(bench, queries[i], Q_ROWS_MAX, key->q_heads, i % 2 == 0, error);
        if (result == 0) {
            result = bench_tensor(bench, keys[i], KV_ROWS_MAX, key->kv_heads, i < 2, error);
        }
    }
    if (result == 0) {
        result = measure_device_alloc(bench->device,
                                      (size_t)Q_ROWS_MAX * key->q_heads * sizeof(float),
                                      "statistics", (void **)&call->lse, error);
    }
    call->sm_margin = (uint32_t)key->sm_margin;
    call->flags = key->deterministic ? BALLAST_ATTN_DETERMINISTIC : 0;
    return result;
}

static void bench_close(struct bench *bench) {
    const struct ballast_attn_call *c = &bench->call;
    void *all[] = {c->q.data,  c->k.data,  c->v.data,  c->o.data, c->d_o.data,
                   c->dq.data, c->dk.data, c->dv.data, c->lse};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        measure_device_free(bench->device, all[i]);
    }
    ballast_attn_close(bench->attn);
}

int measure_attention(struct measure_device *device, struct measure_options *options,
                      struct profile *profile, struct ballast_attn_error *error) {
    struct bench bench = {
        .device = device,
        .options = options,
        .key = &profile->key,
        .processors = device->sms - (uint32_t)profile->key.sm_margin,
    };
    int result = bench_open(&bench, error);
    result = result != 0 ? result : grid_measure(&bench, &profile->fwd, error);
    bench.backward = true;
    result = result != 0 ? result : grid_measure(&bench, &profile->bwd, error);
    bench_close(&bench);
    return result;
}
