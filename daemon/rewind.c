/* rewind: see rewind.h. */
#include "daemon/rewind.h"

#include "ballast.pb-c.h"
#include "daemon/daemon.h"
#include "daemon/failpoint.h"
#include "daemon/log.h"
#include "daemon/turn.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int rewind_open(struct rewind *rewind, struct daemon *daemon, uint32_t calls_max) {
    *rewind = (struct rewind){.daemon = daemon, .call_capacity = calls_max};
    rewind->calls = calloc(calls_max, sizeof *rewind->calls);
    return rewind->calls == NULL ? -ENOMEM : 0;
}

void rewind_close(struct rewind *rewind) {
    free(rewind->calls);
    free(rewind->state);
    *rewind = (struct rewind){0};
}

/* Answers */

static void rewind_answer(struct rewind *rewind, const struct rewind_call *call) {
    const struct generation *generation = &rewind->daemon->generation;
    ProtobufCBinaryData digest = {rewind->digest_known ? PLAN_DIGEST_BYTES : 0, rewind->digest};
    Ballast__V1__SeekResponse sought = BALLAST__V1__SEEK_RESPONSE__INIT;
    Ballast__V1__ImportResponse imported = BALLAST__V1__IMPORT_RESPONSE__INIT;
    arena_reset(&rewind->daemon->arena);
    sought.next_step = imported.next_step = generation->step;
    sought.generation = imported.generation = generation->number;
    sought.plan_digest = imported.plan_digest = digest;
    session_answer(call->session, call->stream, call->import ? &imported.base : &sought.base);
}

static void rewind_drop_call(struct rewind *rewind, uint32_t i) {
    rewind->calls[i] = rewind->calls[--rewind->call_count];
}

static void rewind_idle(struct rewind *rewind) {
    free(rewind->state);
    rewind->state = NULL;
    rewind->phase = REWIND_IDLE;
    rewind->daemon->progress.moving = false;
    rewind->daemon->dirty = true;
}

static void rewind_refuse_calls(struct rewind *rewind, bool next, enum status status,
                                const char *text) {
    for (uint32_t i = rewind->call_count; i-- > 0;) {
        const struct rewind_call *call = &rewind->calls[i];
        if ((call->generation == rewind->next.number) == next) {
            arena_reset(&rewind->daemon->arena);
            session_refuse(call->session, call->stream, status, "%s", text);
            rewind_drop_call(rewind, i);
        }
    }
}

/* Nothing has changed: whoever waits for it is told why. */
static void rewind_refuse(struct rewind *rewind, enum status status, const char *text) {
    log_line(LOG_WARNING, "rewind", "not done: %s step=%" PRIu64, text, rewind->next.step);
    rewind_refuse_calls(rewind, true, status, text);
    rewind_idle(rewind);
}

/* Another generation begins: whoever waits for the one before is told which. */
static void rewind_abort_calls(struct rewind *rewind) {
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text,
                   "%s sought step %" PRIu64 ", where generation %" PRIu64
                   " begins: seek that step too",
                   rewind->next.by, rewind->next.step, rewind->next.number);
    rewind_refuse_calls(rewind, false, STATUS_ABORTED, text);
}

/* Whether anybody waits for the generation that is being opened. */
static bool rewind_awaited(const struct rewind *rewind) {
    for (uint32_t i = 0; i < rewind->call_count; i++) {
        if (rewind->calls[i].generation == rewind->next.number) {
            return true;
        }
    }
    return false;
}

/* The digest of the generation's first step: known from the row, or once it is planned. */
static bool rewind_find_digest(struct rewind *rewind) {
    struct daemon *daemon = rewind->daemon;
    const struct step_plan *plan = NULL;
    struct error error;
    if (rewind->digest_known || daemon->generation.step >= daemon->end_step ||
        !phase_holds(&daemon->phase, daemon->generation.step)) {
        return true;
    }
    switch (turn_plan(daemon, daemon->generation.step, &plan, &error)) {
    case SESSION_READY:
        memcpy(rewind->digest, plan->digest, sizeof rewind->digest);
        rewind->digest_known = true;
        return true;
    case SESSION_NO_STEP:
    case SESSION_LOST:
        return true;
    case SESSION_WAITS:
    case SESSION_HELD_UP:
        break;
    }
    return false;
}

void rewind_turn(struct rewind *rewind) {
    const struct daemon *daemon = rewind->daemon;
    for (uint32_t i = rewind->call_count; rewind->phase != REWIND_STORING && i-- > 0;) {
        const struct rewind_call *call = &rewind->calls[i];
        if (call->generation == daemon->generation.number &&
            call->change <= daemon->progress.durable_changes && rewind_find_digest(rewind)) {
            rewind_answer(rewind, call);
            rewind_drop_call(rewind, i);
        }
    }
}

