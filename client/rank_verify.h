/* rank_verify: whether a rank's part of a plan holds, as far as one rank can see.
 *
 * libballast has judged what could be indexed with; this judges the plan. Of a group: that every
 * row is in one fragment of one rank, and pads are the rest; where needed keys are exchanged, that
 * those come that queries here see and own rows are not, each once from its owner, no others, and
 * that counts are the runs', sent and received. Of a pool: that the tiles of this rank's rows are
 * all of its rows for all heads, once; that every tile away from home has its dispatch of Q and the
 * mirrored return of O; that the pairs of what is computed here are those of its documents; that
 * every key it sees is here or comes, none twice and none that no tile here sees; and that keys it
 * sends are here or come. What other ranks do among themselves is theirs to judge. */
#ifndef BALLAST_CLIENT_RANK_VERIFY_H
#define BALLAST_CLIENT_RANK_VERIFY_H

#include "client/ballast.h"

/* How many parts hold, all of the batch's: of a pool tiles and transfers, else the group's
 * fragments and runs of keys from and to this rank. -EBADMSG with what does not in *why, which is
 * never freed; -ENOMEM. */
int64_t rank_verify(const struct ballast_batch *batch, const char **why);

/* The same of the group alone. */
int64_t rank_verify_rows(const struct ballast_batch *batch, const char **why);

#endif
