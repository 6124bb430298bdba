/* tune_print: what a tuning found, for people and as JSON. Nothing in it depends on the clock. */
#include "client/ctl/tune.h"

#include "client/ctl/json.h"
#include "client/ctl/table.h"
#include "client/ctl/units.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#define LEVEL_DEFAULT "preset"

static void print_row(struct table *table, const struct tuning *tuning, size_t index) {
    const struct contender *contender = &tuning->contenders[index];
    const struct outcome *tuned = &contender->tuned.measured.outcome;
    const struct outcome *checked = &contender->checked.measured.outcome;
    table_cell(table, "%s%s", index == tuning->best ? "* " : "  ", contender->candidate.name);
    if (tuning->objective == OBJECTIVE_TIME) {
        table_cell(table, "%s", units_count(tuned->tokens_per_gpu_second).text);
        table_cell(table, "%s", units_milli(tuned->delay_mean_milli).text);
        table_cell(table, "%s", units_count(checked->tokens_per_gpu_second).text);
    } else {
        table_cell(table, "%s", units_ratio(tuned->total_ppm).text);
        table_cell(table, "%s", units_milli(tuned->delay_mean_milli).text);
    }
    table_cell(table, "%s", units_ratio(checked->total_ppm).text);
    table_cell(table, "%s", units_ratio(checked->p99_ppm).text);
    if (tuning->objective == OBJECTIVE_BALANCE) {
        table_cell(table, "%s", units_ratio(checked->worst_ppm).text);
    }
    table_cell(table, "%s", units_milli(checked->delay_mean_milli).text);
    table_cell(table, "%" PRIu64, checked->delay_p99);
    table_cell(table, "%" PRIu64, checked->delay_max);
    table_cell(table, "%s", units_share(checked->tokens_cv_ppm).text);
}

static void print_front(const struct tuning *tuning) {
    static const struct table_column balance[] = {
        {"NAME", TABLE_LEFT, 0},   {"TUNED", TABLE_RIGHT, 0}, {"AT", TABLE_RIGHT, 0},
        {"TOTAL", TABLE_RIGHT, 0}, {"P99", TABLE_RIGHT, 0},   {"WORST", TABLE_RIGHT, 0},
        {"DELAY", TABLE_RIGHT, 0}, {"P99", TABLE_RIGHT, 0},   {"MAX", TABLE_RIGHT, 0},
        {"CV", TABLE_RIGHT, 0},
    };
    static const struct table_column time[] = {
        {"NAME", TABLE_LEFT, 0},   {"TUNED", TABLE_RIGHT, 0}, {"AT", TABLE_RIGHT, 0},
        {"TOK/S", TABLE_RIGHT, 0}, {"TOTAL", TABLE_RIGHT, 0}, {"P99", TABLE_RIGHT, 0},
        {"DELAY", TABLE_RIGHT, 0}, {"P99", TABLE_RIGHT, 0},   {"MAX", TABLE_RIGHT, 0},
        {"CV", TABLE_RIGHT, 0},
    };
    struct table table;
    table_init(&table, tuning->objective == OBJECTIVE_TIME ? time : balance,
               sizeof balance / sizeof balance[0]);
    for (size_t i = tune_front_next(tuning, tuning->count); i < tuning->count;
         i = tune_front_next(tuning, i)) {
        print_row(&table, tuning, i);
    }
    table_print(&table, stdout);
    table_deinit(&table);
}

static size_t contenders_abandoned(const struct tuning *tuning) {
    size_t count = 0;
    for (size_t i = 0; i < tuning->count; i++) {
        count += tuning->contenders[i].abandoned;
    }
    return count;
}

static size_t contenders_refused(const struct tuning *tuning) {
    size_t count = 0;
    for (size_t i = 0; i < tuning->count; i++) {
        count += tuning->contenders[i].refused;
    }
    return count;
}

static void print_provenance(const struct tuning *tuning) {
    const struct measure_options *options = &tuning->options;
    uint64_t middle = options->warm_up + options->steps;
    printf("\n%zu settings tried on steps %" PRIu64 "..%" PRIu64 " of seed %" PRIu64
           ", %zu of them given up early;\nchecked on steps %" PRIu64 "..%" PRIu64
           " of seed %s; documents of\n%s\n",
           tuning->count - contenders_refused(tuning), options->warm_up, middle - 1,
           tuning->config->source.order.seed, contenders_abandoned(tuning), middle,
           middle + options->steps - 1, tuning->check_seed, scenario_source(&tuning->scenario));
}

/* Whether the config says something else than the default for a key. */
static bool key_is_set(const struct config *config, const char *key) {
    struct config_setting setting;
    for (size_t i = 0; i < config_setting_count(config); i++) {
        config_setting(config, i, &setting);
        if (strcmp(setting.name, key) == 0) {
            return strcmp(setting.origin, "default") != 0;
        }
    }
    return false;
}

/* "plan.policy" = "wlb:level" under [plan]; what the default is already is left out. */
static void print_lines(const struct tuning *tuning, const struct candidate *candidate) {
    const char *section = "";
    size_t section_length = 0;
    for (size_t i = 0; i < candidate->setting_count; i++) {
        const char *key = candidate->settings[i].key;
        size_t length = strcspn(key, ".");
        if (strcmp(candidate->settings[i].value, LEVEL_DEFAULT) == 0 &&
            !key_is_set(tuning->config, key)) {
            continue;
        }
        if (length != section_length || memcmp(key, section, length) != 0) {
            printf("\n[%.*s]\n", (int)length, key);
        }
        section = key;
        section_length = length;
        printf("%s = %s\n", key + length + 1, candidate->settings[i].value);
    }
}

