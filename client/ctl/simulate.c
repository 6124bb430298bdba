/* simulate: policies side by side over the same documents.
 *
 * Runs the planner itself, step by step from 0, for every policy and seed; nothing is modelled
 * beyond what plans say of themselves. */
#include "client/ctl/ctl.h"
#include "client/ctl/json.h"
#include "client/ctl/print.h"
#include "client/ctl/progress.h"
#include "client/ctl/stream.h"
#include "client/ctl/summary.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define POLICIES_MAX  16u
#define SEEDS_MAX     64u
#define STEPS_MAX     1000000u
#define DEFAULT_STEPS 100u

enum { OPTION_POLICIES = 500, OPTION_STEPS, OPTION_SEED };

struct simulation {
    struct ctl *ctl;
    const char *policies[POLICIES_MAX];
    size_t policy_count;
    const char *seeds[SEEDS_MAX]; /* NULL: the config's */
    size_t seed_count;
    uint64_t steps;
};

/* One policy and seed. */
struct run {
    const char *policy;
    uint64_t seed;
    struct summary summary;
};

/* The config says which policies there are. */
static void policies_parse(struct simulation *simulation, char *list, struct argp_state *state) {
    char *rest = NULL;
    simulation->policy_count = 0;
    for (char *name = strtok_r(list, ",", &rest); name != NULL; name = strtok_r(NULL, ",", &rest)) {
        if (simulation->policy_count == POLICIES_MAX) {
            argp_error(state, "more than %u policies", POLICIES_MAX);
        }
        simulation->policies[simulation->policy_count++] = name;
    }
}

static void seed_add(struct simulation *simulation, const char *seed, struct argp_state *state) {
    (void)ctl_number(state, seed, UINT64_MAX, "--seed");
    if (simulation->seed_count == SEEDS_MAX) {
        argp_error(state, "more than %u seeds", SEEDS_MAX);
    }
    simulation->seeds[simulation->seed_count++] = seed;
}

