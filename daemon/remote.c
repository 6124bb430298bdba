/* remote: see remote.h. */
#include "daemon/remote.h"

#include "daemon/conn.h"
#include "daemon/log.h"
#include "daemon/server.h"
#include "daemon/tcp_rules.h"
#include "proto/keep_alive.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static int remote_load_token(const char *key, const char *path,
                             char out[PREFACE_TOKEN_BYTES_MAX + 1], struct error *error) {
    int code = path[0] == '\0' ? 0 : preface_load_token(path, out, error);
    return code < 0 ? error_prefix(error, "listen.%s", key) : 0;
}

int remote_open(struct remote *remote, const struct config *config, struct error *error) {
    const struct config_listen *listen = &config->listen;
    *remote = (struct remote){.config = config};
    if (!tcp_asked(config)) {
        return 0;
    }
    if (tcp_secured(config)) {
        const struct tls_files files = {listen->certificate, listen->key, listen->ca};
        int code = tls_context_create(&files, true, &remote->tls, error);
        return code < 0 ? error_prefix(error, "listen.certificate, key and ca") : 0;
    }
    int code = remote_load_token("token_file", listen->token_file, remote->token, error);
    return code < 0 ? code
                    : remote_load_token("admin_token_file", listen->admin_token_file,
                                        remote->admin_token, error);
}

void remote_close(struct remote *remote) {
    tls_context_destroy(remote->tls);
    explicit_bzero(remote->token, sizeof remote->token);
    explicit_bzero(remote->admin_token, sizeof remote->admin_token);
    remote->tls = NULL;
}

int remote_listen(const struct remote *remote, struct listener *listener, int backlog,
                  struct error *error) {
    struct address address = {.kind = ADDRESS_TCP};
    (void)address_parse_host(remote->config->listen.tcp, &address); /* judged with the config */
    return listen_tcp(listener, address.host, address.port, "listen.tcp", backlog, error);
}

void remote_identify(const struct remote *remote, int fd, struct session_peer *peer) {
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof address;
    char host[INET6_ADDRSTRLEN] = "unknown";
    uint16_t port = 0;
    const struct sockaddr_in *four = (const struct sockaddr_in *)&address;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)&address;
    keep_alive(fd, remote->config->listen.timeout_ms);
    if (getpeername(fd, (struct sockaddr *)&address, &bytes) == 0 && address.ss_family == AF_INET) {
        (void)inet_ntop(AF_INET, &four->sin_addr, host, sizeof host);
        port = ntohs(four->sin_port);
    } else if (address.ss_family == AF_INET6) {
        (void)inet_ntop(AF_INET6, &six->sin6_addr, host, sizeof host);
        port = ntohs(six->sin6_port);
    }
    *peer = (struct session_peer){.uid = UINT32_MAX, .remote = true};
    (void)snprintf(peer->name, sizeof peer->name,
                   address.ss_family == AF_INET6 ? "%s:[%s]:%u" : "%s:%s:%u",
                   remote->tls != NULL ? "tls" : "tcp", host, port);
}

int remote_begin(const struct remote *remote, struct tls **tls) {
    struct error error;
    *tls = NULL;
    return remote->tls == NULL ? 0 : tls_open(remote->tls, NULL, tls, &error);
}

static void remote_refuse(struct conn *conn, enum status status, const char *text) {
    struct session_peer *peer = &conn->session.peer;
    conn->server->metrics->rejected[METRICS_REJECTED_USER]++;
    peer->refusal = status;
    peer->refusal_text = text;
    log_line(LOG_WARNING, "server", "connection refused: %s peer=%s", text, peer->name);
}

static void remote_judge_token(const struct remote *remote, struct conn *conn, const uint8_t *token,
                               size_t bytes) {
    struct session_peer *peer = &conn->session.peer;
    peer->may_admin = preface_token_is(token, bytes, remote->admin_token);
    peer->may_serve = peer->may_admin || preface_token_is(token, bytes, remote->token);
    if (!peer->may_serve) {
        remote_refuse(conn, STATUS_UNAUTHENTICATED,
                      "this token is not the one of listen.token_file or listen.admin_token_file; "
                      "name the file of the right one");
    }
}

static bool remote_certificate_is(const void *context, const char *name) {
    return tls_peer_is(context, name);
}

static void remote_judge_certificate(const struct remote *remote, struct conn *conn) {
    struct session_peer *peer = &conn->session.peer;
    const struct tls *tls = conn->tls;
    const struct config_listen *listen = &remote->config->listen;
    char name[TLS_NAME_BYTES];
    size_t used = strlen(peer->name);
    tls_peer_name(tls, name);
    (void)snprintf(peer->name + used, sizeof peer->name - used, " %s", name);
    peer->may_serve = tcp_any_name(listen->serve_names, remote_certificate_is, tls);
    peer->may_admin = tcp_any_name(listen->admin_names, remote_certificate_is, tls);
    if (!peer->may_serve && !peer->may_admin) {
        remote_refuse(conn, STATUS_PERMISSION_DENIED,
                      "no name of this certificate is allowed here; list one in "
                      "listen.serve_names or listen.admin_names");
    }
}

static int remote_know_plain(const struct remote *remote, struct conn *conn) {
    struct frame_reader *reader = &conn->reader;
    const uint8_t *token;
    size_t bytes;
    int code = preface_read(reader->buffer + reader->done, reader->used - reader->done, &token,
                            &bytes);
    if (code > 0) {
        remote_judge_token(remote, conn, token, bytes);
        server_welcome(conn->server, conn);
        reader->done += (size_t)code;
        return 1;
    }
    if (code < 0) {
        const char *text = "a connection to this port begins with a token; use an address tcp:... "
                           "and a token file";
        remote_refuse(conn, STATUS_UNAUTHENTICATED, text);
        session_refuse(&conn->session, 1, STATUS_UNAUTHENTICATED, "%s", text);
    }
    return code;
}

int remote_know(const struct remote *remote, struct conn *conn) {
    struct error error;
    if (conn->tls == NULL) {
        return remote_know_plain(remote, conn);
    }
    int code = tls_handshake(conn->tls, &error);
    if (code < 0) {
        log_line(LOG_WARNING, "server", "connection refused: %s peer=%s", error.text,
                 conn->session.peer.name);
        conn->lingers = true;
    }
    if (code == 1) {
        remote_judge_certificate(remote, conn);
        server_welcome(conn->server, conn);
    }
    conn_collect(conn);
    return code;
}
