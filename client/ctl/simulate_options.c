/* simulate_options: the command line of `ballastctl simulate`, beside what describes the job and
 * its documents (scenario_options.h). */
#include "client/ctl/simulate.h"
#include "client/ctl/timing_log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_MAX     1000000u
#define DEFAULT_STEPS 100u
#define POOLS_STEPS   8u
#define IMBALANCE_MAX 1000u
#define PPM           1000000u

enum {
    OPTION_POLICIES = 500,
    OPTION_STEPS,
    OPTION_WARM_UP,
    OPTION_SEED,
    OPTION_HTML,
    OPTION_CALIBRATE,
    OPTION_CALIBRATE_LOG,
    OPTION_IMBALANCE,
    OPTION_MEASURED_STEP,
    OPTION_EXACT,
    OPTION_EXACT_GROUPS,
    OPTION_CONTEXT_PARALLEL,
};

/* "NAME" or "NAME@LAYOUT+LAYOUT". */
static void policy_check(const char *text, struct argp_state *state) {
    char *copy = strdup(text);
    char *layouts = copy != NULL ? strchr(copy, '@') : NULL;
    char *rest = NULL;
    enum policy policy;
    uint32_t pool_size;
    enum layout layout;
    if (layouts != NULL) {
        *layouts++ = '\0';
    }
    if (copy == NULL || policy_pool_parse(copy, &policy, &pool_size) < 0) {
        argp_error(state,
                   "--policies: there is no policy '%s'; there are plain, fixed:1 to "
                   "fixed:%u, wlb:none, wlb:bands, wlb:level, pool:P, wlb:X+pool:P",
                   text, FIXED_BATCHES_MAX);
    }
    char *name = layouts != NULL ? strtok_r(layouts, "+", &rest) : NULL;
    if (layouts != NULL && name == NULL) {
        argp_error(state, "--policies: '%s' names no layout", text);
    }
    for (; name != NULL; name = strtok_r(NULL, "+", &rest)) {
        if (layout_parse(name, &layout) < 0) {
            argp_error(state,
                       "--policies: '%s' has no layout '%s'; there are per-sequence, "
                       "per-document, variable-degree, hybrid and ulysses",
                       text, name);
        }
    }
    free(copy);
}

static void policies_parse(struct simulation *simulation, char *list, struct argp_state *state) {
    char *rest = NULL;
    simulation->policy_count = 0;
    for (char *name = strtok_r(list, ",", &rest); name != NULL; name = strtok_r(NULL, ",", &rest)) {
        if (simulation->policy_count == POLICIES_MAX) {
            argp_error(state, "more than %u policies", POLICIES_MAX);
        }
        policy_check(name, state);
        simulation->policies[simulation->policy_count++] = name;
    }
    if (simulation->policy_count == 0) {
        argp_error(state, "--policies names none");
    }
}

static void seed_add(struct simulation *simulation, const char *seed, struct argp_state *state) {
    (void)ctl_number(state, seed, UINT64_MAX, "--seed");
    if (simulation->seed_count == SEEDS_MAX) {
        argp_error(state, "more than %u seeds", SEEDS_MAX);
    }
    simulation->seeds[simulation->seed_count++] = seed;
}

static void calibrate_parse(struct simulation *simulation, char *text, struct argp_state *state) {
    char *comma = strchr(text, ',');
    if (comma == NULL) {
        argp_error(state, "--calibrate '%s' is not two times, SHORT,LONG in ns", text);
        return;
    }
    *comma = '\0';
    simulation->short_ns = ctl_count(state, text, TIMING_NS_MAX, "--calibrate");
    simulation->long_ns = ctl_count(state, comma + 1, TIMING_NS_MAX, "--calibrate");
}

