/* admin: ballast.v1.Admin, what operators and ballastctl ask.
 *
 * Answers come from what the loop knows. Queues, delays and dataset counters stand in the newest
 * planned step's state, which is decoded when somebody asks. Plans of older steps are replayed from
 * the store; the call waits for that, the loop does not. Loop thread only. */
#ifndef BALLAST_DAEMON_ADMIN_H
#define BALLAST_DAEMON_ADMIN_H

#include "daemon/session.h"
#include "planner/state.h"

#define ADMIN_PLANS_MAX 64u /* Plan calls that wait for a replay */

struct daemon;

/* A Plan call whose step is being replayed. */
struct admin_plan {
    struct session *session;
    uint32_t stream;
    uint64_t step;
    uint32_t first;
    uint32_t count;
    bool fragments;
    bool pools;
};

struct admin {
    struct daemon *daemon;
    struct plan_state *state; /* decoded when first asked for */
    uint64_t state_step;      /* of `state`; UINT64_MAX: none yet */
    struct admin_plan plans[ADMIN_PLANS_MAX];
    uint32_t plan_count;
};

void admin_init(struct admin *admin, struct daemon *daemon);
void admin_deinit(struct admin *admin);

/* session_ops.admin: answers, or notes the call. */
void admin_call(struct admin *admin, struct session *session, uint32_t stream, const char *method,
                const uint8_t *payload, size_t bytes);

/* A replayed step is in memory, or could not be had: answers the calls that wait for it. */
void admin_plan_found(struct admin *admin, uint64_t step);
void admin_plan_lost(struct admin *admin, uint64_t step, const struct error *error);

/* The session is over: its calls are forgotten. */
void admin_forget(struct admin *admin, const struct session *session);

#endif
