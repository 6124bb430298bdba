/* schedule: a config that changes from step to step, as one pure function.
 *
 *     state(k+1), plan(k) = plan_step(state(k), documents, options at k)
 *
 * Every section of the config has a planner, made when the first of its steps is planned. States
 * are the same throughout, and know nothing of sections: what a section changes is settled in its
 * first step (section.c), so that a section that is added behind all planned steps changes no state
 * that was stored. One thread at a time. */
#ifndef BALLAST_PLANNER_SCHEDULE_H
#define BALLAST_PLANNER_SCHEDULE_H

#include "planner/planner.h"

struct schedule;

/* Sections and source are borrowed and must outlive the schedule. Makes the first planner, so that
 * what may fail fails here. NULL with the reason in `error`. */
struct schedule *schedule_create(const struct plan_section *sections, uint32_t count,
                                 const struct document_source *source, struct error *error);
void schedule_destroy(struct schedule *schedule); /* NULL is fine */

/* Index of the section that a step is in. */
uint32_t plan_section_at(const struct plan_section *sections, uint32_t count, uint64_t step);

/* Options of a step. */
const struct plan_options *schedule_options(const struct schedule *schedule, uint64_t step);

/* Of the first section. */
const struct work_model *schedule_model(const struct schedule *schedule);

/* What prices a step, by name: "analytic", a latency profile's; as far as its section was planned,
 * else the first section's. */
const char *schedule_prices(const struct schedule *schedule, uint64_t step);

/* planner.h's functions, for the section that the state is in. */
struct plan_state *schedule_state_create(const struct schedule *schedule);
int schedule_step(struct schedule *schedule, const struct plan_state *state,
                  struct plan_state *next, struct step_plan **plan, struct error *error);

/* The state was made by the step before it, under that one's options. */
int schedule_check_state(struct schedule *schedule, const struct plan_state *state,
                         struct error *error);

/* Parts in hand while the last step was planned. */
uint32_t schedule_in_hand(const struct schedule *schedule);

#endif
