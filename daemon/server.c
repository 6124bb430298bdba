/* server: see server.h. */
#include "daemon/server.h"

#include "daemon/failpoint.h"
#include "daemon/log.h"
#include "proto/frame.h"
#include "ttrpc.pb-c.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define SERVER_ACCEPTS      64u /* in a row, before the loop does something else */
#define SERVER_RETRY_MS     100
#define SERVER_REFUSAL_NS   1000000000ull
#define SERVER_PAUSE_LOG_NS 10000000000ull

/* Listening */

static int server_watch(struct server *server, struct server_listener *listener, const char *name,
                        uv_poll_cb accepted, struct error *error) {
    if (uv_poll_init(server->loop, &listener->poll, listener->socket.fd) < 0) {
        listen_close(&listener->socket);
        return error_set(error, -ENOMEM, "%s: cannot be polled", name);
    }
    listener->poll.data = server;
    server->handles++;
    (void)uv_poll_start(&listener->poll, UV_READABLE, accepted);
    return 0;
}

static int server_listen(struct server *server, struct server_listener *listener, const char *path,
                         uv_poll_cb accepted, struct error *error) {
    int code = listen_unix(&listener->socket, path, "daemon.socket", SERVER_BACKLOG, error);
    return code < 0 ? code : server_watch(server, listener, path, accepted, error);
}

static void server_tcp_ready(uv_poll_t *poll, int status, int events);

static int server_listen_tcp(struct server *server, struct error *error) {
    const char *address = server->config->listen.tcp;
    int code = remote_open(&server->remote, server->config, error);
    if (code < 0 || address[0] == '\0') {
        return code;
    }
    code = remote_listen(&server->remote, &server->tcp.socket, SERVER_BACKLOG, error);
    if (code == 0) {
        code = server_watch(server, &server->tcp, "listen.tcp", server_tcp_ready, error);
    }
    if (code == 0) {
        log_line(LOG_NOTICE, "server", "listening address=%s:%s",
                 server->remote.tls != NULL ? "tls" : "tcp", address);
    }
    return code;
}

static void server_handle_closed(uv_handle_t *handle) {
    struct server *server = handle->data;
    server->handles--;
}

static void server_unlisten(struct server_listener *listener) {
    if (listener->socket.fd >= 0) {
        (void)uv_poll_stop(&listener->poll);
        uv_close((uv_handle_t *)&listener->poll, server_handle_closed);
        listen_close(&listener->socket);
    }
}

/* Accepting */

static void server_control_ready(uv_poll_t *poll, int status, int events);
static void server_data_ready(uv_poll_t *poll, int status, int events);

static void server_accept_again(struct server *server) {
    if (!server->accepting && server->control.socket.fd >= 0) {
        server->accepting = true;
        (void)uv_poll_start(&server->control.poll, UV_READABLE, server_control_ready);
        (void)uv_poll_start(&server->data.poll, UV_READABLE, server_data_ready);
        if (server->tcp.socket.fd >= 0) {
            (void)uv_poll_start(&server->tcp.poll, UV_READABLE, server_tcp_ready);
        }
    }
}

static void server_retry(uv_timer_t *timer) {
    struct server *server = timer->data;
    uint64_t now_ns = uv_hrtime();
    bool more = false;
    server_accept_again(server);
    for (uint32_t i = server->conn_count; i-- > 0;) {
        struct conn *conn = server->conns[i];
        if (conn->finishing) {
            conn_flush(conn);
            if (!conn->closing && now_ns >= conn->finish_by_ns) {
                conn_close(conn);
            }
            more |= i < server->conn_count && server->conns[i]->finishing;
        }
    }
    if (more) {
        server_look_again(server);
    }
    server->touched(server->context);
}

static void server_goes_on(uv_timer_t *timer) {
    struct server *server = timer->data;
    server->touched(server->context);
}

