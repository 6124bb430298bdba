/* level_world: see level_world.h. */
#include "level_world.h"

#include "packer/greedy.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define DRAIN_STEPS 4u

/* Scratch of one step, by document. */
struct step_arrays {
    uint32_t *lengths;
    uint64_t *works;
    uint64_t *nominal_steps;
    uint64_t *indices;
    uint32_t *short_lengths;
    uint64_t *short_works;
    uint8_t *verdicts;
    uint8_t *taken;
    uint32_t *list;
    uint32_t *bins;
    uint32_t *order;
    void *level_scratch;
    void *pack_scratch;
};

static void *world_array(size_t count, size_t item_bytes) {
    void *array = calloc(count + 1, item_bytes);
    assert(array != NULL);
    return array;
}

struct level_options level_world_options(enum level_preset preset, uint32_t window, uint32_t bins,
                                         uint32_t room_percent) {
    struct level_options options;
    level_options_preset(preset, window, &options);
    options.bins = bins;
    options.bin_tokens = (uint64_t)window * room_percent / 100;
    uint64_t windows = (uint64_t)bins * window;
    uint64_t roomy = bins * options.bin_tokens * 95 / 100;
    options.step_tokens = windows < roomy ? windows : roomy;
    options.token_work = 24576;
    return options;
}

uint32_t *level_world_draw(const struct distribution *distribution, uint64_t seed, uint64_t tokens,
                           uint32_t *documents) {
    uint32_t window = distribution_window(distribution);
    uint32_t *lengths = NULL;
    uint32_t capacity = 0;
    uint64_t drawn = 0;
    *documents = 0;
    for (uint64_t i = 0; drawn < tokens; i++) {
        uint32_t left = distribution_length(distribution, seed, i);
        while (left > 0 && drawn < tokens) {
            if (*documents == capacity) {
                capacity = capacity > 0 ? 2 * capacity : 4096;
                lengths = realloc(lengths, capacity * sizeof *lengths);
                assert(lengths != NULL);
            }
            uint32_t part = left < window ? left : window;
            lengths[(*documents)++] = part;
            drawn += part;
            left -= part;
        }
    }
    return lengths;
}

void level_world_open(struct level_world *world, const struct level_options *options,
                      uint64_t cost_linear, const uint32_t *lengths, uint32_t documents) {
    struct level_fault fault;
    assert(level_options_check(options, &fault) == 0);
    *world = (struct level_world){
        .options = *options,
        .cost_linear = cost_linear,
        .documents = documents,
        .lengths = lengths,
        .nominal_steps = world_array(documents, sizeof(uint64_t)),
        .delivered_in = world_array(documents, sizeof(uint64_t)),
        .pool = world_array(documents, sizeof(uint32_t)),
        .shorts = world_array(documents, sizeof(uint32_t)),
        .packed_documents = world_array(documents, sizeof(uint32_t)),
        .packed_bins = world_array(documents, sizeof(uint32_t)),
        .bin_works = world_array(options->bins, sizeof(uint64_t)),
        .bin_tokens = world_array(options->bins, sizeof(uint64_t)),
        .arrays = world_array(1, sizeof(struct step_arrays)),
    };
    uint32_t candidates = 0;
    for (uint32_t i = 0; i < documents; i++) {
        world->tokens += lengths[i];
        world->delivered_in[i] = UINT64_MAX;
        candidates += lengths[i] >= options->candidate_length;
    }
    *(struct step_arrays *)world->arrays = (struct step_arrays){
        .lengths = world_array(documents, sizeof(uint32_t)),
        .works = world_array(documents, sizeof(uint64_t)),
        .nominal_steps = world_array(documents, sizeof(uint64_t)),
        .indices = world_array(documents, sizeof(uint64_t)),
        .short_lengths = world_array(documents, sizeof(uint32_t)),
        .short_works = world_array(documents, sizeof(uint64_t)),
        .verdicts = world_array(documents, 1),
        .taken = world_array(documents, 1),
        .list = world_array(documents, sizeof(uint32_t)),
        .bins = world_array(documents, sizeof(uint32_t)),
        .order = world_array(documents, sizeof(uint32_t)),
        .level_scratch = world_array(level_bytes(options, candidates), 1),
        .pack_scratch = world_array(pack_greedy_bytes(documents, options->bins), 1),
    };
}

