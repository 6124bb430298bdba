/* derived: what is kept of compressed and unindexed datasets, and what of it nobody needs. */
#include "client/ctl/ctl.h"
#include "client/ctl/json.h"
#include "client/ctl/units.h"
#include "corpus/derived.h"
#include "daemon/config.h"

#include <inttypes.h>
#include <stdio.h>

enum { OPTION_PRUNE = 500 };

struct derived_arguments {
    struct ctl *ctl;
    bool prune;
};

static error_t derived_parse(int key, char *arg, struct argp_state *state) {
    struct derived_arguments *arguments = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = arguments->ctl;
        return 0;
    case OPTION_PRUNE:
        arguments->prune = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "takes no argument '%s'", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option derived_options[] = {
    {"prune", OPTION_PRUNE, NULL, 0, "Remove what is stale, unless somebody uses the folder", 0},
    {0},
};

static const struct argp derived_argp = {
    .options = derived_options,
    .parser = derived_parse,
    .doc = "Shows what the folder of derived files of a config (--config) holds: decompressed "
           "chunks and found ends of documents. Stale is what no daemon asked for in "
           "limits.derived_days, and what a newer version of its source has superseded; a daemon "
           "removes it when it starts, if no other uses the folder.",
    .children = ctl_argp_children,
};

static void derived_json(const char *folder, const struct derived_usage *usage) {
    struct json json;
    json_init(&json, stdout);
    json_object_begin(&json);
    json_member_u64(&json, "bytes", usage->bytes);
    json_member_u64(&json, "files", usage->files);
    json_member_string(&json, "folder", folder);
    json_key(&json, "in_use");
    json_bool(&json, usage->in_use);
    json_member_u64(&json, "oldest_s", usage->oldest_s);
    json_key(&json, "removed");
    json_bool(&json, usage->removed);
    json_member_u64(&json, "stale_bytes", usage->stale_bytes);
    json_member_u64(&json, "stale_files", usage->stale_files);
    json_object_end(&json);
    json_line(&json);
}

static void derived_print(const char *folder, const struct derived_usage *usage) {
    printf("%s: %" PRIu64 " files, %s, the oldest asked for %s ago; %s\n"
           "stale: %" PRIu64 " files, %s%s\n",
           folder, usage->files, units_bytes(usage->bytes).text,
           units_age(usage->oldest_s * 1000).text, usage->in_use ? "in use" : "not in use",
           usage->stale_files, units_bytes(usage->stale_bytes).text,
           usage->removed ? ", removed" : "");
}

static int derived_answer(struct ctl *ctl, const struct config *config, bool prune) {
    char folder[CONFIG_PATH_BYTES + 16];
    struct derived_usage usage;
    config_derived_folder(config, folder);
    int rc = derived_prune(folder, config->derived_days, prune, &usage, &ctl->error);
    if (rc == 0 && prune && usage.in_use) {
        rc = error_set(&ctl->error, -EBUSY,
                       "%s: a process has datasets open that use it, and nothing was removed; stop "
                       "it first",
                       folder);
    }
    if (rc < 0) {
        return rc;
    }
    if (ctl->json) {
        derived_json(folder, &usage);
    } else {
        derived_print(folder, &usage);
    }
    return 0;
}

int ctl_derived(struct ctl *ctl, int argc, char **argv) {
    struct derived_arguments arguments = {.ctl = ctl};
    struct config *config = NULL;
    ctl_parse(&derived_argp, 0, argc, argv, &arguments);
    if (ctl->config == NULL) {
        ctl->misused = true;
        return error_set(&ctl->error, -EINVAL,
                         "the folder is what a config says; name one: --config FILE");
    }
    int rc = config_load(ctl->config, NULL, 0, &config, &ctl->error);
    if (rc == 0) {
        rc = derived_answer(ctl, config, arguments.prune);
    }
    config_destroy(config);
    return rc;
}
