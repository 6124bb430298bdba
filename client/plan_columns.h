/* plan_columns: what a client in another language takes from libballast, where it is there, to be
 * as fast: a plan's bytes to columns of integers, checked as batch.h says, and the gather.
 *
 * Not for trainers in C, which have ballast.h; the Python client finds these functions by name.
 * They may change with BALLAST_PLAN_VERSION, which a caller compares before it calls anything else.
 */
#ifndef BALLAST_CLIENT_PLAN_COLUMNS_H
#define BALLAST_CLIENT_PLAN_COLUMNS_H

#include "client/ballast.h"

#define BALLAST_PLAN_VERSION 1u

struct ballast_plan; /* memory for one plan at a time; one thread at a time */

uint32_t ballast_plan_version(void);

/* NULL when out of memory. Destroying NULL is fine. */
struct ballast_plan *ballast_plan_create(void);
void ballast_plan_destroy(struct ballast_plan *plan);

/* What the plan must agree with. */
struct ballast_plan_job {
    uint64_t tokens_max;
    uint32_t ranks; /* of the context-parallel group */
    uint32_t rank;  /* the reader's place in it */
};

/* Reads BatchEnvelope.plan, `bytes` long, without keeping pointers into it, and writes to `out`, of
 * `capacity` numbers (4 * bytes + 64 are enough):
 *   tokens, tokens of the slot with successors, layout, exchange, documents, fragments of all
 * ranks; rows, pad rows and fragments of each rank; dataset, document, offset, length,
 * document_length, nominal_step, epoch of all documents, a column after the other; document, start,
 * length, row of all fragments, likewise. Returns the numbers written. -EPROTO, with the
 * contradiction in `why`, -ENOMEM, -ENOBUFS. */
int64_t ballast_plan_read(struct ballast_plan *plan, const uint8_t *message, size_t bytes,
                          const struct ballast_plan_job *job, int64_t *out, size_t capacity,
                          char *why, size_t why_bytes);

/* Fills `out` with a column of the reader's rows, as ballast_gather does but for what only a caller
 * can know: that `out` has room for them, and that `slot` are the slot's bytes, `token_bytes` for a
 * token, aligned to that. Positions need no slot. 0, or -EINVAL for a plan that was not read. */
int ballast_plan_gather(const struct ballast_plan *plan, enum ballast_column column,
                        enum ballast_type type, const void *slot, uint32_t token_bytes, void *out);

#endif
