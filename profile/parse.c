/* parse: from JSON to a profile.
 *
 * jansson reads the text, once its size and depth are known to be small. The rest goes by the
 * tables of fields.h: a cursor holds the path to where it stands, so that a refusal names it, and
 * what an object has beyond its table is refused too. */
#include "profile/fields.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES 96

struct cursor {
    const char *file;
    char path[PATH_BYTES];
    struct error *error;
};

static int refuse(const struct cursor *cursor, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int refuse(const struct cursor *cursor, const char *format, ...) {
    char text[ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return error_set(cursor->error, -EINVAL, "%.200s: %s%s%s", cursor->file, cursor->path,
                     cursor->path[0] == '\0' ? "" : ": ", text);
}

/* One step into the value: "attn", then ".fwd" or "[3]"; returns what cursor_leave takes. */
static size_t cursor_enter(struct cursor *cursor, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static size_t cursor_enter(struct cursor *cursor, const char *format, ...) {
    size_t length = strlen(cursor->path);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(cursor->path + length, PATH_BYTES - length, format, arguments);
    va_end(arguments);
    if (length == 0 && cursor->path[0] == '.') {
        memmove(cursor->path, cursor->path + 1, strlen(cursor->path));
    }
    return length;
}

/* After a failure the path stays for the text that was made of it. */
static void cursor_leave(struct cursor *cursor, size_t length) {
    cursor->path[length] = '\0';
}

static int read_text(struct cursor *cursor, const json_t *value, const struct profile_field *field,
                     char *out) {
    if (!json_is_string(value)) {
        return refuse(cursor, "it is no string; write it in quotes");
    }
    if (json_string_length(value) >= field->bytes) {
        return refuse(cursor, "longer than %zu bytes; shorten it", field->bytes - 1);
    }
    if (json_string_length(value) == 0 && !field->optional) {
        return refuse(cursor, "it is empty; say what was measured");
    }
    memcpy(out, json_string_value(value), json_string_length(value) + 1);
    return 0;
}

static int read_number(struct cursor *cursor, const json_t *value, bool zero, uint64_t max,
                       uint64_t *out) {
    if (!json_is_integer(value)) {
        return refuse(cursor, "it is no whole number; times are whole picoseconds, measure again "
                              "or round");
    }
    json_int_t number = json_integer_value(value);
    if (number < (zero ? 0 : 1) || (uint64_t)number > max) {
        return refuse(cursor, "%lld is not from %d to %" PRIu64 "; measure again",
                      (long long)number, zero ? 0 : 1, max);
    }
    *out = (uint64_t)number;
    return 0;
}

static int read_values(struct cursor *cursor, const json_t *value, bool zero, uint64_t max,
                       uint64_t *out, uint32_t *count) {
    if (!json_is_array(value) || json_array_size(value) < 1 ||
        json_array_size(value) > PROFILE_POINTS_MAX) {
        return refuse(cursor, "it is no list of 1 to %u numbers", PROFILE_POINTS_MAX);
    }
    int code = 0;
    for (size_t i = 0; code == 0 && i < json_array_size(value); i++) {
        size_t at = cursor_enter(cursor, "[%zu]", i);
        code = read_number(cursor, json_array_get(value, i), zero, max, &out[i]);
        cursor_leave(cursor, at);
    }
    *count = (uint32_t)json_array_size(value);
    return code;
}

static int read_field(struct cursor *cursor, const json_t *value, const struct profile_field *field,
                      void *object) {
    void *at = profile_field_at(object, field);
    struct profile_list *list = at;
    switch (field->kind) {
    case FIELD_TEXT:
        return read_text(cursor, value, field, at);
    case FIELD_NUMBER:
        return read_number(cursor, value, field->optional, field->max, at);
    case FIELD_FLAG:
        if (!json_is_boolean(value)) {
            return refuse(cursor, "it is neither true nor false");
        }
        *(bool *)at = json_is_true(value);
        return 0;
    case FIELD_LIST:
        return read_values(cursor, value, false, field->max, list->values, &list->count);
    }
    return -EINVAL;
}

/* The member of an object, which must have it. */
static int member(struct cursor *cursor, const json_t *object, const char *name,
                  const json_t **out) {
    if (!json_is_object(object)) {
        return refuse(cursor, "it is no object");
    }
    *out = json_object_get(object, name);
    if (*out == NULL) {
        (void)cursor_enter(cursor, ".%s", name);
        return refuse(cursor, "missing; every profile of format %u has it, measure again",
                      PROFILE_FORMAT);
    }
    return 0;
}

/* Refuses what is neither in the table nor one of `others` (NULL behind the last). */
static int refuse_unknown(struct cursor *cursor, const json_t *object,
                          const struct profile_fields *fields, const char *const *others) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value) {
        bool known = false;
        for (size_t i = 0; fields != NULL && i < fields->count; i++) {
            known = known || strcmp(fields->fields[i].name, name) == 0;
        }
        for (size_t i = 0; others[i] != NULL; i++) {
            known = known || strcmp(others[i], name) == 0;
        }
        if (!known) {
            (void)cursor_enter(cursor, ".%.40s", name);
            return refuse(cursor,
                          "unknown in format %u; take it out, or use the version that "
                          "wrote it",
                          PROFILE_FORMAT);
        }
    }
    return 0;
}

static int read_fields(struct cursor *cursor, const json_t *object,
                       const struct profile_fields *fields, const char *const *others, void *out) {
    int code = 0;
    for (size_t i = 0; code == 0 && i < fields->count; i++) {
        const json_t *value = json_object_get(object, fields->fields[i].name);
        if (!fields->fields[i].lacking) {
            code = member(cursor, object, fields->fields[i].name, &value);
        }
        if (code == 0 && value != NULL) {
            size_t at = cursor_enter(cursor, ".%s", fields->fields[i].name);
            code = read_field(cursor, value, &fields->fields[i], out);
            cursor_leave(cursor, at);
        }
    }
    return code < 0 ? code : refuse_unknown(cursor, object, fields, others);
}

static const char *const nothing_else[] = {NULL};

static int read_rows(struct cursor *cursor, const json_t *rows, const struct profile_grid *grid,
                     bool zero, uint64_t out[][PROFILE_POINTS_MAX]) {
    if (!json_is_array(rows) || json_array_size(rows) != grid->q.count) {
        return refuse(cursor, "it has not the %" PRIu32 " rows of q", grid->q.count);
    }
    int code = 0;
    for (uint32_t i = 0; code == 0 && i < grid->q.count; i++) {
        uint32_t count;
        size_t at = cursor_enter(cursor, "[%" PRIu32 "]", i);
        code = read_values(cursor, json_array_get(rows, i), zero, PROFILE_PS_MAX, out[i], &count);
        if (code == 0 && count != grid->kv.count) {
            code = refuse(cursor, "it has %" PRIu32 " times for the %" PRIu32 " lengths of kv",
                          count, grid->kv.count);
        }
        cursor_leave(cursor, at);
    }
    return code;
}

/* What the grid may lack, then what it has. */
static int read_grid_rows(struct cursor *cursor, const json_t *object, struct profile_grid *grid) {
    const json_t *rows = NULL;
    int code = 0;
    for (size_t i = 0; code == 0 && i < PROFILE_ROWS_FIELDS; i++) {
        struct profile_rows *beside = profile_rows_at(grid, &profile_rows_fields[i]);
        rows = json_object_get(object, profile_rows_fields[i].name);
        if (rows != NULL) {
            size_t at = cursor_enter(cursor, ".%s", profile_rows_fields[i].name);
            code = read_rows(cursor, rows, grid, profile_rows_fields[i].zero, beside->ps);
            beside->known = true;
            cursor_leave(cursor, at);
        }
    }
    code = code < 0 ? code : member(cursor, object, "ps_per_tile", &rows);
    if (code == 0) {
        (void)cursor_enter(cursor, ".ps_per_tile");
        code = read_rows(cursor, rows, grid, false, grid->ps_per_tile);
    }
    return code;
}

static int read_grid(struct cursor *cursor, const json_t *attn, const char *name,
                     struct profile_grid *grid) {
    const char *rows_too[PROFILE_ROWS_FIELDS + 2] = {"ps_per_tile"};
    const json_t *value;
    int code = member(cursor, attn, name, &value);
    if (code < 0) {
        return code;
    }
    for (size_t i = 0; i < PROFILE_ROWS_FIELDS; i++) {
        rows_too[1 + i] = profile_rows_fields[i].name;
    }
    size_t at = cursor_enter(cursor, ".%s", name);
    code = read_fields(cursor, value, &profile_grid_fields, rows_too, grid);
    code = code < 0 ? code : read_grid_rows(cursor, value, grid);
    cursor_leave(cursor, at);
    return code;
}

/* "8", without sign or zeros in front, up to 4096. */
static const char *name_number(const char *name, uint32_t *out) {
    uint32_t number = 0;
    if (*name < '1' || *name > '9') {
        return NULL;
    }
    for (; *name >= '0' && *name <= '9'; name++) {
        number = 10 * number + (uint32_t)(*name - '0');
        if (number > 4096) {
            return NULL;
        }
    }
    *out = number;
    return name;
}

static int degree_before(const void *a, const void *b) {
    const struct profile_degree *x = a, *y = b;
    return x->tp < y->tp ? -1 : x->tp > y->tp;
}

static int read_degrees(struct cursor *cursor, const json_t *object,
                        struct profile_linear *linear) {
    const char *name;
    json_t *value;
    int code = 0;
    if (!json_is_object(object) || json_object_size(object) < 1 ||
        json_object_size(object) > PROFILE_DEGREES_MAX) {
        return refuse(cursor, "it is no object of 1 to %u degrees", PROFILE_DEGREES_MAX);
    }
    json_object_foreach((json_t *)object, name, value) {
        struct profile_degree *degree = &linear->degrees[linear->degree_count++];
        size_t at = cursor_enter(cursor, ".%.12s", name);
        const char *end = name_number(name, &degree->tp);
        code = end == NULL || *end != '\0'
                   ? refuse(cursor, "it is no tensor-parallel degree; write 1 to 4096")
                   : read_fields(cursor, value, &profile_degree_fields, nothing_else, degree);
        cursor_leave(cursor, at);
        if (code < 0) {
            return code;
        }
    }
    qsort(linear->degrees, linear->degree_count, sizeof linear->degrees[0], degree_before);
    return 0;
}

static int read_linear(struct cursor *cursor, const json_t *object, struct profile_linear *linear) {
    static const char *const degrees_too[] = {"tp", NULL};
    const json_t *degrees;
    size_t at = cursor_enter(cursor, ".linear");
    int code = 0;
    if (!json_is_object(object) || json_object_size(object) > 0) {
        code = read_fields(cursor, object, &profile_linear_fields, degrees_too, linear);
        code = code < 0 ? code : member(cursor, object, "tp", &degrees);
        if (code == 0) {
            (void)cursor_enter(cursor, ".tp");
            code = read_degrees(cursor, degrees, linear);
        }
    }
    cursor_leave(cursor, at);
    return code;
}

static int group_before(const void *a, const void *b) {
    const struct profile_group *x = a, *y = b;
    if (x->ranks != y->ranks) {
        return x->ranks < y->ranks ? -1 : 1;
    }
    return x->nodes < y->nodes ? -1 : x->nodes > y->nodes;
}

static int read_groups(struct cursor *cursor, const json_t *object,
                       struct profile_collective_groups *groups) {
    const char *name;
    json_t *value;
    if (!json_is_object(object) || json_object_size(object) > PROFILE_GROUPS_MAX) {
        return refuse(cursor, "it is no object of up to %u groups", PROFILE_GROUPS_MAX);
    }
    json_object_foreach((json_t *)object, name, value) {
        struct profile_group *group = &groups->groups[groups->count++];
        size_t at = cursor_enter(cursor, ".%.16s", name);
        const char *nodes = name_number(name, &group->ranks);
        const char *end = nodes == NULL || *nodes != 'x' ? NULL
                                                         : name_number(nodes + 1, &group->nodes);
        bool named = end != NULL && *end == '\0' && group->nodes <= group->ranks &&
                     group->ranks > 1;
        int code = named ? read_fields(cursor, value, &profile_group_fields, nothing_else, group)
                         : refuse(cursor, "it is no group; write RANKSxNODES, such as 8x1");
        cursor_leave(cursor, at);
        if (code < 0) {
            return code;
        }
    }
    qsort(groups->groups, groups->count, sizeof groups->groups[0], group_before);
    return 0;
}

static int read_collectives(struct cursor *cursor, const json_t *object, struct profile *profile) {
    const char *names[PROFILE_COLLECTIVES + 1] = {NULL};
    size_t at = cursor_enter(cursor, ".coll");
    int code = json_is_object(object) ? 0 : refuse(cursor, "it is no object");
    for (enum profile_collective c = 0; c < PROFILE_COLLECTIVES; c++) {
        names[c] = profile_collective_name(c);
    }
    code = code < 0 ? code : refuse_unknown(cursor, object, NULL, names);
    for (enum profile_collective c = 0; code == 0 && c < PROFILE_COLLECTIVES; c++) {
        const json_t *groups = json_object_get(object, names[c]);
        if (groups != NULL) {
            size_t inner = cursor_enter(cursor, ".%s", names[c]);
            code = read_groups(cursor, groups, &profile->coll[c]);
            cursor_leave(cursor, inner);
        }
    }
    cursor_leave(cursor, at);
    return code;
}

static int read_format(struct cursor *cursor, const json_t *value) {
    if (!json_is_integer(value) || json_integer_value(value) != PROFILE_FORMAT) {
        (void)cursor_enter(cursor, ".format");
        return refuse(cursor,
                      "it is not %u; use the version of Ballast that wrote it, or measure "
                      "again",
                      PROFILE_FORMAT);
    }
    return 0;
}

static int read_attn(struct cursor *cursor, const json_t *attn, struct profile *profile) {
    static const char *const names[] = {"bwd", "fwd", NULL};
    size_t at = cursor_enter(cursor, ".attn");
    int code = read_grid(cursor, attn, "fwd", &profile->fwd);
    code = code < 0 ? code : read_grid(cursor, attn, "bwd", &profile->bwd);
    code = code < 0 ? code : refuse_unknown(cursor, attn, NULL, names);
    cursor_leave(cursor, at);
    return code;
}

static int read_object(struct cursor *cursor, const json_t *value, const char *name,
                       const struct profile_fields *fields, void *out) {
    size_t at = cursor_enter(cursor, ".%s", name);
    int code = read_fields(cursor, value, fields, nothing_else, out);
    cursor_leave(cursor, at);
    return code;
}

static int read_profile(struct cursor *cursor, const json_t *root, struct profile *profile) {
    static const char *const names[] = {"format", "key",        "attn",     "linear",
                                        "coll",   "provenance", "measured", NULL};
    const json_t *values[6];
    int code = 0;
    for (size_t i = 0; code == 0 && i < 6; i++) {
        code = member(cursor, root, names[i], &values[i]);
        code = code < 0 || i > 0 ? code : read_format(cursor, values[0]);
    }
    code = code < 0 ? code : refuse_unknown(cursor, root, NULL, names);
    code = code < 0 ? code
                    : read_object(cursor, values[1], "key", &profile_key_fields, &profile->key);
    code = code < 0 ? code : read_attn(cursor, values[2], profile);
    code = code < 0 ? code : read_linear(cursor, values[3], &profile->linear);
    code = code < 0 ? code : read_collectives(cursor, values[4], profile);
    const json_t *measured = json_object_get(root, "measured");
    if (code == 0 && measured != NULL) {
        code = read_object(cursor, measured, "measured", &profile_measured_fields,
                           &profile->measured);
    }
    return code < 0 ? code
                    : read_object(cursor, values[5], "provenance", &profile_provenance_fields,
                                  &profile->provenance);
}

/* Brackets outside of strings, so that jansson's recursion is bounded. */
static int check_depth(const struct cursor *cursor, const char *text, size_t bytes) {
    unsigned depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '"') {
            quoted = !quoted;
        } else if (quoted && text[i] == '\\') {
            i++;
        } else if (!quoted && (text[i] == '{' || text[i] == '[')) {
            depth++;
        } else if (!quoted && (text[i] == '}' || text[i] == ']') && depth > 0) {
            depth--;
        }
        if (depth > PROFILE_DEPTH_MAX) {
            return refuse(cursor, "byte %zu: deeper than %u brackets; it is no profile", i,
                          PROFILE_DEPTH_MAX);
        }
    }
    return 0;
}

