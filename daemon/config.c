/* config: see config.h; what a loaded config says is in config_text.c.
 *
 * Loading is three steps: gather the text that wins for every key (defaults, file, environment,
 * flags, each remembering where it came from), read the texts in table order, check how they
 * relate. Only the last two know what a key means; only the first knows about places. inih splits
 * lines; what it would let pass (junk behind a section, sections without keys, lines cut at its
 * buffer, values carried on by indentation) is refused by the reader function given to it. */
#include "daemon/config.h"
#include "daemon/config_keys.h"

#include <ctype.h>
#include <ini.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The text of a setting and where it was found. */
struct given {
    char *text; /* NULL: not given */
    uint32_t line;
    enum config_origin origin;
};

struct dataset_given {
    char name[CONFIG_DATASET_NAME_BYTES];
    struct given path;
    struct given weight;
};

struct loader {
    struct config *config;
    const char *path; /* of the file, NULL without one */
    FILE *file;
    uint32_t line;
    char section[64];
    struct error *error;
    int code; /* the first failure, 0 so far */
    struct given keys[CONFIG_KEYS_MAX];
    struct dataset_given *datasets;
    uint32_t dataset_count;
};

#define WHERE_BYTES 256

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

/* The dataset of this name, made when it is new; NULL when out of memory or there are too many. */
static struct dataset_given *dataset_at(struct loader *loader, const char *name) {
    for (uint32_t i = 0; i < loader->dataset_count; i++) {
        if (strcmp(loader->datasets[i].name, name) == 0) {
            return &loader->datasets[i];
        }
    }
    if (loader->dataset_count == CATALOG_DATASETS_MAX) {
        loader->code = error_set(loader->error, -EINVAL, "dataset %s: more than %u datasets", name,
                                 CATALOG_DATASETS_MAX);
        return NULL;
    }
    struct dataset_given *grown = realloc(loader->datasets,
                                          (loader->dataset_count + 1) * sizeof loader->datasets[0]);
    if (grown == NULL) {
        loader->code = error_set(loader->error, -ENOMEM, "config: out of memory");
        return NULL;
    }
    loader->datasets = grown;
    struct dataset_given *dataset = &grown[loader->dataset_count++];
    memset(dataset, 0, sizeof *dataset);
    (void)snprintf(dataset->name, sizeof dataset->name, "%s", name);
    return dataset;
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
        return &loader->keys[i];
    }
    *path = strcmp(name, "path") == 0;
    if (!*path && strcmp(name, "weight") != 0) {
        return NULL;
    }
    struct dataset_given *dataset = dataset_at(loader, dataset_name);
    if (dataset == NULL) {
        return NULL;
    }
    return *path ? &dataset->path : &dataset->weight;
}

/* ": did you mean [queues] max_age?", or nothing. */
static void suggestion_print(const char *section, const char *name, char *out, size_t bytes) {
    const struct config_key *nearest = config_key_nearest(section, name);
    out[0] = '\0';
    if (dataset_of_section(section) != NULL) {
        (void)snprintf(out, bytes, "; a dataset has path and weight");
    } else if (nearest != NULL) {
        (void)snprintf(out, bytes, "; did you mean [%s] %s?", nearest->section, nearest->name);
    }
}

