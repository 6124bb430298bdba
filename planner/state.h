/* state: all that planning remembers between steps.
 *
 *     (plan(k), state(k+1)) = plan_step(state(k), documents, config)
 *
 * The stream has a front: the cursor, with stream_tokens and stream_parts before it. Parts behind
 * it have arrived: they are delivered, or they are listed as waiting. Of the parts ahead of it only
 * those are known that were delivered early, as runs of stream indexes; the part at the front is
 * none of them. So a document has arrived when its nominal step was planned or when it was
 * delivered, dropped documents count when the front passes them, and what is merely looked at
 * ahead of a step is not in the state: it is read again from the front.
 *
 * Nothing else influences a plan: not time, not ranks, not threads. The encoded form is canonical:
 * decode(encode(s)) = s and encode(decode(b)) = b. */
#ifndef BALLAST_PLANNER_STATE_H
#define BALLAST_PLANNER_STATE_H

#include "planner/error.h"
#include "planner/source.h"
#include "queues/bands.h"

#define DELAY_BUCKETS         65u                       /* delays of 0..63 steps, and 64 or more */
#define BLEND_SWITCHES_MAX    255u                      /* that lie ahead */
#define PLAN_STATE_NUMBER_MAX ((UINT64_C(1) << 62) - 1) /* of every counter here */

/* Tokens delivered from one dataset, by delay. */
struct delay_counts {
    uint64_t delivered_tokens;
    uint64_t delivered_documents; /* first parts */
    uint64_t delay_token_steps;   /* sum of tokens * delay, saturating */
    uint64_t delay_max;           /* steps */
    uint64_t tokens_by_delay[DELAY_BUCKETS];
    uint64_t early_tokens;    /* of these, ahead of the front: not counted by the cursor yet */
    uint64_t early_documents; /* likewise */
};

/* Counts a part that `step` delivers; and what others counted, but for what is ahead of a front. */
void delay_counts_add(struct delay_counts *delays, const struct document *document, uint64_t step);
void delay_counts_join(struct delay_counts *delays, const struct delay_counts *others);

/* Smallest delay that at least `percent` of the delivered tokens do not exceed. */
uint64_t delay_percentile(const struct delay_counts *delays, unsigned percent);

/* In the queue of its length (a band; level's pool, or its shorts; fixed has one), or left over by
 * the packer. */
enum waiting_kind { WAITING_IN_QUEUE = 0, WAITING_LEFT_OVER = 1 };

struct waiting {
    struct document document;
    enum waiting_kind kind;
    uint32_t bin; /* while draining: bin number, step = drain_start + bin / N; 0 otherwise */
};

/* Parts `index` to before `index + count` of the stream, delivered ahead of the front. */
struct delivered_run {
    uint64_t index;
    uint64_t count; /* > 0 */
};

/* Queues as queue_released counts them: those of level, that of fixed; bands by their number. */
enum { QUEUE_LEVEL = 0, QUEUE_SHORT = 1, QUEUES_OF_LEVEL = 2, QUEUE_FIXED = 0 };

struct plan_state {
    uint64_t step;          /* the step to be planned next */
    uint64_t target_tokens; /* target(step): nominal tokens of all steps before it, less slip */
    uint64_t slip_tokens;   /* level: by which the clock was set back, cumulative */
    uint64_t stream_tokens; /* tokens before the front: offset of the part at it */
    uint64_t stream_parts;  /* parts before the front: stream_index of the part at it */
    uint64_t delivered_tokens;
    uint64_t queue_released[BANDS_MAX]; /* documents released from each queue, cumulative */
    uint64_t leftover_released;         /* leftovers placed later, cumulative */
    bool draining;
    uint64_t drain_start;        /* first step of the drain, while draining */
    uint32_t drain_steps;        /* m */
    struct source_cursor cursor; /* at the front */
    struct delay_counts *delays; /* one per dataset */
    struct waiting *waiting;     /* by stream_index; while draining by (bin, row order), every bin
                                    up to the last holding at least one */
    uint32_t waiting_count;
    uint32_t waiting_max;       /* capacity of waiting and of runs, fixed at creation */
    struct delivered_run *runs; /* ascending, a part that is not delivered before each */
    uint32_t run_count;
    /* Stream indexes ahead of the front from which on the next blends hold, in order. Parts before
     * them were arranged by older weights, and of some it is known that they were delivered. */
    uint64_t blend_switches[BLEND_SWITCHES_MAX];
    uint32_t blend_switch_count;
};

/* A state at step 0 of a stream with `datasets` (> 0) datasets; NULL when out of memory. The owner
 * frees it with plan_state_destroy (NULL is fine). */
struct plan_state *plan_state_create(uint32_t datasets, uint32_t waiting_max);
void plan_state_destroy(struct plan_state *state);

/* Copies what the state is; what lies in the array behind `waiting_count` stays. Both must have
 * been created with the same sizes. */
void plan_state_copy(struct plan_state *to, const struct plan_state *from);

/* The front alone: cursor, stream_tokens, stream_parts and the switches of blend ahead of it. */
void plan_state_copy_front(struct plan_state *to, const struct plan_state *from);

/* Another part was read at the front. */
void plan_state_pass(struct plan_state *state, uint32_t tokens);

/* The blend after the last one that is known begins at this part, at the front or ahead of it. */
void plan_state_switch_blend(struct plan_state *state, uint64_t index);

/* First stream index behind which nothing is known to be delivered. */
uint64_t plan_state_known_end(const struct plan_state *state);

/* The first datasets, with all that were ever touched among them. */
uint32_t plan_state_datasets(const struct plan_state *state);

/* Back to step 0 of the stream; sizes stay. */
void plan_state_reset(struct plan_state *state);

/* Canonical bytes: a header (magic, version), minimal LEB128 integers, XXH3-64 at the end. Datasets
 * behind the last that was ever touched are left out, so that one that is yet to be appended makes
 * no difference. At most
 * 24 bytes per waiting document (2^10 datasets of 2^35 documents of 2^28 tokens, neighbours in the
 * list within 2^13 parts and 2^6 steps of one another), and 2 to 20 bytes per run. Returns the
 * bytes needed. Unless they fit `capacity`, what is in `out` is of no use; nothing is written
 * behind it. */
size_t plan_state_encode(const struct plan_state *state, uint8_t *out, size_t capacity);

/* Fills `state`. Reads version 2 too, which had all datasets and one blend. Refuses, with the
 * offset, whatever encoding would not have written: -EBADMSG damaged, -ENOSYS another version,
 * -ENOBUFS more waiting documents or runs than waiting_max, -EINVAL more datasets than the state
 * was created with. On failure the state is as after creation. Hostile input is expected here. */
int plan_state_decode(struct plan_state *state, const uint8_t *bytes, size_t count,
                      struct error *error);

/* Tokens and documents (by their first part) of one dataset that have arrived. */
uint64_t plan_state_arrived_tokens(const struct plan_state *state, uint32_t dataset);
uint64_t plan_state_arrived_documents(const struct plan_state *state, uint32_t dataset);

/* Whether both stand at the same step, clock and front with the same parts delivered ahead of it,
 * so that the same lies ahead. Same sizes. */
bool plan_state_same_front(const struct plan_state *a, const struct plan_state *b);

/* Tokens waiting (queues and leftovers), of one dataset or of all with UINT32_MAX. */
uint64_t plan_state_waiting_tokens(const struct plan_state *state, uint32_t dataset);

/* arrived = delivered + waiting + dropped for every dataset, where what arrived is what the cursor
 * counts and what was delivered early; the invariant of every step. */
bool plan_state_conserves(const struct plan_state *state);

#endif
