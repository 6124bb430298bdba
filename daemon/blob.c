/* blob: see blob.h.
 *
 * One list of fields, FIELDS, in order of their tags; encoding walks it to write, decoding looks
 * each tag up in it. A decoded blob is one allocation: the record, its datasets, then copies of the
 * texts and the state behind one another. */
#include "daemon/blob.h"
#include "daemon/history.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define HEAD_BYTES       12u /* magic, format, bytes */
#define FIELD_HEAD_BYTES 8u
#define HASH_BYTES       8u
#define FLAG_MUST        1u /* a reader that does not know the field refuses the blob */
#define NAME_BYTES_MAX   255u
#define BLOB_REMEDY      "restore another copy of the checkpoint"

static const uint8_t blob_magic[4] = {'B', 'L', 'C', 'K'};

enum blob_tag {
    TAG_WRITER = 1,
    TAG_ALGORITHM = 2,
    TAG_JOB_DIGEST = 3,
    TAG_DATASETS = 4, /* each: fingerprint, length of the name u8, name */
    TAG_PLAN_TEXT = 5,
    TAG_STEP = 6,
    TAG_GENERATION = 7,
    TAG_STATE = 8,
    TAG_DIGEST = 9,
    TAG_COUNT,
};

static const struct blob_rule {
    const char *name;
    size_t bytes; /* 0: any number but none */
    bool required;
    bool must;
} blob_rules[TAG_COUNT] = {
    [TAG_WRITER] = {"writer", 0, false, false},
    [TAG_ALGORITHM] = {"algorithm", 4, true, true},
    [TAG_JOB_DIGEST] = {"job digest", 16, true, true},
    [TAG_DATASETS] = {"datasets", 0, true, true},
    [TAG_PLAN_TEXT] = {"settings", 0, true, true},
    [TAG_STEP] = {"step", 8, true, true},
    [TAG_GENERATION] = {"generation", 8, false, false},
    [TAG_STATE] = {"state", 0, true, true},
    [TAG_DIGEST] = {"digest", PLAN_DIGEST_BYTES, false, false},
};

/* Writing: the first pass counts (out NULL), the second writes. */

struct blob_writer {
    uint8_t *out;
    size_t at;
};

static void put_bytes(struct blob_writer *writer, const void *bytes, size_t count) {
    if (writer->out != NULL && count > 0) {
        memcpy(writer->out + writer->at, bytes, count);
    }
    writer->at += count;
}

static void put_number(struct blob_writer *writer, uint64_t value, size_t bytes) {
    uint8_t little[8];
    for (size_t i = 0; i < bytes; i++) {
        little[i] = (uint8_t)(value >> (8 * i));
    }
    put_bytes(writer, little, bytes);
}

static size_t datasets_bytes(const struct blob *blob) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < blob->dataset_count; i++) {
        bytes += BLOB_FINGERPRINT_BYTES + 1 + strnlen(blob->datasets[i].name, NAME_BYTES_MAX);
    }
    return bytes;
}

static void put_datasets(struct blob_writer *writer, const struct blob *blob) {
    for (uint32_t i = 0; i < blob->dataset_count; i++) {
        size_t name_bytes = strnlen(blob->datasets[i].name, NAME_BYTES_MAX);
        put_bytes(writer, blob->datasets[i].fingerprint, BLOB_FINGERPRINT_BYTES);
        put_number(writer, name_bytes, 1);
        put_bytes(writer, blob->datasets[i].name, name_bytes);
    }
}

static void put_head(struct blob_writer *writer, enum blob_tag tag, size_t bytes) {
    put_number(writer, tag, 2);
    put_number(writer, blob_rules[tag].must ? FLAG_MUST : 0, 2);
    put_number(writer, bytes, 4);
}

static void put_field(struct blob_writer *writer, enum blob_tag tag, const void *bytes,
                      size_t count) {
    put_head(writer, tag, count);
    put_bytes(writer, bytes, count);
}

static void put_number_field(struct blob_writer *writer, enum blob_tag tag, uint64_t value) {
    put_head(writer, tag, blob_rules[tag].bytes);
    put_number(writer, value, blob_rules[tag].bytes);
}

static void put_fields(struct blob_writer *writer, const struct blob *blob) {
    if (blob->writer[0] != '\0') {
        put_field(writer, TAG_WRITER, blob->writer, strlen(blob->writer));
    }
    put_number_field(writer, TAG_ALGORITHM, blob->algorithm);
    put_field(writer, TAG_JOB_DIGEST, blob->job_digest, sizeof blob->job_digest);
    put_head(writer, TAG_DATASETS, datasets_bytes(blob));
    put_datasets(writer, blob);
    put_field(writer, TAG_PLAN_TEXT, blob->plan_text, strlen(blob->plan_text));
    put_number_field(writer, TAG_STEP, blob->step);
    put_number_field(writer, TAG_GENERATION, blob->generation);
    put_field(writer, TAG_STATE, blob->state, blob->state_bytes);
    if (blob->digest_known) {
        put_field(writer, TAG_DIGEST, blob->digest, sizeof blob->digest);
    }
}

