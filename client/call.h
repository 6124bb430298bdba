/* call: one ttrpc connection, blocking, for libballast and ballastctl.
 *
 * Unary calls and one bidirectional stream. Not thread-safe. Knows frames and messages, not ranks.
 * A timeout is in milliseconds; below 0 there is none.
 */
#ifndef BALLAST_CLIENT_CALL_H
#define BALLAST_CLIENT_CALL_H

#include "client/dial.h"
#include "planner/error.h"
#include "proto/arena.h"

#include <stdbool.h>
#include <stdint.h>

struct call_channel;

/* Connects to an address (proto/address.h), retrying until timeout_ms while the daemon is not there
 * (0: one try, which over TCP may take DIAL_MS). -ECONNREFUSED "no daemon listens on PATH; start
 * ballastd or check --socket", -EACCES, -ENAMETOOLONG, ... as dial.h. The caller closes the
 * channel. call_open takes its credentials from the environment. */
int call_open_as(const char *address, const struct dial_credentials *credentials, int timeout_ms,
                 struct call_channel **out, struct error *error);
int call_open(const char *address, int timeout_ms, struct call_channel **out, struct error *error);
/* On a connection that stands (taken, also on failure). -ENOMEM. */
int call_open_dialed(struct dialed *dialed, struct call_channel **out, struct error *error);
void call_close(struct call_channel *channel); /* NULL is fine */
int call_fd(const struct call_channel *channel);

/* Sends a request and waits for its response. The response is unpacked into `arena` and belongs to
 * it. A refusal comes back as the errno of its status with the daemon's sentence in `error`; no
 * answer in time is -ETIMEDOUT; a connection that broke is -EPIPE or -ECONNRESET, which no refusal
 * is. Frames of an open stream that arrive meanwhile are kept for call_stream_next. */
int call_unary(struct call_channel *channel, const char *service, const char *method,
               const ProtobufCMessage *request, const ProtobufCMessageDescriptor *response_type,
               struct arena *arena, ProtobufCMessage **response, int timeout_ms,
               struct error *error);

/* The two halves of call_unary, one call at a time: send the request; wait for its response, which
 * returns 1, or 0 after the timeout and may then be waited for again. Starting another call gives
 * up on the one before: its late response is dropped. */
int call_start(struct call_channel *channel, const char *service, const char *method,
               const ProtobufCMessage *request, struct error *error);
int call_finish(struct call_channel *channel, const ProtobufCMessageDescriptor *response_type,
                struct arena *arena, ProtobufCMessage **response, int timeout_ms,
                struct error *error);

/* A call that is answered by FetchResponse messages, beside the stream and unary calls. Their
 * payloads go to `to` one behind the other, whatever call is waited for meanwhile; it is written
 * until call_fetch_finish has returned something else than 0, or the fetch was dropped, as starting
 * another one does. */
int call_fetch_start(struct call_channel *channel, const char *service, const char *method,
                     const ProtobufCMessage *request, uint8_t *to, uint64_t bytes,
                     struct error *error);
/* Waits for the end: 1 with all bytes there, 0 after the timeout; the daemon's refusal, -EPROTO for
 * other than as many bytes, or what broke. */
int call_fetch_finish(struct call_channel *channel, int timeout_ms, struct error *error);
void call_fetch_drop(struct call_channel *channel);

/* Opens a stream, the channel's only one at a time, then sends messages on it. */
int call_stream_open(struct call_channel *channel, const char *service, const char *method,
                     struct error *error);
int call_stream_send(struct call_channel *channel, const ProtobufCMessage *message,
                     struct error *error);

/* Forgets the open stream, if any: what comes of it is dropped, and another may be opened. */
void call_stream_drop(struct call_channel *channel);

/* Next message of the stream: 1 with *message in `arena`; 0 after the timeout; when the daemon
 * ended the stream or the connection broke, the negative errno with the sentence (-EPIPE when it
 * ended without a reason). What arrived before the end is given out first. */
int call_stream_next(struct call_channel *channel, const ProtobufCMessageDescriptor *type,
                     struct arena *arena, ProtobufCMessage **message, int timeout_ms,
                     struct error *error);

#endif
