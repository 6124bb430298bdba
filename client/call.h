/* call: one ttrpc connection, blocking, for libballast and ballastctl.
 *
 * Unary calls and one bidirectional stream. Not thread-safe. Knows frames and messages, not ranks.
 */
#ifndef BALLAST_CLIENT_CALL_H
#define BALLAST_CLIENT_CALL_H

#include "planner/error.h"
#include "proto/arena.h"

#include <stdbool.h>
#include <stdint.h>

struct call_channel;

/* Connects to a Unix socket, retrying until timeout_ms while the daemon is not there (0: one try).
 * -ECONNREFUSED "no daemon listens on PATH; start ballastd or check --socket", -ENAMETOOLONG, ...
 */
int call_open(const char *path, int timeout_ms, struct call_channel **out, struct error *error);
void call_close(struct call_channel *channel);
int call_fd(const struct call_channel *channel);

/* Sends a request and waits for its response. The response is unpacked into `arena` and belongs to
 * it. A refusal comes back as the errno of its status with the daemon's sentence in `error`.
 * Frames of an open stream that arrive meanwhile are kept for call_stream_next. */
int call_unary(struct call_channel *channel, const char *service, const char *method,
               const ProtobufCMessage *request, const ProtobufCMessageDescriptor *response_type,
               struct arena *arena, ProtobufCMessage **response, int timeout_ms,
               struct error *error);

/* Opens the one stream of the channel, then sends messages on it. */
int call_stream_open(struct call_channel *channel, const char *service, const char *method,
                     struct error *error);
int call_stream_send(struct call_channel *channel, const ProtobufCMessage *message,
                     struct error *error);

/* Next message of the stream: 1 with *message in `arena`; 0 after timeout_ms (-1: for ever); when
 * the daemon ended the stream or the connection broke, the negative errno with the sentence. */
int call_stream_next(struct call_channel *channel, const ProtobufCMessageDescriptor *type,
                     struct arena *arena, ProtobufCMessage **message, int timeout_ms,
                     struct error *error);

#endif
