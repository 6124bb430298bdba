/* best_fit: places and cuts first, then puts pieces and windows into reading order. */
#include "packer/best_fit.h"

#include "packer/bins.h"
#include "packer/order.h"

#include <assert.h>
#include <string.h>

#define BUCKET_WORDS 64u
#define BUCKETS      (64u * BUCKET_WORDS)

struct best_fit {
    const struct best_fit_input *input;
    struct fixed_piece *pieces; /* in the order of placing */
    struct fixed_piece *spare;
    uint64_t *tokens; /* of the bins as begun */
    uint32_t *order;  /* items, then the bins that they began, then their tokens so far */
    uint32_t *next;   /* of a begun bin in its bucket */
    uint32_t *ranks;  /* of bins as begun */
    uint32_t *starts; /* of a begun bin its first item, then where its pieces go */
    void *sort;
    uint32_t begun;
    uint32_t piece_count;
    uint32_t heads[BUCKETS];
    uint64_t words[BUCKET_WORDS]; /* which buckets have bins */
    uint64_t summary;             /* which words are not 0 */
};

size_t pack_best_fit_bytes(uint32_t items, uint32_t bins) {
    return sizeof(struct best_fit) + sizeof(uint64_t) * (size_t)bins +
           order_by_length_bytes(items) +
           sizeof(struct fixed_piece) * pack_fixed_pieces_max(items, bins) +
           sizeof(uint32_t) * ((size_t)items + 3 * (size_t)bins);
}

static struct best_fit *best_fit_of(const struct best_fit_input *input, void *scratch,
                                    struct fixed_piece *pieces) {
    struct best_fit *fit = scratch;
    *fit = (struct best_fit){.input = input, .pieces = pieces, .tokens = (uint64_t *)(fit + 1)};
    fit->sort = fit->tokens + input->bins;
    fit->spare = (struct fixed_piece *)((unsigned char *)fit->sort +
                                        order_by_length_bytes(input->items));
    fit->order = (uint32_t *)(fit->spare + pack_fixed_pieces_max(input->items, input->bins));
    fit->next = fit->order + input->items;
    fit->ranks = fit->next + input->bins;
    fit->starts = fit->ranks + input->bins;
    memset(fit->heads, 0xff, sizeof fit->heads);
    return fit;
}

static uint64_t best_fit_room(const struct best_fit *fit, uint32_t bin) {
    return fit->input->window - fit->tokens[bin];
}

static uint32_t best_fit_bucket(const struct best_fit *fit, uint64_t room) {
    return (uint32_t)((room - 1) * BUCKETS / fit->input->window);
}

static void best_fit_insert(struct best_fit *fit, uint32_t bin) {
    uint64_t room = best_fit_room(fit, bin);
    if (room == 0) {
        return;
    }
    uint32_t bucket = best_fit_bucket(fit, room);
    fit->next[bin] = fit->heads[bucket];
    fit->heads[bucket] = bin;
    fit->words[bucket / 64] |= UINT64_C(1) << bucket % 64;
    fit->summary |= UINT64_C(1) << bucket / 64;
}

static void best_fit_remove(struct best_fit *fit, uint32_t bin) {
    uint32_t bucket = best_fit_bucket(fit, best_fit_room(fit, bin));
    uint32_t *link = &fit->heads[bucket];
    while (*link != bin) {
        link = &fit->next[*link];
    }
    *link = fit->next[bin];
    if (fit->heads[bucket] == BIN_NONE) {
        fit->words[bucket / 64] &= ~(UINT64_C(1) << bucket % 64);
        if (fit->words[bucket / 64] == 0) {
            fit->summary &= ~(UINT64_C(1) << bucket / 64);
        }
    }
}

/* The first bucket with bins at or behind this one; BUCKETS without. */
static uint32_t best_fit_next_bucket(const struct best_fit *fit, uint32_t bucket) {
    if (bucket == BUCKETS) {
        return BUCKETS;
    }
    uint64_t here = fit->words[bucket / 64] >> bucket % 64;
    if (here != 0) {
        return bucket + (uint32_t)__builtin_ctzll(here);
    }
    uint64_t words = bucket / 64 < 63 ? fit->summary >> (bucket / 64 + 1) : 0;
    if (words == 0) {
        return BUCKETS;
    }
    uint32_t word = bucket / 64 + 1 + (uint32_t)__builtin_ctzll(words);
    return 64 * word + (uint32_t)__builtin_ctzll(fit->words[word]);
}

/* Of a bucket's bins with this much room the one with the least of it. */
static uint32_t best_fit_least(const struct best_fit *fit, uint32_t bucket, uint64_t room_min) {
    uint32_t best = BIN_NONE;
    uint64_t best_room = UINT64_MAX;
    for (uint32_t bin = fit->heads[bucket]; bin != BIN_NONE; bin = fit->next[bin]) {
        uint64_t room = best_fit_room(fit, bin);
        if (room >= room_min && (room < best_room || (room == best_room && bin < best))) {
            best = bin;
            best_room = room;
        }
    }
    return best;
}

static uint32_t best_fit_begin(struct best_fit *fit) {
    best_fit_insert(fit, fit->begun);
    return fit->begun++;
}

