/* plan_exchange: what the ranks of each context-parallel group, or of each pool, send each other,
 * as a table. */
#ifndef BALLAST_CTL_PLAN_EXCHANGE_H
#define BALLAST_CTL_PLAN_EXCHANGE_H

#include "ballast.pb-c.h"

#include <stdbool.h>

/* A row for every pair of ranks that exchanges: K and V rows of an all-gather, padding included, or
 * those that are needed; with ulysses rows of Q, K, V and O, for the receiver's heads; of pools the
 * bytes of a layer's forward pass. Fragments, tiles and transfers are in the plan. False: out of
 * memory. */
bool plan_exchange_print(const Ballast__V1__StepPlan *plan);

#endif
