/* simulate_print: what a simulation found, for people and as JSON. */
#include "client/ctl/simulate.h"

#include "client/ctl/json.h"
#include "client/ctl/print.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define ROW_MEMBERS_MAX    64u
#define STAGE_BOUND_PPM    1100000u
#define PREDICTION_PPM_MIN 850000u /* over measured: what a right declaration keeps within */
#define PREDICTION_PPM_MAX 1150000u

static void gain_cell(struct table *table, bool known, uint64_t ppm) {
    table_cell(table, "%s", known && ppm > 0 ? units_gain(ppm).text : "");
}

/* Whether rows do not train the same pieces of documents. */
static bool rows_cut_unlike(const struct row *rows, size_t count) {
    bool cut = false;
    bool whole = false;
    for (size_t i = 0; i < count; i++) {
        bool cuts = strcmp(rows[i].policy, "plain") == 0 ||
                    strncmp(rows[i].policy, "fixed", 5) == 0;
        cut = cut || cuts;
        whole = whole || !cuts;
    }
    return cut && whole;
}

/* The seed only where there are several. */
static void print_policies(const struct row *rows, size_t count, bool seeds) {
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT, 0},   {"SEED", TABLE_LEFT, 0},    {"TOTAL", TABLE_RIGHT, 0},
        {"WORST", TABLE_RIGHT, 0}, {"DELAY", TABLE_RIGHT, 0},  {"MAX", TABLE_RIGHT, 0},
        {"CV", TABLE_RIGHT, 0},    {"LONG", TABLE_RIGHT, 0},   {"STEP", TABLE_RIGHT, 0},
        {"GAIN", TABLE_RIGHT, 0},  {"BUBBLE", TABLE_RIGHT, 0},
    };
    struct table_column shown[sizeof columns / sizeof columns[0]];
    struct table table;
    size_t fields = 0;
    for (size_t i = 0; i < sizeof columns / sizeof columns[0]; i++) {
        if (seeds || strcmp(columns[i].title, "SEED") != 0) {
            shown[fields++] = columns[i];
        }
    }
    table_init(&table, shown, fields);
    for (size_t i = 0; i < count; i++) {
        const struct outcome *outcome = &rows[i].measured.outcome;
        table_cell(&table, "%s", rows[i].policy);
        if (seeds) {
            table_cell(&table, "%" PRIu64, rows[i].seed);
        }
        table_cell(&table, "%s", units_ratio(outcome->total_ppm).text);
        table_cell(&table, "%s", units_ratio(outcome->worst_ppm).text);
        table_cell(&table, "%s", units_milli(outcome->delay_mean_milli).text);
        table_cell(&table, "%" PRIu64, outcome->delay_max);
        table_cell(&table, "%s", units_share(outcome->tokens_cv_ppm).text);
        gain_cell(&table, outcome->long_share_ppm > 0, outcome->long_weight_ppm);
        table_cell(&table, "%s", units_time(outcome->step_ns).text);
        gain_cell(&table, rows[i].compared, rows[i].speedup_ppm);
        table_cell(&table, "%s", units_share(outcome->bubble_ppm).text);
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

/* Slowest over mean by level, and what the critical path is made of. */
static void print_causes(const struct row *rows, size_t count) {
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT, 0},   {"PP", TABLE_RIGHT, 0},     {"ATTN", TABLE_RIGHT, 0},
        {"CP", TABLE_RIGHT, 0},    {"DP", TABLE_RIGHT, 0},     {"STAGE", TABLE_RIGHT, 0},
        {"%ATTN", TABLE_RIGHT, 0}, {"%LIN", TABLE_RIGHT, 0},   {"%HEAD", TABLE_RIGHT, 0},
        {"%COMM", TABLE_RIGHT, 0}, {"%OTHER", TABLE_RIGHT, 0},
    };
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < count; i++) {
        const struct outcome *outcome = &rows[i].measured.outcome;
        table_cell(&table, "%s", rows[i].policy);
        gain_cell(&table, true, outcome->micro_batch_ppm);
        gain_cell(&table, true, outcome->attention_ppm);
        gain_cell(&table, true, outcome->context_ppm);
        gain_cell(&table, true, outcome->replica_ppm);
        gain_cell(&table, true, outcome->stage_ppm);
        table_cell(&table, "%s", units_share(outcome->critical_attention_ppm).text);
        table_cell(&table, "%s", units_share(outcome->critical_linear_ppm).text);
        table_cell(&table, "%s", units_share(outcome->critical_head_ppm).text);
        table_cell(&table, "%s", units_share(outcome->critical_communication_ppm).text);
        table_cell(&table, "%s", units_share(outcome->critical_other_ppm).text);
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

static void print_variants(const struct row *rows, size_t count) {
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT, 0},       {"GAIN", TABLE_RIGHT, 0},      {"ATTN -10%", TABLE_RIGHT, 0},
        {"ATTN +10%", TABLE_RIGHT, 0}, {"CHUNKS -1", TABLE_RIGHT, 0}, {"CHUNKS +1", TABLE_RIGHT, 0},
    };
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < count; i++) {
        table_cell(&table, "%s", rows[i].policy);
        gain_cell(&table, rows[i].compared, rows[i].speedup_ppm);
        for (size_t v = 0; v < MEASURE_VARIANTS; v++) {
            gain_cell(&table, rows[i].compared, rows[i].variants_ppm[v]);
        }
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

static uint64_t domain_share_ppm(const struct domain_tally *tally, uint32_t domain) {
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < tally->count; i++) {
        tokens += tally->counts[i].delivered_tokens;
    }
    uint64_t own = tally->counts[domain].delivered_tokens;
    return tokens == 0 ? 0 : (uint64_t)((unsigned __int128)own * 1000000 / tokens);
}

