/* measured: see measured.h. */
#include "daemon/measured.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PPM               1000000u
#define EXPERT_TOKENS_MAX (UINT64_C(1) << 40) /* more is this many: sums stay in 128 bits */

typedef unsigned __int128 u128;

int measured_init(struct measured *measured, uint32_t replicas, uint32_t micro_batches,
                  uint32_t ranks) {
    size_t times = (size_t)MEASURED_STEPS * replicas * micro_batches;
    *measured = (struct measured){
        .replicas = replicas, .micro_batches = micro_batches, .ranks = ranks};
    measured->total_ns = calloc(times, sizeof *measured->total_ns);
    measured->attention_ns = calloc(times, sizeof *measured->attention_ns);
    measured->experts = calloc((size_t)MEASURED_STEPS * micro_batches, sizeof *measured->experts);
    measured->reported = calloc((size_t)MEASURED_STEPS * ranks, sizeof *measured->reported);
    if (measured->total_ns == NULL || measured->attention_ns == NULL || measured->experts == NULL ||
        measured->reported == NULL) {
        measured_deinit(measured);
        return -ENOMEM;
    }
    return 0;
}

void measured_deinit(struct measured *measured) {
    free(measured->reported);
    free(measured->experts);
    free(measured->attention_ns);
    free(measured->total_ns);
    *measured = (struct measured){0};
}

static uint32_t entry_of(uint64_t step) {
    return (uint32_t)(step % MEASURED_STEPS);
}

/* The first of a step's times, by replica and index. */
static size_t times_of(const struct measured *measured, uint64_t step) {
    return (size_t)entry_of(step) * measured->replicas * measured->micro_batches;
}

static struct expert_load *experts_of(const struct measured *measured, uint64_t step) {
    return &measured->experts[(size_t)entry_of(step) * measured->micro_batches];
}

static void measured_forget(struct measured *measured, uint64_t step) {
    size_t times = (size_t)measured->replicas * measured->micro_batches;
    measured->steps[entry_of(step)] = (struct measured_step){.step = step};
    memset(&measured->total_ns[times_of(measured, step)], 0, times * sizeof(uint64_t));
    memset(&measured->attention_ns[times_of(measured, step)], 0, times * sizeof(uint64_t));
    memset(experts_of(measured, step), 0, measured->micro_batches * sizeof *measured->experts);
    memset(&measured->reported[(size_t)entry_of(step) * measured->ranks], 0,
           measured->ranks * sizeof *measured->reported);
}

void measured_rewind(struct measured *measured) {
    for (uint64_t step = 0; step < MEASURED_STEPS; step++) {
        measured_forget(measured, step);
        measured->plans[step] = (struct measured_plan){0};
    }
}

/* Of the replicas' micro-batches of one index the largest, for every index. */
static uint64_t input_ppm(const struct step_plan *plan) {
    uint32_t indexes = plan->micro_batch_count / plan->dp;
    u128 largest = 0;
    for (uint32_t index = 0; index < indexes; index++) {
        uint64_t most = 0;
        for (uint32_t dp = 0; dp < plan->dp; dp++) {
            uint64_t tokens = plan->micro_batches[dp * indexes + index].tokens;
            most = tokens > most ? tokens : most;
        }
        largest += most;
    }
    return plan->tokens > 0 ? (uint64_t)(largest * plan->dp * PPM / plan->tokens) : PPM;
}

void measured_give(struct measured *measured, const struct step_plan *plan) {
    struct measured_plan *entry = &measured->plans[entry_of(plan->step)];
    if (entry->known && plan->step <= entry->step) {
        return;
    }
    *entry = (struct measured_plan){.known = true,
                                    .step = plan->step,
                                    .micro_batches = plan->micro_batch_count / plan->dp,
                                    .input_ppm = input_ppm(plan),
                                    .balance = plan->balance};
}

