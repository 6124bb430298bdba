/* ahead: the planner thread. Plans steps one after the other up to a limit that the loop moves, and
 * replays single steps from stored states.
 *
 * Nothing here decides what a plan is: plan_step does, and its results depend on neither the limit
 * nor on when it is moved. Results come back through ahead_take; `wake` is called on the planner
 * thread whenever there are some. */
#ifndef BALLAST_DAEMON_AHEAD_H
#define BALLAST_DAEMON_AHEAD_H

#include "daemon/replay.h"

struct ahead;

enum ahead_kind {
    AHEAD_PLANNED = 0,  /* the next step */
    AHEAD_REPLAYED = 1, /* a step that ahead_replay asked for */
    AHEAD_ENDED = 2,    /* there is no step `step` and none after it */
    AHEAD_FAILED = 3,   /* `error`; of a replay when `replay`, else planning is over */
};

struct ahead_result {
    struct ahead_result *next; /* the queue's */
    enum ahead_kind kind;
    bool replay;
    uint64_t step;
    struct step_plan *plan; /* PLANNED, REPLAYED; plan_ns measured */
    uint8_t *state_after;   /* PLANNED: the encoded state from which step + 1 is planned */
    size_t state_after_bytes;
    uint32_t in_hand; /* PLANNED: parts held or looked at while planning */
    struct error error;
};

void ahead_result_destroy(struct ahead_result *result); /* NULL is fine */

/* Encodes a state into memory of its own; NULL when there is none left. */
uint8_t *ahead_encode(const struct plan_state *state, size_t *bytes);

/* Starts the thread at `state` (taken, also on failure). Schedule and source are the thread's until
 * ahead_stop. Nothing is planned before ahead_extend. */
int ahead_start(struct schedule *schedule, const struct corpus_source *source,
                struct plan_state *state, void (*wake)(void *context), void *context,
                struct ahead **out, struct error *error);

/* Joins the thread after the step it is at. NULL is fine. */
void ahead_stop(struct ahead *ahead);

/* Steps before `end` are to be planned; a smaller end than before is ignored. Any thread. */
void ahead_extend(struct ahead *ahead, uint64_t end);

/* No further step is begun. Any thread. */
void ahead_freeze(struct ahead *ahead);

/* Plans `step` from a stored row at or before it (taken). Any thread. -ENOMEM. */
int ahead_replay(struct ahead *ahead, uint64_t step, const struct replay_row *row);

/* The next result, the caller's to destroy; NULL when there is none right now. Loop thread. */
struct ahead_result *ahead_take(struct ahead *ahead);

#endif
