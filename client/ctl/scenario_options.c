/* scenario_options: see scenario_options.h. Most options are a key of the config or a number of the
 * step-time model under a shorter name: two tables say which. */
#include "client/ctl/scenario_options.h"

#include <inttypes.h>
#include <string.h>

enum {
    OPTION_LENGTHS = 800,
    OPTION_CORPUS,
    OPTION_DISTRIBUTION,
    OPTION_CUT,
    OPTION_SET,
    OPTION_SCHEDULE,
    OPTION_RECOMPUTE,
    OPTION_OPTIMIZER,
    OPTION_LAYERS,
    OPTION_KEYS = 600,  /* and on: keys[] */
    OPTION_TIMES = 700, /* and on: times[] */
};

enum key {
    KEY_WINDOW,
    KEY_MICRO_BATCHES,
    KEY_TOKENS_MAX,
    KEY_COST,
    KEY_PROFILE,
    KEY_BANDS,
    KEY_PRESET,
    KEY_LAYOUTS,
    KEY_DP,
    KEY_PP,
    KEY_CP,
    KEY_TP,
    KEYS,
};

static const char *const keys[KEYS] = {
    [KEY_WINDOW] = "plan.window",
    [KEY_MICRO_BATCHES] = "plan.micro_batches",
    [KEY_TOKENS_MAX] = "plan.tokens_max",
    [KEY_COST] = "model.cost",
    [KEY_PROFILE] = "model.profile",
    [KEY_BANDS] = "bands.thresholds",
    [KEY_PRESET] = "level.preset",
    [KEY_LAYOUTS] = "sharding.layouts",
    [KEY_DP] = "parallel.dp",
    [KEY_PP] = "parallel.pp",
    [KEY_CP] = "parallel.cp",
    [KEY_TP] = "parallel.tp",
};

enum time {
    TIME_CHUNKS,
    TIME_SEND_DEPTH,
    TIME_REPLICA_SYNC,
    TIME_VOCAB,
    TIME_NODE_GPUS,
    TIME_EXPOSED_TP,
    TIME_EXPOSED_CP,
    TIME_EXPOSED_PP,
    TIME_EXPOSED_FSDP,
    TIME_ATTENTION_SCALE,
    TIME_LINEAR_SCALE,
    TIME_GPU_SPREAD,
    TIMES,
};

#define TIME(option, member)                                                                       \
    { option, offsetof(struct step_time_options, member) }

static const struct {
    const char *option;
    size_t offset;
} times[TIMES] = {
    [TIME_CHUNKS] = TIME("--chunks", chunks),
    [TIME_SEND_DEPTH] = TIME("--send-depth", send_depth),
    [TIME_REPLICA_SYNC] = TIME("--replica-sync", sync_replicas),
    [TIME_VOCAB] = TIME("--vocab", vocab),
    [TIME_NODE_GPUS] = TIME("--node-gpus", node_gpus),
    [TIME_EXPOSED_TP] = TIME("--exposed-tp", exposed_tp_permille),
    [TIME_EXPOSED_CP] = TIME("--exposed-cp", exposed_cp_permille),
    [TIME_EXPOSED_PP] = TIME("--exposed-pp", exposed_pp_permille),
    [TIME_EXPOSED_FSDP] = TIME("--exposed-fsdp", exposed_fsdp_permille),
    [TIME_ATTENTION_SCALE] = TIME("--attention-scale", attention_permille),
    [TIME_LINEAR_SCALE] = TIME("--linear-scale", linear_permille),
    [TIME_GPU_SPREAD] = TIME("--gpu-spread", gpu_spread_permille),
};

static void override_add(struct scenario_arguments *arguments, const char *key, const char *value,
                         struct argp_state *state) {
    struct error error = {0};
    if (scenario_override(arguments->scenario, key, value, &error) < 0) {
        argp_error(state, "%s", error.text);
    }
}

static void set_parse(struct scenario_arguments *arguments, char *text, struct argp_state *state) {
    char *equals = strchr(text, '=');
    if (equals == NULL || equals == text) {
        argp_error(state, "--set '%s' is not SECTION.KEY=VALUE", text);
        return;
    }
    *equals = '\0';
    override_add(arguments, text, equals + 1, state);
}

static void cut_parse(struct scenario_arguments *arguments, const char *text,
                      struct argp_state *state) {
    arguments->scenario->cut = strcmp(text, "sequence") == 0;
    if (!arguments->scenario->cut && strcmp(text, "whole") != 0) {
        argp_error(state, "--cut '%s' is neither sequence nor whole", text);
    }
}

static void schedule_parse(struct scenario_arguments *arguments, const char *text,
                           struct argp_state *state) {
    if (pipeline_schedule_parse(text, &arguments->times->schedule) < 0) {
        argp_error(state, "--schedule '%s' is none of 1f1b, interleaved, afab", text);
    }
}