void server_go_on(struct server *server) {
    if (server->retry_open) {
        (void)uv_timer_start(&server->go_on, server_goes_on, 0, 0);
    }
}

void server_look_again(struct server *server) {
    if (server->retry_open && !uv_is_active((uv_handle_t *)&server->retry)) {
        (void)uv_timer_start(&server->retry, server_retry, SERVER_RETRY_MS / 4, 0);
    }
}

/* Out of descriptors or memory: clients queue in the backlog, and it is looked at 10 times a
 * second. */
static void server_pause(struct server *server, int code) {
    uint64_t now_ns = uv_hrtime();
    if (now_ns - server->pause_logged_ns >= SERVER_PAUSE_LOG_NS) {
        server->pause_logged_ns = now_ns;
        log_line(LOG_WARNING, "server", "accepting pauses: %s connections=%u", strerror(-code),
                 server->conn_count);
    }
    server->accepting = false;
    (void)uv_poll_stop(&server->control.poll);
    (void)uv_poll_stop(&server->data.poll);
    if (server->tcp.socket.fd >= 0) {
        (void)uv_poll_stop(&server->tcp.poll);
    }
    (void)uv_timer_start(&server->retry, server_retry, SERVER_RETRY_MS, 0);
}

static void server_keep_spare(struct server *server) {
    if (server->spare_fd < 0) {
        server->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
}

/* An answer to a client's first call, which it has made or will make. */
static void server_tell_full(int fd) {
    uint8_t bytes[FRAME_HEADER_BYTES + 256];
    Ttrpc__Response response = TTRPC__RESPONSE__INIT;
    Ttrpc__Status status = TTRPC__STATUS__INIT;
    status.code = STATUS_UNAVAILABLE;
    status.message = "the daemon has no descriptor left for another connection; raise its limit "
                     "(LimitNOFILE), or try again";
    response.status = &status;
    struct frame_header header = {.stream = 1, .type = FRAME_RESPONSE};
    header.length = (uint32_t)ttrpc__response__get_packed_size(&response);
    assert(header.length <= sizeof bytes - FRAME_HEADER_BYTES);
    frame_header_encode(&header, bytes);
    (void)ttrpc__response__pack(&response, bytes + FRAME_HEADER_BYTES);
    (void)send(fd, bytes, FRAME_HEADER_BYTES + header.length, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Without descriptors, those who queue are told instead of being left to wait: the spare one is
 * theirs for as long as that takes. */
static void server_turn_away(struct server *server, struct server_listener *listener) {
    for (uint32_t i = 0; i < SERVER_ACCEPTS && server->spare_fd >= 0; i++) {
        (void)close(server->spare_fd);
        server->spare_fd = -1;
        int fd = accept4(listener->socket.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            break;
        }
        server->metrics->rejected[METRICS_REJECTED_FULL]++;
        if (listener == &server->control) {
            server_tell_full(fd);
        }
        (void)close(fd);
        server_keep_spare(server);
    }
    server_keep_spare(server);
}

/* Whether enough is left for the files that are yet to be opened, and for the next connection while
 * it is told that there is not. The kernel gives the lowest number that is free, so a number below
 * says that more are. */
static bool server_may_keep(const struct server *server, int fd) {
    uint64_t number = (uint64_t)fd + 1;
    return number <= server->descriptors_max / 2 ||
           number + 1 + server->kept(server->context) <= server->descriptors_max;
}

/* A descriptor; -EAGAIN when nobody waits; another error paused the accepting. */
static int server_accept(struct server *server, struct server_listener *listener) {
    for (;;) {
        int fd = accept4(listener->socket.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0 && !server_may_keep(server, fd)) {
            if (listener == &server->control) {
                server_tell_full(fd);
            }
            server->metrics->rejected[METRICS_REJECTED_FULL]++;
            (void)close(fd);
            fd = -1;
            errno = EMFILE;
        }
        if (fd >= 0) {
            return fd;
        }
        if (errno == EINTR || errno == ECONNABORTED) {
            continue;
        }
        int code = errno == EWOULDBLOCK ? -EAGAIN : -errno;
        if (code == -EMFILE || code == -ENFILE) {
            server_turn_away(server, listener);
        }
        if (code != -EAGAIN) {
            server_pause(server, code);
        }
        return code;
    }
}

static bool server_listed(uint32_t uid, const uint32_t *uids, uint32_t count) {
    if (uid == 0 || uid == (uint32_t)geteuid()) {
        return true;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (uids[i] == uid) {
            return true;
        }
    }
    return false;
}

static int server_identify(const struct server *server, int fd, struct session_peer *peer) {
    struct ucred credentials;
    socklen_t bytes = sizeof credentials;
    const struct config *config = server->config;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) < 0) {
        return -errno;
    }
    *peer = (struct session_peer){.pid = (uint32_t)credentials.pid, .uid = credentials.uid};
    peer->may_serve = server_listed(peer->uid, config->uids_serve, config->uids_serve_count);
    peer->may_admin = server_listed(peer->uid, config->uids_admin, config->uids_admin_count);
    return 0;
}

/* Peers that may do nothing, or come when all places are taken, are told so on their first call. */
static void server_judge(struct server *server, struct session_peer *peer, uint64_t now_ns) {
    if (!peer->may_serve && !peer->may_admin) {
        server->metrics->rejected[METRICS_REJECTED_USER]++;
        peer->refusal = STATUS_PERMISSION_DENIED;
        peer->refusal_text = "this user is not allowed here; list its uid in daemon.allow_uids or "
                             "daemon.admin_uids";
    } else if (server->admitted >= server->config->connections_max) {
        server->metrics->rejected[METRICS_REJECTED_FULL]++;
        peer->refusal = STATUS_RESOURCE_EXHAUSTED;
        peer->refusal_text = "limits.connections is reached";
    } else {
        return;
    }
    if (now_ns - server->refusal_logged_ns >= SERVER_REFUSAL_NS) {
        server->refusal_logged_ns = now_ns;
        log_line(LOG_WARNING, "server", "connection refused: %s pid=%u uid=%u", peer->refusal_text,
                 peer->pid, peer->uid);
    }
}

static void server_count(struct server *server, struct conn *conn) {
    conn->admitted = conn->session.peer.refusal == STATUS_OK;
    server->admitted += conn->admitted;
    if (server->admitted > server->conn_high_water) {
        server->conn_high_water = server->admitted;
    }
}

void server_welcome(struct server *server, struct conn *conn) {
    if (conn->session.peer.refusal == STATUS_OK) {
        server_judge(server, &conn->session.peer, uv_hrtime());
        server_count(server, conn);
    }
}

/* Who keeps back who it is takes no place of another's: the oldest such connection goes. */
static void server_make_way(struct server *server) {
    struct conn *oldest = NULL;
    uint32_t strangers = 0;
    for (uint32_t i = 0; i < server->conn_count; i++) {
        struct conn *conn = server->conns[i];
        strangers += conn->unknown;
        if (conn->unknown &&
            (oldest == NULL || conn->session.start_ns < oldest->session.start_ns)) {
            oldest = conn;
        }
    }
    if (strangers >= SERVER_STRANGERS) {
        conn_close(oldest);
    }
}

/* `peer` NULL: it could not be asked. */
static void server_admit(struct server *server, int fd, struct session_peer *peer) {
    struct conn *conn;
    if (peer == NULL || server->conn_count == server->conn_capacity) {
        server->metrics->rejected[METRICS_REJECTED_FULL]++;
        (void)close(fd);
        return;
    }
    if (!peer->remote) {
        server_judge(server, peer, uv_hrtime());
    }
    if (conn_open(server, fd, peer, &conn) < 0) {
        server->metrics->rejected[METRICS_REJECTED_MEMORY]++;
        log_line(LOG_ERR, "server", "out of memory for a connection pid=%u", peer->pid);
        return;
    }
    conn->index = server->conn_count;
    server->conns[server->conn_count++] = conn;
    if (!peer->remote) {
        server_count(server, conn);
    }
}

static void server_control_ready(uv_poll_t *poll, int status, int events) {
    struct server *server = poll->data;
    (void)status;
    (void)events;
    for (uint32_t i = 0; i < SERVER_ACCEPTS; i++) {
        struct session_peer peer;
        int fd = server_accept(server, &server->control);
        if (fd < 0) {
            return;
        }
        server_admit(server, fd, server_identify(server, fd, &peer) < 0 ? NULL : &peer);
    }
}

static void server_tcp_ready(uv_poll_t *poll, int status, int events) {
    struct server *server = poll->data;
    (void)status;
    (void)events;
    for (uint32_t i = 0; i < SERVER_ACCEPTS; i++) {
        struct session_peer peer;
        int fd = server_accept(server, &server->tcp);
        if (fd < 0) {
            return;
        }
        server_make_way(server);
        remote_identify(&server->remote, fd, &peer);
        server_admit(server, fd, &peer);
    }
}

static void server_unready(struct server *server, struct conn *conn) {
    if (conn->ready) {
        conn->ready = false;
        TAILQ_REMOVE(&server->ready, conn, ready_next);
    }
}

void server_forget(struct server *server, struct conn *conn) {
    struct conn *last = server->conns[--server->conn_count];
    server_unready(server, conn);
    if (conn->served) {
        conn->served = false;
        TAILQ_REMOVE(&server->served, conn, served_next);
    }
    server->conns[conn->index] = last;
    last->index = conn->index;
    server->admitted -= conn->admitted;
}

/* Data socket */

static void data_conn_closed(uv_handle_t *handle) {
    struct data_conn *data = handle->data;
    data->server->handles--;
    free(data);
}

static void data_conn_close(struct data_conn *data) {
    struct server *server = data->server;
    if (data->closing) {
        return;
    }
    data->closing = true;
    for (uint32_t i = 0; i < server->data_count; i++) {
        if (server->data_conns[i] == data) {
            server->data_conns[i] = server->data_conns[--server->data_count];
            break;
        }
    }
    (void)uv_poll_stop(&data->poll);
    uv_close((uv_handle_t *)&data->poll, data_conn_closed);
    (void)close(data->fd);
}

/* One byte with the slab's descriptor. The socket is fresh, so one message always fits. */
static void data_conn_answer(const struct data_conn *data) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    char byte = 0;
    struct iovec payload = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &payload,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &data->server->slab_fd, sizeof(int));
    if (FAILPOINT(descriptor) < 0 || sendmsg(data->fd, &message, MSG_NOSIGNAL) < 0) {
        log_line(LOG_WARNING, "server", "the slab could not be handed over: %s", strerror(errno));
    }
}

