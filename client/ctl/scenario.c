/* scenario: see scenario.h. */
#include "client/ctl/scenario.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The config wants a dataset; over lengths there is none, and this one is never opened. */
#define NO_DATASET_KEY  "dataset.lengths.path"
#define NO_DATASET_PATH "lengths"

#define OWN_OVERRIDES_MAX 6u
#define POLICY_BYTES      64u
#define LAYOUTS_BYTES     128u

int scenario_override(struct scenario *scenario, const char *key, const char *value,
                      struct error *error) {
    if (scenario->override_count == SCENARIO_OVERRIDES_MAX) {
        return error_set(error, -ENOBUFS, "more than %u settings; write a config and name it",
                         SCENARIO_OVERRIDES_MAX);
    }
    scenario->overrides[scenario->override_count++] = (struct config_override){key, value};
    return 0;
}

int scenario_add_corpus(struct scenario *scenario, const char *prefix, const char *weight,
                        struct error *error) {
    static const char *const names[] = {"path", "weight"};
    if (scenario->corpora == SCENARIO_CORPORA_MAX) {
        return error_set(error, -ENOBUFS, "more than %u corpora; write a config and name it",
                         SCENARIO_CORPORA_MAX);
    }
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(scenario->corpus_keys[scenario->corpora][i],
                       sizeof scenario->corpus_keys[0][i], "dataset.corpus%zu.%s",
                       scenario->corpora, names[i]);
    }
    const char(*keys)[32] = (const char(*)[32])scenario->corpus_keys[scenario->corpora++];
    int rc = scenario_override(scenario, keys[0], prefix, error);
    if (rc == 0 && weight != NULL) {
        rc = scenario_override(scenario, keys[1], weight, error);
    }
    return rc;
}

static int scenario_find(struct scenario *scenario, struct error *error) {
    scenario->drawn = distribution_find(scenario->distribution);
    if (scenario->drawn == NULL) {
        char names[128] = "";
        for (uint32_t i = 0; i < DISTRIBUTIONS; i++) {
            size_t used = strlen(names);
            (void)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "",
                           distribution_name(distribution_at(i)));
        }
        return error_set(error, -EINVAL, "there is no distribution '%.64s'; there are %s",
                         scenario->distribution, names);
    }
    (void)snprintf(scenario->window, sizeof scenario->window, "%" PRIu32,
                   distribution_window(scenario->drawn));
    return 0;
}

int scenario_open(struct scenario *scenario, struct error *error) {
    if (scenario->distribution != NULL) {
        return scenario_find(scenario, error);
    }
    if (scenario->lengths != NULL) {
        return lengths_read(scenario->lengths, &scenario->list, &scenario->list_count, error);
    }
    return 0;
}

void scenario_close(struct scenario *scenario) {
    catalog_close(scenario->catalog);
    free(scenario->list);
    scenario->catalog = NULL;
    scenario->list = NULL;
}

const char *scenario_source(const struct scenario *scenario) {
    if (scenario->distribution != NULL) {
        return scenario->distribution;
    }
    if (scenario->lengths != NULL) {
        return scenario->lengths;
    }
    for (size_t i = 0; scenario->corpora == 1 && i < scenario->override_count; i++) {
        if (strcmp(scenario->overrides[i].key, scenario->corpus_keys[0][0]) == 0) {
            return scenario->overrides[i].value;
        }
    }
    return "corpus";
}

bool scenario_policy_is_fixed(const char *name) {
    return strcmp(name, "plain") == 0 || strncmp(name, "fixed", 5) == 0 ||
           strncmp(name, "pool", 4) == 0;
}

bool scenario_ends(const struct scenario *scenario, const struct config *config) {
    return config->source.epochs > 0 && scenario->distribution == NULL;
}

uint64_t scenario_warm_up(const struct scenario *scenario, const struct config *config,
                          uint64_t steps) {
    uint64_t tenth = steps / 10;
    uint64_t age = config->plan.bands.age_max;
    if (scenario_ends(scenario, config)) {
        return 0;
    }
    return tenth > age ? tenth : age;
}