static void recompute_parse(struct scenario_arguments *arguments, const char *text,
                            struct argp_state *state) {
    static const char *const names[] = {"none", "attention", "full"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(text, names[i]) == 0) {
            arguments->times->recompute = (enum recompute)i;
            return;
        }
    }
    argp_error(state, "--recompute '%s' is none of none, attention, full", text);
}

static void layers_parse(struct scenario_arguments *arguments, char *list,
                         struct argp_state *state) {
    uint32_t count = 0;
    char *rest = NULL;
    for (char *one = strtok_r(list, ",", &rest); one != NULL; one = strtok_r(NULL, ",", &rest)) {
        if (count == LAYERS_LIST_MAX) {
            argp_error(state, "--layers: more than %u chunks", LAYERS_LIST_MAX);
        }
        arguments->layers[count++] = (uint32_t)ctl_count(state, one, UINT32_MAX, "--layers");
    }
    arguments->times->layers = arguments->layers;
    arguments->times->layer_count = count;
}

/* The options that the tables name; false for others. */
static bool table_parse(struct scenario_arguments *arguments, int key, char *arg,
                        struct argp_state *state) {
    if (key >= OPTION_KEYS && key < OPTION_KEYS + KEYS) {
        override_add(arguments, keys[key - OPTION_KEYS], arg, state);
        return true;
    }
    if (key >= OPTION_TIMES && key < OPTION_TIMES + TIMES) {
        char *base = (char *)arguments->times;
        uint32_t value = (uint32_t)ctl_number(state, arg, UINT32_MAX,
                                              times[key - OPTION_TIMES].option);
        memcpy(base + times[key - OPTION_TIMES].offset, &value, sizeof value);
        return true;
    }
    return false;
}

/* "PREFIX" or "PREFIX=WEIGHT". */
static void corpus_parse(struct scenario_arguments *arguments, char *text,
                         struct argp_state *state) {
    struct error error = {0};
    char *equals = strrchr(text, '=');
    if (equals != NULL) {
        *equals = '\0';
    }
    if (scenario_add_corpus(arguments->scenario, text, equals != NULL ? equals + 1 : NULL, &error) <
        0) {
        argp_error(state, "%s", error.text);
    }
}

static void arguments_check(struct scenario_arguments *arguments, struct argp_state *state) {
    struct scenario *scenario = arguments->scenario;
    scenario->config = arguments->ctl->config;
    int sources = (scenario->lengths != NULL) + (scenario->distribution != NULL) +
                  (scenario->corpora > 0);
    if (sources > 1) {
        argp_error(state, "--lengths, --distribution, --corpus: documents come from one of them");
    }
    bool named = (arguments->ctl->flags & 1u << ORIGIN_CONFIG) != 0;
    if (scenario->corpora > 0 && !named) {
        scenario->config = NULL; /* of the environment */
    } else if (scenario->corpora > 0) {
        argp_error(state, "--corpus: the config names its own corpus; give one of them, and "
                          "settings with --set");
    }
    if (scenario->config == NULL && sources == 0) {
        argp_error(state, "which documents? name a job's config with --config FILE, PREFIX.idx "
                          "with --corpus PREFIX, a file of lengths with --lengths, or a list with "
                          "--distribution wlb128k");
    }
}