bool measured_begin(struct measured *measured, uint64_t step, uint32_t rank) {
    struct measured_step *entry = &measured->steps[entry_of(step)];
    const struct measured_plan *plan = &measured->plans[entry_of(step)];
    bool *reported = &measured->reported[(size_t)entry_of(step) * measured->ranks + rank];
    assert(rank < measured->ranks);
    if (step < entry->step) {
        return false;
    }
    if (step > entry->step) {
        measured_forget(measured, step);
    }
    if (plan->known && plan->step == step) {
        assert(plan->micro_batches <= measured->micro_batches);
        entry->plan = *plan;
    }
    if (*reported) {
        return false;
    }
    *reported = true;
    entry->reports++;
    return true;
}

void measured_add_times(struct measured *measured, uint64_t step, uint32_t replica, uint32_t index,
                        uint64_t total_ns, uint64_t attention_ns) {
    size_t at = times_of(measured, step) + (size_t)replica * measured->micro_batches + index;
    assert(replica < measured->replicas && index < measured->micro_batches);
    if (total_ns > measured->total_ns[at]) {
        measured->total_ns[at] = total_ns;
    }
    if (attention_ns > measured->attention_ns[at]) {
        measured->attention_ns[at] = attention_ns;
    }
}

void measured_add_experts(struct measured *measured, uint64_t step, uint32_t index,
                          const uint64_t *tokens, size_t count) {
    struct expert_load *load = &experts_of(measured, step)[index];
    assert(index < measured->micro_batches);
    for (size_t i = 0; i < count; i++) {
        uint64_t one = tokens[i] < EXPERT_TOKENS_MAX ? tokens[i] : EXPERT_TOKENS_MAX;
        load->largest = one > load->largest ? one : load->largest;
        load->tokens += one;
    }
    load->experts += count;
}

const struct measured_step *measured_newest(const struct measured *measured, uint64_t committed) {
    const struct measured_step *newest = NULL;
    for (uint32_t i = 0; i < MEASURED_STEPS; i++) {
        const struct measured_step *entry = &measured->steps[i];
        if (entry->reports > 0 && entry->step < committed &&
            (newest == NULL || entry->step > newest->step)) {
            newest = entry;
        }
    }
    return newest;
}

const struct measured_step *measured_find(const struct measured *measured, uint64_t step) {
    const struct measured_step *entry = &measured->steps[entry_of(step)];
    return entry->reports > 0 && entry->step == step ? entry : NULL;
}

/* 0 unless all are known. */
static uint64_t times_ppm(const struct measured *measured, const uint64_t *times_ns,
                          uint32_t micro_batches) {
    uint64_t largest = 0;
    u128 sum = 0;
    for (uint32_t replica = 0; replica < measured->replicas; replica++) {
        const uint64_t *times = &times_ns[(size_t)replica * measured->micro_batches];
        for (uint32_t i = 0; i < micro_batches; i++) {
            if (times[i] == 0) {
                return 0;
            }
            largest = times[i] > largest ? times[i] : largest;
            sum += times[i];
        }
    }
    return (uint64_t)((u128)largest * measured->replicas * micro_batches * PPM / sum);
}

static uint64_t experts_ppm(const struct expert_load *loads, uint32_t count) {
    u128 largest = 0;
    u128 sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        largest += (u128)loads[i].largest * loads[i].experts;
        sum += loads[i].tokens;
    }
    return sum > 0 ? (uint64_t)(largest * PPM / sum) : 0;
}

struct measured_ratios measured_ratios(const struct measured *measured, uint64_t step) {
    const struct measured_step *entry = measured_find(measured, step);
    size_t times = times_of(measured, step);
    assert(entry != NULL);
    uint32_t micro_batches = entry->plan.known ? entry->plan.micro_batches
                                               : measured->micro_batches;
    return (struct measured_ratios){
        .total_ppm = times_ppm(measured, &measured->total_ns[times], micro_batches),
        .attention_ppm = times_ppm(measured, &measured->attention_ns[times], micro_batches),
        .expert_ppm = experts_ppm(experts_of(measured, step), measured->micro_batches),
    };
}
