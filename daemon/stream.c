/* stream: Loader.Stream, batches on credit, and what they hold; see loader.h. */
#include "daemon/loader.h"

#include "daemon/failpoint.h"
#include "proto/message.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

/* Holds */

static void stream_release_at(struct session *session, uint32_t i) {
    fetch_lost(session, &session->held[i]);
    session->world->ops->release(session, session->held[i].slot);
    session->held[i] = session->held[--session->held_count];
}

/* Releases of what this connection does not hold are ignored: they may be from before a reconnect.
 */
static void stream_release(struct session *session, const Ballast__V1__BatchId *id) {
    for (uint32_t i = 0; i < session->held_count; i++) {
        if (session->held[i].step == id->step && session->held[i].index == id->index) {
            stream_release_at(session, i);
            return;
        }
    }
}

void stream_release_through(struct session *session, uint64_t step) {
    uint32_t i = 0;
    while (i < session->held_count) {
        if (session->held[i].step <= step) {
            stream_release_at(session, i);
        } else {
            i++;
        }
    }
}

void stream_release_all(struct session *session) {
    while (session->held_count > 0) {
        stream_release_at(session, session->held_count - 1);
    }
}

/* Waits */

static void stream_note_wait(struct session *session, uint64_t wait_ns) {
    struct member *member = session->member;
    member->waits++;
    member->waited_ns += wait_ns;
    if (wait_ns > member->waited_ns_max) {
        member->waited_ns_max = wait_ns;
    }
    session->world->ops->waited(session, wait_ns);
}

/* What a rank says of its waits; no more of them than it can have had batches. */
static void stream_hear_waits(struct session *session, const Ballast__V1__StreamRequest *request) {
    size_t count = request->n_waited_ns;
    if (count > session->world->job->credits_max) {
        count = session->world->job->credits_max;
    }
    for (size_t i = 0; i < count; i++) {
        stream_note_wait(session, request->waited_ns[i]);
    }
}

/* Opening */

void stream_serve(struct session *session, const struct session_call *call, const void *message,
                  uint64_t now_ns) {
    (void)message;
    (void)now_ns;
    if (session->state != SESSION_BOUND) {
        session_refuse(session, call->stream, STATUS_FAILED_PRECONDITION, "%s",
                       session->state == SESSION_NEW ? "say Hello before Stream"
                                                     : "a rank has one Stream at a time");
        return;
    }
    session->stream = call->stream;
    session_move(session, SESSION_OPENING);
    if (call->bytes > 0) {
        stream_message(session, call->payload, call->bytes);
    }
    if (call->half_closed) {
        session_end_stream(session, STATUS_OK, NULL);
    }
}