/* Calls */

static bool rewind_note(struct rewind *rewind, const struct rewind_call *call,
                        uint64_t generation) {
    if (rewind->call_count == rewind->call_capacity) {
        session_refuse(call->session, call->stream, STATUS_RESOURCE_EXHAUSTED,
                       "%u calls wait for another step already; try again", rewind->call_count);
        return false;
    }
    rewind->calls[rewind->call_count] = *call;
    rewind->calls[rewind->call_count++].generation = generation;
    rewind->daemon->dirty = true;
    return true;
}

static void rewind_refuse_elsewhere(const struct rewind_call *call, uint64_t step, const char *by,
                                    uint64_t there, uint64_t number) {
    char name[GENERATION_BY_BYTES];
    session_name(call->session, name);
    session_refuse(call->session, call->stream, STATUS_FAILED_PRECONDITION,
                   "%s seeks step %" PRIu64 ", but %s sought step %" PRIu64
                   ", where generation %" PRIu64 " begins: ranks must seek the same step",
                   name, step, by, there, number);
}

/* What the rank had committed of the generation counts no more, and is not to come back with a
 * restart after it was told so. */
static void rewind_join(struct rewind *rewind, const struct rewind_call *call) {
    const struct roster *roster = &rewind->daemon->roster;
    struct rewind_call joined = *call;
    uint64_t before = roster->changes;
    session_rejoin(call->session);
    joined.change = roster->changes > before ? roster->changes : 0;
    (void)rewind_note(rewind, &joined, rewind->daemon->generation.number);
}

/* Whether a new generation is to be opened for the call; joins and refuses otherwise. */
static bool rewind_opens(struct rewind *rewind, const struct rewind_call *call, uint64_t step,
                         uint64_t least) {
    const struct daemon *daemon = rewind->daemon;
    const struct generation *generation = &daemon->generation;
    if (daemon->draining) {
        session_refuse(call->session, call->stream, STATUS_FAILED_PRECONDITION,
                       "the daemon is draining: no other step is planned any more; "
                       "start it again and seek then");
        return false;
    }
    if (rewind->phase != REWIND_IDLE) {
        if (step == rewind->next.step && least <= rewind->next.number) {
            (void)rewind_note(rewind, call, rewind->next.number);
        } else {
            rewind_refuse_elsewhere(call, step, rewind->next.by, rewind->next.step,
                                    rewind->next.number);
        }
        return false;
    }
    switch (generation_seek(generation, &daemon->roster, call->session->member, step, least)) {
    case GENERATION_JOINS:
        rewind_join(rewind, call);
        return false;
    case GENERATION_REFUSED:
        rewind_refuse_elsewhere(call, step, generation->by, generation->step, generation->number);
        return false;
    case GENERATION_OPENS:
        break;
    }
    return true;
}

static bool rewind_start(struct rewind *rewind, const struct rewind_call *call, uint64_t step,
                         uint64_t least) {
    uint64_t number = rewind->daemon->generation.number + 1;
    number = number < least ? least : number;
    if (!rewind_note(rewind, call, number)) {
        return false;
    }
    rewind->import = call->import;
    rewind->next = (struct memo_generation){.number = number, .step = step};
    session_name(call->session, rewind->next.by);
    rewind->next_digest_known = false;
    rewind->start_ns = uv_hrtime();
    rewind->logged_ns = rewind->start_ns;
    log_line(LOG_NOTICE, "rewind", "%s %s step=%" PRIu64 " generation=%" PRIu64, rewind->next.by,
             call->import ? "imports" : "seeks", step, rewind->next.number);
    return true;
}

static void rewind_no_memory(struct rewind *rewind) {
    rewind_refuse(rewind, STATUS_RESOURCE_EXHAUSTED, "out of memory");
}

void rewind_seek(struct rewind *rewind, struct session *session, uint32_t stream, uint64_t step,
                 uint64_t least, uint64_t deadline_ns) {
    const struct rewind_call call = {
        .session = session, .stream = stream, .deadline_ns = deadline_ns};
    struct daemon *daemon = rewind->daemon;
    if (!rewind_opens(rewind, &call, step, least)) {
        return;
    }
    if (step > daemon->end_step) {
        session_refuse(session, stream, STATUS_OUT_OF_RANGE,
                       "the data ends before step %" PRIu64 ": its last step is %" PRIu64, step,
                       daemon->end_step - 1);
        return;
    }
    if (!rewind_start(rewind, &call, step, least)) {
        return;
    }
    rewind->phase = REWIND_FETCHING;
    if (memo_fetch(daemon->memo, MEMO_SEEK, step) < 0) {
        rewind_no_memory(rewind);
    }
}

