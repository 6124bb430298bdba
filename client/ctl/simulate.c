/* simulate: policies side by side over the same documents.
 *
 * Runs the planner itself, step by step from 0, for every policy and seed, and times every step;
 * it has no packer of its own. */
#include "client/ctl/simulate.h"

#include "client/ctl/page.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define EXACT_LIMIT_MS 10000u
#define EXACT_GROUPS   3u

static uint64_t warm_up_of(const struct simulation *simulation, const struct config *config) {
    return simulation->options.warm_up != WARM_UP_AUTO
               ? simulation->options.warm_up
               : scenario_warm_up(&simulation->scenario, config, simulation->options.steps);
}

static bool policy_is_plain(const char *policy) {
    return strncmp(policy, "plain", 5) == 0 && (policy[5] == '\0' || policy[5] == '@');
}

/* Whether there is plain packing to compare with. */
static bool simulation_compares(const struct simulation *simulation) {
    for (size_t p = 0; p < simulation->policy_count; p++) {
        if (policy_is_plain(simulation->policies[p])) {
            return true;
        }
    }
    return false;
}

static int row_measure(struct simulation *simulation, const char *policy, const char *seed,
                       struct row *row) {
    struct error *error = &simulation->ctl->error;
    struct measure_options options = simulation->options;
    struct trial trial;
    int rc = trial_open(&trial, &simulation->scenario, policy, seed, error);
    if (rc == 0) {
        options.warm_up = warm_up_of(simulation, trial.config);
        options.vary = simulation_compares(simulation);
        options.domains = scenario_domains(&simulation->scenario);
        row->policy = policy;
        row->seed = trial.config->source.order.seed;
        rc = measure(&trial, policy, &options, &row->measured, error);
    }
    trial_close(&trial);
    return rc < 0 ? error_prefix(error, "policy %s", policy) : 0;
}

/* The yardstick of one seed, over the steps that rows count. */
static int simulation_exact(struct simulation *simulation, const char *seed) {
    struct error *error = &simulation->ctl->error;
    struct config *config = NULL;
    if (simulation->exact.options.batches == 0) {
        return 0;
    }
    int rc = scenario_config(&simulation->scenario, NULL, seed, &config, error);
    if (rc == 0) {
        rc = exact_measure(&simulation->exact, &simulation->scenario, seed,
                           warm_up_of(simulation, config), simulation->options.steps, error);
    }
    config_destroy(config);
    return rc;
}

/* Against the first plain row of the same seed, each variant against plain's own. */
static void rows_compare(struct row *rows, size_t count) {
    const struct row *plain = NULL;
    for (size_t i = 0; i < count && plain == NULL; i++) {
        plain = policy_is_plain(rows[i].policy) ? &rows[i] : NULL;
    }
    for (size_t i = 0; i < count && plain != NULL; i++) {
        struct row *row = &rows[i];
        uint64_t tokens = row->measured.outcome.tokens;
        uint64_t plain_tokens = plain->measured.outcome.tokens;
        row->compared = true;
        row->speedup_ppm = measure_speedup_ppm(tokens, measurement_ns(&row->measured), plain_tokens,
                                               measurement_ns(&plain->measured));
        for (size_t v = 0; v < MEASURE_VARIANTS; v++) {
            row->variants_ppm[v] = measure_speedup_ppm(
                tokens, row->measured.variants_ns[v], plain_tokens, plain->measured.variants_ns[v]);
        }
    }
}

/* Whether every policy can be had, before the first step is planned. */
static int simulation_check(struct simulation *simulation, struct error *error) {
    int rc = simulation->exact.options.batches > 0 ? exact_check(error) : 0;
    if (rc == 0) {
        rc = page_check(simulation->html, error);
    }
    if (rc == 0) {
        rc = scenario_open(&simulation->scenario, error);
    }
    for (size_t p = 0; rc == 0 && p < simulation->policy_count; p++) {
        struct config *config = NULL;
        rc = scenario_config(&simulation->scenario, simulation->policies[p], simulation->seeds[0],
                             &config, error);
        config_destroy(config);
        if (rc < 0) {
            (void)error_prefix(error, "policy %s", simulation->policies[p]);
        }
    }
    return rc;
}

