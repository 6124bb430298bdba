/* loader: see loader.h. Hello is in hello.c, Stream in stream.c, Fetch in fetch.c, Seek in
 * seek.c. */
#include "daemon/loader.h"

#include "ballast.pb-c.h"
#include "daemon/failpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

/* Commit */

static bool loader_durable(const struct session *session, const struct session_commit *commit) {
    const struct session_progress *progress = session->world->progress;
    return !commit->late && progress->durable_step > commit->step &&
           progress->durable_changes >= commit->change;
}

static void loader_answer_commit(struct session *session, uint32_t stream) {
    Ballast__V1__CommitResponse response = BALLAST__V1__COMMIT_RESPONSE__INIT;
    response.durable_step = session->world->progress->durable_step;
    session_answer(session, stream, &response.base);
}

void loader_acknowledge(struct session *session, uint64_t now_ns) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < session->commit_count; i++) {
        struct session_commit commit = session->commits[i];
        arena_reset(session->world->arena);
        if (loader_durable(session, &commit)) {
            (void)FAILPOINT(ack_before);
            loader_answer_commit(session, commit.stream);
            (void)FAILPOINT(ack_after);
        } else if (session->world->progress->full && !commit.late) {
            session_refuse(session, commit.stream, STATUS_RESOURCE_EXHAUSTED,
                           "step %" PRIu64 " is noted but not durable: the disk of the state "
                           "directory is full; free some space, then commit again",
                           commit.step);
        } else if (now_ns >= commit.deadline_ns) {
            session_refuse(session, commit.stream, STATUS_DEADLINE_EXCEEDED,
                           "step %" PRIu64 " is not durable yet", commit.step);
        } else {
            session->commits[kept++] = commit;
        }
    }
    session->commit_count = kept;
}

uint64_t loader_delivered_step(const struct session *session) {
    const struct member *member = session->member;
    uint64_t claimable = session->world->progress->claimable_step;
    return !member->delivery_known && claimable > member->delivered_step ? claimable
                                                                         : member->delivered_step;
}

static void loader_measure(struct session *session, const Ballast__V1__CommitRequest *request) {
    struct measured *measured = session->world->measured;
    const struct roster *roster = session->world->roster;
    const struct member *member = session->member;
    if (request->n_measured == 0 ||
        !measured_begin(measured, request->step, (uint32_t)(member - roster->members))) {
        return;
    }
    for (size_t i = 0; i < request->n_measured; i++) {
        const Ballast__V1__Measured *one = request->measured[i];
        if (one->index < roster_micro_batches(roster, request->step)) {
            measured_add_times(measured, request->step, member->replica, one->index, one->total_ns,
                               one->attention_ns);
            measured_add_experts(measured, request->step, one->index, one->expert_tokens,
                                 one->n_expert_tokens);
        }
    }
}

static bool loader_may_commit(struct session *session, uint32_t stream, uint64_t step) {
    char text[ERROR_TEXT_BYTES];
    if (session->member == NULL) {
        session_refuse(session, stream, STATUS_FAILED_PRECONDITION, "say Hello first");
    } else if (!loader_current(session, text)) {
        session_refuse(session, stream, STATUS_ABORTED, "%s", text);
    } else if (step >= loader_delivered_step(session)) {
        session_refuse(session, stream, STATUS_OUT_OF_RANGE,
                       "step %" PRIu64 " was not delivered to this rank; its next is %" PRIu64,
                       step, session->member->delivered_step);
    } else if (session->commit_count == SESSION_COMMITS_MAX) {
        session_refuse(session, stream, STATUS_RESOURCE_EXHAUSTED,
                       "%u commits of this rank are not durable yet", session->commit_count);
    } else {
        return true;
    }
    return false;
}

static void loader_commit(struct session *session, const struct session_call *call,
                          const void *message, uint64_t now_ns) {
    const Ballast__V1__CommitRequest *request = message;
    uint64_t step = request->step;
    struct roster *roster = session->world->roster;
    if (!loader_may_commit(session, call->stream, step)) {
        return;
    }
    (void)FAILPOINT(commit_in);
    if (session->world->progress->moving) { /* told when the other generation has begun */
        session->commits[session->commit_count++] = (struct session_commit){
            .stream = call->stream, .step = step, .late = true, .deadline_ns = call->deadline_ns};
        return;
    }
    loader_measure(session, request);
    stream_release_through(session, step);
    roster_commit(roster, session->member, step + 1, now_ns);
    session->commits[session->commit_count++] = (struct session_commit){
        .stream = call->stream,
        .step = step,
        .change = roster->changes,
        .deadline_ns = call->deadline_ns};
    (void)FAILPOINT(commit_noted);
}

