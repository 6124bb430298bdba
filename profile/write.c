/* write: the canonical text of a profile.
 *
 * Indented by one space a level, a list or a row of a grid on a line, so that two profiles diff by
 * what was measured. stdio remembers write errors. */
#include "profile/fields.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

void profile_text_write(const char *text, FILE *out) {
    json_t *value = json_string(text);
    if (value == NULL || json_dumpf(value, out, JSON_ENCODE_ANY) != 0) {
        abort(); /* out of memory: what profiles hold is text */
    }
    json_decref(value);
}

static void values_write(const uint64_t *values, uint32_t count, FILE *out) {
    fputc('[', out);
    for (uint32_t i = 0; i < count; i++) {
        fprintf(out, "%s%" PRIu64, i > 0 ? ", " : "", values[i]);
    }
    fputc(']', out);
}

void profile_field_write(const struct profile_field *field, const void *object, FILE *out) {
    const void *at = profile_field_of(object, field);
    const struct profile_list *list = at;
    switch (field->kind) {
    case FIELD_TEXT:
        profile_text_write(at, out);
        break;
    case FIELD_NUMBER:
        fprintf(out, "%" PRIu64, *(const uint64_t *)at);
        break;
    case FIELD_FLAG:
        fputs(*(const bool *)at ? "true" : "false", out);
        break;
    case FIELD_LIST:
        values_write(list->values, list->count, out);
        break;
    }
}

void profile_key_write(const struct profile_key *key, FILE *out) {
    for (size_t i = 0; i < profile_key_fields.count; i++) {
        const struct profile_field *field = &profile_key_fields.fields[i];
        fprintf(out, "%s\"%s\":", i > 0 ? "," : "{", field->name);
        profile_field_write(field, key, out);
    }
    fputc('}', out);
}

/* A new line of this depth, behind a comma unless it is an object's first. */
static void line_begin(FILE *out, bool first, int depth) {
    fprintf(out, "%s\n%*s", first ? "" : ",", depth, "");
}

static bool field_lacks(const struct profile_field *field, const void *object) {
    const struct profile_list *list = profile_field_of(object, field);
    return field->lacking && list->count == 0;
}

/* The first begins its object when nothing stands before. */
static void fields_follow(const struct profile_fields *fields, const void *object, bool first,
                          int depth, FILE *out) {
    for (size_t i = 0; i < fields->count; i++) {
        const struct profile_field *field = &fields->fields[i];
        if (!field_lacks(field, object)) {
            line_begin(out, first, depth);
            fprintf(out, "\"%s\": ", field->name);
            profile_field_write(field, object, out);
            first = false;
        }
    }
}

static void fields_write(const struct profile_fields *fields, const void *object, int depth,
                         FILE *out) {
    fields_follow(fields, object, true, depth, out);
}

static void object_end(FILE *out, int depth) {
    fprintf(out, "\n%*s}", depth, "");
}

static void rows_write(const char *name, const uint64_t rows[][PROFILE_POINTS_MAX],
                       const struct profile_grid *grid, bool first, FILE *out) {
    line_begin(out, first, 3);
    fprintf(out, "\"%s\": [", name);
    for (uint32_t i = 0; i < grid->q.count; i++) {
        line_begin(out, i == 0, 4);
        values_write(rows[i], grid->kv.count, out);
    }
    fputs("\n   ]", out);
}

static void rows_field_write(const struct profile_rows_field *field,
                             const struct profile_grid *grid, bool first, FILE *out) {
    const struct profile_rows *rows = profile_rows_of(grid, field);
    if (rows->known) {
        rows_write(field->name, rows->ps, grid, first, out);
    }
}

