/* rank_agree: an all-gather over files in a folder that all ranks of the job see, for
 * ballast_agree. A trainer passes its communicator's (NCCL, MPI, torch.distributed) instead.
 *
 * Round r of rank n is the file r.n, which appears whole. When all of round r are there, all ranks
 * have read round r - 1, so each removes its file of that; one a rank is left at the end. */
#ifndef BALLAST_CLIENT_RANK_AGREE_H
#define BALLAST_CLIENT_RANK_AGREE_H

#include "client/ballast.h"

struct rank_agree {
    const char *path;
    uint32_t rank; /* this one's number: dp, pp, cp, tp, the last fastest */
    uint32_t ranks;
    uint64_t round;
    int timeout_ms; /* for the other ranks; -1: for ever */
};

/* Everything is borrowed; waits as long for others as for the daemon. */
void rank_agree_init(struct rank_agree *agree, const char *path,
                     const struct ballast_options *place, const struct ballast_job *job);

/* all_gather of ballast_agree; `context` is a struct rank_agree. Says itself on standard error what
 * went wrong; -ETIMEDOUT names the rank that did not come. */
int rank_agree_gather(void *context, const void *mine, size_t bytes, void *all);

#endif
