/* feed: see feed.h. */
#include "daemon/feed.h"

#include "daemon/clock.h"
#include "daemon/failpoint.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct feed_job {
    struct tokens_job tokens; /* its owner is this job */
    struct planned *planned;  /* in use while reading */
    uint32_t slot;
    uint64_t start_ns;  /* reads were queued */
    struct error error; /* of a FAILED slot */
};

int feed_open(struct feed *feed, struct error *error) {
    uint32_t slots = feed->slab->replicas * feed->slab->replica_slots;
    feed->jobs = calloc(slots, sizeof *feed->jobs);
    feed->held_up = calloc(feed->slab->replicas, sizeof *feed->held_up);
    if (feed->jobs == NULL || feed->held_up == NULL) {
        feed_close(feed);
        return error_set(error, -ENOMEM, "reading: out of memory for %u slots", slots);
    }
    for (uint32_t slot = 0; slot < slots; slot++) {
        feed->jobs[slot].slot = slot;
        feed->jobs[slot].tokens.owner = &feed->jobs[slot];
    }
    return 0;
}

void feed_close(struct feed *feed) {
    uint32_t slots = feed->jobs == NULL ? 0 : feed->slab->replicas * feed->slab->replica_slots;
    for (uint32_t slot = 0; slot < slots; slot++) {
        if (feed->jobs[slot].planned != NULL) {
            feed->jobs[slot].planned->uses--;
        }
        tokens_job_deinit(&feed->jobs[slot].tokens);
    }
    free(feed->jobs);
    free(feed->held_up);
    feed->jobs = NULL;
    feed->held_up = NULL;
    feed->reading = 0;
}

static void feed_finish(struct feed *feed, struct feed_job *job, const struct error *error) {
    job->planned->uses--;
    job->planned = NULL;
    if (error->code < 0) {
        feed->metrics->read_errors[metrics_read_kind(error->code)]++;
        job->error = *error;
        slab_fail(feed->slab, job->slot);
        feed->failed(feed->context, error);
        return;
    }
    const struct slot *slot = &feed->slab->slots[job->slot];
    uint64_t hash = 0;
    if (feed->payload_hashes) {
        hash = XXH3_64bits(slab_payload(feed->slab, job->slot), slot->payload_bytes);
    }
    slab_ready(feed->slab, job->slot, hash);
}

static const struct document *feed_documents(const struct step_plan *plan,
                                             const struct micro_batch *micro_batch) {
    return &plan->documents[micro_batch->document_begin];
}

/* Reads a micro-batch into a slot that was taken for it. */
static void feed_read(struct feed *feed, uint32_t slot, struct planned *planned,
                      const struct micro_batch *micro_batch) {
    struct feed_job *job = &feed->jobs[slot];
    struct error error = {0};
    job->planned = planned;
    job->start_ns = clock_ns();
    planned->uses++;
    int code = FAILPOINT(read_begin);
    if (code == 0) {
        code = tokens_job_prepare(
            &job->tokens, feed->catalog, feed_documents(planned->plan, micro_batch),
            micro_batch->document_count, feed->token_bytes, slab_payload(feed->slab, slot));
    }
    if (code == 0) {
        code = reader_submit(feed->reader, &job->tokens.read);
    }
    if (code < 0) {
        (void)error_set(&error, code, "step %" PRIu64 ": reading could not begin: %s",
                        planned->plan->step, strerror(-code));
        feed_finish(feed, job, &error);
        return;
    }
    feed->reading++;
}

static void feed_count(struct feed *feed, const struct feed_job *job) {
    histogram_observe(&feed->metrics->read, clock_ns() - job->start_ns);
    if (job->tokens.read.result == 0) {
        feed->metrics->documents_read += job->tokens.document_count;
        feed->metrics->bytes_read += feed->slab->slots[job->slot].payload_bytes;
    }
}

