/* ballastctl: asks a daemon, or answers in its place when there is none. The table of commands and
 * how a run ends; everything else stands beside its topic. */
#include "client/ctl/answers.h"
#include "client/ctl/ctl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_BYTES_MAX (1ull << 30)
#define NAME_BYTES       64u

static const struct command commands[] = {
    {"status", "what the daemon is doing: steps, ranks, datasets, balance",
     "  ballastctl status\n"
     "  ballastctl status --json | jq .committed_step\n"
     "  ballastctl status --state /var/lib/ballast --config job.conf\n",
     ctl_status},
    {"queues", "what waits: bands and leftovers, with --documents each one",
     "  ballastctl queues\n"
     "  ballastctl queues --documents\n"
     "  ballastctl queues --state /var/lib/ballast --config job.conf\n",
     ctl_queues},
    {"plan", "one step's micro-batches, or a row for each of many steps",
     "  ballastctl plan 120\n"
     "  ballastctl plan 120 --fragments\n"
     "  ballastctl plan --config job.conf --steps 0..99\n",
     ctl_plan},
    {"delays", "how many steps documents were held back, by dataset",
     "  ballastctl delays\n"
     "  ballastctl delays --json\n",
     ctl_delays},
    {"corpus", "datasets: what arrived, was delivered, waits, was dropped",
     "  ballastctl corpus\n"
     "  ballastctl corpus --config job.conf\n",
     ctl_corpus},
    {"config", "effective settings, where each comes from, limits in use",
     "  ballastctl config\n"
     "  ballastctl config --config job.conf\n",
     ctl_config},
    {"health", "one line and an exit code, for probes",
     "  ballastctl health --timeout 2s || echo 'not serving'\n", ctl_health},
    {"top", "live: ranks, waits, queues, balance, reads, store",
     "  ballastctl top                             q quits\n"
     "  ballastctl top --interval 5s\n"
     "  ballastctl top --once\n",
     ctl_top},
    {"drain", "plan no further step; serve those planned, then end",
     "  ballastctl drain\n"
     "  ballastctl health                          draining, finished\n",
     ctl_drain},
    {"seek", "take the whole job to another step, back or on",
     "  ballastctl seek 1200\n"
     "  ballastctl seek 1200 --timeout 10m         far from any stored step\n",
     ctl_seek},
    {"state", "checkpoints: export, import, show, diff",
     "  ballastctl state export step1200.state --step 1200\n"
     "  ballastctl state export step1200.state --state DIR --config job.conf\n"
     "  ballastctl state show step1200.state\n"
     "  ballastctl state diff step1200.state other.state\n"
     "  ballastctl state import step1200.state     on a node that has lost its own\n",
     ctl_state},
    {"import", "a tree of text files to a Megatron dataset of byte tokens",
     "  ballastctl import /usr/share/doc/perl data/perl --suffixes pod,txt\n"
     "  ballastctl import /usr/share/man data/man --gz\n",
     ctl_import},
    {"verify", "read a whole dataset and check every token",
     "  ballastctl verify data/perl\n"
     "  ballastctl verify data/perl --vocab 50257\n",
     ctl_verify},
    {"derived", "files kept of compressed datasets, and what is stale",
     "  ballastctl derived --config job.conf\n"
     "  ballastctl derived --config job.conf --prune\n",
     ctl_derived},
    {"simulate", "compare packing policies over the same documents",
     "  ballastctl simulate --config job.conf\n"
     "  ballastctl simulate --config job.conf --policies plain,wlb:level --seed 7\n"
     "  ballastctl simulate --distribution wlb128k --steps 4000 --tokens-max 2w\n",
     ctl_simulate},
    {"tune", "find the settings that suit a corpus, for the config",
     "  ballastctl tune --config job.conf\n"
     "  ballastctl tune --config job.conf --delay-max 0.3 --tokens-tolerance 1%\n"
     "  ballastctl tune --distribution wlb128k --micro-batches 16 --objective time\n",
     ctl_tune},
    {"profile", "latency profiles: show, compare, fit",
     "  ballastctl profile show FILE.json\n"
     "  ballastctl profile compare OLD.json NEW.json\n"
     "  ballastctl profile fit FILE.json           launch, t0 and tb of each direction\n",
     ctl_profile},
    {"version", "versions of the program, the protocol and its libraries", "  ballastctl version\n",
     ctl_version},
};