uint8_t *blob_encode(const struct blob *blob, size_t *bytes, struct error *error) {
    struct blob_writer writer = {.at = HEAD_BYTES};
    XXH64_canonical_t hash;
    put_fields(&writer, blob);
    size_t total = writer.at + HASH_BYTES;
    if (total > BLOB_BYTES_MAX) {
        (void)error_set(error, -EMSGSIZE, "a checkpoint of %zu bytes is larger than %u", total,
                        BLOB_BYTES_MAX);
        return NULL;
    }
    uint8_t *out = malloc(total);
    if (out == NULL) {
        (void)error_set(error, -ENOMEM, "checkpoint: out of memory");
        return NULL;
    }
    writer = (struct blob_writer){.out = out};
    put_bytes(&writer, blob_magic, sizeof blob_magic);
    put_number(&writer, BLOB_FORMAT, 4);
    put_number(&writer, total, 4);
    put_fields(&writer, blob);
    XXH64_canonicalFromHash(&hash, XXH3_64bits(out, writer.at));
    put_bytes(&writer, hash.digest, HASH_BYTES);
    *bytes = total;
    return out;
}

/* Reading */

struct blob_field {
    const uint8_t *bytes; /* NULL: not there */
    size_t count;
};

static uint64_t get_number(const uint8_t *bytes, size_t count) {
    uint64_t value = 0;
    for (size_t i = count; i-- > 0;) {
        value = value << 8 | bytes[i];
    }
    return value;
}

static int blob_damaged(struct error *error, const char *what) {
    return error_set(error, -EBADMSG, "checkpoint: %s; " BLOB_REMEDY, what);
}

/* The frame around the fields. Its format is read before anything that another one may change. */
static int read_frame(const uint8_t *bytes, size_t count, struct error *error) {
    XXH64_canonical_t hash;
    if (count < HEAD_BYTES + HASH_BYTES || memcmp(bytes, blob_magic, sizeof blob_magic) != 0) {
        return blob_damaged(error, "not a checkpoint of ballast, or the start of one");
    }
    uint64_t format = get_number(bytes + 4, 4);
    uint64_t total = get_number(bytes + 8, 4);
    if (format > BLOB_FORMAT) {
        return error_set(error, -ENOSYS,
                         "checkpoint of format %" PRIu64 ": this version reads up to %u; run the "
                         "ballast that wrote it, or a newer one",
                         format, BLOB_FORMAT);
    }
    if (format == 0 || total != count) {
        return error_set(error, -EBADMSG,
                         "checkpoint: %zu bytes are here of %" PRIu64 "; " BLOB_REMEDY, count,
                         total);
    }
    XXH64_canonicalFromHash(&hash, XXH3_64bits(bytes, count - HASH_BYTES));
    if (memcmp(hash.digest, bytes + count - HASH_BYTES, HASH_BYTES) != 0) {
        return blob_damaged(error, "the hash at its end does not fit");
    }
    return 0;
}

static int read_field(uint64_t tag, uint64_t flags, const struct blob_field *field,
                      struct blob_field fields[TAG_COUNT], struct error *error) {
    const struct blob_rule *rule = tag < TAG_COUNT ? &blob_rules[tag] : NULL;
    if (rule == NULL || rule->name == NULL) {
        return (flags & FLAG_MUST) == 0
                   ? 0
                   : error_set(error, -ENOSYS,
                               "checkpoint: field %" PRIu64 " must be understood and is newer than "
                               "this version; run the ballast that wrote it, or a newer one",
                               tag);
    }
    if (field->count == 0 || (rule->bytes != 0 && field->count != rule->bytes)) {
        return error_set(error, -EBADMSG, "checkpoint: its %s has %zu bytes; " BLOB_REMEDY,
                         rule->name, field->count);
    }
    fields[tag] = *field;
    return 0;
}

static int read_fields(const uint8_t *bytes, size_t end, struct blob_field fields[TAG_COUNT],
                       struct error *error) {
    uint64_t last = 0;
    for (size_t at = HEAD_BYTES; at < end;) {
        if (end - at < FIELD_HEAD_BYTES) {
            return blob_damaged(error, "bytes after its last field");
        }
        uint64_t tag = get_number(bytes + at, 2);
        uint64_t flags = get_number(bytes + at + 2, 2);
        struct blob_field field = {.count = (size_t)get_number(bytes + at + 4, 4)};
        at += FIELD_HEAD_BYTES;
        if (tag <= last || field.count > end - at) {
            return blob_damaged(error, "its fields are out of order or too long");
        }
        field.bytes = bytes + at;
        int code = read_field(tag, flags, &field, fields, error);
        if (code < 0) {
            return code;
        }
        last = tag;
        at += field.count;
    }
    for (size_t tag = 0; tag < TAG_COUNT; tag++) {
        if (blob_rules[tag].required && fields[tag].bytes == NULL) {
            return error_set(error, -EBADMSG, "checkpoint: it has no %s; " BLOB_REMEDY,
                             blob_rules[tag].name);
        }
    }
    return 0;
}

