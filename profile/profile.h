/* profile: a latency profile, measured times of attention, of the linear part and of collectives,
 * as a file that daemons, the command line and the measuring program read and write alike.
 *
 * One JSON object, canonical text: keys sorted, integers, two profiles diff line by line
 * (docs/profile.md is the format). Its name is PROFILE.json, the first 16 hex digits of the SHA-256
 * over its key object: of what was measured, so that a profile of other kernels or of another GPU
 * has another name. What planning takes from it has a hash of its own, over everything but the
 * provenance: that one stands in plans and states.
 *
 * Times are whole picoseconds. A cell of a grid is the time that one SM takes for one tile in a
 * launch of fragments of q rows, each of which sees all of kv keys (full, not causal), forward: the
 * tile is 128 query rows x heads (128 / G tokens) and loops over ceil(kv / 128) key blocks;
 * backward: it is 128 keys and loops over the ceil(q / (128 / G)) query tiles. */
#ifndef BALLAST_PROFILE_PROFILE_H
#define BALLAST_PROFILE_PROFILE_H

#include "planner/error.h"
#include "planner/model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define PROFILE_FORMAT         1u
#define PROFILE_ABI            1u /* BALLAST_ATTN_ABI: of the fragments that kernels take */
#define PROFILE_CC             "9.0"
#define PROFILE_DTYPE          "bf16"
#define PROFILE_BYTES_MAX      (1u << 20)
#define PROFILE_DEPTH_MAX      8u
#define PROFILE_TEXT_BYTES     128u
#define PROFILE_NAME_BYTES     17u /* 16 hex digits and NUL */
#define PROFILE_POINTS_MAX     24u /* of an axis, or of a table */
#define PROFILE_DEGREES_MAX    MODEL_DEGREES_MAX
#define PROFILE_GROUPS_MAX     MODEL_LINKS_MAX /* of one collective */
#define PROFILE_NOISE_PERMILLE 50u  /* a launch may take so much less than a smaller one */
#define PROFILE_MASK_PERMILLE  200u /* a causal tile may take so much more than a full one */
#define PROFILE_PS_MAX         UINT64_C(1000000000000000)

/* What was measured: the key object. */
struct profile_key {
    uint64_t abi;
    char cc[16];
    uint64_t clock_cap_mhz;
    char cuda[32];
    bool deterministic;
    char driver[32];
    char dtype[16];
    char gpu[PROFILE_TEXT_BYTES]; /* as the driver names it */
    uint64_t head_dim;
    char kernel_build[PROFILE_TEXT_BYTES]; /* ballast_attn_build() */
    uint64_t kv_heads;
    char nccl[32];
    uint64_t power_cap_w;
    uint64_t q_heads; /* with kv_heads only their quotient G matters */
    uint64_t sm_margin;
    uint64_t sms;
    char topology[PROFILE_TEXT_BYTES];
};

struct profile_list {
    uint32_t count;
    uint64_t values[PROFILE_POINTS_MAX];
};

/* Beside a grid's cells, [q][kv]; a file may lack them. */
struct profile_rows {
    bool known;
    uint64_t ps[PROFILE_POINTS_MAX][PROFILE_POINTS_MAX];
};

struct profile_grid {
    uint64_t launch_ps;
    struct profile_list q; /* ascending, as kv */
    struct profile_list kv;
    uint64_t ps_per_tile[PROFILE_POINTS_MAX][PROFILE_POINTS_MAX]; /* [q][kv], medians */
    struct profile_rows causal; /* 0 where kv < q: the rows are the last q of kv keys, each sees
                                   those up to its own; a tile's mean */
    struct profile_rows p10;    /* percentiles of the same */
    struct profile_rows p90;
};

/* The linear part of a layer on one tensor-parallel rank, by the rows of a micro-batch. */
struct profile_degree {
    uint32_t tp;
    struct profile_list tokens; /* ascending */
    struct profile_list fwd_ps_per_token;
    struct profile_list bwd_ps_per_token;
    struct profile_list fwd_p10, fwd_p90; /* percentiles of the same; empty: not known */
    struct profile_list bwd_p10, bwd_p90;
};

struct profile_linear {
    uint64_t hidden; /* 0: not measured; q_heads and kv_heads are the key's */
    uint64_t ffn;
    uint32_t degree_count;
    struct profile_degree degrees[PROFILE_DEGREES_MAX]; /* by tp */
};

/* One collective on one group, with the line that was fitted through its table. */
struct profile_group {
    uint32_t ranks;
    uint32_t nodes;
    uint64_t alpha_ps;
    uint64_t bytes_per_us;     /* received by a rank from the others */
    struct profile_list bytes; /* likewise, ascending */
    struct profile_list ps;
    struct profile_list p10, p90; /* percentiles of the same; empty: not known */
};

enum profile_collective {
    PROFILE_ALL_GATHER = 0,
    PROFILE_ALL_TO_ALL = 1,
    PROFILE_REDUCE_SCATTER = 2,
    PROFILE_COLLECTIVES = 3,
};

struct profile_collective_groups {
    uint32_t count;
    struct profile_group groups[PROFILE_GROUPS_MAX]; /* by (ranks, nodes) */
};

struct profile_provenance {
    char date[PROFILE_TEXT_BYTES];
    char host[PROFILE_TEXT_BYTES];
    char tool[PROFILE_TEXT_BYTES];
};

