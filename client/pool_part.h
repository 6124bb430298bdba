/* pool_part: a rank's part of its pool's plan, from its message to what a rank reads.
 *
 * As batch.h says: what a caller will index or allocate with is judged here, once. Whether the plan
 * is a good one, or whole, is not. */
#ifndef BALLAST_CLIENT_POOL_PART_H
#define BALLAST_CLIENT_POOL_PART_H

#include "ballast.pb-c.h"
#include "client/ballast.h"
#include "planner/error.h"
#include "proto/arena.h"

/* Sets view->pool, in the arena, for a view whose documents and shards are read; NULL for a message
 * that is absent or without its pool's shape. -EPROTO with the contradiction named, -ENOMEM. */
int pool_part_read(struct ballast_batch *view, struct arena *arena,
                   const Ballast__V1__PoolPart *message, const struct ballast_job *job,
                   struct error *error);

#endif