void level_world_close(struct level_world *world) {
    struct step_arrays *arrays = world->arrays;
    void *owned[] = {
        world->nominal_steps,  world->delivered_in,
        world->pool,           world->shorts,
        world->packed_bins,    world->packed_documents,
        world->bin_works,      world->bin_tokens,
        arrays->lengths,       arrays->works,
        arrays->nominal_steps, arrays->indices,
        arrays->short_lengths, arrays->short_works,
        arrays->verdicts,      arrays->taken,
        arrays->list,          arrays->bins,
        arrays->order,         arrays->level_scratch,
        arrays->pack_scratch,  arrays,
    };
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) {
        free(owned[i]);
    }
}

uint64_t level_world_work(const struct level_world *world, uint32_t length) {
    return (uint64_t)length * (length + world->cost_linear);
}

uint64_t level_world_imbalance(const struct level_world *world) {
    uint64_t most = 0;
    uint64_t sum = 0;
    for (uint32_t bin = 0; bin < world->options.bins; bin++) {
        most = world->bin_works[bin] > most ? world->bin_works[bin] : most;
        sum += world->bin_works[bin];
    }
    return sum == 0 ? LEVEL_PPM
                    : (uint64_t)((unsigned __int128)most * world->options.bins * LEVEL_PPM / sum);
}

static bool world_is_candidate(const struct level_world *world, uint32_t document) {
    return world->lengths[document] >= world->options.candidate_length;
}

static void world_wait(struct level_world *world, uint32_t document) {
    uint32_t length = world->lengths[document];
    uint32_t low = 0;
    uint32_t high = world->pool_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        uint32_t other = world->pool[middle];
        bool before = world->lengths[other] < length ||
                      (world->lengths[other] == length && other < document);
        low = before ? middle + 1 : low;
        high = before ? high : middle;
    }
    memmove(world->pool + low + 1, world->pool + low,
            (world->pool_count - low) * sizeof *world->pool);
    world->pool[low] = document;
    world->pool_count++;
}

/* Nominal step of the next document: target(step) is step * T less what slipped. */
static uint64_t world_nominal(const struct level_world *world) {
    return (world->scanned_tokens + world->state.slip_tokens) / world->options.step_tokens;
}

static void world_scan(struct level_world *world) {
    while (world->scanned < world->documents &&
           world_nominal(world) <= world->state.step + world->options.horizon) {
        uint32_t document = world->scanned++;
        world->nominal_steps[document] = world_nominal(world);
        world->scanned_tokens += world->lengths[document];
        if (world_is_candidate(world, document)) {
            world_wait(world, document);
        } else {
            world->shorts[world->shorts_end++] = document;
        }
    }
}

/* Of the shorts as many as a decision may look at. */
static struct level_view world_view(struct level_world *world) {
    struct step_arrays *arrays = world->arrays;
    for (uint32_t i = 0; i < world->pool_count; i++) {
        uint32_t document = world->pool[i];
        arrays->lengths[i] = world->lengths[document];
        arrays->works[i] = level_world_work(world, world->lengths[document]);
        arrays->nominal_steps[i] = world->nominal_steps[document];
        arrays->indices[i] = document;
    }
    uint64_t enough = world->options.bins * world->options.bin_tokens;
    uint64_t tokens = 0;
    uint32_t beyond = 0;
    uint32_t shorts = 0;
    for (uint32_t i = world->shorts_begin; i < world->shorts_end; i++) {
        uint32_t length = world->lengths[world->shorts[i]];
        arrays->short_lengths[shorts] = length;
        arrays->short_works[shorts++] = level_world_work(world, length);
        tokens += length;
        beyond += tokens > enough;
        if (beyond > world->options.fit_window) {
            break;
        }
    }
    return (struct level_view){
        .candidates = world->pool_count,
        .lengths = arrays->lengths,
        .works = arrays->works,
        .nominal_steps = arrays->nominal_steps,
        .stream_indices = arrays->indices,
        .shorts = shorts,
        .short_lengths = arrays->short_lengths,
        .short_works = arrays->short_works,
    };
}

