/* conn: one control connection: bytes in, frames to its session, messages back.
 *
 * Output is packed into one buffer while the one before is being written. With more than
 * CONN_OUTPUT_BYTES waiting the connection is congested: it neither reads nor is given batches
 * until the peer has taken some. Input is read into a small buffer that grows for one large message
 * and shrinks after it. Loop thread only. */
#ifndef BALLAST_DAEMON_CONN_H
#define BALLAST_DAEMON_CONN_H

#include "daemon/session.h"

#include "proto/tls.h"

#include <sys/queue.h>
#include <uv.h>

#define CONN_INPUT_BYTES  2048u
#define CONN_OUTPUT_BYTES (256u << 10)
#define CONN_ANSWER_BYTES 4096u       /* smaller answers are never refused */
#define CONN_FINISH_NS    50000000ull /* to take a last answer before the connection is closed */

struct server;

struct conn_output {
    uint8_t *bytes;
    size_t used;
    size_t capacity;
};

struct conn {
    struct session session;
    struct server *server;
    uint32_t index; /* in server->conns */
    bool ready;     /* in server->ready */
    bool served;    /* in server->served */
    TAILQ_ENTRY(conn) ready_next;
    TAILQ_ENTRY(conn) served_next;
    uv_pipe_t pipe;   /* of any stream socket's descriptor */
    int fd;           /* the pipe's */
    uv_write_t write; /* in flight while `flight` has bytes */
    struct frame_reader reader;
    struct conn_output waiting;
    struct conn_output flight;
    struct tls *tls; /* NULL in plain text */
    bool unknown;    /* over TCP, its preface or handshake is not over (remote.h) */
    bool lingers;    /* finishing without input: what it was told may still be on its way */
    bool fetches;    /* its socket's buffer is as large as it may be */
    bool reading;
    bool finishing; /* nothing is read any more; closed when output has left */
    bool closing;
    bool admitted;         /* counts as one of limits.connections */
    uint64_t finish_by_ns; /* while finishing */
};

/* Takes the descriptor, also on failure. */
int conn_open(struct server *server, int fd, const struct session_peer *peer, struct conn **out);

/* No more input; closed as soon as what waits has left, or CONN_FINISH_NS later. Idempotent. */
void conn_finish(struct conn *conn);

/* Ends the session at once; the memory goes when the loop has let go of it. Idempotent. */
void conn_close(struct conn *conn);

/* Of remote.c: moves what TLS wants to send to what waits to be written. */
void conn_collect(struct conn *conn);

/* Writes what waits, as far as the socket takes it. */
void conn_flush(struct conn *conn);

/* Of session_ops. */
void conn_send(struct session *session, uint32_t stream, enum frame_type type,
               const ProtobufCMessage *message);
bool conn_send_payload(struct session *session, uint32_t stream, const uint8_t *payload,
                       uint32_t bytes);
void conn_again(struct session *session);
bool conn_congested(const struct session *session);
bool conn_crowded(const struct session *session, size_t bytes);

#endif
