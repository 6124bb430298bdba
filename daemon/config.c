/* config: see config.h; what a loaded config says is in config_text.c.
 *
 * Loading is three steps: gather the text that wins for every key (defaults, file, environment,
 * flags, each remembering where it came from), read the texts in table order, check how they
 * relate. Only the last two know what a key means; only the first knows about places. What [from
 * STEP] sections say is gathered in layers, and the last two steps are taken for each layer with
 * those before it. inih splits lines; what it would let pass (junk behind a section, sections
 * without keys, lines cut at its buffer, values carried on by indentation) is refused by the reader
 * function given to it. */
#include "daemon/config.h"
#include "corpus/domains.h"
#include "daemon/config_keys.h"
#include "daemon/tcp_rules.h"
#include "proto/tls.h"

#include <ctype.h>
#include <ini.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The text of a setting and where it was found. */
struct given {
    char *text; /* NULL: not given */
    uint32_t line;
    enum config_origin origin;
};

struct dataset_given {
    char name[CONFIG_DATASET_NAME_BYTES];
    struct given keys[DATASET_KEYS];
};

/* What holds from a step on: all that stands outside of [from STEP], or in one of them. */
struct layer {
    uint64_t step;
    struct given keys[CONFIG_KEYS_MAX];
    struct dataset_given *datasets; /* once merged: those of the layer before come first */
    uint32_t dataset_count;
};

struct loader {
    struct config *config;
    const char *path; /* of the file, NULL without one */
    FILE *file;
    uint32_t line;
    char section[64];
    struct error *error;
    int code; /* the first failure, 0 so far */
    struct layer *layers;
    uint32_t layer_count; /* > 0 */
    uint32_t layer;       /* that is read or parsed now */
};

static struct layer *loader_layer(struct loader *loader) {
    return &loader->layers[loader->layer];
}

/* What is given for a key in the present layer or, if not there, in those before it. */
static struct given *loader_key(struct loader *loader, size_t key) {
    uint32_t i = loader->layer;
    while (i > 0 && loader->layers[i].keys[key].text == NULL) {
        i--;
    }
    return &loader->layers[i].keys[key];
}

#define WHERE_BYTES 256

/* Of ahead_steps where it is auto. */
#define AHEAD_STEPS_LEAST 4u
#define AHEAD_STEPS_MOST  32u
#define AHEAD_TOKENS      (1u << 25) /* of the micro-batches of all local replicas */
#define AHEAD_SLOT_TOKENS 2048u      /* a slot costs as much, however small */

static void variable_name(const char *section, const char *name, char *out, size_t bytes) {
    (void)snprintf(out, bytes, "BALLAST_%s_%s", section, name);
    for (char *p = out; *p != '\0'; p++) {
        *p = (char)toupper((unsigned char)*p);
    }
}

/* "ballast.conf:12", "BALLAST_PLAN_WINDOW", "flag": where `given` of section.name was found. */
static void where_print(const struct loader *loader, const struct given *given, const char *section,
                        const char *name, char *out) {
    switch (given->origin) {
    case ORIGIN_FILE:
        (void)snprintf(out, WHERE_BYTES, "%.200s:%" PRIu32, loader->path, given->line);
        break;
    case ORIGIN_ENVIRONMENT:
        variable_name(section, name, out, WHERE_BYTES);
        break;
    case ORIGIN_FLAG:
        (void)snprintf(out, WHERE_BYTES, "flag");
        break;
    case ORIGIN_DEFAULT:
    case ORIGIN_BEFORE:
        (void)snprintf(out, WHERE_BYTES, "%.200s", loader->path == NULL ? "default" : loader->path);
        break;
    }
}

