/* config_text: what a loaded config says of itself: settings, identity, the example. */
#include "daemon/config.h"
#include "daemon/config_keys.h"
#include "planner/schedule.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

static const char *origin_name(uint8_t origin) {
    static const char *const names[] = {"default", "file", "environment", "flag", "default"};
    assert(origin < sizeof names / sizeof names[0]);
    return names[origin];
}

const struct config *config_of_section(const struct config *config, uint32_t section) {
    assert(section < config->section_count);
    return section == 0 ? config : config->later[section - 1];
}

const struct config *config_at(const struct config *config, uint64_t step) {
    return config_of_section(config,
                             plan_section_at(config->sections, config->section_count, step));
}

uint32_t config_ahead_steps(const struct config *config, uint64_t step) {
    uint32_t count = config->section_count;
    uint64_t end = step + 1;
    for (uint32_t i = plan_section_at(config->sections, count, step); i < count; i++) {
        uint64_t reach = step + 1 + config_of_section(config, i)->ahead_steps;
        uint64_t next = i + 1 < count ? config->sections[i + 1].step : UINT64_MAX;
        if (reach < next) {
            end = reach > end ? reach : end;
            break;
        }
        end = next;
    }
    return (uint32_t)(end - step - 1);
}

/* 0: the dataset is appended later. */
static uint64_t section_weight(const struct config *config, uint32_t section, uint32_t dataset) {
    size_t row = config->sections[section].blend;
    return config->source.weights[row * config->dataset_count + dataset];
}

/* The settings of a section: keys, then those of each dataset. */
static size_t section_settings_max(const struct config *config) {
    return config_key_count() + DATASET_KEYS * (size_t)config->dataset_count;
}

static bool section_sets(const struct config *config, uint32_t section, size_t i) {
    size_t keys = config_key_count();
    const struct config *of = config_of_section(config, section);
    if (section == 0 &&
        (i < keys || i >= keys + DATASET_KEYS * (size_t)config->dataset_job_count)) {
        return i < keys;
    }
    return (i < keys ? of->origins[i] : of->dataset_origins[i - keys]) != ORIGIN_BEFORE;
}

static void dataset_setting(const struct config *config, uint32_t section, size_t i,
                            struct config_setting *out) {
    uint32_t dataset = (uint32_t)(i / DATASET_KEYS);
    enum dataset_key key = i % DATASET_KEYS;
    bool weight = key == DATASET_WEIGHT;
    (void)snprintf(out->name, sizeof out->name, "dataset.%s.%s", config->datasets[dataset].name,
                   dataset_key_names[key]);
    if (weight) {
        config_decimal_print(section_weight(config, section, dataset), 6, out->value,
                             sizeof out->value);
    } else {
        (void)snprintf(out->value, sizeof out->value, "%s", *dataset_text(config, dataset, key));
    }
    out->origin = origin_name(config_of_section(config, section)->dataset_origins[i]);
    out->automatic = false;
    out->plan = weight;
}

static void section_setting(const struct config *config, uint32_t section, size_t i,
                            struct config_setting *out) {
    const struct config *of = config_of_section(config, section);
    out->from = config->sections[section].step;
    if (i >= config_key_count()) {
        dataset_setting(config, section, i - config_key_count(), out);
        return;
    }
    const struct config_key *key = config_key_at(i);
    (void)snprintf(out->name, sizeof out->name, "%s.%s", key->section, key->name);
    key->kind->print(key, of, out->value);
    out->origin = origin_name(of->origins[i]);
    out->automatic = of->automatic[i];
    out->plan = key->plan;
}

/* What a key's line in the plan text says in this section. */
static void section_identity(const struct config *config, uint32_t section, size_t i, char *out) {
    const struct config *of = config_of_section(config, section);
    const struct config_key *key = config_key_at(i);
    if (key->kind->identity != NULL) {
        key->kind->identity(key, of, out);
    } else {
        key->kind->print(key, of, out);
    }
}

/* What is not said at step 0 is as it was before there was such a key. */
static bool identity_is_said(size_t i, const char *value) {
    return i >= config_key_count() || config_key_at(i)->kind->identity == NULL ||
           strcmp(value, CONFIG_NO_PROFILE) != 0;
}

size_t config_setting_count(const struct config *config) {
    size_t count = 0;
    for (uint32_t section = 0; section < config->section_count; section++) {
        for (size_t i = 0; i < section_settings_max(config); i++) {
            count += section_sets(config, section, i);
        }
    }
    return count;
}

void config_setting(const struct config *config, size_t i, struct config_setting *out) {
    for (uint32_t section = 0; section < config->section_count; section++) {
        for (size_t j = 0; j < section_settings_max(config); j++) {
            if (section_sets(config, section, j) && i-- == 0) {
                section_setting(config, section, j, out);
                return;
            }
        }
    }
    assert(false);
}

