/* message: states, see message.h. */
#include "proto/message.h"

#include <stdio.h>

#define PPM 1000000u

/* Queues before `leftover`. */
static uint32_t message_queue_total(const struct plan_options *options) {
    if (options->policy == POLICY_WLB_LEVEL) {
        return QUEUES_OF_LEVEL;
    }
    return plan_batches(options) > 0 ? QUEUE_FIXED + 1 : options->bands.bands;
}

/* Queue of a waiting part, or `leftover`, which is also where a part goes that the queues do not
 * know, so that none is ever missing from the list. */
static uint32_t message_queue_of(const struct plan_options *options,
                                 const struct waiting *waiting) {
    uint32_t length = waiting->document.length;
    if (waiting->kind == WAITING_LEFT_OVER) {
        return message_queue_total(options);
    }
    if (options->policy == POLICY_WLB_LEVEL) {
        return length >= options->level.candidate_length ? QUEUE_LEVEL : QUEUE_SHORT;
    }
    if (plan_batches(options) > 0) {
        return QUEUE_FIXED;
    }
    uint32_t band = bands_of(&options->bands, length);
    return band == BAND_NONE ? options->bands.bands : band;
}

static char *message_queue_name(struct arena *arena, const struct plan_options *options,
                                uint32_t queue) {
    char name[32];
    if (options->policy == POLICY_WLB_LEVEL) {
        return arena_strdup(arena, queue == QUEUE_LEVEL ? "level" : "short");
    }
    if (plan_batches(options) > 0) {
        return arena_strdup(arena, options->policy == POLICY_POOL ? "pool" : "fixed");
    }
    (void)snprintf(name, sizeof name, "band %u", (unsigned)queue);
    return arena_strdup(arena, name);
}

static void message_queue_lengths(const struct plan_options *options, uint32_t queue,
                                  Ballast__V1__Queue *out) {
    const struct bands_options *bands = &options->bands;
    if (options->policy == POLICY_WLB_LEVEL) {
        uint32_t candidate = options->level.candidate_length;
        out->length_min = queue == QUEUE_LEVEL ? candidate : 0;
        out->length_max = queue == QUEUE_LEVEL ? 0 : candidate - 1;
    } else if (plan_batches(options) == 0) {
        out->length_min = bands->length_min[queue];
        out->length_max = queue + 1 < bands->bands ? bands->length_min[queue + 1] - 1 : 0;
    }
}

/* Queue number `queue` without its documents; the leftovers stand behind the last one. */
static Ballast__V1__Queue *message_queue(struct arena *arena, const struct plan_state *state,
                                         const struct plan_options *options, uint32_t queue) {
    Ballast__V1__Queue *out = message_create(arena, &ballast__v1__queue__descriptor);
    if (out == NULL) {
        return NULL;
    }
    if (queue == message_queue_total(options)) {
        out->name = arena_strdup(arena, "leftover");
        out->released = state->leftover_released;
    } else {
        out->name = message_queue_name(arena, options, queue);
        out->released = state->queue_released[queue];
        message_queue_lengths(options, queue, out);
    }
    return out->name == NULL ? NULL : out;
}

static void message_queue_count(Ballast__V1__Queue *queue, const struct document *document) {
    if (queue->documents == 0 || document->nominal_step < queue->oldest_step) {
        queue->oldest_step = document->nominal_step;
    }
    queue->documents++;
    queue->tokens += document->length;
}

static bool message_waiting(struct arena *arena, const struct plan_state *state,
                            const struct plan_options *options, Ballast__V1__Queue **queues) {
    for (uint32_t queue = 0; queue <= message_queue_total(options); queue++) {
        queues[queue]->waiting = arena_array(arena, queues[queue]->documents,
                                             sizeof *queues[queue]->waiting);
        if (queues[queue]->waiting == NULL) {
            return false;
        }
    }
    for (uint32_t i = 0; i < state->waiting_count; i++) {
        Ballast__V1__Queue *queue = queues[message_queue_of(options, &state->waiting[i])];
        Ballast__V1__Document *document = message_document(arena, &state->waiting[i].document);
        if (document == NULL) {
            return false;
        }
        queue->waiting[queue->n_waiting++] = document;
    }
    return true;
}

