/* fit: the line that comes nearest to what was measured, and how far off it is. For people and for
 * the measuring program: no plan is decided by it, so doubles serve. */
#include "profile/profile.h"

#define PPM 1000000.0

/* Sums of least squares of relative errors: every point weighs 1 / y^2. */
struct sums {
    double w, wx, wxx, wy, wxy;
};

struct line {
    uint64_t intercept;
    double slope;
};

static void sums_add(struct sums *sums, double x, double y) {
    double w = 1 / (y * y);
    sums->w += w;
    sums->wx += w * x;
    sums->wxx += w * x * x;
    sums->wy += w * y;
    sums->wxy += w * x * y;
}

static uint64_t rounded(double value) {
    return value > 0 ? (uint64_t)(value + 0.5) : 0;
}

/* An intercept below 0 becomes 0, and the slope the best one through it; so it does when all
 * points are one below another. */
static struct line sums_line(const struct sums *sums) {
    double spread = sums->w * sums->wxx - sums->wx * sums->wx;
    double slope = spread > 0 ? (sums->w * sums->wxy - sums->wx * sums->wy) / spread : 0;
    double intercept = (sums->wy - slope * sums->wx) / sums->w;
    if (spread <= 0 || intercept < 0) {
        return (struct line){0, sums->wxy / sums->wxx};
    }
    return (struct line){rounded(intercept), slope};
}

static uint64_t error_ppm(double predicted, double measured) {
    double off = predicted > measured ? predicted - measured : measured - predicted;
    return rounded(off / measured * PPM);
}

/* Calls for every cell: its blocks and its time. */
struct cell {
    uint64_t q, kv, blocks;
    double ps;
};

static bool cell_next(const struct profile *profile, bool backward, uint32_t *next,
                      struct cell *out) {
    const struct profile_grid *grid = backward ? &profile->bwd : &profile->fwd;
    uint32_t i = *next / grid->kv.count;
    uint32_t j = *next % grid->kv.count;
    if (i == grid->q.count) {
        return false;
    }
    ++*next;
    out->q = grid->q.values[i];
    out->kv = grid->kv.values[j];
    out->blocks = profile_cell_blocks(profile, backward, out->q, out->kv);
    out->ps = (double)grid->ps_per_tile[i][j];
    return true;
}

static void fit_errors(const struct profile *profile, bool backward, struct profile_fit *fit) {
    struct tile_direction curve;
    struct cell cell;
    profile_direction(profile, backward, &curve);
    for (uint32_t next = 0; cell_next(profile, backward, &next, &cell);) {
        double line_ps = (double)fit->tile_ps + (double)cell.blocks * (double)fit->block_ps;
        uint64_t line_ppm = error_ppm(line_ps, cell.ps);
        uint64_t curve_ppm = error_ppm((double)tile_time_ps(&curve, cell.blocks), cell.ps);
        if (next == 1 || line_ppm > fit->worst_ppm) {
            fit->worst_ppm = line_ppm;
            fit->worst_q = cell.q;
            fit->worst_kv = cell.kv;
        }
        fit->curve_worst_ppm = curve_ppm > fit->curve_worst_ppm ? curve_ppm : fit->curve_worst_ppm;
    }
}

void profile_fit(const struct profile *profile, bool backward, struct profile_fit *out) {
    struct sums sums = {0};
    struct cell cell;
    for (uint32_t next = 0; cell_next(profile, backward, &next, &cell);) {
        sums_add(&sums, (double)cell.blocks, cell.ps);
    }
    struct line line = sums_line(&sums);
    *out = (struct profile_fit){
        .launch_ps = backward ? profile->bwd.launch_ps : profile->fwd.launch_ps,
        .tile_ps = line.intercept,
        .block_ps = rounded(line.slope),
    };
    fit_errors(profile, backward, out);
}

