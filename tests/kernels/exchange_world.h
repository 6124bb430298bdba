/* exchange_world: the ranks of a group, each a thread, computing attention of a real plan with the
 * reference, and the same attention unsharded. */
#ifndef BALLAST_TESTS_EXCHANGE_WORLD_H
#define BALLAST_TESTS_EXCHANGE_WORLD_H

#include "gpu_attn/ballast_exchange.h"
#include "planner/plan.h"

#include <stdbool.h>

#define EXCHANGE_DIM 4u /* of a head; elements are double */

/* The ranks that share attention: of one micro-batch, or of a pool. */
struct exchange_group {
    uint32_t ranks;
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t rows; /* of all documents */
    uint32_t documents;
    uint32_t *begins;                         /* of documents in rows, and rows */
    uint32_t firsts[BALLAST_BOARD_RANKS_MAX]; /* documents of each sequence */
    uint32_t own_rows[BALLAST_BOARD_RANKS_MAX];
    struct ballast_exchange_home *homes;
    uint32_t home_count;
    struct ballast_exchange_work *works;
    uint32_t work_count;
    uint8_t digest[BALLAST_EXCHANGE_DIGEST_BYTES];
    double *q, *k, *v, *o, *lse, *d_o, *dq, *dk, *dv; /* unsharded */
};

/* Of a micro-batch or, if it belongs to one, its pool. */
void exchange_group_init(struct exchange_group *group, const struct step_plan *plan,
                         const struct micro_batch *micro_batch, uint32_t q_heads,
                         uint32_t kv_heads);

/* Any: rows live anywhere, work is cut anywhere, across homes and groups of heads, in parts of a
 * multiple of `chunks` heads, for any rank. */
void exchange_group_draw(struct exchange_group *group, uint32_t chunks, uint64_t seed);

void exchange_group_deinit(struct exchange_group *group);

struct exchange_options_of_test {
    enum ballast_exchange_keys keys;
    uint32_t chunks;
    bool kept;
};

struct ballast_exchange_options exchange_group_options(const struct exchange_group *group,
                                                       uint32_t rank, uint32_t chunks,
                                                       enum ballast_exchange_keys keys);

/* What a rank's memory and transport are: on a board, or as another test makes them. */
struct exchange_machine {
    struct ballast_exchange_transport *(*open)(void *context, uint32_t rank, uint32_t ranks);
    int (*settle)(void *stream); /* NULL: nothing to wait for */
    void *(*stream)(void);       /* NULL: no streams */
    void *context;
};

/* Runs every rank forward and backward. NULL when all ends as unsharded, else what is wrong. */
const char *exchange_group_fault(const struct exchange_group *group,
                                 const struct exchange_options_of_test *options,
                                 const struct exchange_machine *machine);

/* One rank of it, in this process: true when all is well, else the sentence is printed. */
bool exchange_rank_ends_well(const struct exchange_group *group,
                             const struct exchange_options_of_test *options,
                             const struct exchange_machine *machine, uint32_t rank);

/* Bytes of a board that takes whatever the group sends. */
size_t exchange_group_window(const struct exchange_group *group);

#endif
