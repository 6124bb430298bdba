/* turn: what follows from what happened, once per round of the loop.
 *
 * Results of the planner and the store come in, reads are taken in, committed_step moves, planning
 * and reading are told how far to go, sessions are pumped; again until nothing new comes of it.
 * Loop thread only. */
#ifndef BALLAST_DAEMON_TURN_H
#define BALLAST_DAEMON_TURN_H

#include "daemon/daemon.h"

/* Draws all conclusions while the daemon is dirty. */
void turn_run(struct daemon *daemon);

/* The plan of a step for a session or an administrator; one that is no longer in memory is asked
 * for again and comes in a later turn. */
enum session_answer turn_plan(struct daemon *daemon, uint64_t step, const struct step_plan **plan,
                              struct error *error);

/* What sessions ask of the daemon; a session's owner is its conn. */
extern const struct session_ops turn_session_ops;

#endif
