/* config_profile: the latency profile that a config names.
 *
 * Read with the config, so that a stale one is refused before anything starts, and kept by value in
 * the plan's options: whoever copies those prices by the same figures. */
#include "daemon/config_keys.h"
#include "profile/profile.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void config_profile_print(const struct model_profile *profile, char out[CONFIG_HASH_CHARS]) {
    if (!profile->used) {
        (void)snprintf(out, CONFIG_HASH_CHARS, CONFIG_NO_PROFILE);
    }
    for (size_t i = 0; profile->used && i < MODEL_PROFILE_HASH_BYTES; i++) {
        (void)snprintf(out + 2 * i, 3, "%02x", profile->hash[i]);
    }
}

static void warning_add(struct config *config, const char *text) {
    size_t length = strlen(config->profile_warning);
    (void)snprintf(config->profile_warning + length, CONFIG_WARNING_BYTES - length, "%s%s",
                   length > 0 ? "; " : "", text);
}

/* What was not measured for this shape and mesh is priced by [model]. */
static void warn_of_gaps(struct config *config) {
    const struct plan_options *plan = &config->plan;
    char text[120];
    if (model_profile_row_ps(&plan->model, plan->tp) == 0) {
        (void)snprintf(text, sizeof text,
                       "linear: not measured with this shape and tp = %" PRIu32
                       ", [model] prices it",
                       plan->tp);
        warning_add(config, text);
    }
    bool priced = plan->cp > 1 && plan->pools.size == 0 && plan->model.link_bytes_per_us > 0;
    if (priced && !model_profile_has_link(&plan->model, plan->cp)) {
        (void)snprintf(text, sizeof text,
                       "coll.all_to_all: not measured with %" PRIu32 " ranks, [model] prices it",
                       plan->cp);
        warning_add(config, text);
    }
}

static int profile_fits(struct config *config, const struct profile *profile, struct error *error) {
    const struct model_options *model = &config->plan.model;
    struct profile_use use = {
        .gpu = config->profile_gpu,
        .kernel_build = config->profile_build,
        .deterministic = config->deterministic,
        .head_dim = model->head_dim,
        .group = model_group(model, config->plan.tp),
        .sm_margin = model->sm_margin,
    };
    return profile_check(config->profile_path, profile, &use, config->profile_warning,
                         sizeof config->profile_warning, error);
}

int config_profile_read(struct config *config, struct error *error) {
    struct profile *profile = NULL;
    struct model_profile *model = &config->plan.model.profile;
    *model = (struct model_profile){0};
    config->profile_warning[0] = '\0';
    if (config->profile_path[0] == '\0') {
        return 0;
    }
    int code = profile_load(config->profile_path, &profile, error);
    if (code == 0) {
        code = profile_fits(config, profile, error);
    }
    if (code == 0 && profile_model(profile, model) < 0) {
        code = error_set(error, -ENOMEM, "config: out of memory");
    }
    free(profile);
    if (code == 0) {
        warn_of_gaps(config);
    }
    return code;
}
