/* plan: what the launcher and the kernels' tests need to know of a plan beyond its header. */
#ifndef BALLAST_GPU_ATTN_PLAN_H
#define BALLAST_GPU_ATTN_PLAN_H

#include "gpu_attn/ballast_attn.h"
#include "gpu_attn/lists.h"

/* Query heads of one K/V head. */
uint32_t attn_group(const struct ballast_attn_shape *shape);

/* Query heads packed into a backward step: the group, or half of one that is too large for 64
 * rows. */
uint32_t attn_pack(const struct ballast_attn_shape *shape);

/* The four lists of a plan, wherever its block was copied to. */
struct attn_lists {
    const struct attn_tile *tiles;
    const struct attn_step *steps;
    const struct attn_key_tile *key_tiles;
    const struct attn_range *ranges;
};

static inline struct attn_lists attn_lists_at(const struct ballast_attn_plan *plan,
                                              const void *block) {
    struct attn_lists lists = {.tiles = (const struct attn_tile *)block};
    lists.steps = (const struct attn_step *)(lists.tiles + plan->tiles);
    lists.key_tiles = (const struct attn_key_tile *)(lists.steps + plan->steps);
    lists.ranges = (const struct attn_range *)(lists.key_tiles + plan->key_tiles);
    return lists;
}

#endif
