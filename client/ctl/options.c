/* options: the global options, which may stand before and after the command, and their environment
 * variables. A flag wins over its variable. */
#include "client/ctl/ctl.h"
#include "client/dial_options.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPTION_SOCKET = 1000,
    OPTION_STATE,
    OPTION_CONFIG,
    OPTION_JSON,
    OPTION_TIMEOUT,
    OPTION_USAGE
};

static const struct argp_option global_options[] = {
    {"socket", OPTION_SOCKET, "PATH", 0,
     "Ask the daemon on this socket (BALLAST_SOCKET; /run/ballast/ballast.sock), or at the address "
     "tcp:127.0.0.1:PORT or tls:HOST:PORT",
     0},
    {"state", OPTION_STATE, "DIR", 0,
     "Read a stopped daemon's state directory, with --config (BALLAST_STATE)", 0},
    {"config", OPTION_CONFIG, "FILE", 0,
     "The job's config: read by plan, corpus, config, simulate and tune, else it names the socket "
     "(BALLAST_CONFIG)",
     0},
    {"json", OPTION_JSON, NULL, 0, "Print the wire message as one line of JSON (BALLAST_JSON=1)",
     0},
    {"timeout", OPTION_TIMEOUT, "TIME", 0,
     "Wait at most this long for an answer: 500ms, 10s, 2m (BALLAST_TIMEOUT; 10s)", 0},
    {"help", 'h', NULL, 0, "Show this", -1},
    {"usage", OPTION_USAGE, NULL, 0, "Show a short usage line", -1},
    {0},
};

static bool digit_add(uint64_t *value, char digit) {
    return !__builtin_mul_overflow(*value, 10, value) &&
           !__builtin_add_overflow(*value, (uint64_t)(digit - '0'), value);
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* Reads digits, then up to `places` after a point, as a whole number of 10^-places: all that
 * options take for numbers. Returns what follows them, NULL when there is no number or it is too
 * large. */
static const char *number_read(const char *text, unsigned places, uint64_t *out) {
    const char *at = text;
    uint64_t value = 0;
    bool fits = is_digit(*at);
    for (; fits && is_digit(*at); at++) {
        fits = digit_add(&value, *at);
    }
    at += fits && places > 0 && *at == '.';
    for (unsigned i = 0; fits && i < places; i++) {
        fits = digit_add(&value, is_digit(*at) ? *at++ : '0');
    }
    *out = value;
    return fits ? at : NULL;
}

int ctl_time_parse(const char *text, int *out_ms) {
    static const struct {
        const char *suffix;
        uint64_t ms;
    } units[] = {{"ms", 1}, {"s", 1000}, {"", 1000}, {"m", 60000}};
    uint64_t value;
    const char *end = number_read(text, 0, &value);
    for (size_t i = 0; end != NULL && value > 0 && i < sizeof units / sizeof units[0]; i++) {
        if (strcmp(end, units[i].suffix) == 0 && value <= INT_MAX / units[i].ms) {
            *out_ms = (int)(value * units[i].ms);
            return 0;
        }
    }
    return -EINVAL;
}

/* Examples lead; then how it is called, what it does, its options. */
static void help_print(const struct ctl *ctl, struct argp_state *state) {
    printf("Examples:\n%s\n", ctl->command->examples);
    argp_state_help(state, stdout,
                    ARGP_HELP_SHORT_USAGE | ARGP_HELP_DOC | ARGP_HELP_LONG | ARGP_HELP_EXIT_OK);
}

static void option_set(struct ctl *ctl, enum origin origin, const char **option, char *value) {
    *option = value;
    ctl->flags |= 1u << origin;
}

static error_t global_parse(int key, char *arg, struct argp_state *state) {
    struct ctl *ctl = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &ctl->credentials;
        return 0;
    case OPTION_SOCKET:
        option_set(ctl, ORIGIN_DAEMON, &ctl->socket, arg);
        return 0;
    case OPTION_STATE:
        option_set(ctl, ORIGIN_STORE, &ctl->state, arg);
        return 0;
    case OPTION_CONFIG:
        option_set(ctl, ORIGIN_CONFIG, &ctl->config, arg);
        return 0;
    case OPTION_JSON:
        ctl->json = true;
        return 0;
    case OPTION_TIMEOUT:
        if (ctl_time_parse(arg, &ctl->timeout_ms) < 0) {
            argp_error(state, "--timeout '%s' is not a time above 0; write 500ms, 10s or 2m", arg);
        }
        return 0;
    case 'h':
        help_print(ctl, state);
        return 0;
    case OPTION_USAGE:
        argp_state_help(state, stdout, ARGP_HELP_USAGE | ARGP_HELP_EXIT_OK);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child global_children[] = {{&dial_argp, 0, NULL, 0}, {0}};

static const struct argp global_argp = {
    .options = global_options, .parser = global_parse, .children = global_children};

const struct argp_child ctl_argp_children[] = {{&global_argp, 0, "Global options:", 1}, {0}};

int ctl_environment(struct ctl *ctl) {
    const char *json = getenv("BALLAST_JSON");
    const char *timeout = getenv("BALLAST_TIMEOUT");
    ctl->socket = getenv("BALLAST_SOCKET");
    ctl->state = getenv("BALLAST_STATE");
    ctl->config = getenv("BALLAST_CONFIG");
    ctl->json = json != NULL && json[0] != '\0' && strcmp(json, "0") != 0;
    if (timeout != NULL && ctl_time_parse(timeout, &ctl->timeout_ms) < 0) {
        return error_set(&ctl->error, -EINVAL,
                         "BALLAST_TIMEOUT='%s' is not a time above 0; write 500ms, 10s or 2m",
                         timeout);
    }
    return 0;
}

void ctl_parse(const struct argp *argp, unsigned flags, int argc, char **argv, void *input) {
    error_t rc = argp_parse(argp, argc, argv, flags | ARGP_NO_HELP, NULL, input);
    if (rc != 0) {
        fprintf(stderr, "%s: %s\n", argv[0], strerror(rc));
        exit(rc == ENOMEM ? 1 : CTL_EXIT_USAGE);
    }
}

static error_t none_parse(int key, char *arg, struct argp_state *state) {
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = state->input;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "takes no argument '%s'", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

void ctl_parse_none(struct ctl *ctl, const char *doc, int argc, char **argv) {
    const struct argp argp = {.parser = none_parse, .doc = doc, .children = ctl_argp_children};
    ctl_parse(&argp, 0, argc, argv, ctl);
}

uint64_t ctl_decimal(struct argp_state *state, const char *text, unsigned places, uint64_t max,
                     const char *suffix, const char *what) {
    uint64_t value = 0;
    uint64_t most = max;
    const char *end = number_read(text, places, &value);
    for (unsigned i = 0; i < places; i++) {
        most *= 10;
    }
    if (end == NULL || (*end != '\0' && strcmp(end, suffix) != 0) || value > most) {
        argp_error(state, "%s '%s' is not a %s up to %" PRIu64 "%s", what, text,
                   places > 0 ? "number" : "whole number", max, suffix);
    }
    return value;
}

uint64_t ctl_number(struct argp_state *state, const char *text, uint64_t max, const char *what) {
    return ctl_decimal(state, text, 0, max, "", what);
}

uint64_t ctl_count(struct argp_state *state, const char *text, uint64_t max, const char *what) {
    uint64_t value = ctl_number(state, text, max, what);
    if (value == 0) {
        argp_error(state, "%s 0 is none; give 1 to %" PRIu64, what, max);
    }
    return value;
}