static void text_base(FILE *stream, const struct config *config) {
    fprintf(stream, "algorithm = %u\n", PLAN_ALGORITHM_VERSION);
    for (size_t i = 0; i < section_settings_max(config); i++) {
        struct config_setting setting;
        if (section_sets(config, 0, i)) {
            section_setting(config, 0, i, &setting);
            if (i < config_key_count()) {
                section_identity(config, 0, i, setting.value);
            }
            if (setting.plan && identity_is_said(i, setting.value)) {
                fprintf(stream, "%s = %s\n", setting.name, setting.value);
            }
        }
    }
}

static bool text_parses(const struct config_key *key, const char *text, struct config *config) {
    return config != NULL && key->kind->parse(key, text, config) == 0;
}

bool config_line_is_default(const char *line) {
    char section[CONFIG_DATASET_NAME_BYTES], name[CONFIG_DATASET_NAME_BYTES];
    char value[CONFIG_VALUE_BYTES];
    if (sscanf(line, "%40[^.\n].%40[^ \n] = %4095[^\n]", section, name, value) != 3 ||
        config_key_find(section, name) == config_key_count()) {
        return false;
    }
    const struct config_key *key = config_key_at(config_key_find(section, name));
    struct config *said = calloc(1, sizeof *said);
    struct config *untold = calloc(1, sizeof *untold);
    bool is_default = text_parses(key, value, said) && text_parses(key, key->fallback, untold) &&
                      memcmp(said, untold, sizeof *said) == 0;
    config_destroy(said);
    config_destroy(untold);
    return is_default;
}

bool config_line_is_sparse(const char *line) {
    char section[CONFIG_DATASET_NAME_BYTES], name[CONFIG_DATASET_NAME_BYTES];
    if (sscanf(line, "%40[^.\n].%40[^ \n] =", section, name) != 2) {
        return false;
    }
    size_t key = config_key_find(section, name);
    return key < config_key_count() && config_key_at(key)->kind->identity != NULL;
}

/* Opens the section's part of the text with its first line. */
static void text_line(FILE *stream, uint64_t step, bool *open, const char *name,
                      const char *value) {
    if (!*open) {
        fprintf(stream, "[from %" PRIu64 "]\n", step);
        *open = true;
    }
    fprintf(stream, "%s = %s\n", name, value);
}

static int text_appended(FILE *stream, const struct catalog *catalog, uint32_t dataset,
                         uint64_t step, bool *open, struct error *error) {
    uint8_t fingerprint[16];
    char name[CONFIG_DATASET_NAME_BYTES + 24];
    char value[33];
    if (catalog == NULL) {
        return 0;
    }
    const struct dataset *appended = catalog_dataset(catalog, dataset);
    int code = dataset_fingerprint(appended, fingerprint, error);
    if (code < 0) {
        return code;
    }
    (void)snprintf(name, sizeof name, "dataset.%s.fingerprint", dataset_name(appended));
    for (size_t i = 0; i < sizeof fingerprint; i++) {
        (void)snprintf(value + 2 * i, 3, "%02x", fingerprint[i]);
    }
    text_line(stream, step, open, name, value);
    return 0;
}

/* What a section changes. */
static int text_section(FILE *stream, const struct config *config, uint32_t section,
                        const struct catalog *catalog, struct error *error) {
    uint64_t step = config->sections[section].step;
    struct config_setting before, after;
    bool open = false;
    int code = 0;
    for (size_t i = 0; i < config_key_count(); i++) {
        section_setting(config, section, i, &after);
        section_identity(config, section - 1, i, before.value);
        section_identity(config, section, i, after.value);
        if (after.plan && strcmp(before.value, after.value) != 0) {
            text_line(stream, step, &open, after.name, after.value);
        }
    }
    for (uint32_t i = 0; code == 0 && i < config->dataset_count; i++) {
        uint64_t weight = section_weight(config, section, i);
        uint64_t weight_before = section_weight(config, section - 1, i);
        if (weight != weight_before) {
            section_setting(config, section,
                            config_key_count() + DATASET_KEYS * (size_t)i + DATASET_WEIGHT, &after);
            text_line(stream, step, &open, after.name, after.value);
        }
        if (weight != 0 && weight_before == 0) {
            code = text_appended(stream, catalog, i, step, &open, error);
        }
    }
    return code;
}

