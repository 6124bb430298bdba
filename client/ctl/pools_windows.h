/* pools_windows: the packed sequences of a simulation of pools, filled as pool:P fills them. */
#ifndef BALLAST_CTL_POOLS_WINDOWS_H
#define BALLAST_CTL_POOLS_WINDOWS_H

#include "client/ctl/scenario.h"

/* By window, in it in reading order. */
struct pools_windows {
    uint32_t count; /* whole global batches */
    uint32_t *begins;
    uint32_t *lengths;
    uint64_t *works; /* sums of squared lengths */
};

/* Reads and packs `steps` global batches, fewer where the documents end; pools.look_ahead of the
 * trial's config at once. -ENOENT when there is not one. pools_windows_deinit takes a zeroed one.
 */
int pools_windows_init(struct pools_windows *windows, const struct trial *trial, uint64_t steps,
                       struct error *error);
void pools_windows_deinit(struct pools_windows *windows);

#endif
