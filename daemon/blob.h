/* blob: a checkpoint of the stream, as Export gives it and Import takes it.
 *
 *     "BLCK" format u32 | bytes u32 | fields | XXH3-64 of all before, big endian
 *     field: tag u16 | flags u16 | length u32 | content        numbers little endian, tags rising
 *
 * It describes itself: which job it is of (algorithm, digest, settings, a fingerprint of each
 * dataset), and the state from which its step is planned. It names no path, so it goes wherever the
 * same corpus is.
 *
 * How it may grow: a reader passes over fields that it does not know, unless their flag says that
 * they must be understood; then it refuses. What older readers may ignore is a new field without
 * the flag, what changes the meaning of the rest a new field with it; the format's number changes
 * only with the frame around the fields. Fields are never taken away or used for something else, so
 * older blobs are always read. Hostile bytes are expected. */
#ifndef BALLAST_DAEMON_BLOB_H
#define BALLAST_DAEMON_BLOB_H

#include "planner/error.h"
#include "planner/plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BLOB_FORMAT            1u
#define BLOB_BYTES_MAX         (3u << 20) /* fits a frame */
#define BLOB_FINGERPRINT_BYTES 16u
#define BLOB_DATASETS_MAX      1024u

struct blob_dataset {
    const char *name;
    uint8_t fingerprint[BLOB_FINGERPRINT_BYTES]; /* dataset_fingerprint */
};

struct blob {
    const char *writer;     /* name and version of the program, for people; never NULL */
    uint32_t algorithm;     /* PLAN_ALGORITHM_VERSION of the writer */
    uint8_t job_digest[16]; /* config_job_digest */
    const struct blob_dataset *datasets;
    uint32_t dataset_count; /* > 0 */
    const char *plan_text;  /* config_plan_text */
    uint64_t step;          /* the step that is planned from `state` */
    uint64_t generation;    /* of the writer's store when it was made */
    bool digest_known;      /* the step was planned by then */
    uint8_t digest[PLAN_DIGEST_BYTES];
    const uint8_t *state; /* plan_state_encode */
    size_t state_bytes;   /* > 0 */
};

/* Returns the bytes in memory that the caller frees, NULL with -ENOMEM, or -EMSGSIZE above
 * BLOB_BYTES_MAX, in `error`. */
uint8_t *blob_encode(const struct blob *blob, size_t *bytes, struct error *error);

/* Reads a blob into one allocation that holds copies of everything; the caller frees *out with
 * free(). The state is not looked into. -EBADMSG damaged, cut off or none at all; -ENOSYS of a
 * newer format, or with a field that must be understood and is not; -ENOMEM. */
int blob_decode(const uint8_t *bytes, size_t count, struct blob **out, struct error *error);

/* Whether the blob is of the job `here` (of which only the job's fields are read), with the same
 * history up to the blob's step: the first difference is named, an algorithm version, a dataset by
 * name, a setting by key. *same_step: they agree about the step itself too, so that its digest
 * holds here. -EINVAL. */
int blob_check_job(const struct blob *blob, const struct blob *here, bool *same_step,
                   struct error *error);

/* The first line in which two texts of "name = value" lines differ: its name in `name`, both values
 * in `a_value` and `b_value` ("nothing" where a text has no such line). False when they agree. */
struct blob_difference {
    char name[96];
    char a_value[128];
    char b_value[128];
};
bool blob_text_difference(const char *a, const char *b, struct blob_difference *out);

#endif