/* Refuses what stands at loader->line of the file; the first refusal counts. */
static int refuse_line(struct loader *loader, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int refuse_line(struct loader *loader, const char *format, ...) {
    char text[ERROR_TEXT_BYTES];
    va_list arguments;
    if (loader->code < 0) {
        return loader->code;
    }
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    loader->code = error_set(loader->error, -EINVAL, "%.200s:%" PRIu32 ": %s", loader->path,
                             loader->line, text);
    return loader->code;
}

/* Refuses the value of a setting: `reason` says what is wrong or what is allowed. */
static int refuse_value(struct loader *loader, const struct given *given, const char *section,
                        const char *name, const char *reason) {
    char where[WHERE_BYTES];
    where_print(loader, given, section, name, where);
    loader->code = error_set(loader->error, -EINVAL, "%s: %s.%s = %.80s is not allowed: %s", where,
                             section, name, given->text, reason);
    return loader->code;
}

/* Whether a line of the file could hold this value. */
static bool value_is_writable(const char *value) {
    size_t length = strlen(value);
    if (length >= CONFIG_VALUE_BYTES || strpbrk(value, "\r\n") != NULL ||
        (length > 0 && (isspace((unsigned char)value[0]) ||
                        isspace((unsigned char)value[length - 1]) || value[0] == ';'))) {
        return false;
    }
    for (const char *p = strchr(value, ';'); p != NULL; p = strchr(p + 1, ';')) {
        if (isspace((unsigned char)p[-1])) {
            return false; /* a comment would begin here */
        }
    }
    return true;
}

/* Length of the folder part of the file's path, with its slash; 0 in the working directory. */
static int folder_chars(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash == NULL ? 0 : (int)(slash - path) + 1;
}

/* Keeps a copy of `value` as what is given for a setting. */
static int given_set(struct loader *loader, struct given *given, enum config_origin origin,
                     bool path, const char *value) {
    char *text;
    bool relative = path && origin == ORIGIN_FILE && value[0] != '/' && value[0] != '\0';
    if (asprintf(&text, "%.*s%s", relative ? folder_chars(loader->path) : 0,
                 relative ? loader->path : "", value) < 0) {
        loader->code = error_set(loader->error, -ENOMEM, "config: out of memory");
        return loader->code;
    }
    free(given->text);
    *given = (struct given){
        .text = text, .line = origin == ORIGIN_FILE ? loader->line : 0, .origin = origin};
    return 0;
}

static bool dataset_name_valid(const char *name) {
    size_t length = strlen(name);
    return length > 0 && length < CONFIG_DATASET_NAME_BYTES &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") ==
               length;
}

/* "NAME" of "dataset NAME", NULL for another section. */
static const char *dataset_of_section(const char *section) {
    if (strncmp(section, "dataset", 7) != 0 || (section[7] != '\0' && section[7] != ' ')) {
        return NULL;
    }
    return section + 7 + strspn(section + 7, " ");
}

static struct dataset_given *dataset_find(struct layer *layer, const char *name) {
    for (uint32_t i = 0; i < layer->dataset_count; i++) {
        if (strcmp(layer->datasets[i].name, name) == 0) {
            return &layer->datasets[i];
        }
    }
    return NULL;
}

/* The dataset of this name, made when it is new; NULL when out of memory or there are too many. */
static struct dataset_given *dataset_at(struct loader *loader, const char *name) {
    struct layer *layer = loader_layer(loader);
    struct dataset_given *dataset = dataset_find(layer, name);
    if (dataset != NULL) {
        return dataset;
    }
    if (layer->dataset_count == CATALOG_DATASETS_MAX) {
        loader->code = error_set(loader->error, -EINVAL, "dataset %s: more than %u datasets", name,
                                 CATALOG_DATASETS_MAX);
        return NULL;
    }
    struct dataset_given *grown = realloc(layer->datasets,
                                          (layer->dataset_count + 1) * sizeof layer->datasets[0]);
    if (grown == NULL) {
        loader->code = error_set(loader->error, -ENOMEM, "config: out of memory");
        return NULL;
    }
    layer->datasets = grown;
    dataset = &grown[layer->dataset_count++];
    memset(dataset, 0, sizeof *dataset);
    (void)snprintf(dataset->name, sizeof dataset->name, "%s", name);
    return dataset;
}

const char *const dataset_key_names[DATASET_KEYS] = {"path", "weight", "domain", "domain_file",
                                                     "domain_names"};

const char **dataset_text(const struct config *config, uint32_t dataset, enum dataset_key key) {
    struct domain_entry *domain = &config->domains[dataset];
    switch (key) {
    case DATASET_PATH:
        return &config->datasets[dataset].prefix;
    case DATASET_DOMAIN:
        return &domain->domain;
    case DATASET_DOMAIN_FILE:
        return &domain->file;
    case DATASET_DOMAIN_NAMES:
        return &domain->names;
    case DATASET_WEIGHT:
    case DATASET_KEYS:
        break;
    }
    return NULL;
}

/* DATASET_KEYS for an unknown one. */
static uint32_t dataset_key_find(const char *name) {
    uint32_t key = 0;
    while (key < DATASET_KEYS && strcmp(name, dataset_key_names[key]) != 0) {
        key++;
    }
    return key;
}

/* The place for section.name's text; *path tells paths. NULL for a name that is unknown, in a
 * section that is known, or with loader->code set. */
static struct given *given_at(struct loader *loader, const char *section, const char *name,
                              bool *path) {
    const char *dataset_name = dataset_of_section(section);
    if (dataset_name == NULL) {
        size_t i = config_key_find(section, name);
        if (i == config_key_count()) {
            return NULL;
        }
        *path = config_key_at(i)->path;
        return &loader_layer(loader)->keys[i];
    }
    uint32_t key = dataset_key_find(name);
    *path = key == DATASET_PATH || key == DATASET_DOMAIN_FILE;
    struct dataset_given *dataset = key < DATASET_KEYS ? dataset_at(loader, dataset_name) : NULL;
    return dataset == NULL ? NULL : &dataset->keys[key];
}

/* ": did you mean [queues] max_age?", or nothing. */
static void suggestion_print(const char *section, const char *name, char *out, size_t bytes) {
    const struct config_key *nearest = config_key_nearest(section, name);
    out[0] = '\0';
    if (dataset_of_section(section) != NULL) {
        (void)snprintf(out, bytes,
                       "; a dataset has path, weight, domain, domain_file, domain_names");
    } else if (nearest != NULL) {
        (void)snprintf(out, bytes, "; did you mean [%s] %s?", nearest->section, nearest->name);
    }
}

static bool is_from(const char *section) {
    return strncmp(section, "from", 4) == 0 && (section[4] == '\0' || section[4] == ' ');
}

static int layer_add(struct loader *loader, uint64_t step) {
    struct layer *grown = realloc(loader->layers, (loader->layer_count + 1) * sizeof *grown);
    if (grown == NULL) {
        return error_set(loader->error, loader->code = -ENOMEM, "config: out of memory");
    }
    loader->layers = grown;
    loader->layer = loader->layer_count++;
    grown[loader->layer] = (struct layer){.step = step};
    return 0;
}

/* "[from STEP]", once all other sections are read. */
static int check_from(struct loader *loader, const char *section) {
    uint64_t step;
    uint64_t last = loader->layers[loader->layer_count - 1].step;
    const char *number = section + 4 + strspn(section + 4, " ");
    if (config_decimal_parse(number, 0, &step) < 0 || step == 0 || step > CONFIG_STEP_MAX) {
        return refuse_line(loader, "[%s]: write [from STEP] with a step from 1 to %" PRIu64,
                           section, CONFIG_STEP_MAX);
    }
    if (step <= last) {
        return refuse_line(loader, "[%s] stands behind [from %" PRIu64 "]; list steps ascending",
                           section, last);
    }
    if (loader->layer_count == PLAN_SECTIONS_MAX) {
        return refuse_line(loader, "[%s]: more than %u sections; join some that lie ahead", section,
                           PLAN_SECTIONS_MAX - 1);
    }
    return layer_add(loader, step);
}

static int check_section(struct loader *loader, const char *section) {
    if (loader->layer_count > 1 && !is_from(section)) {
        return refuse_line(loader, "[%s] stands behind [from %" PRIu64 "]; move it in front",
                           section, loader->layers[loader->layer_count - 1].step);
    }
    const char *dataset = dataset_of_section(section);
    if (dataset != NULL) {
        return dataset_name_valid(dataset)
                   ? 0
                   : refuse_line(loader,
                                 "[%s]: a dataset's name is 1 to %u letters, digits, '_', '-', '.'",
                                 section, CONFIG_DATASET_NAME_BYTES - 1);
    }
    if (is_from(section)) {
        return check_from(loader, section);
    }
    if (!config_section_known(section)) {
        const char *nearest = config_section_nearest(section);
        return refuse_line(loader, "unknown section [%s]%s%s%s", section,
                           nearest == NULL ? "" : "; did you mean [",
                           nearest == NULL ? "" : nearest, nearest == NULL ? "" : "]?");
    }
    return 0;
}

/* A line that begins with '[': inih would take "[plan] window = 3" for a mere section. */
static int check_section_line(struct loader *loader, const char *line) {
    size_t length = strcspn(line + 1, "]\n");
    const char *rest = line + 1 + length;
    if (*rest != ']') {
        return refuse_line(loader, "this section has no ']'");
    }
    rest++;
    rest += strspn(rest, " \t\r\n");
    if (*rest != '\0' && *rest != ';' && *rest != '#') {
        return refuse_line(loader, "'%.40s' stands behind the section; give it its own line", rest);
    }
    if (length >= sizeof loader->section) {
        return refuse_line(loader, "the section's name is longer than %zu characters",
                           sizeof loader->section - 1);
    }
    (void)snprintf(loader->section, sizeof loader->section, "%.*s", (int)length, line + 1);
    return check_section(loader, loader->section);
}

/* Reads a line without its newline; false at the end of the file or with a refusal. */
static bool read_line(struct loader *loader, char *line, int bytes) {
    int length = 0;
    int c = getc(loader->file);
    if (c == EOF) {
        return false;
    }
    loader->line++;
    for (; c != EOF && c != '\n'; c = getc(loader->file)) {
        if (c == '\0' || length + 1 == bytes) {
            (void)refuse_line(loader, "the line holds a NUL or more than %d characters", bytes - 1);
            return false;
        }
        line[length++] = (char)c;
    }
    line[length] = '\0';
    return true;
}

/* inih's fgets: counts lines, removes indentation and a byte order mark, refuses what inih would
 * let pass. */
static char *next_line(char *line, int bytes, void *context) {
    struct loader *loader = context;
    if (loader->code < 0 || !read_line(loader, line, bytes)) {
        return NULL;
    }
    bool marked = loader->line == 1 && strncmp(line, "\xef\xbb\xbf", 3) == 0;
    const char *text = line + (marked ? 3 : 0);
    text += strspn(text, " \t");
    memmove(line, text, strlen(text) + 1);
    if (line[0] == '[' && check_section_line(loader, line) < 0) {
        return NULL;
    }
    return line;
}

/* Splits "section.key" at the last point; "dataset.NAME" becomes "dataset NAME". */
static int split_name(const char *name, char *section, size_t bytes, const char **key) {
    const char *point = strrchr(name, '.');
    if (point == NULL || (size_t)(point - name) >= bytes) {
        return -EINVAL;
    }
    (void)snprintf(section, bytes, "%.*s", (int)(point - name), name);
    if (dataset_of_section(section) != NULL) {
        return -EINVAL; /* a name is missing, or stands behind a space */
    }
    if (strncmp(section, "dataset.", 8) == 0) {
        section[7] = ' ';
        if (!dataset_name_valid(section + 8)) {
            return -EINVAL;
        }
    }
    *key = point + 1;
    return 0;
}

/* Whether a section may set this. */
static int check_elastic(struct loader *loader, const char *section, const char *name) {
    if (dataset_of_section(section) != NULL) {
        return 0;
    }
    const struct config_key *key = config_key_at(config_key_find(section, name));
    if (key->elastic) {
        return 0;
    }
    return key->plan
               ? refuse_line(loader,
                             "%s.%s stays as it is as long as the job lasts; take it out of the "
                             "section, or start a new job with another [daemon] state_dir",
                             section, name)
               : refuse_line(loader, "%s.%s is no part of the plan; set it in [%s] and restart",
                             section, name, section);
}

/* A line "section.key = value" of [from STEP]. */
static int take_elastic(struct loader *loader, const char *name, const char *value) {
    char section[64];
    const char *key;
    bool path = false;
    struct given *given = NULL;
    char suggestion[96] = "; write section.key";
    if (split_name(name, section, sizeof section, &key) == 0) {
        given = given_at(loader, section, key, &path);
        suggestion_print(section, key, suggestion, sizeof suggestion);
    }
    if (loader->code < 0) {
        return loader->code;
    }
    if (given == NULL) {
        return refuse_line(loader, "unknown key %.80s in [%s]%s", name, loader->section,
                           suggestion);
    }
    int code = check_elastic(loader, section, key);
    if (code == 0 && given->text != NULL) {
        code = refuse_line(loader, "[%s] %.80s is set twice, first on line %" PRIu32 "; remove one",
                           loader->section, name, given->line);
    }
    return code < 0 ? code : given_set(loader, given, ORIGIN_FILE, path, value);
}

static int take_pair(void *context, const char *section, const char *name, const char *value) {
    struct loader *loader = context;
    bool path = false;
    (void)section; /* loader->section is the same, never cut */
    if (loader->section[0] == '\0') {
        return refuse_line(loader, "'%.40s' stands before the first [section]", name) == 0;
    }
    if (is_from(loader->section)) {
        return take_elastic(loader, name, value) == 0;
    }
    struct given *given = given_at(loader, loader->section, name, &path);
    if (loader->code < 0) {
        return 0;
    }
    if (given == NULL) {
        char suggestion[96];
        suggestion_print(loader->section, name, suggestion, sizeof suggestion);
        return refuse_line(loader, "unknown key %.50s in [%s]%s", name, loader->section,
                           suggestion) == 0;
    }
    if (given->text != NULL) {
        return refuse_line(loader, "[%s] %s is set twice, first on line %" PRIu32 "; remove one",
                           loader->section, name, given->line) == 0;
    }
    return given_set(loader, given, ORIGIN_FILE, path, value) == 0;
}

static int read_file(struct loader *loader) {
    if (loader->path == NULL) {
        return 0;
    }
    loader->file = fopen(loader->path, "re");
    if (loader->file == NULL) {
        return error_set(loader->error, -errno, "config %s: %s; check the path and the permissions",
                         loader->path, strerror(errno));
    }
#ifdef BALLAST_INI_MAX_LINE
    ini_max_line = CONFIG_VALUE_BYTES + 256; /* any value with its key */
#endif
    int bad_line = ini_parse_stream(next_line, loader, take_pair, loader);
    int failed = ferror(loader->file) != 0 ? errno : 0;
    (void)fclose(loader->file);
    if (failed != 0) {
        return error_set(loader->error, -failed, "config %s: %s", loader->path, strerror(failed));
    }
    if (bad_line > 0 && (loader->code == 0 || (uint32_t)bad_line < loader->line)) {
        loader->code = 0;
        loader->line = (uint32_t)bad_line;
        return refuse_line(loader, "expected [section], key = value, or a # comment");
    }
    return loader->code;
}

static int read_environment(struct loader *loader) {
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        char variable[WHERE_BYTES];
        variable_name(key->section, key->name, variable, sizeof variable);
        const char *value = getenv(variable);
        if (value == NULL) {
            continue;
        }
        if (!value_is_writable(value)) {
            return error_set(loader->error, -EINVAL, "%s holds what a line of the file cannot",
                             variable);
        }
        struct given *given = &loader_layer(loader)->keys[i];
        int code = given_set(loader, given, ORIGIN_ENVIRONMENT, key->path, value);
        if (code < 0) {
            return code;
        }
    }
    return 0;
}