static int check_section(struct loader *loader, const char *section) {
    const char *dataset = dataset_of_section(section);
    if (dataset != NULL) {
        return dataset_name_valid(dataset)
                   ? 0
                   : refuse_line(loader,
                                 "[%s]: a dataset's name is 1 to %u letters, digits, '_', '-', '.'",
                                 section, CONFIG_DATASET_NAME_BYTES - 1);
    }
    if (strncmp(section, "from", 4) == 0 && (section[4] == '\0' || section[4] == ' ')) {
        return refuse_line(loader,
                           "[%s]: elastic sections are not supported by this version; "
                           "remove the section",
                           section);
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

static int take_pair(void *context, const char *section, const char *name, const char *value) {
    struct loader *loader = context;
    bool path = false;
    (void)section; /* loader->section is the same, never cut */
    if (loader->section[0] == '\0') {
        return refuse_line(loader, "'%.40s' stands before the first [section]", name) == 0;
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
        return error_set(loader->error, -errno, "config %s: %s", loader->path, strerror(errno));
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
        int code = given_set(loader, &loader->keys[i], ORIGIN_ENVIRONMENT, key->path, value);
        if (code < 0) {
            return code;
        }
    }
    return 0;
}

/* Splits "section.key" at the last point; "dataset.NAME" becomes "dataset NAME". */
static int split_name(const char *name, char *section, size_t bytes, const char **key) {
    const char *point = strrchr(name, '.');
    if (point == NULL || (size_t)(point - name) >= bytes) {
        return -EINVAL;
    }
    (void)snprintf(section, bytes, "%.*s", (int)(point - name), name);
    if (strncmp(section, "dataset.", 8) == 0) {
        section[7] = ' ';
        if (!dataset_name_valid(section + 8)) {
            return -EINVAL;
        }
    }
    *key = point + 1;
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

static int parse_key(struct loader *loader, size_t i) {
    const struct config_key *key = config_key_at(i);
    struct given *given = &loader->keys[i];
    if (given->text == NULL) {
        int code = given_set(loader, given, ORIGIN_DEFAULT, false, key->fallback);
        if (code < 0) {
            return code;
        }
    }
    loader->config->origins[i] = (uint8_t)given->origin;
    int code = key->kind->parse(key, given->text, loader->config);
    if (code == -EINVAL) {
        char allowed[256];
        char reason[300];
        key->kind->allowed(key, allowed, sizeof allowed);
        (void)snprintf(reason, sizeof reason, "it takes %s", allowed);
        return refuse_value(loader, given, key->section, key->name, reason);
    }
    return code < 0 ? error_set(loader->error, code, "config: out of memory") : 0;
}

static int parse_dataset(struct loader *loader, uint32_t i) {
    struct dataset_given *given = &loader->datasets[i];
    struct config *config = loader->config;
    struct catalog_entry *entry = &config->datasets[i];
    char section[CONFIG_DATASET_NAME_BYTES + 8];
    (void)snprintf(section, sizeof section, "dataset.%s", given->name);
    if (given->path.text == NULL) {
        return error_set(loader->error, -EINVAL,
                         "[dataset %s] has no path; give the PREFIX of PREFIX.idx and PREFIX.bin",
                         given->name);
    }
    if (given->path.text[0] == '\0' || strlen(given->path.text) >= CONFIG_VALUE_BYTES) {
        return refuse_value(loader, &given->path, section, "path",
                            "it takes the PREFIX of PREFIX.idx and PREFIX.bin");
    }
    entry->weight = CONFIG_WEIGHT_ONE;
    if (given->weight.text != NULL &&
        (config_decimal_parse(given->weight.text, 6, &entry->weight) < 0 || entry->weight == 0 ||
         entry->weight > 1000000ull * CONFIG_WEIGHT_ONE)) {
        return refuse_value(loader, &given->weight, section, "weight",
                            "it takes 0.000001 to 1000000, up to six digits after the point");
    }
    entry->name = strdup(given->name);
    entry->prefix = strdup(given->path.text);
    config->dataset_origins[2 * i] = (uint8_t)given->path.origin;
    config->dataset_origins[2 * i + 1] = (uint8_t)given->weight.origin;
    return entry->name != NULL && entry->prefix != NULL
               ? 0
               : error_set(loader->error, -ENOMEM, "config: out of memory");
}

static int parse_datasets(struct loader *loader) {
    struct config *config = loader->config;
    if (loader->dataset_count == 0) {
        return error_set(loader->error, -EINVAL,
                         "%.200s: no dataset; add a [dataset NAME] section with path = PREFIX",
                         loader->path == NULL ? "config" : loader->path);
    }
    config->datasets = calloc(loader->dataset_count, sizeof config->datasets[0]);
    config->dataset_origins = calloc(loader->dataset_count, 2);
    if (config->datasets == NULL || config->dataset_origins == NULL) {
        return error_set(loader->error, -ENOMEM, "config: out of memory");
    }
    config->dataset_count = loader->dataset_count;
    for (uint32_t i = 0; i < loader->dataset_count; i++) {
        int code = parse_dataset(loader, i);
        if (code < 0) {
            return code;
        }
    }
    return 0;
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

static int resolve_plan(struct loader *loader) {
    struct config *config = loader->config;
    struct error error = {0};
    int code = plan_options_resolve(&config->plan, &error);
    if (code < 0) {
        char where[WHERE_BYTES];
        struct given file = {.origin = ORIGIN_DEFAULT};
        size_t i = key_named_in(error.text);
        bool named = i < config_key_count();
        where_print(loader, named ? &loader->keys[i] : &file,
                    named ? config_key_at(i)->section : "", named ? config_key_at(i)->name : "",
                    where);
        return error_set(loader->error, code, "%s: %s", where, error.text);
    }
    config->source.part_limit = plan_part_limit(&config->plan);
    return 0;
}

static int resolve_slots(struct loader *loader) {
    struct config *config = loader->config;
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
        return refuse_value(loader, &loader->keys[key], "slab", "slots", reason);
    }
    if (slots > config_key_at(key)->max) {
        (void)snprintf(reason, sizeof reason,
                       "it comes to %" PRIu64 ", at most %" PRIu64
                       " are possible; lower daemon.ahead_steps or set slab.slots",
                       slots, config_key_at(key)->max);
        return refuse_value(loader, &loader->keys[key], "slab", "slots", reason);
    }
    config->slots = (uint32_t)slots;
    config->reader.jobs_max = config->slots;
    return 0;
}

static int load(struct loader *loader, const struct config_override *overrides, size_t count) {
    int code = read_file(loader);
    if (code == 0) {
        code = read_environment(loader);
    }
    for (size_t i = 0; code == 0 && i < count; i++) {
        code = read_override(loader, &overrides[i]);
    }
    for (size_t i = 0; code == 0 && i < config_key_count(); i++) {
        code = parse_key(loader, i);
    }
    if (code == 0) {
        code = parse_datasets(loader);
    }
    if (code == 0) {
        code = resolve_plan(loader);
    }
    return code == 0 ? resolve_slots(loader) : code;
}

static void loader_deinit(struct loader *loader) {
    for (size_t i = 0; i < config_key_count(); i++) {
        free(loader->keys[i].text);
    }
    for (uint32_t i = 0; i < loader->dataset_count; i++) {
        free(loader->datasets[i].path.text);
        free(loader->datasets[i].weight.text);
    }
    free(loader->datasets);
}

int config_load(const char *path, const struct config_override *overrides, size_t override_count,
                struct config **out, struct error *error) {
    struct loader loader = {.path = path, .error = error};
    loader.config = calloc(1, sizeof *loader.config);
    if (loader.config == NULL) {
        return error_set(error, -ENOMEM, "config: out of memory");
    }
    int code = load(&loader, overrides, override_count);
    loader_deinit(&loader);
    if (code < 0) {
        config_destroy(loader.config);
        return code;
    }
    *out = loader.config;
    return 0;
}

void config_destroy(struct config *config) {
    if (config == NULL) {
        return;
    }
    for (uint32_t i = 0; i < config->dataset_count; i++) {
        free((char *)config->datasets[i].name);
        free((char *)config->datasets[i].prefix);
    }
    free(config->datasets);
    free(config->dataset_origins);
    free(config->replicas_local);
    free(config);
}
