/* ahead: see ahead.h. */
#include "daemon/ahead.h"

#include "corpus/thread.h"
#include "daemon/clock.h"
#include "daemon/failpoint.h"
#include "daemon/heartbeat.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct ahead_wish {
    struct ahead_wish *next;
    enum ahead_wish_kind kind;
    uint64_t step;
    struct replay_row row; /* without a state: the start of the stream */
};

struct ahead {
    /* Immutable after start. */
    pthread_t thread;
    struct schedule *schedule;
    const struct corpus_source *source;
    const struct domains *domains; /* or NULL */
    void (*wake)(void *context);
    void *context;

    /* Under the mutex. */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t end;
    bool frozen;
    bool stopping;
    struct ahead_wish *wishes;    /* oldest first */
    struct ahead_result *results; /* oldest first */
    struct ahead_result **results_tail;
    atomic_bool has_results; /* written with the list; the loop looks without the mutex */
    uint64_t line;           /* counts restarts: what was planned before one is dropped */
    uint8_t *restart;        /* encoded state to go on from, NULL: none */
    size_t restart_bytes;

    struct heartbeat heartbeat; /* the planner's */
    /* Loop thread only. */
    uint64_t looked_step, looked_ns; /* what ahead_stuck saw last */
    uint64_t extended;               /* `end`, as the loop set it */
    /* Planner thread only. */
    struct plan_state *state;
    struct plan_state *scratch;
    struct domain_tally *tally;   /* at `state`; NULL without domains */
    struct replay replay;         /* opened when first needed */
    bool over;                    /* the data ended or planning failed */
    struct ahead_result *reserve; /* tells that memory ran out */
    size_t state_bytes;           /* of the last state encoded */
};

void ahead_result_destroy(struct ahead_result *result) {
    if (result != NULL) {
        step_plan_destroy(result->plan);
        free(result->state_after);
        free(result->state);
        free(result->domains);
        free(result);
    }
}

uint8_t *ahead_encode(const struct plan_state *state, size_t *bytes) {
    size_t needed = plan_state_encode(state, NULL, 0);
    uint8_t *encoded = malloc(needed);
    if (encoded != NULL) {
        *bytes = plan_state_encode(state, encoded, needed);
    }
    return encoded;
}

/* Likewise, the state after a step: mostly as long as the one before, so that it is gone over once.
 */
static uint8_t *ahead_encode_next(struct ahead *ahead, const struct plan_state *state,
                                  size_t *bytes) {
    size_t room = ahead->state_bytes + ahead->state_bytes / 8 + 256;
    uint8_t *encoded = malloc(room);
    size_t needed = encoded != NULL ? plan_state_encode(state, encoded, room) : 0;
    if (needed > room || encoded == NULL) {
        free(encoded);
        encoded = ahead_encode(state, &needed);
    } else {
        uint8_t *fitted = realloc(encoded, needed);
        encoded = fitted != NULL ? fitted : encoded;
    }
    if (encoded != NULL) {
        ahead->state_bytes = needed;
        *bytes = needed;
    }
    return encoded;
}

/* What came of planning, unless lengths that it went by have become unknown meanwhile. */
static int ahead_checked(const struct ahead *ahead, int code, struct error *error) {
    struct error failed;
    if (code < 0 || corpus_source_failed(ahead->source, &failed) == 0) {
        return code;
    }
    *error = failed;
    return failed.code;
}

static void ahead_tell_domains(const struct ahead *ahead, struct ahead_result *result) {
    result->domains = ahead->tally == NULL ? NULL : domain_tally_copy(ahead->tally);
}

static void ahead_plan(struct ahead *ahead, struct ahead_result *result) {
    uint64_t start_ns = clock_ns();
    result->step = ahead->state->step;
    int code = FAILPOINT_ERROR(plan_before, &result->error);
    if (code == 0) {
        code = schedule_step(ahead->schedule, ahead->state, ahead->scratch, &result->plan,
                             &result->error);
        code = ahead_checked(ahead, code, &result->error);
    }
    if (code <= 0) {
        result->kind = code == 0 ? AHEAD_ENDED : AHEAD_FAILED;
        ahead_tell_domains(ahead, result);
        ahead->over = true;
        return;
    }
    result->plan->plan_ns = clock_ns() - start_ns;
    result->state_after = ahead_encode_next(ahead, ahead->scratch, &result->state_after_bytes);
    if (result->state_after == NULL) {
        result->kind = AHEAD_FAILED;
        (void)error_set(&result->error, -ENOMEM, "planning: out of memory for a state");
        ahead->over = true;
        return;
    }
    result->in_hand = schedule_in_hand(ahead->schedule);
    if (ahead->tally != NULL) {
        domain_tally_add(ahead->tally, ahead->domains, result->plan);
        ahead_tell_domains(ahead, result);
    }
    struct plan_state *state = ahead->state;
    ahead->state = ahead->scratch;
    ahead->scratch = state;
    (void)FAILPOINT(plan_after);
}