static int parse_root(struct cursor *cursor, const char *text, size_t bytes, json_t **root) {
    json_error_t why;
    if (bytes > PROFILE_BYTES_MAX) {
        return refuse(cursor, "larger than %u bytes; it is no profile", PROFILE_BYTES_MAX);
    }
    int code = check_depth(cursor, text, bytes);
    if (code < 0) {
        return code;
    }
    *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    if (*root == NULL) {
        return refuse(cursor, "line %d, column %d: %s; a profile is one JSON object", why.line,
                      why.column, why.text);
    }
    return 0;
}

int profile_parse(const char *file, const char *text, size_t bytes, struct profile **out,
                  struct error *error) {
    struct cursor cursor = {.file = file, .error = error};
    json_t *root;
    int code = parse_root(&cursor, text, bytes, &root);
    if (code < 0) {
        return code;
    }
    struct profile *profile = calloc(1, sizeof *profile);
    code = profile == NULL ? error_set(error, -ENOMEM, "%s: out of memory", file)
                           : read_profile(&cursor, root, profile);
    json_decref(root);
    if (code == 0) {
        code = profile_validate(file, profile, error);
    }
    if (code < 0) {
        free(profile);
        return code;
    }
    *out = profile;
    return 0;
}

/* Reads up to one byte more than a profile may have; whoever is no regular file is refused. */
static int file_read(const char *path, char *text, size_t *bytes, struct error *error) {
    struct stat status;
    ssize_t got = 1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int failed = fd < 0 || fstat(fd, &status) != 0 ? errno : 0;
    if (failed == 0 && !S_ISREG(status.st_mode)) {
        (void)close(fd);
        return error_set(error, -EINVAL, "%s: it is no regular file; name a profile", path);
    }
    for (*bytes = 0; failed == 0 && got != 0 && *bytes <= PROFILE_BYTES_MAX;) {
        got = read(fd, text + *bytes, PROFILE_BYTES_MAX + 1 - *bytes);
        *bytes += got > 0 ? (size_t)got : 0;
        failed = got < 0 && errno != EINTR ? errno : 0;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return failed == 0
               ? 0
               : error_set(error, -failed, "profile %s: %s; check the path and the permissions",
                           path, strerror(failed));
}

/* An edited key is found out by the name. */
static int check_name(const char *path, const struct profile *profile, struct error *error) {
    char name[PROFILE_NAME_BYTES];
    const char *slash = strrchr(path, '/');
    const char *base = slash == NULL ? path : slash + 1;
    int code = profile_name(profile, name);
    if (code < 0) {
        return error_set(error, code, "%s: out of memory", path);
    }
    if (strlen(base) == PROFILE_NAME_BYTES - 1 + 5 &&
        strncmp(base, name, PROFILE_NAME_BYTES - 1) == 0 &&
        strcmp(base + PROFILE_NAME_BYTES - 1, ".json") == 0) {
        return 0;
    }
    return error_set(error, -EINVAL,
                     "%s: key: its hash is %s, so the file's name is %s.json; give it back its "
                     "name, or its key if that was edited",
                     path, name, name);
}

int profile_load(const char *path, struct profile **out, struct error *error) {
    struct profile *profile = NULL;
    size_t bytes = 0;
    char *text = malloc(PROFILE_BYTES_MAX + 1);
    int code = text == NULL ? error_set(error, -ENOMEM, "%s: out of memory", path)
                            : file_read(path, text, &bytes, error);
    if (code == 0) {
        code = profile_parse(path, text, bytes, &profile, error);
    }
    free(text);
    if (code == 0) {
        code = check_name(path, profile, error);
    }
    if (code < 0) {
        free(profile);
        return code;
    }
    *out = profile;
    return 0;
}
