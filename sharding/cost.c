/* cost: closed forms for the tile model, so that no tile is ever visited.
 *
 * Everything is counted for one KV head, as all have the same tiles, and multiplied at the end. The
 * backward pass computes the same (query tile, key block) pairs as the forward pass, grouped by key
 * block; key block 0 is seen by every query tile of its document, so it is the longest tile. */
#include "sharding/cost.h"

#include "sharding/tile_list.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>

#define H100_SMS  132u
#define PS_PER_NS 1000u
#define PS_PER_US 1000000u

/* FlashAttention-3's published curves on an H100 give t0, and tb at its efficiency; tb is divided
 * by the share of it our kernels are expected to reach, 0.75 forward and 0.7 backward. */
static const struct tile_direction forward_128 = {
    .launch_ps = 8 * PS_PER_US, .tile_ps = 2700 * PS_PER_NS, .block_ps = 2266667};
static const struct tile_direction backward_128 = {
    .launch_ps = 15 * PS_PER_US, .tile_ps = 15 * PS_PER_US, .block_ps = 6857143};
static const struct tile_direction forward_64 = {
    .launch_ps = 8 * PS_PER_US, .tile_ps = 2250 * PS_PER_NS, .block_ps = 1440000};
static const struct tile_direction backward_64 = {
    .launch_ps = 15 * PS_PER_US, .tile_ps = 8500 * PS_PER_NS, .block_ps = 4014286};

int tile_model_analytic(uint32_t head_dim, uint32_t q_heads, uint32_t kv_heads, uint32_t sm_margin,
                        struct tile_model *out) {
    if (head_dim != 64 && head_dim != 128) {
        return -EINVAL;
    }
    if (q_heads == 0 || kv_heads == 0 || q_heads % kv_heads != 0 ||
        q_heads / kv_heads > TILE_ROWS || sm_margin >= H100_SMS) {
        return -EINVAL;
    }
    *out = (struct tile_model){
        .forward = head_dim == 128 ? forward_128 : forward_64,
        .backward = head_dim == 128 ? backward_128 : backward_64,
        .sms = H100_SMS,
        .sm_margin = sm_margin,
        .q_heads = q_heads,
        .kv_heads = kv_heads,
    };
    return 0;
}

