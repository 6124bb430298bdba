/* server: the two Unix sockets and the TCP port, who may connect, and the connections there are.
 *
 * The control socket speaks ttrpc (conn.h). The data socket, at its path + ".data", takes the token
 * that Hello gave out, 16 bytes, and answers with one byte and the slab's descriptor. The caller
 * holds the state directory's lock when they are opened. Loop thread only. */
#ifndef BALLAST_DAEMON_SERVER_H
#define BALLAST_DAEMON_SERVER_H

#include "daemon/config.h"
#include "daemon/conn.h"
#include "daemon/remote.h"
#include "daemon/listen.h"
#include "daemon/metrics.h"

#define SERVER_DATA_MAX     64u           /* data connections at a time */
#define SERVER_DATA_NS      5000000000ull /* to send a token */
#define SERVER_TURNED_AWAY  16u           /* connections over the limit that are told so */
#define SERVER_STRANGERS    16u           /* connections over TCP that have not said who they are */
#define SERVER_OUTPUT_BYTES (8u << 20)    /* not read by peers yet, all together */
#define SERVER_INPUT_BYTES  (8u << 20)    /* large messages being read, all together */
#define SERVER_TRIM_CLOSED  256u          /* connections after which their memory goes back */
#define SERVER_BACKLOG      4096

struct server_listener {
    struct listener socket;
    uv_poll_t poll;
};

struct data_conn {
    struct server *server;
    int fd;
    uint64_t start_ns;
    size_t used;
    uint8_t token[SESSION_TOKEN_BYTES];
    uv_poll_t poll;
    bool closing;
};

struct server {
    /* The caller's, set before server_open. */
    uv_loop_t *loop;
    const struct config *config; /* who may connect, and how many */
    const struct session_world *world;
    int slab_fd;
    struct metrics *metrics;
    void (*touched)(void *context);  /* something came in: there may be work */
    uint32_t (*kept)(void *context); /* descriptors to be left for others */
    void *context;
    /* The server's own. */
    struct server_listener control;
    struct server_listener data;
    struct server_listener tcp; /* closed unless [listen] asks for it */
    struct remote remote;
    uint8_t sealed[65536]; /* what was just read of a TLS connection */
    struct conn **conns;   /* conn_capacity pointers, the first conn_count set */
    uint32_t conn_capacity;
    uint32_t conn_count;
    TAILQ_HEAD(, conn) ready;  /* something came in or is to go out since the last pump */
    TAILQ_HEAD(, conn) served; /* of ranks: what others do may be what they wait for */
    uint32_t conn_high_water;
    uint32_t closed;   /* since their memory was last given back */
    uint32_t admitted; /* conns that are not turned away */
    struct data_conn *data_conns[SERVER_DATA_MAX];
    uint32_t data_count;
    uint32_t handles; /* open uv handles of ours */
    uint64_t output_bytes;
    uint64_t input_bytes;
    uint64_t refusal_logged_ns;
    uint64_t pause_logged_ns;
    uint64_t descriptors_max;
    int spare_fd; /* given up for a newcomer when there is no other: to tell him so */
    bool accepting;
    uv_timer_t retry; /* accepts again after descriptors ran out, and closes what finishes */
    bool retry_open;
    uv_timer_t go_on; /* of no time: active while a session asked for another turn */
};

/* -EADDRINUSE when somebody listens there, -EEXIST when the path is something else than a socket,
 * -ENAMETOOLONG, or what bind and listen say. On failure everything is closed but handles that the
 * loop must still run for. */
int server_open(struct server *server, struct error *error);

/* Makes room for another connections_max, which may then be set. -ENOMEM. */
int server_make_room(struct server *server, uint32_t connections_max, struct error *error);

/* No new connections; the socket files go. Idempotent. */
void server_close_listeners(struct server *server);

/* Finishes every connection: what waits is written, then they close. */
void server_finish(struct server *server);

/* Commits that wait to become durable, over all connections. */
uint32_t server_commits(const struct server *server);

/* Closes whatever is left. The loop must run until server->handles is 0, then server_deinit. */
void server_close(struct server *server);
void server_deinit(struct server *server);

/* Pumps and flushes the sessions of ranks and whatever else has something to do: connections that
 * are idle cost nothing. */
void server_pump(struct server *server, uint64_t now_ns);

/* Another generation has begun: every session is told. */
void server_abort_sessions(struct server *server, uint64_t now_ns);

/* Time passes: leases, deadlines, tokens that did not come. */
void server_tick(struct server *server, uint64_t now_ns);

/* The daemon stood still for `ns` before now: nobody is to blame for not having been heard. */
void server_forgive(struct server *server, uint64_t ns, uint64_t now_ns);

/* Of conn.c: the connection is gone from the list, its handle not yet. */
void server_forget(struct server *server, struct conn *conn);

/* Of remote.c: a connection over TCP is known now, and takes one of limits.connections. */
void server_welcome(struct server *server, struct conn *conn);

/* Of conn.c: the loop turns once more before it waits. */
void server_go_on(struct server *server);

/* Of conn.c: something came in, or is to go out. */
void server_ready(struct server *server, struct conn *conn);

/* Of conn.c: look after finishing connections soon. */
void server_look_again(struct server *server);

#endif
