#include "profile_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LAYER_PASSES 3u

/* LENGTHS from `first` on, doubling, up to `last`. */
static void lengths_double(struct profile_list *list, uint64_t first, uint64_t last) {
    for (uint64_t length = first; length <= last; length *= 2) {
        assert_true(list->count < PROFILE_POINTS_MAX);
        list->values[list->count++] = length;
    }
}

static void grid_fill(struct profile *profile, bool backward,
                      const struct tile_direction *direction) {
    struct profile_grid *grid = backward ? &profile->bwd : &profile->fwd;
    grid->launch_ps = direction->launch_ps;
    grid->q.values[grid->q.count++] = 1;
    lengths_double(&grid->q, 8, 8192);
    lengths_double(&grid->kv, 128, 131072);
    for (uint32_t i = 0; i < grid->q.count; i++) {
        for (uint32_t j = 0; j < grid->kv.count; j++) {
            uint64_t blocks = profile_cell_blocks(profile, backward, grid->q.values[i],
                                                  grid->kv.values[j]);
            grid->ps_per_tile[i][j] = (uint64_t)tile_time_ps(direction, blocks);
        }
    }
}

/* As planner/model.c counts a layer of this shape at 600 TFLOP/s and 2.8 TB/s. */
static uint64_t row_ps(const struct profile *profile, uint32_t tp) {
    uint64_t hidden = profile->linear.hidden;
    uint64_t heads = profile->key.q_heads + profile->key.kv_heads;
    uint64_t flops = 2 * hidden * (2 * profile->key.head_dim * heads + 3 * profile->linear.ffn) *
                     LAYER_PASSES;
    uint64_t bytes = hidden * 2 * 22 * LAYER_PASSES;
    return flops * 1000 / (UINT64_C(600000) * tp) + bytes * 1000000 / (UINT64_C(2800000) * tp);
}

static void linear_fill(struct profile *profile) {
    profile->linear = (struct profile_linear){.hidden = 4096, .ffn = 14336};
    for (uint32_t tp = 1; tp <= 8; tp *= 2) {
        struct profile_degree *degree = &profile->linear.degrees[profile->linear.degree_count++];
        degree->tp = tp;
        lengths_double(&degree->tokens, 1024, 16384);
        for (uint32_t i = 0; i < degree->tokens.count; i++) {
            degree->fwd_ps_per_token.values[i] = row_ps(profile, tp) / LAYER_PASSES;
            degree->bwd_ps_per_token.values[i] = row_ps(profile, tp) -
                                                 row_ps(profile, tp) / LAYER_PASSES;
        }
        degree->fwd_ps_per_token.count = degree->tokens.count;
        degree->bwd_ps_per_token.count = degree->tokens.count;
    }
}

static void group_fill(struct profile_group *group, uint32_t ranks) {
    *group = (struct profile_group){
        .ranks = ranks, .nodes = 1, .alpha_ps = 15000000, .bytes_per_us = 330000};
    lengths_double(&group->bytes, 1 << 16, 1 << 30);
    for (uint32_t i = 0; i < group->bytes.count; i++) {
        group->ps.values[i] = group->alpha_ps + group->bytes.values[i] * 1000000 / 330000;
    }
    group->ps.count = group->bytes.count;
}

struct profile *world_profile(void) {
    struct profile *profile = calloc(1, sizeof *profile);
    struct tile_model model;
    assert_non_null(profile);
    assert_int_equal(tile_model_analytic(128, 32, 8, 8, &model), 0);
    profile->key = (struct profile_key){
        .abi = PROFILE_ABI,
        .cc = PROFILE_CC,
        .dtype = PROFILE_DTYPE,
        .gpu = "NVIDIA H100 80GB HBM3",
        .head_dim = 128,
        .kernel_build = "modelled",
        .kv_heads = 8,
        .power_cap_w = 700,
        .q_heads = 32,
        .sm_margin = model.sm_margin,
        .sms = model.sms,
        .topology = "nodes of 8 GPUs",
    };
    profile->provenance = (struct profile_provenance){
        .date = "2026-11-29",
        .host = "none",
        .tool = "modelled, not measured: published curves of FlashAttention-3 on an H100",
    };
    grid_fill(profile, false, &model.forward);
    grid_fill(profile, true, &model.backward);
    linear_fill(profile);
    for (enum profile_collective c = 0; c < PROFILE_COLLECTIVES; c++) {
        for (uint32_t ranks = 2; ranks <= 8; ranks *= 2) {
            group_fill(&profile->coll[c].groups[profile->coll[c].count++], ranks);
        }
    }
    return profile;
}

