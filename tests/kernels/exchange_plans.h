/* exchange_plans: real plans for the tests of the exchange, by plan_step on a small distribution.
 */
#ifndef BALLAST_TESTS_EXCHANGE_PLANS_H
#define BALLAST_TESTS_EXCHANGE_PLANS_H

#include "planner/planner.h"

#define EXCHANGE_Q_HEADS  8u
#define EXCHANGE_KV_HEADS 4u

/* Called with each plan of a job's first steps. */
typedef void exchange_plan_visit(void *context, const struct step_plan *plan);

/* Whether these options hold together; all of the job's plans are visited if so. */
bool exchange_plans_of(const struct plan_options *options, uint32_t steps,
                       exchange_plan_visit *visit, void *context);

/* One micro-batch a replica of about 120 rows. */
struct plan_options exchange_layout_options(enum layout layout, uint32_t cp);
struct plan_options exchange_pool_options(uint32_t replicas, uint32_t cp, uint32_t head_shards,
                                          bool chain);

#endif
