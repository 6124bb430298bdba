/* validate: what measured times cannot be, whoever wrote them. */
#include "profile/profile.h"

#include "sharding/tile_list.h"

#include <inttypes.h>
#include <stdlib.h>

static int list_ascends(const char *file, const char *path, const struct profile_list *list,
                        struct error *error) {
    for (uint32_t i = 1; i < list->count; i++) {
        if (list->values[i] <= list->values[i - 1]) {
            return error_set(error, -EINVAL,
                             "%s: %s[%" PRIu32 "]: %" PRIu64 " after %" PRIu64
                             "; list them ascending",
                             file, path, i, list->values[i], list->values[i - 1]);
        }
    }
    return 0;
}

static int lists_match(const char *file, const char *path, const struct profile_list *list,
                       const struct profile_list *axis, struct error *error) {
    return list->count == axis->count ? 0
                                      : error_set(error, -EINVAL,
                                                  "%s: %s: %" PRIu32 " values for %" PRIu32
                                                  " points; there is one for each",
                                                  file, path, list->count, axis->count);
}

/* Whether `more` work takes less time than `less`, beyond noise. */
static bool falls(unsigned __int128 less_ps, unsigned __int128 more_ps) {
    return more_ps * 1000 < less_ps * (1000 - PROFILE_NOISE_PERMILLE);
}

_Static_assert(PROFILE_MASK_PERMILLE == 200, "causal_cell says 20 %");

static unsigned __int128 cell_ps(const struct profile *profile, bool backward, uint32_t i,
                                 uint32_t j) {
    const struct profile_grid *grid = backward ? &profile->bwd : &profile->fwd;
    uint64_t tiles = profile_cell_tiles(profile, backward, grid->q.values[i], grid->kv.values[j]);
    return (unsigned __int128)tiles * grid->ps_per_tile[i][j];
}

static int cell_falls(const char *file, bool backward, uint32_t i, uint32_t j, const char *axis,
                      struct error *error) {
    return error_set(error, -EINVAL,
                     "%s: attn.%s.ps_per_tile[%" PRIu32 "][%" PRIu32
                     "]: the launch takes over %u %% less than that of the smaller %s beside it; "
                     "measure again, on a GPU that nothing else uses",
                     file, backward ? "bwd" : "fwd", i, j, PROFILE_NOISE_PERMILLE / 10, axis);
}

/* A K/V head's tiles of a fragment: more rows or keys never take less. */
static int grid_rises(const char *file, const struct profile *profile, bool backward,
                      struct error *error) {
    const struct profile_grid *grid = backward ? &profile->bwd : &profile->fwd;
    for (uint32_t i = 0; i < grid->q.count; i++) {
        for (uint32_t j = 0; j < grid->kv.count; j++) {
            unsigned __int128 ps = cell_ps(profile, backward, i, j);
            if (j > 0 && falls(cell_ps(profile, backward, i, j - 1), ps)) {
                return cell_falls(file, backward, i, j, "kv", error);
            }
            if (i > 0 && falls(cell_ps(profile, backward, i - 1, j), ps)) {
                return cell_falls(file, backward, i, j, "q", error);
            }
        }
    }
    return 0;
}

/* A curve needs two points: lengths that differ in the blocks that tiles loop over. */
static int grid_spans(const char *file, const struct profile *profile, bool backward,
                      struct error *error) {
    const struct profile_grid *grid = backward ? &profile->bwd : &profile->fwd;
    uint64_t first = profile_cell_blocks(profile, backward, grid->q.values[0], grid->kv.values[0]);
    uint64_t last = profile_cell_blocks(profile, backward, grid->q.values[grid->q.count - 1],
                                        grid->kv.values[grid->kv.count - 1]);
    return first < last ? 0
                        : error_set(error, -EINVAL,
                                    "%s: attn.%s.%s: all of it is %" PRIu64
                                    " blocks; measure several lengths",
                                    file, backward ? "bwd" : "fwd", backward ? "q" : "kv", first);
}

/* Percentiles come together, around the median, or not at all. */
static int spread_of(const char *file, const char *path, uint64_t p10, uint64_t ps, uint64_t p90,
                     struct error *error) {
    return p10 <= ps && ps <= p90
               ? 0
               : error_set(error, -EINVAL,
                           "%s: %s: 10th percentile %" PRIu64 ", median %" PRIu64
                           ", 90th percentile %" PRIu64 "; they ascend, measure again",
                           file, path, p10, ps, p90);
}

static int spread_alone(const char *file, const char *path, const char *has, const char *lacks,
                        struct error *error) {
    return error_set(error, -EINVAL, "%s: %s: %s without %s; write both percentiles, or neither",
                     file, path, has, lacks);
}