/* Brings ahead->replay to the wish's step. */
static int ahead_replay_to(struct ahead *ahead, const struct ahead_wish *wish,
                           struct error *error) {
    struct replay *replay = &ahead->replay;
    int code = FAILPOINT_ERROR(replay, error);
    if (code == 0 && replay->state == NULL) {
        code = replay_open(replay, ahead->schedule, ahead->source, error);
    }
    const struct replay_row *row = wish->row.state != NULL ? &wish->row : NULL;
    return code < 0 ? code : replay_seek(replay, row, wish->step, error);
}

static int ahead_replay_plan(struct ahead *ahead, const struct ahead_wish *wish,
                             struct ahead_result *result) {
    int code = ahead_replay_to(ahead, wish, &result->error);
    if (code < 0) {
        return code;
    }
    code = replay_next(&ahead->replay, &result->plan, &result->error);
    return code == 0 ? error_set(&result->error, -ERANGE, "the data ends before this step") : code;
}

static int ahead_reach_plan(struct ahead *ahead, const struct ahead_wish *wish,
                            struct ahead_result *result) {
    int code = ahead_replay_to(ahead, wish, &result->error);
    if (code < 0) {
        return code;
    }
    result->state = ahead_encode(ahead->replay.state, &result->state_bytes);
    if (result->state == NULL) {
        return error_set(&result->error, -ENOMEM, "out of memory for a state");
    }
    return replay_next(&ahead->replay, &result->plan, &result->error);
}

static void ahead_fulfil(struct ahead *ahead, struct ahead_wish *wish,
                         struct ahead_result *result) {
    bool reach = wish->kind == AHEAD_WISH_REACH;
    int code = reach ? ahead_reach_plan(ahead, wish, result)
                     : ahead_replay_plan(ahead, wish, result);
    code = ahead_checked(ahead, code, &result->error);
    result->wish = wish->kind;
    result->step = wish->step;
    result->kind = code < 0 ? AHEAD_FAILED : reach ? AHEAD_REACHED : AHEAD_REPLAYED;
}

static void ahead_begin_domains(struct ahead *ahead) {
    if (ahead->tally != NULL) {
        domain_tally_begin(ahead->tally, ahead->domains, ahead->state);
    }
}

/* Takes over the state of a restart; false with the reason in the result. */
static bool ahead_begin(struct ahead *ahead, const uint8_t *state, size_t bytes,
                        struct ahead_result *result) {
    int code = plan_state_decode(ahead->scratch, state, bytes, &result->error);
    if (code == 0) {
        code = corpus_source_check(ahead->source, &ahead->scratch->cursor, &result->error);
    }
    if (code == 0) {
        code = schedule_check_state(ahead->schedule, ahead->scratch, &result->error);
    }
    if (code < 0) {
        result->kind = AHEAD_FAILED;
        ahead->over = true;
        return false;
    }
    struct plan_state *before = ahead->state;
    ahead->state = ahead->scratch;
    ahead->scratch = before;
    ahead->over = false;
    ahead_begin_domains(ahead);
    return true;
}

static void ahead_wish_destroy(struct ahead_wish *wish) {
    free(wish->row.state);
    free(wish);
}

static bool ahead_may_plan(const struct ahead *ahead) {
    return !ahead->over && !ahead->frozen && ahead->state->step < ahead->end;
}

/* With the mutex held, as the next two. */
static void ahead_deliver(struct ahead *ahead, struct ahead_result *result) {
    *ahead->results_tail = result;
    ahead->results_tail = &result->next;
    atomic_store(&ahead->has_results, true);
}

static void ahead_give_up(struct ahead *ahead) {
    ahead->reserve->kind = AHEAD_FAILED;
    (void)error_set(&ahead->reserve->error, -ENOMEM, "planning: out of memory");
    ahead_deliver(ahead, ahead->reserve);
    ahead->reserve = NULL;
}

static void ahead_work_restart(struct ahead *ahead, struct ahead_result *result) {
    uint8_t *state = ahead->restart;
    size_t bytes = ahead->restart_bytes;
    ahead->restart = NULL;
    (void)pthread_mutex_unlock(&ahead->mutex);
    bool begun = ahead_begin(ahead, state, bytes, result);
    free(state);
    (void)pthread_mutex_lock(&ahead->mutex);
    if (begun) {
        ahead_result_destroy(result);
    } else {
        ahead_deliver(ahead, result);
    }
}

