/* tune: finds the settings that suit a corpus.
 *
 * Runs the planner itself over the same steps for every candidate and keeps the front: those that
 * no other one beats in both balance and delay. A candidate is given up on the way once it cannot
 * end on the front, however even and prompt its remaining steps may be. What the front is expected
 * to give is measured again on later steps of another seed, which no choice was made on. */
#include "client/ctl/tune.h"

#include "client/ctl/page.h"
#include "client/ctl/statistics.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_STEPS 200u
#define PPM           1000000u

typedef unsigned __int128 u128;

/* Over the first `steps` counted ones. */
static struct standing standing_of(enum objective objective, const struct measurement *measured,
                                   uint64_t steps) {
    u128 values = 0;
    u128 tokens = 0;
    u128 delays = 0;
    for (uint64_t i = 0; i < steps; i++) {
        const struct step_sample *step = &measured->steps[i];
        values += objective == OBJECTIVE_TIME ? (u128)step->step_ns * 1000 : step->total_ppm;
        tokens += step->tokens;
        delays += step->token_delays;
    }
    if (steps == 0 || tokens == 0) {
        return (struct standing){UINT64_MAX, UINT64_MAX};
    }
    return (struct standing){
        .value = (uint64_t)(values / (objective == OBJECTIVE_TIME ? tokens : steps)),
        .delay_milli = (uint64_t)(delays * 1000 / tokens),
    };
}

/* At least as good in both, and better in one. */
static bool standing_dominates(struct standing a, struct standing b) {
    return a.value <= b.value && a.delay_milli <= b.delay_milli &&
           (a.value < b.value || a.delay_milli < b.delay_milli);
}

/* A candidate on its way. */
struct judge {
    const struct tuning *tuning;
    struct contender *contender;
    uint64_t step_tokens;
    uint64_t step_tokens_most; /* what the micro-batches hold */
    uint64_t off;              /* counted steps that miss step_tokens by more than the tolerance */
    u128 excess_ppm;           /* sum of imbalance above 1 */
    u128 token_delays;
    u128 tokens;
};

static uint64_t off_ppm(uint64_t tokens, uint64_t step_tokens) {
    uint64_t off = tokens > step_tokens ? tokens - step_tokens : step_tokens - tokens;
    return (uint64_t)((u128)off * PPM / step_tokens);
}

static bool off_is_allowed(const struct tuning *tuning, uint64_t off) {
    return tuning->tolerance_ppm == TUNE_TOLERANCE_ANY || off <= tuning->tolerance_ppm;
}

/* What may stand on the front. */
static bool contender_counts(const struct tuning *tuning, const struct contender *contender) {
    return !contender->refused && !contender->abandoned &&
           off_is_allowed(tuning, contender->tuned.tokens_off_ppm);
}

/* The least that the candidate can end with: even steps without delay from here on. */
static struct standing judge_least(const struct judge *judge, uint64_t counted) {
    uint64_t steps = judge->tuning->options.steps;
    u128 tokens = judge->tokens + (u128)(steps - counted) * judge->step_tokens_most;
    return (struct standing){
        .value = PPM + (uint64_t)(judge->excess_ppm / steps),
        .delay_milli = (uint64_t)(judge->token_delays * 1000 / tokens),
    };
}

/* One that comes before it in the list is as good as its least. */
static bool judge_is_beaten(const struct judge *judge, uint64_t counted) {
    const struct tuning *tuning = judge->tuning;
    struct standing least = judge_least(judge, counted);
    for (const struct contender *other = tuning->contenders; other < judge->contender; other++) {
        if (contender_counts(tuning, other) && other->standing.value <= least.value &&
            other->standing.delay_milli <= least.delay_milli) {
            return true;
        }
    }
    return false;
}

/* Step times have no bound to judge by. */
static bool judge_enough(void *context, const struct measurement *so_far) {
    struct judge *judge = context;
    const struct tuning *tuning = judge->tuning;
    const struct step_sample *step = &so_far->steps[so_far->outcome.steps - 1];
    judge->off += !off_is_allowed(tuning, off_ppm(step->tokens, judge->step_tokens));
    judge->excess_ppm += step->total_ppm - PPM;
    judge->token_delays += step->token_delays;
    judge->tokens += step->tokens;
    judge->contender->abandoned = judge->off > tuning->options.steps / 100 ||
                                  (tuning->objective == OBJECTIVE_BALANCE &&
                                   judge_is_beaten(judge, so_far->outcome.steps));
    return judge->contender->abandoned;
}

static int figures_finish(struct figures *figures, uint64_t step_tokens, struct error *error) {
    const struct measurement *measured = &figures->measured;
    uint64_t count = measured->outcome.steps;
    uint64_t *off = calloc(count, sizeof *off);
    if (off == NULL) {
        return error_set(error, -ENOMEM, "no memory for %" PRIu64 " steps", count);
    }
    for (uint64_t i = 0; i < count; i++) {
        off[i] = off_ppm(measured->steps[i].tokens, step_tokens);
    }
    statistics_sort(off, count);
    figures->tokens_off_ppm = statistics_percentile(off, count, 99);
    figures->token_ps = standing_of(OBJECTIVE_TIME, measured, count).value;
    free(off);
    return 0;
}

