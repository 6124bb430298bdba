/* thread: starts one that leaves all signals to the loop. */
#ifndef BALLAST_DAEMON_THREAD_H
#define BALLAST_DAEMON_THREAD_H

#include <pthread.h>

/* 0 or a negative errno. */
int thread_start(pthread_t *thread, void *(*body)(void *), void *context);

#endif