/* "1.44" in millionths. */
static uint64_t ratio_parse(const char *text, struct argp_state *state) {
    uint64_t ratio_ppm = ctl_decimal(state, text, 6, IMBALANCE_MAX, "", "--imbalance");
    if (ratio_ppm <= PPM) {
        argp_error(state, "--imbalance '%s' is not above 1, such as 1.44", text);
    }
    return ratio_ppm;
}

/* "K" or "K,SECONDS". */
static void exact_parse(struct exact_options *exact, char *text, struct argp_state *state) {
    char *comma = strchr(text, ',');
    if (comma != NULL) {
        *comma = '\0';
        exact->limit_ms =
            (uint32_t)ctl_count(state, comma + 1, EXACT_SECONDS_MAX, "--exact: seconds") * 1000;
    }
    exact->batches = (uint32_t)ctl_count(state, text, FIXED_BATCHES_MAX, "--exact: global batches");
}

static void measured_step_parse(struct simulation *simulation, const char *text,
                                struct argp_state *state) {
    int ms = 0;
    if (ctl_time_parse(text, &ms) < 0) {
        argp_error(state, "--measured-step '%s' is not a time above 0; write 3100ms or 3s", text);
    }
    simulation->measured_step_ns = (uint64_t)ms * 1000000;
}

static void layouts_parse(struct simulation *simulation, const char *text,
                          struct argp_state *state) {
    uint64_t ranks = ctl_count(state, text, RANKS_LIMIT, "--context-parallel");
    if (ranks < 2) {
        argp_error(state, "--context-parallel %s: a group has at least 2 ranks", text);
    }
    if (scenario_override(&simulation->scenario, "parallel.cp", text, &simulation->ctl->error) <
        0) {
        argp_error(state, "%s", simulation->ctl->error.text);
    }
    simulation->layouts = true;
}

