/* exchange_world: the ranks of a group, each a thread, computing attention of a real plan, and the
 * same attention unsharded, by the reference. */
#ifndef BALLAST_TESTS_EXCHANGE_WORLD_H
#define BALLAST_TESTS_EXCHANGE_WORLD_H

#include "gpu_attn/ballast_exchange.h"
#include "planner/plan.h"

#include <stdbool.h>

#define EXCHANGE_SCALE 0.5

/* Attention of a chunk, as a rank's call and fragments say. */
struct exchange_chunk {
    const struct exchange_arithmetic *arithmetic;
    struct ballast_attn_shape shape;
    const struct ballast_attn_fragment *fragments;
    uint32_t count;
    const struct ballast_exchange_call *call;
    bool keys_shared;
    bool backward;
};

/* What ranks compute with. */
struct exchange_arithmetic {
    uint32_t head_dim;
    uint32_t element_bytes; /* 8: double; 2: bf16 */
    uint32_t flags;         /* of ballast_attn_call, where it is the kernels */
    unsigned char poison;   /* of bytes that did not arrive: 0xff is NaN in every type */
    double error_max;       /* relative, L2, of a rank's rows */
    int (*attend)(const struct exchange_chunk *chunk, struct ballast_attn_error *error);
};

/* The reference on doubles, 4 to a head. */
extern const struct exchange_arithmetic exchange_by_reference;

/* The ranks that share attention: of one micro-batch, or of a pool. */
struct exchange_group {
    const struct exchange_arithmetic *arithmetic;
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

/* Of a micro-batch or, if it belongs to one, its pool; heads are those of exchange_plans.h. */
void exchange_group_init(struct exchange_group *group, const struct step_plan *plan,
                         const struct micro_batch *micro_batch,
                         const struct exchange_arithmetic *arithmetic);

/* Any: rows live anywhere, work is cut anywhere, across homes and groups of heads, in parts of a
 * multiple of `chunks` heads, for any rank. By the reference. */
void exchange_group_draw(struct exchange_group *group, uint32_t chunks, uint64_t seed);

/* Two ranks and one document of 2 * runs rows, which live on them in turn and are all computed by
 * rank 1: every tensor of rank 0 travels in `runs` runs of a row. By the reference. */
void exchange_group_alternate(struct exchange_group *group, uint32_t runs);

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

/* Likewise, on a board of its own. */
const char *exchange_group_fault_on_board(const struct exchange_group *group,
                                          const struct exchange_options_of_test *options);

/* A machine's `open`, whose context is a board. */
struct ballast_exchange_transport *exchange_board_open(void *board, uint32_t rank, uint32_t ranks);

/* One rank of it, in this process: true when all is well, else the sentence is printed. */
bool exchange_rank_ends_well(const struct exchange_group *group,
                             const struct exchange_options_of_test *options,
                             const struct exchange_machine *machine, uint32_t rank);

/* Bytes of a board that takes whatever the group sends. */
size_t exchange_group_window(const struct exchange_group *group);

#endif
