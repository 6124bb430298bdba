/* feed: see feed.h. */
#include "daemon/feed.h"

#include "daemon/clock.h"
#include "daemon/failpoint.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct feed_slot {
    struct tokens_target target; /* its job's while reading; then its error */
    struct planned *planned;     /* in use while reading */
    bool alone;                  /* this is the second try */
};

struct feed_job {
    struct tokens_job tokens; /* its owner is this job */
    struct feed_job *next;    /* idle too */
    uint64_t start_ns;        /* reads were queued */
};

/* Slots that are to be read by one job. */
struct feed_group {
    struct tokens_target *first;
    struct tokens_target **end;
};

static uint32_t feed_slot_count(const struct feed *feed) {
    return feed->slab->replicas * feed->slab->replica_slots;
}

int feed_open(struct feed *feed, struct error *error) {
    uint32_t slots = feed_slot_count(feed);
    feed->slots = calloc(slots, sizeof *feed->slots);
    feed->jobs = calloc(slots, sizeof *feed->jobs);
    feed->held_up = calloc(feed->slab->replicas, sizeof *feed->held_up);
    if (feed->slots == NULL || feed->jobs == NULL || feed->held_up == NULL) {
        feed_close(feed);
        return error_set(error, -ENOMEM, "reading: out of memory for %u slots", slots);
    }
    for (uint32_t i = slots; i-- > 0;) {
        feed->jobs[i].tokens.owner = &feed->jobs[i];
        feed->jobs[i].next = feed->idle;
        feed->idle = &feed->jobs[i];
    }
    return 0;
}

void feed_close(struct feed *feed) {
    uint32_t slots = feed->slots == NULL || feed->jobs == NULL ? 0 : feed_slot_count(feed);
    for (uint32_t i = 0; i < slots; i++) {
        if (feed->slots[i].planned != NULL) {
            feed->slots[i].planned->uses--;
        }
        tokens_job_deinit(&feed->jobs[i].tokens);
    }
    free(feed->slots);
    free(feed->jobs);
    free(feed->held_up);
    feed->slots = NULL;
    feed->jobs = NULL;
    feed->idle = NULL;
    feed->held_up = NULL;
    feed->reading = 0;
}

static struct feed_slot *feed_slot_of(struct tokens_target *target) {
    return (struct feed_slot *)(void *)target; /* its first member */
}

static void feed_finish(struct feed *feed, struct feed_slot *slot) {
    uint32_t index = (uint32_t)(slot - feed->slots);
    slot->planned->uses--;
    slot->planned = NULL;
    if (slot->target.error.code < 0) {
        feed->metrics->read_errors[metrics_read_kind(slot->target.error.code)]++;
        slab_fail(feed->slab, index);
        feed->failed(feed->context, &slot->target.error);
    } else {
        feed->metrics->documents_read += slot->target.count;
        slab_ready(feed->slab, index, slot->target.hash);
    }
}

static void feed_fail_all(struct feed *feed, struct tokens_target *targets, int code) {
    for (struct tokens_target *next; targets != NULL; targets = next) {
        struct feed_slot *slot = feed_slot_of(targets);
        next = targets->next;
        (void)error_set(&targets->error, code, "step %" PRIu64 ": reading could not begin: %s",
                        slot->planned->plan->step, strerror(-code));
        feed_finish(feed, slot);
    }
}

static const struct document *feed_documents(const struct step_plan *plan,
                                             const struct micro_batch *micro_batch) {
    return &plan->documents[micro_batch->document_begin];
}

/* Reads slots that were taken. */
static void feed_read(struct feed *feed, struct tokens_target *targets, bool exact) {
    struct feed_job *job = feed->idle;
    assert(job != NULL);
    int code = FAILPOINT(read_begin);
    if (code == 0) {
        tokens_job_begin(&job->tokens, feed->catalog, feed->token_bytes, exact, targets);
        code = reader_submit(feed->reader, &job->tokens.read);
    }
    if (code < 0) {
        feed_fail_all(feed, targets, code);
        return;
    }
    feed->idle = job->next;
    if (feed->reading++ == 0) {
        feed->progress_ns = clock_ns();
    }
    job->start_ns = clock_ns();
}

/* A slot that shared its job may have failed for another's sake. */
static void feed_done(struct feed *feed, struct feed_slot *slot, bool shared) {
    if (slot->target.error.code < 0 && shared && !slot->alone) {
        slot->alone = true;
        feed_read(feed, &slot->target, true);
        return;
    }
    if (slot->target.error.code < 0) {
        (void)error_prefix(&slot->target.error, "step %" PRIu64, slot->planned->plan->step);
    }
    feed_finish(feed, slot);
}

static void feed_job_done(struct feed *feed, struct feed_job *job) {
    struct tokens_target *target = job->tokens.targets;
    bool shared = target->next != NULL;
    int failed = FAILPOINT(read_done);
    histogram_observe(&feed->metrics->read, clock_ns() - job->start_ns);
    feed->metrics->bytes_read += job->tokens.read.result == 0 ? job->tokens.read_bytes : 0;
    job->next = feed->idle;
    feed->idle = job;
    feed->reading--;
    feed->progress_ns = clock_ns();
    for (struct tokens_target *next; target != NULL; target = next) {
        next = target->next;
        target->next = NULL;
        if (failed < 0) {
            (void)error_set(&target->error, failed, "reading: %s", strerror(-failed));
        }
        feed_done(feed, feed_slot_of(target), shared);
    }
}

uint32_t feed_reap(struct feed *feed) {
    struct read_job *read;
    uint32_t reaped = 0;
    while ((read = reader_reap(feed->reader)) != NULL) {
        feed_job_done(feed, ((struct tokens_job *)(void *)read)->owner);
        reaped++;
    }
    return reaped;
}

