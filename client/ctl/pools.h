/* pools: what pooled attention would give, candidate by candidate (P, H, B), without a daemon.
 *
 * Windows are filled as pool:P fills them, grouped, cut and placed by the same routines as the
 * planner's, so that bytes and balance are a plan's; only the yardsticks are the simulator's alone.
 * Figures are means over all steps or pools counted; bytes are of one layer's forward pass. */
#ifndef BALLAST_CTL_POOLS_H
#define BALLAST_CTL_POOLS_H

#include "client/ctl/scenario.h"
#include "sharding/pool_plan.h"

#include <argp.h>

#define POOLS_LIST_MAX       16u
#define POOLS_CANDIDATES_MAX 1024u

/* Two of the four are the paper's yardsticks. */
enum pools_placement { POOLS_VRSP_SWAP, POOLS_VRSP, POOLS_ZIGZAG_SWAP, POOLS_ZIGZAG };
enum pools_tiles { POOLS_BEST, POOLS_HOME_FIRST, POOLS_COARSE_FIRST, POOLS_ALGORITHM_2 };

struct pools_list {
    uint32_t values[POOLS_LIST_MAX];
    size_t count; /* 0: the config's, or all that --search tries */
};

struct pools_request {
    bool wanted;    /* instead of policies */
    bool described; /* by options that mean nothing otherwise */
    bool search;
    bool snake;
    bool chain;
    struct pools_list sizes;
    struct pools_list head_shards;
    struct pools_list blocks;
    uint32_t chunks;    /* M, of the exchange's pipeline */
    uint64_t link_mbps; /* MB/s each way; 0: not known, and no times are given */
    uint32_t q_heads;   /* per tensor-parallel rank; 0: the config's, as the next two */
    uint32_t kv_heads;
    uint32_t head_dim;
    enum pools_placement placement;
    enum pools_tiles tiles;
};

struct pools_row {
    uint32_t p;
    uint32_t h;
    uint32_t b;
    uint64_t inter_before_ppm; /* R - 1 of pools, as the sequences come */
    uint64_t inter_after_ppm;
    uint64_t bound_ppm; /* no grouping is below it */
    uint64_t intra_ppm; /* of a pool's workers */
    uint64_t intra_max_ppm;
    uint64_t straggler_ppm; /* pools of a gradient-accumulation index, mean over indexes */
    uint64_t q_bytes;       /* received by a worker, mean, as the next three */
    uint64_t kv_bytes;
    uint64_t o_bytes;
    uint64_t bytes_mean;
    uint64_t bytes_in_max;
    uint64_t bytes_out_max;
    uint64_t moved_ppm;  /* tiles away from home */
    uint64_t tiles;      /* of a pool */
    uint64_t tile_ppm;   /* the largest tile over a worker's mean load */
    uint32_t kv_pieces;  /* in which K/V travels, as H leaves it */
    uint64_t compute_ns; /* the slowest worker's attention, one layer, forward; as the next */
    uint64_t exposed_ns; /* what the exchange adds to it in M chunks */
    uint64_t plan_ns;    /* of a step, measured */
    bool proposed;
};

/* pools_options.c: an option of the command line, false for others; and what help lists. */
enum {
    OPTION_POOL = 900,
    OPTION_HEAD_SHARDS,
    OPTION_BLOCK,
    OPTION_HEADS,
    OPTION_SEARCH,
    OPTION_SNAKE,
    OPTION_CHAIN,
    OPTION_PLACEMENT,
    OPTION_TILES,
    OPTION_EXCHANGE_CHUNKS,
    OPTION_LINK,
};

bool pools_option_parse(struct pools_request *options, int key, char *arg,
                        struct argp_state *state);

/* At the end of the command line: a usage error for what goes with pools alone, without them. */
void pools_options_check(const struct pools_request *options, struct argp_state *state);

#define POOLS_ARGP_OPTIONS                                                                         \
    {NULL, 0, NULL, 0, "Pooled attention, instead of policies:", 6},                               \
        {"pool",                                                                                   \
         OPTION_POOL,                                                                              \
         "P[,P...]",                                                                               \
         0,                                                                                        \
         "Replicas of a pool: a row for each, with every H and B",                                 \
         0},                                                                                       \
        {"head-shards",                                                                            \
         OPTION_HEAD_SHARDS,                                                                       \
         "H[,H...]",                                                                               \
         0,                                                                                        \
         "Pieces of the heads (pools.head_shards)",                                                \
         0},                                                                                       \
        {"block", OPTION_BLOCK, "B[,B...]", 0, "Rows of a tile (pools.block_tokens)", 0},          \
        {"heads",                                                                                  \
         OPTION_HEADS,                                                                             \
         "Q,KV,DIM",                                                                               \
         0,                                                                                        \
         "Heads of a tensor-parallel rank, instead of [model]'s",                                  \
         0},                                                                                       \
        {"search", OPTION_SEARCH, NULL, 0, "Try sizes, and say which (P, H, B) to take", 0},       \
        {"placement",                                                                              \
         OPTION_PLACEMENT,                                                                         \
         "HOW",                                                                                    \
         0,                                                                                        \
         "Sequences to pools: vrsp-swap (the default), vrsp, zigzag, zigzag-swap",                 \
         0},                                                                                       \
        {"tiles",                                                                                  \
         OPTION_TILES,                                                                             \
         "HOW",                                                                                    \
         0,                                                                                        \
         "Tiles to workers: best (the default), home-first, coarse-first, algorithm-2 (as "        \
         "printed)",                                                                               \
         0},                                                                                       \
        {"exchange-chunks",                                                                        \
         OPTION_EXCHANGE_CHUNKS,                                                                   \
         "M",                                                                                      \
         0,                                                                                        \
         "Chunks that hide the exchange behind attention (4), as far as the heads go",             \
         0},                                                                                       \
        {"link",                                                                                   \
         OPTION_LINK,                                                                              \
         "MB/S",                                                                                   \
         0,                                                                                        \
         "What a worker sends and receives at a time; says what stays exposed",                    \
         0},                                                                                       \
        {"snake", OPTION_SNAKE, NULL, 0, "Emit pools in a snake", 0}, {                            \
        "chain", OPTION_CHAIN, NULL, 0, "Pass K/V on from worker to worker", 0                     \
    }

/* pools.c: rows of every candidate over `steps` global batches of the trial's documents; `rows` has
 * room for POOLS_CANDIDATES_MAX. */
int pools_measure(const struct pools_request *options, const struct trial *trial, uint64_t steps,
                  struct pools_row *rows, size_t *count, struct error *error);

/* pools_print.c: a table, or {"rows": [...]}. */
void pools_print(const struct scenario *scenario, const struct pools_row *rows, size_t count);
void pools_print_json(const struct pools_row *rows, size_t count);

#endif
