/* plan: fragments to work lists, the one function between a plan and the kernels.
 *
 * Lists are walked twice in one fixed order, K/V head by slice by fragment by position: first to
 * count, then to place. Longest first is a counting sort over block and step counts, so equal tiles
 * keep that order and neighbours share K/V in cache. Tile geometry is sharding/tile_list's, which
 * the cost model prices with. No allocation, no floating point. */
#include "gpu_attn/ballast_attn.h"

#include "gpu_attn/error.h"
#include "gpu_attn/lists.h"
#include "gpu_attn/plan.h"
#include "sharding/tile_list.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <xxhash.h>

#define GROUP_MAX 128u
#define COUNT_MAX ((uint64_t)INT32_MAX)

_Static_assert(sizeof(struct ballast_attn_fragment) == 32, "fragment's wire size");
_Static_assert(sizeof(struct attn_tile) == 32, "tile's device size");
_Static_assert(sizeof(struct attn_step) == 20, "step's device size");
_Static_assert(sizeof(struct attn_key_tile) == 32, "key tile's device size");
_Static_assert(ATTN_TILE_ROWS == TILE_ROWS && ATTN_KEYS == TILE_KEYS, "priced as computed");

/* A K/V slice: the fragments order[begin, end) and the longest of their key counts. */
struct slice {
    uint32_t begin;
    uint32_t end;
    int32_t kv_row;
    int32_t keys;
};

struct sizes {
    uint64_t tiles;
    uint64_t steps;
    uint64_t key_tiles;
    uint64_t ranges;
    uint64_t tile_blocks_max;
};

struct builder {
    const struct ballast_attn_shape *shape;
    const struct ballast_attn_fragment *fragments;
    uint32_t count;
    uint32_t group;
    uint32_t pack;
    uint64_t *order;      /* row << 32 | fragment, ascending */
    uint32_t *tile_slots; /* by blocks: first how many, then the next place */
    uint32_t *key_slots;  /* by steps: the same */
    uint32_t tile_slot_count;
    uint32_t key_slot_count;
    bool placing;
    struct sizes done; /* of the current walk */
    struct attn_tile *tiles;
    struct attn_step *steps;
    struct attn_key_tile *key_tiles;
    struct attn_range *ranges;
};

uint32_t attn_group(const struct ballast_attn_shape *shape) {
    return shape->q_heads / shape->kv_heads;
}

uint32_t attn_pack(const struct ballast_attn_shape *shape) {
    uint32_t group = attn_group(shape);
    return group <= ATTN_STEP_ROWS ? group : (group + 1) / 2;
}

static int shape_check(const struct ballast_attn_shape *shape, struct ballast_attn_error *error) {
    if (shape->head_dim != 64 && shape->head_dim != 128) {
        return attn_error(error, -EINVAL, "head_dim %u: only 64 and 128", shape->head_dim);
    }
    if (shape->kv_heads == 0 || shape->q_heads == 0 || shape->q_heads > UINT16_MAX ||
        shape->q_heads % shape->kv_heads != 0 || attn_group(shape) > GROUP_MAX) {
        return attn_error(error, -EINVAL, "%u query heads over %u K/V heads: groups are 1 to %u",
                          shape->q_heads, shape->kv_heads, GROUP_MAX);
    }
    if (shape->q_rows > COUNT_MAX || shape->kv_rows > COUNT_MAX) {
        return attn_error(error, -E2BIG, "%u query and %u K/V rows: at most 2^31 - 1",
                          shape->q_rows, shape->kv_rows);
    }
    return 0;
}

static bool range_inside(int32_t begin, int32_t length, uint64_t limit) {
    return begin >= 0 && length >= 0 && (uint64_t)begin + (uint64_t)length <= limit;
}

static int fragment_check(const struct ballast_attn_shape *shape,
                          const struct ballast_attn_fragment *fragment, uint32_t index,
                          struct ballast_attn_error *error) {
    if (!range_inside(fragment->q_row, fragment->q_length, shape->q_rows)) {
        return attn_error(error, -EINVAL, "fragment %u: query rows %d + %d of %u", index,
                          fragment->q_row, fragment->q_length, shape->q_rows);
    }
    if (!range_inside(fragment->kv_row, fragment->kv_length, shape->kv_rows)) {
        return attn_error(error, -EINVAL, "fragment %u: K/V rows %d + %d of %u", index,
                          fragment->kv_row, fragment->kv_length, shape->kv_rows);
    }
    if ((uint32_t)fragment->head_begin + fragment->head_count > shape->q_heads) {
        return attn_error(error, -EINVAL, "fragment %u: heads %u + %u of %u", index,
                          fragment->head_begin, fragment->head_count, shape->q_heads);
    }
    if (fragment->q_position < -INT32_MAX / 2 ||
        (int64_t)fragment->q_position + fragment->q_length > INT32_MAX) {
        return attn_error(error, -EINVAL, "fragment %u: position %d", index, fragment->q_position);
    }
    if ((fragment->flags & ~BALLAST_ATTN_FULL) != 0) {
        return attn_error(error, -EINVAL, "fragment %u: unknown flags %#x", index, fragment->flags);
    }
    return 0;
}

