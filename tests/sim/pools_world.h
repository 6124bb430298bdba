/* pools_world: Libra's corpora as packed sequences, and pools of them, for what is measured. */
#ifndef BALLAST_TESTS_POOLS_WORLD_H
#define BALLAST_TESTS_POOLS_WORLD_H

#include "packer/fixed.h"
#include "sharding/pool_plan.h"

/* Windows of one distribution by best-fit over the whole corpus, in an order that does not depend
 * on what is in them. */
struct windows {
    uint32_t count;
    uint32_t window;
    uint32_t *lengths; /* of documents, by window */
    uint32_t *begins;  /* count + 1 */
    uint64_t *works;   /* sum of length squared */
};

/* At least `count` windows; exits on failure. */
void windows_init(struct windows *windows, const char *distribution, uint64_t seed, uint32_t count);

/* The same with documents clipped to windows of this many tokens. */
void windows_init_clipped(struct windows *windows, const char *distribution, uint32_t window,
                          uint64_t seed, uint32_t count);
void windows_deinit(struct windows *windows);

/* A pool of windows members[0..sequences), homes contiguous, cut into tiles; all memory is its
 * own. */
struct pooled {
    struct pool pool;
    struct pool_tiles tiles;
    struct pool_sequence *sequences;
    struct pool_run *runs;
    uint32_t *workers;
    uint64_t *loads;
    struct pool_link *links;
    void *scratch;
};

void pooled_init(struct pooled *pooled, const struct pool_shape *shape,
                 const struct windows *windows, const uint32_t *members);
void pooled_deinit(struct pooled *pooled);

#endif
