/* floor: see floor.h. A line is nowhere above the curve if it is not where the curve's straight
 * parts meet and end. */
#include "sharding/floor.h"

#define CORNERS_MAX (TILE_BENDS_MAX + 2)

/* Of a curve, up to the longest tile there can be. */
struct floor_corners {
    uint32_t count;
    uint64_t blocks[CORNERS_MAX];
    __int128 ps[CORNERS_MAX];
};

static bool floor_bends_up(const struct tile_direction *direction) {
    uint64_t block_ps = direction->block_ps;
    bool up = false;
    for (uint32_t bend = 0; bend < direction->bend_count; bend++) {
        up = up || direction->bends[bend].block_ps > block_ps;
        block_ps = direction->bends[bend].block_ps;
    }
    return up;
}

static void floor_corner(struct floor_corners *corners, const struct tile_direction *direction,
                         uint64_t blocks) {
    corners->blocks[corners->count] = blocks;
    corners->ps[corners->count++] = (__int128)tile_time_ps(direction, blocks);
}

static struct floor_corners floor_corners_of(const struct tile_direction *direction,
                                             uint64_t blocks_max) {
    struct floor_corners corners = {0};
    floor_corner(&corners, direction, 1);
    for (uint32_t bend = 0;
         bend < direction->bend_count && direction->bends[bend].blocks < blocks_max; bend++) {
        floor_corner(&corners, direction, direction->bends[bend].blocks);
    }
    floor_corner(&corners, direction, blocks_max);
    return corners;
}

/* The t0 with which a line of this slope touches the curve; below 0 if it would begin there. */
static __int128 floor_touch_ps(const struct floor_corners *corners, uint64_t block_ps) {
    __int128 least = corners->ps[0] - block_ps;
    for (uint32_t i = 1; i < corners->count; i++) {
        __int128 ps = corners->ps[i] - (__int128)block_ps * corners->blocks[i];
        least = ps < least ? ps : least;
    }
    return least;
}

/* The steepest line from nothing. */
static uint64_t floor_slope_ps(const struct floor_corners *corners) {
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < corners->count; i++) {
        __int128 ps = corners->ps[i] / corners->blocks[i];
        least = ps < least ? (uint64_t)ps : least;
    }
    return least;
}

static unsigned __int128 floor_price_ps(const struct tile_load *load, uint64_t tile_ps,
                                        uint64_t block_ps) {
    return (unsigned __int128)load->tiles * tile_ps + (unsigned __int128)load->blocks * block_ps;
}

/* Takes the line of this slope if it prices the load higher. */
static void floor_offer(const struct floor_corners *corners, const struct tile_load *load,
                        uint64_t block_ps, struct tile_direction *best) {
    __int128 tile_ps = floor_touch_ps(corners, block_ps);
    if (tile_ps >= 0 && floor_price_ps(load, (uint64_t)tile_ps, block_ps) >
                            floor_price_ps(load, best->tile_ps, best->block_ps)) {
        best->tile_ps = (uint64_t)tile_ps;
        best->block_ps = block_ps;
    }
}

static struct tile_load floor_load(const struct tile_model *model, const uint32_t *lengths,
                                   uint32_t count) {
    struct tile_loads loads = {0};
    for (uint32_t i = 0; i < count; i++) {
        struct fragment whole = {.document = i, .length = lengths[i]};
        tile_loads_add(model, &loads, &whole, 1);
    }
    return loads.backward;
}

bool tile_model_floor(const struct tile_model *model, const uint32_t *lengths, uint32_t count,
                      struct tile_model *out) {
    const struct tile_direction *curve = &model->backward;
    *out = *model;
    if (!floor_bends_up(curve) || count == 0) {
        return false;
    }
    struct tile_load load = floor_load(model, lengths, count);
    /* Two runs have at most one tile more than the whole. */
    struct floor_corners corners = floor_corners_of(curve, load.longest_blocks + 1);
    out->backward = (struct tile_direction){.launch_ps = curve->launch_ps};
    floor_offer(&corners, &load, floor_slope_ps(&corners), &out->backward);
    floor_offer(&corners, &load, curve->block_ps, &out->backward);
    for (uint32_t bend = 0; bend < curve->bend_count; bend++) {
        floor_offer(&corners, &load, curve->bends[bend].block_ps, &out->backward);
    }
    return true;
}
