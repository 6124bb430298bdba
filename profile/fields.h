/* fields: the objects of a profile as tables, from which they are read, written and compared.
 *
 * Private to profile/. Names ascend as canonical JSON wants them. */
#ifndef BALLAST_PROFILE_FIELDS_H
#define BALLAST_PROFILE_FIELDS_H

#include "profile/profile.h"

enum profile_kind {
    FIELD_TEXT,   /* char array, not empty unless `optional` */
    FIELD_NUMBER, /* u64, 1 to max, 0 if `optional` */
    FIELD_FLAG,   /* bool */
    FIELD_LIST,   /* struct profile_list, 1 to max each */
};

struct profile_field {
    const char *name;
    enum profile_kind kind;
    size_t offset;
    size_t bytes;
    uint64_t max;
    bool optional; /* may be empty or 0: not known */
    bool lacking;  /* of lists: may be missing, which is one of none */
    bool must;     /* of the key: must be equal for a plan to be priced by it */
};

struct profile_fields {
    const struct profile_field *fields;
    size_t count;
};

extern const struct profile_fields profile_key_fields;
extern const struct profile_fields profile_grid_fields; /* without rows */
extern const struct profile_fields profile_linear_fields;
extern const struct profile_fields profile_degree_fields;
extern const struct profile_fields profile_group_fields;
extern const struct profile_fields profile_measured_fields;
extern const struct profile_fields profile_provenance_fields;

/* What may stand beside ps_per_tile: struct profile_rows of struct profile_grid. */
struct profile_rows_field {
    const char *name;
    size_t offset;
    bool zero; /* 0 may stand: nothing to measure */
};

#define PROFILE_ROWS_FIELDS 3u /* the first stands before what is no rows */

extern const struct profile_rows_field profile_rows_fields[PROFILE_ROWS_FIELDS];

static inline void *profile_field_at(void *object, const struct profile_field *field) {
    return (char *)object + field->offset;
}

static inline const void *profile_field_of(const void *object, const struct profile_field *field) {
    return (const char *)object + field->offset;
}

static inline struct profile_rows *profile_rows_at(struct profile_grid *grid,
                                                   const struct profile_rows_field *field) {
    return (struct profile_rows *)((char *)grid + field->offset);
}

static inline const struct profile_rows *profile_rows_of(const struct profile_grid *grid,
                                                         const struct profile_rows_field *field) {
    return (const struct profile_rows *)((const char *)grid + field->offset);
}

/* The value of a field as JSON on one line. */
void profile_field_write(const struct profile_field *field, const void *object, FILE *out);

/* A string as JSON. */
void profile_text_write(const char *text, FILE *out);

/* The key object on one line, without spaces: what names a profile; then the rest. */
void profile_key_write(const struct profile_key *key, FILE *out);
void profile_content_write(const struct profile *profile, bool provenance, FILE *out);

#endif
