/* plan: one step's micro-batches, or a row for each of many steps and what they come to. */
#include "client/ctl/answers.h"
#include "client/ctl/json.h"
#include "client/ctl/plan_exchange.h"
#include "client/ctl/plan_pools.h"
#include "client/ctl/print.h"
#include "client/ctl/summary.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"
#include "sharding/layout.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_MAX 1000000u

enum { OPTION_STEP = 500, OPTION_STEPS };

struct plan_arguments {
    struct ctl *ctl;
    bool fragments;
    bool workers;
    bool exchange;
    bool given; /* a step or a range */
    bool many;  /* a range: rows instead of micro-batches */
    uint64_t first;
    uint64_t last;
};

/* "A..B", both included. */
static void range_parse(struct plan_arguments *arguments, char *text, struct argp_state *state) {
    char *dots = strstr(text, "..");
    if (dots == NULL) {
        argp_error(state, "--steps '%s' is not a range; write FIRST..LAST", text);
        return;
    }
    *dots = '\0';
    arguments->first = ctl_number(state, text, UINT64_MAX - 1, "first step");
    arguments->last = ctl_number(state, dots + 2, UINT64_MAX - 1, "last step");
    if (arguments->first > arguments->last) {
        argp_error(state, "--steps: the first step comes after the last");
    }
    if (arguments->last - arguments->first >= STEPS_MAX) {
        argp_error(state, "--steps: more than %u steps; ask for fewer", STEPS_MAX);
    }
    arguments->given = true;
    arguments->many = true;
}

static void step_parse(struct plan_arguments *arguments, const char *text,
                       struct argp_state *state) {
    if (arguments->given) {
        argp_error(state, "more than one step; for several write --steps FIRST..LAST");
    }
    arguments->first = ctl_number(state, text, UINT64_MAX - 1, "step");
    arguments->last = arguments->first;
    arguments->given = true;
}

