/* schedule: see schedule.h. */
#include "planner/schedule.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

struct schedule {
    const struct plan_section *sections;
    const struct document_source *source;
    uint32_t count;
    uint32_t parts_max; /* of all */
    uint32_t in_hand;
    struct planner *planners[]; /* by section; NULL: not needed yet */
};

uint32_t plan_section_at(const struct plan_section *sections, uint32_t count, uint64_t step) {
    uint32_t i = count - 1;
    while (i > 0 && sections[i].step > step) {
        i--;
    }
    return i;
}

static struct planner *schedule_planner_of(struct schedule *schedule, uint32_t section,
                                           struct error *error) {
    struct planner **planner = &schedule->planners[section];
    if (*planner == NULL) {
        *planner = planner_create_section(schedule->sections, section + 1, schedule->parts_max,
                                          schedule->source, error);
    }
    return *planner;
}

struct schedule *schedule_create(const struct plan_section *sections, uint32_t count,
                                 const struct document_source *source, struct error *error) {
    assert(0 < count && count <= PLAN_SECTIONS_MAX && sections[0].step == 0);
    struct schedule *schedule = calloc(1, sizeof *schedule + count * sizeof(struct planner *));
    if (schedule == NULL) {
        (void)error_set(error, -ENOMEM, "no memory for %" PRIu32 " sections", count);
        return NULL;
    }
    schedule->sections = sections;
    schedule->source = source;
    schedule->count = count;
    schedule->parts_max = plan_parts_max(&sections[count - 1].options);
    if (schedule_planner_of(schedule, 0, error) == NULL) {
        schedule_destroy(schedule);
        return NULL;
    }
    return schedule;
}

void schedule_destroy(struct schedule *schedule) {
    if (schedule != NULL) {
        for (uint32_t i = 0; i < schedule->count; i++) {
            planner_destroy(schedule->planners[i]);
        }
        free(schedule);
    }
}

const struct plan_options *schedule_options(const struct schedule *schedule, uint64_t step) {
    return &schedule->sections[plan_section_at(schedule->sections, schedule->count, step)].options;
}

const struct work_model *schedule_model(const struct schedule *schedule) {
    return planner_model(schedule->planners[0]);
}

const char *schedule_prices(const struct schedule *schedule, uint64_t step) {
    uint32_t section = plan_section_at(schedule->sections, schedule->count, step);
    const struct planner *planner = schedule->planners[section];
    return planner_model(planner != NULL ? planner : schedule->planners[0])->name;
}

struct plan_state *schedule_state_create(const struct schedule *schedule) {
    return planner_state_create(schedule->planners[0]);
}

int schedule_step(struct schedule *schedule, const struct plan_state *state,
                  struct plan_state *next, struct step_plan **plan, struct error *error) {
    struct error why;
    uint32_t section = plan_section_at(schedule->sections, schedule->count, state->step);
    struct planner *planner = schedule_planner_of(schedule, section, &why);
    if (planner == NULL) {
        return error_set(error, why.code, "step %" PRIu64 ": %s", state->step, why.text);
    }
    int code = plan_step(planner, state, next, plan, error);
    schedule->in_hand = planner_in_hand(planner);
    return code;
}

int schedule_check_state(struct schedule *schedule, const struct plan_state *state,
                         struct error *error) {
    uint64_t made_in = state->step > 0 ? state->step - 1 : 0;
    uint32_t section = plan_section_at(schedule->sections, schedule->count, made_in);
    uint64_t blends = (uint64_t)state->cursor.blend + state->blend_switch_count;
    struct error why;
    struct planner *planner = schedule_planner_of(schedule, section, &why);
    if (planner == NULL) {
        return error_set(error, why.code, "%s", why.text);
    }
    if (blends != schedule->sections[section].blend) {
        return error_set(error, -EBADMSG,
                         "state: step %" PRIu64 " was reached with %" PRIu64
                         " changes of weights, the config has %" PRIu32
                         " up to there; restore it under the config that it was made with",
                         state->step, blends, schedule->sections[section].blend);
    }
    return planner_check_state(planner, state, error);
}

uint32_t schedule_in_hand(const struct schedule *schedule) {
    return schedule->in_hand;
}
