/* thread: how this program's threads start.
 *
 * Signals are the loop's, so no thread takes any but those of its own faults, which no mask keeps
 * off (mapped.h has a use for one). Planning and reading are background work: the scheduler lets
 * what they compete with, the loop and the ranks, run first when it wakes up, and gives them their
 * full share of the time otherwise (SCHED_BATCH; nothing is starved). Where a filter of system
 * calls forbids that, they run as all others do. */
#ifndef BALLAST_CORPUS_THREAD_H
#define BALLAST_CORPUS_THREAD_H

#include "planner/error.h"

#include <pthread.h>

enum thread_kind { THREAD_PROMPT, THREAD_BACKGROUND };

/* 0, or a negative errno with a text that names `what` ("the planner's thread") and the limits that
 * may be in the way. */
int thread_start(pthread_t *thread, void *(*body)(void *context), void *context, const char *what,
                 struct error *error);

/* What a body says of itself first; `name` has at most 15 characters. */
void thread_begin(const char *name, enum thread_kind kind);

#endif
