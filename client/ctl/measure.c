/* measure: see measure.h. */
#include "client/ctl/measure.h"

#include "client/ctl/progress.h"
#include "client/ctl/statistics.h"
#include "planner/balance.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned __int128 u128;

#define SHARE_BITS   40
#define VARIED_STEPS 250u /* about as many are timed in variants too: ratios vary little */

#define FIELD(name)                                                                                \
    { #name, offsetof(struct outcome, name), false }
#define FIELD_OF_MEAN(name)                                                                        \
    { #name, offsetof(struct outcome, name), true }

/* By name. What is a mean is a sum until the end. */
static const struct {
    const char *name;
    size_t offset;
    bool mean;
} fields[] = {
    FIELD_OF_MEAN(attention_ppm),
    FIELD_OF_MEAN(attention_share_ppm),
    FIELD_OF_MEAN(bound_ppm),
    FIELD_OF_MEAN(bubble_ppm),
    FIELD_OF_MEAN(context_ppm),
    FIELD_OF_MEAN(cp_bytes),
    FIELD_OF_MEAN(critical_attention_ppm),
    FIELD_OF_MEAN(critical_communication_ppm),
    FIELD_OF_MEAN(critical_head_ppm),
    FIELD_OF_MEAN(critical_linear_ppm),
    FIELD_OF_MEAN(critical_other_ppm),
    FIELD(delay_max),
    FIELD(delay_mean_milli),
    FIELD(delay_p99),
    FIELD_OF_MEAN(even_ns),
    FIELD_OF_MEAN(fsdp_bytes),
    FIELD_OF_MEAN(heaviest_ns),
    FIELD(long_share_ppm),
    FIELD(long_weight_ppm),
    FIELD_OF_MEAN(micro_batch_ppm),
    FIELD_OF_MEAN(owner_ppm),
    FIELD(p99_ppm),
    FIELD_OF_MEAN(per_document_ppm),
    FIELD(plan_ns_p50),
    FIELD(plan_ns_p99),
    FIELD_OF_MEAN(replica_ppm),
    FIELD_OF_MEAN(send_bytes),
    FIELD_OF_MEAN(stage_ppm),
    FIELD_OF_MEAN(step_ns),
    FIELD(step_ns_max),
    FIELD(step_ns_p50),
    FIELD(step_ns_p99),
    FIELD(steps),
    FIELD(tokens),
    FIELD(tokens_cv_ppm),
    FIELD(tokens_off_ppm),
    FIELD(tokens_per_gpu_second),
    FIELD_OF_MEAN(total_ppm),
    FIELD_OF_MEAN(tp_bytes),
    FIELD(waiting_tokens_max),
    FIELD(worst_ppm),
};

static uint64_t *outcome_field(struct outcome *outcome, size_t i) {
    return (uint64_t *)(void *)((char *)outcome + fields[i].offset);
}

size_t outcome_fields(void) {
    return sizeof fields / sizeof fields[0];
}

const char *outcome_name(size_t i) {
    return fields[i].name;
}

uint64_t outcome_value(const struct outcome *outcome, size_t i) {
    uint64_t value;
    memcpy(&value, (const char *)outcome + fields[i].offset, sizeof value);
    return value;
}

/* What measuring needs beside the measurement. */
struct meter {
    const struct measure_options *options;
    const struct tile_model *tiles;
    struct step_time_model model;
    struct step_time_model variants[MEASURE_VARIANTS];
    bool variant_exists[MEASURE_VARIANTS];
    uint64_t varied_stride; /* of counted steps; of these, the sum of step times: */
    uint64_t varied_ns;
    struct step_load *loads;
    void *scratch;
    uint64_t *sorted;
    u128 token_delays;
    uint64_t step_tokens; /* of the config */
    uint32_t long_length; /* longer documents are long */
    uint64_t long_tokens;
    u128 long_shares; /* sum over steps of long tokens / tokens, in 2^-SHARE_BITS */
};

int measure_model(const struct trial *trial, const struct step_time_options *times,
                  struct step_time_model *out, struct error *error) {
    const struct plan_options *plan = &trial->config->plan;
    struct step_time_options options = *times;
    options.shape = plan->model;
    options.dp = plan->dp;
    options.pp = plan->pp;
    options.cp = plan->cp;
    options.tp = plan->tp;
    options.micro_batches = plan->micro_batches;
    return step_time_init(out, &options, error);
}

static void meter_vary(struct meter *meter, const struct trial *trial) {
    for (size_t i = 0; i < MEASURE_VARIANTS; i++) {
        struct step_time_options times = meter->options->times;
        uint32_t attention = times.attention_permille;
        uint32_t chunks = times.chunks;
        times.attention_permille = i == 0   ? attention - attention / 10
                                   : i == 1 ? attention + attention / 10
                                            : attention;
        times.chunks = i == 2 ? chunks - 1 : i == 3 ? chunks + 1 : chunks;
        times.schedule = times.chunks > 1 && times.schedule == PIPELINE_1F1B ? PIPELINE_INTERLEAVED
                                                                             : times.schedule;
        meter->variant_exists[i] = measure_model(trial, &times, &meter->variants[i], NULL) == 0;
    }
}

static int meter_open(struct meter *meter, const struct trial *trial,
                      const struct measure_options *options, struct error *error) {
    *meter = (struct meter){
        .options = options,
        .tiles = &stream_model(&trial->stream)->tiles,
        .step_tokens = trial->config->plan.step_tokens,
        .long_length = trial->config->plan.window / 4,
        .varied_stride = (options->steps + VARIED_STEPS - 1) / VARIED_STEPS,
    };
    int rc = measure_model(trial, &options->times, &meter->model, error);
    if (rc < 0) {
        return rc;
    }
    if (options->vary) {
        meter_vary(meter, trial);
    }
    size_t bytes = step_time_bytes(&meter->model);
    for (size_t i = 0; i < MEASURE_VARIANTS; i++) {
        if (meter->variant_exists[i] && step_time_bytes(&meter->variants[i]) > bytes) {
            bytes = step_time_bytes(&meter->variants[i]);
        }
    }
    meter->loads = calloc(trial->config->plan.micro_batches, sizeof *meter->loads);
    meter->sorted = calloc(options->steps, sizeof *meter->sorted);
    meter->scratch = malloc(bytes);
    if (meter->loads == NULL || meter->sorted == NULL || meter->scratch == NULL) {
        return error_set(error, -ENOMEM, "no memory for %" PRIu64 " steps; take fewer",
                         options->steps);
    }
    return 0;
}

static void meter_close(struct meter *meter) {
    free(meter->scratch);
    free(meter->sorted);
    free(meter->loads);
}

/* Returns their sum over the step's tokens. */
static uint64_t measure_delays(struct measurement *out, const struct step_plan *plan) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < plan->document_count; i++) {
        const struct document *document = &plan->documents[i];
        uint64_t delay = plan->step > document->nominal_step ? plan->step - document->nominal_step
                                                             : 0;
        out->delays[delay < MEASURE_DELAYS ? delay : MEASURE_DELAYS - 1] += document->length;
        sum += document->length * delay;
        if (delay > out->outcome.delay_max) {
            out->outcome.delay_max = delay;
        }
    }
    return sum;
}

