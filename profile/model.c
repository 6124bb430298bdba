/* model: what planning takes from a profile: a curve a direction, a price a row, a rate a link. */
#include "profile/profile.h"

#include "sharding/curve.h"
#include "sharding/tile_list.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define CELLS_MAX (PROFILE_POINTS_MAX * PROFILE_POINTS_MAX)

_Static_assert(PROFILE_POINTS_MAX <= TILE_POINTS_MAX, "every point of an axis may bend the curve");

uint64_t profile_tile_tokens(const struct profile_key *key) {
    return tile_tokens(TILE_ROWS, (uint32_t)(key->q_heads / key->kv_heads));
}

static uint64_t blocks_up(uint64_t length, uint64_t block) {
    return (length + block - 1) / block;
}

uint64_t profile_cell_blocks(const struct profile *profile, bool backward, uint64_t q,
                             uint64_t kv) {
    return backward ? blocks_up(q, profile_tile_tokens(&profile->key)) : blocks_up(kv, TILE_KEYS);
}

uint64_t profile_cell_tiles(const struct profile *profile, bool backward, uint64_t q, uint64_t kv) {
    return profile_cell_blocks(profile, !backward, q, kv);
}

static int ps_before(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The lower median of the cells whose tiles loop over `blocks`; there are some. */
static uint64_t median_ps(const struct profile *profile, bool backward, uint64_t blocks) {
    const struct profile_grid *grid = backward ? &profile->bwd : &profile->fwd;
    uint64_t ps[CELLS_MAX];
    size_t count = 0;
    for (uint32_t i = 0; i < grid->q.count; i++) {
        for (uint32_t j = 0; j < grid->kv.count; j++) {
            if (profile_cell_blocks(profile, backward, grid->q.values[i], grid->kv.values[j]) ==
                blocks) {
                ps[count++] = grid->ps_per_tile[i][j];
            }
        }
    }
    assert(count > 0);
    qsort(ps, count, sizeof *ps, ps_before);
    return ps[(count - 1) / 2];
}

void profile_direction(const struct profile *profile, bool backward, struct tile_direction *out) {
    const struct profile_grid *grid = backward ? &profile->bwd : &profile->fwd;
    const struct profile_list *axis = backward ? &grid->q : &grid->kv;
    struct tile_point points[TILE_POINTS_MAX];
    uint32_t count = 0;
    *out = (struct tile_direction){.launch_ps = grid->launch_ps};
    for (uint32_t i = 0; i < axis->count; i++) {
        uint64_t length = axis->values[i];
        uint64_t blocks = profile_cell_blocks(profile, backward, length, length);
        if (count == 0 || points[count - 1].blocks < blocks) {
            points[count++] = (struct tile_point){blocks, median_ps(profile, backward, blocks)};
        }
    }
    tile_curve(points, count, out);
}

/* At most rows, where launches no longer count: W_l is linear. */
static void model_degrees(const struct profile *profile, struct model_profile *out) {
    const struct profile_linear *linear = &profile->linear;
    out->hidden = (uint32_t)linear->hidden;
    out->ffn = (uint32_t)linear->ffn;
    out->q_heads = (uint32_t)profile->key.q_heads;
    out->kv_heads = (uint32_t)profile->key.kv_heads;
    out->degree_count = linear->degree_count;
    for (uint32_t i = 0; i < linear->degree_count; i++) {
        const struct profile_degree *degree = &linear->degrees[i];
        uint32_t last = degree->tokens.count - 1;
        out->degrees[i] = (struct model_degree){
            .tp = degree->tp,
            .row_ps = degree->fwd_ps_per_token.values[last] + degree->bwd_ps_per_token.values[last],
        };
    }
}

/* A needed-only exchange is an all-to-all of unequal counts. */
static void model_links(const struct profile *profile, struct model_profile *out) {
    const struct profile_collective_groups *groups = &profile->coll[PROFILE_ALL_TO_ALL];
    for (uint32_t i = 0; i < groups->count; i++) {
        const struct profile_group *group = &groups->groups[i];
        bool fewest_nodes = out->link_count == 0 ||
                            out->links[out->link_count - 1].ranks < group->ranks;
        if (fewest_nodes) {
            out->links[out->link_count++] = (struct model_link){
                .ranks = group->ranks,
                .alpha_ps = group->alpha_ps,
                .bytes_per_us = group->bytes_per_us,
            };
        }
    }
}

int profile_model(const struct profile *profile, struct model_profile *out) {
    struct model_profile made = {
        .used = true,
        .head_dim = (uint32_t)profile->key.head_dim,
        .group = (uint32_t)(profile->key.q_heads / profile->key.kv_heads),
        .sms = (uint32_t)profile->key.sms,
    };
    int code = profile_name(profile, made.name);
    code = code < 0 ? code : profile_hash(profile, made.hash);
    if (code < 0) {
        return code;
    }
    profile_direction(profile, false, &made.forward);
    profile_direction(profile, true, &made.backward);
    model_degrees(profile, &made);
    model_links(profile, &made);
    *out = made;
    return 0;
}