static int read_override(struct loader *loader, const struct config_override *override) {
    char section[64];
    const char *name;
    bool path = false;
    struct given *given = NULL;
    char suggestion[96] = "; write section.key";
    if (split_name(override->key, section, sizeof section, &name) == 0) {
        given = given_at(loader, section, name, &path);
        suggestion_print(section, name, suggestion, sizeof suggestion);
    }
    if (loader->code < 0) {
        return loader->code;
    }
    if (given == NULL) {
        return error_set(loader->error, -EINVAL, "flag: unknown key %.80s%s", override->key,
                         suggestion);
    }
    if (!value_is_writable(override->value)) {
        return error_set(loader->error, -EINVAL, "flag: %.80s holds what a line of the file cannot",
                         override->key);
    }
    return given_set(loader, given, ORIGIN_FLAG, path, override->value);
}

/* The texts of the present layer go to `config`. */
static int parse_key(struct loader *loader, struct config *config, size_t i) {
    const struct config_key *key = config_key_at(i);
    struct given *given = loader_key(loader, i);
    if (given->text == NULL) {
        int code = given_set(loader, given, ORIGIN_DEFAULT, false, key->fallback);
        if (code < 0) {
            return code;
        }
    }
    bool here = loader_layer(loader)->keys[i].text != NULL;
    config->origins[i] = (uint8_t)(here ? given->origin : ORIGIN_BEFORE);
    config->automatic[i] = strcmp(key->fallback, CONFIG_AUTO) == 0 &&
                           strcmp(given->text, CONFIG_AUTO) == 0;
    int code = key->kind->parse(key, given->text, config);
    if (code == -EINVAL) {
        char allowed[256];
        char reason[300];
        key->kind->allowed(key, allowed, sizeof allowed);
        (void)snprintf(reason, sizeof reason, "it takes %s", allowed);
        return refuse_value(loader, given, key->section, key->name, reason);
    }
    return code < 0 ? error_set(loader->error, code, "config: out of memory") : 0;
}