static uint64_t share_ppm(uint64_t part, uint64_t whole) {
    return whole > 0 ? (uint64_t)((u128)part * PPM / whole) : 0;
}

static void measure_long(struct meter *meter, const struct step_plan *plan) {
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < plan->document_count; i++) {
        const struct document *document = &plan->documents[i];
        tokens += document->document_length > meter->long_length ? document->length : 0;
    }
    meter->long_tokens += tokens;
    meter->long_shares += ((u128)tokens << SHARE_BITS) / plan->tokens;
}

/* A token of step k weighs 1 / tokens_k, on the mean over all tokens steps / tokens. */
static void measure_long_finish(const struct meter *meter, struct outcome *outcome) {
    outcome->long_share_ppm = share_ppm(meter->long_tokens, outcome->tokens);
    outcome->long_weight_ppm = PPM;
    if (meter->long_tokens > 0) {
        u128 weight = meter->long_shares * (outcome->tokens / outcome->steps) * PPM;
        outcome->long_weight_ppm = (uint64_t)(weight / meter->long_tokens >> SHARE_BITS);
    }
}

static void measure_balance(struct outcome *outcome, const struct step_plan *plan) {
    uint64_t per_document = 0;
    for (uint32_t m = 0; m < plan->micro_batch_count; m++) {
        per_document += plan->micro_batches[m].choice.layout == LAYOUT_PER_DOCUMENT;
    }
    outcome->attention_ppm += plan->balance.attention_ppm;
    outcome->total_ppm += plan->balance.total_ppm;
    outcome->bound_ppm += plan->balance.bound_ppm;
    outcome->context_ppm += plan->balance.context_ppm;
    outcome->per_document_ppm += per_document * PPM / plan->micro_batch_count;
    if (plan->balance.total_ppm > outcome->worst_ppm) {
        outcome->worst_ppm = plan->balance.total_ppm;
    }
    if (plan->release.waiting_tokens > outcome->waiting_tokens_max) {
        outcome->waiting_tokens_max = plan->release.waiting_tokens;
    }
}

