/* plans: the planned steps that ranks may need soon, in memory. Loop thread only.
 *
 * Mostly the steps from the slowest rank to the end of planning; besides, single steps that were
 * replayed for a rank further back, as long as one stands there. */
#ifndef BALLAST_DAEMON_PLANS_H
#define BALLAST_DAEMON_PLANS_H

#include "daemon/roster.h"
#include "planner/plan.h"

struct planned {
    struct step_plan *plan;
    uint32_t uses; /* reads in flight that point into it */
};

struct plans {
    struct planned **entries; /* by step */
    uint32_t count;
    uint32_t capacity;
    uint64_t bytes; /* of all plans */
};

void plans_deinit(struct plans *plans); /* fine for zeroed plans; nothing may be in use */

/* Takes the plan (frees it when its step is here already). -ENOMEM, the plan is then freed. */
int plans_add(struct plans *plans, struct step_plan *plan);

/* How many plans of the mean size of those that are here take `bytes`, at least 1; without any, 1.
 */
uint32_t plans_fit(const struct plans *plans, uint64_t bytes);

struct planned *plans_find(const struct plans *plans, uint64_t step);

/* Drops steps outside [first, end) that are not in use. */
void plans_cut(struct plans *plans, uint64_t first, uint64_t end);

/* Drops steps before `keep_from` that are not in use and at which no rank stands. */
void plans_trim(struct plans *plans, uint64_t keep_from, const struct roster *roster);

#endif