static struct tile_rows fragment_rows(const struct ballast_attn_fragment *fragment) {
    return (struct tile_rows){
        .position = fragment->q_position,
        .length = (uint64_t)fragment->q_length,
        .keys = (uint64_t)fragment->kv_length,
        .causal = (fragment->flags & BALLAST_ATTN_FULL) == 0,
    };
}

static uint64_t key_tile_count(int32_t keys) {
    return ((uint64_t)keys + ATTN_KEYS - 1) / ATTN_KEYS;
}

/* Upper bounds: every fragment as if it had its slice to itself. */
static void sizes_add(struct sizes *sizes, const struct ballast_attn_shape *shape,
                      const struct ballast_attn_fragment *fragment) {
    uint32_t group = attn_group(shape);
    uint32_t pack = attn_pack(shape);
    uint64_t chunks = (group + pack - 1) / pack;
    uint32_t head_end = (uint32_t)fragment->head_begin + fragment->head_count;
    if (fragment->head_count == 0) {
        return;
    }
    uint64_t kv_heads = (head_end - 1) / group - fragment->head_begin / group + 1;
    struct tile_rows rows = fragment_rows(fragment);
    uint64_t keys = key_tile_count(fragment->kv_length);
    sizes->tiles += kv_heads * tile_count(&rows, tile_tokens(ATTN_TILE_ROWS, group));
    sizes->steps += kv_heads * chunks * tile_count(&rows, tile_tokens(ATTN_STEP_ROWS, pack));
    sizes->key_tiles += kv_heads * keys;
    sizes->ranges += kv_heads * chunks * keys;
    sizes->tile_blocks_max = keys > sizes->tile_blocks_max ? keys : sizes->tile_blocks_max;
}

static int sizes_of(const struct ballast_attn_shape *shape,
                    const struct ballast_attn_fragment *fragments, uint32_t count,
                    struct sizes *sizes, struct ballast_attn_error *error) {
    *sizes = (struct sizes){0};
    int result = shape_check(shape, error);
    for (uint32_t i = 0; result == 0 && i < count; i++) {
        result = fragment_check(shape, &fragments[i], i, error);
        if (result == 0) {
            sizes_add(sizes, shape, &fragments[i]);
        }
    }
    if (result == 0 && (sizes->tiles > COUNT_MAX || sizes->steps > COUNT_MAX ||
                        sizes->key_tiles > COUNT_MAX || sizes->ranges > COUNT_MAX)) {
        result = attn_error(error, -E2BIG, "more than 2^31 - 1 tiles");
    }
    return result;
}

static size_t lists_bytes(const struct sizes *sizes) {
    return sizes->tiles * sizeof(struct attn_tile) + sizes->steps * sizeof(struct attn_step) +
           sizes->key_tiles * sizeof(struct attn_key_tile) +
           sizes->ranges * sizeof(struct attn_range);
}

static size_t scratch_bytes(const struct sizes *sizes, uint32_t count) {
    uint64_t slots = sizes->tile_blocks_max + 1 + sizes->steps + 1;
    return count * sizeof(uint64_t) + (slots + slots % 2) * sizeof(uint32_t);
}

size_t ballast_attn_plan_bytes(const struct ballast_attn_shape *shape,
                               const struct ballast_attn_fragment *fragments, uint32_t count) {
    struct sizes sizes;
    if (sizes_of(shape, fragments, count, &sizes, NULL) != 0) {
        return 0;
    }
    return scratch_bytes(&sizes, count) + lists_bytes(&sizes);
}

/* Heapsort: in place, no worst case. */
static void order_sift(uint64_t *order, uint32_t root, uint32_t count) {
    for (uint32_t child = 2 * root + 1; child < count; root = child, child = 2 * root + 1) {
        child += child + 1 < count && order[child + 1] > order[child];
        if (order[root] >= order[child]) {
            return;
        }
        uint64_t swapped = order[root];
        order[root] = order[child];
        order[child] = swapped;
    }
}