static int simulation_run(struct simulation *simulation, struct row *rows) {
    size_t policies = simulation->policy_count;
    int rc = simulation_check(simulation, &simulation->ctl->error);
    if (rc == 0) {
        rc = simulate_calibrate(simulation, &simulation->ctl->error);
    }
    for (size_t s = 0; rc == 0 && s < simulation->seed_count; s++) {
        for (size_t p = 0; rc == 0 && p < policies; p++) {
            rc = row_measure(simulation, simulation->policies[p], simulation->seeds[s],
                             &rows[s * policies + p]);
        }
        rows_compare(&rows[s * policies], rc == 0 ? policies : 0);
        if (rc == 0) {
            rc = simulation_exact(simulation, simulation->seeds[s]);
        }
    }
    return rc;
}

static int simulation_report(struct simulation *simulation, const struct row *rows, size_t count) {
    struct config *config = NULL;
    if (simulation->html != NULL) {
        int written = simulate_write_html(simulation, rows, count, &simulation->ctl->error);
        if (written < 0) {
            return written;
        }
    }
    if (!simulation->ctl->json) {
        simulate_print(simulation, rows, count);
        return 0;
    }
    int rc = scenario_config(&simulation->scenario, NULL, simulation->seeds[0], &config,
                             &simulation->ctl->error);
    if (rc == 0) {
        simulation->options.warm_up = warm_up_of(simulation, config);
        simulate_print_json(simulation, config, rows, count);
    }
    config_destroy(config);
    return rc;
}

/* Pools instead of policies; of the first seed. */
static int simulate_pools(struct simulation *simulation) {
    struct error *error = &simulation->ctl->error;
    struct pools_row *rows = calloc(POOLS_CANDIDATES_MAX, sizeof *rows);
    struct trial trial = {0};
    size_t count = 0;
    int rc = rows != NULL ? scenario_open(&simulation->scenario, error)
                          : error_set(error, -ENOMEM, "no memory for pools");
    if (rc == 0) {
        rc = trial_open(&trial, &simulation->scenario, "plain", simulation->seeds[0], error);
    }
    if (rc == 0) {
        rc = pools_measure(&simulation->pools, &trial, simulation->options.steps, rows, &count,
                           error);
    }
    if (rc == 0 && simulation->ctl->json) {
        pools_print_json(rows, count);
    } else if (rc == 0) {
        pools_print(&simulation->scenario, rows, count);
    }
    trial_close(&trial);
    free(rows);
    scenario_close(&simulation->scenario);
    return rc;
}

/* Layouts instead of policies; of the first seed. */
static int simulate_layouts(struct simulation *simulation) {
    struct error *error = &simulation->ctl->error;
    struct layouts_row rows[LAYOUTS_ROWS_MAX];
    struct trial trial = {0};
    size_t count = 0;
    int rc = scenario_open(&simulation->scenario, error);
    if (rc == 0) {
        rc = trial_open(&trial, &simulation->scenario, "plain", simulation->seeds[0], error);
    }
    if (rc == 0) {
        rc = layouts_measure(&trial, simulation->options.steps, rows, &count, error);
    }
    if (rc == 0 && simulation->ctl->json) {
        layouts_print_json(rows, count);
    } else if (rc == 0) {
        layouts_print(&simulation->scenario, &trial.config->plan, rows, count);
    }
    trial_close(&trial);
    scenario_close(&simulation->scenario);
    return rc;
}

int ctl_simulate(struct ctl *ctl, int argc, char **argv) {
    struct simulation simulation = {
        .ctl = ctl,
        .policies = {"plain", "fixed:4", "wlb:none", "wlb:bands", "wlb:level"},
        .policy_count = 5,
        .exact.options = {.limit_ms = EXACT_LIMIT_MS, .groups = EXACT_GROUPS},
        .options = {.warm_up = WARM_UP_AUTO, .times = step_time_defaults},
    };
    simulate_parse(&simulation, argc, argv);
    if (simulation.pools.wanted) {
        return simulate_pools(&simulation);
    }
    if (simulation.layouts) {
        return simulate_layouts(&simulation);
    }
    size_t count = simulation.policy_count * simulation.seed_count;
    struct row *rows = calloc(count, sizeof *rows);
    int rc;
    if (rows == NULL) {
        rc = error_set(&ctl->error, -ENOMEM, "no memory for %zu rows", count);
    } else {
        rc = simulation_run(&simulation, rows);
    }
    if (rc == 0) {
        rc = simulation_report(&simulation, rows, count);
    }
    for (size_t i = 0; rows != NULL && i < count; i++) {
        measurement_deinit(&rows[i].measured);
    }
    free(rows);
    exact_report_deinit(&simulation.exact);
    scenario_close(&simulation.scenario);
    return rc;
}
