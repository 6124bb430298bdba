/* rewind: going to another step: Seek and Import, from the call to the generation that begins.
 *
 *     IDLE --rewind_seek--> FETCHING --stored----------------------> STORING --rewind_begun--> IDLE
 *      |                       |                                        ^
 *      |                       +--not stored--> PLANNING --reached------+
 *      +--rewind_import------------------------^   |
 *                                                  +--refused, given up--> IDLE, nothing changed
 *
 * A plan is a function of its step, so a rewind invents nothing: it finds the state of the step
 * (its row; else planned from the nearest row before, however far), stores generation,
 * committed_step and, where it was missing, the row in one transaction, and then the daemon goes on
 * from there as it would after a restart. Until it is stored the old generation goes on; while it
 * is being stored nothing is delivered or committed; when it is durable, every session of the old
 * one is told. kill -9 leaves either. Loop thread only. */
#ifndef BALLAST_DAEMON_REWIND_H
#define BALLAST_DAEMON_REWIND_H

#include "daemon/ahead.h"
#include "daemon/blob.h"
#include "daemon/memo.h"
#include "daemon/session.h"

#define REWIND_PROGRESS_NS 5000000000ull /* between two log lines of a long way */

struct daemon;

enum rewind_phase {
    REWIND_IDLE = 0,
    REWIND_FETCHING = 1, /* the store looks for the step's row */
    REWIND_PLANNING = 2, /* the planner is on its way there */
    REWIND_STORING = 3,  /* the generation is on its way to the disk */
};

/* A Seek or Import that waits. */
struct rewind_call {
    struct session *session;
    uint32_t stream;
    bool import;
    uint64_t deadline_ns;
    uint64_t generation; /* that it waits for: the daemon's or the one being opened */
    uint64_t change;     /* of the roster, that must be durable first */
};

struct rewind {
    struct daemon *daemon;
    enum rewind_phase phase;
    struct rewind_call *calls;
    uint32_t call_count;
    uint32_t call_capacity;
    struct memo_generation next; /* being opened, when not IDLE */
    bool import;
    uint64_t start_ns;
    uint64_t logged_ns;
    uint8_t *state; /* STORING: encoded, from which the step is planned */
    size_t state_bytes;
    /* Of the first step of the daemon's generation, for SeekResponse. */
    bool digest_known;
    uint8_t digest[PLAN_DIGEST_BYTES];
    /* Of `next` likewise. */
    bool next_digest_known;
    uint8_t next_digest[PLAN_DIGEST_BYTES];
};

/* So many calls can wait. -ENOMEM. */
int rewind_open(struct rewind *rewind, struct daemon *daemon, uint32_t calls_max);
void rewind_close(struct rewind *rewind); /* fine for a zeroed one */

/* session_ops.seek and .import. */
void rewind_seek(struct rewind *rewind, struct session *session, uint32_t stream, uint64_t step,
                 uint64_t least, uint64_t deadline_ns);
void rewind_import(struct rewind *rewind, struct session *session, uint32_t stream,
                   const uint8_t *state, size_t bytes, uint64_t least, uint64_t deadline_ns);

/* Answers of the store and the planner; the state of the fetched row may be taken. */
void rewind_fetched(struct rewind *rewind, struct memo_fetched *fetched);
void rewind_reached(struct rewind *rewind, struct ahead_result *result);
void rewind_begun(struct rewind *rewind, const struct memo_fetched *begun);

/* Calls that have joined the daemon's generation are answered as soon as its digest is known. */
void rewind_turn(struct rewind *rewind);

/* Time passes: deadlines, and how far a long way is. */
void rewind_tick(struct rewind *rewind, uint64_t now_ns);

/* The session is over: its calls are forgotten; a long way that nobody waits for is given up. */
void rewind_forget(struct rewind *rewind, const struct session *session);

#endif
