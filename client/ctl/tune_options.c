/* tune_options: the command line of `ballastctl tune`, beside what describes the job and its
 * documents (scenario_options.h). */
#include "client/ctl/tune.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_MAX     1000000u
#define DELAY_MAX     1000000u /* steps */
#define TOLERANCE_MAX 100u     /* percent */

enum {
    OPTION_STEPS = 500,
    OPTION_WARM_UP,
    OPTION_SEED,
    OPTION_CHECK_SEED,
    OPTION_DELAY_MAX,
    OPTION_TOLERANCE,
    OPTION_OBJECTIVE,
    OPTION_HTML,
};

static void objective_parse(struct tuning *tuning, const char *text, struct argp_state *state) {
    tuning->objective = strcmp(text, "time") == 0 ? OBJECTIVE_TIME : OBJECTIVE_BALANCE;
    if (tuning->objective == OBJECTIVE_BALANCE && strcmp(text, "balance") != 0) {
        argp_error(state, "--objective '%s' is neither balance nor time", text);
    }
}

static error_t option_parse(int key, char *arg, struct argp_state *state) {
    struct tuning *tuning = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &tuning->arguments;
        return 0;
    case OPTION_STEPS:
        tuning->options.steps = ctl_count(state, arg, STEPS_MAX, "--steps");
        return 0;
    case OPTION_WARM_UP:
        tuning->options.warm_up = ctl_number(state, arg, STEPS_MAX, "--warm-up");
        return 0;
    case OPTION_SEED:
        (void)ctl_number(state, arg, UINT64_MAX, "--seed");
        tuning->seed = arg;
        return 0;
    case OPTION_CHECK_SEED:
        (void)ctl_number(state, arg, UINT64_MAX, "--check-seed");
        tuning->check_seed = arg;
        return 0;
    case OPTION_DELAY_MAX:
        tuning->delay_max_milli = ctl_decimal(state, arg, 3, DELAY_MAX, "", "--delay-max");
        return 0;
    case OPTION_TOLERANCE:
        tuning->tolerance_ppm = (uint32_t)ctl_decimal(state, arg, 4, TOLERANCE_MAX, "%",
                                                      "--tokens-tolerance");
        return 0;
    case OPTION_OBJECTIVE:
        objective_parse(tuning, arg, state);
        return 0;
    case OPTION_HTML:
        tuning->html = arg;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "takes no argument '%s'", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {"seed", OPTION_SEED, "S", 0, "Tune on this order instead of the config's", 1},
    {"check-seed", OPTION_CHECK_SEED, "S", 0, "Check on this one (the next)", 0},
    {NULL, 0, NULL, 0, "What is sought:", 2},
    {"objective", OPTION_OBJECTIVE, "WHAT", 0,
     "balance (the default): the heaviest micro-batch over the mean; time: predicted step time "
     "by token",
     0},
    {"delay-max", OPTION_DELAY_MAX, "STEPS", 0, "Mean delay allowed (0.5)", 0},
    {"tokens-tolerance", OPTION_TOLERANCE, "PERCENT", 0,
     "Only settings with which 99 of 100 steps miss plan.step_tokens by at most this, such as 1%",
     0},
    {"steps", OPTION_STEPS, "N", 0,
     "Steps to tune on, and as many after them to check on (200, or half of the data)", 0},
    {"warm-up", OPTION_WARM_UP, "N", 0,
     "Steps before both, not counted (a tenth, at least queues.max_age; none when the data end)",
     0},
    {"html", OPTION_HTML, "FILE", 0, "Write a page with figures too", 0},
    {0},
};

static const struct argp argp = {
    .options = options,
    .parser = option_parse,
    .doc = "Tries settings of wlb:level and wlb:bands on one span of steps and prints those that "
           "none beats in both balance and delay, with what they give on later steps of another "
           "seed, and the lines of the best within the limits for the config. TUNED and AT are "
           "imbalance (or tokens a second by GPU) and mean delay on the steps tuned on; the rest "
           "is from those checked on: TOTAL, P99 and WORST the heaviest micro-batch over the "
           "mean, DELAY in steps with its 99th percentile and MAX, CV the spread of a step's "
           "tokens. 'level 25/50 p1 a2' has a token_tolerance of 25 %, a headroom_share of 50 %, "
           "urgency_power 1 and an allowance of 2 %.",
    .children = scenario_argp_children,
};

void tune_parse(struct tuning *tuning, int argc, char **argv) {
    tuning->arguments = (struct scenario_arguments){
        .ctl = tuning->ctl,
        .scenario = &tuning->scenario,
        .times = &tuning->options.times,
    };
    ctl_parse(&argp, 0, argc, argv, tuning);
}
