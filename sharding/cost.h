/* cost: the tile model of attention time, the only home of the latency model.
 *
 *     T = launch + max(longest tile, (sum over tiles of t0 + blocks * tb) / (SMs - margin))
 *
 * A tile is what one thread block computes: 128 query rows x one KV head, the G = q_heads/kv_heads
 * query heads of the group packed into its rows (floor(128/G) tokens a tile, G <= 128). blocks
 * counts its 128-key blocks that are not fully masked. Backward tiles own 128 keys of one KV head
 * and loop over the query tiles at or below the diagonal: those are its blocks. With a profile
 * t0 + blocks * tb bends (struct tile_direction); nothing else changes.
 * Integer picoseconds, rounded up; equal tiles are counted, not listed: O(fragments) per rank.
 * Tiles and blocks are counted in 64 bits, their times in 128. Results beyond 64 bits become
 * UINT64_MAX: 2^26 rows against each other stay below it up to 256 query heads on 64 SMs, whatever
 * the group. */
#ifndef BALLAST_SHARDING_COST_H
#define BALLAST_SHARDING_COST_H

#include "sharding/fragment.h"

#define TILE_BENDS_MAX 24u

/* Behind its first `blocks` blocks a tile takes block_ps for every further one. */
struct tile_bend {
    uint64_t blocks;
    uint64_t block_ps;
};

/* What a tile takes for its blocks: a line, or with bends a rising piecewise linear curve, as a
 * latency profile measures it (curve.h). */
struct tile_direction {
    uint64_t launch_ps; /* per call */
    uint64_t tile_ps;   /* t0 */
    uint64_t block_ps;  /* tb, up to the first bend */
    uint32_t bend_count;
    struct tile_bend bends[TILE_BENDS_MAX]; /* ascending; blocks > 0 */
};

struct tile_model {
    struct tile_direction forward;
    struct tile_direction backward;
    uint32_t sms;       /* streaming multiprocessors */
    uint32_t sm_margin; /* left to communication; < sms */
    uint32_t q_heads;   /* per tensor-parallel rank */
    uint32_t kv_heads;  /* per tensor-parallel rank; divides q_heads */
};

/* The tiles of one direction, one KV head, and what they compute. */
struct tile_load {
    uint64_t tiles;
    uint64_t blocks;
    uint64_t longest_blocks;
    __int128 bent_ps; /* what bends add to, or take from, tb for every block */
};

/* What a rank computes, added up. */
struct tile_loads {
    struct tile_load forward;
    struct tile_load backward;
};

/* The analytic model of an H100 for head_dim 64 or 128. q_heads and kv_heads are per
 * tensor-parallel rank. Returns -EINVAL for head dims, head counts or groups it does not cover. */
int tile_model_analytic(uint32_t head_dim, uint32_t q_heads, uint32_t kv_heads, uint32_t sm_margin,
                        struct tile_model *out);

/* What a tile of so many blocks takes, without the launch. */
unsigned __int128 tile_time_ps(const struct tile_direction *direction, uint64_t blocks);

/* Predicted attention time of one rank and one layer, forward + backward, in ps; 0 for no
 * fragments. Fragments of one document must be adjacent in the list (every layout emits them so or
 * as separate runs, which are then priced as separate K/V slices); with bends also ascending or
 * descending. Monotone: one more fragment never lowers it, unless it parts such a run. O(fragments
 * * bends). */
uint64_t tile_cost_ps(const struct tile_model *model, const struct fragment *fragments,
                      uint32_t count);

/* The forward part of tile_cost_ps alone. */
uint64_t tile_forward_ps(const struct tile_model *model, const struct fragment *fragments,
                         uint32_t count);

/* The same in steps: {0} and any number of lists, no document in two of them, then the time. */
void tile_loads_add(const struct tile_model *model, struct tile_loads *loads,
                    const struct fragment *fragments, uint32_t count);
uint64_t tile_loads_ps(const struct tile_model *model, const struct tile_loads *loads);
uint64_t tile_loads_forward_ps(const struct tile_model *model, const struct tile_loads *loads);
uint64_t tile_loads_work_ps(const struct tile_model *model, const struct tile_loads *loads);

/* The work of fragments, as tile_document_ps counts it: what they add to a full machine. */
uint64_t tile_work_ps(const struct tile_model *model, const struct fragment *fragments,
                      uint32_t count);

/* Work of a whole document in SM-picoseconds divided by the SMs in use: the time it adds to a full
 * machine, one layer, forward + backward, without launch. Monotone in length; 0 for 0. */
uint64_t tile_document_ps(const struct tile_model *model, uint32_t length);

/* What every rank pays that has any fragment: the launches. */
static inline uint64_t tile_launch_ps(const struct tile_model *model) {
    return model->forward.launch_ps + model->backward.launch_ps;
}

#endif
