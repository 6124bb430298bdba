/* export: Loader.Export: the state of a stored step as a blob that describes itself.
 *
 * The state is in memory (of the step to be planned next) or comes from the store; either way the
 * step is noted, so that its row stays. Loop thread only. */
#ifndef BALLAST_DAEMON_EXPORT_H
#define BALLAST_DAEMON_EXPORT_H

#include "daemon/memo.h"
#include "daemon/session.h"

#define EXPORT_CALLS_MAX 64u

struct daemon;

struct export_call {
    struct session *session;
    uint32_t stream;
    uint64_t step;
};

struct exporter {
    struct daemon *daemon;
    struct export_call calls[EXPORT_CALLS_MAX]; /* that wait for the store */
    uint32_t call_count;
};

/* session_ops.export: answers, or notes the call. */
void export_serve(struct exporter *exporter, struct session *session, uint32_t stream,
                  uint64_t step);

/* The store's answer. */
void export_fetched(struct exporter *exporter, const struct memo_fetched *fetched);

/* The session is over: its calls are forgotten. */
void export_forget(struct exporter *exporter, const struct session *session);

#endif