static void ahead_work_wish(struct ahead *ahead, struct ahead_result *result) {
    struct ahead_wish *wish = ahead->wishes;
    ahead->wishes = wish->next;
    if (wish->kind == AHEAD_WISH_REPLAY && !ahead->stopping) {
        atomic_store(&ahead->replay.cancelled, false);
    }
    (void)pthread_mutex_unlock(&ahead->mutex);
    ahead_fulfil(ahead, wish, result);
    ahead_wish_destroy(wish);
    (void)pthread_mutex_lock(&ahead->mutex);
    ahead_deliver(ahead, result);
}

/* What was planned for a line that is over meanwhile is nobody's. */
static void ahead_work_plan(struct ahead *ahead, struct ahead_result *result) {
    uint64_t line = ahead->line;
    (void)pthread_mutex_unlock(&ahead->mutex);
    ahead_plan(ahead, result);
    (void)pthread_mutex_lock(&ahead->mutex);
    if (line == ahead->line) {
        ahead_deliver(ahead, result);
    } else {
        ahead_result_destroy(result);
    }
}

/* Without the mutex, which the loop will want: this thread may have to wait for its processor. */
static void ahead_tell(struct ahead *ahead) {
    (void)pthread_mutex_unlock(&ahead->mutex);
    ahead->wake(ahead->context);
    (void)pthread_mutex_lock(&ahead->mutex);
}

/* Does one job, without the mutex meanwhile. */
static void ahead_work(struct ahead *ahead, struct ahead_result *result) {
    if (ahead->restart != NULL) {
        ahead_work_restart(ahead, result);
    } else if (ahead->wishes != NULL) {
        ahead_work_wish(ahead, result);
    } else {
        ahead_work_plan(ahead, result);
    }
}

static void *ahead_run(void *argument) {
    struct ahead *ahead = argument;
    thread_begin("ballast-plan", THREAD_BACKGROUND);
    (void)pthread_mutex_lock(&ahead->mutex);
    while (!ahead->stopping) {
        if (ahead->restart == NULL && ahead->wishes == NULL && !ahead_may_plan(ahead)) {
            (void)pthread_cond_wait(&ahead->changed, &ahead->mutex);
            continue;
        }
        struct ahead_result *result = calloc(1, sizeof *result);
        if (result == NULL) {
            ahead_give_up(ahead);
            ahead_tell(ahead);
            break;
        }
        heartbeat_begin(&ahead->heartbeat);
        ahead_work(ahead, result);
        heartbeat_end(&ahead->heartbeat);
        ahead_tell(ahead);
    }
    (void)pthread_mutex_unlock(&ahead->mutex);
    return NULL;
}

static void ahead_free(struct ahead *ahead) {
    while (ahead->wishes != NULL) {
        struct ahead_wish *next = ahead->wishes->next;
        ahead_wish_destroy(ahead->wishes);
        ahead->wishes = next;
    }
    while (ahead->results != NULL) {
        struct ahead_result *next = ahead->results->next;
        ahead_result_destroy(ahead->results);
        ahead->results = next;
    }
    ahead_result_destroy(ahead->reserve);
    free(ahead->restart);
    free(ahead->tally);
    replay_close(&ahead->replay);
    plan_state_destroy(ahead->state);
    plan_state_destroy(ahead->scratch);
    (void)pthread_cond_destroy(&ahead->changed);
    (void)pthread_mutex_destroy(&ahead->mutex);
    free(ahead);
}

static int ahead_no_memory(struct error *error) {
    return error_set(error, -ENOMEM, "no memory for the planner's thread; free some memory");
}

int ahead_start(struct schedule *schedule, const struct corpus_source *source,
                const struct domains *domains, struct plan_state *state,
                void (*wake)(void *context), void *context, struct ahead **out,
                struct error *error) {
    struct ahead *ahead = calloc(1, sizeof *ahead);
    if (ahead == NULL) {
        plan_state_destroy(state);
        return ahead_no_memory(error);
    }
    ahead->schedule = schedule;
    ahead->source = source;
    ahead->domains = domains;
    ahead->wake = wake;
    ahead->context = context;
    ahead->state = state;
    ahead->results_tail = &ahead->results;
    (void)pthread_mutex_init(&ahead->mutex, NULL);
    (void)pthread_cond_init(&ahead->changed, NULL);
    ahead->scratch = schedule_state_create(schedule);
    ahead->reserve = calloc(1, sizeof *ahead->reserve);
    ahead->tally = domains == NULL ? NULL : domain_tally_create(domains);
    bool ready = ahead->scratch != NULL && ahead->reserve != NULL &&
                 (domains == NULL || ahead->tally != NULL);
    if (ready) {
        ahead_begin_domains(ahead);
    }
    int code = ready ? thread_start(&ahead->thread, ahead_run, ahead, "the planner's thread", error)
                     : ahead_no_memory(error);
    if (code < 0) {
        ahead_free(ahead);
        return code;
    }
    *out = ahead;
    return 0;
}