/* A dataset has one domain, or a file with the names of what is in it. */
static int check_domain(struct loader *loader, const struct dataset_given *given,
                        const char *section) {
    const struct given *domain = &given->keys[DATASET_DOMAIN];
    const struct given *file = &given->keys[DATASET_DOMAIN_FILE];
    const struct given *names = &given->keys[DATASET_DOMAIN_NAMES];
    if (domain->text != NULL && (domain_names_count(domain->text) != 1)) {
        return refuse_value(loader, domain, section, "domain",
                            "it takes a name of 1 to 40 letters, digits, '_', '-', '.'");
    }
    if (domain->text != NULL && file->text != NULL) {
        return refuse_value(loader, domain, section, "domain",
                            "with domain_file each document has one of its own; remove either");
    }
    if (file->text != NULL && (names->text == NULL || file->text[0] == '\0')) {
        return refuse_value(loader, file, section, "domain_file",
                            "it takes the path of a file, and needs domain_names beside it");
    }
    if (names->text != NULL && (file->text == NULL || domain_names_count(names->text) < 0)) {
        return refuse_value(loader, names, section, "domain_names",
                            "it takes 1 to 64 different names with commas, and needs domain_file");
    }
    return 0;
}

/* A dataset of the present layer that was not in one before. */
static int parse_dataset(struct loader *loader, const struct dataset_given *given,
                         uint32_t dataset) {
    char section[CONFIG_DATASET_NAME_BYTES + 8];
    (void)snprintf(section, sizeof section, "dataset.%s", given->name);
    if (given->keys[DATASET_PATH].text == NULL) {
        return error_set(loader->error, -EINVAL,
                         "[dataset %s] has no path; give the PREFIX of PREFIX.idx and PREFIX.bin",
                         given->name);
    }
    const struct given *path = &given->keys[DATASET_PATH];
    if (path->text[0] == '\0' || strlen(path->text) >= CONFIG_VALUE_BYTES) {
        return refuse_value(loader, path, section, "path",
                            "it takes the PREFIX of PREFIX.idx and PREFIX.bin");
    }
    int code = check_domain(loader, given, section);
    char *name = strdup(given->name);
    bool copied = name != NULL;
    loader->config->datasets[dataset].name = name;
    for (uint32_t key = 0; key < DATASET_KEYS; key++) {
        const char *text = given->keys[key].text;
        const char **to = dataset_text(loader->config, dataset, key);
        if (to != NULL && text != NULL) {
            *to = strdup(text);
            copied = copied && *to != NULL;
        }
    }
    return copied ? code : error_set(loader->error, -ENOMEM, "config: out of memory");
}