/* Moves what leaves from the pool to the step's list. */
static uint32_t world_release(struct level_world *world, uint32_t *list) {
    const struct step_arrays *arrays = world->arrays;
    uint32_t count = 0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < world->pool_count; i++) {
        if (arrays->verdicts[i] != LEVEL_WAITS) {
            list[count++] = world->pool[i];
        } else {
            world->pool[kept++] = world->pool[i];
        }
    }
    world->pool_count = kept;
    return count;
}

/* Moves taken shorts to the list. Those that stay keep their order, at the end of the place. */
static uint32_t world_take(struct level_world *world, uint32_t *list, uint32_t count) {
    const struct step_arrays *arrays = world->arrays;
    uint32_t shorts = world->shorts_end - world->shorts_begin;
    uint32_t *queue = world->shorts + world->shorts_begin;
    uint32_t last = 0;
    for (uint32_t i = 0; i < shorts; i++) {
        last = arrays->taken[i] ? i + 1 : last;
        list[count] = queue[i];
        count += arrays->taken[i];
    }
    uint32_t begin = last;
    for (uint32_t i = last; i > 0; i--) {
        if (!arrays->taken[i - 1]) {
            queue[--begin] = queue[i - 1];
        }
    }
    world->shorts_begin += begin;
    return count;
}

static void world_give_back(struct level_world *world, uint32_t document) {
    world->left_over++;
    world->left_over_tokens += world->lengths[document];
    if (world_is_candidate(world, document)) {
        world_wait(world, document);
        return;
    }
    uint32_t at = --world->shorts_begin;
    for (; at + 1 < world->shorts_end && world->shorts[at + 1] < document; at++) {
        world->shorts[at] = world->shorts[at + 1];
    }
    world->shorts[at] = document;
}

static void world_pack(struct level_world *world, const uint32_t *list, uint32_t count) {
    struct step_arrays *arrays = world->arrays;
    for (uint32_t i = 0; i < count; i++) {
        arrays->lengths[i] = world->lengths[list[i]];
        arrays->works[i] = level_world_work(world, arrays->lengths[i]);
    }
    struct pack_input input = {
        .lengths = arrays->lengths,
        .works = arrays->works,
        .items = count,
        .bins = world->options.bins,
        .tokens_max = world->options.bin_tokens,
    };
    pack_greedy(&input, arrays->pack_scratch, arrays->bins, arrays->order, world->bin_works,
                world->bin_tokens);
    for (uint32_t i = 0; i < count; i++) {
        if (arrays->bins[i] == PACK_LEFT_OVER) {
            world_give_back(world, list[i]);
            continue;
        }
        world->delivered_in[list[i]] = world->state.step;
        world->packed_tokens += arrays->lengths[i];
        world->packed_documents[world->packed] = list[i];
        world->packed_bins[world->packed++] = arrays->bins[i];
    }
}

bool level_world_step(struct level_world *world) {
    struct step_arrays *arrays = world->arrays;
    world_scan(world);
    uint64_t left = world->tokens - world->state.delivered_tokens;
    if (world->scanned == world->documents && left <= DRAIN_STEPS * world->options.step_tokens) {
        return false;
    }
    world->packed = 0;
    world->packed_tokens = 0;
    world->left_over = 0;
    world->left_over_tokens = 0;
    struct level_view view = world_view(world);
    level_decide(&world->options, &world->state, &view, arrays->level_scratch, arrays->verdicts,
                 &world->decision);
    memset(arrays->taken, 0, world->shorts_end - world->shorts_begin);
    uint64_t taken = level_take_shorts(&world->options, arrays->short_lengths, view.shorts,
                                       world->decision.released_tokens, world->decision.tokens,
                                       arrays->taken);
    world->fit_gap = world->decision.tokens - world->decision.released_tokens - taken;
    uint32_t count = world_release(world, arrays->list);
    count = world_take(world, arrays->list, count);
    world_pack(world, arrays->list, count);
    level_advance(&world->options, &world->state, world->packed_tokens);
    return true;
}
