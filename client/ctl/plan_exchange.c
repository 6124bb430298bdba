/* plan_exchange: see plan_exchange.h. */
#include "client/ctl/plan_exchange.h"

#include "client/ctl/table.h"
#include "client/ctl/units.h"
#include "sharding/keys.h"

#include <inttypes.h>
#include <stdlib.h>

/* Fragments of one rank of a plan's message. */
struct rank_list {
    struct fragment *fragments;
    uint32_t count;
};

static bool rank_list_init(struct rank_list *list, const Ballast__V1__RankShard *shard) {
    list->fragments = calloc(shard->n_fragments + 1, sizeof *list->fragments);
    list->count = list->fragments != NULL ? (uint32_t)shard->n_fragments : 0;
    for (uint32_t i = 0; i < list->count; i++) {
        const Ballast__V1__Fragment *from = shard->fragments[i];
        list->fragments[i] = (struct fragment){from->document, from->start, from->length};
    }
    return list->fragments != NULL;
}

static const char *exchange_name(Ballast__V1__Exchange exchange) {
    switch (exchange) {
    case BALLAST__V1__EXCHANGE__EXCHANGE_ALL_GATHER:
        return "all-gather";
    case BALLAST__V1__EXCHANGE__EXCHANGE_NEEDED_ONLY:
        return "needed-only";
    case BALLAST__V1__EXCHANGE__EXCHANGE_ALL_TO_ALL:
        return "all-to-all";
    default:
        return NULL;
    }
}

static void pair_cells(struct table *table, const Ballast__V1__MicroBatch *batch,
                       const struct rank_list *lists, size_t from, size_t to) {
    const Ballast__V1__Sharding *sharding = batch->sharding;
    bool needed = sharding->exchange == BALLAST__V1__EXCHANGE__EXCHANGE_NEEDED_ONLY;
    uint64_t rows = needed ? keys_needed_from(lists[to].fragments, lists[to].count,
                                              lists[from].fragments, lists[from].count)
                           : sharding->ranks[from]->rows;
    if (rows > 0) {
        table_cell(table, "dp%u/%u", batch->dp, batch->index);
        table_cell(table, "%s", exchange_name(sharding->exchange));
        table_cell(table, "cp%zu", from);
        table_cell(table, "cp%zu", to);
        table_cell(table, "%" PRIu64, rows);
    }
}

static bool batch_cells(struct table *table, const Ballast__V1__MicroBatch *batch) {
    size_t ranks = batch->sharding != NULL && exchange_name(batch->sharding->exchange) != NULL
                       ? batch->sharding->n_ranks
                       : 0;
    struct rank_list *lists = calloc(ranks + 1, sizeof *lists);
    bool made = lists != NULL;
    for (size_t rank = 0; made && rank < ranks; rank++) {
        made = rank_list_init(&lists[rank], batch->sharding->ranks[rank]);
    }
    for (size_t i = 0; made && i < ranks * ranks; i++) {
        if (i / ranks != i % ranks) {
            pair_cells(table, batch, lists, i / ranks, i % ranks);
        }
    }
    for (size_t rank = 0; lists != NULL && rank < ranks; rank++) {
        free(lists[rank].fragments);
    }
    free(lists);
    return made;
}

static bool print_groups(const Ballast__V1__StepPlan *plan) {
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT, 0}, {"EXCHANGE", TABLE_LEFT, 0}, {"FROM", TABLE_RIGHT, 0},
        {"TO", TABLE_RIGHT, 0},  {"ROWS", TABLE_RIGHT, 0},
    };
    struct table table;
    bool made = true;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; made && i < plan->n_micro_batches; i++) {
        made = batch_cells(&table, plan->micro_batches[i]);
    }
    if (made) {
        table_print(&table, stdout);
    }
    table_deinit(&table);
    return made;
}

/* Bytes by payload, of one pair of workers. */
struct pair_bytes {
    uint64_t of[BALLAST__V1__PAYLOAD__PAYLOAD_O + 1];
};

static void worker_cell(struct table *table, const Ballast__V1__Pool *pool, size_t worker,
                        size_t ranks) {
    table_cell(table, "dp%u/%u cp%zu", pool->dp[worker / ranks], pool->ga_index, worker % ranks);
}

/* Pairs are by source, then receiver; what a newer daemon might send beyond is left out. */
static bool pool_cells(struct table *table, const Ballast__V1__Pool *pool, size_t ranks) {
    size_t workers = pool->n_dp * ranks;
    struct pair_bytes *pairs = calloc(workers * workers + 1, sizeof *pairs);
    for (size_t i = 0; pairs != NULL && i < pool->n_transfers; i++) {
        const Ballast__V1__Transfer *transfer = pool->transfers[i];
        if (transfer->source < workers && transfer->worker < workers &&
            transfer->payload >= BALLAST__V1__PAYLOAD__PAYLOAD_Q &&
            transfer->payload <= BALLAST__V1__PAYLOAD__PAYLOAD_O) {
            pairs[transfer->source * workers + transfer->worker].of[transfer->payload] +=
                transfer->bytes;
        }
    }
    for (size_t i = 0; pairs != NULL && i < workers * workers; i++) {
        const uint64_t *bytes = pairs[i].of;
        uint64_t q = bytes[BALLAST__V1__PAYLOAD__PAYLOAD_Q];
        uint64_t kv = bytes[BALLAST__V1__PAYLOAD__PAYLOAD_KV];
        uint64_t o = bytes[BALLAST__V1__PAYLOAD__PAYLOAD_O];
        if (q + kv + o > 0) {
            worker_cell(table, pool, i / workers, ranks);
            worker_cell(table, pool, i % workers, ranks);
            table_cell(table, "%s", q > 0 ? units_bytes(q).text : "");
            table_cell(table, "%s", kv > 0 ? units_bytes(kv).text : "");
            table_cell(table, "%s", o > 0 ? units_bytes(o).text : "");
        }
    }
    bool made = pairs != NULL;
    free(pairs);
    return made;
}

static bool print_pools(const Ballast__V1__StepPlan *plan, size_t ranks) {
    static const struct table_column columns[] = {
        {"FROM", TABLE_LEFT, 0}, {"TO", TABLE_LEFT, 0}, {"Q", TABLE_RIGHT, 0},
        {"KV", TABLE_RIGHT, 0},  {"O", TABLE_RIGHT, 0},
    };
    struct table table;
    bool made = true;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; made && i < plan->n_pools; i++) {
        made = pool_cells(&table, plan->pools[i], ranks);
    }
    if (made) {
        table_print(&table, stdout);
    }
    table_deinit(&table);
    return made;
}

bool plan_exchange_print(const Ballast__V1__StepPlan *plan) {
    bool pooled = plan->n_pools > 0 && plan->n_micro_batches > 0 &&
                  plan->micro_batches[0]->sharding != NULL;
    return pooled ? print_pools(plan, plan->micro_batches[0]->sharding->n_ranks)
                  : print_groups(plan);
}
