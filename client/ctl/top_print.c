/* top: the page; see top.h. */
#include "client/ctl/top.h"

#include "client/ctl/print.h"
#include "client/ctl/progress.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PPM            1000000u
#define WAIT_LIMIT_PPM 10000u /* 1 %: more is lost time that somebody should look at */
#define BOLD           "\033[1m"
#define RED            "\033[31m"
#define PLAIN          "\033[0m"

static const Ballast__V1__Rank nowhere = BALLAST__V1__RANK__INIT;

void top_look_deinit(struct top_look *look) {
    free(look->ranks);
    *look = (struct top_look){0};
}

/* `count` within `ns`, a second. */
static uint64_t per_second(uint64_t count, uint64_t ns) {
    return ns == 0 ? 0 : (uint64_t)((unsigned __int128)count * 1000000000u / ns);
}

static uint64_t since(uint64_t now, uint64_t before) {
    return now > before ? now - before : 0; /* the daemon began anew */
}

static void top_head(FILE *out, bool colours, const Ballast__V1__StatusResponse *status) {
    size_t connected = 0;
    for (size_t i = 0; i < status->n_ranks; i++) {
        connected += status->ranks[i]->pid != 0;
    }
    fprintf(out, "%s%s%s", colours ? BOLD : "", status->state, colours ? PLAIN : "");
    if (status->warming_percent > 0) {
        fprintf(out, " %u %%", status->warming_percent);
    }
    fprintf(out, "  %zu/%u ranks  up %s  %s\n", connected, status->ranks_expected,
            units_age(status->uptime_ms).text, status->version);
    fprintf(out, "steps    next %" PRIu64 ", committed %" PRIu64 ", durable %" PRIu64 "\n",
            status->next_step, status->committed_step, status->durable_step);
    if (status->seeking != NULL) {
        fprintf(out, "seeking  step %" PRIu64 ", at step %" PRIu64 "\n", status->seeking->step,
                status->seeking->at);
    }
    print_waits(out, status);
    for (size_t i = 0; i < status->n_warnings; i++) {
        fprintf(out, "%swarning  %s%s\n", colours ? RED : "", status->warnings[i],
                colours ? PLAIN : "");
    }
}

static void top_balance(FILE *out, const Ballast__V1__StatusResponse *status) {
    const Ballast__V1__Balance *balance = status->balance;
    if (balance != NULL) {
        fprintf(out, "balance  total %s, attention %s; delay mean %s, at most %" PRIu64 " steps\n",
                units_ratio(balance->total_ppm).text, units_ratio(balance->attention_ppm).text,
                units_milli(balance->delay_mean_milli).text, balance->delay_max);
    }
    fprintf(out, "time     planning p50 %s, p99 %s; ranks waited p99 %s\n",
            units_time(status->plan_ns_p50).text, units_time(status->plan_ns_p99).text,
            units_time(status->wait_ns_p99).text);
}

static void top_storage(FILE *out, const Ballast__V1__StatusResponse *status,
                        const struct top_look *before, uint64_t ns) {
    const Ballast__V1__ReadStatus *reads = status->reads;
    if (reads != NULL) {
        uint64_t documents = since(reads->documents, before->documents);
        uint64_t bytes = since(reads->bytes, before->bytes);
        fprintf(out,
                "reads    %s documents/s, %s/s by %s, %" PRIu64 " errors\n"
                "slots    %u ready, %u in use of %u, %s\n",
                units_count(per_second(documents, ns)).text,
                units_bytes(per_second(bytes, ns)).text, status->io_backend, reads->errors,
                reads->slots_ready, reads->slots_used, reads->slots,
                units_bytes(status->slab_bytes_used).text);
    }
    if (status->io_lacks[0] != '\0') {
        fprintf(out, "reading  %s\n", status->io_lacks);
    }
    if (status->store != NULL) {
        fprintf(out, "store    last group in %s, write-ahead log %s\n",
                units_time(status->store->commit_ns).text,
                units_bytes(status->store->wal_bytes).text);
    }
}

static void top_queues(FILE *out, const Ballast__V1__QueuesResponse *queues) {
    static const struct table_column columns[] = {{"QUEUE", TABLE_LEFT, 12},
                                                  {"DOCUMENTS", TABLE_RIGHT, 9},
                                                  {"TOKENS", TABLE_RIGHT, 9},
                                                  {"OLDEST", TABLE_RIGHT, 8}};
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < queues->n_queues; i++) {
        const Ballast__V1__Queue *queue = queues->queues[i];
        table_cell(&table, "%s", queue->name);
        table_cell(&table, "%s", units_count(queue->documents).text);
        table_cell(&table, "%s", units_count(queue->tokens).text);
        if (queue->documents > 0) {
            table_cell(&table, "%" PRIu64, queue->oldest_step);
        } else {
            table_cell(&table, "%s", "");
        }
    }
    (void)fputc('\n', out);
    table_print(&table, out);
    table_deinit(&table);
}