static bool server_use_token(struct server *server, const uint8_t token[SESSION_TOKEN_BYTES]) {
    for (uint32_t i = 0; i < server->conn_count; i++) {
        if (session_use_token(&server->conns[i]->session, token)) {
            return true;
        }
    }
    return false;
}

static void data_conn_ready(uv_poll_t *poll, int status, int events) {
    struct data_conn *data = poll->data;
    (void)status;
    (void)events;
    ssize_t bytes = recv(data->fd, data->token + data->used, sizeof data->token - data->used, 0);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (bytes > 0) {
        data->used += (size_t)bytes;
        if (data->used < sizeof data->token) {
            return;
        }
        if (server_use_token(data->server, data->token)) {
            data_conn_answer(data);
        } else {
            log_line(LOG_WARNING, "server", "unknown or used token on the data socket");
        }
    }
    data_conn_close(data);
}

/* When all places are taken the one that kept its token back the longest loses its own. */
static void data_conn_make_room(struct server *server) {
    if (server->data_count < SERVER_DATA_MAX) {
        return;
    }
    struct data_conn *oldest = server->data_conns[0];
    for (uint32_t i = 1; i < server->data_count; i++) {
        if (server->data_conns[i]->start_ns < oldest->start_ns) {
            oldest = server->data_conns[i];
        }
    }
    data_conn_close(oldest);
}