/* The weight that the present layer gives a dataset, or leaves. */
static int parse_weight(struct loader *loader, const struct dataset_given *given,
                        uint64_t *weight) {
    char section[CONFIG_DATASET_NAME_BYTES + 8];
    (void)snprintf(section, sizeof section, "dataset.%s", given->name);
    const struct given *text = &given->keys[DATASET_WEIGHT];
    if (text->text == NULL) {
        *weight = *weight == 0 ? CONFIG_WEIGHT_ONE : *weight;
    } else if (config_decimal_parse(text->text, 6, weight) < 0 || *weight == 0 ||
               *weight > CONFIG_WEIGHT_MAX) {
        return refuse_value(
            loader, text, section, "weight",
            "it takes 0.000001 to 4294, up to six digits after the point; shares are what "
            "weights are of their sum");
    }
    return 0;
}

/* The present layer's: new datasets to the catalog, weights to the row, origins to `config`. */
static int parse_datasets(struct loader *loader, struct config *config, uint64_t *weights) {
    struct config *first = loader->config;
    const struct layer *layer = loader_layer(loader);
    if (first->dataset_job_count == 0) {
        return error_set(loader->error, -EINVAL,
                         "%.200s: no dataset; add a [dataset NAME] section with path = PREFIX",
                         loader->path == NULL ? "config" : loader->path);
    }
    config->dataset_origins = calloc(first->dataset_count, DATASET_KEYS);
    if (config->dataset_origins == NULL) {
        return error_set(loader->error, -ENOMEM, "config: out of memory");
    }
    for (uint32_t i = 0; i < layer->dataset_count; i++) {
        const struct dataset_given *given = &layer->datasets[i];
        struct catalog_entry *entry = &first->datasets[i];
        int code = entry->name == NULL ? parse_dataset(loader, given, i) : 0;
        if (code == 0) {
            code = parse_weight(loader, given, &weights[i]);
        }
        if (code < 0) {
            return code;
        }
        entry->weight = entry->weight == 0 ? weights[i] : entry->weight;
        for (uint32_t key = 0; key < DATASET_KEYS; key++) {
            bool said = given->keys[key].text != NULL || (config == first && key == DATASET_WEIGHT);
            config->dataset_origins[DATASET_KEYS * i + key] =
                (uint8_t)(said ? given->keys[key].origin : ORIGIN_BEFORE);
        }
    }
    return 0;
}

