/* config_text: what a loaded config says of itself: settings, identity, the example. */
#include "daemon/config.h"
#include "daemon/config_keys.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

static const char *origin_name(uint8_t origin) {
    static const char *const names[] = {"default", "file", "environment", "flag"};
    assert(origin < sizeof names / sizeof names[0]);
    return names[origin];
}

size_t config_setting_count(const struct config *config) {
    return config_key_count() + 2 * (size_t)config->dataset_count;
}

static void dataset_setting(const struct config *config, size_t i, struct config_setting *out) {
    const struct catalog_entry *entry = &config->datasets[i / 2];
    bool weight = i % 2 == 1;
    (void)snprintf(out->name, sizeof out->name, "dataset.%s.%s", entry->name,
                   weight ? "weight" : "path");
    if (weight) {
        config_decimal_print(entry->weight, 6, out->value, sizeof out->value);
    } else {
        (void)snprintf(out->value, sizeof out->value, "%s", entry->prefix);
    }
    out->origin = origin_name(config->dataset_origins[i]);
    out->plan = weight;
}

void config_setting(const struct config *config, size_t i, struct config_setting *out) {
    assert(i < config_setting_count(config));
    if (i >= config_key_count()) {
        dataset_setting(config, i - config_key_count(), out);
        return;
    }
    const struct config_key *key = config_key_at(i);
    (void)snprintf(out->name, sizeof out->name, "%s.%s", key->section, key->name);
    key->kind->print(key, config, out->value);
    out->origin = origin_name(config->origins[i]);
    out->plan = key->plan;
}

char *config_plan_text(const struct config *config) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    if (stream == NULL) {
        return NULL;
    }
    fprintf(stream, "algorithm = %u\n", PLAN_ALGORITHM_VERSION);
    for (size_t i = 0; i < config_setting_count(config); i++) {
        struct config_setting setting;
        config_setting(config, i, &setting);
        if (setting.plan) {
            fprintf(stream, "%s = %s\n", setting.name, setting.value);
        }
    }
    bool failed = ferror(stream) != 0;
    failed = fclose(stream) != 0 || failed;
    if (failed) {
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
    (void)snprintf(buffer, sizeof buffer, "# Takes %s.", allowed);
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
        "decimal, 1 by default). There must be at least one.\n"
        "[dataset books]\n"
        "path = /data/books\n"
        "weight = 2",
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
}

uint64_t config_slot_bytes(const struct plan_options *plan, uint32_t token_bytes) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t parts_cut = plan->tokens_max / plan_part_limit(plan) + 1;
    uint64_t bytes = 64 + (plan->tokens_max + parts_cut) * token_bytes;
    return (bytes + page - 1) / page * page;
}
