/* replay: plans again what was planned before, from a stored state. One thread at a time.
 *
 * plan_step is a pure function, so a stored state and the corpus give every step after it with the
 * bytes it had the first time; the stored digest of the state's own step proves it. */
#ifndef BALLAST_DAEMON_REPLAY_H
#define BALLAST_DAEMON_REPLAY_H

#include "corpus/source.h"
#include "planner/schedule.h"

#include <stdatomic.h>

/* A row of the store, as replaying needs it. */
struct replay_row {
    uint64_t step;
    uint8_t *state; /* encoded; malloc */
    size_t state_bytes;
    bool digest_known;                 /* false where the step was not planned yet */
    uint8_t digest[PLAN_DIGEST_BYTES]; /* of `step` */
};

struct replay {
    struct schedule *schedule;          /* borrowed */
    const struct corpus_source *source; /* borrowed */
    struct plan_state *state;           /* from which the next step is planned */
    struct plan_state *scratch;
    uint64_t row_step;
    bool row_digest_known;
    uint8_t row_digest[PLAN_DIGEST_BYTES];
    /* For long ways: any thread may set `cancelled`, and read `at`, the step that is planned. */
    atomic_bool cancelled;
    atomic_uint_least64_t at;
};

/* -ENOMEM. */
int replay_open(struct replay *replay, struct schedule *schedule,
                const struct corpus_source *source, struct error *error);
void replay_close(struct replay *replay); /* fine for a zeroed replay */

/* Goes to the row's state (NULL: to the start of the stream) and on to `step` (>= row->step).
 * -EBADMSG naming the step when the row is damaged, does not fit corpus or options, or has another
 * digest; -ERANGE when the data ends before `step`; -ECANCELED; -ENOMEM. */
int replay_seek(struct replay *replay, const struct replay_row *row, uint64_t step,
                struct error *error);

/* Plans the step it stands at and goes on: 1 with a plan, the caller's; 0 at the end of data;
 * -EBADMSG, -ENOMEM. */
int replay_next(struct replay *replay, struct step_plan **plan, struct error *error);

#endif