/* What a section says of a dataset that is there already, though it may change its weight alone. */
static uint32_t moved_key(const struct dataset_given *given) {
    uint32_t key = 0;
    while (key < DATASET_KEYS && (key == DATASET_WEIGHT || given->keys[key].text == NULL)) {
        key++;
    }
    return key;
}

/* Brings the datasets of the layer before in front of those that the present one is the first to
 * have. */
static int layer_merge(struct loader *loader) {
    struct layer *layer = loader_layer(loader);
    const struct layer *before = layer - 1;
    struct layer merged = {.dataset_count = before->dataset_count};
    uint32_t most = before->dataset_count + layer->dataset_count;
    merged.datasets = calloc(most + 1, sizeof merged.datasets[0]);
    if (merged.datasets == NULL) {
        return error_set(loader->error, -ENOMEM, "config: out of memory");
    }
    for (uint32_t i = 0; i < before->dataset_count; i++) {
        memcpy(merged.datasets[i].name, before->datasets[i].name, sizeof merged.datasets[i].name);
    }
    const struct dataset_given *moved = NULL;
    for (uint32_t i = 0; i < layer->dataset_count; i++) {
        struct dataset_given *known = dataset_find(&merged, layer->datasets[i].name);
        bool again = known != NULL;
        known = known == NULL ? &merged.datasets[merged.dataset_count++] : known;
        *known = layer->datasets[i];
        moved = moved == NULL && again && moved_key(known) < DATASET_KEYS ? known : moved;
    }
    free(layer->datasets);
    layer->datasets = merged.datasets;
    layer->dataset_count = merged.dataset_count;
    if (moved != NULL) {
        char section[CONFIG_DATASET_NAME_BYTES + 8];
        uint32_t key = moved_key(moved);
        (void)snprintf(section, sizeof section, "dataset.%s", moved->name);
        return refuse_value(loader, &moved->keys[key], section, dataset_key_names[key],
                            "a dataset keeps its files and domains as long as the job lasts; "
                            "append another under a new name");
    }
    return layer->dataset_count <= CATALOG_DATASETS_MAX
               ? 0
               : error_set(loader->error, -EINVAL, "[from %" PRIu64 "]: more than %u datasets",
                           layer->step, CATALOG_DATASETS_MAX);
}

/* Memory for all layers. */
static int prepare(struct loader *loader) {
    struct config *config = loader->config;
    uint32_t layers = loader->layer_count;
    for (loader->layer = 1; loader->layer < layers; loader->layer++) {
        int code = layer_merge(loader);
        if (code < 0) {
            return code;
        }
    }
    config->dataset_job_count = loader->layers[0].dataset_count;
    config->dataset_count = loader->layers[layers - 1].dataset_count;
    uint32_t entries = config->dataset_count > 0 ? config->dataset_count : 1;
    config->datasets = calloc(entries, sizeof config->datasets[0]);
    config->domains = calloc(entries, sizeof config->domains[0]);
    config->source.weights = calloc((size_t)layers * entries, sizeof(uint64_t));
    config->sections = calloc(layers, sizeof config->sections[0]);
    config->later = calloc(layers, sizeof(struct config *));
    return config->datasets != NULL && config->domains != NULL && config->source.weights != NULL &&
                   config->sections != NULL && config->later != NULL
               ? 0
               : error_set(loader->error, -ENOMEM, "config: out of memory");
}

/* The key that a relation's refusal names first, so that its line can be told. */
static size_t key_named_in(const char *text) {
    size_t found = config_key_count();
    const char *found_at = NULL;
    size_t found_chars = 0;
    for (size_t i = 0; i < config_key_count(); i++) {
        char name[64];
        int chars = snprintf(name, sizeof name, "%s.%s", config_key_at(i)->section,
                             config_key_at(i)->name);
        const char *at = strstr(text, name);
        bool better = found_at == NULL || at < found_at ||
                      (at == found_at && (size_t)chars > found_chars);
        if (at != NULL && better) {
            found = i;
            found_at = at;
            found_chars = (size_t)chars;
        }
    }
    return found;
}

static int resolve_plan(struct loader *loader, struct config *config) {
    struct error error = {0};
    const struct plan_section *sections = loader->config->sections;
    int code = loader->layer == 0
                   ? plan_options_resolve(&config->plan, &error)
                   : plan_options_follow(&config->plan, &sections[loader->layer - 1].options,
                                         &error);
    if (code < 0) {
        char where[WHERE_BYTES];
        struct given file = {.origin = ORIGIN_DEFAULT};
        size_t i = key_named_in(error.text);
        bool named = i < config_key_count();
        where_print(loader, named ? loader_key(loader, i) : &file,
                    named ? config_key_at(i)->section : "", named ? config_key_at(i)->name : "",
                    where);
        return error_set(loader->error, code, "%s: %s", where, error.text);
    }
    config->source.part_limit = plan_part_limit(&config->plan);
    return 0;
}