static void order_sort(uint64_t *order, uint32_t count) {
    for (uint32_t root = count / 2; root-- > 0;) {
        order_sift(order, root, count);
    }
    for (uint32_t end = count; end-- > 1;) {
        uint64_t swapped = order[0];
        order[0] = order[end];
        order[end] = swapped;
        order_sift(order, 0, end);
    }
}

static const struct ballast_attn_fragment *ordered(const struct builder *builder, uint32_t place) {
    return &builder->fragments[(uint32_t)builder->order[place]];
}

static bool heads_meet(const struct ballast_attn_fragment *a,
                       const struct ballast_attn_fragment *b) {
    return a->head_begin < b->head_begin + b->head_count &&
           b->head_begin < a->head_begin + a->head_count;
}

/* No (row, head) twice. Quadratic only in fragments that share rows, by their head ranges. */
static int check_queries(struct builder *builder, struct ballast_attn_error *error) {
    for (uint32_t i = 0; i < builder->count; i++) {
        builder->order[i] = (uint64_t)builder->fragments[i].q_row << 32 | i;
    }
    order_sort(builder->order, builder->count);
    for (uint32_t i = 0; i < builder->count; i++) {
        const struct ballast_attn_fragment *a = ordered(builder, i);
        for (uint32_t j = i + 1; j < builder->count; j++) {
            const struct ballast_attn_fragment *b = ordered(builder, j);
            if (b->q_row >= a->q_row + a->q_length) {
                break;
            }
            if (b->q_length > 0 && heads_meet(a, b)) {
                return attn_error(error, -EINVAL, "fragments %u and %u both cover row %d",
                                  (uint32_t)builder->order[i], (uint32_t)builder->order[j],
                                  b->q_row);
            }
        }
    }
    return 0;
}

static struct slice slice_at(const struct builder *builder, uint32_t begin) {
    struct slice slice = {.begin = begin, .end = begin, .kv_row = ordered(builder, begin)->kv_row};
    while (slice.end < builder->count && ordered(builder, slice.end)->kv_row == slice.kv_row) {
        int32_t keys = ordered(builder, slice.end++)->kv_length;
        slice.keys = keys > slice.keys ? keys : slice.keys;
    }
    return slice;
}

/* Leaves `order` by K/V row. */
static int check_slices(struct builder *builder, struct ballast_attn_error *error) {
    for (uint32_t i = 0; i < builder->count; i++) {
        builder->order[i] = (uint64_t)builder->fragments[i].kv_row << 32 | i;
    }
    order_sort(builder->order, builder->count);
    int32_t free_row = 0;
    for (uint32_t i = 0; i < builder->count;) {
        struct slice slice = slice_at(builder, i);
        if (slice.keys > 0 && slice.kv_row < free_row) {
            return attn_error(error, -EINVAL, "fragment %u: its K/V slice overlaps another",
                              (uint32_t)builder->order[i]);
        }
        free_row = slice.keys > 0 ? slice.kv_row + slice.keys : free_row;
        i = slice.end;
    }
    return 0;
}

/* What a fragment asks of one K/V head: `heads` query heads from `head` on; none if 0. */
struct share {
    uint32_t head;
    uint32_t heads;
};

static struct share share_of(const struct ballast_attn_fragment *fragment, uint32_t kv_head,
                             uint32_t group) {
    uint32_t begin = kv_head * group;
    uint32_t end = begin + group;
    uint32_t head_end = (uint32_t)fragment->head_begin + fragment->head_count;
    begin = fragment->head_begin > begin ? fragment->head_begin : begin;
    end = head_end < end ? head_end : end;
    return (struct share){.head = begin, .heads = end > begin ? end - begin : 0};
}

/* Token t of the tile that starts at row `first` sees keys up to reach + t. */
static int32_t reach_of(const struct tile_rows *rows, uint64_t first) {
    return rows->causal ? (int32_t)(rows->position + (int64_t)first) : (int32_t)rows->keys;
}

static uint16_t tokens_of(const struct tile_rows *rows, uint64_t first, uint32_t tokens) {
    uint64_t left = rows->length - first;
    return (uint16_t)(left < tokens ? left : tokens);
}

static void tile_emit(struct builder *builder, const struct attn_tile *tile) {
    uint32_t *slot = &builder->tile_slots[tile->blocks];
    if (builder->placing) {
        builder->tiles[*slot] = *tile;
    }
    (*slot)++;
    builder->done.tiles++;
}