static struct top_rank top_rank(const Ballast__V1__RankStatus *rank) {
    const Ballast__V1__Rank *place = rank->rank != NULL ? rank->rank : &nowhere;
    return (struct top_rank){.dp = place->dp,
                             .pp = place->pp,
                             .cp = place->cp,
                             .tp = place->tp,
                             .batches = rank->batches,
                             .waited_ns = rank->waited_ns};
}

/* The same rank at the look before; nothing when it was not there. */
static struct top_rank top_rank_before(const struct top_look *before, const struct top_rank *now) {
    for (size_t i = 0; i < before->rank_count; i++) {
        const struct top_rank *rank = &before->ranks[i];
        if (rank->dp == now->dp && rank->pp == now->pp && rank->cp == now->cp &&
            rank->tp == now->tp) {
            return *rank;
        }
    }
    return before->when_ns == 0 ? (struct top_rank){0} : *now;
}

static void top_rank_cells(struct table *table, const Ballast__V1__RankStatus *rank,
                           const struct top_look *before, uint64_t ns) {
    const struct top_rank now = top_rank(rank);
    const struct top_rank then = top_rank_before(before, &now);
    uint64_t waited_ns = since(now.waited_ns, then.waited_ns);
    uint64_t share_ppm = ns == 0 ? 0 : (uint64_t)((unsigned __int128)waited_ns * PPM / ns);
    uint64_t centi = per_second(100 * since(now.batches, then.batches), ns);
    table_cell(table, "dp%u pp%u cp%u tp%u", now.dp, now.pp, now.cp, now.tp);
    table_cell(table, "%u", rank->pid);
    table_cell(table, "%" PRIu64, rank->step);
    table_cell(table, "%u", rank->credits);
    table_cell(table, "%" PRIu64 ".%02" PRIu64, centi / 100, centi % 100);
    table_cell(table, "%s%s", units_share(share_ppm < PPM ? share_ppm : PPM).text,
               share_ppm > WAIT_LIMIT_PPM ? " !" : "");
    table_cell(table, "%s", rank->lease_ms > 0 ? units_age(rank->lease_ms).text : "");
    table_cell(table, "%s", units_age(rank->waiting_ms).text);
}

/* LEASE: what is left of a rank that is gone. AGE: how long it has waited for its next batch. */
static void top_ranks(FILE *out, const Ballast__V1__StatusResponse *status,
                      const struct top_look *before, uint64_t ns) {
    static const struct table_column columns[] = {
        {"RANK", TABLE_LEFT, 17},    {"PID", TABLE_RIGHT, 7},     {"STEP", TABLE_RIGHT, 8},
        {"CREDITS", TABLE_RIGHT, 0}, {"BATCH/S", TABLE_RIGHT, 8}, {"WAITED", TABLE_RIGHT, 8},
        {"LEASE", TABLE_RIGHT, 5},   {"AGE", TABLE_RIGHT, 4},
    };
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < status->n_ranks; i++) {
        top_rank_cells(&table, status->ranks[i], before, ns);
    }
    (void)fputc('\n', out);
    table_print(&table, out);
    table_deinit(&table);
}

static void top_note(const Ballast__V1__StatusResponse *status, struct top_look *now) {
    *now = (struct top_look){.when_ns = progress_clock_ns()};
    if (status->reads != NULL) {
        now->documents = status->reads->documents;
        now->bytes = status->reads->bytes;
    }
    now->ranks = calloc(status->n_ranks + 1, sizeof *now->ranks);
    for (size_t i = 0; now->ranks != NULL && i < status->n_ranks; i++) {
        now->ranks[now->rank_count++] = top_rank(status->ranks[i]);
    }
}

void top_print(FILE *out, bool colours, const Ballast__V1__StatusResponse *status,
               const Ballast__V1__QueuesResponse *queues, const struct top_look *before,
               struct top_look *now) {
    top_note(status, now);
    uint64_t ns = before->when_ns > 0 ? now->when_ns - before->when_ns
                                      : status->uptime_ms * 1000000u;
    top_head(out, colours, status);
    if (strcmp(status->state, "warming") == 0) {
        return;
    }
    top_balance(out, status);
    top_storage(out, status, before, ns);
    if (queues != NULL && queues->n_queues > 0) {
        top_queues(out, queues);
    }
    if (status->n_ranks > 0) {
        top_ranks(out, status, before, ns);
    }
}