static void rewind_reach(struct rewind *rewind, const struct replay_row *row) {
    rewind->phase = REWIND_PLANNING;
    if (ahead_reach(rewind->daemon->ahead, rewind->next.step, row) < 0) {
        rewind_no_memory(rewind);
    }
}

/* The blob's state as the row that planning begins from. */
static bool rewind_row_of_blob(const struct blob *blob, bool same_step, struct replay_row *row) {
    *row = (struct replay_row){.step = blob->step,
                               .state = malloc(blob->state_bytes),
                               .state_bytes = blob->state_bytes,
                               .digest_known = same_step && blob->digest_known};
    if (row->state == NULL) {
        return false;
    }
    memcpy(row->state, blob->state, blob->state_bytes);
    memcpy(row->digest, blob->digest, sizeof row->digest);
    return true;
}

static void rewind_import_blob(struct rewind *rewind, const struct rewind_call *call,
                               const struct blob *blob, bool same_step, uint64_t least) {
    struct replay_row row;
    least = least > blob->generation ? least : blob->generation + 1;
    if (!rewind_opens(rewind, call, blob->step, least) ||
        !rewind_start(rewind, call, blob->step, least)) {
        return;
    }
    if (!rewind_row_of_blob(blob, same_step, &row)) {
        rewind_no_memory(rewind);
        return;
    }
    rewind_reach(rewind, &row);
}

void rewind_import(struct rewind *rewind, struct session *session, uint32_t stream,
                   const uint8_t *state, size_t bytes, uint64_t least, uint64_t deadline_ns) {
    const struct rewind_call call = {
        .session = session, .stream = stream, .import = true, .deadline_ns = deadline_ns};
    struct blob *blob = NULL;
    struct error error;
    bool same_step = false;
    int code = blob_decode(state, bytes, &blob, &error);
    if (code == 0) {
        code = blob_check_job(blob, &rewind->daemon->identity, &same_step, &error);
    }
    if (code < 0) {
        session_refuse(session, stream,
                       code == -EINVAL ? STATUS_FAILED_PRECONDITION : status_from_error(code), "%s",
                       error.text);
    } else {
        rewind_import_blob(rewind, &call, blob, same_step, least);
    }
    free(blob);
}

/* Results */

/* Stores the generation. From here on the old one stands still: the planner is told to go on from
 * the step, and what it had planned beyond is dropped. */
static void rewind_store(struct rewind *rewind, uint8_t *state, size_t state_bytes) {
    struct daemon *daemon = rewind->daemon;
    uint8_t *copy = malloc(state_bytes);
    rewind->state = state;
    rewind->state_bytes = state_bytes;
    rewind->next.change = daemon->roster.changes;
    if (copy == NULL || memo_put_generation(daemon->memo, &rewind->next) < 0) {
        free(copy);
        rewind_no_memory(rewind);
        return;
    }
    memcpy(copy, state, state_bytes);
    ahead_restart(daemon->ahead, copy, state_bytes);
    rewind->phase = REWIND_STORING;
    daemon->progress.moving = true;
    (void)FAILPOINT(rewind_storing);
}

void rewind_fetched(struct rewind *rewind, struct memo_fetched *fetched) {
    struct replay_row row = fetched->row;
    if (rewind->phase != REWIND_FETCHING) {
        return;
    }
    fetched->row.state = NULL;
    if (fetched->found && row.step == rewind->next.step) {
        memcpy(rewind->next_digest, row.digest, sizeof row.digest);
        rewind->next_digest_known = true;
        rewind_store(rewind, row.state, row.state_bytes);
    } else {
        rewind_reach(rewind, fetched->found ? &row : NULL);
    }
}

static void rewind_failed(struct rewind *rewind, const struct error *error) {
    switch (error->code) {
    case -ERANGE:
        rewind_refuse(rewind, STATUS_OUT_OF_RANGE, error->text);
        break;
    case -ECANCELED: /* who asks now came when nobody waited any more */
        rewind_refuse(rewind, STATUS_UNAVAILABLE, error->text);
        break;
    case -ENOMEM:
        rewind_no_memory(rewind);
        break;
    default:
        rewind_refuse(rewind, rewind->import ? STATUS_FAILED_PRECONDITION : STATUS_DATA_LOSS,
                      error->text);
        if (!rewind->import && error->code == -EBADMSG) {
            daemon_fail(rewind->daemon, DAEMON_EXIT_DATA, error);
        }
        break;
    }
}

