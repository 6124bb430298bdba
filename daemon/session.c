/* session: see session.h. This file: frames, calls, time; what Loader's calls mean is in loader.c.
 */
#include "daemon/session.h"

#include "daemon/loader.h"
#include "ttrpc.pb-c.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>

static const uint8_t session_successors[] = {
    [SESSION_NEW] = 1 << SESSION_BOUND | 1 << SESSION_CLOSED,
    [SESSION_BOUND] = 1 << SESSION_OPENING | 1 << SESSION_CLOSED,
    [SESSION_OPENING] = 1 << SESSION_STREAMING | 1 << SESSION_BOUND | 1 << SESSION_CLOSED,
    [SESSION_STREAMING] = 1 << SESSION_ENDED | 1 << SESSION_BOUND | 1 << SESSION_CLOSED,
    [SESSION_ENDED] = 1 << SESSION_BOUND | 1 << SESSION_CLOSED,
    [SESSION_CLOSED] = 0,
};

bool session_may_move(enum session_state from, enum session_state to) {
    return (session_successors[from] & 1 << to) != 0;
}

void session_move(struct session *session, enum session_state to) {
    assert(session_may_move(session->state, to));
    session->state = to;
}

void session_init(struct session *session, const struct session_world *world, void *owner,
                  const struct session_peer *peer, uint64_t now_ns) {
    *session = (struct session){
        .world = world, .owner = owner, .peer = *peer, .start_ns = now_ns, .progress_ns = now_ns};
}

