/* plans: see plans.h. */
#include "daemon/plans.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void plans_deinit(struct plans *plans) {
    for (uint32_t i = 0; i < plans->count; i++) {
        assert(plans->entries[i]->uses == 0);
        step_plan_destroy(plans->entries[i]->plan);
        free(plans->entries[i]);
    }
    free(plans->entries);
    *plans = (struct plans){0};
}

/* The first entry whose step is not before `step`. */
static uint32_t plans_position(const struct plans *plans, uint64_t step) {
    uint32_t low = 0;
    uint32_t high = plans->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (plans->entries[middle]->plan->step < step) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

struct planned *plans_find(const struct plans *plans, uint64_t step) {
    uint32_t i = plans_position(plans, step);
    return i < plans->count && plans->entries[i]->plan->step == step ? plans->entries[i] : NULL;
}

uint32_t plans_fit(const struct plans *plans, uint64_t bytes) {
    uint64_t fit = plans->count == 0 ? 0 : bytes * plans->count / plans->bytes;
    return fit == 0 ? 1 : fit < UINT32_MAX ? (uint32_t)fit : UINT32_MAX;
}

static bool plans_reserve(struct plans *plans) {
    if (plans->count < plans->capacity) {
        return true;
    }
    uint32_t capacity = plans->capacity == 0 ? 16 : 2 * plans->capacity;
    struct planned **entries = realloc(plans->entries, capacity * sizeof(struct planned *));
    if (entries == NULL) {
        return false;
    }
    plans->entries = entries;
    plans->capacity = capacity;
    return true;
}

int plans_add(struct plans *plans, struct step_plan *plan) {
    if (plans_find(plans, plan->step) != NULL) {
        step_plan_destroy(plan);
        return 0;
    }
    struct planned *planned = malloc(sizeof *planned);
    if (planned == NULL || !plans_reserve(plans)) {
        free(planned);
        step_plan_destroy(plan);
        return -ENOMEM;
    }
    *planned = (struct planned){.plan = plan};
    uint32_t i = plans_position(plans, plan->step);
    memmove(&plans->entries[i + 1], &plans->entries[i],
            (plans->count - i) * sizeof(struct planned *));
    plans->entries[i] = planned;
    plans->count++;
    plans->bytes += step_plan_bytes(plan);
    return 0;
}

static void plans_drop(struct plans *plans, struct planned *planned) {
    plans->bytes -= step_plan_bytes(planned->plan);
    step_plan_destroy(planned->plan);
    free(planned);
}

void plans_cut(struct plans *plans, uint64_t first, uint64_t end) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < plans->count; i++) {
        struct planned *planned = plans->entries[i];
        uint64_t step = planned->plan->step;
        if ((first <= step && step < end) || planned->uses > 0) {
            plans->entries[kept++] = planned;
        } else {
            plans_drop(plans, planned);
        }
    }
    plans->count = kept;
}

void plans_trim(struct plans *plans, uint64_t keep_from, const struct roster *roster) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < plans->count; i++) {
        struct planned *planned = plans->entries[i];
        if (planned->plan->step >= keep_from || planned->uses > 0 ||
            roster_stands_at(roster, planned->plan->step)) {
            plans->entries[kept++] = planned;
        } else {
            plans_drop(plans, planned);
        }
    }
    plans->count = kept;
}
