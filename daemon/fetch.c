/* fetch: Loader.Fetch, the bytes of a held batch over the connection itself; see loader.h.
 *
 * One call is answered after the other, a message at a time, and a message only when the peer has
 * taken most of what came before: a peer that reads slowly has little queued and delays nobody. The
 * slot is held as long as its batch is; when that ends first, because the batch was released or its
 * generation is over, the call ends with a status, and never with another batch's tokens. */
#include "daemon/loader.h"

#include "ballast.pb-c.h"

#include <inttypes.h>
#include <string.h>

/* A message's payload. Small enough that most of it goes to the socket at once. */
#define FETCH_PIECE_BYTES (256u << 10)
/* Of one connection in one turn of the loop; then others have theirs. */
#define FETCH_TURN_BYTES (1u << 20)

static const struct session_held *fetch_find(const struct session *session,
                                             const Ballast__V1__BatchId *id) {
    for (uint32_t i = 0; i < session->held_count; i++) {
        if (session->held[i].step == id->step && session->held[i].index == id->index) {
            return &session->held[i];
        }
    }
    return NULL;
}

void fetch_serve(struct session *session, const struct session_call *call, const void *message,
                 uint64_t now_ns) {
    const Ballast__V1__FetchRequest *request = message;
    const Ballast__V1__BatchId *id = request->id;
    (void)now_ns;
    if (session->member == NULL) {
        session_refuse(session, call->stream, STATUS_FAILED_PRECONDITION, "say Hello before Fetch");
        return;
    }
    if (id == NULL || id->dp != session->member->place.dp) {
        session_refuse(session, call->stream, STATUS_INVALID_ARGUMENT,
                       "Fetch names no batch of replica %u, which this rank is of",
                       session->member->place.dp);
        return;
    }
    const struct session_held *held = fetch_find(session, id);
    if (held == NULL) {
        session_refuse(session, call->stream, STATUS_NOT_FOUND,
                       "micro-batch %u of step %" PRIu64 " is not held by this connection: it has "
                       "no tokens, was not sent, or was released or committed",
                       id->index, id->step);
        return;
    }
    if (session->fetch_count == SESSION_FETCHES_MAX) {
        session_refuse(session, call->stream, STATUS_RESOURCE_EXHAUSTED,
                       "%u batches are being fetched on this connection already",
                       session->fetch_count);
        return;
    }
    session->fetches[session->fetch_count++] = (struct session_fetch){
        .stream = call->stream, .held = *held, .deadline_ns = call->deadline_ns};
    session->world->ops->again(session);
}

static struct session_fetch fetch_remove(struct session *session, uint32_t i) {
    struct session_fetch fetch = session->fetches[i];
    session->fetch_count--;
    memmove(&session->fetches[i], &session->fetches[i + 1],
            (session->fetch_count - i) * sizeof fetch);
    return fetch;
}

void fetch_lost(struct session *session, const struct session_held *held) {
    for (uint32_t i = session->fetch_count; i-- > 0;) {
        const struct session_fetch *fetch = &session->fetches[i];
        if (fetch->held.step == held->step && fetch->held.index == held->index) {
            session_refuse(session, fetch_remove(session, i).stream, STATUS_CANCELLED,
                           "micro-batch %u of step %" PRIu64
                           " is no longer held by this connection; the rest of it does not come",
                           held->index, held->step);
        }
    }
}

/* One message of the first call, or its end: whether more can be sent at once. */
static bool fetch_step(struct session *session, uint64_t now_ns, uint64_t *sent) {
    struct session_fetch *fetch = &session->fetches[0];
    const struct session_ops *ops = session->world->ops;
    uint64_t bytes = 0;
    const uint8_t *payload = ops->payload(session, fetch->held.slot, fetch->held.generation,
                                          &bytes);
    if (payload == NULL) {
        session_refuse(session, fetch_remove(session, 0).stream, STATUS_DATA_LOSS,
                       "the slot was given to another batch; open the Stream anew from this one");
        return true;
    }
    if (now_ns >= fetch->deadline_ns) {
        session_refuse(session, fetch_remove(session, 0).stream, STATUS_DEADLINE_EXCEEDED,
                       "%" PRIu64 " of %" PRIu64 " bytes were sent in time", fetch->sent, bytes);
        return true;
    }
    if (fetch->sent == bytes) {
        session_finish(session, fetch_remove(session, 0).stream);
        return true;
    }
    uint64_t left = bytes - fetch->sent;
    uint32_t piece = left < FETCH_PIECE_BYTES ? (uint32_t)left : FETCH_PIECE_BYTES;
    payload += fetch->sent;
    fetch->sent += piece;
    *sent += piece;
    return ops->send_payload(session, fetch->stream, payload, piece);
}

void fetch_deliver(struct session *session, uint64_t now_ns) {
    uint64_t sent = 0;
    bool more = !session->world->ops->congested(session);
    while (session->fetch_count > 0 && more && sent < FETCH_TURN_BYTES) {
        more = fetch_step(session, now_ns, &sent);
    }
    if (session->fetch_count > 0 && more) {
        session->world->ops->again(session);
    }
}
