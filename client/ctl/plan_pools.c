/* plan_pools: see plan_pools.h. */
#include "client/ctl/plan_pools.h"

#include "client/ctl/table.h"
#include "client/ctl/units.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BAR_WIDTH 10u
#define PPM       1000000u

struct worker {
    uint64_t load; /* pairs * query heads */
    uint64_t in;   /* bytes */
    uint64_t out;
};

/* What a pool comes to, with all its workers. */
struct pool_view {
    const Ballast__V1__Pool *pool;
    struct worker *workers;
    uint32_t count;
    uint32_t moved; /* tiles */
    uint64_t bytes; /* of all workers */
    struct worker most;
};

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Workers are numbered without gap; what a newer daemon might send beyond is left out. */
static bool pool_view_init(struct pool_view *view, const Ballast__V1__Pool *pool, size_t ranks) {
    *view = (struct pool_view){.pool = pool, .count = (uint32_t)(pool->n_dp * ranks)};
    view->workers = calloc(view->count > 0 ? view->count : 1, sizeof *view->workers);
    if (view->workers == NULL) {
        return false;
    }
    uint32_t heads = pool->head_shards > 0 ? pool->heads / pool->head_shards : 0;
    for (size_t i = 0; i < pool->n_tiles; i++) {
        const Ballast__V1__Tile *tile = pool->tiles[i];
        if (tile->worker < view->count) {
            view->workers[tile->worker].load += tile->pairs * heads;
        }
        view->moved += tile->worker != tile->home;
    }
    for (size_t i = 0; i < pool->n_transfers; i++) {
        const Ballast__V1__Transfer *transfer = pool->transfers[i];
        if (transfer->worker < view->count && transfer->source < view->count) {
            view->workers[transfer->worker].in += transfer->bytes;
            view->workers[transfer->source].out += transfer->bytes;
            view->bytes += transfer->bytes;
        }
    }
    for (uint32_t w = 0; w < view->count; w++) {
        view->most.load = larger(view->most.load, view->workers[w].load);
        view->most.in = larger(view->most.in, view->workers[w].in);
        view->most.out = larger(view->most.out, view->workers[w].out);
    }
    return true;
}

static uint64_t ratio_ppm(uint64_t value, uint64_t mean) {
    return mean == 0 ? PPM : (uint64_t)((unsigned __int128)value * PPM / mean);
}

static void pool_name(struct table *table, const Ballast__V1__Pool *pool) {
    if (pool->n_dp > 1) {
        table_cell(table, "dp%u-%u/%u", pool->dp[0], pool->dp[pool->n_dp - 1], pool->ga_index);
    } else {
        table_cell(table, "dp%u/%u", pool->n_dp > 0 ? pool->dp[0] : 0, pool->ga_index);
    }
}

static void pool_cells(struct table *table, const struct pool_view *view) {
    const Ballast__V1__Pool *pool = view->pool;
    uint64_t moved = pool->n_tiles > 0 ? (uint64_t)view->moved * PPM / pool->n_tiles : 0;
    pool_name(table, pool);
    table_cell(table, "%" PRIu32, view->count);
    table_cell(table, "%zu", pool->n_tiles);
    table_cell(table, "%s", units_share(moved).text);
    table_cell(table, "%s", units_ratio(ratio_ppm(pool->load_max, pool->load_mean)).text);
    table_cell(table, "%s", units_bytes(view->count > 0 ? view->bytes / view->count : 0).text);
    table_cell(table, "%s", units_bytes(view->most.in).text);
    table_cell(table, "%s", units_bytes(view->most.out).text);
}

static void print_pools(const struct pool_view *views, size_t count) {
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT, 0},    {"WORKERS", TABLE_RIGHT, 0}, {"TILES", TABLE_RIGHT, 0},
        {"MOVED", TABLE_RIGHT, 0},  {"LOAD", TABLE_RIGHT, 0},    {"BYTES", TABLE_RIGHT, 0},
        {"MAX IN", TABLE_RIGHT, 0}, {"MAX OUT", TABLE_RIGHT, 0},
    };
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < count; i++) {
        pool_cells(&table, &views[i]);
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

/* Of `most`, at least a mark for what is not 0. */
static const char *bar_of(uint64_t value, uint64_t most) {
    static const char marks[BAR_WIDTH + 1] = "##########";
    if (value == 0) {
        return "";
    }
    uint64_t length = (uint64_t)(((unsigned __int128)value * BAR_WIDTH + most - 1) / most);
    return marks + (BAR_WIDTH - length);
}

static void worker_cells(struct table *table, const struct pool_view *view, uint32_t w,
                         size_t ranks, const struct worker *most) {
    const struct worker *worker = &view->workers[w];
    table_cell(table, "dp%u/%u cp%zu", view->pool->dp[w / ranks], view->pool->ga_index, w % ranks);
    table_cell(table, "%s", units_ratio(ratio_ppm(worker->load, view->pool->load_mean)).text);
    table_cell(table, "%s", bar_of(worker->load, most->load));
    table_cell(table, "%s", units_bytes(worker->in).text);
    table_cell(table, "%s", bar_of(worker->in, most->in));
    table_cell(table, "%s", units_bytes(worker->out).text);
    table_cell(table, "%s", bar_of(worker->out, most->out));
}

/* Bars are of one scale over all pools. */
static void print_workers(const struct pool_view *views, size_t count, size_t ranks) {
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT, 0},     {"LOAD", TABLE_RIGHT, 0},    {"", TABLE_LEFT, BAR_WIDTH},
        {"IN", TABLE_RIGHT, 0},      {"", TABLE_LEFT, BAR_WIDTH}, {"OUT", TABLE_RIGHT, 0},
        {"", TABLE_LEFT, BAR_WIDTH},
    };
    struct worker most = {0};
    struct table table;
    for (size_t i = 0; i < count; i++) {
        most.load = larger(most.load, views[i].most.load);
        most.in = larger(most.in, views[i].most.in);
        most.out = larger(most.out, views[i].most.out);
    }
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < count; i++) {
        for (uint32_t w = 0; w < views[i].count; w++) {
            worker_cells(&table, &views[i], w, ranks, &most);
        }
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

static size_t plan_ranks(const Ballast__V1__StepPlan *plan) {
    bool known = plan->n_micro_batches > 0 && plan->micro_batches[0]->sharding != NULL;
    return known ? plan->micro_batches[0]->sharding->n_ranks : 0;
}

bool plan_pools_print(const Ballast__V1__StepPlan *plan, bool workers) {
    size_t ranks = plan_ranks(plan);
    if (plan->n_pools == 0 || ranks == 0) {
        return true;
    }
    struct pool_view *views = calloc(plan->n_pools, sizeof *views);
    bool made = views != NULL;
    uint64_t all = 0;
    for (size_t i = 0; made && i < plan->n_pools; i++) {
        made = pool_view_init(&views[i], plan->pools[i], ranks);
        all += views[i].count;
    }
    if (made) {
        putchar('\n');
        print_pools(views, plan->n_pools);
        putchar('\n');
    }
    if (made && (workers || all <= PLAN_POOLS_WORKERS_MAX)) {
        print_workers(views, plan->n_pools, ranks);
    } else if (made) {
        printf("%" PRIu64 " workers; --workers lists each of them\n", all);
    }
    for (size_t i = 0; views != NULL && i < plan->n_pools; i++) {
        free(views[i].workers);
    }
    free(views);
    return made;
}