/* As planning prices a fragment: its tiles of one K/V head, in the mean. */
static double causal_mean_ps(const struct tile_model *model, bool backward, uint32_t q,
                             uint32_t kv) {
    const struct fragment fragment = {.start = kv - q, .length = q};
    struct tile_loads loads = {0};
    tile_loads_add(model, &loads, &fragment, 1);
    const struct tile_load *load = backward ? &loads.backward : &loads.forward;
    const struct tile_direction *direction = backward ? &model->backward : &model->forward;
    double ps = (double)load->blocks * (double)direction->block_ps + (double)load->bent_ps;
    return (double)direction->tile_ps + ps / (double)load->tiles;
}

void profile_causal(const struct profile *profile, bool backward, struct profile_causal *out) {
    const struct profile_grid *grid = backward ? &profile->bwd : &profile->fwd;
    struct tile_model model = {
        .sms = (uint32_t)profile->key.sms,
        .sm_margin = (uint32_t)profile->key.sm_margin,
        .q_heads = (uint32_t)profile->key.q_heads,
        .kv_heads = (uint32_t)profile->key.kv_heads,
    };
    struct cell cell;
    double sum_ppm = 0;
    *out = (struct profile_causal){0};
    profile_direction(profile, false, &model.forward);
    profile_direction(profile, true, &model.backward);
    for (uint32_t next = 0; grid->causal.known && cell_next(profile, backward, &next, &cell);) {
        uint32_t at = next - 1;
        uint64_t ps = grid->causal.ps[at / grid->kv.count][at % grid->kv.count];
        if (ps == 0) {
            continue;
        }
        uint64_t ppm = error_ppm(
            causal_mean_ps(&model, backward, (uint32_t)cell.q, (uint32_t)cell.kv), (double)ps);
        if (out->cells++ == 0 || ppm > out->worst_ppm) {
            out->worst_ppm = ppm;
            out->worst_q = cell.q;
            out->worst_kv = cell.kv;
        }
        sum_ppm += (double)ppm;
    }
    out->mean_ppm = out->cells > 0 ? rounded(sum_ppm / (double)out->cells) : 0;
}

uint64_t profile_spread_ppm(const struct profile *profile, bool backward) {
    const struct profile_grid *grid = backward ? &profile->bwd : &profile->fwd;
    uint64_t worst_ppm = 0;
    for (uint32_t i = 0; grid->p10.known && i < grid->q.count; i++) {
        for (uint32_t j = 0; j < grid->kv.count; j++) {
            uint64_t ppm = rounded((double)(grid->p90.ps[i][j] - grid->p10.ps[i][j]) /
                                   (double)grid->ps_per_tile[i][j] * PPM);
            worst_ppm = ppm > worst_ppm ? ppm : worst_ppm;
        }
    }
    return worst_ppm;
}

uint64_t profile_link_worst_ppm(const struct profile_list *bytes, const struct profile_list *ps,
                                uint64_t alpha_ps, uint64_t bytes_per_us) {
    uint64_t worst_ppm = 0;
    for (uint32_t i = 0; i < bytes->count; i++) {
        double line_ps = (double)alpha_ps + (double)bytes->values[i] * PPM / (double)bytes_per_us;
        uint64_t ppm = error_ppm(line_ps, (double)ps->values[i]);
        worst_ppm = ppm > worst_ppm ? ppm : worst_ppm;
    }
    return worst_ppm;
}

void profile_fit_link(const struct profile_list *bytes, const struct profile_list *ps,
                      uint64_t *alpha_ps, uint64_t *bytes_per_us, uint64_t *worst_ppm) {
    struct sums sums = {0};
    for (uint32_t i = 0; i < bytes->count; i++) {
        sums_add(&sums, (double)bytes->values[i], (double)ps->values[i]);
    }
    struct line line = sums_line(&sums);
    double rate = line.slope > 0 ? PPM / line.slope : 0;
    *alpha_ps = line.intercept > 0 ? line.intercept : 1;
    *bytes_per_us = rounded(rate) > 0 ? rounded(rate) : 1;
    *worst_ppm = profile_link_worst_ppm(bytes, ps, *alpha_ps, *bytes_per_us);
}