/* A client sends its token at once, so mostly the connection is served and gone before it waits. */
static void server_admit_data(struct server *server, int fd) {
    struct session_peer peer;
    struct data_conn *data = NULL;
    data_conn_make_room(server);
    if (server_identify(server, fd, &peer) == 0 && peer.may_serve) {
        data = calloc(1, sizeof *data);
    }
    if (data == NULL || uv_poll_init(server->loop, &data->poll, fd) < 0) {
        free(data);
        (void)close(fd);
        return;
    }
    data->server = server;
    data->fd = fd;
    data->start_ns = uv_hrtime();
    data->poll.data = data;
    server->handles++;
    server->data_conns[server->data_count++] = data;
    (void)uv_poll_start(&data->poll, UV_READABLE | UV_DISCONNECT, data_conn_ready);
    data_conn_ready(&data->poll, 0, UV_READABLE);
}

static void server_data_ready(uv_poll_t *poll, int status, int events) {
    struct server *server = poll->data;
    (void)status;
    (void)events;
    for (uint32_t i = 0; i < SERVER_ACCEPTS; i++) {
        int fd = server_accept(server, &server->data);
        if (fd < 0) {
            return;
        }
        server_admit_data(server, fd);
    }
}

/* Life */

int server_open(struct server *server, struct error *error) {
    char data_path[LISTEN_PATH_BYTES];
    const char *path = server->config->socket_path;
    struct rlimit files;
    TAILQ_INIT(&server->ready);
    TAILQ_INIT(&server->served);
    server->control.socket.fd = -1;
    server->data.socket.fd = -1;
    server->tcp.socket.fd = -1;
    server->spare_fd = -1;
    server->descriptors_max = getrlimit(RLIMIT_NOFILE, &files) == 0 ? files.rlim_cur : UINT64_MAX;
    server->conn_capacity = server->config->connections_max + SERVER_TURNED_AWAY;
    server->conns = calloc(server->conn_capacity, sizeof(struct conn *));
    if (server->conns == NULL) {
        return error_set(error, -ENOMEM, "sockets: out of memory");
    }
    server_keep_spare(server);
    (void)uv_timer_init(server->loop, &server->retry);
    server->retry.data = server;
    server->retry_open = true;
    server->handles++;
    (void)uv_timer_init(server->loop, &server->go_on);
    server->go_on.data = server;
    server->handles++;
    (void)snprintf(data_path, sizeof data_path, "%.*s.data", (int)sizeof data_path - 6, path);
    int code = server_listen(server, &server->control, path, server_control_ready, error);
    if (code == 0) {
        code = server_listen(server, &server->data, data_path, server_data_ready, error);
    }
    if (code == 0) {
        code = server_listen_tcp(server, error);
    }
    if (code < 0) {
        server_close(server);
        return code;
    }
    server->accepting = true;
    return 0;
}