static void measure_time(struct outcome *outcome, const struct step_time *time) {
    const uint64_t *causes = time->causes_ns;
    outcome->attention_share_ppm += time->attention_share_ppm;
    outcome->bubble_ppm += time->bubble_ppm;
    outcome->critical_attention_ppm += share_ppm(causes[STEP_ATTENTION], time->step_ns);
    outcome->critical_linear_ppm += share_ppm(causes[STEP_LINEAR], time->step_ns);
    outcome->critical_head_ppm += share_ppm(causes[STEP_HEAD], time->step_ns);
    outcome->critical_communication_ppm += share_ppm(causes[STEP_COMMUNICATION], time->step_ns);
    outcome->critical_other_ppm += share_ppm(causes[STEP_OTHER], time->step_ns);
    outcome->owner_ppm += share_ppm(time->owner_ns, time->step_ns);
    outcome->even_ns += time->even_ns;
    outcome->heaviest_ns += time->heaviest_ns;
    outcome->micro_batch_ppm += time->micro_batch_ppm;
    outcome->replica_ppm += time->replica_ppm;
    outcome->stage_ppm += time->stage_ppm;
    outcome->step_ns += time->step_ns;
    outcome->tp_bytes += time->tp_bytes;
    outcome->cp_bytes += time->cp_bytes;
    outcome->send_bytes += time->send_bytes;
    outcome->fsdp_bytes += time->fsdp_bytes;
}

static void measure_tokens(struct meter *meter, struct outcome *outcome, uint64_t tokens) {
    uint64_t target = meter->step_tokens;
    uint64_t off_ppm = share_ppm(tokens > target ? tokens - target : target - tokens, target);
    outcome->tokens += tokens;
    outcome->tokens_off_ppm = off_ppm > outcome->tokens_off_ppm ? off_ppm : outcome->tokens_off_ppm;
}

/* The step's loads in every variant, if it is one of those that are. */
static void measure_variants(struct meter *meter, struct measurement *out, uint64_t step_ns) {
    struct step_time time;
    if (out->outcome.steps % meter->varied_stride != 0) {
        return;
    }
    meter->varied_ns += step_ns;
    for (size_t i = 0; i < MEASURE_VARIANTS; i++) {
        if (meter->variant_exists[i] &&
            step_time_of(&meter->variants[i], meter->loads, meter->scratch, &time, NULL) == 0) {
            out->variants_ns[i] += time.step_ns;
        }
    }
}

/* From the steps that were varied to all of them. */
static void measure_variants_finish(const struct meter *meter, struct measurement *out,
                                    uint64_t all_ns) {
    for (size_t i = 0; meter->varied_ns > 0 && i < MEASURE_VARIANTS; i++) {
        out->variants_ns[i] = (uint64_t)((u128)out->variants_ns[i] * all_ns / meter->varied_ns);
    }
}

