/* ahead: the planner thread. Plans steps one after the other up to a limit that the loop moves, and
 * replays single steps from stored states.
 *
 * Nothing here decides what a plan is: plan_step does, and its results depend on neither the limit
 * nor on when it is moved. Results come back through ahead_take; `wake` is called on the planner
 * thread whenever there are some. The loop takes no lock to learn that there are none: the planner
 * is a background thread, and one that has a lock may have to wait for its processor. */
#ifndef BALLAST_DAEMON_AHEAD_H
#define BALLAST_DAEMON_AHEAD_H

#include "corpus/domains.h"
#include "daemon/replay.h"

struct ahead;

enum ahead_kind {
    AHEAD_PLANNED = 0,  /* the next step */
    AHEAD_REPLAYED = 1, /* a step that ahead_replay asked for */
    AHEAD_ENDED = 2,    /* there is no step `step` and none after it */
    AHEAD_FAILED = 3,   /* `error`; of a wish when `wish` is not 0, else planning is over */
    AHEAD_REACHED = 4,  /* the step that ahead_reach asked for; no plan at the end of the data */
};

enum ahead_wish_kind { AHEAD_WISH_NONE = 0, AHEAD_WISH_REPLAY = 1, AHEAD_WISH_REACH = 2 };

struct ahead_result {
    struct ahead_result *next; /* the queue's */
    enum ahead_kind kind;
    enum ahead_wish_kind wish; /* that is answered; 0: none, the planning of the stream */
    uint64_t step;
    struct step_plan *plan; /* PLANNED, REPLAYED, REACHED; plan_ns measured */
    uint8_t *state_after;   /* PLANNED: the encoded state from which step + 1 is planned */
    size_t state_after_bytes;
    uint8_t *state; /* REACHED: the encoded state from which the step is planned */
    size_t state_bytes;
    uint32_t in_hand;             /* PLANNED: parts held or looked at while planning */
    struct domain_tally *domains; /* PLANNED, ENDED: of all steps up to there; NULL without domains,
                                     or without memory for it */
    struct error error;
};

void ahead_result_destroy(struct ahead_result *result); /* NULL is fine */

/* Encodes a state into memory of its own; NULL when there is none left. */
uint8_t *ahead_encode(const struct plan_state *state, size_t *bytes);

/* Starts the thread at `state` (taken, also on failure). Schedule and source are the thread's until
 * ahead_stop, `domains` (NULL: none) is borrowed until then. Nothing is planned before
 * ahead_extend.
 */
int ahead_start(struct schedule *schedule, const struct corpus_source *source,
                const struct domains *domains, struct plan_state *state,
                void (*wake)(void *context), void *context, struct ahead **out,
                struct error *error);

/* Joins the thread after the step it is at. NULL is fine. */
void ahead_stop(struct ahead *ahead);

/* Steps before `end` are to be planned; a smaller end than before is ignored. Loop thread. */
void ahead_extend(struct ahead *ahead, uint64_t end);

/* No further step is begun. Any thread. */
void ahead_freeze(struct ahead *ahead);

/* Plans `step` from a stored row at or before it (taken). Any thread. -ENOMEM. */
int ahead_replay(struct ahead *ahead, uint64_t step, const struct replay_row *row);

/* Goes to `step`, however far, from a row at or before it (its state is taken; NULL: from the start
 * of the stream), and plans it: AHEAD_REACHED, or AHEAD_FAILED with -ERANGE when the data ends
 * before. The stream's own planning waits meanwhile. One at a time. Any thread. -ENOMEM. */
int ahead_reach(struct ahead *ahead, uint64_t step, const struct replay_row *row);

/* The step that ahead_reach is at; and gives it up: it fails with -ECANCELED soon. Any thread. */
uint64_t ahead_reaching(const struct ahead *ahead);
void ahead_reach_cancel(struct ahead *ahead);

/* Whether the thread has been at one step for longer than the limit. Loop thread. */
bool ahead_stuck(struct ahead *ahead, uint64_t now_ns, uint64_t limit_ns);

/* Goes on planning the stream from another encoded state (taken, also on failure): what was planned
 * and not taken is dropped, the end is forgotten, nothing is planned before ahead_extend. A state
 * that does not fit gives AHEAD_FAILED. Loop thread. */
void ahead_restart(struct ahead *ahead, uint8_t *state, size_t state_bytes);

/* The next result, the caller's to destroy; NULL when there is none right now. Loop thread. */
struct ahead_result *ahead_take(struct ahead *ahead);

#endif