static error_t option_parse(int key, char *arg, struct argp_state *state) {
    struct simulation *simulation = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &simulation->arguments;
        return 0;
    case OPTION_POLICIES:
        policies_parse(simulation, arg, state);
        return 0;
    case OPTION_STEPS:
        simulation->options.steps = ctl_count(state, arg, STEPS_MAX, "--steps");
        return 0;
    case OPTION_WARM_UP:
        simulation->options.warm_up = ctl_number(state, arg, STEPS_MAX, "--warm-up");
        return 0;
    case OPTION_SEED:
        seed_add(simulation, arg, state);
        return 0;
    case OPTION_HTML:
        simulation->html = arg;
        return 0;
    case OPTION_CALIBRATE:
        calibrate_parse(simulation, arg, state);
        return 0;
    case OPTION_CALIBRATE_LOG:
        simulation->log = arg;
        return 0;
    case OPTION_IMBALANCE:
        simulation->imbalance_ppm = ratio_parse(arg, state);
        return 0;
    case OPTION_MEASURED_STEP:
        measured_step_parse(simulation, arg, state);
        return 0;
    case OPTION_EXACT:
        exact_parse(&simulation->exact.options, arg, state);
        return 0;
    case OPTION_EXACT_GROUPS:
        simulation->exact.options.groups = (uint32_t)ctl_count(state, arg, EXACT_GROUPS_MAX,
                                                               "--exact-groups");
        return 0;
    case OPTION_CONTEXT_PARALLEL:
        layouts_parse(simulation, arg, state);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "takes no argument '%s'", arg);
        return 0;
    case ARGP_KEY_END:
        pools_options_check(&simulation->pools, state);
        if ((simulation->pools.wanted || simulation->layouts) &&
            (simulation->html != NULL || simulation->exact.options.batches > 0)) {
            argp_error(state, "--html and --exact are about policies: leave out --pool or "
                              "--context-parallel, or them");
        }
        if (simulation->pools.wanted && simulation->layouts) {
            argp_error(state, "--pool and --context-parallel show different things: give one");
        }
        if ((simulation->imbalance_ppm > 0) + (simulation->short_ns > 0) +
                (simulation->log != NULL) >
            1) {
            argp_error(state, "--calibrate, --calibrate-log, --imbalance: one of them sets the "
                              "scales");
        }
        return 0;
    default:
        return pools_option_parse(&simulation->pools, key, arg, state) ? 0 : ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {"seed", OPTION_SEED, "S", 0, "Shuffle with this seed instead of the config's; may be repeated",
     1},
    {NULL, 0, NULL, 0, "What is compared:", 2},
    {"policies", OPTION_POLICIES, "LIST", 0,
     "Policies (plain,fixed:4,wlb:none,wlb:bands,wlb:level); NAME@per-sequence+per-document allows "
     "one "
     "these layouts only",
     0},
    {"steps", OPTION_STEPS, "N", 0, "Steps to count with each (100; pools and layouts 8)", 0},
    {"warm-up", OPTION_WARM_UP, "N", 0,
     "Steps planned first and not counted (a tenth, at least queues.max_age; none when the data "
     "end)",
     0},
    {"exact", OPTION_EXACT, "K[,SECONDS]", 0,
     "Solve fixed-length packing of K global batches at once exactly too, as WLB-LLM states it, "
     "for at most SECONDS (10) a group",
     0},
    {"exact-groups", OPTION_EXACT_GROUPS, "N", 0, "Groups solved for each seed, at most (3)", 0},
    {"html", OPTION_HTML, "FILE", 0, "Write a page with figures too", 0},
    {"calibrate", OPTION_CALIBRATE, "SHORT,LONG", 0,
     "Set both scales from measured forward times of a middle stage, ns: a window of 32 equal "
     "documents, and a window of one, both laid out per sequence",
     4},
    {"calibrate-log", OPTION_CALIBRATE_LOG, "FILE", 0,
     "Set both scales from a log of such forward times, one micro-batch a line: its ns, then the "
     "lengths of its documents in row order; laid out by sharding.layouts",
     0},
    {"imbalance", OPTION_IMBALANCE, "RATIO", 0,
     "Set attention's scale so that plain packing's micro-batches are this uneven, such as 1.44",
     0},
    {"measured-step", OPTION_MEASURED_STEP, "TIME", 0,
     "Compare the first policy's predicted step with this measured one", 0},
    {NULL, 0, NULL, 0, "Layouts, instead of policies:", 5},
    {"context-parallel", OPTION_CONTEXT_PARALLEL, "N", 0,
     "A row for each layout of full windows on N ranks, and one for what sharding.layouts choose",
     0},
    POOLS_ARGP_OPTIONS,
    {0},
};

static const struct argp argp = {
    .options = options,
    .parser = option_parse,
    .doc = "Plans steps with each policy over the same documents and compares them. TOTAL and "
           "WORST are the heaviest micro-batch over the mean; DELAY the mean, MAX the largest, in "
           "steps; CV the spread of a step's tokens; LONG what a token of a document over a "
           "quarter of the window weighs beside a mean one where the loss is averaged over a "
           "step's own tokens (plan.loss_denominator = constant makes it 1); STEP its predicted "
           "time, GAIN tokens a second "
           "against plain packing, BUBBLE the share of the pipelines' time that is idle. Of a "
           "config with [from STEP] sections what holds at step 0 is measured.",
    .children = scenario_argp_children,
};

void simulate_parse(struct simulation *simulation, int argc, char **argv) {
    simulation->arguments = (struct scenario_arguments){
        .ctl = simulation->ctl,
        .scenario = &simulation->scenario,
        .times = &simulation->options.times,
    };
    ctl_parse(&argp, 0, argc, argv, simulation);
    if (simulation->options.steps == 0) {
        bool windows = simulation->pools.wanted || simulation->layouts;
        simulation->options.steps = windows ? POOLS_STEPS : DEFAULT_STEPS;
    }
    if (simulation->seed_count == 0) {
        simulation->seed_count = 1;
    }
}