static void print_expected(const struct tuning *tuning, const struct contender *best) {
    const struct outcome *outcome = &best->checked.measured.outcome;
    printf("\nexpect imbalance %s, p99 %s, worst %s; delay %s, p99 %" PRIu64 ", max %" PRIu64
           ";\ntokens within %s in 99 of 100 steps, CV %s",
           units_ratio(outcome->total_ppm).text, units_ratio(outcome->p99_ppm).text,
           units_ratio(outcome->worst_ppm).text, units_milli(outcome->delay_mean_milli).text,
           outcome->delay_p99, outcome->delay_max, units_share(best->checked.tokens_off_ppm).text,
           units_share(outcome->tokens_cv_ppm).text);
    if (tuning->objective == OBJECTIVE_TIME) {
        printf("; step %s", units_time(outcome->step_ns).text);
    }
    printf("\n");
    if (outcome->delay_mean_milli > tuning->delay_max_milli) {
        printf("the delay is above the limit there: allow less with --delay-max, or tune on\n"
               "more steps\n");
    }
}

void tune_print(const struct tuning *tuning) {
    print_front(tuning);
    print_provenance(tuning);
    if (tuning->best == tuning->count) {
        return;
    }
    const struct contender *best = &tuning->contenders[tuning->best];
    printf("\nbest with a mean delay of at most %s: %s%s\n",
           units_milli(tuning->delay_max_milli).text, best->candidate.name,
           tuning->best == 0 ? ", nothing to change" : "");
    print_lines(tuning, &best->candidate);
    print_expected(tuning, best);
}

static void figures_json(struct json *json, const struct figures *figures) {
    json_object_begin(json);
    json_key(json, "outcome");
    json_object_begin(json);
    for (size_t i = 0; i < outcome_fields(); i++) {
        if (strncmp(outcome_name(i), "plan_ns", 7) != 0) {
            json_member_u64(json, outcome_name(i), outcome_value(&figures->measured.outcome, i));
        }
    }
    json_object_end(json);
    json_member_u64(json, "token_ps", figures->token_ps);
    json_member_u64(json, "tokens_off_ppm", figures->tokens_off_ppm);
    json_object_end(json);
}

/* By name. */
static void settings_json(struct json *json, const struct candidate *candidate) {
    const char *last = "";
    json_object_begin(json);
    for (size_t written = 0; written < candidate->setting_count; written++) {
        const struct candidate_setting *next = NULL;
        for (size_t i = 0; i < candidate->setting_count; i++) {
            const struct candidate_setting *setting = &candidate->settings[i];
            if (strcmp(setting->key, last) > 0 &&
                (next == NULL || strcmp(setting->key, next->key) < 0)) {
                next = setting;
            }
        }
        assert(next != NULL);
        json_member_string(json, next->key, next->value);
        last = next->key;
    }
    json_object_end(json);
}

static void contender_json(struct json *json, const struct contender *contender) {
    const struct candidate *candidate = &contender->candidate;
    json_object_begin(json);
    json_key(json, "checked");
    figures_json(json, &contender->checked);
    json_member_string(json, "name", candidate->name);
    json_key(json, "settings");
    settings_json(json, candidate);
    json_key(json, "tuned");
    figures_json(json, &contender->tuned);
    json_object_end(json);
}

static void config_json(struct json *json, const struct tuning *tuning) {
    json_object_begin(json);
    json_member_string(json, "check_seed", tuning->check_seed);
    json_member_u64(json, "delay_max_milli", tuning->delay_max_milli);
    json_member_string(json, "objective", tuning->objective == OBJECTIVE_TIME ? "time" : "balance");
    json_member_u64(json, "seed", tuning->config->source.order.seed);
    json_member_string(json, "source", scenario_source(&tuning->scenario));
    json_member_u64(json, "steps", tuning->options.steps);
    json_key(json, "tokens_tolerance_ppm");
    if (tuning->tolerance_ppm == TUNE_TOLERANCE_ANY) {
        json_absent(json);
    } else {
        json_u64(json, tuning->tolerance_ppm);
    }
    json_member_u64(json, "warm_up", tuning->options.warm_up);
    json_object_end(json);
}

void tune_print_json(const struct tuning *tuning) {
    struct json json;
    json_init(&json, stdout);
    json_object_begin(&json);
    json_member_u64(&json, "abandoned", contenders_abandoned(tuning));
    json_key(&json, "best");
    if (tuning->best < tuning->count) {
        contender_json(&json, &tuning->contenders[tuning->best]);
    } else {
        json_absent(&json);
    }
    json_key(&json, "config");
    config_json(&json, tuning);
    json_key(&json, "front");
    json_array_begin(&json);
    for (size_t i = tune_front_next(tuning, tuning->count); i < tuning->count;
         i = tune_front_next(tuning, i)) {
        contender_json(&json, &tuning->contenders[i]);
    }
    json_array_end(&json);
    json_member_u64(&json, "refused", contenders_refused(tuning));
    json_member_u64(&json, "tried", tuning->count);
    json_object_end(&json);
    json_line(&json);
}