static void stream_fail(struct session *session, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void stream_fail(struct session *session, enum status status, const char *format, ...) {
    char text[ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    session_end_stream(session, status, text);
}

static uint32_t stream_micro_batches(const struct session *session, uint64_t step) {
    return roster_micro_batches(session->world->roster, step);
}

static bool stream_from_legal(struct session *session, const Ballast__V1__BatchId *from) {
    const struct session_progress *progress = session->world->progress;
    const struct member *member = session->member;
    if (from->dp != member->place.dp) {
        stream_fail(session, STATUS_INVALID_ARGUMENT,
                    "from names replica %u, this rank is of replica %u", from->dp,
                    member->place.dp);
    } else if (from->step < progress->oldest_step) {
        stream_fail(session, STATUS_OUT_OF_RANGE,
                    "step %" PRIu64 " is no longer kept; the oldest is %" PRIu64
                    ", the next uncommitted is %" PRIu64 ", and going back further needs "
                    "Import or Seek",
                    from->step, progress->oldest_step, session->world->roster->committed_step);
    } else if (from->step > progress->plannable_step) {
        stream_fail(session, STATUS_OUT_OF_RANGE,
                    "step %" PRIu64 " is far ahead of this daemon, which knows steps up to "
                    "%" PRIu64 "; if its state was lost, start from %" PRIu64,
                    from->step, progress->plannable_step, session->world->roster->committed_step);
    } else if (from->step < session->world->job->begin_step) {
        stream_fail(session, STATUS_OUT_OF_RANGE,
                    "step %" PRIu64 " had another mesh; this one is served from step %" PRIu64
                    " on, and going back further needs Import or Seek",
                    from->step, session->world->job->begin_step);
    } else if (from->index > stream_micro_batches(session, from->step)) {
        stream_fail(session, STATUS_OUT_OF_RANGE,
                    "from names micro-batch %u; step %" PRIu64 " has %u per replica", from->index,
                    from->step, stream_micro_batches(session, from->step));
    } else {
        return true;
    }
    return false;
}

static void stream_open(struct session *session, const Ballast__V1__BatchId *from) {
    struct member *member = session->member;
    char text[ERROR_TEXT_BYTES];
    if (session->world->progress->stopping) {
        stream_fail(session, STATUS_UNAVAILABLE, "the daemon is stopping");
        return;
    }
    if (!loader_current(session, text)) {
        stream_fail(session, STATUS_ABORTED, "%s", text);
        return;
    }
    if (from != NULL && !stream_from_legal(session, from)) {
        return;
    }
    member->step = from != NULL ? from->step : session->world->roster->committed_step;
    member->index = from != NULL ? from->index : 0;
    member->from_step = member->step;
    member->delivered_step = member->step;
    member->delivery_known = true;
    member->streaming = true;
    member->subscribed = session->subscribed;
    session_join(session);
    session_move(session, SESSION_STREAMING);
    session->world->ops->opened(session, member->replica);
    session_log(session, LOG_INFO,
                "stream opened dp=%u pp=%u cp=%u tp=%u step=%" PRIu64 " index=%u", member->place.dp,
                member->place.pp, member->place.cp, member->place.tp, member->step, member->index);
}

void stream_message(struct session *session, const uint8_t *data, size_t bytes) {
    const Ballast__V1__StreamRequest *request = session_unpack(
        session, &ballast__v1__stream_request__descriptor, data, bytes);
    uint32_t credits_max = session->world->job->credits_max;
    if (request == NULL) {
        stream_fail(session, STATUS_INVALID_ARGUMENT, "the message is not a StreamRequest");
        return;
    }
    if (session->state == SESSION_OPENING) {
        stream_open(session, request->from);
        session->member->reports_waits = request->reports_waits;
    } else if (request->from != NULL) {
        stream_fail(session, STATUS_INVALID_ARGUMENT,
                    "from belongs on the first message of a Stream");
    }
    if (session->stream == 0) {
        return;
    }
    stream_hear_waits(session, request);
    for (size_t i = 0; i < request->n_released; i++) {
        stream_release(session, request->released[i]);
    }
    if (request->credits > credits_max - session->member->credits) {
        stream_fail(session, STATUS_RESOURCE_EXHAUSTED,
                    "%u credits more than the %u left would exceed limits.credits = %u",
                    request->credits, session->member->credits, credits_max);
        return;
    }
    session->member->credits += request->credits;
}

/* Delivery */

static void stream_event(struct session *session, const ProtobufCMessage *response) {
    session->world->ops->send(session, session->stream, FRAME_DATA, response);
}

static void stream_end_of_step(struct session *session, const struct step_plan *plan) {
    struct member *member = session->member;
    (void)FAILPOINT(end_of_step);
    Ballast__V1__EndOfStep end = BALLAST__V1__END_OF_STEP__INIT;
    Ballast__V1__StreamResponse response = BALLAST__V1__STREAM_RESPONSE__INIT;
    end.step = member->step;
    end.micro_batches = member->index;
    end.plan_digest = (ProtobufCBinaryData){PLAN_DIGEST_BYTES, (uint8_t *)plan->digest};
    response.event_case = BALLAST__V1__STREAM_RESPONSE__EVENT_END_OF_STEP;
    response.end_of_step = &end;
    stream_event(session, &response.base);
    measured_give(session->world->measured, plan);
    member->step++;
    member->index = 0;
    member->delivered_step = member->step;
}

static void stream_end_of_data(struct session *session) {
    Ballast__V1__EndOfData end = BALLAST__V1__END_OF_DATA__INIT;
    Ballast__V1__StreamResponse response = BALLAST__V1__STREAM_RESPONSE__INIT;
    end.step = session->member->step;
    response.event_case = BALLAST__V1__STREAM_RESPONSE__EVENT_END_OF_DATA;
    response.end_of_data = &end;
    stream_event(session, &response.base);
    stream_stop(session);
    session_move(session, SESSION_ENDED);
}

static bool stream_batch(struct session *session, const struct step_plan *plan,
                         uint32_t micro_batch, const struct session_batch *batch) {
    struct arena *arena = session->world->arena;
    Ballast__V1__BatchId id = BALLAST__V1__BATCH_ID__INIT;
    Ballast__V1__BatchEnvelope out = BALLAST__V1__BATCH_ENVELOPE__INIT;
    Ballast__V1__StreamEnvelope response = BALLAST__V1__STREAM_ENVELOPE__INIT;
    arena_reset(arena);
    id.step = plan->step;
    id.dp = session->member->place.dp;
    id.index = session->member->index;
    out.id = &id;
    out.plan.data = (uint8_t *)(uintptr_t)packed_find(session->world->packed, plan, micro_batch,
                                                      arena, &out.plan.len);
    out.slab_offset = batch->slab_offset;
    out.slab_bytes = batch->slot < 0 ? 0 : batch->payload_bytes;
    out.slot_generation = batch->slot_generation;
    out.payload_hash = batch->payload_hash;
    out.plan_digest = (ProtobufCBinaryData){PLAN_DIGEST_BYTES, (uint8_t *)plan->digest};
    out.micro_batches = plan->micro_batch_count / plan->dp;
    out.loss_denominator = plan->loss_denominator;
    out.label_tokens = plan->label_tokens;
    const struct rank_place *place = &session->member->place;
    const struct plan_pool *pool = step_plan_pool(plan, place->dp, session->member->index);
    if (pool != NULL) {
        out.pool = message_pool_part(arena, plan, pool, place->dp, place->cp);
    }
    response.event_case = BALLAST__V1__STREAM_ENVELOPE__EVENT_BATCH;
    response.batch = &out;
    if (out.plan.data == NULL || (pool != NULL && out.pool == NULL) ||
        protobuf_c_message_get_packed_size(&response.base) > FRAME_DATA_BYTES_MAX) {
        return false;
    }
    stream_event(session, &response.base);
    return true;
}

static void stream_wait(struct session *session, bool held_back, uint64_t now_ns) {
    session->member->held_back = held_back;
    if (session->member->waiting_ns == 0) {
        session->member->waiting_ns = now_ns;
    }
}

static void stream_waited(struct session *session, uint64_t now_ns) {
    uint64_t since = session->member->waiting_ns;
    if (!session->member->reports_waits) {
        stream_note_wait(session, since == 0 ? 0 : now_ns - since);
    }
    session->member->waiting_ns = 0;
    session->member->held_back = false;
}

static bool stream_holds(const struct session *session, uint64_t step, uint32_t index) {
    for (uint32_t i = 0; i < session->held_count; i++) {
        if (session->held[i].step == step && session->held[i].index == index) {
            return true;
        }
    }
    return false;
}

/* A batch that was sent before on this connection, on an earlier Stream, stays held once. */
static void stream_hold(struct session *session, uint32_t slot, uint64_t generation) {
    const struct member *member = session->member;
    if (stream_holds(session, member->step, member->index)) {
        session->world->ops->release(session, slot);
        return;
    }
    assert(session->held_count < session->world->job->replica_slots);
    session->held[session->held_count++] = (struct session_held){
        .step = member->step, .index = member->index, .slot = slot, .generation = generation};
}

static void stream_sent(struct session *session, const struct session_batch *batch,
                        uint64_t now_ns) {
    struct member *member = session->member;
    if (batch->slot >= 0) {
        stream_hold(session, (uint32_t)batch->slot, batch->slot_generation);
    }
    member->index++;
    member->credits--;
    stream_waited(session, now_ns);
}

/* Whether the next batch is so far ahead of the replica's slowest rank that its slot might be the
 * one which that rank needs. `last`: nobody stands further back, or may come back there. */
static bool stream_too_far_ahead(const struct session *session, uint64_t now_ns, bool *last) {
    const struct roster *roster = session->world->roster;
    uint32_t replica = session->member->replica;
    uint64_t position = roster_position(roster, session->member);
    uint64_t slowest = position;
    *last = true;
    if (!session->subscribed || !roster_slowest(roster, replica, &slowest)) {
        return false;
    }
    *last = position == slowest && !roster_awaits(roster, replica, now_ns);
    return position > slowest && position - slowest + 1 >= session->world->job->replica_slots;
}

/* Whether slower ranks must commit first, so that what is not committed stays bounded. */
static bool stream_leads(struct session *session, uint64_t now_ns) {
    struct member *member = session->member;
    if (!roster_leads(session->world->roster, member, now_ns)) {
        roster_lead_end(member, now_ns);
        return false;
    }
    if (member->leading_ns == 0) {
        member->leading_ns = now_ns;
    }
    return true;
}

/* Sends the next batch; false when it has to wait or the stream ended. */
static bool stream_next(struct session *session, const struct step_plan *plan, uint64_t now_ns) {
    struct member *member = session->member;
    uint32_t micro_batch = member->place.dp * stream_micro_batches(session, member->step) +
                           member->index;
    struct session_batch batch = {.slot = -1};
    struct error error;
    bool last;
    if (stream_leads(session, now_ns)) {
        stream_wait(session, false, now_ns);
        return false;
    }
    if (stream_too_far_ahead(session, now_ns, &last)) {
        stream_wait(session, true, now_ns);
        return false;
    }
    enum session_answer answer = session->world->ops->take(session, plan, micro_batch, last, &batch,
                                                           &error);
    switch (answer) {
    case SESSION_READY:
        break;
    case SESSION_WAITS:
    case SESSION_HELD_UP:
        stream_wait(session, answer == SESSION_HELD_UP, now_ns);
        return false;
    case SESSION_NO_STEP:
    case SESSION_LOST:
        session_end_stream(session, STATUS_DATA_LOSS, error.text);
        return false;
    }
    (void)FAILPOINT(batch_before);
    if (!stream_batch(session, plan, micro_batch, &batch)) {
        if (batch.slot >= 0) {
            session->world->ops->release(session, (uint32_t)batch.slot);
        }
        stream_fail(session, STATUS_RESOURCE_EXHAUSTED,
                    "the plan of step %" PRIu64 ", micro-batch %u, does not fit a frame of "
                    "4 MiB",
                    member->step, member->index);
        return false;
    }
    (void)FAILPOINT(batch_after);
    stream_sent(session, &batch, now_ns);
    return true;
}

/* One event further; false when nothing more can be sent now. */
static bool stream_step(struct session *session, uint64_t now_ns) {
    struct member *member = session->member;
    const struct step_plan *plan = NULL;
    struct error error;
    if (session->world->ops->congested(session)) {
        return false;
    }
    if (member->step == session->world->job->end_step) {
        session_end_stream(session, STATUS_FAILED_PRECONDITION, session->world->job->next_mesh);
        return false;
    }
    enum session_answer answer = session->world->ops->plan(session, member->step, &plan, &error);
    switch (answer) {
    case SESSION_READY:
        break;
    case SESSION_WAITS:
    case SESSION_HELD_UP:
        if (member->credits > 0) {
            stream_wait(session, false, now_ns);
        }
        return false;
    case SESSION_NO_STEP:
        stream_end_of_data(session);
        return false;
    case SESSION_LOST:
        session_end_stream(session, status_from_error(error.code), error.text);
        return false;
    }
    if (member->index == stream_micro_batches(session, member->step)) {
        stream_end_of_step(session, plan);
        return true;
    }
    return member->credits > 0 && stream_next(session, plan, now_ns);
}

void stream_deliver(struct session *session, uint64_t now_ns) {
    const struct session_progress *progress = session->world->progress;
    if (session->state != SESSION_STREAMING || progress->stopping || progress->moving) {
        return;
    }
    session->member->held_back = false;
    while (session->state == SESSION_STREAMING && stream_step(session, now_ns)) {
    }
}

void stream_stop(struct session *session) {
    struct member *member = session->member;
    member->streaming = false;
    member->subscribed = false;
    member->held_back = false;
    member->credits = 0;
    member->waiting_ns = 0;
    member->leading_ns = 0;
}
