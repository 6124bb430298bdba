/* failpoint: named places where a test makes the daemon die, fail, wait or do half.
 *
 * Only in builds with BALLAST_FAILPOINTS (the asan preset); in others FAILPOINT() is the constant 0
 * and nothing is left of it. What happens where stands in $BALLAST_FAILPOINTS, entries separated by
 * commas, each point at most once:
 *
 *     group_commit=kill@3       SIGKILL at the third hit
 *     read_done=EIO@2+          that error from the second hit on (error points only)
 *     conn_write=short          half of what was asked, every time (short points only)
 *     plan_after=delay:50       50 ms, every time
 *
 * Hits are counted from the start of the process. Any thread. */
#ifndef BALLAST_DAEMON_FAILPOINT_H
#define BALLAST_DAEMON_FAILPOINT_H

#include "planner/error.h"

#define FAILPOINT_ENVIRONMENT "BALLAST_FAILPOINTS"

/* X(name, what it can beside kill and delay, where it stands) */
#define FAILPOINTS(X)                                                                              \
    X(lock, ERROR, "the state directory's lock is about to be taken")                              \
    X(create_rename, ERROR, "a new store is about to get its name")                                \
    X(store_opened, ERROR, "the store is open, nothing is recovered yet")                          \
    X(unlink, ERROR, "a stale socket file is about to go")                                         \
    X(listen, ERROR, "a socket listens, nobody accepts yet")                                       \
    X(plan_before, ERROR, "a step is about to be planned")                                         \
    X(plan_after, NOTHING, "a step is planned, the loop does not know it yet")                     \
    X(plan_taken, NOTHING, "the loop is about to note a planned step")                             \
    X(replay, ERROR, "a step is about to be planned again for a rank further back")                \
    X(group_begin, ERROR, "a group of rows is about to be written")                                \
    X(group_commit, ERROR, "a group is written, not committed")                                    \
    X(mark, NOTHING, "a group is durable, the mark does not count it yet")                         \
    X(group_durable, NOTHING, "a group is durable, nobody knows it yet")                           \
    X(checkpoint_before, ERROR, "the write-ahead log is about to be written back")                 \
    X(checkpoint_after, NOTHING, "the write-ahead log is written back")                            \
    X(fetch, NOTHING, "a stored row is about to be read")                                          \
    X(slot_reuse, NOTHING, "a slot is about to be taken for another batch")                        \
    X(read_begin, ERROR, "a batch is about to be read into its slot")                              \
    X(read_done, ERROR, "a batch is in its slot, not yet ready")                                   \
    X(hello, NOTHING, "a rank has its identity, not its answer")                                   \
    X(batch_before, NOTHING, "a batch is about to be offered to a rank")                           \
    X(batch_after, NOTHING, "a batch is on its way, credit and hold are not noted")                \
    X(end_of_step, NOTHING, "the end of a step is about to be told")                               \
    X(commit_in, NOTHING, "a commit came in, nothing is noted")                                    \
    X(commit_noted, NOTHING, "a commit is noted, not durable")                                     \
    X(ack_before, NOTHING, "a durable commit is about to be acknowledged")                         \
    X(ack_after, NOTHING, "the acknowledgement is queued")                                         \
    X(rewind_storing, NOTHING, "a generation is put, not durable")                                 \
    X(rewind_durable, NOTHING, "a generation is durable, nobody knows it yet")                     \
    X(conn_read, SHORT, "bytes of a peer are about to be read")                                    \
    X(conn_write, SHORT, "bytes for a peer are about to be written")                               \
    X(descriptor, ERROR, "the slab's descriptor is about to be handed over")                       \
    X(stop, NOTHING, "everything is told to stop")

#define FAILPOINT_NAME(name, can, where) FAILPOINT_##name,
enum failpoint { FAILPOINTS(FAILPOINT_NAME) FAILPOINT_COUNT };
#undef FAILPOINT_NAME

#define FAILPOINT_DOES_SHORT 1 /* what failpoint_hit says for "short" */

#ifdef BALLAST_FAILPOINTS

/* Takes over what `text` says (NULL: nothing happens anywhere). Before any thread. -EINVAL. */
int failpoint_load(const char *text, struct error *error);

/* Prints the points, one a line: name, what it can, where it stands. */
void failpoint_print(void);

/* 0, a negative errno, or FAILPOINT_DOES_SHORT; or does not return. */
int failpoint_hit(enum failpoint point);

#define FAILPOINT(name) failpoint_hit(FAILPOINT_##name)

#else
#define FAILPOINT(name) 0
#endif

/* Where an error can be returned: the failpoint's, described in `error`. */
#define FAILPOINT_ERROR(name, error) failpoint_told(FAILPOINT(name), #name, error)

static inline int failpoint_told(int code, const char *name, struct error *error) {
    return code < 0 ? error_set(error, code, "failpoint %s", name) : 0;
}

#endif