/* Texts come to be read by people and terminals: printable ASCII, in lines where there may be. */
static bool is_text(const uint8_t *bytes, size_t count, bool lines) {
    for (size_t i = 0; i < count; i++) {
        bool printable = ' ' <= bytes[i] && bytes[i] <= '~';
        if (!printable && !(lines && bytes[i] == '\n')) {
            return false;
        }
    }
    return true;
}

/* Counts the datasets; 0 when the field cannot be what it says. */
static uint32_t count_datasets(const struct blob_field *field) {
    uint32_t count = 0;
    for (size_t at = 0; at < field->count; count++) {
        if (field->count - at < BLOB_FINGERPRINT_BYTES + 1 || count == BLOB_DATASETS_MAX) {
            return 0;
        }
        size_t name_bytes = field->bytes[at + BLOB_FINGERPRINT_BYTES];
        at += BLOB_FINGERPRINT_BYTES + 1;
        if (name_bytes > field->count - at || !is_text(field->bytes + at, name_bytes, false)) {
            return 0;
        }
        at += name_bytes;
    }
    return count;
}

/* Copies behind one another; texts end in a zero. */
static uint8_t *copy_bytes(uint8_t **to, const uint8_t *bytes, size_t count, bool text) {
    uint8_t *copy = *to;
    if (count > 0) {
        memcpy(copy, bytes, count);
    }
    if (text) {
        copy[count] = 0;
    }
    *to += count + text;
    return copy;
}

static void copy_datasets(uint8_t **to, const struct blob_field *field,
                          struct blob_dataset *datasets) {
    for (size_t at = 0; at < field->count; datasets++) {
        memcpy(datasets->fingerprint, field->bytes + at, BLOB_FINGERPRINT_BYTES);
        size_t name_bytes = field->bytes[at + BLOB_FINGERPRINT_BYTES];
        at += BLOB_FINGERPRINT_BYTES + 1;
        datasets->name = (const char *)copy_bytes(to, field->bytes + at, name_bytes, true);
        at += name_bytes;
    }
}

/* Fields that were checked, as a blob of its own. */
static struct blob *blob_build(const struct blob_field fields[TAG_COUNT], uint32_t datasets,
                               size_t count) {
    size_t head = sizeof(struct blob) + datasets * sizeof(struct blob_dataset);
    struct blob *blob = calloc(1, head + count + datasets + 2);
    if (blob == NULL) {
        return NULL;
    }
    uint8_t *to = (uint8_t *)blob + head;
    struct blob_dataset *own = (struct blob_dataset *)(void *)(blob + 1);
    const struct blob_field *state = &fields[TAG_STATE];
    copy_datasets(&to, &fields[TAG_DATASETS], own);
    blob->datasets = own;
    blob->dataset_count = datasets;
    blob->writer = (const char *)copy_bytes(&to, fields[TAG_WRITER].bytes, fields[TAG_WRITER].count,
                                            true);
    blob->plan_text = (const char *)copy_bytes(&to, fields[TAG_PLAN_TEXT].bytes,
                                               fields[TAG_PLAN_TEXT].count, true);
    blob->state = copy_bytes(&to, state->bytes, state->count, false);
    blob->state_bytes = state->count;
    blob->algorithm = (uint32_t)get_number(fields[TAG_ALGORITHM].bytes, 4);
    blob->step = get_number(fields[TAG_STEP].bytes, 8);
    blob->generation = get_number(fields[TAG_GENERATION].bytes, fields[TAG_GENERATION].count);
    memcpy(blob->job_digest, fields[TAG_JOB_DIGEST].bytes, sizeof blob->job_digest);
    blob->digest_known = fields[TAG_DIGEST].bytes != NULL;
    if (blob->digest_known) {
        memcpy(blob->digest, fields[TAG_DIGEST].bytes, sizeof blob->digest);
    }
    return blob;
}