/* How it was measured; a file may lack it. */
struct profile_measured {
    uint64_t clock_max_mhz; /* of the SMs, as seen under load; 0: not known, as the least */
    uint64_t clock_min_mhz;
    uint64_t runs; /* of every launch; 0: not known */
};

/* Immutable once read; about 60 KB. */
struct profile {
    struct profile_key key;
    struct profile_grid fwd;
    struct profile_grid bwd;
    struct profile_linear linear;
    struct profile_collective_groups coll[PROFILE_COLLECTIVES];
    struct profile_measured measured;
    struct profile_provenance provenance;
};

/* Reads a profile's text; `file` stands in front of refusals. The caller frees *out with free.
 * -EINVAL, naming file, the path of what is wrong ("attn.fwd.ps_per_tile[3][2]"), why and the
 * remedy: what is no JSON, too large or too deep, keys that are twice, missing or unknown, numbers
 * that are not whole, zero, below it or too large, axes that do not ascend, times that fall by more
 * than the noise where there is more to compute. -ENOMEM. */
int profile_parse(const char *file, const char *text, size_t bytes, struct profile **out,
                  struct error *error);

/* The same from a file, whose name must be that of its key. -ENOENT, -EACCES, ... */
int profile_load(const char *path, struct profile **out, struct error *error);

/* What profile_parse asks beyond the shape of the text; a writer checks by it too. */
int profile_validate(const char *file, const struct profile *profile, struct error *error);

/* Writes the canonical text, with provenance: what it is parsed from is equal to it. */
void profile_write(const struct profile *profile, FILE *out);

/* The name that a profile's file has, without ".json". -ENOMEM. */
int profile_name(const struct profile *profile, char out[PROFILE_NAME_BYTES]);

/* SHA-256 over the canonical text without provenance, its first 16 bytes. -ENOMEM. */
int profile_hash(const struct profile *profile, uint8_t out[MODEL_PROFILE_HASH_BYTES]);

/* "all_gather". Static memory. */
const char *profile_collective_name(enum profile_collective collective);

/* What a profile is asked to be of. "" is not asked for. */
struct profile_use {
    const char *gpu;
    const char *kernel_build;
    bool deterministic;
    uint32_t head_dim;
    uint32_t group; /* query heads a K/V head, of a tensor-parallel rank */
    uint32_t sm_margin;
    const char *driver; /* differences from here on are warnings */
};

/* Refuses a stale key, -EINVAL: file, the key's path, both values, the remedy. In `warning`, "" for
 * none, what differs and is let pass. */
int profile_check(const char *file, const struct profile *profile, const struct profile_use *use,
                  char *warning, size_t bytes, struct error *error);

/* Compares two keys: 0 when a plan may be priced by either, 1 when only what is let pass differs, 2
 * when the first would be refused for the second. `line`, when not NULL, gets the path of every
 * field that differs, both values as JSON, and whether it must be equal. */
int profile_keys_compare(const struct profile_key *a, const struct profile_key *b,
                         void (*line)(const char *path, const char *a, const char *b, bool must,
                                      void *context),
                         void *context);

/* What planning takes from it. -ENOMEM. */
int profile_model(const struct profile *profile, struct model_profile *out);

/* Rows of tokens in a query tile; the blocks that a cell's tile loops over; how many tiles of a K/V
 * head its launch has a fragment. */
uint64_t profile_tile_tokens(const struct profile_key *key);
uint64_t profile_cell_blocks(const struct profile *profile, bool backward, uint64_t q, uint64_t kv);
uint64_t profile_cell_tiles(const struct profile *profile, bool backward, uint64_t q, uint64_t kv);

/* The curve of a direction: by blocks, the lower median of the cells that loop over so many. */
void profile_direction(const struct profile *profile, bool backward, struct tile_direction *out);

/* How near a line t0 + blocks * tb comes, and the curve. */
struct profile_fit {
    uint64_t launch_ps;
    uint64_t tile_ps;   /* t0 */
    uint64_t block_ps;  /* tb */
    uint64_t worst_ppm; /* largest |line - cell| / cell over all cells, and where */
    uint64_t worst_q, worst_kv;
    uint64_t curve_worst_ppm; /* the same of the curve */
};

/* The widest (90th - 10th percentile) / median of a direction's cells. 0: not known. */
uint64_t profile_spread_ppm(const struct profile *profile, bool backward);

/* How near the curve's mean of the tiles comes to the causal cells. */
struct profile_causal {
    uint64_t cells; /* 0: none was measured */
    uint64_t mean_ppm;
    uint64_t worst_ppm; /* largest |model - cell| / cell, and where */
    uint64_t worst_q, worst_kv;
};

void profile_causal(const struct profile *profile, bool backward, struct profile_causal *out);

/* The line by least squares of relative errors; t0 is not below 0. */
void profile_fit(const struct profile *profile, bool backward, struct profile_fit *out);

/* How far at most alpha + bytes / rate is from a table of bytes and ps. */
uint64_t profile_link_worst_ppm(const struct profile_list *bytes, const struct profile_list *ps,
                                uint64_t alpha_ps, uint64_t bytes_per_us);

/* Likewise the line through such a table, and its worst error. */
void profile_fit_link(const struct profile_list *bytes, const struct profile_list *ps,
                      uint64_t *alpha_ps, uint64_t *bytes_per_us, uint64_t *worst_ppm);

#endif