static int measure_step(struct meter *meter, struct measurement *out, const struct step_plan *plan,
                        struct error *error) {
    struct step_time time;
    step_load_of(plan, meter->tiles, meter->loads);
    int rc = step_time_of(&meter->model, meter->loads, meter->scratch, &time, error);
    if (rc < 0) {
        return rc;
    }
    if (out->outcome.steps == 0) {
        memcpy(out->loads, meter->loads, plan->micro_batch_count * sizeof *out->loads);
        out->first = time;
    }
    measure_variants(meter, out, time.step_ns);
    uint64_t token_delays = measure_delays(out, plan);
    meter->token_delays += token_delays;
    measure_tokens(meter, &out->outcome, plan->tokens);
    measure_long(meter, plan);
    if (out->domains != NULL) {
        domain_tally_add(out->domains, meter->options->domains, plan);
    }
    measure_balance(&out->outcome, plan);
    measure_time(&out->outcome, &time);
    out->steps[out->outcome.steps++] = (struct step_sample){
        .tokens = plan->tokens,
        .token_delays = token_delays,
        .total_ppm = plan->balance.total_ppm,
        .plan_ns = plan->plan_ns,
        .step_ns = time.step_ns,
    };
    if (out->domains != NULL && out->domains->error.code < 0) {
        *error = out->domains->error;
        return error->code;
    }
    return 0;
}

/* One field of every step, ascending. */
static const uint64_t *measure_sort(const struct measurement *out, size_t offset,
                                    uint64_t *sorted) {
    for (size_t i = 0; i < out->outcome.steps; i++) {
        memcpy(&sorted[i], (const char *)&out->steps[i] + offset, sizeof sorted[i]);
    }
    statistics_sort(sorted, out->outcome.steps);
    return sorted;
}

static uint64_t delay_p99(const struct measurement *out) {
    u128 tokens = 0;
    uint64_t delay = 0;
    while (delay < MEASURE_DELAYS - 1) {
        tokens += out->delays[delay];
        if (tokens * 100 >= (u128)out->outcome.tokens * 99) {
            break;
        }
        delay++;
    }
    return delay;
}

static void measure_finish(const struct meter *meter, struct measurement *out) {
    struct outcome *outcome = &out->outcome;
    const struct step_time_options *mesh = &meter->model.options;
    uint64_t gpus = (uint64_t)mesh->dp * mesh->pp * mesh->cp * mesh->tp;
    uint64_t all_ns = outcome->step_ns;
    const uint64_t *sorted = measure_sort(out, offsetof(struct step_sample, total_ppm),
                                          meter->sorted);
    outcome->p99_ppm = statistics_percentile(sorted, outcome->steps, 99);
    sorted = measure_sort(out, offsetof(struct step_sample, plan_ns), meter->sorted);
    outcome->plan_ns_p50 = statistics_percentile(sorted, outcome->steps, 50);
    outcome->plan_ns_p99 = statistics_percentile(sorted, outcome->steps, 99);
    sorted = measure_sort(out, offsetof(struct step_sample, step_ns), meter->sorted);
    outcome->step_ns_p50 = statistics_percentile(sorted, outcome->steps, 50);
    outcome->step_ns_p99 = statistics_percentile(sorted, outcome->steps, 99);
    outcome->step_ns_max = sorted[outcome->steps - 1];
    sorted = measure_sort(out, offsetof(struct step_sample, tokens), meter->sorted);
    outcome->tokens_cv_ppm = statistics_variation_ppm(sorted, outcome->steps);
    outcome->delay_p99 = delay_p99(out);
    measure_long_finish(meter, outcome);
    measure_variants_finish(meter, out, all_ns);
    outcome->delay_mean_milli = outcome->tokens > 0
                                    ? (uint64_t)(meter->token_delays * 1000 / outcome->tokens)
                                    : 0;
    if (all_ns > 0) {
        u128 token_seconds = (u128)outcome->tokens * 1000000000u;
        outcome->tokens_per_gpu_second = (uint64_t)(token_seconds / all_ns / gpus);
    }
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].mean) {
            *outcome_field(outcome, i) /= outcome->steps;
        }
    }
}

