/* fake_runtime: a libcuda.so.1 whose memory is the host's and whose streams are queues.
 *
 * Nothing on a stream happens before somebody asks for it (cuStreamQuery, fake_stream_settle), and
 * then only what is before it on its stream, or on others through events. Or, eager, all that no
 * event holds back happens at once, but for streams of fake_stream_create. What lacks a dependency
 * goes wrong in one of the two. A stream is used by one thread. */
#ifndef BALLAST_TESTS_FAKE_RUNTIME_H
#define BALLAST_TESTS_FAKE_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Runs when its turn on the stream comes; takes `argument` over. 0, or the stream has failed. */
typedef int fake_stream_task(void *argument);
int fake_stream_append(void *stream, fake_stream_task *task, void *argument);

/* Runs the stream to its end. */
int fake_stream_settle(void *stream);
void *fake_stream_create(void);
void fake_stream_destroy(void *stream);

/* The n-th call of the driver from now on, of any thread, fails; 0: none. */
void fake_runtime_fail_at(unsigned calls);

void fake_runtime_eager(bool eager);

/* While true, no stream is ever found at its end. */
void fake_runtime_busy(bool busy);

/* Most copies of one launch since it was last asked. */
unsigned fake_runtime_copies_max(void);

/* What was loaded last as a module. */
const char *fake_runtime_image(void);

/* Streams, events, modules and memory that were not given back. */
int fake_runtime_objects(void);

#endif