static void fragment_tiles(struct builder *builder, const struct ballast_attn_fragment *fragment,
                           uint32_t kv_head, struct share share) {
    struct tile_rows rows = fragment_rows(fragment);
    uint32_t tokens = tile_tokens(ATTN_TILE_ROWS, builder->group);
    uint64_t tiles = tile_count(&rows, tokens);
    for (uint64_t i = 0; i < tiles; i++) {
        uint64_t first = i * tokens;
        struct attn_tile tile = {
            .q_row = fragment->q_row + (int32_t)first,
            .kv_row = fragment->kv_row,
            .keys = fragment->kv_length,
            .reach = reach_of(&rows, first),
            .blocks = (int32_t)tile_blocks(&rows, tokens, i),
            .head = (uint16_t)share.head,
            .kv_head = (uint16_t)kv_head,
            .tokens = tokens_of(&rows, first, tokens),
            .heads = (uint16_t)share.heads,
        };
        tile_emit(builder, &tile);
    }
}

static uint32_t chunk_count(const struct builder *builder, struct share share) {
    return (share.heads + builder->pack - 1) / builder->pack;
}

static struct share chunk_of(const struct builder *builder, struct share share, uint32_t chunk) {
    uint32_t skipped = chunk * builder->pack;
    uint32_t left = share.heads - skipped;
    return (struct share){.head = share.head + skipped,
                          .heads = left < builder->pack ? left : builder->pack};
}

static void fragment_steps(struct builder *builder, const struct ballast_attn_fragment *fragment,
                           struct share share) {
    struct tile_rows rows = fragment_rows(fragment);
    uint32_t tokens = tile_tokens(ATTN_STEP_ROWS, builder->pack);
    uint64_t steps = tile_count(&rows, tokens);
    for (uint64_t i = 0; i < steps && builder->placing; i++) {
        uint64_t first = i * tokens;
        builder->steps[builder->done.steps + i] = (struct attn_step){
            .q_row = fragment->q_row + (int32_t)first,
            .keys = fragment->kv_length,
            .reach = reach_of(&rows, first),
            .head = (uint16_t)share.head,
            .tokens = tokens_of(&rows, first, tokens),
            .heads = (uint16_t)share.heads,
        };
    }
    builder->done.steps += steps;
}

/* Adds the steps of one fragment's chunk that see the key tile; `base` is its first step. */
static void range_emit(struct builder *builder, struct attn_key_tile *tile, uint64_t base,
                       uint64_t first, uint64_t steps) {
    if (first == steps) {
        return;
    }
    if (builder->placing) {
        builder->ranges[builder->done.ranges] = (struct attn_range){
            .step_begin = (int32_t)(base + first),
            .step_end = (int32_t)(base + steps),
        };
    }
    builder->done.ranges++;
    tile->steps += (int32_t)(steps - first);
}

static void key_tile_emit(struct builder *builder, const struct attn_key_tile *tile) {
    uint32_t *slot = &builder->key_slots[tile->steps];
    if (builder->placing) {
        builder->key_tiles[*slot] = *tile;
    }
    (*slot)++;
    builder->done.key_tiles++;
}

static void slice_key_tile(struct builder *builder, const struct slice *slice, uint32_t kv_head,
                           uint64_t base, int32_t key, int32_t keys) {
    struct attn_key_tile tile = {
        .kv_row = slice->kv_row + key,
        .rows = keys - key < ATTN_KEYS ? keys - key : ATTN_KEYS,
        .key = key,
        .kv_head = (int32_t)kv_head,
        .range_begin = (int32_t)builder->done.ranges,
    };
    uint32_t tokens = tile_tokens(ATTN_STEP_ROWS, builder->pack);
    uint32_t tile_tokens_max = tile_tokens(ATTN_TILE_ROWS, builder->group);
    for (uint32_t i = slice->begin; i < slice->end; i++) {
        const struct ballast_attn_fragment *fragment = ordered(builder, i);
        struct tile_rows rows = fragment_rows(fragment);
        uint64_t steps = tile_count(&rows, tokens);
        uint64_t first = tile_first_seeing(&rows, tokens, (uint64_t)key);
        uint32_t chunks = chunk_count(builder, share_of(fragment, kv_head, builder->group));
        tile.blocks += chunks > 0
                           ? (int32_t)tile_count_seeing(&rows, tile_tokens_max, (uint64_t)key)
                           : 0;
        for (uint32_t chunk = 0; chunk < chunks; chunk++) {
            range_emit(builder, &tile, base, first, steps);
            base += steps;
        }
    }
    tile.range_end = (int32_t)builder->done.ranges;
    key_tile_emit(builder, &tile);
}