/* Splits "NAME@LAYOUT+LAYOUT". */
static int policy_split(const char *policy, char name[POLICY_BYTES], char layouts[LAYOUTS_BYTES],
                        struct error *error) {
    size_t length = strcspn(policy, "@");
    const char *rest = policy[length] == '@' ? policy + length + 1 : "";
    if (length >= POLICY_BYTES || strlen(rest) >= LAYOUTS_BYTES) {
        return error_set(error, -EINVAL, "policy '%.80s' is too long to be one", policy);
    }
    (void)snprintf(name, POLICY_BYTES, "%.*s", (int)length, policy);
    (void)snprintf(layouts, LAYOUTS_BYTES, "%s", rest);
    for (char *plus = strchr(layouts, '+'); plus != NULL; plus = strchr(plus, '+')) {
        *plus = ',';
    }
    return 0;
}

/* Weakest first: what the source suggests, what was asked for, what makes the trial. */
int scenario_config(const struct scenario *scenario, const char *policy, const char *seed,
                    struct config **out, struct error *error) {
    struct config_override all[SCENARIO_OVERRIDES_MAX + OWN_OVERRIDES_MAX];
    char name[POLICY_BYTES];
    char layouts[LAYOUTS_BYTES];
    size_t count = 0;
    int rc = policy_split(policy != NULL ? policy : "", name, layouts, error);
    if (rc < 0) {
        return rc;
    }
    if (scenario->config == NULL && scenario->corpora == 0) {
        all[count++] = (struct config_override){NO_DATASET_KEY, NO_DATASET_PATH};
    }
    if (scenario->config == NULL && scenario->drawn != NULL) {
        all[count++] = (struct config_override){"plan.window", scenario->window};
    }
    for (size_t i = 0; i < scenario->override_count; i++) {
        all[count++] = scenario->overrides[i];
    }
    if (policy != NULL) {
        all[count++] = (struct config_override){"plan.policy", name};
    }
    if (scenario_policy_is_fixed(name)) {
        all[count++] = (struct config_override){"plan.step_tokens", "auto"};
    }
    if (layouts[0] != '\0') {
        all[count++] = (struct config_override){"sharding.layouts", layouts};
    }
    if (seed != NULL) {
        all[count++] = (struct config_override){"job.seed", seed};
    }
    return config_load(scenario->config, all, count, out, error);
}

const struct domains *scenario_domains(const struct scenario *scenario) {
    return scenario->catalog == NULL ? NULL : catalog_domains(scenario->catalog);
}

static int trial_source(struct trial *trial, struct scenario *scenario, struct error *error) {
    const struct corpus_source_options *reading = &trial->config->source;
    int rc = 0;
    if (scenario->drawn != NULL) {
        rc = lengths_source_init_drawn(&trial->list, scenario->drawn, reading, error);
        trial->source = &trial->list.source;
        return rc;
    }
    if (scenario->list != NULL) {
        rc = lengths_source_init(&trial->list, scenario->list, scenario->list_count, reading,
                                 error);
        trial->source = &trial->list.source;
        return rc;
    }
    if (scenario->catalog == NULL) {
        rc = config_open_catalog(trial->config, false, NULL, &scenario->catalog, error);
    }
    if (rc == 0) {
        rc = corpus_source_init(&trial->corpus, scenario->catalog, reading, error);
        trial->source = &trial->corpus.source;
    }
    return rc;
}

int trial_open(struct trial *trial, struct scenario *scenario, const char *policy, const char *seed,
               struct error *error) {
    memset(trial, 0, sizeof *trial);
    int rc = scenario_config(scenario, policy, seed, &trial->config, error);
    if (rc == 0) {
        rc = trial_source(trial, scenario, error);
    }
    if (rc == 0 && scenario->cut) {
        cut_source_init(&trial->cut, trial->source, trial->config->plan.window);
        trial->source = &trial->cut.source;
    }
    if (rc == 0) {
        rc = stream_open_over(&trial->stream, &trial->config->plan, trial->source, error);
    }
    if (rc < 0) {
        trial_close(trial);
    }
    return rc;
}

void trial_close(struct trial *trial) {
    stream_close(&trial->stream);
    config_destroy(trial->config);
    trial->config = NULL;
}
