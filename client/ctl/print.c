/* print: see print.h. */
#include "client/ctl/print.h"

#include "client/ctl/table.h"
#include "client/ctl/units.h"

#include <inttypes.h>
#include <stdbool.h>

void print_message(const ProtobufCMessage *message) {
    struct json json;
    json_init(&json, stdout);
    json_message(&json, message);
    json_line(&json);
}

void print_summary_json(struct json *json, const struct summary *summary) {
    json_object_begin(json);
    json_member_u64(json, "attention_ppm_mean", summary->attention_ppm_mean);
    json_member_u64(json, "context_ppm_mean", summary->context_ppm_mean);
    json_member_u64(json, "delay_max", summary->delay_max);
    json_member_u64(json, "delay_mean_milli", summary->delay_mean_milli);
    json_member_u64(json, "plan_ns_p50", summary->plan_ns_p50);
    json_member_u64(json, "plan_ns_p99", summary->plan_ns_p99);
    json_member_u64(json, "steps", summary->steps);
    json_member_u64(json, "tokens", summary->tokens);
    json_member_u64(json, "tokens_cv_ppm", summary->tokens_cv_ppm);
    json_member_u64(json, "total_ppm_mean", summary->total_ppm_mean);
    json_member_u64(json, "total_ppm_p99", summary->total_ppm_p99);
    json_member_u64(json, "total_ppm_worst", summary->total_ppm_worst);
    json_object_end(json);
}

void print_balance(const Ballast__V1__Balance *balance) {
    printf("balance  total %s, predicted %s, attention %s, context %s\n"
           "bounds   best possible total %s, attention in reading order %s\n",
           units_ratio(balance->total_ppm).text, units_ratio(balance->predicted_ppm).text,
           units_ratio(balance->attention_ppm).text, units_ratio(balance->context_ppm).text,
           units_ratio(balance->bound_ppm).text, units_ratio(balance->original_ppm).text);
}

#define PRINT_WAIT_MS_MIN 100u /* less is between two batches */
#define PRINT_WAITS_MAX   8u

static bool print_same_place(const Ballast__V1__Rank *a, const Ballast__V1__Rank *b) {
    return a->dp == b->dp && a->pp == b->pp && a->cp == b->cp && a->tp == b->tp;
}

static void print_wait(FILE *out, const Ballast__V1__RankStatus *rank) {
    const Ballast__V1__Rank *at = rank->rank, *last = rank->waits_for;
    fprintf(out, "waits    dp%u pp%u cp%u tp%u waits for ", at->dp, at->pp, at->cp, at->tp);
    if (print_same_place(at, last)) {
        fprintf(out, "its own commit");
    } else {
        fprintf(out, "dp%u pp%u cp%u tp%u", last->dp, last->pp, last->cp, last->tp);
    }
    fprintf(out, ", %" PRIu64 " steps behind\n", rank->steps_behind);
}

void print_waits(FILE *out, const Ballast__V1__StatusResponse *status) {
    size_t count = 0;
    for (size_t i = 0; i < status->n_ranks; i++) {
        const Ballast__V1__RankStatus *rank = status->ranks[i];
        if (rank->rank != NULL && rank->waits_for != NULL &&
            rank->waiting_ms >= PRINT_WAIT_MS_MIN && count++ < PRINT_WAITS_MAX) {
            print_wait(out, rank);
        }
    }
    if (count > PRINT_WAITS_MAX) {
        fprintf(out, "waits    and %zu more ranks\n", count - PRINT_WAITS_MAX);
    }
}

void print_release(const Ballast__V1__Release *release) {
    printf("release  allowance %s, urgency %s\n"
           "outliers %" PRIu64 " released, %" PRIu64 " early, %" PRIu64 " forced\n"
           "waiting  %s tokens, %" PRIu64 " documents left over\n",
           units_share(release->allowance_ppm).text, units_share(release->urgency_ppm).text,
           release->outliers, release->early, release->forced,
           units_count(release->waiting_tokens).text, release->leftovers);
}

/* "-" for what was not measured. */
static struct units measured_ratio(uint64_t ppm) {
    static const struct units none = {"-"};
    return ppm > 0 ? units_ratio(ppm) : none;
}

void print_measured(const Ballast__V1__MeasuredStep *measured) {
    printf("measured step %" PRIu64 ": total %s, attention %s", measured->step,
           measured_ratio(measured->total_ppm).text, measured_ratio(measured->attention_ppm).text);
    if (measured->balance != NULL) {
        printf("; planned %s, %s", units_ratio(measured->balance->total_ppm).text,
               units_ratio(measured->balance->attention_ppm).text);
    }
    putchar('\n');
    if (measured->expert_ppm > 0) {
        printf("experts  tokens %s, of the input %s\n", units_ratio(measured->expert_ppm).text,
               measured_ratio(measured->input_ppm).text);
    }
}

void print_datasets(Ballast__V1__DatasetStatus *const *datasets, size_t count) {
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT, 0},     {"DOCS", TABLE_RIGHT, 0},      {"TOKENS", TABLE_RIGHT, 0},
        {"ARRIVED", TABLE_RIGHT, 0}, {"DELIVERED", TABLE_RIGHT, 0}, {"WAITING", TABLE_RIGHT, 0},
        {"DROPPED", TABLE_RIGHT, 0}, {"SHARE", TABLE_RIGHT, 0},     {"EPOCH", TABLE_RIGHT, 0},
    };
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < count; i++) {
        const Ballast__V1__DatasetStatus *dataset = datasets[i];
        table_cell(&table, "%s", dataset->name);
        table_cell(&table, "%s", units_count(dataset->documents).text);
        table_cell(&table, "%s", units_count(dataset->tokens).text);
        table_cell(&table, "%s", units_count(dataset->arrived_tokens).text);
        table_cell(&table, "%s", units_count(dataset->delivered_tokens).text);
        table_cell(&table, "%s", units_count(dataset->waiting_tokens).text);
        table_cell(&table, "%s", units_count(dataset->dropped_tokens).text);
        table_cell(&table, "%s", units_share(dataset->share_ppm).text);
        table_cell(&table, "%" PRIu64, dataset->epoch);
    }
    table_print(&table, stdout);
    table_deinit(&table);
}
