/* phase: see phase.h. */
#include "daemon/phase.h"

#include "planner/schedule.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool phase_same_mesh(const struct config *a, const struct config *b) {
    const struct plan_options *x = &a->plan;
    const struct plan_options *y = &b->plan;
    return x->dp == y->dp && x->pp == y->pp && x->cp == y->cp && x->tp == y->tp &&
           memcmp(a->replicas_local, b->replicas_local, x->dp) == 0;
}

/* What a slot of this section takes: what its micro-batches may, or as the config says. */
static int phase_slot_bytes(const struct config *config, uint32_t token_bytes, uint64_t *out,
                            struct error *error) {
    uint64_t least = config_slot_bytes(&config->plan, token_bytes);
    if (config->slot_size > 0 && config->slot_size < least) {
        return error_set(error, -EINVAL,
                         "slab.slot_size = %" PRIu64
                         " cannot hold a micro-batch of plan.tokens_max = %" PRIu64
                         " tokens, which takes %" PRIu64 "; raise it, or set it to auto",
                         config->slot_size, (uint64_t)config->plan.tokens_max, least);
    }
    *out = config->slot_size > 0 ? (config->slot_size + 4095) / 4096 * 4096 : least;
    return 0;
}

static void phase_widen(struct phase *phase, const struct config *config, uint64_t slot_bytes) {
    const struct plan_options *plan = &config->plan;
    uint32_t replica_slots = config->slots / config->replicas_local_count;
    uint32_t micro_batches = plan->micro_batches / plan->dp;
    phase->slot_bytes = slot_bytes > phase->slot_bytes ? slot_bytes : phase->slot_bytes;
    phase->tokens_max = plan->tokens_max > phase->tokens_max ? plan->tokens_max : phase->tokens_max;
    if (replica_slots > phase->replica_slots) {
        phase->replica_slots = replica_slots;
    }
    if (micro_batches > phase->micro_batches_max) {
        phase->micro_batches_max = micro_batches;
    }
}

/* Steps of the section from `step` on; those before it in the phase are known. */
static void phase_add(struct phase *phase, uint64_t step, uint32_t micro_batches) {
    struct roster_span *span = &phase->spans[phase->span_count++];
    *span = (struct roster_span){.step = step, .micro_batches = micro_batches};
    if (phase->span_count > 1) {
        span->position = span[-1].position + (step - span[-1].step) * span[-1].micro_batches;
    }
}

static void phase_say_next(struct phase *phase, const struct plan_options *next) {
    (void)snprintf(phase->next, sizeof phase->next,
                   "from step %" PRIu64 " on the mesh is another ([from %" PRIu64
                   "]: dp %u, pp %u, cp %u, tp %u, %u micro-batches); connect anew as a rank of it",
                   phase->end, phase->end, next->dp, next->pp, next->cp, next->tp,
                   next->micro_batches);
}

int phase_init(struct phase *phase, const struct config *config, uint64_t step,
               uint32_t token_bytes, struct error *error) {
    const struct plan_section *sections = config->sections;
    uint32_t count = config->section_count;
    uint32_t i = plan_section_at(sections, count, step);
    *phase = (struct phase){.end = UINT64_MAX};
    while (i > 0 &&
           phase_same_mesh(config_of_section(config, i - 1), config_of_section(config, i))) {
        i--;
    }
    phase->begin = sections[i].step;
    phase->config = config_of_section(config, i);
    phase->spans = calloc(count - i, sizeof *phase->spans);
    if (phase->spans == NULL) {
        return error_set(error, -ENOMEM, "out of memory for %u sections", count - i);
    }
    for (; i < count && phase_same_mesh(phase->config, config_of_section(config, i)); i++) {
        const struct plan_options *plan = &sections[i].options;
        uint64_t slot_bytes = 0;
        int code = phase_slot_bytes(config_of_section(config, i), token_bytes, &slot_bytes, error);
        if (code < 0) {
            phase_deinit(phase);
            return code;
        }
        phase_widen(phase, config_of_section(config, i), slot_bytes);
        phase_add(phase, sections[i].step, plan->micro_batches / plan->dp);
    }
    if (i < count) {
        phase->end = sections[i].step;
        phase_say_next(phase, &sections[i].options);
    }
    return 0;
}

void phase_deinit(struct phase *phase) {
    free(phase->spans);
    *phase = (struct phase){0};
}
