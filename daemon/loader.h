/* loader: what the calls of ballast.v1.Loader mean; the inner half of session.h. */
#ifndef BALLAST_DAEMON_LOADER_H
#define BALLAST_DAEMON_LOADER_H

#include "daemon/session.h"

#define SESSION_NAME_BYTES 64u

struct session_call {
    uint32_t stream;
    bool half_closed; /* the peer sends no more on this stream */
    const char *method;
    const uint8_t *payload;
    size_t bytes;
    uint64_t deadline_ns; /* UINT64_MAX: none */
};

/* Of session.c. */
void session_move(struct session *session, enum session_state to);
void session_log(struct session *session, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Names that a peer chose, cut, with ? for what is not printable ASCII: a word of a sentence; a
 * value of a log line, in quotes where it has blanks. */
void session_printable(const char *name, char out[SESSION_NAME_BYTES]);
void session_value(const char *name, char out[SESSION_NAME_BYTES + 2]);
void *session_unpack(struct session *session, const ProtobufCMessageDescriptor *type,
                     const uint8_t *data, size_t bytes);

/* Serves one call of Loader; false when there is no such call or its message cannot be read. */
bool loader_call(struct session *session, const struct session_call *call, uint64_t now_ns);

/* Answers the Commits that are durable. */
void loader_acknowledge(struct session *session, uint64_t now_ns);

/* First step that the rank cannot have received. After a restart only the rank itself knows what it
 * was given before, so until it streams its word counts as far as that was possible. */
uint64_t loader_delivered_step(const struct session *session);

/* Whether the session is of the world's generation; if not, `text` says which began and where. */
bool loader_current(const struct session *session, char text[ERROR_TEXT_BYTES]);

/* The rank was silent for its lease: 0, or -ETIMEDOUT when it was cut for that. */
int loader_judge(struct session *session);

/* The session is over: holds and identity go back. */
void loader_leave(struct session *session, uint64_t now_ns);

/* Of hello.c, stream.c and seek.c: calls. */
void loader_hello(struct session *session, const struct session_call *call, const void *message,
                  uint64_t now_ns);
void stream_serve(struct session *session, const struct session_call *call, const void *message,
                  uint64_t now_ns);

void loader_seek(struct session *session, const struct session_call *call, const void *message,
                 uint64_t now_ns);
void loader_import(struct session *session, const struct session_call *call, const void *message,
                   uint64_t now_ns);
void loader_export(struct session *session, const struct session_call *call, const void *message,
                   uint64_t now_ns);

/* A message of the open Stream. */
void stream_message(struct session *session, const uint8_t *data, size_t bytes);

/* Sends batches and ends as far as credits, order and output allow. */
void stream_deliver(struct session *session, uint64_t now_ns);

/* Loader.Fetch; sends pieces of what is fetched as far as output allows; and a hold that ends takes
 * its Fetch with it. */
void fetch_serve(struct session *session, const struct session_call *call, const void *message,
                 uint64_t now_ns);
void fetch_deliver(struct session *session, uint64_t now_ns);
void fetch_lost(struct session *session, const struct session_held *held);

/* The stream is over: no credits, no place among the streaming. Holds stay. */
void stream_stop(struct session *session);

/* Gives back what is held of the steps up to and including `step`, or all. */
void stream_release_through(struct session *session, uint64_t step);
void stream_release_all(struct session *session);

#endif
