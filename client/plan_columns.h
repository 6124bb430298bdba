/* plan_columns: what a client in another language takes from libballast, where it is there, to be
 * as fast: the batches of its stream in one call each, read and checked as batch.h says, the
 * gather, and the release.
 *
 * Not for trainers in C, which have ballast.h; the Python client finds these functions by name.
 * They may change with BALLAST_PLAN_VERSION, which a caller compares before it calls anything else.
 */
#ifndef BALLAST_CLIENT_PLAN_COLUMNS_H
#define BALLAST_CLIENT_PLAN_COLUMNS_H

#include "client/ballast.h"

#define BALLAST_PLAN_VERSION     3u
#define BALLAST_PLAN_FRAME_BYTES 64u

struct ballast_plan; /* memory for one batch at a time; one thread at a time */

uint32_t ballast_plan_version(void);

/* Numbers of a batch, in the machine's byte order. */
struct ballast_plan_head {
    uint64_t step, dp, index, micro_batches;
    uint64_t slab_offset, slab_bytes, slot_generation, payload_hash;
    uint64_t loss_denominator, label_tokens;
    uint8_t plan_digest[16];
    uint64_t pool_at, pool_bytes; /* where in the buffer or message, 0 without one */
    /* of the plan */
    uint64_t tokens, slot_tokens; /* with successors */
    uint64_t layout, exchange;
    uint64_t rows, pad_rows; /* of the reader */
};

/* PyObject_GetBuffer and PyBuffer_Release, for a caller that has objects of Python's to be filled;
 * nothing else of Python is known here. */
struct ballast_plan_python {
    int (*get_buffer)(void *object, void *buffer, int flags);
    void (*release_buffer)(void *buffer);
};

/* The numbers of whatever is read go to `head`, which is the caller's, for the life of the plan;
 * `python` too, NULL without. NULL when out of memory. Destroying NULL is fine. */
struct ballast_plan *ballast_plan_create(struct ballast_plan_head *head,
                                         const struct ballast_plan_python *python);
void ballast_plan_destroy(struct ballast_plan *plan);

/* The caller's: one stream, what its batches must agree with, and where their slots can be. */
struct ballast_plan_stream {
    uint64_t tokens_max;
    uint32_t ranks;         /* of the context-parallel group */
    uint32_t rank;          /* the reader's place in it */
    uint32_t dp;            /* the reader's replica */
    uint32_t micro_batches; /* of a step of which its batches do not say how many */
    uint32_t parts;         /* bits of enum ballast_part: columns that are gathered */
    uint32_t token_bytes;   /* 2 or 4 */
    const uint8_t *slab;    /* as mapped, NULL without */
    uint64_t slab_bytes;
    int32_t fd;  /* connected socket */
    uint32_t id; /* of the stream, as in its frames */
    uint64_t frame_bytes;
    uint8_t *buffer; /* what was received; `capacity` bytes */
    uint64_t capacity;
    uint64_t begin, end; /* what of it was not looked at */
    uint64_t waited_ns;  /* to be told with the next release, which makes it 0 */
    uint8_t frame[BALLAST_PLAN_FRAME_BYTES]; /* that was sent last, frame_bytes long */
    /* Of the batch before, as ballast_plan_next found it; `follows` is made 0 by whoever takes
       anything of the stream by another way. */
    uint64_t follows;
    uint64_t step, index, step_micro_batches;
    uint8_t plan_digest[16];
};

enum ballast_plan_found {
    BALLAST_PLAN_NOTHING = 0, /* nothing has come */
    BALLAST_PLAN_BATCH = 1,   /* it is in `plan`, until the next one is read there */
    BALLAST_PLAN_REFUSED = 2, /* the same, but for its plan, of which ballast_plan_why says why */
    BALLAST_PLAN_OTHER = 3, /* for the caller to look at, or to wait for its rest: an event that is
                               no batch, or not written as plainly as the daemon does */
    BALLAST_PLAN_PLAIN = 4, /* as BATCH, and there is nothing to judge: it follows the batch before
                               in a step of as many and of the same digest, its replica is the
                               reader's, its tokens lie in the slab and have no hash to compare, and
                               it has no pool */
};

/* Takes the next batch out of the buffer, after receiving once without waiting if nothing is in
 * there. Of BALLAST_PLAN_OTHER everything is left in the buffer. Negative errno of a connection
 * that was lost; its end is BALLAST_PLAN_OTHER with an empty buffer. */
int ballast_plan_next(struct ballast_plan *plan, struct ballast_plan_stream *stream);

/* The same of one StreamEnvelope, however it came; BATCH, REFUSED or OTHER. No pointers into it are
 * kept. */
int ballast_plan_read(struct ballast_plan *plan, const struct ballast_plan_stream *stream,
                      const uint8_t *message, size_t bytes);

/* Why the last batch was refused: -EPROTO or -ENOMEM, and the contradiction. */
int ballast_plan_why(const struct ballast_plan *plan, char *why, size_t why_bytes);

/* Writes the plan to `out`: documents, and fragments of all ranks; rows, pad rows and fragments of
 * each rank; dataset, document, offset, length, document_length, nominal_step, epoch of all
 * documents, a column after the other; document, start, length, row of all fragments, likewise.
 * Returns the numbers; -ENOBUFS, also for NULL, where *capacity is made what they need; -EINVAL
 * without a batch. */
int64_t ballast_plan_columns(const struct ballast_plan *plan, int64_t *out, size_t *capacity);

/* The slot of what was read is here instead: its header and then as many bytes as the documents
 * need, aligned to 8, for as long as it is gathered from. */
void ballast_plan_place(struct ballast_plan *plan, const void *slot);

/* XXH3-64 of the slot's bytes, as payload_hash is; 0 without a slot. */
uint64_t ballast_plan_hash(const struct ballast_plan *plan);

/* Fills `out`, which has room for the reader's rows, as ballast_gather does. 0; -EINVAL without a
 * plan or a batch, for a column that is not of the parts, or where there is no slot within the
 * slab; -ESTALE for a slot that was reused. */
int ballast_plan_gather(const struct ballast_plan *plan, enum ballast_column column,
                        enum ballast_type type, void *out);

/* The same to a Python object whose buffer is a flat one of int32 or int64 with room for the rows,
 * while the interpreter is held: 1 when it has more. -E2BIG where that would be too long for
 * Python's other threads; -EINVAL also for any other buffer; what has none leaves Python's
 * exception, as PyObject_GetBuffer does. */
int ballast_plan_fill(const struct ballast_plan *plan, enum ballast_column column, void *object);

/* Sends the release of the batch with its credit, and what the rank waited for one. Returns how
 * many of stream->frame's last bytes the caller has to send yet, mostly 0; -1, also without a plan:
 * nothing was sent. */
int ballast_plan_release(const struct ballast_plan *plan, struct ballast_plan_stream *stream);

#endif
