/* thread: see thread.h. */
#include "corpus/thread.h"

#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>

/* Where one is blocked, the kernel ends the process and asks no handler. */
static const int faults[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV};

int thread_start(pthread_t *thread, void *(*body)(void *context), void *context, const char *what,
                 struct error *error) {
    sigset_t all, before;
    (void)sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        (void)sigdelset(&all, faults[i]);
    }
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(thread, NULL, body, context);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code == 0
               ? 0
               : error_set(error, -code,
                           "%s cannot be started: %s; raise the limit of tasks (TasksMax=, "
                           "ulimit -u) or of memory, its stack included (LimitAS=, ulimit -v)",
                           what, strerror(code));
}

void thread_begin(const char *name, enum thread_kind kind) {
    const struct sched_param none = {0};
    (void)pthread_setname_np(pthread_self(), name);
    if (kind == THREAD_BACKGROUND) {
        (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
    }
}
