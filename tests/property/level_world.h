/* level_world: a stream of documents that wlb:level's decisions are carried out on: scan, decide,
 * take, pack, advance, as queues/level.h says. Works are L * (L + cost_linear). Tests only. */
#ifndef BALLAST_TESTS_LEVEL_WORLD_H
#define BALLAST_TESTS_LEVEL_WORLD_H

#include "planner/distribution.h"
#include "queues/level.h"

struct level_world {
    struct level_options options;
    struct level_state state;
    uint64_t cost_linear;

    /* The stream: documents by their number in it. */
    uint32_t documents;
    const uint32_t *lengths; /* borrowed */
    uint64_t *nominal_steps; /* of those scanned */
    uint64_t *delivered_in;  /* step, or UINT64_MAX */
    uint64_t tokens;         /* of all */
    uint64_t scanned_tokens;
    uint32_t scanned;

    /* What is scanned and not delivered. */
    uint32_t *pool; /* by (length, number) */
    uint32_t pool_count;
    uint32_t *shorts; /* by number, [shorts_begin, shorts_end) */
    uint32_t shorts_begin;
    uint32_t shorts_end;

    /* The last step. */
    struct level_decision decision;
    uint32_t packed; /* documents */
    uint32_t *packed_documents;
    uint32_t *packed_bins;
    uint32_t left_over;
    uint64_t left_over_tokens;
    uint64_t packed_tokens;
    uint64_t fit_gap; /* tokens that no short in the fit window filled */
    uint64_t *bin_works;
    uint64_t *bin_tokens;

    void *arrays;
};

/* A preset's options for bins of `room_percent` of the window; T as the planner would default it.
 */
struct level_options level_world_options(enum level_preset preset, uint32_t window, uint32_t bins,
                                         uint32_t room_percent);

/* The first `tokens` of a distribution's stream, documents cut at its window. The caller frees. */
uint32_t *level_world_draw(const struct distribution *distribution, uint64_t seed, uint64_t tokens,
                           uint32_t *documents);

/* At step 0 of `documents` lengths. Memory is the world's until level_world_close. */
void level_world_open(struct level_world *world, const struct level_options *options,
                      uint64_t cost_linear, const uint32_t *lengths, uint32_t documents);
void level_world_close(struct level_world *world);

/* Plans and delivers a step. False, and nothing done, once the whole stream is scanned and at most
 * four steps of tokens are left: the drain's. */
bool level_world_step(struct level_world *world);

uint64_t level_world_work(const struct level_world *world, uint32_t length);

/* Largest work over mean work of the last step's bins, in millionths. */
uint64_t level_world_imbalance(const struct level_world *world);

#endif
