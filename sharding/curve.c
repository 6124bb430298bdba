/* curve: see curve.h. */
#include "sharding/curve.h"

#include <assert.h>
#include <stdbool.h>

static uint64_t curve_slope_ps(uint64_t from_ps, uint64_t to_ps, uint64_t blocks) {
    return to_ps > from_ps ? (to_ps - from_ps + blocks / 2) / blocks : 0;
}

/* From nothing to the first point: the slope behind it, where that leaves a t0; else as steep as
 * whole numbers can be. */
static void curve_begin(const struct tile_point *first, uint64_t slope_ps,
                        struct tile_direction *out) {
    bool straight = (unsigned __int128)slope_ps * first->blocks <= first->ps;
    out->block_ps = straight ? slope_ps : first->ps / first->blocks;
    out->tile_ps = first->ps - out->block_ps * first->blocks;
    out->bend_count = 0;
}

void tile_curve(const struct tile_point *points, uint32_t count, struct tile_direction *out) {
    assert(count >= 2 && count <= TILE_POINTS_MAX && points[0].blocks > 0);
    uint64_t at_ps = points[0].ps;
    uint64_t before_ps = 0;
    for (uint32_t i = 0; i + 1 < count; i++) {
        assert(points[i].blocks < points[i + 1].blocks);
        uint64_t blocks = points[i + 1].blocks - points[i].blocks;
        uint64_t slope_ps = curve_slope_ps(at_ps, points[i + 1].ps, blocks);
        if (i == 0) {
            curve_begin(&points[0], slope_ps, out);
            before_ps = out->block_ps;
        }
        if (slope_ps != before_ps) {
            out->bends[out->bend_count++] = (struct tile_bend){points[i].blocks, slope_ps};
        }
        before_ps = slope_ps;
        at_ps += slope_ps * blocks;
    }
}
