/* message: plans as wire messages. Built in an arena, so nothing is freed one by one; pointers into
 * the plan stay borrowed. NULL means the arena is full. */
#ifndef BALLAST_PROTO_MESSAGE_H
#define BALLAST_PROTO_MESSAGE_H

#include "ballast.pb-c.h"
#include "planner/plan.h"
#include "planner/state.h"
#include "proto/arena.h"

/* fragments false leaves RankShard.fragments empty (Plan without them). */
Ballast__V1__MicroBatch *message_micro_batch(struct arena *arena, const struct step_plan *plan,
                                             uint32_t micro_batch, bool fragments);

/* Micro-batches [first, first + count) of the plan, with everything else of StepPlan. */
Ballast__V1__StepPlan *message_step_plan(struct arena *arena, const struct step_plan *plan,
                                         uint32_t first, uint32_t count, bool fragments);

Ballast__V1__Balance *message_balance(struct arena *arena, const struct balance *balance);

/* Bands, then "leftover", from a state; waiting documents listed when `documents`. `policy_bands`
 * are the options that the state was made with. */
Ballast__V1__QueuesResponse *message_queues(struct arena *arena, const struct plan_state *state,
                                            const struct bands_options *policy_bands,
                                            bool documents);

/* One dataset's counters; name and sizes are the caller's knowledge of the corpus. */
Ballast__V1__DatasetStatus *message_dataset(struct arena *arena, const struct plan_state *state,
                                            uint32_t dataset, const char *name, uint64_t documents,
                                            uint64_t tokens);

Ballast__V1__DatasetDelay *message_delay(struct arena *arena, const struct plan_state *state,
                                         uint32_t dataset, const char *name);

#endif
