/* planner_world: random streams and options for the planner's property tests, from one seed. */
#ifndef BALLAST_TESTS_PLANNER_WORLD_H
#define BALLAST_TESTS_PLANNER_WORLD_H

#include "planner/planner.h"
#include "fake_source.h"

#define WORLD_DATASETS_MAX  3u
#define WORLD_DOCUMENTS_MAX 48u
#define WORLD_NO_LIMIT      1000u /* parts */

struct world {
    uint64_t seed;
    uint32_t lengths[WORLD_DATASETS_MAX][WORLD_DOCUMENTS_MAX];
    struct fake_dataset datasets[WORLD_DATASETS_MAX];
    struct fake_source source;
    struct plan_options options; /* resolved */
};

/* Any of plain, wlb:none and wlb:bands, mesh, limits, lengths (empty, overlong, all equal, exactly
 * the limit), epochs. */
void world_make(struct world *world, uint64_t seed);

/* Likewise with wlb:level and any parameters, and with fixed:1 to fixed:8. */
void world_make_level(struct world *world, uint64_t seed);
void world_make_fixed(struct world *world, uint64_t seed);

/* Likewise with pool:P, its windows filled over 0 to 3 steps, and with wlb:...+pool:P. */
void world_make_pool(struct world *world, uint64_t seed);

/* Options of a small, valid job: wlb:none, one micro-batch of 64 tokens, no limit in sight. */
struct plan_options world_options(void);

/* Prints the seed of a world that failed, then fails the test. */
void world_fail(const struct world *world, const char *what, const char *file, int line)
    __attribute__((noreturn));

#define WORLD_CHECK(world, holds)                                                                  \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            world_fail(world, #holds, __FILE__, __LINE__);                                         \
        }                                                                                          \
    } while (0)

#endif