void session_log(struct session *session, int level, const char *format, ...) {
    char text[ERROR_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    session->world->ops->log(session, level, text);
}

void session_deinit(struct session *session, uint64_t now_ns) {
    if (session->state == SESSION_CLOSED) {
        return;
    }
    session->world->ops->closed(session);
    loader_leave(session, now_ns);
    session_move(session, SESSION_CLOSED);
}

static void session_respond(struct session *session, uint32_t stream, enum status status,
                            const char *text, ProtobufCBinaryData payload) {
    Ttrpc__Response response = TTRPC__RESPONSE__INIT;
    Ttrpc__Status refusal = TTRPC__STATUS__INIT;
    response.payload = payload;
    if (status != STATUS_OK) {
        refusal.code = (int32_t)status;
        refusal.message = (char *)text;
        response.status = &refusal;
    }
    session->world->ops->send(session, stream, FRAME_RESPONSE, &response.base);
}

void session_answer(struct session *session, uint32_t stream, const ProtobufCMessage *message) {
    struct arena *arena = session->world->arena;
    size_t bytes = message == NULL ? 0 : protobuf_c_message_get_packed_size(message);
    uint8_t *packed = bytes > FRAME_DATA_BYTES_MAX - 64 ? NULL : arena_alloc(arena, bytes);
    if (message == NULL || packed == NULL) {
        session_refuse(session, stream, STATUS_RESOURCE_EXHAUSTED,
                       "the answer is larger than a frame of 4 MiB; ask for less at once");
        return;
    }
    if (session->world->ops->crowded(session, bytes)) {
        session_refuse(session, stream, STATUS_RESOURCE_EXHAUSTED,
                       "too many answers wait to be read; try again");
        return;
    }
    protobuf_c_message_pack(message, packed);
    session_respond(session, stream, STATUS_OK, NULL,
                    (ProtobufCBinaryData){.len = bytes, .data = packed});
}

void session_refuse(struct session *session, uint32_t stream, enum status status,
                    const char *format, ...) {
    char text[ERROR_TEXT_BYTES];
    va_list arguments;
    assert(status != STATUS_OK);
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    session_respond(session, stream, status, text, (ProtobufCBinaryData){0});
}

void session_finish(struct session *session, uint32_t stream) {
    session_respond(session, stream, STATUS_OK, NULL, (ProtobufCBinaryData){0});
}

void session_end_stream(struct session *session, enum status status, const char *text) {
    if (session->stream == 0) {
        return;
    }
    session_respond(session, session->stream, status, text, (ProtobufCBinaryData){0});
    session->stream = 0;
    stream_stop(session);
    session_move(session, SESSION_BOUND);
}

static void name_copy(const char *name, char first, char out[SESSION_NAME_BYTES]) {
    size_t i = 0;
    for (; i + 1 < SESSION_NAME_BYTES && name[i] != '\0'; i++) {
        out[i] = first <= name[i] && name[i] <= '~' && name[i] != '"' ? name[i] : '?';
    }
    out[i] = '\0';
}

void session_printable(const char *name, char out[SESSION_NAME_BYTES]) {
    name_copy(name, '!', out);
}

void session_value(const char *name, char out[SESSION_NAME_BYTES + 2]) {
    char text[SESSION_NAME_BYTES];
    name_copy(name, ' ', text);
    const char *quote = strchr(text, ' ') != NULL ? "\"" : "";
    (void)snprintf(out, SESSION_NAME_BYTES + 2, "%s%s%s", quote, text, quote);
}

void *session_unpack(struct session *session, const ProtobufCMessageDescriptor *type,
                     const uint8_t *data, size_t bytes) {
    return protobuf_c_message_unpack(type, &session->world->arena->allocator, bytes, data);
}

static uint64_t session_deadline(int64_t timeout_ns, uint64_t now_ns) {
    if (timeout_ns <= 0) {
        return UINT64_MAX;
    }
    uint64_t capped = (uint64_t)timeout_ns < SESSION_CALL_TIMEOUT_NS_MAX
                          ? (uint64_t)timeout_ns
                          : SESSION_CALL_TIMEOUT_NS_MAX;
    return now_ns + capped;
}

static void session_deny(struct session *session, uint32_t stream, const char *what,
                         const char *unix_remedy, const char *remote_remedy) {
    const struct session_peer *peer = &session->peer;
    if (peer->remote) {
        session_refuse(session, stream, STATUS_PERMISSION_DENIED, "%s is not allowed to %s; %s",
                       peer->name, what, remote_remedy);
    } else {
        session_refuse(session, stream, STATUS_PERMISSION_DENIED, "uid %u is not allowed to %s; %s",
                       peer->uid, what, unix_remedy);
    }
}

static void session_call_admin(struct session *session, const struct session_call *call) {
    if (!session->peer.may_admin) {
        session_deny(session, call->stream, "administer", "add it to daemon.admin_uids",
                     "use the token of listen.admin_token_file, or a certificate with a name in "
                     "listen.admin_names");
    } else if (session->admin_calls >= SESSION_ADMIN_CALLS_MAX) {
        session_refuse(session, call->stream, STATUS_RESOURCE_EXHAUSTED,
                       "%u calls of this connection wait for an answer", session->admin_calls);
    } else {
        session->greeted = true;
        session->world->ops->admin(session, call->stream, call->method, call->payload, call->bytes);
    }
}

static void session_call_loader(struct session *session, const struct session_call *call,
                                uint64_t now_ns) {
    if (!session->peer.may_serve) {
        session_deny(session, call->stream, "be served", "add it to daemon.allow_uids",
                     "use a certificate with a name in listen.serve_names");
    } else if (session->world->progress->warming) {
        session->greeted = true;
        session_refuse(session, call->stream, STATUS_UNAVAILABLE,
                       "the daemon is warming up: it opens its corpus; try again");
    } else if (loader_call(session, call, now_ns)) {
        session->greeted = true;
    }
}

static int session_request(struct session *session, const struct frame_header *header,
                           const uint8_t *data, uint64_t now_ns) {
    char service[SESSION_NAME_BYTES];
    if (session->peer.refusal != STATUS_OK) {
        session_refuse(session, header->stream, session->peer.refusal, "%s",
                       session->peer.refusal_text);
        return -EPROTO;
    }
    const Ttrpc__Request *request = session_unpack(session, &ttrpc__request__descriptor, data,
                                                   header->length);
    if (request == NULL) {
        session_refuse(session, header->stream, STATUS_INVALID_ARGUMENT,
                       "the request is not a message of ttrpc");
        return 0;
    }
    struct session_call call = {.stream = header->stream,
                                .half_closed = (header->flags & FRAME_REMOTE_CLOSED) != 0,
                                .method = request->method,
                                .payload = request->payload.data,
                                .bytes = request->payload.len,
                                .deadline_ns = session_deadline(request->timeout_nano, now_ns)};
    if (strcmp(request->service, SESSION_LOADER) == 0) {
        session_call_loader(session, &call, now_ns);
    } else if (strcmp(request->service, SESSION_ADMIN) == 0) {
        session_call_admin(session, &call);
    } else {
        session_printable(request->service, service);
        session_refuse(session, call.stream, STATUS_UNIMPLEMENTED,
                       "no service '%s' here; there are " SESSION_LOADER " and " SESSION_ADMIN,
                       service);
    }
    return 0;
}

static int session_violation(struct session *session, uint32_t stream, const char *reason) {
    session_refuse(session, stream, STATUS_INVALID_ARGUMENT, "%s", reason);
    return -EPROTO;
}

/* Data of a stream that was ended here meanwhile is dropped: the peer could not know. */
static int session_data(struct session *session, const struct frame_header *header,
                        const uint8_t *data) {
    if (header->stream > session->last_stream || header->stream % 2 == 0) {
        return session_violation(session, header->stream, "data on a stream that was not opened");
    }
    if (session->stream == 0 || header->stream != session->stream) {
        return 0;
    }
    if ((header->flags & FRAME_NO_DATA) == 0) {
        stream_message(session, data, header->length);
    }
    if ((header->flags & FRAME_REMOTE_CLOSED) != 0) {
        session_end_stream(session, STATUS_OK, NULL);
    }
    return 0;
}

int session_frame(struct session *session, const struct frame_header *header, const uint8_t *data,
                  uint64_t now_ns) {
    const char *reason = "frame of a type that only servers send";
    if (session->state == SESSION_CLOSED) {
        return -EPROTO;
    }
    arena_reset(session->world->arena);
    session->progress_ns = now_ns;
    switch ((enum frame_type)header->type) {
    case FRAME_REQUEST:
        if (frame_stream_check(header->stream, &session->last_stream, &reason) < 0) {
            return session_violation(session, header->stream, reason);
        }
        return session_request(session, header, data, now_ns);
    case FRAME_DATA:
        return session_data(session, header, data);
    case FRAME_RESPONSE:
        break;
    }
    return session_violation(session, header->stream, reason);
}

void session_bad_frame(struct session *session, const struct frame_header *header, int code,
                       const char *reason) {
    if (session->state != SESSION_CLOSED) {
        session_refuse(session, header->stream,
                       code == -EMSGSIZE ? STATUS_RESOURCE_EXHAUSTED : STATUS_INVALID_ARGUMENT,
                       "%s", reason);
    }
}

void session_pump(struct session *session, uint64_t now_ns) {
    if (session->member != NULL && session->state != SESSION_CLOSED) {
        loader_acknowledge(session, now_ns);
        stream_deliver(session, now_ns);
        fetch_deliver(session, now_ns);
    }
}

void session_drained(struct session *session, uint64_t now_ns) {
    session->progress_ns = now_ns;
}

static uint64_t session_later(uint64_t then_ns, uint64_t ns, uint64_t now_ns) {
    return now_ns - then_ns < ns ? now_ns : then_ns + ns;
}

void session_forgive(struct session *session, uint64_t ns, uint64_t now_ns) {
    session->start_ns = session_later(session->start_ns, ns, now_ns);
    session->progress_ns = session_later(session->progress_ns, ns, now_ns);
}

int session_tick(struct session *session, uint64_t now_ns) {
    if (session->state == SESSION_CLOSED) {
        return 0;
    }
    if (!session->greeted && now_ns - session->start_ns > SESSION_HANDSHAKE_NS) {
        return -ETIMEDOUT;
    }
    if (now_ns - session->progress_ns <= session->world->roster->lease_ns) {
        return 0;
    }
    if (session->member != NULL) {
        return loader_judge(session);
    }
    return session->world->ops->congested(session) ? -ETIMEDOUT : 0;
}

bool session_use_token(struct session *session, const uint8_t token[SESSION_TOKEN_BYTES]) {
    uint8_t difference = 0;
    for (size_t i = 0; i < SESSION_TOKEN_BYTES; i++) {
        difference |= session->token[i] ^ token[i];
    }
    if (!session->token_valid || difference != 0) {
        return false;
    }
    session->token_valid = false;
    return true;
}