int server_make_room(struct server *server, uint32_t connections_max, struct error *error) {
    uint32_t capacity = connections_max + SERVER_TURNED_AWAY;
    if (capacity <= server->conn_capacity) {
        return 0;
    }
    struct conn **conns = reallocarray(server->conns, capacity, sizeof(struct conn *));
    if (conns == NULL) {
        return error_set(error, -ENOMEM, "%u connections: out of memory", connections_max);
    }
    server->conns = conns;
    server->conn_capacity = capacity;
    return 0;
}

void server_close_listeners(struct server *server) {
    server->accepting = false;
    server_unlisten(&server->control);
    server_unlisten(&server->data);
    server_unlisten(&server->tcp);
}

void server_finish(struct server *server) {
    for (uint32_t i = server->conn_count; i-- > 0;) {
        struct conn *conn = server->conns[i];
        session_end_stream(&conn->session, STATUS_UNAVAILABLE, "the daemon is stopping");
        conn_finish(conn);
        conn_flush(conn);
    }
}

uint32_t server_commits(const struct server *server) {
    uint32_t commits = 0;
    for (uint32_t i = 0; i < server->conn_count; i++) {
        commits += server->conns[i]->session.commit_count;
    }
    return commits;
}

void server_close(struct server *server) {
    if (server->conns == NULL) {
        return;
    }
    server_close_listeners(server);
    while (server->conn_count > 0) {
        conn_close(server->conns[server->conn_count - 1]);
    }
    while (server->data_count > 0) {
        data_conn_close(server->data_conns[server->data_count - 1]);
    }
    if (server->retry_open) {
        server->retry_open = false;
        uv_close((uv_handle_t *)&server->retry, server_handle_closed);
        uv_close((uv_handle_t *)&server->go_on, server_handle_closed);
    }
}

