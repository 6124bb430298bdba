/* replay: see replay.h. */
#include "daemon/replay.h"

#include "daemon/clock.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

int replay_open(struct replay *replay, struct schedule *schedule,
                const struct corpus_source *source, struct error *error) {
    replay->schedule = schedule;
    replay->source = source;
    replay->state = schedule_state_create(schedule);
    replay->scratch = schedule_state_create(schedule);
    if (replay->state == NULL || replay->scratch == NULL) {
        replay_close(replay);
        return error_set(error, -ENOMEM, "replay: out of memory");
    }
    return 0;
}

void replay_close(struct replay *replay) {
    plan_state_destroy(replay->state);
    plan_state_destroy(replay->scratch);
    replay->state = NULL;
    replay->scratch = NULL;
}

static int replay_load(struct replay *replay, const struct replay_row *row, struct error *error) {
    int code = plan_state_decode(replay->state, row->state, row->state_bytes, error);
    if (code < 0) {
        return code;
    }
    if (replay->state->step != row->step) {
        return error_set(error, -EBADMSG, "its state is that of step %" PRIu64,
                         replay->state->step);
    }
    code = corpus_source_check(replay->source, &replay->state->cursor, error);
    return code < 0 ? code : schedule_check_state(replay->schedule, replay->state, error);
}

static int replay_begin(struct replay *replay, const struct replay_row *row, struct error *error) {
    replay->row_digest_known = false;
    if (row == NULL) {
        plan_state_reset(replay->state);
        return 0;
    }
    int code = replay_load(replay, row, error);
    if (code < 0) {
        (void)error_prefix(error, "state of step %" PRIu64, row->step);
        error->code = code == -ENOMEM ? code : -EBADMSG;
        return error->code;
    }
    replay->row_step = row->step;
    replay->row_digest_known = row->digest_known;
    memcpy(replay->row_digest, row->digest, sizeof replay->row_digest);
    return 0;
}

int replay_seek(struct replay *replay, const struct replay_row *row, uint64_t step,
                struct error *error) {
    assert(row == NULL || step >= row->step);
    int code = replay_begin(replay, row, error);
    if (code < 0) {
        return code;
    }
    while (replay->state->step < step) {
        struct step_plan *plan = NULL;
        atomic_store_explicit(&replay->at, replay->state->step, memory_order_relaxed);
        if (atomic_load_explicit(&replay->cancelled, memory_order_relaxed)) {
            return error_set(error, -ECANCELED, "given up at step %" PRIu64, replay->state->step);
        }
        code = replay_next(replay, &plan, error);
        step_plan_destroy(plan);
        if (code == 0) {
            return error_set(error, -ERANGE,
                             "the data ends before step %" PRIu64 ": its last step is %" PRIu64,
                             step, replay->state->step - 1);
        }
        if (code < 0) {
            return code;
        }
    }
    return 0;
}

int replay_next(struct replay *replay, struct step_plan **plan, struct error *error) {
    struct step_plan *made = NULL;
    uint64_t start_ns = clock_ns();
    int code = schedule_step(replay->schedule, replay->state, replay->scratch, &made, error);
    if (code <= 0) {
        return code;
    }
    made->plan_ns = clock_ns() - start_ns;
    if (replay->row_digest_known && made->step == replay->row_step &&
        memcmp(made->digest, replay->row_digest, sizeof made->digest) != 0) {
        step_plan_destroy(made);
        return error_set(error, -EBADMSG,
                         "step %" PRIu64 " comes out differently than it was stored; was the "
                         "corpus changed?",
                         replay->row_step);
    }
    struct plan_state *state = replay->state;
    replay->state = replay->scratch;
    replay->scratch = state;
    *plan = made;
    return 1;
}
