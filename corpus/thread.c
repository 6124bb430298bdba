/* thread: see thread.h. */
#include "corpus/thread.h"

#include <sched.h>
#include <signal.h>

int thread_start(pthread_t *thread, void *(*body)(void *context), void *context) {
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(thread, NULL, body, context);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -code;
}

void thread_begin(const char *name, enum thread_kind kind) {
    const struct sched_param none = {0};
    (void)pthread_setname_np(pthread_self(), name);
    if (kind == THREAD_BACKGROUND) {
        (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
    }
}