uint32_t feed_reap(struct feed *feed) {
    struct read_job *read;
    uint32_t reaped = 0;
    while ((read = reader_reap(feed->reader)) != NULL) {
        struct tokens_job *tokens = (struct tokens_job *)(void *)read;
        struct feed_job *job = tokens->owner;
        struct error error = {0};
        uint64_t step = job->planned->plan->step;
        int failed = FAILPOINT(read_done);
        read->result = failed < 0 ? failed : read->result;
        if (tokens_job_finish(tokens, &error) < 0) {
            (void)error_prefix(&error, "step %" PRIu64, step);
        }
        feed_count(feed, job);
        feed_finish(feed, job, &error);
        feed->reading--;
        reaped++;
    }
    return reaped;
}

static uint32_t feed_dp(const struct feed *feed, uint32_t replica) {
    return feed->roster->members[replica * feed->roster->replica_members].place.dp;
}

/* Makes sure that a micro-batch is read or being read; false when there is no slot for it now. */
static bool feed_want(struct feed *feed, uint32_t replica, uint64_t position, uint64_t passed,
                      struct planned *planned) {
    const struct step_plan *plan = planned->plan;
    uint32_t index = (uint32_t)(position - roster_place(feed->roster, plan->step, 0));
    const struct micro_batch *micro_batch = step_plan_micro_batch(plan, feed_dp(feed, replica),
                                                                  index);
    if (micro_batch->document_count == 0 || slab_find(feed->slab, replica, position) >= 0) {
        return true;
    }
    uint64_t bytes = tokens_payload_bytes(feed_documents(plan, micro_batch),
                                          micro_batch->document_count, feed->token_bytes);
    int slot = slab_take(feed->slab, replica, position, passed, bytes);
    if (slot < 0) {
        return false;
    }
    feed_read(feed, (uint32_t)slot, planned, micro_batch);
    return true;
}

/* Steps whose plan is not in memory are passed over: behind the planned ones stand single ranks,
 * each at a step that was replayed for it. */
static void feed_schedule_replica(struct feed *feed, uint32_t replica) {
    uint64_t first = roster_place(feed->roster, feed->roster->committed_step, 0);
    uint64_t step = UINT64_MAX;
    (void)roster_slowest(feed->roster, replica, &first);
    struct planned *planned = NULL;
    feed->held_up[replica] = false;
    for (uint64_t position = first; position < first + feed->slab->replica_slots; position++) {
        if (roster_step_of(feed->roster, position) != step) {
            step = roster_step_of(feed->roster, position);
            planned = plans_find(feed->plans, step);
        }
        if (planned != NULL && !feed_want(feed, replica, position, first, planned)) {
            feed->held_up[replica] = true;
            return;
        }
    }
}

void feed_schedule(struct feed *feed) {
    for (uint32_t replica = 0; replica < feed->slab->replicas; replica++) {
        feed_schedule_replica(feed, replica);
    }
}

enum session_answer feed_take(struct feed *feed, uint32_t replica, const struct step_plan *plan,
                              uint32_t micro_batch, bool subscribed, bool last,
                              struct session_batch *batch, struct error *error) {
    const struct micro_batch *wanted = &plan->micro_batches[micro_batch];
    uint64_t position = roster_place(feed->roster, plan->step, wanted->index);
    if (!subscribed || wanted->document_count == 0) {
        return SESSION_READY;
    }
    int found = slab_find(feed->slab, replica, position);
    if (found < 0) {
        return feed->held_up[replica] ? SESSION_HELD_UP : SESSION_WAITS;
    }
    const struct slot *slot = &feed->slab->slots[found];
    if (slot->state == SLOT_FAILED) {
        *error = feed->jobs[found].error;
        return SESSION_LOST;
    }
    if (slot->state == SLOT_READING) {
        return SESSION_WAITS;
    }
    if (!slab_may_hold(feed->slab, (uint32_t)found, last)) {
        return SESSION_HELD_UP;
    }
    slab_hold(feed->slab, (uint32_t)found);
    *batch = (struct session_batch){.slot = found,
                                    .slab_offset = slab_slot_offset(feed->slab, (uint32_t)found),
                                    .payload_bytes = slot->payload_bytes,
                                    .slot_generation = slot->generation,
                                    .payload_hash = slot->payload_hash};
    return SESSION_READY;
}
