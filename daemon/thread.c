/* thread: see thread.h. */
#include "daemon/thread.h"

#include <signal.h>

int thread_start(pthread_t *thread, void *(*body)(void *), void *context) {
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(thread, NULL, body, context);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -code;
}