/* Causal cells come first, percentiles and "ps_per_tile" before "q". */
static void grid_write(const struct profile_grid *grid, FILE *out) {
    const struct profile_fields before = {profile_grid_fields.fields,
                                          profile_grid_fields.count - 1};
    const struct profile_field *q = &profile_grid_fields.fields[profile_grid_fields.count - 1];
    fputc('{', out);
    rows_field_write(&profile_rows_fields[0], grid, true, out);
    fields_follow(&before, grid, !grid->causal.known, 3, out);
    for (size_t i = 1; i < PROFILE_ROWS_FIELDS; i++) {
        rows_field_write(&profile_rows_fields[i], grid, false, out);
    }
    rows_write("ps_per_tile", grid->ps_per_tile, grid, false, out);
    fprintf(out, ",\n   \"%s\": ", q->name);
    profile_field_write(q, grid, out);
    object_end(out, 2);
}

struct named {
    char name[24];
    const void *object;
};

static int named_before(const void *a, const void *b) {
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

/* Objects by their names. */
static void named_write(struct named *named, size_t count, const struct profile_fields *fields,
                        int depth, FILE *out) {
    qsort(named, count, sizeof *named, named_before);
    fputc('{', out);
    for (size_t i = 0; i < count; i++) {
        line_begin(out, i == 0, depth);
        fprintf(out, "\"%s\": {", named[i].name);
        fields_write(fields, named[i].object, depth + 1, out);
        object_end(out, depth);
    }
    if (count > 0) {
        object_end(out, depth - 1);
    } else {
        fputc('}', out);
    }
}

static void linear_write(const struct profile_linear *linear, FILE *out) {
    struct named degrees[PROFILE_DEGREES_MAX];
    if (linear->hidden == 0) {
        fputs("{}", out);
        return;
    }
    for (uint32_t i = 0; i < linear->degree_count; i++) {
        (void)snprintf(degrees[i].name, sizeof degrees[i].name, "%" PRIu32, linear->degrees[i].tp);
        degrees[i].object = &linear->degrees[i];
    }
    fputc('{', out);
    fields_write(&profile_linear_fields, linear, 2, out);
    fputs(",\n  \"tp\": ", out);
    named_write(degrees, linear->degree_count, &profile_degree_fields, 3, out);
    object_end(out, 1);
}

static void collective_write(const struct profile_collective_groups *groups, FILE *out) {
    struct named named[PROFILE_GROUPS_MAX];
    for (uint32_t i = 0; i < groups->count; i++) {
        const struct profile_group *group = &groups->groups[i];
        (void)snprintf(named[i].name, sizeof named[i].name, "%" PRIu32 "x%" PRIu32, group->ranks,
                       group->nodes);
        named[i].object = group;
    }
    named_write(named, groups->count, &profile_group_fields, 3, out);
}

static void collectives_write(const struct profile *profile, FILE *out) {
    bool any = false;
    fputc('{', out);
    for (enum profile_collective c = 0; c < PROFILE_COLLECTIVES; c++) {
        if (profile->coll[c].count > 0) {
            line_begin(out, !any, 2);
            fprintf(out, "\"%s\": ", profile_collective_name(c));
            collective_write(&profile->coll[c], out);
            any = true;
        }
    }
    fputs(any ? "\n }" : "}", out);
}

void profile_content_write(const struct profile *profile, bool provenance, FILE *out) {
    fputs("{\n \"attn\": {\n  \"bwd\": ", out);
    grid_write(&profile->bwd, out);
    fputs(",\n  \"fwd\": ", out);
    grid_write(&profile->fwd, out);
    fputs("\n },\n \"coll\": ", out);
    collectives_write(profile, out);
    fprintf(out, ",\n \"format\": %u,\n \"key\": {", PROFILE_FORMAT);
    fields_write(&profile_key_fields, &profile->key, 2, out);
    object_end(out, 1);
    fputs(",\n \"linear\": ", out);
    linear_write(&profile->linear, out);
    if (profile->measured.runs > 0) {
        fputs(",\n \"measured\": {", out);
        fields_write(&profile_measured_fields, &profile->measured, 2, out);
        object_end(out, 1);
    }
    if (provenance) {
        fputs(",\n \"provenance\": {", out);
        fields_write(&profile_provenance_fields, &profile->provenance, 2, out);
        object_end(out, 1);
    }
    fputs("\n}\n", out);
}

void profile_write(const struct profile *profile, FILE *out) {
    profile_content_write(profile, true, out);
}
