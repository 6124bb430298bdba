/* ctl: one run of ballastctl: its global options, the command, and how it ends.
 *
 * A command answers with a wire message from whoever can give it (answers.h), then prints it as a
 * table or, with --json, as it is. Data goes to stdout, talk to stderr.
 * Exit codes: 0 ok, 1 refused or failed, 2 usage, 3 daemon not running, 4 no such thing,
 * 5 timed out (STATUS_TABLE of planner/error.h). */
#ifndef BALLAST_CTL_CTL_H
#define BALLAST_CTL_CTL_H

#include "client/call.h"
#include "planner/error.h"
#include "proto/arena.h"

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#define CTL_EXIT_USAGE     2
#define CTL_DEFAULT_SOCKET "/run/ballast/ballast.sock"

/* Where answers come from (answers.h), in order of preference. */
enum origin {
    ORIGIN_STORE,  /* --state: a stopped daemon's directory, with its config */
    ORIGIN_DAEMON, /* --socket: a running daemon */
    ORIGIN_CONFIG, /* --config: nothing but the config and its corpus, from step 0 */
};

struct command;
struct local;

struct ctl {
    const struct command *command;
    const char *state; /* NULL: not given, like the next two */
    const char *socket;
    const char *config;
    struct dial_given credentials; /* for a socket that is an address of TCP */
    unsigned flags; /* which of the three stand on the command line: 1 << enum origin */
    bool json;
    int timeout_ms;
    enum origin origin;           /* as answers_choose decided */
    struct call_channel *channel; /* remote.c's, opened by the first question */
    struct local *local;          /* local.c's, likewise */
    struct arena arena;           /* every message of this run */
    struct error error;           /* why the command failed */
    bool misused;                 /* ... and that it was called wrongly: exit 2 */
};

struct command {
    const char *name;
    const char *summary;
    const char *examples; /* lines that the command's help begins with */
    /* argv[0] is "ballastctl NAME". Returns 0, or a negative errno with ctl->error filled. */
    int (*run)(struct ctl *ctl, int argc, char **argv);
};

int ctl_status(struct ctl *ctl, int argc, char **argv);
int ctl_top(struct ctl *ctl, int argc, char **argv);
int ctl_health(struct ctl *ctl, int argc, char **argv);
int ctl_drain(struct ctl *ctl, int argc, char **argv);
int ctl_queues(struct ctl *ctl, int argc, char **argv);
int ctl_delays(struct ctl *ctl, int argc, char **argv);
int ctl_plan(struct ctl *ctl, int argc, char **argv);
int ctl_corpus(struct ctl *ctl, int argc, char **argv);
int ctl_import(struct ctl *ctl, int argc, char **argv);
int ctl_derived(struct ctl *ctl, int argc, char **argv);
int ctl_verify(struct ctl *ctl, int argc, char **argv);
int ctl_config(struct ctl *ctl, int argc, char **argv);
int ctl_simulate(struct ctl *ctl, int argc, char **argv);
int ctl_tune(struct ctl *ctl, int argc, char **argv);
int ctl_state(struct ctl *ctl, int argc, char **argv);
int ctl_seek(struct ctl *ctl, int argc, char **argv);
int ctl_profile(struct ctl *ctl, int argc, char **argv);
int ctl_version(struct ctl *ctl, int argc, char **argv);

/* Takes what the environment says; -EINVAL for a bad value. */
int ctl_environment(struct ctl *ctl);

/* Parses options. The global ones may stand anywhere: `argp` has ctl_argp_children, and its parser
 * passes `ctl` to child 0 at ARGP_KEY_INIT. Usage errors and --help do not return. */
void ctl_parse(const struct argp *argp, unsigned flags, int argc, char **argv, void *input);
extern const struct argp_child ctl_argp_children[];

/* The same for a command without options or arguments of its own. */
void ctl_parse_none(struct ctl *ctl, const char *doc, int argc, char **argv);

/* "500ms", "10s", "10", "2m", above 0. -EINVAL. */
int ctl_time_parse(const char *text, int *out_ms);

/* A whole number in [0, max] out of `text`, or a usage error that names `what`; ctl_count: in
 * [1, max]. */
uint64_t ctl_number(struct argp_state *state, const char *text, uint64_t max, const char *what);
uint64_t ctl_count(struct argp_state *state, const char *text, uint64_t max, const char *what);

/* The same with up to `places` digits after a point, times 10^places; `suffix` may follow. */
uint64_t ctl_decimal(struct argp_state *state, const char *text, unsigned places, uint64_t max,
                     const char *suffix, const char *what);

/* Prints a message as one line of JSON on stdout. */
void ctl_print_json(const ProtobufCMessage *message);

#endif
