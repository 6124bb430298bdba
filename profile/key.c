/* key: what a profile is called, by which hash plans know it, and whether it fits. */
#include "profile/fields.h"

#include <nettle/sha2.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* SHA-256 of what `write` writes. */
static int hash_written(const struct profile *profile,
                        void (*write)(const struct profile *profile, FILE *out),
                        uint8_t digest[SHA256_DIGEST_SIZE]) {
    struct sha256_ctx sha;
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out == NULL) {
        return -ENOMEM;
    }
    write(profile, out);
    bool failed = ferror(out) != 0;
    failed = fclose(out) != 0 || failed;
    if (!failed) {
        sha256_init(&sha);
        sha256_update(&sha, bytes, (const uint8_t *)text);
        sha256_digest(&sha, SHA256_DIGEST_SIZE, digest);
    }
    free(text);
    return failed ? -ENOMEM : 0;
}

static void write_key(const struct profile *profile, FILE *out) {
    profile_key_write(&profile->key, out);
}

static void write_content(const struct profile *profile, FILE *out) {
    profile_content_write(profile, false, out);
}

int profile_name(const struct profile *profile, char out[PROFILE_NAME_BYTES]) {
    uint8_t digest[SHA256_DIGEST_SIZE];
    int code = hash_written(profile, write_key, digest);
    for (size_t i = 0; code == 0 && i < PROFILE_NAME_BYTES / 2; i++) {
        (void)snprintf(out + 2 * i, 3, "%02x", digest[i]);
    }
    return code;
}

int profile_hash(const struct profile *profile, uint8_t out[MODEL_PROFILE_HASH_BYTES]) {
    uint8_t digest[SHA256_DIGEST_SIZE];
    int code = hash_written(profile, write_content, digest);
    if (code == 0) {
        memcpy(out, digest, MODEL_PROFILE_HASH_BYTES);
    }
    return code;
}

/* A key object's field differs from what is asked for. */
static int key_stale(const char *file, const char *field, const char *has, const char *wanted,
                     struct error *error) {
    return error_set(error, -EINVAL,
                     "%s: key.%s: the profile is of %.60s, this job needs %.60s; measure a profile "
                     "on it and name that, or take model.profile out",
                     file, field, has, wanted);
}

static int check_text(const char *file, const char *field, const char *has, const char *wanted,
                      struct error *error) {
    return wanted == NULL || wanted[0] == '\0' || strcmp(has, wanted) == 0
               ? 0
               : key_stale(file, field, has, wanted, error);
}

static int check_number(const char *file, const char *field, uint64_t has, uint64_t wanted,
                        struct error *error) {
    char texts[2][24];
    (void)snprintf(texts[0], sizeof texts[0], "%llu", (unsigned long long)has);
    (void)snprintf(texts[1], sizeof texts[1], "%llu", (unsigned long long)wanted);
    return has == wanted ? 0 : key_stale(file, field, texts[0], texts[1], error);
}

static int check_group(const char *file, const struct profile_key *key, uint32_t group,
                       struct error *error) {
    uint64_t has = key->q_heads / key->kv_heads;
    if (has == group) {
        return 0;
    }
    return error_set(
        error, -EINVAL,
        "%s: key.q_heads, key.kv_heads: the profile is of %llu query heads a K/V head, "
        "this job has %u on a tensor-parallel rank; measure a profile with that, or "
        "take model.profile out",
        file, (unsigned long long)has, group);
}

static void warning_add(char *warning, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void warning_add(char *warning, size_t bytes, const char *format, ...) {
    size_t length = strlen(warning);
    va_list arguments;
    if (length > 0 && length + 3 < bytes) {
        (void)snprintf(warning + length, bytes - length, "; ");
        length += 2;
    }
    va_start(arguments, format);
    (void)vsnprintf(warning + length, bytes - length, format, arguments);
    va_end(arguments);
}

static void check_soft(const struct profile *profile, const struct profile_use *use, char *warning,
                       size_t bytes) {
    const struct profile_key *key = &profile->key;
    if (use->driver != NULL && use->driver[0] != '\0' && key->driver[0] != '\0' &&
        strcmp(use->driver, key->driver) != 0) {
        warning_add(warning, bytes, "key.driver: measured with %.24s, here is %.24s", key->driver,
                    use->driver);
    }
    if (key->sm_margin != use->sm_margin) {
        warning_add(warning, bytes, "key.sm_margin: measured with %llu, model.sm_margin = %u",
                    (unsigned long long)key->sm_margin, use->sm_margin);
    }
}

int profile_check(const char *file, const struct profile *profile, const struct profile_use *use,
                  char *warning, size_t bytes, struct error *error) {
    const struct profile_key *key = &profile->key;
    int code = check_number(file, "abi", key->abi, PROFILE_ABI, error);
    code = code < 0 ? code : check_text(file, "cc", key->cc, PROFILE_CC, error);
    code = code < 0 ? code : check_text(file, "dtype", key->dtype, PROFILE_DTYPE, error);
    code = code < 0 ? code : check_text(file, "gpu", key->gpu, use->gpu, error);
    code = code < 0 ? code
                    : check_text(file, "kernel_build", key->kernel_build, use->kernel_build, error);
    code = code < 0 ? code : check_number(file, "head_dim", key->head_dim, use->head_dim, error);
    code = code < 0 ? code : check_group(file, key, use->group, error);
    code = code < 0 ? code
                    : check_text(file, "deterministic", key->deterministic ? "true" : "false",
                                 use->deterministic ? "true" : "false", error);
    warning[0] = '\0';
    if (code == 0) {
        check_soft(profile, use, warning, bytes);
    }
    return code;
}

static char *field_text(const struct profile_field *field, const struct profile_key *key, char *out,
                        size_t bytes) {
    FILE *stream = fmemopen(out, bytes, "w");
    out[0] = '\0';
    if (stream != NULL) {
        profile_field_write(field, key, stream);
        (void)fclose(stream);
        out[bytes - 1] = '\0';
    }
    return out;
}

int profile_keys_compare(const struct profile_key *a, const struct profile_key *b,
                         void (*line)(const char *path, const char *a, const char *b, bool must,
                                      void *context),
                         void *context) {
    uint64_t groups[] = {a->q_heads / a->kv_heads, b->q_heads / b->kv_heads};
    int worst = 0;
    for (size_t i = 0; i < profile_key_fields.count; i++) {
        const struct profile_field *field = &profile_key_fields.fields[i];
        char texts[2][2 * PROFILE_TEXT_BYTES], path[40];
        bool heads = strcmp(field->name, "q_heads") == 0 || strcmp(field->name, "kv_heads") == 0;
        bool must = field->must || (heads && groups[0] != groups[1]);
        if (strcmp(field_text(field, a, texts[0], sizeof texts[0]),
                   field_text(field, b, texts[1], sizeof texts[1])) != 0) {
            (void)snprintf(path, sizeof path, "key.%s", field->name);
            worst = must ? 2 : worst > 1 ? worst : 1;
            if (line != NULL) {
                line(path, texts[0], texts[1], must, context);
            }
        }
    }
    return worst;
}