/* The scenario with a candidate's settings on top. -EINVAL when they do not go together. */
static int candidate_open(struct tuning *tuning, const struct candidate *candidate,
                          const char *seed, struct trial *trial, struct error *error) {
    struct scenario *scenario = &tuning->scenario;
    size_t before = scenario->override_count;
    int rc = 0;
    for (size_t i = 1; rc == 0 && i < candidate->setting_count; i++) {
        rc = scenario_override(scenario, candidate->settings[i].key, candidate->settings[i].value,
                               error);
    }
    if (rc == 0) {
        rc = trial_open(trial, scenario, candidate->settings[0].value, seed, error);
    }
    scenario->override_count = before;
    return rc;
}

static int contender_tune(struct tuning *tuning, struct contender *contender) {
    struct error *error = &tuning->ctl->error;
    size_t index = (size_t)(contender - tuning->contenders);
    struct measure_options options = tuning->options;
    struct judge judge = {.tuning = tuning, .contender = contender};
    struct trial trial = {0};
    char what[CANDIDATE_NAME_BYTES + 64];
    (void)snprintf(what, sizeof what, "candidate %zu of %zu, %s", index + 1, tuning->count,
                   contender->candidate.name);
    int rc = candidate_open(tuning, &contender->candidate, tuning->seed, &trial, error);
    if (rc == -EINVAL && index > 0) {
        contender->refused = true;
        return 0;
    }
    if (rc == 0) {
        const struct plan_options *plan = &trial.config->plan;
        judge.step_tokens = plan->step_tokens;
        judge.step_tokens_most = plan->micro_batches * plan_bin_tokens(plan);
        options.enough = judge_enough;
        options.context = &judge;
        rc = measure(&trial, what, &options, &contender->tuned.measured, error);
    }
    if (rc == 0) {
        const struct measurement *measured = &contender->tuned.measured;
        contender->standing = standing_of(tuning->objective, measured, measured->outcome.steps);
        rc = figures_finish(&contender->tuned, judge.step_tokens, error);
    }
    trial_close(&trial);
    return rc < 0 ? error_prefix(error, "%s", contender->candidate.name) : 0;
}

static int contender_check(struct tuning *tuning, struct contender *contender) {
    struct error *error = &tuning->ctl->error;
    struct measure_options options = tuning->options;
    struct trial trial = {0};
    char what[CANDIDATE_NAME_BYTES + 64];
    (void)snprintf(what, sizeof what, "check of %s", contender->candidate.name);
    options.warm_up += options.steps;
    int rc = candidate_open(tuning, &contender->candidate, tuning->check_seed, &trial, error);
    if (rc == 0) {
        rc = measure(&trial, what, &options, &contender->checked.measured, error);
    }
    if (rc == 0) {
        rc = figures_finish(&contender->checked, trial.config->plan.step_tokens, error);
    }
    trial_close(&trial);
    return rc < 0 ? error_prefix(error, "check of %s", contender->candidate.name) : 0;
}

/* Whether one of the others, or an equal one before it, does as well. */
static bool contender_is_beaten(const struct tuning *tuning, size_t index) {
    struct standing mine = tuning->contenders[index].standing;
    for (size_t i = 0; i < tuning->count; i++) {
        struct standing other = tuning->contenders[i].standing;
        bool equal = other.value == mine.value && other.delay_milli == mine.delay_milli;
        if (i != index && contender_counts(tuning, &tuning->contenders[i]) &&
            (standing_dominates(other, mine) || (equal && i < index))) {
            return true;
        }
    }
    return false;
}

/* Along the front less delay is less balance, so the best is the one with most delay allowed. */
static void front_find(struct tuning *tuning) {
    uint64_t best_value = UINT64_MAX;
    tuning->best = tuning->count;
    for (size_t i = 0; i < tuning->count; i++) {
        struct contender *contender = &tuning->contenders[i];
        if (!contender_counts(tuning, contender) || contender_is_beaten(tuning, i)) {
            continue;
        }
        contender->front = true;
        if (contender->standing.delay_milli <= tuning->delay_max_milli &&
            contender->standing.value < best_value) {
            best_value = contender->standing.value;
            tuning->best = i;
        }
    }
}

size_t tune_front_next(const struct tuning *tuning, size_t at) {
    size_t next = tuning->count;
    for (size_t i = 0; i < tuning->count; i++) {
        const struct contender *contender = &tuning->contenders[i];
        uint64_t delay_milli = contender->standing.delay_milli;
        if (contender->front &&
            (at == tuning->count || delay_milli > tuning->contenders[at].standing.delay_milli) &&
            (next == tuning->count ||
             delay_milli < tuning->contenders[next].standing.delay_milli)) {
            next = i;
        }
    }
    return next;
}