static int resolve_profile(struct loader *loader, struct config *config) {
    char where[WHERE_BYTES];
    struct error error = {0};
    int code = config_profile_read(config, &error);
    if (code < 0) {
        where_print(loader, loader_key(loader, config_key_find("model", "profile")), "model",
                    "profile", where);
        return error_set(loader->error, code, "%s: model.profile: %s", where, error.text);
    }
    return 0;
}

/* Where it is not given, as many steps are planned and read ahead as have AHEAD_TOKENS in slots,
 * and no more than given slots hold; few at least; of each section its own. */
static void resolve_ahead(struct config *config) {
    if (config->ahead_steps == 0) {
        uint64_t batches = config->plan.micro_batches / config->plan.dp;
        uint64_t replicas = config->replicas_local_count;
        uint64_t tokens = config->plan.tokens_max;
        tokens = tokens > AHEAD_SLOT_TOKENS ? tokens : AHEAD_SLOT_TOKENS;
        uint64_t steps = AHEAD_TOKENS / tokens / replicas / batches;
        uint64_t held = config->slots / replicas, credits = config->credits_max + 2u;
        if (config->slots > 0 && held < credits + steps * batches) {
            steps = held < credits ? 0 : (held - credits) / batches;
        }
        steps = steps > AHEAD_STEPS_MOST ? AHEAD_STEPS_MOST : steps;
        config->ahead_steps = steps < AHEAD_STEPS_LEAST ? AHEAD_STEPS_LEAST : (uint32_t)steps;
    }
}

static int resolve_slots(struct loader *loader, struct config *config) {
    size_t key = config_key_find("slab", "slots");
    uint64_t replicas = config->replicas_local_count;
    uint64_t credits = config->credits_max + 2u;
    uint64_t ahead = (uint64_t)config->ahead_steps * (config->plan.micro_batches / config->plan.dp);
    uint64_t slots = config->slots > 0 ? config->slots : replicas * (ahead + credits);
    char reason[200];
    if (slots < replicas * credits) {
        (void)snprintf(reason, sizeof reason,
                       "%" PRIu64 " local replicas need at least %" PRIu64
                       ", limits.credits + 2 each, or a rank could wait for ever",
                       replicas, replicas * credits);
        return refuse_value(loader, loader_key(loader, key), "slab", "slots", reason);
    }
    if (slots > config_key_at(key)->max) {
        (void)snprintf(reason, sizeof reason,
                       "it comes to %" PRIu64 ", at most %" PRIu64
                       " are possible; lower daemon.ahead_steps or set slab.slots",
                       slots, config_key_at(key)->max);
        return refuse_value(loader, loader_key(loader, key), "slab", "slots", reason);
    }
    config->slots = (uint32_t)slots;
    config->reader.jobs_max = config->slots;
    return 0;
}

static int resolve_listen(struct loader *loader, const struct config *config) {
    const char *name = NULL;
    char reason[TCP_REASON_BYTES];
    if (tcp_check(config, tls_available(), &name, reason) == 0) {
        return 0;
    }
    return refuse_value(loader, loader_key(loader, config_key_find("listen", name)), "listen", name,
                        reason);
}

/* Reads and checks the present layer into its config. */
static int parse_layer(struct loader *loader, struct config *config, uint64_t *weights) {
    int code = 0;
    for (size_t i = 0; code == 0 && i < config_key_count(); i++) {
        code = parse_key(loader, config, i);
    }
    if (code == 0) {
        code = parse_datasets(loader, config, weights);
    }
    if (code == 0) {
        code = resolve_profile(loader, config);
    }
    if (code == 0) {
        code = resolve_plan(loader, config);
    }
    if (code == 0) {
        resolve_ahead(config);
        code = resolve_slots(loader, config);
    }
    return code == 0 ? resolve_listen(loader, config) : code;
}

/* A config that begins as a copy of the first, without what that owns. */
static struct config *later_create(const struct config *first) {
    struct config *later = malloc(sizeof *later);
    if (later != NULL) {
        *later = *first;
        later->replicas_local = NULL;
        later->dataset_origins = NULL;
        later->sections = NULL;
        later->section_count = 0;
        later->later = NULL;
    }
    return later;
}

/* What follows from a section's settings is its own too. */
static void mark_derived(const struct config *before, struct config *later) {
    char was[CONFIG_VALUE_BYTES], is[CONFIG_VALUE_BYTES];
    for (size_t i = 0; i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        if (key->elastic && later->origins[i] == ORIGIN_BEFORE) {
            key->kind->print(key, before, was);
            key->kind->print(key, later, is);
            later->origins[i] = strcmp(was, is) == 0 ? ORIGIN_BEFORE : ORIGIN_DEFAULT;
        }
    }
}