void rewind_reached(struct rewind *rewind, struct ahead_result *result) {
    struct daemon *daemon = rewind->daemon;
    if (rewind->phase != REWIND_PLANNING) {
        return;
    }
    if (result->kind == AHEAD_FAILED) {
        rewind_failed(rewind, &result->error);
        return;
    }
    if (!rewind_awaited(rewind)) {
        rewind_refuse(rewind, STATUS_CANCELLED, "nobody waits for it any more");
        return;
    }
    uint8_t *state = result->state;
    size_t state_bytes = result->state_bytes;
    if (result->plan != NULL) {
        uint8_t *row = malloc(state_bytes);
        if (row == NULL) {
            rewind_no_memory(rewind);
            return;
        }
        memcpy(row, state, state_bytes);
        memcpy(rewind->next_digest, result->plan->digest, sizeof rewind->next_digest);
        rewind->next_digest_known = true;
        if (memo_put_step(daemon->memo, result->plan, true, row, state_bytes) < 0) {
            rewind_no_memory(rewind);
            return;
        }
    } else {
        daemon->end_step = result->step;
    }
    result->state = NULL;
    rewind_store(rewind, state, state_bytes);
}

/* What the daemon goes on from, as after a restart. */
static void rewind_switch(struct rewind *rewind, const struct memo_fetched *begun) {
    struct daemon *daemon = rewind->daemon;
    uint64_t step = rewind->next.step;
    daemon->generation = (struct generation){.number = rewind->next.number, .step = step};
    memcpy(daemon->generation.by, rewind->next.by, sizeof daemon->generation.by);
    rewind->digest_known = rewind->next_digest_known;
    memcpy(rewind->digest, rewind->next_digest, sizeof rewind->digest);
    recovered_restart(&daemon->recovered, step, begun->digests, begun->digest_count);
    daemon->rows_end = begun->rows_end;
    daemon->planned_end = step;
    daemon->fastest_step = step;
    free(daemon->domains);
    daemon->domains = NULL;
    daemon->progress.claimable_step = step;
    free(daemon->state);
    daemon->state = rewind->state;
    daemon->state_bytes = rewind->state_bytes;
    rewind->state = NULL;
    measured_rewind(&daemon->measured);
    plans_cut(&daemon->plans, step, step + config_ahead_steps(daemon->config, step));
}

void rewind_begun(struct rewind *rewind, const struct memo_fetched *begun) {
    struct daemon *daemon = rewind->daemon;
    uint64_t now_ns = uv_hrtime();
    assert(rewind->phase == REWIND_STORING);
    (void)FAILPOINT(rewind_durable);
    rewind_switch(rewind, begun);
    server_abort_sessions(&daemon->server, now_ns);
    roster_rewind(&daemon->roster, rewind->next.step);
    daemon->changes_put = rewind->next.change;
    rewind_abort_calls(rewind);
    log_line(LOG_NOTICE, "rewind",
             "generation begins step=%" PRIu64 " generation=%" PRIu64 " took_us=%" PRIu64,
             rewind->next.step, rewind->next.number, (now_ns - rewind->start_ns) / 1000);
    rewind_idle(rewind);
    for (uint32_t i = 0; i < rewind->call_count; i++) {
        session_rejoin(rewind->calls[i].session);
    }
    rewind_turn(rewind);
}

/* Time and ends */

static void rewind_give_up(struct rewind *rewind) {
    if (rewind->phase == REWIND_PLANNING && !rewind_awaited(rewind)) {
        ahead_reach_cancel(rewind->daemon->ahead);
    }
}

void rewind_tick(struct rewind *rewind, uint64_t now_ns) {
    for (uint32_t i = rewind->call_count; i-- > 0;) {
        const struct rewind_call *call = &rewind->calls[i];
        bool next = call->generation == rewind->next.number;
        if (now_ns >= call->deadline_ns) {
            session_refuse(call->session, call->stream, STATUS_DEADLINE_EXCEEDED,
                           "step %" PRIu64 " is not reached yet",
                           next ? rewind->next.step : rewind->daemon->generation.step);
            rewind_drop_call(rewind, i);
        }
    }
    rewind_give_up(rewind);
    if (rewind->phase == REWIND_PLANNING && now_ns - rewind->logged_ns >= REWIND_PROGRESS_NS) {
        rewind->logged_ns = now_ns;
        log_line(LOG_NOTICE, "rewind", "on its way step=%" PRIu64 " at=%" PRIu64, rewind->next.step,
                 ahead_reaching(rewind->daemon->ahead));
    }
}

void rewind_forget(struct rewind *rewind, const struct session *session) {
    for (uint32_t i = rewind->call_count; i-- > 0;) {
        if (rewind->calls[i].session == session) {
            rewind_drop_call(rewind, i);
        }
    }
    rewind_give_up(rewind);
}