static uint32_t feed_dp(const struct feed *feed, uint32_t replica) {
    return feed->roster->members[replica * feed->roster->replica_members].place.dp;
}

/* Takes the slot that was found for a micro-batch into the group. */
static void feed_join(struct feed *feed, uint32_t index, struct planned *planned,
                      const struct micro_batch *micro_batch, struct feed_group *group) {
    struct feed_slot *slot = &feed->slots[index];
    *slot = (struct feed_slot){
        .target = {.documents = feed_documents(planned->plan, micro_batch),
                   .count = micro_batch->document_count,
                   .wants_hash = feed->payload_hashes,
                   .payload = slab_payload(feed->slab, index)},
        .planned = planned,
    };
    planned->uses++;
    *group->end = &slot->target;
    group->end = &slot->target.next;
}

/* Makes sure that a micro-batch is read, being read or in the group; false when there is no slot
 * for it now. */
static bool feed_want(struct feed *feed, uint32_t replica, uint64_t position, uint64_t passed,
                      struct planned *planned, struct feed_group *group) {
    const struct step_plan *plan = planned->plan;
    uint32_t index = (uint32_t)(position - roster_place(feed->roster, plan->step, 0));
    const struct micro_batch *micro_batch = step_plan_micro_batch(plan, feed_dp(feed, replica),
                                                                  index);
    if (micro_batch->document_count == 0 || slab_find(feed->slab, replica, position) >= 0) {
        return true;
    }
    if (!slab_may_take(feed->slab, replica, position, passed)) {
        return false;
    }
    uint64_t bytes = tokens_payload_bytes(feed_documents(plan, micro_batch),
                                          micro_batch->document_count, feed->token_bytes);
    int slot = slab_take(feed->slab, replica, position, passed, bytes);
    if (slot < 0) {
        return false;
    }
    feed_join(feed, (uint32_t)slot, planned, micro_batch, group);
    return true;
}

/* Where the replica's ranks stand. */
static uint64_t feed_first(const struct feed *feed, uint32_t replica) {
    uint64_t first = roster_place(feed->roster, feed->roster->committed_step, 0);
    (void)roster_slowest(feed->roster, replica, &first);
    return first;
}

/* Wants the positions [begin, end) of a replica. Steps whose plan is not in memory are passed over:
 * behind the planned ones stand single ranks, each at a step that was replayed for it. */
static void feed_want_range(struct feed *feed, uint32_t replica, uint64_t begin, uint64_t end,
                            struct feed_group *group) {
    uint64_t first = feed_first(feed, replica);
    uint64_t step = UINT64_MAX;
    struct planned *planned = NULL;
    for (uint64_t position = begin; position < end && !feed->held_up[replica]; position++) {
        if (roster_step_of(feed->roster, position) != step) {
            step = roster_step_of(feed->roster, position);
            planned = plans_find(feed->plans, step);
        }
        if (planned != NULL && !feed_want(feed, replica, position, first, planned, group)) {
            feed->held_up[replica] = true;
        }
    }
}

/* Whether something that is planned is missing in the nearer half of the window, as the replica's
 * fastest rank sees it: it must not wait for those behind it. */
static bool feed_is_due(const struct feed *feed, uint32_t replica) {
    uint64_t first = feed_first(feed, replica);
    uint64_t end = first + feed->slab->replica_slots;
    uint64_t fastest = first;
    (void)roster_fastest(feed->roster, replica, &fastest);
    fastest += (feed->slab->replica_slots + 1) / 2;
    for (uint64_t position = first; position < end && position < fastest; position++) {
        if (slab_find(feed->slab, replica, position) < 0 &&
            plans_find(feed->plans, roster_step_of(feed->roster, position)) != NULL) {
            return true;
        }
    }
    return false;
}

static void feed_read_group(struct feed *feed, struct feed_group *group) {
    if (group->first != NULL) {
        feed_read(feed, group->first, false);
    }
}

void feed_schedule(struct feed *feed) {
    struct feed_group next = {.end = &next.first}, later = {.end = &later.first};
    bool due = false;
    for (uint32_t replica = 0; replica < feed->slab->replicas; replica++) {
        feed->held_up[replica] = false;
        due = due || feed_is_due(feed, replica);
    }
    if (!due) {
        return;
    }
    for (uint32_t replica = 0; replica < feed->slab->replicas; replica++) {
        uint64_t first = feed_first(feed, replica);
        uint64_t end = first + feed->slab->replica_slots;
        uint64_t step = roster_step_of(feed->roster, first);
        uint64_t near = roster_place(feed->roster, step + 1, 0);
        near = near < end ? near : end;
        feed_want_range(feed, replica, first, near, &next);
        feed_want_range(feed, replica, near, end, &later);
    }
    feed_read_group(feed, &next);
    feed_read_group(feed, &later);
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
        *error = feed->slots[found].target.error;
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

struct feed_depth feed_depth(const struct feed *feed) {
    const struct slab *slab = feed->slab;
    struct feed_depth depth = {0};
    for (uint32_t replica = 0; slab != NULL && replica < slab->replicas; replica++) {
        uint64_t first = 0;
        (void)roster_slowest(feed->roster, replica, &first);
        for (uint32_t i = 0; i < slab->replica_slots; i++) {
            const struct slot *slot = &slab->slots[replica * slab->replica_slots + i];
            if (slot->state == SLOT_READY && slot->position >= first) {
                depth.batches++;
                depth.bytes += slot->payload_bytes;
            }
        }
    }
    return depth;
}

bool feed_stuck(const struct feed *feed, uint64_t now_ns, uint64_t limit_ns) {
    return feed->reading > 0 && now_ns > feed->progress_ns && now_ns - feed->progress_ns > limit_ns;
}
