/* seek: Loader.Seek, Import and Export, and what the beginning of a generation does to a session;
 * see session.h and generation.h. Where a step comes from is the owner's (rewind.h). */
#include "daemon/loader.h"

#include "ballast.pb-c.h"

#include <inttypes.h>
#include <stdio.h>

void session_name(const struct session *session, char out[GENERATION_BY_BYTES]) {
    const struct member *member = session->member;
    if (member == NULL) {
        (void)snprintf(out, GENERATION_BY_BYTES, "an administrator (pid %u, uid %u)",
                       session->peer.pid, session->peer.uid);
        return;
    }
    (void)snprintf(out, GENERATION_BY_BYTES, "rank dp %u, pp %u, cp %u, tp %u (pid %u)",
                   member->place.dp, member->place.pp, member->place.cp, member->place.tp,
                   session->peer.pid);
}

bool loader_current(const struct session *session, char text[ERROR_TEXT_BYTES]) {
    const struct generation *generation = session->world->generation;
    if (session->generation == generation->number) {
        return true;
    }
    (void)snprintf(text, ERROR_TEXT_BYTES,
                   "%s sought step %" PRIu64 ", where generation %" PRIu64
                   " begins; this rank is of generation %" PRIu64 ": seek that step too",
                   generation->by, generation->step, generation->number, session->generation);
    return false;
}

void session_join(struct session *session) {
    session->generation = session->world->generation->number;
    if (session->member != NULL) {
        session->member->generation = session->generation;
    }
}

void session_rejoin(struct session *session) {
    char text[ERROR_TEXT_BYTES];
    const struct generation *generation = session->world->generation;
    (void)snprintf(text, sizeof text, "this rank sought step %" PRIu64 ": open another Stream",
                   generation->step);
    session_end_stream(session, STATUS_ABORTED, text);
    stream_release_all(session);
    session_join(session);
    if (session->member != NULL) {
        session->member->sought = generation->number;
        roster_rewind_member(session->world->roster, session->member, generation->step);
    }
}

void session_abort(struct session *session, uint64_t now_ns) {
    char text[ERROR_TEXT_BYTES];
    if (session->state == SESSION_CLOSED || loader_current(session, text)) {
        return;
    }
    arena_reset(session->world->arena);
    session_end_stream(session, STATUS_ABORTED, text);
    if (session->member == NULL) {
        return;
    }
    loader_acknowledge(session, now_ns);
    for (uint32_t i = 0; i < session->commit_count; i++) {
        arena_reset(session->world->arena);
        session_refuse(session, session->commits[i].stream, STATUS_ABORTED, "%s", text);
    }
    session->commit_count = 0;
    stream_release_all(session);
}

/* Whether this peer may move the job: a rank may, and who may administer. */
static bool seek_allowed(struct session *session, uint32_t stream) {
    if (session->member == NULL && !session->peer.may_admin) {
        session_refuse(session, stream, STATUS_FAILED_PRECONDITION,
                       "say Hello first; without a rank it needs daemon.admin_uids");
        return false;
    }
    if (session->world->progress->stopping) {
        session_refuse(session, stream, STATUS_UNAVAILABLE, "the daemon is stopping");
        return false;
    }
    if (session->world->progress->full) {
        session_refuse(session, stream, STATUS_RESOURCE_EXHAUSTED,
                       "a generation must be durable, and the disk of the state directory is full; "
                       "free some space");
        return false;
    }
    return true;
}

void loader_seek(struct session *session, const struct session_call *call, const void *message,
                 uint64_t now_ns) {
    const Ballast__V1__SeekRequest *request = message;
    (void)now_ns;
    if (!seek_allowed(session, call->stream)) {
        return;
    }
    if (request->step > INT64_MAX || request->generation > INT64_MAX) {
        session_refuse(session, call->stream, STATUS_INVALID_ARGUMENT,
                       "step %" PRIu64 ", generation %" PRIu64 ": there are no such numbers",
                       request->step, request->generation);
        return;
    }
    session->world->ops->seek(session, call->stream, request->step, request->generation,
                              call->deadline_ns);
}

void loader_import(struct session *session, const struct session_call *call, const void *message,
                   uint64_t now_ns) {
    const Ballast__V1__ImportRequest *request = message;
    (void)now_ns;
    if (!seek_allowed(session, call->stream)) {
        return;
    }
    if (request->generation > INT64_MAX) {
        session_refuse(session, call->stream, STATUS_INVALID_ARGUMENT,
                       "generation %" PRIu64 ": there is no such number", request->generation);
        return;
    }
    session->world->ops->import(session, call->stream, request->state.data, request->state.len,
                                request->generation, call->deadline_ns);
}

void loader_export(struct session *session, const struct session_call *call, const void *message,
                   uint64_t now_ns) {
    const Ballast__V1__ExportRequest *request = message;
    (void)now_ns;
    session->world->ops->export(session, call->stream, request->step);
}