static uint64_t domain_delay_milli(const struct delay_counts *counts) {
    return counts->delivered_tokens == 0 ? 0
                                         : (uint64_t)((unsigned __int128)counts->delay_token_steps *
                                                      1000 / counts->delivered_tokens);
}

static uint64_t prediction_ppm(const struct simulation *simulation, const struct row *row) {
    return (uint64_t)((unsigned __int128)row->measured.outcome.step_ns * 1000000 /
                      simulation->measured_step_ns);
}

/* What each policy does to a domain: its share of the tokens is that of the steps counted. */
static void print_domains(const struct row *rows, size_t count, const struct domains *domains) {
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT, 0},    {"DOMAIN", TABLE_LEFT, 0},   {"DOCS", TABLE_RIGHT, 0},
        {"TOKENS", TABLE_RIGHT, 0}, {"SHARE", TABLE_RIGHT, 0},   {"DELAY", TABLE_RIGHT, 0},
        {"MAX", TABLE_RIGHT, 0},    {"DELAYED", TABLE_RIGHT, 0},
    };
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < count; i++) {
        const struct domain_tally *tally = rows[i].measured.domains;
        for (uint32_t d = 0; d < tally->count; d++) {
            const struct delay_counts *counts = &tally->counts[d];
            table_cell(&table, "%s", rows[i].policy);
            table_cell(&table, "%s", domains_name(domains, d));
            table_cell(&table, "%" PRIu64, counts->delivered_documents);
            table_cell(&table, "%s", units_count(counts->delivered_tokens).text);
            table_cell(&table, "%s", units_share(domain_share_ppm(tally, d)).text);
            table_cell(&table, "%s", units_milli(domain_delay_milli(counts)).text);
            table_cell(&table, "%" PRIu64, counts->delay_max);
            table_cell(&table, "%s",
                       units_count(counts->delivered_tokens - counts->tokens_by_delay[0]).text);
        }
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

static void print_prediction(const struct simulation *simulation, const struct row *row) {
    uint64_t ppm = prediction_ppm(simulation, row);
    printf("step of %s predicted %s, measured %s: %s\n", row->policy,
           units_time(row->measured.outcome.step_ns).text,
           units_time(simulation->measured_step_ns).text, units_gain(ppm).text);
    if (ppm < PREDICTION_PPM_MIN || ppm > PREDICTION_PPM_MAX) {
        printf("schedule, recomputation or exposed communication are declared wrongly: the\n"
               "scales cannot absorb those\n");
    }
}

static void print_provenance(const struct simulation *simulation, const struct row *rows,
                             size_t count) {
    const struct step_time_options *times = &simulation->options.times;
    bool bound = false;
    for (size_t i = 0; i < count; i++) {
        bound = bound || rows[i].measured.outcome.stage_ppm > STAGE_BOUND_PPM;
    }
    printf("\n%s, documents %s, %" PRIu64 " steps\n"
           "priced by %s, %s: attention x %s, linear x %s\n"
           "pipeline %s, chunks a stage: %" PRIu32 "\n",
           scenario_source(&simulation->scenario),
           simulation->scenario.cut ? "cut where plain packing cuts" : "whole",
           rows[0].measured.outcome.steps, model_prices(&rows[0].measured.model.options.shape),
           simulation->calibrated ? "calibrated" : "not calibrated",
           units_milli(times->attention_permille).text, units_milli(times->linear_permille).text,
           pipeline_schedule_name(times->schedule), times->chunks);
    if (simulation->log != NULL) {
        printf("scales fit the log with R2 %s\n", units_ratio(simulation->fit_ppm).text);
    }
    if (simulation->measured_step_ns > 0) {
        print_prediction(simulation, &rows[0]);
    }
    if (!simulation->scenario.cut && rows_cut_unlike(rows, count)) {
        printf("plain and fixed cut documents and so train less attention than the others;\n"
               "--cut sequence gives all of them the same pieces\n");
    }
    if (bound) {
        printf(
            "last stage bound: the busiest stage has over 1.1 of the mean; move layers off it\n");
    }
}

void simulate_print(const struct simulation *simulation, const struct row *rows, size_t count) {
    print_policies(rows, count, simulation->seed_count > 1);
    printf("\nslowest over mean of micro-batches (PP), their attention, CP ranks, replicas,\n"
           "stages; and the parts of the critical path\n");
    print_causes(rows, count);
    if (rows[0].measured.domains != NULL) {
        printf("\ndelivered by domain\n");
        print_domains(rows, count, scenario_domains(&simulation->scenario));
    }
    if (rows[0].compared) {
        printf("\nwhat would change the gain\n");
        print_variants(rows, count);
    }
    if (simulation->exact.options.batches > 0) {
        exact_print(&simulation->exact);
    }
    print_provenance(simulation, rows, count);
}

/* Of a row's object: a text or a number; null where neither is known. */
struct row_member {
    const char *name;
    const char *text;
    bool known;
    uint64_t value;
    const struct domain_tally *domains; /* instead */
};

static int row_member_compare(const void *a, const void *b) {
    const struct row_member *x = a;
    const struct row_member *y = b;
    return strcmp(x->name, y->name);
}

static struct row_member row_speedup(const struct row *row, const char *name, uint64_t ppm) {
    return (struct row_member){.name = name, .known = row->compared && ppm > 0, .value = ppm};
}

/* What is in the outcome and what is not, not yet by name. */
static size_t row_members(const struct row *row, struct row_member members[ROW_MEMBERS_MAX]) {
    static const char *const variants[MEASURE_VARIANTS] = {
        "speedup_attention_minus_ppm", "speedup_attention_plus_ppm", "speedup_chunks_minus_ppm",
        "speedup_chunks_plus_ppm"};
    size_t count = 0;
    assert(outcome_fields() + MEASURE_VARIANTS + 4 <= ROW_MEMBERS_MAX);
    members[count++] = (struct row_member){.name = "policy", .text = row->policy};
    members[count++] = (struct row_member){.name = "seed", .known = true, .value = row->seed};
    members[count++] = (struct row_member){.name = "domains", .domains = row->measured.domains};
    members[count++] = row_speedup(row, "speedup_ppm", row->speedup_ppm);
    for (size_t v = 0; v < MEASURE_VARIANTS; v++) {
        members[count++] = row_speedup(row, variants[v], row->variants_ppm[v]);
    }
    for (size_t i = 0; i < outcome_fields(); i++) {
        members[count++] = (struct row_member){.name = outcome_name(i),
                                               .known = true,
                                               .value = outcome_value(&row->measured.outcome, i)};
    }
    return count;
}

static void domains_json(struct json *json, const struct domain_tally *tally,
                         const struct domains *domains) {
    json_array_begin(json);
    for (uint32_t i = 0; i < tally->count; i++) {
        const struct delay_counts *counts = &tally->counts[i];
        json_object_begin(json);
        json_member_u64(json, "delay_max", counts->delay_max);
        json_member_u64(json, "delay_mean_milli", domain_delay_milli(counts));
        json_member_u64(json, "delayed_tokens",
                        counts->delivered_tokens - counts->tokens_by_delay[0]);
        json_member_u64(json, "documents", counts->delivered_documents);
        json_member_string(json, "name", domains_name(domains, i));
        json_member_u64(json, "share_ppm", domain_share_ppm(tally, i));
        json_member_u64(json, "tokens", counts->delivered_tokens);
        json_object_end(json);
    }
    json_array_end(json);
}

static void row_json(struct json *json, const struct row *row, const struct domains *domains) {
    struct row_member members[ROW_MEMBERS_MAX];
    size_t count = row_members(row, members);
    qsort(members, count, sizeof members[0], row_member_compare);
    json_object_begin(json);
    for (size_t i = 0; i < count; i++) {
        json_key(json, members[i].name);
        if (members[i].domains != NULL) {
            domains_json(json, members[i].domains, domains);
        } else if (members[i].text != NULL) {
            json_text(json, members[i].text);
        } else if (members[i].known) {
            json_u64(json, members[i].value);
        } else {
            json_absent(json);
        }
    }
    json_object_end(json);
}

static int setting_compare(const void *a, const void *b) {
    const struct config_setting *x = a;
    const struct config_setting *y = b;
    return strcmp(x->name, y->name);
}

/* The job's settings by name. */
static void settings_json(struct json *json, const struct config *config) {
    size_t count = config_setting_count(config);
    struct config_setting *settings = calloc(count, sizeof *settings);
    size_t kept = 0;
    json_object_begin(json);
    for (size_t i = 0; settings != NULL && i < count; i++) {
        config_setting(config, i, &settings[kept]);
        kept += settings[kept].plan && strncmp(settings[kept].name, "dataset.", 8) != 0 &&
                strcmp(settings[kept].name, "plan.policy") != 0;
    }
    if (settings != NULL) {
        qsort(settings, kept, sizeof *settings, setting_compare);
    }
    for (size_t i = 0; i < kept; i++) {
        json_member_string(json, settings[i].name, settings[i].value);
    }
    json_object_end(json);
    free(settings);
}

static void times_json(struct json *json, const struct step_time_options *times) {
    static const char *const recompute[] = {"none", "attention", "full"};
    json_object_begin(json);
    json_member_u64(json, "attention_permille", times->attention_permille);
    json_member_u64(json, "chunks", times->chunks);
    json_member_u64(json, "exposed_cp_permille", times->exposed_cp_permille);
    json_member_u64(json, "exposed_fsdp_permille", times->exposed_fsdp_permille);
    json_member_u64(json, "exposed_pp_permille", times->exposed_pp_permille);
    json_member_u64(json, "exposed_tp_permille", times->exposed_tp_permille);
    json_member_u64(json, "gpu_spread_permille", times->gpu_spread_permille);
    json_key(json, "layers");
    if (times->layers != NULL) {
        json_array_begin(json);
        for (uint32_t i = 0; i < times->layer_count; i++) {
            json_u64(json, times->layers[i]);
        }
        json_array_end(json);
    } else {
        json_absent(json);
    }
    json_member_u64(json, "linear_permille", times->linear_permille);
    json_member_u64(json, "node_gpus", times->node_gpus);
    json_member_u64(json, "optimizer_ns", times->optimizer_ns);
    json_member_string(json, "recompute", recompute[times->recompute]);
    json_member_string(json, "schedule", pipeline_schedule_name(times->schedule));
    json_member_u64(json, "send_depth", times->send_depth);
    json_member_u64(json, "sync_replicas", times->sync_replicas);
    json_member_u64(json, "vocab", times->vocab);
    json_object_end(json);
}

static void prediction_json(struct json *json, const struct simulation *simulation,
                            const struct row *first) {
    json_key(json, "measured_step_ns");
    if (simulation->measured_step_ns > 0) {
        json_u64(json, simulation->measured_step_ns);
        json_member_u64(json, "predicted_to_measured_ppm", prediction_ppm(simulation, first));
    } else {
        json_absent(json);
        json_key(json, "predicted_to_measured_ppm");
        json_absent(json);
    }
}

static void config_json(struct json *json, const struct simulation *simulation,
                        const struct config *config, const struct row *first) {
    json_object_begin(json);
    json_key(json, "calibrated");
    json_bool(json, simulation->calibrated);
    json_key(json, "calibration_fit_ppm");
    if (simulation->log != NULL) {
        json_u64(json, simulation->fit_ppm);
    } else {
        json_absent(json);
    }
    json_member_string(json, "cut", simulation->scenario.cut ? "sequence" : "whole");
    prediction_json(json, simulation, first);
    json_key(json, "settings");
    settings_json(json, config);
    json_member_string(json, "source", scenario_source(&simulation->scenario));
    json_member_u64(json, "steps", simulation->options.steps);
    json_key(json, "times");
    times_json(json, &simulation->options.times);
    json_member_u64(json, "warm_up", simulation->options.warm_up);
    json_object_end(json);
}

void simulate_print_json(const struct simulation *simulation, const struct config *config,
                         const struct row *rows, size_t count) {
    struct json json;
    json_init(&json, stdout);
    json_object_begin(&json);
    json_key(&json, "config");
    config_json(&json, simulation, config, &rows[0]);
    json_key(&json, "exact");
    exact_print_json(&simulation->exact, &json);
    json_key(&json, "rows");
    json_array_begin(&json);
    for (size_t i = 0; i < count; i++) {
        row_json(&json, &rows[i], scenario_domains(&simulation->scenario));
    }
    json_array_end(&json);
    json_object_end(&json);
    json_line(&json);
}
