/* plan_pools: the pools of a plan for people: a row for each, and bars for their workers. */
#ifndef BALLAST_CTL_PLAN_POOLS_H
#define BALLAST_CTL_PLAN_POOLS_H

#include "ballast.pb-c.h"

#include <stdbool.h>

/* Workers that are listed unasked. */
#define PLAN_POOLS_WORKERS_MAX 64u

/* Prints the pools, and for each of their workers its load over the mean and the bytes of a layer's
 * forward pass that it receives and sends, as numbers and as bars; the workers only when there are
 * few or `workers` asks for them. Pools must have their tiles and transfers; none prints nothing.
 * False: out of memory. */
bool plan_pools_print(const Ballast__V1__StepPlan *plan, bool workers);

#endif
