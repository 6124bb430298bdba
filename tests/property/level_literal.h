/* level_literal: wlb:level's decision as its rules read, for small pools: every run walked document
 * by document, bins scanned one by one, the water level found by halving. Tests only. */
#ifndef BALLAST_TESTS_LEVEL_LITERAL_H
#define BALLAST_TESTS_LEVEL_LITERAL_H

#include "queues/level.h"

#define LITERAL_CANDIDATES_MAX 64u
#define LITERAL_BINS_MAX       16u

/* As level_decide, but for evaluations, which it leaves 0. */
void literal_decide(const struct level_options *options, const struct level_state *state,
                    const struct level_view *view, uint8_t *verdicts,
                    struct level_decision *decision);

#endif