/* Plans to the end of the counted steps, or of the data. */
static int measure_steps(struct trial *trial, const char *what, struct meter *meter,
                         struct measurement *out, struct error *error) {
    const struct measure_options *options = meter->options;
    uint64_t end = options->warm_up + options->steps;
    struct progress progress;
    bool enough = false;
    int rc = 0;
    progress_start(&progress, what);
    for (uint64_t step = 0; rc == 0 && !enough && step < end; step++) {
        struct step_plan *plan = NULL;
        rc = stream_step(&trial->stream, &plan, error);
        if (rc == 0 && step >= options->warm_up) {
            rc = measure_step(meter, out, plan, error);
            enough = rc == 0 && options->enough != NULL && options->enough(options->context, out);
        }
        step_plan_destroy(plan);
        progress_count(&progress, "step", step + 1, end);
    }
    progress_end(&progress);
    return rc == -ENOENT ? 0 : rc;
}

static int measure_domains(const struct measure_options *options, struct measurement *out,
                           struct error *error) {
    out->domains = domain_tally_create(options->domains);
    if (out->domains == NULL) {
        return error_set(error, -ENOMEM, "no memory to count domains; free some memory");
    }
    out->domains->since = out->domains->step = options->warm_up;
    return 0;
}

int measure(struct trial *trial, const char *what, const struct measure_options *options,
            struct measurement *out, struct error *error) {
    struct meter meter;
    memset(out, 0, sizeof *out);
    assert(options->steps > 0);
    int rc = meter_open(&meter, trial, options, error);
    if (rc == 0) {
        out->model = meter.model;
        out->steps = calloc(options->steps, sizeof *out->steps);
        out->loads = calloc(trial->config->plan.micro_batches, sizeof *out->loads);
        rc = out->steps != NULL && out->loads != NULL
                 ? 0
                 : error_set(error, -ENOMEM, "no memory for %" PRIu64 " steps", options->steps);
    }
    if (rc == 0 && options->domains != NULL) {
        rc = measure_domains(options, out, error);
    }
    if (rc == 0) {
        rc = measure_steps(trial, what, &meter, out, error);
    }
    if (rc == 0 && out->outcome.steps == 0) {
        rc = error_set(error, -ENOENT,
                       "the data end within the %" PRIu64
                       " warm-up steps; give fewer with --warm-up, or more documents",
                       options->warm_up);
    }
    if (rc == 0) {
        measure_finish(&meter, out);
    }
    meter_close(&meter);
    return rc;
}

void measurement_deinit(struct measurement *measurement) {
    free(measurement->domains);
    free(measurement->loads);
    measurement->domains = NULL;
    free(measurement->steps);
    measurement->loads = NULL;
    measurement->steps = NULL;
}

int64_t measure_loads(struct trial *trial, uint64_t steps, struct step_load **out,
                      struct error *error) {
    uint32_t micro_batches = trial->config->plan.micro_batches;
    const struct tile_model *tiles = &stream_model(&trial->stream)->tiles;
    struct step_load *loads = calloc(steps, micro_batches * sizeof *loads);
    struct progress progress;
    int64_t count = 0;
    int rc = 0;
    if (loads == NULL) {
        return error_set(error, -ENOMEM, "no memory to calibrate over %" PRIu64 " steps", steps);
    }
    progress_start(&progress, "calibrating");
    while (rc == 0 && (uint64_t)count < steps) {
        struct step_plan *plan = NULL;
        rc = stream_step(&trial->stream, &plan, error);
        if (rc == 0) {
            step_load_of(plan, tiles, &loads[(uint64_t)count++ * micro_batches]);
        }
        step_plan_destroy(plan);
        progress_count(&progress, "step", (uint64_t)count, steps);
    }
    progress_end(&progress);
    if (rc < 0 && (rc != -ENOENT || count == 0)) {
        free(loads);
        return rc;
    }
    *out = loads;
    return count;
}

uint64_t measure_speedup_ppm(uint64_t a_tokens, uint64_t a_ns, uint64_t b_tokens, uint64_t b_ns) {
    u128 below = (u128)a_ns * b_tokens;
    return below > 0 ? (uint64_t)((u128)a_tokens * b_ns / (below / PPM + (below < PPM))) : 0;
}

uint64_t measurement_ns(const struct measurement *measurement) {
    uint64_t ns = 0;
    for (size_t i = 0; i < measurement->outcome.steps; i++) {
        ns += measurement->steps[i].step_ns;
    }
    return ns;
}