static int grid_spread(const char *file, const struct profile_grid *grid, bool backward,
                       struct error *error) {
    const char *name = backward ? "attn.bwd" : "attn.fwd";
    char path[64];
    int code = 0;
    if (grid->p10.known != grid->p90.known) {
        return spread_alone(file, name, grid->p10.known ? "p10_ps_per_tile" : "p90_ps_per_tile",
                            grid->p10.known ? "p90_ps_per_tile" : "p10_ps_per_tile", error);
    }
    for (uint32_t i = 0; code == 0 && grid->p10.known && i < grid->q.count; i++) {
        for (uint32_t j = 0; code == 0 && j < grid->kv.count; j++) {
            (void)snprintf(path, sizeof path, "%s.ps_per_tile[%" PRIu32 "][%" PRIu32 "]", name, i,
                           j);
            code = spread_of(file, path, grid->p10.ps[i][j], grid->ps_per_tile[i][j],
                             grid->p90.ps[i][j], error);
        }
    }
    return code;
}

/* The same of a list, whose path is `path`. */
static int list_spread(const char *file, const char *path, const struct profile_list *p10,
                       const struct profile_list *ps, const struct profile_list *p90,
                       struct error *error) {
    char at[96];
    int code = 0;
    if ((p10->count == 0) != (p90->count == 0)) {
        return spread_alone(file, path, p10->count > 0 ? "the 10th percentile" : "the 90th",
                            p10->count > 0 ? "the 90th" : "the 10th", error);
    }
    if (p10->count == 0) {
        return 0;
    }
    code = lists_match(file, path, p10, ps, error);
    code = code < 0 ? code : lists_match(file, path, p90, ps, error);
    for (uint32_t i = 0; code == 0 && i < ps->count; i++) {
        (void)snprintf(at, sizeof at, "%s[%" PRIu32 "]", path, i);
        code = spread_of(file, at, p10->values[i], ps->values[i], p90->values[i], error);
    }
    return code;
}

/* A causal tile walks no more than a full one, and masks: published curves have 8 % for a tile of
 * one block, 4 % for long ones. Rows without keys of their own are not measured. */
static int causal_cell(const struct profile_grid *grid, uint32_t i, uint32_t j, const char **why) {
    uint64_t ps = grid->causal.ps[i][j];
    bool there = grid->kv.values[j] >= grid->q.values[i];
    *why = ps > 0 && !there   ? "kv is less than q, which is not measured; write 0"
           : ps == 0 && there ? "0, and kv is no less than q; measure again"
           : (unsigned __int128)ps * 1000 >
                   (unsigned __int128)grid->ps_per_tile[i][j] * (1000 + PROFILE_MASK_PERMILLE)
               ? "a causal tile takes over 20 % more than a full one; measure again, on a GPU that "
                 "nothing else uses"
               : NULL;
    return *why == NULL ? 0 : -EINVAL;
}

static int grid_causal(const char *file, const struct profile_grid *grid, bool backward,
                       struct error *error) {
    const char *why;
    for (uint32_t i = 0; grid->causal.known && i < grid->q.count; i++) {
        for (uint32_t j = 0; j < grid->kv.count; j++) {
            if (causal_cell(grid, i, j, &why) < 0) {
                return error_set(error, -EINVAL,
                                 "%s: attn.%s.causal_ps_per_tile[%" PRIu32 "][%" PRIu32 "]: %s",
                                 file, backward ? "bwd" : "fwd", i, j, why);
            }
        }
    }
    return 0;
}

static int check_measured(const char *file, const struct profile_measured *measured,
                          struct error *error) {
    uint64_t min = measured->clock_min_mhz, max = measured->clock_max_mhz;
    return min <= max && (min == 0) == (max == 0)
               ? 0
               : error_set(error, -EINVAL,
                           "%s: measured.clock_min_mhz: %" PRIu64
                           " and measured.clock_max_mhz = %" PRIu64
                           "; write the lowest and the highest that were seen, or 0 for both",
                           file, min, max);
}

static int check_grid(const char *file, const struct profile *profile, bool backward,
                      struct error *error) {
    const struct profile_grid *grid = backward ? &profile->bwd : &profile->fwd;
    int code = list_ascends(file, backward ? "attn.bwd.q" : "attn.fwd.q", &grid->q, error);
    code = code < 0
               ? code
               : list_ascends(file, backward ? "attn.bwd.kv" : "attn.fwd.kv", &grid->kv, error);
    code = code < 0 ? code : grid_spans(file, profile, backward, error);
    code = code < 0 ? code : grid_rises(file, profile, backward, error);
    code = code < 0 ? code : grid_causal(file, grid, backward, error);
    return code < 0 ? code : grid_spread(file, grid, backward, error);
}