static void slice_emit(struct builder *builder, const struct slice *slice, uint32_t kv_head) {
    uint64_t base = builder->done.steps;
    int32_t keys = 0; /* that this K/V head has to do with */
    for (uint32_t i = slice->begin; i < slice->end; i++) {
        const struct ballast_attn_fragment *fragment = ordered(builder, i);
        struct share share = share_of(fragment, kv_head, builder->group);
        if (share.heads == 0) {
            continue;
        }
        keys = fragment->kv_length > keys ? fragment->kv_length : keys;
        fragment_tiles(builder, fragment, kv_head, share);
        for (uint32_t chunk = 0; chunk < chunk_count(builder, share); chunk++) {
            fragment_steps(builder, fragment, chunk_of(builder, share, chunk));
        }
    }
    for (int64_t key = 0; key < keys; key += ATTN_KEYS) {
        slice_key_tile(builder, slice, kv_head, base, (int32_t)key, keys);
    }
}

static void builder_walk(struct builder *builder, bool placing) {
    builder->placing = placing;
    builder->done = (struct sizes){0};
    for (uint32_t kv_head = 0; kv_head < builder->shape->kv_heads; kv_head++) {
        for (uint32_t i = 0; i < builder->count;) {
            struct slice slice = slice_at(builder, i);
            slice_emit(builder, &slice, kv_head);
            i = slice.end;
        }
    }
}

/* How many of each length becomes where the first of each goes, longest first. */
static void slots_to_places(uint32_t *slots, uint32_t count) {
    uint32_t place = 0;
    for (uint32_t i = count; i-- > 0;) {
        uint32_t here = slots[i];
        slots[i] = place;
        place += here;
    }
}

static void builder_init(struct builder *builder, const struct sizes *bounds, void *memory) {
    builder->group = attn_group(builder->shape);
    builder->pack = attn_pack(builder->shape);
    builder->order = (uint64_t *)memory;
    builder->tile_slots = (uint32_t *)(builder->order + builder->count);
    builder->tile_slot_count = (uint32_t)bounds->tile_blocks_max + 1;
    builder->key_slots = builder->tile_slots + builder->tile_slot_count;
    builder->key_slot_count = (uint32_t)bounds->steps + 1;
    memset(builder->tile_slots, 0,
           ((size_t)builder->tile_slot_count + builder->key_slot_count) * sizeof(uint32_t));
}

static void builder_build(struct builder *builder, unsigned char *lists) {
    builder_walk(builder, false);
    struct sizes found = builder->done;
    builder->tiles = (struct attn_tile *)lists;
    builder->steps = (struct attn_step *)(builder->tiles + found.tiles);
    builder->key_tiles = (struct attn_key_tile *)(builder->steps + found.steps);
    builder->ranges = (struct attn_range *)(builder->key_tiles + found.key_tiles);
    slots_to_places(builder->tile_slots, builder->tile_slot_count);
    slots_to_places(builder->key_slots, builder->key_slot_count);
    builder_walk(builder, true);
    assert(memcmp(&found, &builder->done, sizeof found) == 0);
}

static uint64_t plan_hash(const struct ballast_attn_plan *plan) {
    uint64_t seed = XXH3_64bits_withSeed(&plan->shape, sizeof plan->shape, BALLAST_ATTN_ABI);
    return XXH3_64bits_withSeed(plan->lists, plan->lists_bytes, seed);
}

int ballast_attn_plan_init(struct ballast_attn_plan *plan, const struct ballast_attn_shape *shape,
                           const struct ballast_attn_fragment *fragments, uint32_t count,
                           void *memory, size_t bytes, struct ballast_attn_error *error) {
    struct sizes bounds;
    struct builder builder = {.shape = shape, .fragments = fragments, .count = count};
    int result = sizes_of(shape, fragments, count, &bounds, error);
    if (result != 0) {
        return result;
    }
    size_t scratch = scratch_bytes(&bounds, count);
    if (bytes < scratch + lists_bytes(&bounds)) {
        return attn_error(error, -ENOSPC, "%zu bytes for lists that need up to %zu", bytes,
                          scratch + lists_bytes(&bounds));
    }
    builder_init(&builder, &bounds, memory);
    result = check_queries(&builder, error);
    if (result == 0) {
        result = check_slices(&builder, error);
    }
    if (result != 0) {
        return result;
    }
    unsigned char *lists = (unsigned char *)memory + scratch;
    builder_build(&builder, lists);
    *plan = (struct ballast_attn_plan){
        .shape = *shape,
        .lists = lists,
        .lists_bytes = lists_bytes(&builder.done),
        .tiles = (uint32_t)builder.done.tiles,
        .steps = (uint32_t)builder.done.steps,
        .key_tiles = (uint32_t)builder.done.key_tiles,
        .ranges = (uint32_t)builder.done.ranges,
    };
    plan->hash = plan_hash(plan);
    return 0;
}