Ballast__V1__QueuesResponse *message_queues(struct arena *arena, const struct plan_state *state,
                                            const struct plan_options *options, bool documents) {
    uint32_t count = message_queue_total(options) + 1;
    Ballast__V1__QueuesResponse *out = message_create(arena,
                                                      &ballast__v1__queues_response__descriptor);
    Ballast__V1__Queue **queues = arena_array(arena, count, sizeof(Ballast__V1__Queue *));
    if (out == NULL || queues == NULL) {
        return NULL;
    }
    for (uint32_t queue = 0; queue < count; queue++) {
        queues[queue] = message_queue(arena, state, options, queue);
        if (queues[queue] == NULL) {
            return NULL;
        }
    }
    for (uint32_t i = 0; i < state->waiting_count; i++) {
        const struct waiting *waiting = &state->waiting[i];
        message_queue_count(queues[message_queue_of(options, waiting)], &waiting->document);
    }
    if (documents && !message_waiting(arena, state, options, queues)) {
        return NULL;
    }
    out->queues = queues;
    out->n_queues = count;
    return out;
}

/* floor(part * scale / whole) without overflow; `empty` when whole is 0. */
static uint64_t message_ratio(uint64_t part, uint64_t scale, uint64_t whole, uint64_t empty) {
    return whole == 0 ? empty : (uint64_t)((unsigned __int128)part * scale / whole);
}

/* Pass of the latest document that arrived: a cursor at the start of a pass has none of it yet. */
static uint64_t message_epoch(const struct dataset_cursor *cursor) {
    return cursor->epoch > 0 && cursor->position == 0 ? cursor->epoch - 1 : cursor->epoch;
}

Ballast__V1__DatasetStatus *message_dataset(struct arena *arena, const struct plan_state *state,
                                            uint32_t dataset, const char *name, uint64_t documents,
                                            uint64_t tokens) {
    const struct dataset_cursor *cursor = &state->cursor.datasets[dataset];
    const struct delay_counts *delays = &state->delays[dataset];
    Ballast__V1__DatasetStatus *out = message_create(arena,
                                                     &ballast__v1__dataset_status__descriptor);
    if (out == NULL) {
        return NULL;
    }
    out->documents = documents;
    out->tokens = tokens;
    out->epoch = message_epoch(cursor);
    out->arrived_documents = plan_state_arrived_documents(state, dataset);
    out->arrived_tokens = plan_state_arrived_tokens(state, dataset);
    out->delivered_tokens = delays->delivered_tokens;
    out->waiting_tokens = plan_state_waiting_tokens(state, dataset);
    out->dropped_tokens = cursor->dropped_tokens;
    out->dropped_documents = cursor->dropped_documents;
    out->share_ppm = message_ratio(delays->delivered_tokens, PPM, state->delivered_tokens, PPM);
    out->truncated_tokens = cursor->truncated_tokens;
    out->overlong_documents = cursor->overlong_documents;
    out->empty_documents = cursor->empty_documents;
    out->name = arena_strdup(arena, name);
    return out->name == NULL ? NULL : out;
}

static Ballast__V1__DatasetDelay *message_delay(struct arena *arena,
                                                const struct delay_counts *delays, uint64_t tokens,
                                                const char *name) {
    Ballast__V1__DatasetDelay *out = message_create(arena, &ballast__v1__dataset_delay__descriptor);
    if (out == NULL) {
        return NULL;
    }
    out->mean_milli = message_ratio(delays->delay_token_steps, 1000, delays->delivered_tokens, 0);
    out->p50 = delay_percentile(delays, 50);
    out->p99 = delay_percentile(delays, 99);
    out->max = delays->delay_max;
    out->documents = delays->delivered_documents;
    out->tokens = delays->delivered_tokens;
    out->share_ppm = message_ratio(delays->delivered_tokens, PPM, tokens, PPM);
    out->name = arena_strdup(arena, name);
    out->histogram = arena_array(arena, DELAY_BUCKETS, sizeof *out->histogram);
    if (out->name == NULL || out->histogram == NULL) {
        return NULL;
    }
    for (uint32_t delay = 0; delay < DELAY_BUCKETS; delay++) {
        out->histogram[delay] = delays->tokens_by_delay[delay];
    }
    out->n_histogram = DELAY_BUCKETS;
    return out;
}

Ballast__V1__DatasetDelay **message_delays(struct arena *arena, const struct delay_counts *delays,
                                           uint32_t count,
                                           const char *(*name)(const void *context, uint32_t i),
                                           const void *context) {
    Ballast__V1__DatasetDelay **out = arena_array(arena, count, sizeof *out);
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < count; i++) {
        tokens += delays[i].delivered_tokens;
    }
    for (uint32_t i = 0; out != NULL && i < count; i++) {
        out[i] = message_delay(arena, &delays[i], tokens, name(context, i));
        if (out[i] == NULL) {
            return NULL;
        }
    }
    return out;
}