/* The bin for a whole document, or BIN_NONE; this one and those after it are `items`. Only its own
 * bucket may have bins without room. */
static uint32_t best_fit_find(struct best_fit *fit, uint32_t length, uint32_t items) {
    uint32_t bin = BIN_NONE;
    if (length <= fit->input->window) {
        if (items <= fit->input->bins - fit->begun) {
            return best_fit_begin(fit);
        }
        uint32_t own = best_fit_bucket(fit, length);
        bin = best_fit_least(fit, own, length);
        uint32_t bucket = bin == BIN_NONE ? best_fit_next_bucket(fit, own + 1) : BUCKETS;
        bin = bucket < BUCKETS ? best_fit_least(fit, bucket, length) : bin;
        if (bin == BIN_NONE && fit->begun < fit->input->bins) {
            bin = best_fit_begin(fit);
        }
    }
    return bin;
}

/* The bin with the most room; an unbegun one has no less than any. */
static uint32_t best_fit_roomiest(struct best_fit *fit) {
    if (fit->begun < fit->input->bins) {
        return best_fit_begin(fit);
    }
    assert(fit->summary != 0);
    uint32_t word = 63 - (uint32_t)__builtin_clzll(fit->summary);
    uint32_t bucket = 64 * word + 63 - (uint32_t)__builtin_clzll(fit->words[word]);
    uint32_t best = fit->heads[bucket];
    for (uint32_t bin = fit->next[best]; bin != BIN_NONE; bin = fit->next[bin]) {
        uint64_t room = best_fit_room(fit, bin);
        uint64_t best_room = best_fit_room(fit, best);
        best = room > best_room || (room == best_room && bin < best) ? bin : best;
    }
    return best;
}

static void best_fit_place(struct best_fit *fit, uint32_t item, uint32_t length, uint32_t bin) {
    best_fit_remove(fit, bin);
    if (fit->tokens[bin] == 0) {
        fit->starts[bin] = item;
    }
    fit->tokens[bin] += length;
    best_fit_insert(fit, bin);
    fit->pieces[fit->piece_count++] = (struct fixed_piece){
        .item = item, .length = length, .bin = bin};
}

static void best_fit_fill(struct best_fit *fit) {
    const struct best_fit_input *input = fit->input;
    memset(fit->tokens, 0, input->bins * sizeof *fit->tokens);
    order_by_length(input->lengths, input->items, fit->sort, fit->order);
    for (uint32_t i = 0; i < input->items; i++) {
        uint32_t item = fit->order[i];
        uint32_t left = input->lengths[item];
        assert(left > 0);
        uint32_t bin = best_fit_find(fit, left, input->items - i);
        while (left > 0) {
            bin = bin != BIN_NONE ? bin : best_fit_roomiest(fit);
            uint64_t room = best_fit_room(fit, bin);
            uint32_t length = left < room ? left : (uint32_t)room;
            best_fit_place(fit, item, length, bin);
            left -= length;
            bin = BIN_NONE;
        }
    }
}

/* Makes counts the places where each begins. */
static void best_fit_starts(uint32_t *counts, uint32_t count) {
    uint32_t start = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t here = counts[i];
        counts[i] = start;
        start += here;
    }
}

/* Bins by (item that began them, number); empty ones last. */
static void best_fit_rank(struct best_fit *fit) {
    const struct best_fit_input *input = fit->input;
    memset(fit->order, 0, input->items * sizeof *fit->order);
    for (uint32_t bin = 0; bin < fit->begun; bin++) {
        fit->order[fit->starts[bin]]++;
    }
    best_fit_starts(fit->order, input->items);
    for (uint32_t bin = 0; bin < input->bins; bin++) {
        fit->ranks[bin] = bin < fit->begun ? fit->order[fit->starts[bin]]++ : bin;
    }
}

uint32_t pack_best_fit(const struct best_fit_input *input, void *scratch,
                       struct fixed_piece *pieces, uint64_t *bin_tokens) {
    struct best_fit *fit = best_fit_of(input, scratch, pieces);
    best_fit_fill(fit);
    best_fit_rank(fit);
    memset(fit->starts, 0, input->bins * sizeof *fit->starts);
    for (uint32_t i = 0; i < fit->piece_count; i++) {
        fit->starts[fit->ranks[pieces[i].bin]]++;
    }
    best_fit_starts(fit->starts, input->bins);
    memcpy(fit->spare, pieces, fit->piece_count * sizeof *pieces);
    for (uint32_t i = 0; i < fit->piece_count; i++) {
        struct fixed_piece piece = fit->spare[i];
        piece.bin = fit->ranks[piece.bin];
        pieces[fit->starts[piece.bin]++] = piece;
    }
    for (uint32_t bin = 0; bin < input->bins; bin++) {
        bin_tokens[fit->ranks[bin]] = fit->tokens[bin];
    }
    uint32_t *taken = fit->order;
    memset(taken, 0, input->items * sizeof *taken);
    for (uint32_t i = 0; i < fit->piece_count; i++) {
        pieces[i].offset = taken[pieces[i].item];
        taken[pieces[i].item] += pieces[i].length;
    }
    return fit->piece_count;
}