/* Steps of all the data, as far as `most`. */
static int steps_count(struct tuning *tuning, uint64_t most, uint64_t *out) {
    struct error *error = &tuning->ctl->error;
    struct trial trial = {0};
    int rc = trial_open(&trial, &tuning->scenario, "wlb:none", tuning->seed, error);
    while (rc == 0 && trial.stream.state->step < most) {
        struct step_plan *plan = NULL;
        rc = stream_step(&trial.stream, &plan, error);
        step_plan_destroy(plan);
    }
    if (rc == 0 || rc == -ENOENT) {
        *out = trial.stream.state->step;
        rc = 0;
    }
    trial_close(&trial);
    return rc;
}

/* Two spans of as many steps each; of data that end too soon, the halves, without the steps in
 * which the queues drain: a job meets them once. */
static int spans_find(struct tuning *tuning) {
    struct measure_options *options = &tuning->options;
    bool steps_free = options->steps == TUNE_AUTO;
    uint64_t steps = 0;
    if (steps_free) {
        options->steps = DEFAULT_STEPS;
    }
    if (options->warm_up == TUNE_AUTO) {
        options->warm_up = scenario_warm_up(&tuning->scenario, tuning->config, options->steps);
    }
    if (!scenario_ends(&tuning->scenario, tuning->config)) {
        return 0;
    }
    uint64_t most = options->warm_up + 2 * options->steps;
    int rc = steps_count(tuning, most, &steps);
    if (rc < 0 || steps == most) {
        return rc;
    }
    if (!steps_free || steps < options->warm_up + 2) {
        return error_set(&tuning->ctl->error, -EINVAL,
                         "the data end after %" PRIu64 " steps: tuning and checking take %" PRIu64
                         "; give fewer with --steps and --warm-up",
                         steps, steps_free ? options->warm_up + 2 : most);
    }
    uint64_t drain = steps >= options->warm_up + 2 + DRAIN_STEPS ? DRAIN_STEPS : 0;
    options->steps = (steps - drain - options->warm_up) / 2;
    return 0;
}

static int tuning_open(struct tuning *tuning) {
    struct error *error = &tuning->ctl->error;
    struct candidate *candidates = calloc(CANDIDATES_MAX, sizeof *candidates);
    tuning->contenders = calloc(CANDIDATES_MAX, sizeof *tuning->contenders);
    int rc = 0;
    if (candidates == NULL || tuning->contenders == NULL) {
        rc = error_set(error, -ENOMEM, "no memory for %u candidates", CANDIDATES_MAX);
    }
    if (rc == 0) {
        rc = page_check(tuning->html, error);
    }
    if (rc == 0) {
        rc = scenario_open(&tuning->scenario, error);
    }
    if (rc == 0) {
        rc = scenario_config(&tuning->scenario, NULL, tuning->seed, &tuning->config, error);
    }
    if (rc == 0) {
        tuning->count = candidates_make(&tuning->config->plan, tuning->tolerance_ppm, candidates);
        for (size_t i = 0; i < tuning->count; i++) {
            tuning->contenders[i].candidate = candidates[i];
        }
        rc = spans_find(tuning);
    }
    if (rc == 0 && tuning->check_seed == NULL) {
        (void)snprintf(tuning->check_seed_text, sizeof tuning->check_seed_text, "%" PRIu64,
                       tuning->config->source.order.seed + 1);
        tuning->check_seed = tuning->check_seed_text;
    }
    free(candidates);
    return rc;
}

static int tuning_run(struct tuning *tuning) {
    int rc = tuning_open(tuning);
    for (size_t i = 0; rc == 0 && i < tuning->count; i++) {
        rc = contender_tune(tuning, &tuning->contenders[i]);
    }
    if (rc == 0) {
        front_find(tuning);
    }
    for (size_t i = 0; rc == 0 && i < tuning->count; i++) {
        if (tuning->contenders[i].front) {
            rc = contender_check(tuning, &tuning->contenders[i]);
        }
    }
    return rc;
}

static void tuning_close(struct tuning *tuning) {
    for (size_t i = 0; i < tuning->count; i++) {
        measurement_deinit(&tuning->contenders[i].tuned.measured);
        measurement_deinit(&tuning->contenders[i].checked.measured);
    }
    free(tuning->contenders);
    config_destroy(tuning->config);
    scenario_close(&tuning->scenario);
}

int ctl_tune(struct ctl *ctl, int argc, char **argv) {
    struct tuning tuning = {
        .ctl = ctl,
        .delay_max_milli = 500,
        .tolerance_ppm = TUNE_TOLERANCE_ANY,
        .options = {.steps = TUNE_AUTO, .warm_up = TUNE_AUTO, .times = step_time_defaults},
    };
    tune_parse(&tuning, argc, argv);
    int rc = tuning_run(&tuning);
    if (rc == 0 && tuning.html != NULL) {
        rc = tune_write_html(&tuning, &ctl->error);
    }
    if (rc == 0 && ctl->json) {
        tune_print_json(&tuning);
    } else if (rc == 0) {
        tune_print(&tuning);
    }
    if (rc == 0 && tuning.best == tuning.count) {
        rc = error_set(&ctl->error, -ERANGE,
                       "no setting keeps these limits; allow more with --delay-max, or more or "
                       "fewer tokens with --tokens-tolerance");
    }
    tuning_close(&tuning);
    return rc;
}