static inline uint64_t tile_more(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* Query tiles of the fragments of one document, which share a K/V slice. */
struct tile_slice {
    uint64_t tiles;
    uint64_t blocks;
    uint64_t key_blocks; /* that some tile sees */
};

static inline uint64_t tile_less(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Blocks of the first `tiles` tiles of a fragment: whole ones, then the short one. A tile that ends
 * at row e of the document sees ceil(e / 128) key blocks. */
static inline uint64_t tile_first_blocks(const struct tile_size *size, struct fragment fragment,
                                         uint64_t tiles) {
    uint64_t whole = tile_whole(size, fragment.length);
    uint64_t blocks = tile_blocks_run(size, tile_less(tiles, whole),
                                      (uint64_t)fragment.start + size->tokens);
    return tiles <= whole
               ? blocks
               : blocks + ((uint64_t)fragment.start + fragment.length + TILE_KEYS - 1) / TILE_KEYS;
}

static inline uint64_t tile_fragment_tiles(const struct tile_size *size, struct fragment fragment) {
    uint64_t whole = tile_whole(size, fragment.length);
    return whole + (whole * size->tokens < fragment.length);
}

static inline void tile_slice_add(struct tile_slice *slice, const struct tile_size *size,
                                  struct fragment fragment) {
    uint64_t end = (uint64_t)fragment.start + fragment.length + TILE_KEYS - 1;
    uint64_t tiles = tile_fragment_tiles(size, fragment);
    slice->blocks += tile_first_blocks(size, fragment, tiles);
    slice->tiles += tiles;
    slice->key_blocks = tile_more(slice->key_blocks, end / TILE_KEYS);
}

/* How the slope changes at a bend. */
static inline int64_t tile_bend_ps(const struct tile_direction *direction, uint32_t bend) {
    uint64_t before_ps = bend == 0 ? direction->block_ps : direction->bends[bend - 1].block_ps;
    return (int64_t)(direction->bends[bend].block_ps - before_ps);
}

/* What the bends come to for a fragment's query tiles: each by the key blocks beyond it. Bends
 * ascend, so behind the first that no tile reaches there is nothing. */
static __int128 tile_bent_forward_ps(const struct tile_direction *direction,
                                     const struct tile_size *size, struct fragment fragment) {
    uint64_t end = (uint64_t)fragment.start + fragment.length;
    uint64_t tiles = tile_fragment_tiles(size, fragment);
    uint64_t blocks = 0;
    __int128 bent_ps = 0;
    for (uint32_t bend = 0; bend < direction->bend_count; bend++) {
        uint64_t least = direction->bends[bend].blocks;
        uint64_t rows = least * TILE_KEYS;
        if (rows >= end) {
            break;
        }
        blocks = bend == 0 ? tile_first_blocks(size, fragment, tiles) : blocks;
        uint64_t within = rows > fragment.start ? tile_whole(size, rows - fragment.start) : 0;
        uint64_t before = within > 0 ? tile_first_blocks(size, fragment, within) : 0;
        uint64_t beyond = blocks - before - (tiles - within) * least;
        bent_ps += (__int128)beyond * tile_bend_ps(direction, bend);
    }
    return bent_ps;
}

/* Sum over the key blocks of a slice of the query tiles beyond `least` that see each. Later tiles
 * see more, so these are the pairs of all tiles but the slice's last `least`. */
static uint64_t tile_tiles_beyond(const struct tile_size *size, const struct fragment *fragments,
                                  uint32_t count, uint64_t left) {
    bool ascending = fragments[0].start <= fragments[count - 1].start;
    uint64_t blocks = 0;
    for (uint32_t i = 0; left > 0; i++) {
        struct fragment fragment = fragments[ascending ? i : count - 1 - i];
        uint64_t taken = tile_less(left, tile_fragment_tiles(size, fragment));
        blocks += tile_first_blocks(size, fragment, taken);
        left -= taken;
    }
    return blocks;
}

/* The same for the key blocks of a document's slice. */
static __int128 tile_bent_backward_ps(const struct tile_direction *direction,
                                      const struct tile_size *size,
                                      const struct fragment *fragments, uint32_t count,
                                      uint64_t tiles) {
    __int128 bent_ps = 0;
    for (uint32_t bend = 0; bend < direction->bend_count && direction->bends[bend].blocks < tiles;
         bend++) {
        uint64_t beyond = tile_tiles_beyond(size, fragments, count,
                                            tiles - direction->bends[bend].blocks);
        bent_ps += (__int128)beyond * tile_bend_ps(direction, bend);
    }
    return bent_ps;
}

/* What the bends of both directions come to for the fragments of one document. */
static void tile_slice_bend(const struct tile_model *model, const struct tile_size *size,
                            const struct fragment *fragments, uint32_t count, uint64_t tiles,
                            struct tile_loads *loads) {
    for (uint32_t i = 0; i < count; i++) {
        loads->forward.bent_ps += tile_bent_forward_ps(&model->forward, size, fragments[i]);
    }
    loads->backward.bent_ps += tile_bent_backward_ps(&model->backward, size, fragments, count,
                                                     tiles);
}

/* A backward tile is a key block that some query tile sees, the longest one of the slice's first
 * keys, which all see. */
void tile_loads_add(const struct tile_model *model, struct tile_loads *sum,
                    const struct fragment *fragments, uint32_t count) {
    struct tile_size size = tile_size_of(tile_tokens(TILE_ROWS, model->q_heads / model->kv_heads));
    bool bends = model->forward.bend_count + model->backward.bend_count > 0;
    struct tile_loads loads = *sum;
    for (uint32_t next = 0; next < count;) {
        struct tile_slice slice = {0};
        uint32_t begin = next;
        do {
            tile_slice_add(&slice, &size, fragments[next++]);
        } while (next < count && fragments[next].document == fragments[begin].document);
        loads.forward.tiles += slice.tiles;
        loads.forward.blocks += slice.blocks;
        loads.forward.longest_blocks = tile_more(loads.forward.longest_blocks, slice.key_blocks);
        loads.backward.tiles += slice.key_blocks;
        loads.backward.longest_blocks = tile_more(loads.backward.longest_blocks, slice.tiles);
        if (bends) {
            tile_slice_bend(model, &size, fragments + begin, next - begin, slice.tiles, &loads);
        }
    }
    loads.backward.blocks = loads.forward.blocks;
    *sum = loads;
}

unsigned __int128 tile_time_ps(const struct tile_direction *direction, uint64_t blocks) {
    __int128 ps = (__int128)blocks * direction->block_ps + direction->tile_ps;
    for (uint32_t bend = 0; bend < direction->bend_count; bend++) {
        uint64_t least = direction->bends[bend].blocks;
        ps += (__int128)(blocks > least ? blocks - least : 0) * tile_bend_ps(direction, bend);
    }
    return (unsigned __int128)ps;
}

static unsigned __int128 tile_total_ps(const struct tile_direction *direction,
                                       const struct tile_load *load) {
    return (unsigned __int128)load->tiles * direction->tile_ps +
           (unsigned __int128)load->blocks * direction->block_ps + (unsigned __int128)load->bent_ps;
}

static unsigned __int128 tile_machine_ps(const struct tile_model *model,
                                         unsigned __int128 head_ps) {
    assert(model->sm_margin < model->sms);
    uint32_t sms = model->sms - model->sm_margin;
    return (head_ps * model->kv_heads + sms - 1) / sms;
}

static uint64_t tile_saturate(unsigned __int128 ps) {
    return ps < UINT64_MAX ? (uint64_t)ps : UINT64_MAX;
}

static unsigned __int128 tile_direction_ps(const struct tile_model *model,
                                           const struct tile_direction *direction,
                                           const struct tile_load *load) {
    unsigned __int128 machine_ps = tile_machine_ps(model, tile_total_ps(direction, load));
    unsigned __int128 longest_ps = tile_time_ps(direction, load->longest_blocks);
    return direction->launch_ps + (machine_ps > longest_ps ? machine_ps : longest_ps);
}

uint64_t tile_loads_ps(const struct tile_model *model, const struct tile_loads *loads) {
    if (loads->forward.tiles == 0) {
        return 0;
    }
    return tile_saturate(tile_direction_ps(model, &model->forward, &loads->forward) +
                         tile_direction_ps(model, &model->backward, &loads->backward));
}

uint64_t tile_loads_forward_ps(const struct tile_model *model, const struct tile_loads *loads) {
    return loads->forward.tiles == 0
               ? 0
               : tile_saturate(tile_direction_ps(model, &model->forward, &loads->forward));
}

uint64_t tile_cost_ps(const struct tile_model *model, const struct fragment *fragments,
                      uint32_t count) {
    struct tile_loads loads = {0};
    tile_loads_add(model, &loads, fragments, count);
    return tile_loads_ps(model, &loads);
}

uint64_t tile_forward_ps(const struct tile_model *model, const struct fragment *fragments,
                         uint32_t count) {
    struct tile_loads loads = {0};
    tile_loads_add(model, &loads, fragments, count);
    return tile_loads_forward_ps(model, &loads);
}

uint64_t tile_loads_work_ps(const struct tile_model *model, const struct tile_loads *loads) {
    return tile_saturate(
        tile_machine_ps(model, tile_total_ps(&model->forward, &loads->forward) +
                                   tile_total_ps(&model->backward, &loads->backward)));
}

uint64_t tile_work_ps(const struct tile_model *model, const struct fragment *fragments,
                      uint32_t count) {
    struct tile_loads loads = {0};
    tile_loads_add(model, &loads, fragments, count);
    return tile_loads_work_ps(model, &loads);
}

uint64_t tile_document_ps(const struct tile_model *model, uint32_t length) {
    struct fragment whole = {.length = length};
    return tile_work_ps(model, &whole, length > 0);
}