void ahead_stop(struct ahead *ahead) {
    if (ahead == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&ahead->mutex);
    ahead->stopping = true;
    atomic_store(&ahead->replay.cancelled, true);
    (void)pthread_cond_signal(&ahead->changed);
    (void)pthread_mutex_unlock(&ahead->mutex);
    (void)pthread_join(ahead->thread, NULL);
    ahead_free(ahead);
}

void ahead_extend(struct ahead *ahead, uint64_t end) {
    if (end <= ahead->extended) {
        return;
    }
    ahead->extended = end;
    (void)pthread_mutex_lock(&ahead->mutex);
    if (end > ahead->end) {
        ahead->end = end;
        (void)pthread_cond_signal(&ahead->changed);
    }
    (void)pthread_mutex_unlock(&ahead->mutex);
}

void ahead_freeze(struct ahead *ahead) {
    (void)pthread_mutex_lock(&ahead->mutex);
    ahead->frozen = true;
    (void)pthread_mutex_unlock(&ahead->mutex);
}

static int ahead_wish(struct ahead *ahead, enum ahead_wish_kind kind, uint64_t step,
                      const struct replay_row *row) {
    struct ahead_wish *wish = calloc(1, sizeof *wish);
    if (wish == NULL) {
        free(row == NULL ? NULL : row->state);
        return -ENOMEM;
    }
    wish->kind = kind;
    wish->step = step;
    if (row != NULL) {
        wish->row = *row;
    }
    (void)pthread_mutex_lock(&ahead->mutex);
    struct ahead_wish **last = &ahead->wishes;
    while (*last != NULL) {
        last = &(*last)->next;
    }
    *last = wish;
    (void)pthread_cond_signal(&ahead->changed);
    (void)pthread_mutex_unlock(&ahead->mutex);
    return 0;
}

int ahead_replay(struct ahead *ahead, uint64_t step, const struct replay_row *row) {
    return ahead_wish(ahead, AHEAD_WISH_REPLAY, step, row);
}

int ahead_reach(struct ahead *ahead, uint64_t step, const struct replay_row *row) {
    atomic_store(&ahead->replay.cancelled, false);
    atomic_store(&ahead->replay.at, row == NULL ? 0 : row->step);
    return ahead_wish(ahead, AHEAD_WISH_REACH, step, row);
}

uint64_t ahead_reaching(const struct ahead *ahead) {
    return atomic_load(&ahead->replay.at);
}

bool ahead_stuck(struct ahead *ahead, uint64_t now_ns, uint64_t limit_ns) {
    uint64_t step = ahead_reaching(ahead);
    if (step != ahead->looked_step) {
        ahead->looked_step = step;
        ahead->looked_ns = now_ns;
    }
    return heartbeat_stuck(&ahead->heartbeat, now_ns, limit_ns) &&
           now_ns - ahead->looked_ns > limit_ns;
}

void ahead_reach_cancel(struct ahead *ahead) {
    atomic_store(&ahead->replay.cancelled, true);
}

/* Frees the results that belong to the stream's own planning. With the mutex held. */
static void ahead_drop_planned(struct ahead *ahead) {
    struct ahead_result **at = &ahead->results;
    while (*at != NULL) {
        struct ahead_result *result = *at;
        if (result->wish == AHEAD_WISH_NONE && result->kind != AHEAD_FAILED) {
            *at = result->next;
            ahead_result_destroy(result);
        } else {
            at = &result->next;
        }
    }
    ahead->results_tail = at;
    atomic_store(&ahead->has_results, ahead->results != NULL);
}

void ahead_restart(struct ahead *ahead, uint8_t *state, size_t state_bytes) {
    (void)pthread_mutex_lock(&ahead->mutex);
    ahead_drop_planned(ahead);
    free(ahead->restart);
    ahead->restart = state;
    ahead->restart_bytes = state_bytes;
    ahead->line++;
    ahead->end = 0;
    ahead->extended = 0;
    (void)pthread_cond_signal(&ahead->changed);
    (void)pthread_mutex_unlock(&ahead->mutex);
}

struct ahead_result *ahead_take(struct ahead *ahead) {
    if (!atomic_load(&ahead->has_results)) {
        return NULL;
    }
    (void)pthread_mutex_lock(&ahead->mutex);
    struct ahead_result *result = ahead->results;
    if (result != NULL) {
        ahead->results = result->next;
        if (ahead->results == NULL) {
            ahead->results_tail = &ahead->results;
            atomic_store(&ahead->has_results, false);
        }
        result->next = NULL;
    }
    (void)pthread_mutex_unlock(&ahead->mutex);
    return result;
}