char *config_plan_text(const struct config *config, const struct catalog *catalog,
                       struct error *error) {
    char *text = NULL;
    size_t bytes = 0;
    int code = 0;
    FILE *stream = open_memstream(&text, &bytes);
    if (stream != NULL) {
        text_base(stream, config);
        for (uint32_t i = 1; code == 0 && i < config->section_count; i++) {
            code = text_section(stream, config, i, catalog, error);
        }
    }
    bool failed = stream == NULL || ferror(stream) != 0;
    failed = (stream != NULL && fclose(stream) != 0) || failed;
    if (failed && code == 0) {
        code = error_set(error, -ENOMEM, "config: out of memory");
    }
    if (code < 0) {
        free(text);
        return NULL;
    }
    return text;
}

void config_job_digest(const struct config *config, const uint8_t corpus_fingerprint[16],
                       uint8_t out[16]) {
    const uint64_t fields[] = {
        PLAN_ALGORITHM_VERSION,
        config->source.order.seed,
        config->source.order.shuffle,
        config->source.order.block_documents,
        config->source.order.window_blocks,
        config->source.overlong,
        config->plan.window,
        config->source.part_limit,
    };
    uint8_t bytes[16 + sizeof fields];
    XXH128_canonical_t canonical;
    memcpy(bytes, corpus_fingerprint, 16);
    for (size_t i = 0; i < sizeof fields; i++) {
        bytes[16 + i] = (uint8_t)(fields[i / 8] >> (8 * (i % 8)));
    }
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes, sizeof bytes));
    memcpy(out, canonical.digest, 16);
}

/* Hands each line of `text` to the caller, "# " before it. */
static void comment_lines(const char *text, void (*line)(const char *, void *), void *context) {
    while (*text != '\0') {
        char buffer[128];
        size_t length = strcspn(text, "\n");
        (void)snprintf(buffer, sizeof buffer, "# %.*s", (int)length, text);
        line(buffer, context);
        text += length + (text[length] == '\n');
    }
}

static void example_key(const struct config_key *key, void (*line)(const char *, void *),
                        void *context) {
    char allowed[256];
    char buffer[300];
    comment_lines(key->reason, line, context);
    key->kind->allowed(key, allowed, sizeof allowed);
    (void)snprintf(buffer, sizeof buffer, "# Takes %s.%s", allowed,
                   key->elastic ? " Elastic." : "");
    line(buffer, context);
    (void)snprintf(buffer, sizeof buffer, "%s =%s%s", key->name,
                   key->fallback[0] == '\0' ? "" : " ", key->fallback);
    line(buffer, context);
}

void config_print_example(void (*line)(const char *text, void *context), void *context) {
    comment_lines(
        "Ballast's configuration: every key with its reason, what it takes, its default.\n"
        "Printed by `ballastd --print-config`. Flags override the environment\n"
        "(BALLAST_SECTION_KEY, as in BALLAST_PLAN_WINDOW), which overrides this file, which\n"
        "overrides the defaults. Unknown sections and keys are errors. Paths are relative\n"
        "to this file's folder. k and m are 1024 and 1048576 tokens.",
        line, context);
    line("", context);
    comment_lines(
        "One section for each corpus. The path is the PREFIX of PREFIX.idx and PREFIX.bin, a\n"
        "Megatron indexed dataset; tokens are drawn in proportion to the weights (whole or\n"
        "decimal, 1 by default). There must be at least one. Shares and delays are shown by\n"
        "domain, where there is any; a file may give each document its own (docs/formats.md).\n"
        "[dataset books]\n"
        "path = /data/books\n"
        "weight = 2\n"
        "domain = prose",
        line, context);
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        if (i == 0 || strcmp(key->section, config_key_at(i - 1)->section) != 0) {
            char heading[64];
            line("", context);
            comment_lines(config_section_reason(key->section), line, context);
            (void)snprintf(heading, sizeof heading, "[%s]", key->section);
            line(heading, context);
        } else {
            line("", context);
        }
        example_key(key, line, context);
    }
    line("", context);
    comment_lines(
        "Keys that are elastic, and the weights of datasets, may change while the job lasts.\n"
        "Each section says from which step on, behind all that is committed, and goes on from\n"
        "the one before it; a dataset that is new is appended to the corpus. The sections stay\n"
        "here: they are the job's history, the same on all nodes.\n"
        "[from 20000]\n"
        "parallel.dp = 4\n"
        "plan.micro_batches = 24\n"
        "dataset.books.weight = 1.5\n"
        "dataset.code.path = /data/code",
        line, context);
}

uint64_t config_slot_bytes(const struct plan_options *plan, uint32_t token_bytes) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t parts_cut = plan->tokens_max / plan_part_limit(plan) + 1;
    uint64_t bytes = 64 + (plan->tokens_max + parts_cut) * token_bytes;
    return (bytes + page - 1) / page * page;
}