static const size_t command_count = sizeof commands / sizeof commands[0];

/* Stands for the program itself in --help. */
static const struct command program = {
    .name = "",
    .examples = "  ballastctl status                          is the daemon serving?\n"
                "  ballastctl plan 120                        what ranks get for step 120\n"
                "  ballastctl queues --documents              what waits, and since when\n"
                "  ballastctl plan --config job.conf --step 0 without a daemon\n",
};

static const struct command *command_find(const char *name) {
    for (size_t i = 0; i < command_count; i++) {
        if (strcmp(commands[i].name, name) == 0) {
            return &commands[i];
        }
    }
    return NULL;
}

struct launch {
    struct ctl *ctl;
    int command_index; /* in argv */
};

/* The first word that is no option is the command; what follows is the command's. */
static error_t main_parse(int key, char *arg, struct argp_state *state) {
    struct launch *launch = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = launch->ctl;
        return 0;
    case 'V':
        printf("ballastctl %s\n", BALLAST_VERSION);
        exit(0);
    case ARGP_KEY_ARG:
        launch->ctl->command = command_find(arg);
        if (launch->ctl->command == NULL) {
            launch->ctl->command = &program;
            argp_error(state, "there is no command '%s'; --help lists them", arg);
        }
        launch->command_index = state->next - 1;
        state->next = state->argc;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "no command; --help lists them");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* The commands stand between the usage line and the options. */
static char *main_doc(int key, const char *text, void *input) {
    (void)input;
    char *doc = NULL;
    size_t bytes = 0;
    if (key != ARGP_KEY_HELP_PRE_DOC) {
        return (char *)text;
    }
    FILE *out = open_memstream(&doc, &bytes);
    if (out == NULL) {
        return (char *)text;
    }
    fputs("Commands:\n", out);
    for (size_t i = 0; i < command_count; i++) {
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    }
    fputs("\n'ballastctl COMMAND --help' shows examples and options of one.", out);
    return fclose(out) == 0 ? doc : (char *)text;
}

static const struct argp_option main_options[] = {
    {"version", 'V', NULL, 0, "Show the version", -1},
    {0},
};

static const struct argp main_argp = {
    .options = main_options,
    .parser = main_parse,
    .args_doc = "COMMAND",
    .doc = "Commands",
    .children = ctl_argp_children,
    .help_filter = main_doc,
};

/* Data that did not reach its file is a failure, whatever the command thinks. */
static int stdout_check(struct ctl *ctl, int rc) {
    if (fflush(stdout) == 0 && !ferror(stdout)) {
        return rc;
    }
    return rc < 0 ? rc : error_set(&ctl->error, -EIO, "standard output: %s", strerror(errno));
}

static int command_run(struct ctl *ctl, int argc, char **argv) {
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof name, "ballastctl %s", ctl->command->name);
    argv[0] = name;
    int rc = stdout_check(ctl, ctl->command->run(ctl, argc, argv));
    if (rc < 0) {
        fprintf(stderr, "%s: %s\n", name, ctl->error.text);
    }
    return rc < 0 && ctl->misused ? CTL_EXIT_USAGE : status_exit_code(status_from_error(rc));
}

int main(int argc, char **argv) {
    struct ctl ctl = {.command = &program, .timeout_ms = 10000};
    struct launch launch = {.ctl = &ctl};
    argv[0] = "ballastctl";
    argp_err_exit_status = CTL_EXIT_USAGE;
    if (ctl_environment(&ctl) < 0) {
        fprintf(stderr, "ballastctl: %s\n", ctl.error.text);
        return CTL_EXIT_USAGE;
    }
    ctl_parse(&main_argp, ARGP_IN_ORDER, argc, argv, &launch);
    arena_init(&ctl.arena, ANSWER_BYTES_MAX);
    int exit_code = command_run(&ctl, argc - launch.command_index, argv + launch.command_index);
    local_close(&ctl);
    remote_close(&ctl);
    arena_deinit(&ctl.arena);
    return exit_code;
}