static void list_spread(const struct profile_list *ps, struct profile_list *p10,
                        struct profile_list *p90) {
    *p10 = *ps;
    *p90 = *ps;
    for (uint32_t i = 0; i < ps->count; i++) {
        p10->values[i] -= ps->values[i] / 100;
        p90->values[i] += ps->values[i] / 100;
    }
}

static uint64_t tiles_of(uint64_t length, uint64_t tile) {
    return (length + tile - 1) / tile;
}

/* A K/V head's tiles of the last q of kv keys: forward one of rows, backward one of keys. */
static uint64_t causal_blocks(uint64_t tokens, bool backward, uint64_t q, uint64_t kv,
                              uint64_t tile) {
    uint64_t rows = (tile + 1) * tokens < q ? (tile + 1) * tokens : q;
    uint64_t first_key = tile * 128;
    uint64_t first_row = first_key > kv - q ? first_key - (kv - q) : 0;
    return backward ? tiles_of(q, tokens) - first_row / tokens : tiles_of(kv - q + rows, 128);
}

static uint64_t causal_mean_ps(const struct profile *profile, bool backward, uint64_t q,
                               uint64_t kv) {
    uint64_t tokens = profile_tile_tokens(&profile->key);
    uint64_t tiles = backward ? tiles_of(kv, 128) : tiles_of(q, tokens);
    struct tile_direction curve;
    uint64_t sum_ps = 0;
    profile_direction(profile, backward, &curve);
    for (uint64_t tile = 0; tile < tiles; tile++) {
        sum_ps += (uint64_t)tile_time_ps(&curve, causal_blocks(tokens, backward, q, kv, tile));
    }
    return sum_ps / tiles;
}

static void grid_causal(struct profile *profile, bool backward) {
    struct profile_grid *grid = backward ? &profile->bwd : &profile->fwd;
    grid->causal.known = true;
    for (uint32_t i = 0; i < grid->q.count; i++) {
        for (uint32_t j = 0; j < grid->kv.count; j++) {
            uint64_t q = grid->q.values[i], kv = grid->kv.values[j];
            grid->causal.ps[i][j] = kv < q ? 0 : causal_mean_ps(profile, backward, q, kv);
        }
    }
}

static void grid_spread(struct profile_grid *grid) {
    grid->p10.known = true;
    grid->p90.known = true;
    for (uint32_t i = 0; i < grid->q.count; i++) {
        for (uint32_t j = 0; j < grid->kv.count; j++) {
            uint64_t ps = grid->ps_per_tile[i][j];
            grid->p10.ps[i][j] = ps - ps / 100;
            grid->p90.ps[i][j] = ps + ps / 100;
        }
    }
}

void world_profile_detail(struct profile *profile) {
    profile->measured = (struct profile_measured){
        .clock_max_mhz = 1980, .clock_min_mhz = 1755, .runs = 9};
    grid_spread(&profile->fwd);
    grid_spread(&profile->bwd);
    grid_causal(profile, false);
    grid_causal(profile, true);
    for (uint32_t i = 0; i < profile->linear.degree_count; i++) {
        struct profile_degree *degree = &profile->linear.degrees[i];
        list_spread(&degree->fwd_ps_per_token, &degree->fwd_p10, &degree->fwd_p90);
        list_spread(&degree->bwd_ps_per_token, &degree->bwd_p10, &degree->bwd_p90);
    }
    for (enum profile_collective c = 0; c < PROFILE_COLLECTIVES; c++) {
        for (uint32_t i = 0; i < profile->coll[c].count; i++) {
            struct profile_group *group = &profile->coll[c].groups[i];
            list_spread(&group->ps, &group->p10, &group->p90);
        }
    }
}

char *world_profile_text(const struct profile *profile) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    profile_write(profile, out);
    assert_int_equal(fclose(out), 0);
    return text;
}

char *world_replace(char *text, const char *from, const char *to) {
    char *at = strstr(text, from);
    if (at == NULL) {
        fail_msg("the text has no '%s'", from);
    }
    char *made = malloc(strlen(text) + strlen(to) + 1);
    assert_non_null(made);
    (void)sprintf(made, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    free(text);
    return made;
}

const char *world_profile_write(const char *folder, const struct profile *profile) {
    static char path[256];
    char name[PROFILE_NAME_BYTES];
    assert_int_equal(profile_name(profile, name), 0);
    (void)snprintf(path, sizeof path, "%s/%s.json", folder, name);
    FILE *out = fopen(path, "we");
    assert_non_null(out);
    profile_write(profile, out);
    assert_int_equal(fclose(out), 0);
    return path;
}