/* Ping */

static void loader_ping(struct session *session, const struct session_call *call,
                        const void *message, uint64_t now_ns) {
    Ballast__V1__PingResponse response = BALLAST__V1__PING_RESPONSE__INIT;
    (void)message;
    (void)now_ns;
    session_answer(session, call->stream, &response.base);
}

/* Calls */

static const struct loader_method {
    const char *name;
    const ProtobufCMessageDescriptor *type; /* NULL: the call has no message of its own */
    void (*serve)(struct session *session, const struct session_call *call, const void *message,
                  uint64_t now_ns);
} loader_methods[] = {
    {"Hello", &ballast__v1__hello_request__descriptor, loader_hello},
    {"Stream", NULL, stream_serve},
    {"Fetch", &ballast__v1__fetch_request__descriptor, fetch_serve},
    {"Commit", &ballast__v1__commit_request__descriptor, loader_commit},
    {"Seek", &ballast__v1__seek_request__descriptor, loader_seek},
    {"Export", &ballast__v1__export_request__descriptor, loader_export},
    {"Import", &ballast__v1__import_request__descriptor, loader_import},
    {"Ping", &ballast__v1__ping_request__descriptor, loader_ping},
};

static const struct loader_method *loader_method(const char *name) {
    for (size_t i = 0; i < sizeof loader_methods / sizeof loader_methods[0]; i++) {
        if (strcmp(loader_methods[i].name, name) == 0) {
            return &loader_methods[i];
        }
    }
    return NULL;
}

bool loader_call(struct session *session, const struct session_call *call, uint64_t now_ns) {
    const struct loader_method *method = loader_method(call->method);
    const void *message = NULL;
    char name[SESSION_NAME_BYTES];
    if (method == NULL) {
        session_printable(call->method, name);
        session_refuse(session, call->stream, STATUS_UNIMPLEMENTED,
                       "this daemon does not serve Loader.%s", name);
        return false;
    }
    if (method->type != NULL) {
        message = session_unpack(session, method->type, call->payload, call->bytes);
        if (message == NULL) {
            session_refuse(session, call->stream, STATUS_INVALID_ARGUMENT,
                           "the message of %s cannot be read", method->name);
            return false;
        }
    }
    method->serve(session, call, message, now_ns);
    return true;
}

/* Life */

void loader_leave(struct session *session, uint64_t now_ns) {
    struct member *member = session->member;
    if (member == NULL) {
        return;
    }
    session->fetch_count = 0;
    stream_release_all(session);
    free(session->held);
    session->held = NULL;
    session->member = NULL;
    roster_leave(session->world->roster, member, now_ns);
    if (session->cut) {
        member->lease_end_ns = now_ns;
    }
    session_log(session, LOG_INFO, "rank left dp=%u pp=%u cp=%u tp=%u pid=%u step=%" PRIu64,
                member->place.dp, member->place.pp, member->place.cp, member->place.tp, member->pid,
                member->step);
}

int loader_judge(struct session *session) {
    const struct session_world *world = session->world;
    struct member *member = session->member;
    bool blocks = roster_blames(world->roster, member, session->held_count > 0);
    if (!blocks && !world->ops->congested(session)) {
        return 0;
    }
    session->cut = true;
    session_log(session, LOG_WARNING,
                "rank cut: silent for its lease while %s dp=%u pp=%u cp=%u tp=%u pid=%u held=%u",
                blocks ? "others wait for it" : "its output waits", member->place.dp,
                member->place.pp, member->place.cp, member->place.tp, member->pid,
                session->held_count);
    session_end_stream(session, STATUS_DEADLINE_EXCEEDED,
                       blocks ? "cut: silent for the lease while other ranks waited for this one"
                              : "cut: nothing was read for the lease");
    return -ETIMEDOUT;
}