int blob_decode(const uint8_t *bytes, size_t count, struct blob **out, struct error *error) {
    struct blob_field fields[TAG_COUNT] = {{0}};
    int code = read_frame(bytes, count, error);
    if (code == 0) {
        code = read_fields(bytes, count - HASH_BYTES, fields, error);
    }
    if (code < 0) {
        return code;
    }
    uint32_t datasets = count_datasets(&fields[TAG_DATASETS]);
    if (datasets == 0 || !is_text(fields[TAG_PLAN_TEXT].bytes, fields[TAG_PLAN_TEXT].count, true) ||
        !is_text(fields[TAG_WRITER].bytes, fields[TAG_WRITER].count, false)) {
        return blob_damaged(error, "its texts or datasets make no sense");
    }
    if (get_number(fields[TAG_STEP].bytes, 8) > INT64_MAX ||
        get_number(fields[TAG_GENERATION].bytes, fields[TAG_GENERATION].count) > INT64_MAX) {
        return blob_damaged(error, "its numbers are out of range");
    }
    struct blob *blob = blob_build(fields, datasets, count);
    if (blob == NULL) {
        return error_set(error, -ENOMEM, "checkpoint: out of memory");
    }
    *out = blob;
    return 0;
}

/* Comparing */

static void copy_line(char *out, size_t bytes, const char *from, size_t length) {
    (void)snprintf(out, bytes, "%.*s", (int)length, from);
}

/* Splits a line "name = value"; a text that has ended has no line. */
static void split_line(const char *line, char *name, size_t name_bytes, char *value,
                       size_t value_bytes) {
    size_t length = strcspn(line, "\n");
    const char *equals = memmem(line, length, " = ", 3);
    if (equals == NULL) {
        copy_line(name, name_bytes, line, length);
        copy_line(value, value_bytes, "nothing", 7);
        return;
    }
    copy_line(name, name_bytes, line, (size_t)(equals - line));
    copy_line(value, value_bytes, equals + 3, length - (size_t)(equals + 3 - line));
}

bool blob_text_difference(const char *a, const char *b, struct blob_difference *out) {
    char b_name[sizeof out->name];
    if (strcmp(a, b) == 0) {
        return false;
    }
    while (*a != '\0' && *b != '\0' && strcspn(a, "\n") == strcspn(b, "\n") &&
           memcmp(a, b, strcspn(a, "\n")) == 0) {
        a += strcspn(a, "\n") + (a[strcspn(a, "\n")] == '\n');
        b += strcspn(b, "\n") + (b[strcspn(b, "\n")] == '\n');
    }
    split_line(a, out->name, sizeof out->name, out->a_value, sizeof out->a_value);
    split_line(b, b_name, sizeof b_name, out->b_value, sizeof out->b_value);
    if (*a == '\0') {
        memcpy(out->name, b_name, sizeof b_name);
    } else if (strcmp(out->name, b_name) != 0) {
        copy_line(out->b_value, sizeof out->b_value, "nothing", 7);
    }
    return true;
}

static int check_datasets(const struct blob *blob, const struct blob *here, struct error *error) {
    if (blob->dataset_count != here->dataset_count) {
        return error_set(error, -EINVAL,
                         "the checkpoint is of %u datasets and this config has %u; list the "
                         "datasets that it was made with, in their order",
                         blob->dataset_count, here->dataset_count);
    }
    for (uint32_t i = 0; i < blob->dataset_count; i++) {
        const struct blob_dataset *there = &blob->datasets[i];
        if (memcmp(there->fingerprint, here->datasets[i].fingerprint, BLOB_FINGERPRINT_BYTES) !=
            0) {
            return error_set(error, -EINVAL,
                             "dataset '%s' is not the corpus of the checkpoint, which calls it "
                             "'%s': its fingerprint differs; restore its files",
                             here->datasets[i].name, there->name);
        }
    }
    return 0;
}

int blob_check_job(const struct blob *blob, const struct blob *here, bool *same_step,
                   struct error *error) {
    struct history_difference history;
    bool differs = history_differs(blob->plan_text, here->plan_text, &history);
    if (blob->algorithm != here->algorithm) {
        return error_set(error, -EINVAL,
                         "the checkpoint was planned by algorithm %u and this version is %u; run "
                         "%s, which wrote it",
                         blob->algorithm, here->algorithm,
                         blob->writer[0] == '\0' ? "the version" : blob->writer);
    }
    int code = check_datasets(blob, here, error);
    if (code < 0) {
        return code;
    }
    if (differs && 0 < history.step && history.step < blob->step) {
        return error_set(error, -EINVAL,
                         "the checkpoint was planned by another history up to step %" PRIu64
                         ": it has '%s', and this config '%s'; set it back",
                         blob->step, history.a, history.b);
    }
    if (differs && history.step == 0) {
        return error_set(error, -EINVAL,
                         "the checkpoint is of another job: it has '%s', and this config '%s'; set "
                         "it back",
                         history.a, history.b);
    }
    if (memcmp(blob->job_digest, here->job_digest, sizeof blob->job_digest) != 0) {
        return error_set(error, -EINVAL,
                         "the checkpoint is of another job: settings and datasets agree, the job "
                         "digest does not");
    }
    *same_step = !differs || history.step > blob->step;
    return 0;
}