static int check_degree(const char *file, const struct profile_degree *degree,
                        struct error *error) {
    const struct {
        const char *name;
        const struct profile_list *list;
    } lists[] = {{"tokens", &degree->tokens},
                 {"fwd_ps_per_token", &degree->fwd_ps_per_token},
                 {"bwd_ps_per_token", &degree->bwd_ps_per_token}};
    char path[64];
    int code = 0;
    for (size_t i = 0; code == 0 && i < 3; i++) {
        (void)snprintf(path, sizeof path, "linear.tp.%" PRIu32 ".%s", degree->tp, lists[i].name);
        code = i == 0 ? list_ascends(file, path, lists[i].list, error)
                      : lists_match(file, path, lists[i].list, &degree->tokens, error);
    }
    (void)snprintf(path, sizeof path, "linear.tp.%" PRIu32 ".fwd_ps_per_token", degree->tp);
    code = code < 0 ? code
                    : list_spread(file, path, &degree->fwd_p10, &degree->fwd_ps_per_token,
                                  &degree->fwd_p90, error);
    (void)snprintf(path, sizeof path, "linear.tp.%" PRIu32 ".bwd_ps_per_token", degree->tp);
    return code < 0 ? code
                    : list_spread(file, path, &degree->bwd_p10, &degree->bwd_ps_per_token,
                                  &degree->bwd_p90, error);
}

static int table_rises(const char *file, const char *path, const struct profile_group *group,
                       struct error *error) {
    for (uint32_t i = 1; i < group->ps.count; i++) {
        if (falls(group->ps.values[i - 1], group->ps.values[i])) {
            return error_set(error, -EINVAL,
                             "%s: %s.ps[%" PRIu32
                             "]: over %u %% less than for fewer bytes; measure again, on links "
                             "that nothing else uses",
                             file, path, i, PROFILE_NOISE_PERMILLE / 10);
        }
    }
    return 0;
}

static int check_group(const char *file, enum profile_collective collective,
                       const struct profile_group *group, struct error *error) {
    char path[64], bytes[80], ps[80];
    (void)snprintf(path, sizeof path, "coll.%s.%" PRIu32 "x%" PRIu32,
                   profile_collective_name(collective), group->ranks, group->nodes);
    (void)snprintf(bytes, sizeof bytes, "%s.bytes", path);
    (void)snprintf(ps, sizeof ps, "%s.ps", path);
    int code = list_ascends(file, bytes, &group->bytes, error);
    code = code < 0 ? code : lists_match(file, ps, &group->ps, &group->bytes, error);
    code = code < 0 ? code : table_rises(file, path, group, error);
    return code < 0 ? code : list_spread(file, ps, &group->p10, &group->ps, &group->p90, error);
}

/* Heads form groups that fit a tile; SMs are left. */
static int check_key(const char *file, const struct profile_key *key, struct error *error) {
    if (key->q_heads % key->kv_heads != 0 || key->q_heads / key->kv_heads > TILE_ROWS) {
        return error_set(error, -EINVAL,
                         "%s: key.q_heads: %" PRIu64 " is no multiple of key.kv_heads = %" PRIu64
                         " by up to %u; write the shape that was measured",
                         file, key->q_heads, key->kv_heads, TILE_ROWS);
    }
    if (key->sm_margin >= key->sms) {
        return error_set(error, -EINVAL,
                         "%s: key.sm_margin: %" PRIu64 " leaves none of key.sms = %" PRIu64
                         "; write what was measured",
                         file, key->sm_margin, key->sms);
    }
    return 0;
}

int profile_validate(const char *file, const struct profile *profile, struct error *error) {
    int code = check_key(file, &profile->key, error);
    code = code < 0 ? code : check_measured(file, &profile->measured, error);
    code = code < 0 ? code : check_grid(file, profile, false, error);
    code = code < 0 ? code : check_grid(file, profile, true, error);
    for (uint32_t i = 0; code == 0 && i < profile->linear.degree_count; i++) {
        code = check_degree(file, &profile->linear.degrees[i], error);
    }
    for (enum profile_collective c = 0; code == 0 && c < PROFILE_COLLECTIVES; c++) {
        for (uint32_t i = 0; code == 0 && i < profile->coll[c].count; i++) {
            code = check_group(file, c, &profile->coll[c].groups[i], error);
        }
    }
    return code;
}
