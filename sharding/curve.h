/* curve: a direction's tile times from measured ones.
 *
 * Between the points linear, before the first and behind the last as between the two nearest;
 * slopes are whole picoseconds a block, so that sums over tiles have closed forms (cost.c). Points
 * on a line t0 + blocks * tb of whole numbers give exactly t0 and tb, without bends. Pure, no
 * floats. */
#ifndef BALLAST_SHARDING_CURVE_H
#define BALLAST_SHARDING_CURVE_H

#include "sharding/cost.h"

#define TILE_POINTS_MAX TILE_BENDS_MAX

/* A tile of so many blocks, > 0, takes so long. */
struct tile_point {
    uint64_t blocks;
    uint64_t ps; /* below 2^63 */
};

/* Fills everything but launch_ps. `count` from 2 to TILE_POINTS_MAX points, blocks ascending; a
 * time below one before it is taken to be that one, so the curve never falls. */
void tile_curve(const struct tile_point *points, uint32_t count, struct tile_direction *out);

#endif
