/* ballastd: the command line. */
#include "daemon/daemon.h"
#include "daemon/failpoint.h"
#include "daemon/journal.h"

#include <argp.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OVERRIDES_MAX   64u
#define MAIN_MMAP_BYTES (256 << 10)

enum main_action { MAIN_SERVE = 0, MAIN_CHECK_CONFIG = 1, MAIN_PRINT_CONFIG = 2 };

struct main_arguments {
    enum main_action action;
    const char *config_path;
    struct config_override overrides[OVERRIDES_MAX];
    size_t override_count;
};

enum {
    KEY_CHECK_CONFIG = 1000,
    KEY_PRINT_CONFIG,
    KEY_SOCKET,
    KEY_STATE_DIR,
    KEY_MESSAGE_ID,
    KEY_FAILPOINTS
};

static const struct argp_option main_options[] = {
    {"config", 'c', "FILE", 0, "Read the configuration from FILE", 0},
    {"set", 's', "SECTION.KEY=VALUE", 0, "Override one setting; may be repeated", 0},
    {"socket", KEY_SOCKET, "PATH", 0, "Same as --set daemon.socket=PATH", 0},
    {"state-dir", KEY_STATE_DIR, "DIR", 0, "Same as --set daemon.state_dir=DIR", 0},
    {"check-config", KEY_CHECK_CONFIG, NULL, 0,
     "Check the configuration and its datasets, then exit", 1},
    {"print-config", KEY_PRINT_CONFIG, NULL, 0,
     "Print an example with every key, its default and its reason, and exit", 1},
    {"message-id", KEY_MESSAGE_ID, "COMPONENT:SENTENCE", 0,
     "Print the journal's MESSAGE_ID of an event, as in 'session:rank connected', and exit", 1},
#ifdef BALLAST_FAILPOINTS
    {"failpoints", KEY_FAILPOINTS, NULL, 0,
     "Print the points that $" FAILPOINT_ENVIRONMENT " may name, and exit", 1},
#endif
    {0},
};

static void main_override(struct argp_state *state, const char *key, const char *value) {
    struct main_arguments *arguments = state->input;
    if (arguments->override_count == OVERRIDES_MAX) {
        argp_error(state, "more than %u overrides; put them into the file", OVERRIDES_MAX);
        return;
    }
    arguments->overrides[arguments->override_count++] = (struct config_override){.key = key,
                                                                                 .value = value};
}

static void main_set(struct argp_state *state, char *text) {
    char *equals = strchr(text, '=');
    if (equals == NULL || equals == text) {
        argp_error(state, "--set wants SECTION.KEY=VALUE, not '%s'", text);
        return;
    }
    *equals = '\0';
    main_override(state, text, equals + 1);
}

static void main_print_message_id(struct argp_state *state, char *text) {
    char id[33];
    char *colon = strchr(text, ':');
    if (colon == NULL) {
        argp_error(state, "--message-id wants COMPONENT:SENTENCE, not '%s'", text);
        return;
    }
    *colon = '\0';
    journal_message_id(text, colon + 1, id);
    (void)puts(id);
    exit(0);
}

static error_t main_parse(int key, char *argument, struct argp_state *state) {
    struct main_arguments *arguments = state->input;
    switch (key) {
    case 'c':
        arguments->config_path = argument;
        break;
    case 's':
        main_set(state, argument);
        break;
    case KEY_SOCKET:
        main_override(state, "daemon.socket", argument);
        break;
    case KEY_STATE_DIR:
        main_override(state, "daemon.state_dir", argument);
        break;
    case KEY_CHECK_CONFIG:
        arguments->action = MAIN_CHECK_CONFIG;
        break;
    case KEY_MESSAGE_ID:
        main_print_message_id(state, argument);
        break;
    case KEY_PRINT_CONFIG:
        arguments->action = MAIN_PRINT_CONFIG;
        break;
#ifdef BALLAST_FAILPOINTS
    case KEY_FAILPOINTS:
        failpoint_print();
        exit(0);
#endif
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is no option; see --help", argument);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static void main_print_line(const char *text, void *context) {
    (void)context;
    (void)puts(text);
}

/* What the daemon would refuse before it serves: the settings, then the datasets they name. */
static int main_check_corpus(const struct config *config, struct error *error) {
    struct catalog *catalog = NULL;
    struct corpus_source source;
    int code = config_open_catalog(config, false, NULL, &catalog, error);
    if (code == 0) {
        code = corpus_source_init(&source, catalog, &config->source, error);
    }
    catalog_close(catalog);
    return code;
}

static void main_warn(const struct config *config) {
    for (uint32_t i = 0; i < config->section_count; i++) {
        const struct config *of = config_of_section(config, i);
        if (of->profile_warning[0] != '\0') {
            (void)fprintf(stderr, "ballastd: step %llu on: latency profile %s: %s\n",
                          (unsigned long long)config->sections[i].step, of->profile_path,
                          of->profile_warning);
        }
    }
}

static int main_check_config(const struct main_arguments *arguments) {
    struct error error;
    struct config *config = NULL;
    int exit_code = 0;
    if (config_load(arguments->config_path, arguments->overrides, arguments->override_count,
                    &config, &error) < 0) {
        exit_code = DAEMON_EXIT_CONFIG;
    } else if (main_check_corpus(config, &error) < 0) {
        exit_code = daemon_exit_code(error.code);
    }
    if (exit_code == 0) {
        (void)printf("%s: ok\n",
                     arguments->config_path == NULL ? "defaults" : arguments->config_path);
        main_warn(config);
    } else {
        (void)fprintf(stderr, "ballastd: %s\n", error.text);
    }
    config_destroy(config);
    return exit_code;
}

/* Plans and answers are large and short-lived: pages of their own go back to the system at once,
 * also when glibc would have come to keep them. */
static void main_set_allocator(void) {
    (void)mallopt(M_MMAP_THRESHOLD, MAIN_MMAP_BYTES);
}

static bool main_load_failpoints(void) {
#ifdef BALLAST_FAILPOINTS
    struct error error;
    if (failpoint_load(getenv(FAILPOINT_ENVIRONMENT), &error) < 0) {
        (void)fprintf(stderr, "ballastd: %s\n", error.text);
        return false;
    }
#endif
    return true;
}

int main(int argc, char **argv) {
    static const struct argp parser = {
        .options = main_options,
        .parser = main_parse,
        .doc = "Serves the micro-batches of long-context training to the trainer ranks of this "
               "node.\v"
               "Flags override the environment (BALLAST_SECTION_KEY), which overrides the file.\n"
               "Exit codes: 0 ok, 2 usage, 65 damaged state or corpus, 74 I/O, 78 bad config.",
    };
    struct main_arguments arguments = {0};
    argp_program_version = "ballastd " BALLAST_VERSION;
    argp_err_exit_status = DAEMON_EXIT_USAGE;
    (void)argp_parse(&parser, argc, argv, 0, NULL, &arguments);
    const struct daemon_options options = {.config_path = arguments.config_path,
                                           .overrides = arguments.overrides,
                                           .override_count = arguments.override_count};
    main_set_allocator();
    if (!main_load_failpoints()) {
        return DAEMON_EXIT_USAGE;
    }
    switch (arguments.action) {
    case MAIN_SERVE:
        return daemon_run(&options);
    case MAIN_CHECK_CONFIG:
        return main_check_config(&arguments);
    case MAIN_PRINT_CONFIG:
        config_print_example(main_print_line, NULL);
        return 0;
    }
    return DAEMON_EXIT_USAGE;
}