static error_t plan_parse(int key, char *arg, struct argp_state *state) {
    struct plan_arguments *arguments = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = arguments->ctl;
        return 0;
    case 'f':
        arguments->fragments = true;
        return 0;
    case 'w':
        arguments->workers = true;
        return 0;
    case 'x':
        arguments->exchange = true;
        return 0;
    case OPTION_STEP:
    case ARGP_KEY_ARG:
        step_parse(arguments, arg, state);
        return 0;
    case OPTION_STEPS:
        range_parse(arguments, arg, state);
        return 0;
    case ARGP_KEY_END:
        if (!arguments->given) {
            argp_error(state, "which step?");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option plan_options[] = {
    {"step", OPTION_STEP, "N", 0, "The step, instead of STEP", 0},
    {"steps", OPTION_STEPS, "A..B", 0, "A row for each step from A to B, then a summary", 0},
    {"fragments", 'f', NULL, 0, "List what each context-parallel rank computes too", 0},
    {"workers", 'w', NULL, 0, "List the workers of its pools, however many they are", 0},
    {"exchange", 'x', NULL, 0, "List what ranks of a group or a pool send each other too", 0},
    {0},
};

static const struct argp plan_argp = {
    .options = plan_options,
    .parser = plan_parse,
    .args_doc = "STEP",
    .doc =
        "Shows the plan of a step. With --config alone no daemon is needed: the plan is "
        "computed here, from step 0; with --state from the nearest stored step. --json prints "
        "the whole plan, fragments too; of several steps without them unless asked. WORK is what "
        "the packer levels: predicted nanoseconds, or the units of model.cost; ATTENTION the "
        "predicted time of the slowest context-parallel rank, in a pool after sharing; CONTEXT "
        "the slowest of these ranks over their mean; AGE by how many steps the oldest document "
        "comes late.",
    .children = ctl_argp_children,
};

static uint64_t plan_tokens(const Ballast__V1__StepPlan *plan) {
    uint64_t tokens = 0;
    for (size_t i = 0; i < plan->n_micro_batches; i++) {
        tokens += plan->micro_batches[i]->tokens;
    }
    return tokens;
}

static uint64_t plan_pad_tokens(const Ballast__V1__StepPlan *plan) {
    uint64_t tokens = 0;
    for (size_t i = 0; i < plan->n_micro_batches; i++) {
        tokens += plan->micro_batches[i]->pad_tokens;
    }
    return tokens;
}

static size_t plan_documents(const Ballast__V1__StepPlan *plan) {
    size_t documents = 0;
    for (size_t i = 0; i < plan->n_micro_batches; i++) {
        documents += plan->micro_batches[i]->n_documents;
    }
    return documents;
}

/* Balance and Release are always set by those who answer; zeros stand in for a peer that forgot. */
static Ballast__V1__Balance plan_balance(const Ballast__V1__StepPlan *plan) {
    static const Ballast__V1__Balance none = BALLAST__V1__BALANCE__INIT;
    return plan->balance != NULL ? *plan->balance : none;
}

static Ballast__V1__Release plan_release(const Ballast__V1__StepPlan *plan) {
    static const Ballast__V1__Release none = BALLAST__V1__RELEASE__INIT;
    return plan->release != NULL ? *plan->release : none;
}

static void print_head(const Ballast__V1__StepPlan *plan) {
    Ballast__V1__Balance balance = plan_balance(plan);
    Ballast__V1__Release release = plan_release(plan);
    printf("step     %" PRIu64 ", %s, digest %s, planned in %s\n", plan->step, plan->policy,
           units_digest(plan->digest.data, plan->digest.len).text, units_time(plan->plan_ns).text);
    printf("tokens   %" PRIu64 " and %" PRIu64 " of padding in %zu documents, %" PRIu64 " labels\n",
           plan_tokens(plan), plan_pad_tokens(plan), plan_documents(plan), plan->label_tokens);
    if (plan->profile_hash.len > 0) {
        printf("prices   latency profile %s\n",
               units_digest(plan->profile_hash.data, plan->profile_hash.len).text);
    } else {
        printf("prices   analytic model, no latency profile\n");
    }
    print_balance(&balance);
    if (plan->measured != NULL) {
        print_measured(plan->measured);
    }
    print_release(&release);
}

/* "-" for a layout of a newer daemon. */
static const char *layout_text(Ballast__V1__Layout layout) {
    const char *name = layout_name((enum layout)layout);
    return name != NULL ? name : "-";
}

/* Slowest rank over the mean, ppm. */
static uint64_t sharding_ppm(const Ballast__V1__Sharding *sharding) {
    unsigned __int128 sum = 0;
    uint64_t slowest = 0;
    for (size_t i = 0; i < sharding->n_ranks; i++) {
        uint64_t ns = sharding->ranks[i]->predicted_ns;
        slowest = ns > slowest ? ns : slowest;
        sum += ns;
    }
    return sum == 0 ? 1000000
                    : (uint64_t)((unsigned __int128)slowest * sharding->n_ranks * 1000000 / sum);
}

/* The largest delay among its documents, in steps. */
static uint64_t micro_batch_age(const Ballast__V1__MicroBatch *batch, uint64_t step) {
    uint64_t age = 0;
    for (size_t i = 0; i < batch->n_documents; i++) {
        uint64_t nominal = batch->documents[i]->nominal_step;
        if (nominal < step && step - nominal > age) {
            age = step - nominal;
        }
    }
    return age;
}

static void print_micro_batches(const Ballast__V1__StepPlan *plan) {
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT, 0},   {"DOCS", TABLE_RIGHT, 0},    {"TOKENS", TABLE_RIGHT, 0},
        {"PAD", TABLE_RIGHT, 0},   {"WORK", TABLE_RIGHT, 0},    {"ATTENTION", TABLE_RIGHT, 0},
        {"LAYOUT", TABLE_LEFT, 0}, {"CONTEXT", TABLE_RIGHT, 0}, {"AGE", TABLE_RIGHT, 0},
    };
    static const Ballast__V1__Sharding unsharded = BALLAST__V1__SHARDING__INIT;
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < plan->n_micro_batches; i++) {
        const Ballast__V1__MicroBatch *batch = plan->micro_batches[i];
        const Ballast__V1__Sharding *sharding = batch->sharding != NULL ? batch->sharding
                                                                        : &unsharded;
        table_cell(&table, "dp%u/%u", batch->dp, batch->index);
        table_cell(&table, "%zu", batch->n_documents);
        table_cell(&table, "%" PRIu64, batch->tokens);
        table_cell(&table, "%" PRIu64, batch->pad_tokens);
        table_cell(&table, "%s", units_count(batch->work_ns).text);
        table_cell(&table, "%s", units_time(batch->attention_ns).text);
        table_cell(&table, "%s", layout_text(sharding->layout));
        table_cell(&table, "%s", units_ratio(sharding_ppm(sharding)).text);
        table_cell(&table, "%" PRIu64, micro_batch_age(batch, plan->step));
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

static void rank_cells(struct table *table, const Ballast__V1__MicroBatch *batch, size_t rank,
                       const Ballast__V1__RankShard *shard) {
    uint64_t row = 0;
    for (size_t i = 0; i < shard->n_fragments; i++) {
        const Ballast__V1__Fragment *fragment = shard->fragments[i];
        bool known = fragment->document < batch->n_documents;
        table_cell(table, "dp%u/%u cp%zu", batch->dp, batch->index, rank);
        table_cell(table, "%" PRIu64, row);
        table_cell(table, "%u", fragment->length);
        table_cell(table, "%u", fragment->start);
        if (known) {
            const Ballast__V1__Document *document = batch->documents[fragment->document];
            table_cell(table, "%u:%" PRIu64, document->dataset, document->document);
            table_cell(table, "%u", document->length);
            table_cell(table, "%" PRIu64, document->nominal_step);
        } else {
            table_cell(table, "-");
            table_cell(table, "-");
            table_cell(table, "-");
        }
        row += fragment->length;
    }
}

static void print_fragments(const Ballast__V1__StepPlan *plan) {
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT, 0},       {"ROW", TABLE_RIGHT, 0},      {"ROWS", TABLE_RIGHT, 0},
        {"START", TABLE_RIGHT, 0},     {"DOCUMENT", TABLE_RIGHT, 0}, {"LENGTH", TABLE_RIGHT, 0},
        {"FROM STEP", TABLE_RIGHT, 0},
    };
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < plan->n_micro_batches; i++) {
        const Ballast__V1__MicroBatch *batch = plan->micro_batches[i];
        size_t ranks = batch->sharding != NULL ? batch->sharding->n_ranks : 0;
        for (size_t rank = 0; rank < ranks; rank++) {
            rank_cells(&table, batch, rank, batch->sharding->ranks[rank]);
        }
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

static int plan_one(struct ctl *ctl, const struct answers *answers,
                    const struct plan_arguments *arguments) {
    Ballast__V1__PlanResponse *response;
    bool fragments = arguments->fragments || arguments->exchange || ctl->json;
    int rc = answers->plan(ctl, arguments->first, fragments, true, &response);
    if (rc < 0) {
        return rc;
    }
    if (ctl->json) {
        print_message(&response->base);
        return 0;
    }
    print_head(response->plan);
    putchar('\n');
    print_micro_batches(response->plan);
    if (!plan_pools_print(response->plan, arguments->workers)) {
        return error_set(&ctl->error, -ENOMEM, "no memory for the pools' workers");
    }
    if (arguments->fragments) {
        putchar('\n');
        print_fragments(response->plan);
    }
    if (arguments->exchange) {
        putchar('\n');
        if (!plan_exchange_print(response->plan)) {
            return error_set(&ctl->error, -ENOMEM, "no memory for the ranks' fragments");
        }
    }
    return 0;
}

static void step_cells(struct table *table, const Ballast__V1__StepPlan *plan) {
    Ballast__V1__Balance balance = plan_balance(plan);
    Ballast__V1__Release release = plan_release(plan);
    table_cell(table, "%" PRIu64, plan->step);
    table_cell(table, "%zu", plan_documents(plan));
    table_cell(table, "%" PRIu64, plan_tokens(plan));
    table_cell(table, "%s", units_ratio(balance.total_ppm).text);
    table_cell(table, "%s", units_ratio(balance.attention_ppm).text);
    table_cell(table, "%s", units_ratio(balance.context_ppm).text);
    table_cell(table, "%" PRIu64, release.outliers);
    table_cell(table, "%" PRIu64, release.forced);
    table_cell(table, "%s", units_count(release.waiting_tokens).text);
    table_cell(table, "%s", units_milli(balance.delay_mean_milli).text);
}

static void figures_take(struct step_figures *figures, const Ballast__V1__StepPlan *plan) {
    Ballast__V1__Balance balance = plan_balance(plan);
    figures->tokens = plan_tokens(plan);
    figures->total_ppm = balance.total_ppm;
    figures->attention_ppm = balance.attention_ppm;
    figures->context_ppm = balance.context_ppm;
    figures->delay_mean_milli = balance.delay_mean_milli;
    figures->delay_max = balance.delay_max;
    figures->plan_ns = plan->plan_ns;
}

static void print_summary(const struct summary *sum) {
    printf("\nsteps    %" PRIu64 " of %s tokens, spread %s, planned in p50 %s, p99 %s\n"
           "balance  total mean %s, p99 %s, worst %s\n"
           "         attention mean %s, context mean %s\n"
           "delay    mean %s steps, at most %" PRIu64 "\n",
           sum->steps, units_count(sum->tokens / sum->steps).text,
           units_share(sum->tokens_cv_ppm).text, units_time(sum->plan_ns_p50).text,
           units_time(sum->plan_ns_p99).text, units_ratio(sum->total_ppm_mean).text,
           units_ratio(sum->total_ppm_p99).text, units_ratio(sum->total_ppm_worst).text,
           units_ratio(sum->attention_ppm_mean).text, units_ratio(sum->context_ppm_mean).text,
           units_milli(sum->delay_mean_milli).text, sum->delay_max);
}

/* How steps are printed as they come: rows of a table, or elements of one JSON object. */
struct rows {
    bool as_json;
    struct table table;
    struct json json;
};

static void rows_begin(struct rows *rows, bool as_json) {
    static const struct table_column columns[] = {
        {"STEP", TABLE_RIGHT, 6},     {"DOCS", TABLE_RIGHT, 5},   {"TOKENS", TABLE_RIGHT, 8},
        {"TOTAL", TABLE_RIGHT, 5},    {"ATTN", TABLE_RIGHT, 5},   {"CP", TABLE_RIGHT, 5},
        {"OUTLIERS", TABLE_RIGHT, 0}, {"FORCED", TABLE_RIGHT, 0}, {"WAITING", TABLE_RIGHT, 0},
        {"DELAY", TABLE_RIGHT, 5},
    };
    rows->as_json = as_json;
    table_init(&rows->table, columns, sizeof columns / sizeof columns[0]);
    json_init(&rows->json, stdout);
    if (as_json) {
        json_object_begin(&rows->json);
        json_key(&rows->json, "steps");
        json_array_begin(&rows->json);
    }
}

static void rows_add(struct rows *rows, const Ballast__V1__StepPlan *plan) {
    if (rows->as_json) {
        json_message(&rows->json, &plan->base);
    } else {
        step_cells(&rows->table, plan);
        table_print(&rows->table, stdout);
    }
}

static void rows_end(struct rows *rows, const struct summary *sum) {
    if (rows->as_json) {
        json_array_end(&rows->json);
        json_key(&rows->json, "summary");
        print_summary_json(&rows->json, sum);
        json_object_end(&rows->json);
        json_line(&rows->json);
    } else if (sum->steps > 0) {
        print_summary(sum);
    }
    table_deinit(&rows->table);
}

/* Asks for one step after the other; what was answered before a failure is printed too. */
static int plan_rows(struct ctl *ctl, const struct answers *answers,
                     const struct plan_arguments *arguments, struct step_figures *figures,
                     uint64_t *scratch) {
    struct rows rows;
    struct summary sum;
    size_t count = 0;
    int rc = 0;
    rows_begin(&rows, ctl->json);
    for (uint64_t step = arguments->first; rc == 0 && step <= arguments->last; step++) {
        Ballast__V1__PlanResponse *response;
        arena_reset(&ctl->arena);
        rc = answers->plan(ctl, step, arguments->fragments, arguments->fragments, &response);
        if (rc == 0) {
            figures_take(&figures[count++], response->plan);
            rows_add(&rows, response->plan);
        }
    }
    summary_of(figures, count, scratch, &sum);
    rows_end(&rows, &sum);
    return rc;
}

static int plan_many(struct ctl *ctl, const struct answers *answers,
                     const struct plan_arguments *arguments) {
    size_t wanted = (size_t)(arguments->last - arguments->first) + 1;
    struct step_figures *figures = calloc(wanted, sizeof *figures);
    uint64_t *scratch = calloc(wanted, sizeof *scratch);
    int rc;
    if (figures == NULL || scratch == NULL) {
        rc = error_set(&ctl->error, -ENOMEM, "no memory for %zu steps; ask for fewer", wanted);
    } else {
        rc = plan_rows(ctl, answers, arguments, figures, scratch);
    }
    free(scratch);
    free(figures);
    return rc;
}

int ctl_plan(struct ctl *ctl, int argc, char **argv) {
    struct plan_arguments arguments = {.ctl = ctl};
    ctl_parse(&plan_argp, 0, argc, argv, &arguments);
    const struct answers *answers = answers_choose(ctl, true);
    return arguments.many ? plan_many(ctl, answers, &arguments)
                          : plan_one(ctl, answers, &arguments);
}
