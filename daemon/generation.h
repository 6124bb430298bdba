/* generation: what the ranks of a job go through together from one rewind to the next.
 *
 * The first Seek (or Import) opens generation + 1 at its step; the other ranks join it by a Seek to
 * the same step, or by Hello and Stream. It is open to be joined until its first step is committed
 * by all (committed_step passes it). Meanwhile a rank that seeks elsewhere has made a mistake,
 * unless it had sought the step itself or nobody who has joined is connected: then the job goes
 * back once more. Pure; loop thread only. */
#ifndef BALLAST_DAEMON_GENERATION_H
#define BALLAST_DAEMON_GENERATION_H

#include "daemon/roster.h"

#define GENERATION_BY_BYTES 96u

struct generation {
    uint64_t number;              /* 0: nobody has sought yet */
    uint64_t step;                /* where it began */
    char by[GENERATION_BY_BYTES]; /* who began it, for a sentence; "" with number 0 */
};

enum generation_way {
    GENERATION_JOINS = 0,   /* the open generation began at this step */
    GENERATION_OPENS = 1,   /* a new one is to be opened */
    GENERATION_REFUSED = 2, /* others have joined the open one, at another step */
};

/* What a Seek to `step` means, of a member (NULL: an administrator) that wants at least generation
 * `least`. */
enum generation_way generation_seek(const struct generation *generation,
                                    const struct roster *roster, const struct member *member,
                                    uint64_t step, uint64_t least);

#endif