static int parse_later(struct loader *loader, uint64_t *weights) {
    struct config *first = loader->config;
    struct config *later = later_create(first);
    if (later == NULL) {
        return error_set(loader->error, -ENOMEM, "config: out of memory");
    }
    first->later[loader->layer - 1] = later;
    int code = parse_layer(loader, later, weights);
    if (code == 0) {
        mark_derived(config_of_section(first, loader->layer - 1), later);
    }
    return code < 0 ? error_prefix(loader->error, "[from %" PRIu64 "]", loader_layer(loader)->step)
                    : 0;
}

/* Layer by layer; new weights are a new blend. */
static int parse(struct loader *loader) {
    struct config *first = loader->config;
    uint64_t *weights = (uint64_t *)first->source.weights;
    size_t row_bytes = first->dataset_count * sizeof *weights;
    uint32_t blend = 0;
    for (uint32_t i = 0; i < loader->layer_count; i++) {
        uint64_t *row = weights + (size_t)(i > 0 ? blend + 1 : 0) * first->dataset_count;
        loader->layer = i;
        if (i > 0) {
            memcpy(row, row - first->dataset_count, row_bytes);
        }
        int code = i == 0 ? parse_layer(loader, first, row) : parse_later(loader, row);
        if (code < 0) {
            return code;
        }
        blend += i > 0 && memcmp(row, row - first->dataset_count, row_bytes) != 0;
        first->sections[i] = (struct plan_section){
            .step = loader->layers[i].step,
            .blend = blend,
            .options = i == 0 ? first->plan : first->later[i - 1]->plan,
        };
        first->section_count = i + 1;
    }
    first->source.blends = blend + 1;
    return 0;
}

static int load(struct loader *loader, const struct config_override *overrides, size_t count) {
    int code = read_file(loader);
    loader->layer = 0;
    if (code == 0) {
        code = read_environment(loader);
    }
    for (size_t i = 0; code == 0 && i < count; i++) {
        code = read_override(loader, &overrides[i]);
    }
    if (code == 0) {
        code = prepare(loader);
    }
    return code == 0 ? parse(loader) : code;
}

static void loader_deinit(struct loader *loader) {
    for (uint32_t i = 0; i < loader->layer_count; i++) {
        struct layer *layer = &loader->layers[i];
        for (size_t key = 0; key < config_key_count(); key++) {
            free(layer->keys[key].text);
        }
        for (uint32_t j = 0; j < layer->dataset_count; j++) {
            for (uint32_t key = 0; key < DATASET_KEYS; key++) {
                free(layer->datasets[j].keys[key].text);
            }
        }
        free(layer->datasets);
    }
    free(loader->layers);
}

int config_load(const char *path, const struct config_override *overrides, size_t override_count,
                struct config **out, struct error *error) {
    struct loader loader = {.path = path, .error = error};
    loader.config = calloc(1, sizeof *loader.config);
    loader.layers = calloc(1, sizeof *loader.layers);
    loader.layer_count = loader.layers != NULL;
    int code = loader.config != NULL && loader.layers != NULL
                   ? load(&loader, overrides, override_count)
                   : error_set(error, -ENOMEM, "config: out of memory");
    loader_deinit(&loader);
    if (code < 0) {
        config_destroy(loader.config);
        return code;
    }
    *out = loader.config;
    return 0;
}

static void later_destroy(struct config *later) {
    free(later->dataset_origins);
    free(later->replicas_local);
    free(later);
}

void config_destroy(struct config *config) {
    if (config == NULL) {
        return;
    }
    bool listed = config->datasets != NULL && config->domains != NULL;
    for (uint32_t i = 0; listed && i < config->dataset_count; i++) {
        free((char *)config->datasets[i].name);
        for (uint32_t key = 0; key < DATASET_KEYS; key++) {
            const char **text = dataset_text(config, i, key);
            free(text == NULL ? NULL : (char *)*text);
        }
    }
    for (uint32_t i = 0; config->later != NULL && config->later[i] != NULL; i++) {
        later_destroy(config->later[i]);
    }
    free(config->datasets);
    free(config->domains);
    free((uint64_t *)config->source.weights);
    free(config->sections);
    free(config->later);
    free(config->dataset_origins);
    free(config->replicas_local);
    free(config);
}

void config_derived_folder(const struct config *config, char out[CONFIG_PATH_BYTES + 16]) {
    bool given = config->derived[0] != '\0';
    (void)snprintf(out, CONFIG_PATH_BYTES + 16, "%s%s", given ? config->derived : config->state_dir,
                   given ? "" : "/derived");
}

int config_open_catalog(const struct config *config, bool keep, const struct dataset_watch *watch,
                        struct catalog **out, struct error *error) {
    char kept[CONFIG_PATH_BYTES + 16];
    config_derived_folder(config, kept);
    const struct format_options format = {
        .format = config->format,
        .eod = config->eod,
        .dtype = config->token_type,
        .derived_dir = keep || access(kept, R_OK | W_OK | X_OK) == 0 ? kept : NULL,
        .derived_bytes_max = config->derived_gb * UINT64_C(1000000000),
    };
    struct catalog *catalog = NULL;
    int code = catalog_open_as(config->datasets, config->dataset_count, &format, watch, &catalog,
                               error);
    if (code == 0) {
        code = catalog_use_domains(catalog, config->domains, error);
    }
    if (code < 0) {
        catalog_close(catalog);
        return code;
    }
    *out = catalog;
    return 0;
}
