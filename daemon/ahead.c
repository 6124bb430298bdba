/* ahead: see ahead.h. */
#include "daemon/ahead.h"

#include "daemon/clock.h"
#include "daemon/failpoint.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct ahead_wish {
    struct ahead_wish *next;
    uint64_t step;
    struct replay_row row;
};

struct ahead {
    /* Immutable after start. */
    pthread_t thread;
    struct schedule *schedule;
    const struct corpus_source *source;
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

    /* Planner thread only. */
    struct plan_state *state;
    struct plan_state *scratch;
    struct replay replay;         /* opened when first needed */
    bool over;                    /* the data ended or planning failed */
    struct ahead_result *reserve; /* tells that memory ran out */
};

void ahead_result_destroy(struct ahead_result *result) {
    if (result != NULL) {
        step_plan_destroy(result->plan);
        free(result->state_after);
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

static void ahead_plan(struct ahead *ahead, struct ahead_result *result) {
    uint64_t start_ns = clock_ns();
    result->step = ahead->state->step;
    int code = FAILPOINT_ERROR(plan_before, &result->error);
    if (code == 0) {
        code = schedule_step(ahead->schedule, ahead->state, ahead->scratch, &result->plan,
                             &result->error);
    }
    if (code <= 0) {
        result->kind = code == 0 ? AHEAD_ENDED : AHEAD_FAILED;
        ahead->over = true;
        return;
    }
    result->plan->plan_ns = clock_ns() - start_ns;
    result->state_after = ahead_encode(ahead->scratch, &result->state_after_bytes);
    if (result->state_after == NULL) {
        result->kind = AHEAD_FAILED;
        (void)error_set(&result->error, -ENOMEM, "planning: out of memory for a state");
        ahead->over = true;
        return;
    }
    result->in_hand = schedule_in_hand(ahead->schedule);
    struct plan_state *state = ahead->state;
    ahead->state = ahead->scratch;
    ahead->scratch = state;
    (void)FAILPOINT(plan_after);
}

static int ahead_replay_plan(struct ahead *ahead, const struct ahead_wish *wish,
                             struct ahead_result *result) {
    struct replay *replay = &ahead->replay;
    int code = FAILPOINT_ERROR(replay, &result->error);
    if (code == 0 && replay->state == NULL) {
        code = replay_open(replay, ahead->schedule, ahead->source, &result->error);
    }
    if (code == 0) {
        code = replay_seek(replay, &wish->row, wish->step, &result->error);
    }
    if (code < 0) {
        return code;
    }
    code = replay_next(replay, &result->plan, &result->error);
    return code == 0 ? error_set(&result->error, -ERANGE, "the data ends before this step") : code;
}

static void ahead_fulfil(struct ahead *ahead, struct ahead_wish *wish,
                         struct ahead_result *result) {
    result->replay = true;
    result->step = wish->step;
    result->kind = ahead_replay_plan(ahead, wish, result) < 0 ? AHEAD_FAILED : AHEAD_REPLAYED;
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
    ahead->wake(ahead->context);
}

static void ahead_give_up(struct ahead *ahead) {
    ahead->reserve->kind = AHEAD_FAILED;
    (void)error_set(&ahead->reserve->error, -ENOMEM, "planning: out of memory");
    ahead_deliver(ahead, ahead->reserve);
    ahead->reserve = NULL;
}

/* Does one job, without the mutex meanwhile. */
static void ahead_work(struct ahead *ahead, struct ahead_result *result) {
    struct ahead_wish *wish = ahead->wishes;
    if (wish != NULL) {
        ahead->wishes = wish->next;
    }
    (void)pthread_mutex_unlock(&ahead->mutex);
    if (wish != NULL) {
        ahead_fulfil(ahead, wish, result);
        ahead_wish_destroy(wish);
    } else {
        ahead_plan(ahead, result);
    }
    (void)pthread_mutex_lock(&ahead->mutex);
    ahead_deliver(ahead, result);
}

static void *ahead_run(void *argument) {
    struct ahead *ahead = argument;
    (void)pthread_mutex_lock(&ahead->mutex);
    while (!ahead->stopping) {
        if (ahead->wishes == NULL && !ahead_may_plan(ahead)) {
            (void)pthread_cond_wait(&ahead->changed, &ahead->mutex);
            continue;
        }
        struct ahead_result *result = calloc(1, sizeof *result);
        if (result == NULL) {
            ahead_give_up(ahead);
            break;
        }
        ahead_work(ahead, result);
    }
    (void)pthread_mutex_unlock(&ahead->mutex);
    return NULL;
}

/* A thread that leaves all signals to the loop. */
static int ahead_spawn(struct ahead *ahead) {
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&ahead->thread, NULL, ahead_run, ahead);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -code;
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
    replay_close(&ahead->replay);
    plan_state_destroy(ahead->state);
    plan_state_destroy(ahead->scratch);
    (void)pthread_cond_destroy(&ahead->changed);
    (void)pthread_mutex_destroy(&ahead->mutex);
    free(ahead);
}

int ahead_start(struct schedule *schedule, const struct corpus_source *source,
                struct plan_state *state, void (*wake)(void *context), void *context,
                struct ahead **out, struct error *error) {
    struct ahead *ahead = calloc(1, sizeof *ahead);
    if (ahead == NULL) {
        plan_state_destroy(state);
        return error_set(error, -ENOMEM, "planner thread: out of memory");
    }
    ahead->schedule = schedule;
    ahead->source = source;
    ahead->wake = wake;
    ahead->context = context;
    ahead->state = state;
    ahead->results_tail = &ahead->results;
    (void)pthread_mutex_init(&ahead->mutex, NULL);
    (void)pthread_cond_init(&ahead->changed, NULL);
    ahead->scratch = schedule_state_create(schedule);
    ahead->reserve = calloc(1, sizeof *ahead->reserve);
    bool ready = ahead->scratch != NULL && ahead->reserve != NULL;
    int code = ready ? ahead_spawn(ahead) : -ENOMEM;
    if (code < 0) {
        ahead_free(ahead);
        return error_set(error, code, "planner thread: %s", strerror(-code));
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
    (void)pthread_cond_signal(&ahead->changed);
    (void)pthread_mutex_unlock(&ahead->mutex);
    (void)pthread_join(ahead->thread, NULL);
    ahead_free(ahead);
}

void ahead_extend(struct ahead *ahead, uint64_t end) {
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

int ahead_replay(struct ahead *ahead, uint64_t step, const struct replay_row *row) {
    struct ahead_wish *wish = calloc(1, sizeof *wish);
    if (wish == NULL) {
        free(row->state);
        return -ENOMEM;
    }
    wish->step = step;
    wish->row = *row;
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

struct ahead_result *ahead_take(struct ahead *ahead) {
    (void)pthread_mutex_lock(&ahead->mutex);
    struct ahead_result *result = ahead->results;
    if (result != NULL) {
        ahead->results = result->next;
        if (ahead->results == NULL) {
            ahead->results_tail = &ahead->results;
        }
        result->next = NULL;
    }
    (void)pthread_mutex_unlock(&ahead->mutex);
    return result;
}