static error_t arguments_parse(int key, char *arg, struct argp_state *state) {
    struct scenario_arguments *arguments = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = arguments->ctl;
        return 0;
    case OPTION_LENGTHS:
        *(distribution_find(arg) != NULL ? &arguments->scenario->distribution
                                         : &arguments->scenario->lengths) = arg;
        return 0;
    case OPTION_CORPUS:
        corpus_parse(arguments, arg, state);
        return 0;
    case OPTION_DISTRIBUTION:
        arguments->scenario->distribution = arg;
        return 0;
    case OPTION_CUT:
        cut_parse(arguments, arg, state);
        return 0;
    case OPTION_SET:
        set_parse(arguments, arg, state);
        return 0;
    case OPTION_SCHEDULE:
        schedule_parse(arguments, arg, state);
        return 0;
    case OPTION_RECOMPUTE:
        recompute_parse(arguments, arg, state);
        return 0;
    case OPTION_OPTIMIZER:
        arguments->times->optimizer_ns =
            ctl_number(state, arg, INT64_MAX / 1000000, "--optimizer") * 1000000;
        return 0;
    case OPTION_LAYERS:
        layers_parse(arguments, arg, state);
        return 0;
    case ARGP_KEY_END:
        arguments_check(arguments, state);
        return 0;
    default:
        return table_parse(arguments, key, arg, state) ? 0 : ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Documents:", 1},
    {"corpus", OPTION_CORPUS, "PREFIX[=WEIGHT]", 0,
     "Those of PREFIX.idx, instead of a config's; may be repeated", 0},
    {"lengths", OPTION_LENGTHS, "FILE", 0,
     "Documents of these lengths, one whole number a line, read in the config's order; or a "
     "built-in list by name",
     0},
    {"distribution", OPTION_DISTRIBUTION, "NAME", 0,
     "Built-in lengths: wlb128k, prolong, libra256k, libra1m", 0},
    {"cut", OPTION_CUT, "HOW", 0,
     "sequence: documents end where plain packing would cut them, so that all policies train the "
     "same pieces; whole (the default): as they are",
     0},
    {NULL, 0, NULL, 0, "Settings of the job, before the config's:", 3},
    {"window", OPTION_KEYS + KEY_WINDOW, "TOKENS", 0, "plan.window", 0},
    {"micro-batches", OPTION_KEYS + KEY_MICRO_BATCHES, "N", 0, "plan.micro_batches", 0},
    {"global-batch", OPTION_KEYS + KEY_MICRO_BATCHES, "N", OPTION_ALIAS, NULL, 0},
    {"tokens-max", OPTION_KEYS + KEY_TOKENS_MAX, "TOKENS", 0, "plan.tokens_max, such as 1.25w", 0},
    {"cost", OPTION_KEYS + KEY_COST, "COST", 0, "model.cost: analytic, or L2/C for L*(L+C)", 0},
    {"profile", OPTION_KEYS + KEY_PROFILE, "FILE", 0, "model.profile: a latency profile", 0},
    {"bands", OPTION_KEYS + KEY_BANDS, "LIST", 0, "bands.thresholds, such as 49152,81920", 0},
    {"preset", OPTION_KEYS + KEY_PRESET, "NAME", 0, "level.preset", 0},
    {"layouts", OPTION_KEYS + KEY_LAYOUTS, "LIST", 0, "sharding.layouts", 0},
    {"dp", OPTION_KEYS + KEY_DP, "N", 0, "parallel.dp; likewise pp, cp, tp", 0},
    {"pp", OPTION_KEYS + KEY_PP, "N", OPTION_HIDDEN, "parallel.pp", 0},
    {"cp", OPTION_KEYS + KEY_CP, "N", OPTION_HIDDEN, "parallel.cp", 0},
    {"tp", OPTION_KEYS + KEY_TP, "N", OPTION_HIDDEN, "parallel.tp", 0},
    {"set", OPTION_SET, "KEY=VALUE", 0, "Any other, such as model.layers=80", 0},
    {NULL, 0, NULL, 0, "Step times:", 4},
    {"schedule", OPTION_SCHEDULE, "NAME", 0, "1f1b (the default), interleaved, afab", 0},
    {"chunks", OPTION_TIMES + TIME_CHUNKS, "V", 0, "Model chunks a stage, interleaved or afab (1)",
     0},
    {"layers", OPTION_LAYERS, "LIST", 0,
     "Layers of each chunk, as a micro-batch meets them: pp * chunks numbers (even)", 0},
    {"send-depth", OPTION_TIMES + TIME_SEND_DEPTH, "K", 0,
     "Outputs that a stage may hold on a link; 0 (the default): as it likes", 0},
    {"replica-sync", OPTION_TIMES + TIME_REPLICA_SYNC, "S", 0,
     "Groups of S replicas that meet at every micro-batch, with pp = 1; 0 (the default): once a "
     "step",
     0},
    {"vocab", OPTION_TIMES + TIME_VOCAB, "N", 0,
     "Vocabulary of a head on the last stage; 0 (the default): layers were moved to pay for it", 0},
    {"recompute", OPTION_RECOMPUTE, "WHAT", 0, "none (the default), attention, full", 0},
    {"node-gpus", OPTION_TIMES + TIME_NODE_GPUS, "N", 0, "GPUs a node (8)", 0},
    {"exposed-tp", OPTION_TIMES + TIME_EXPOSED_TP, "PERMILLE", 0,
     "Share of tensor-parallel communication that compute does not hide (0); likewise -cp, -pp, "
     "-fsdp",
     0},
    {"exposed-cp", OPTION_TIMES + TIME_EXPOSED_CP, "PERMILLE", OPTION_HIDDEN, "", 0},
    {"exposed-pp", OPTION_TIMES + TIME_EXPOSED_PP, "PERMILLE", OPTION_HIDDEN, "", 0},
    {"exposed-fsdp", OPTION_TIMES + TIME_EXPOSED_FSDP, "PERMILLE", OPTION_HIDDEN, "", 0},
    {"optimizer", OPTION_OPTIMIZER, "MS", 0, "Optimizer, milliseconds a step (0)", 0},
    {"gpu-spread", OPTION_TIMES + TIME_GPU_SPREAD, "PERMILLE", 0,
     "How much slower than the mean the slowest GPU is (0)", 0},
    {"attention-scale", OPTION_TIMES + TIME_ATTENTION_SCALE, "PERMILLE", 0,
     "Attention, of what the model says (1000)", 0},
    {"linear-scale", OPTION_TIMES + TIME_LINEAR_SCALE, "PERMILLE", 0, "Everything linear (1000)",
     0},
    {0},
};

static const struct argp argp = {
    .options = options,
    .parser = arguments_parse,
    .children = ctl_argp_children,
};

const struct argp_child scenario_argp_children[] = {{&argp, 0, NULL, 0}, {0}};