static error_t simulate_parse(int key, char *arg, struct argp_state *state) {
    struct simulation *simulation = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = simulation->ctl;
        return 0;
    case OPTION_POLICIES:
        policies_parse(simulation, arg, state);
        return 0;
    case OPTION_STEPS:
        simulation->steps = ctl_number(state, arg, STEPS_MAX, "--steps");
        return 0;
    case OPTION_SEED:
        seed_add(simulation, arg, state);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "takes no argument '%s'", arg);
        return 0;
    case ARGP_KEY_END:
        if (simulation->ctl->config == NULL) {
            argp_error(state, "which job? name its config with --config FILE");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option simulate_options[] = {
    {"policies", OPTION_POLICIES, "LIST", 0, "Policies to compare (plain,wlb:none,wlb:bands)", 0},
    {"steps", OPTION_STEPS, "N", 0, "Steps to plan with each (100)", 0},
    {"seed", OPTION_SEED, "S", 0, "Shuffle with this seed instead of the config's; may be repeated",
     0},
    {0},
};

static const struct argp simulate_argp = {
    .options = simulate_options,
    .parser = simulate_parse,
    .doc = "Plans the job of --config with each policy over the same documents and compares them. "
           "TOTAL, ATTN and CP are the slowest over the mean: of micro-batches by work and by "
           "attention alone, of context-parallel ranks. DELAY is the mean, MAX the largest, in "
           "steps; CV the spread of a step's tokens; PLAN the median time to plan a step.",
    .children = ctl_argp_children,
};

static void figures_take(struct step_figures *figures, const struct step_plan *plan) {
    figures->tokens = plan->tokens;
    figures->total_ppm = plan->balance.total_ppm;
    figures->attention_ppm = plan->balance.attention_ppm;
    figures->context_ppm = plan->balance.context_ppm;
    figures->delay_mean_milli = plan->balance.delay_mean_milli;
    figures->delay_max = plan->balance.delay_max;
    figures->plan_ns = plan->plan_ns;
}

/* Plans up to `steps` steps; the data may end before. Returns how many there were. */
static int64_t stream_measure(struct stream *stream, const char *policy, uint64_t steps,
                              struct step_figures *figures, struct error *error) {
    struct progress progress;
    uint64_t count = 0;
    int rc = 0;
    progress_start(&progress, policy);
    while (count < steps) {
        struct step_plan *plan = NULL;
        rc = stream_step(stream, &plan, error);
        if (rc < 0) {
            break;
        }
        figures_take(&figures[count++], plan);
        step_plan_destroy(plan);
        progress_say(&progress, "step %" PRIu64 " of %" PRIu64, count, steps);
    }
    progress_end(&progress);
    return rc < 0 && rc != -ENOENT ? rc : (int64_t)count;
}

/* One run; `catalog` is opened by the first and serves all: the datasets are the same. */
static int run_measure(const struct simulation *simulation, const char *policy, const char *seed,
                       struct catalog **catalog, struct run *run) {
    const struct config_override overrides[] = {{"plan.policy", policy}, {"job.seed", seed}};
    struct error *error = &simulation->ctl->error;
    struct step_figures *figures = calloc(simulation->steps + 1, sizeof *figures);
    uint64_t *scratch = calloc(simulation->steps + 1, sizeof *scratch);
    struct config *config = NULL;
    struct stream stream = {0};
    int64_t count = 0;
    int rc = 0;
    if (figures == NULL || scratch == NULL) {
        rc = error_set(error, -ENOMEM, "no memory for %" PRIu64 " steps", simulation->steps);
    }
    if (rc == 0) {
        rc = config_load(simulation->ctl->config, overrides, seed == NULL ? 1 : 2, &config, error);
    }
    if (rc == 0 && *catalog == NULL) {
        rc = catalog_open(config->datasets, config->dataset_count, catalog, error);
    }
    if (rc == 0) {
        rc = stream_open(&stream, config, *catalog, error);
    }
    if (rc == 0) {
        count = stream_measure(&stream, policy, simulation->steps, figures, error);
        rc = count < 0 ? (int)count : 0;
    }
    if (rc == 0) {
        run->policy = policy;
        run->seed = config->source.order.seed;
        summary_of(figures, (size_t)count, scratch, &run->summary);
    }
    if (rc < 0) {
        (void)error_prefix(error, "policy %s", policy);
    }
    stream_close(&stream);
    config_destroy(config);
    free(scratch);
    free(figures);
    return rc;
}

static int simulation_run(const struct simulation *simulation, struct run *runs) {
    struct catalog *catalog = NULL;
    int rc = 0;
    for (size_t s = 0; rc == 0 && s < simulation->seed_count; s++) {
        for (size_t p = 0; rc == 0 && p < simulation->policy_count; p++) {
            rc = run_measure(simulation, simulation->policies[p], simulation->seeds[s], &catalog,
                             &runs[s * simulation->policy_count + p]);
        }
    }
    catalog_close(catalog);
    return rc;
}

static void print_runs(const struct run *runs, size_t count) {
    static const struct table_column columns[] = {
        {"NAME", TABLE_LEFT, 0}, {"SEED", TABLE_LEFT, 0},   {"TOTAL", TABLE_RIGHT, 0},
        {"P99", TABLE_RIGHT, 0}, {"WORST", TABLE_RIGHT, 0}, {"ATTN", TABLE_RIGHT, 0},
        {"CP", TABLE_RIGHT, 0},  {"DELAY", TABLE_RIGHT, 0}, {"MAX", TABLE_RIGHT, 0},
        {"CV", TABLE_RIGHT, 0},  {"PLAN", TABLE_RIGHT, 0},
    };
    struct table table;
    table_init(&table, columns, sizeof columns / sizeof columns[0]);
    for (size_t i = 0; i < count; i++) {
        const struct summary *sum = &runs[i].summary;
        table_cell(&table, "%s", runs[i].policy);
        table_cell(&table, "%" PRIu64, runs[i].seed);
        table_cell(&table, "%s", units_ratio(sum->total_ppm_mean).text);
        table_cell(&table, "%s", units_ratio(sum->total_ppm_p99).text);
        table_cell(&table, "%s", units_ratio(sum->total_ppm_worst).text);
        table_cell(&table, "%s", units_ratio(sum->attention_ppm_mean).text);
        table_cell(&table, "%s", units_ratio(sum->context_ppm_mean).text);
        table_cell(&table, "%s", units_milli(sum->delay_mean_milli).text);
        table_cell(&table, "%" PRIu64, sum->delay_max);
        table_cell(&table, "%s", units_share(sum->tokens_cv_ppm).text);
        table_cell(&table, "%s", units_time(sum->plan_ns_p50).text);
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

static void run_json(struct json *json, const struct run *run) {
    json_object_begin(json);
    json_member_string(json, "policy", run->policy);
    json_member_u64(json, "seed", run->seed);
    json_key(json, "summary");
    print_summary_json(json, &run->summary);
    json_object_end(json);
}

static void print_runs_json(const struct run *runs, size_t count) {
    struct json json;
    json_init(&json, stdout);
    json_object_begin(&json);
    json_key(&json, "runs");
    json_array_begin(&json);
    for (size_t i = 0; i < count; i++) {
        run_json(&json, &runs[i]);
    }
    json_array_end(&json);
    json_object_end(&json);
    json_line(&json);
}

int ctl_simulate(struct ctl *ctl, int argc, char **argv) {
    struct simulation simulation = {
        .ctl = ctl,
        .policies = {"plain", "wlb:none", "wlb:bands"},
        .policy_count = 3,
        .steps = DEFAULT_STEPS,
    };
    ctl_parse(&simulate_argp, 0, argc, argv, &simulation);
    if (simulation.seed_count == 0) {
        simulation.seed_count = 1;
    }
    size_t count = simulation.policy_count * simulation.seed_count;
    struct run *runs = calloc(count, sizeof *runs);
    int rc;
    if (runs == NULL) {
        rc = error_set(&ctl->error, -ENOMEM, "no memory for %zu runs", count);
    } else {
        rc = simulation_run(&simulation, runs);
    }
    if (rc == 0 && ctl->json) {
        print_runs_json(runs, count);
    } else if (rc == 0) {
        print_runs(runs, count);
    }
    free(runs);
    return rc;
}
