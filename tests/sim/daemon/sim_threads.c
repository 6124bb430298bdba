/* sim_threads: pthreads as coroutines, and the clock; see sim.h.
 *
 * A thread runs until it waits or gives way, so no mutex is ever contended: it is a flag that is
 * checked. Linked over pthread_* with --wrap. */
#include "sim.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

#define STACK_BYTES (1u << 20)

struct sim_thread {
    ucontext_t context;
    void *stack;
    bool alive;
    bool waiting;
    bool signalled;
    const pthread_cond_t *on;
    uint64_t until_ns;   /* of a timed wait */
    uint64_t stalled_ns; /* not run before */
    bool (*ready)(void); /* instead of a condition */
    void *(*run)(void *);
    void *argument;
};

static struct sim_thread sim_threads[SIM_THREADS];
static struct sim_thread *sim_current;
static ucontext_t sim_scheduler;
static void (*sim_main)(void);

static void sim_thread_leave(struct sim_thread *thread) {
    int code = swapcontext(&thread->context, &sim_scheduler);
    assert(code == 0);
}

static void sim_thread_entry(void) {
    struct sim_thread *thread = sim_current;
    if (thread == &sim_threads[0]) {
        sim_main();
    } else {
        (void)thread->run(thread->argument);
    }
    thread->alive = false;
    sim_thread_leave(thread);
}

static void sim_thread_stack(struct sim_thread *thread) {
    if (thread->stack == NULL) {
        thread->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                             -1, 0);
        assert(thread->stack != MAP_FAILED);
    }
}

/* Begins at sim_thread_entry when it is first resumed. */
static void sim_thread_make(struct sim_thread *thread) {
    sim_thread_stack(thread);
    thread->alive = true;
    thread->waiting = false;
    thread->on = NULL;
    thread->ready = NULL;
    thread->until_ns = SIM_NEVER;
    thread->stalled_ns = 0;
    int code = getcontext(&thread->context);
    assert(code == 0);
    thread->context.uc_stack.ss_sp = thread->stack;
    thread->context.uc_stack.ss_size = STACK_BYTES;
    thread->context.uc_link = NULL;
    makecontext(&thread->context, sim_thread_entry, 0);
}

void sim_thread_start(void (*run)(void)) {
    assert(!sim_threads[0].alive);
    sim_main = run;
    sim_thread_make(&sim_threads[0]);
}

bool sim_thread_alive(uint32_t i) {
    return sim_threads[i].alive;
}

bool sim_thread_runnable(uint32_t i) {
    const struct sim_thread *thread = &sim_threads[i];
    if (!thread->alive || sim.now_ns < thread->stalled_ns) {
        return false;
    }
    return !thread->waiting || thread->signalled || sim.now_ns >= thread->until_ns ||
           (thread->ready != NULL && thread->ready());
}

uint64_t sim_thread_due_ns(uint32_t i) {
    const struct sim_thread *thread = &sim_threads[i];
    if (!thread->alive) {
        return SIM_NEVER;
    }
    if (sim.now_ns < thread->stalled_ns) {
        return thread->stalled_ns;
    }
    return thread->waiting ? thread->until_ns : SIM_NEVER;
}

void sim_thread_stall(uint32_t i, uint64_t until_ns) {
    sim_threads[i].stalled_ns = until_ns;
}

void sim_thread_resume(uint32_t i) {
    struct sim_thread *thread = &sim_threads[i];
    assert(sim_current == NULL && thread->alive);
    sim_current = thread;
    int code = swapcontext(&sim_scheduler, &thread->context);
    assert(code == 0);
    sim_current = NULL;
}

static void sim_thread_sleep(struct sim_thread *thread) {
    thread->waiting = true;
    thread->signalled = false;
    sim_thread_leave(thread);
    thread->waiting = false;
    thread->on = NULL;
    thread->ready = NULL;
    thread->until_ns = SIM_NEVER;
}

void sim_thread_give_way(void) {
    if (sim_current != NULL) {
        sim_thread_leave(sim_current);
    }
}

void sim_thread_wait(bool (*ready)(void)) {
    assert(sim_current != NULL);
    sim_current->ready = ready;
    sim_thread_sleep(sim_current);
}

/* pthreads */

int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex);
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *until);
int __wrap_pthread_cond_signal(pthread_cond_t *condition);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __real_clock_gettime(clockid_t clock, struct timespec *out);

int __wrap_pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *argument) {
    (void)attributes;
    for (uint32_t i = 1; i < SIM_THREADS; i++) {
        struct sim_thread *thread = &sim_threads[i];
        if (!thread->alive) {
            thread->run = run;
            thread->argument = argument;
            sim_thread_make(thread);
            *out = i;
            return 0;
        }
    }
    return EAGAIN;
}

static uint32_t sim_joined;

static bool sim_joined_is_over(void) {
    return !sim_threads[sim_joined].alive;
}

int __wrap_pthread_join(pthread_t thread, void **result) {
    (void)result;
    sim_joined = (uint32_t)thread;
    sim_thread_wait(sim_joined_is_over);
    return 0;
}

/* The mutex is its own flag: 1 while held. */
static int *sim_flag(pthread_mutex_t *mutex) {
    return (int *)(void *)mutex;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex) {
    if (sim_current != NULL && !sim.dead && sim_between(0, 15) == 0) {
        sim_thread_give_way();
    }
    sim_check(*sim_flag(mutex) == 0, "a mutex is locked twice");
    *sim_flag(mutex) = 1;
    return 0;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex) {
    sim_check(*sim_flag(mutex) == 1, "a mutex is unlocked that is not locked");
    *sim_flag(mutex) = 0;
    return 0;
}

static void sim_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, uint64_t until_ns) {
    struct sim_thread *thread = sim_current;
    thread->on = condition;
    thread->until_ns = until_ns;
    (void)__wrap_pthread_mutex_unlock(mutex);
    sim_thread_sleep(thread);
    sim_check(*sim_flag(mutex) == 0, "a thread sleeps with a mutex");
    *sim_flag(mutex) = 1;
}

int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex) {
    sim_cond_wait(condition, mutex, SIM_NEVER);
    return 0;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *until) {
    sim_cond_wait(condition, mutex,
                  (uint64_t)until->tv_sec * 1000000000u + (uint64_t)until->tv_nsec);
    return 0;
}

int __wrap_pthread_cond_signal(pthread_cond_t *condition) {
    for (uint32_t i = 0; i < SIM_THREADS; i++) {
        if (sim_threads[i].alive && sim_threads[i].waiting && sim_threads[i].on == condition) {
            sim_threads[i].signalled = true;
        }
    }
    return 0;
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *out) {
    if (sim_current == NULL) {
        return __real_clock_gettime(clock, out);
    }
    out->tv_sec = (time_t)(sim.now_ns / 1000000000u);
    out->tv_nsec = (long)(sim.now_ns % 1000000000u);
    return 0;
}
