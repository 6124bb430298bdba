/* distribution: the built-in document lengths that simulations and tests draw from.
 *
 * Each is an inverse cumulative table with linear interpolation, drawn from by a keyed hash of
 * (seed, index): document `index` of a stream is a function of the two alone. Integers only.
 *   wlb128k    128K-window job of WLB-LLM (figure 3)       mean 3,964 tokens
 *   prolong    ProLong corpus                              mean 3,057
 *   libra256k  fit to Libra's 256K corpus (table 1)        mean 3,020
 *   libra1m    fit to Libra's 1M corpus (table 1)          mean 6,504 */
#ifndef BALLAST_PLANNER_DISTRIBUTION_H
#define BALLAST_PLANNER_DISTRIBUTION_H

#include <stdint.h>

#define DISTRIBUTIONS 4u

struct distribution;

/* The index-th of DISTRIBUTIONS; the one with this name or NULL. Static memory. */
const struct distribution *distribution_at(uint32_t index);
const struct distribution *distribution_find(const char *name);

const char *distribution_name(const struct distribution *distribution);

/* The context window of the jobs that such documents are trained with, tokens. */
uint32_t distribution_window(const struct distribution *distribution);

/* The longest that can be drawn, tokens. */
uint32_t distribution_length_max(const struct distribution *distribution);

/* Tokens of document `index` of the stream `seed`, never 0; may exceed the window. */
uint32_t distribution_length(const struct distribution *distribution, uint64_t seed,
                             uint64_t index);

#endif
