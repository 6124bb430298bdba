/* pools_world: see pools_world.h. */
#include "pools_world.h"

#include "packer/best_fit.h"
#include "planner/distribution.h"

#include <stdio.h>
#include <stdlib.h>

static void *allocate(size_t count, size_t bytes) {
    void *memory = calloc(count > 0 ? count : 1, bytes);
    if (memory == NULL) {
        fprintf(stderr, "pools_world: no memory\n");
        exit(1);
    }
    return memory;
}

/* Documents until `count` windows' worth of tokens is there. */
static uint32_t draw(const struct distribution *distribution, uint32_t window, uint64_t seed,
                     uint64_t tokens, uint32_t **lengths) {
    uint32_t capacity = 1024;
    uint32_t items = 0;
    *lengths = allocate(capacity, sizeof **lengths);
    for (uint64_t sum = 0; sum < tokens; items++) {
        if (items == capacity) {
            capacity *= 2;
            *lengths = realloc(*lengths, capacity * sizeof **lengths);
        }
        uint32_t length = distribution_length(distribution, seed, items);
        (*lengths)[items] = length < window ? length : window;
        sum += (*lengths)[items];
    }
    return items;
}

/* By window, and in it in reading order, as a pool's micro-batches hold their documents. */
static int piece_compare(const void *a, const void *b) {
    const struct fixed_piece *x = a;
    const struct fixed_piece *y = b;
    if (x->bin != y->bin) {
        return x->bin < y->bin ? -1 : 1;
    }
    return x->item < y->item ? -1 : x->item > y->item;
}

void windows_init(struct windows *windows, const char *name, uint64_t seed, uint32_t count) {
    uint32_t window = distribution_window(distribution_find(name));
    windows_init_clipped(windows, name, window, seed, count);
}

void windows_init_clipped(struct windows *windows, const char *name, uint32_t window, uint64_t seed,
                          uint32_t count) {
    uint32_t *drawn;
    uint32_t items = draw(distribution_find(name), window, seed, (uint64_t)count * window, &drawn);
    uint32_t bins = count + 1;
    struct best_fit_input input = {drawn, items, bins, window};
    struct fixed_piece *pieces = allocate(pack_fixed_pieces_max(items, bins), sizeof *pieces);
    uint64_t *tokens = allocate(bins, sizeof *tokens);
    void *scratch = allocate(pack_best_fit_bytes(items, bins), 1);
    uint32_t placed = pack_best_fit(&input, scratch, pieces, tokens);
    qsort(pieces, placed, sizeof *pieces, piece_compare);
    *windows = (struct windows){.window = window, .count = count};
    windows->lengths = allocate(placed, sizeof *windows->lengths);
    windows->begins = allocate(bins + 1, sizeof *windows->begins);
    windows->works = allocate(bins, sizeof *windows->works);
    for (uint32_t i = 0, bin = 0; i < placed; i++) {
        uint64_t length = pieces[i].length;
        for (; bin < pieces[i].bin; bin++) {
            windows->begins[bin + 1] = i;
        }
        windows->lengths[i] = pieces[i].length;
        windows->works[bin] += length * length;
        windows->begins[bin + 1] = i + 1;
    }
    free(scratch);
    free(tokens);
    free(pieces);
    free(drawn);
}

void windows_deinit(struct windows *windows) {
    free(windows->works);
    free(windows->begins);
    free(windows->lengths);
}

void pooled_init(struct pooled *pooled, const struct pool_shape *shape,
                 const struct windows *windows, const uint32_t *members) {
    uint32_t workers = pool_workers(shape);
    *pooled = (struct pooled){.pool = {.shape = *shape}};
    pooled->sequences = allocate(shape->sequences, sizeof *pooled->sequences);
    pooled->runs = allocate(workers, sizeof *pooled->runs);
    pooled->pool.sequences = pooled->sequences;
    for (uint32_t s = 0; s < shape->sequences; s++) {
        uint32_t begin = windows->begins[members[s]];
        struct pool_sequence *sequence = &pooled->sequences[s];
        sequence->lengths = windows->lengths + begin;
        sequence->documents = windows->begins[members[s] + 1] - begin;
        uint32_t tokens = 0;
        for (uint32_t i = 0; i < sequence->documents; i++) {
            tokens += sequence->lengths[i];
        }
        sequence->runs = pooled->runs + (size_t)s * shape->ranks;
        sequence->run_count = pool_home_contiguous(shape, s, windows->window, tokens,
                                                   pooled->runs + (size_t)s * shape->ranks);
    }
    size_t pieces = pool_pieces_max(&pooled->pool);
    struct pool_piece *piece = allocate(pieces, sizeof *piece);
    struct pool_span *span = allocate(pieces, sizeof *span);
    pool_cut(&pooled->pool, piece, span, &pooled->tiles);
    pooled->workers = allocate(pool_tile_count(shape, &pooled->tiles), sizeof *pooled->workers);
    pooled->loads = allocate(workers, sizeof *pooled->loads);
    pooled->links = allocate(workers, sizeof *pooled->links);
    pooled->scratch = allocate(pool_plan_bytes(shape, &pooled->tiles), 1);
}

void pooled_deinit(struct pooled *pooled) {
    free(pooled->scratch);
    free(pooled->links);
    free(pooled->loads);
    free(pooled->workers);
    free(pooled->tiles.spans);
    free(pooled->tiles.pieces);
    free(pooled->runs);
    free(pooled->sequences);
}