void server_deinit(struct server *server) {
    assert(server->handles == 0);
    remote_close(&server->remote);
    if (server->conns != NULL && server->spare_fd >= 0) {
        (void)close(server->spare_fd);
    }
    free(server->conns);
    server->conns = NULL;
}

void server_ready(struct server *server, struct conn *conn) {
    if (!conn->closing && !conn->ready) {
        conn->ready = true;
        TAILQ_INSERT_TAIL(&server->ready, conn, ready_next);
    }
    if (!conn->closing && !conn->served && conn->session.member != NULL) {
        conn->served = true;
        TAILQ_INSERT_TAIL(&server->served, conn, served_next);
    }
    server->touched(server->context);
}

/* What it sends is flushed here; what it reads while it is, makes it ready again. */
static void server_pump_one(struct server *server, struct conn *conn, uint64_t now_ns) {
    if (!conn->finishing) {
        session_pump(&conn->session, now_ns);
    }
    server_unready(server, conn);
    conn_flush(conn);
}

void server_pump(struct server *server, uint64_t now_ns) {
    struct conn *next;
    for (struct conn *conn = TAILQ_FIRST(&server->served); conn != NULL; conn = next) {
        next = TAILQ_NEXT(conn, served_next);
        server_pump_one(server, conn, now_ns);
    }
    while ((next = TAILQ_FIRST(&server->ready)) != NULL) {
        server_pump_one(server, next, now_ns);
    }
}

void server_forgive(struct server *server, uint64_t ns, uint64_t now_ns) {
    for (uint32_t i = 0; i < server->conn_count; i++) {
        session_forgive(&server->conns[i]->session, ns, now_ns);
    }
    for (uint32_t i = 0; i < server->data_count; i++) {
        server->data_conns[i]->start_ns = now_ns;
    }
}

void server_abort_sessions(struct server *server, uint64_t now_ns) {
    for (uint32_t i = server->conn_count; i-- > 0;) {
        session_abort(&server->conns[i]->session, now_ns);
    }
}

/* What thousands of connections took is small blocks, which the allocator keeps by itself. */
static void server_trim(struct server *server) {
    if (server->closed >= SERVER_TRIM_CLOSED) {
        server->closed = 0;
        (void)malloc_trim(0);
    }
}

void server_tick(struct server *server, uint64_t now_ns) {
    server_trim(server);
    for (uint32_t i = server->conn_count; i-- > 0;) {
        struct conn *conn = server->conns[i];
        if (!conn->finishing && session_tick(&conn->session, now_ns) < 0) {
            conn_finish(conn);
        }
    }
    for (uint32_t i = server->data_count; i-- > 0;) {
        if (now_ns - server->data_conns[i]->start_ns > SERVER_DATA_NS) {
            data_conn_close(server->data_conns[i]);
        }
    }
}
