/* rank_verify: whether a rank's part of a pool's plan holds, as far as one rank can see.
 *
 * libballast has judged what could be indexed with; this judges the plan: that the tiles of this
 * rank's rows are all of its rows for all heads, once; that every tile away from home has its
 * dispatch of Q and the mirrored return of O; that the pairs of what is computed here are those of
 * its documents, and that every key it sees is here or comes, and none comes twice. What other
 * ranks do among themselves is theirs to judge. */
#ifndef BALLAST_CLIENT_RANK_VERIFY_H
#define BALLAST_CLIENT_RANK_VERIFY_H

#include "client/ballast.h"

/* How many tiles and transfers hold: all of the batch's, 0 without a pool. -EBADMSG with what does
 * not in *why, which is never freed; -ENOMEM. */
int64_t rank_verify(const struct ballast_batch *batch, const char **why);

#endif
