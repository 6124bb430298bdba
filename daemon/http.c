/* http: see http.h. */
#include "daemon/http.h"

#include "daemon/listen.h"
#include "daemon/log.h"
#include "daemon/metrics_address.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define HTTP_BACKLOG 16
#define HTTP_LOOK_MS 1000u
#define HTTP_KEY     "metrics.listen"
#define HTTP_TEXT    "text/plain; charset=utf-8"
#define HTTP_METRICS "text/plain; version=0.0.4; charset=utf-8"

struct http_peer {
    struct MHD_Connection *connection; /* NULL: free */
    uint64_t start_ns;
};

struct http {
    struct http_options options;
    struct listener socket;
    struct MHD_Daemon *server;
    uv_poll_t poll;
    uv_timer_t timer;
    uint32_t handles; /* open; the last one frees */
    struct http_peer peers[HTTP_CONNECTIONS];
    char *text; /* options.text_bytes */
};

/* Answers */

static enum MHD_Result http_answer(struct MHD_Connection *connection, unsigned status,
                                   const char *type, const char *text, size_t bytes) {
    struct MHD_Response *response = MHD_create_response_from_buffer(bytes, (void *)text,
                                                                    MHD_RESPMEM_MUST_COPY);
    if (response == NULL) {
        return MHD_NO;
    }
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED) {
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    }
    enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result http_say(struct MHD_Connection *connection, unsigned status,
                                const char *text) {
    return http_answer(connection, status, HTTP_TEXT, text, strlen(text));
}

static enum MHD_Result http_ready(struct http *http, struct MHD_Connection *connection) {
    const char *why = "";
    char text[128];
    if (http->options.ready(http->options.context, &why)) {
        return http_say(connection, MHD_HTTP_OK, "ok\n");
    }
    (void)snprintf(text, sizeof text, "%s\n", why);
    return http_say(connection, MHD_HTTP_SERVICE_UNAVAILABLE, text);
}

static enum MHD_Result http_serve(void *context, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *body,
                                  size_t *body_bytes, void **request) {
    struct http *http = context;
    (void)version;
    (void)body;
    (void)body_bytes;
    (void)request;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0) {
        return http_say(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET only\n");
    }
    if (strcmp(url, "/metrics") == 0) {
        size_t bytes = http->options.metrics(http->options.context, http->text);
        return http_answer(connection, MHD_HTTP_OK, HTTP_METRICS, http->text, bytes);
    }
    if (strcmp(url, "/healthz") == 0) {
        return http_say(connection, MHD_HTTP_OK, "ok\n");
    }
    if (strcmp(url, "/readyz") == 0) {
        return http_ready(http, connection);
    }
    return http_say(connection, MHD_HTTP_NOT_FOUND, "there are /metrics, /healthz and /readyz\n");
}

/* Time */

static void http_note(void *context, struct MHD_Connection *connection, void **socket_context,
                      enum MHD_ConnectionNotificationCode code) {
    struct http *http = context;
    const struct MHD_Connection *wanted = code == MHD_CONNECTION_NOTIFY_STARTED ? NULL : connection;
    (void)socket_context;
    for (uint32_t i = 0; i < HTTP_CONNECTIONS; i++) {
        if (http->peers[i].connection == wanted) {
            bool started = code == MHD_CONNECTION_NOTIFY_STARTED;
            http->peers[i].connection = started ? connection : NULL;
            http->peers[i].start_ns = uv_hrtime();
            return;
        }
    }
}

/* Peers that take too long are hung up on; libmicrohttpd notices by itself. */
static bool http_hang_up(struct http *http) {
    uint64_t now_ns = uv_hrtime();
    bool peers = false;
    for (uint32_t i = 0; i < HTTP_CONNECTIONS; i++) {
        struct http_peer *peer = &http->peers[i];
        if (peer->connection != NULL && now_ns - peer->start_ns > HTTP_DEADLINE_NS) {
            const union MHD_ConnectionInfo *info = MHD_get_connection_info(
                peer->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
            (void)shutdown(info->connect_fd, SHUT_RDWR);
        }
        peers |= peer->connection != NULL;
    }
    return peers;
}

static void http_due(uv_timer_t *timer);

static void http_run(struct http *http) {
    MHD_UNSIGNED_LONG_LONG ms = HTTP_LOOK_MS;
    (void)MHD_run(http->server);
    bool waits = MHD_get_timeout(http->server, &ms) == MHD_YES;
    if (http_hang_up(http) || waits) {
        (void)uv_timer_start(&http->timer, http_due, ms < HTTP_LOOK_MS ? ms : HTTP_LOOK_MS, 0);
    }
}

static void http_due(uv_timer_t *timer) {
    http_run(timer->data);
}

static void http_polled(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    http_run(poll->data);
}

/* Life */

static int http_listen(struct http *http, struct error *error) {
    struct metrics_address address;
    metrics_address_parse(http->options.listen, &address);
    return address.path != NULL
               ? listen_unix(&http->socket, address.path, HTTP_KEY, HTTP_BACKLOG, error)
               : listen_tcp(&http->socket, address.host, address.port, HTTP_KEY, HTTP_BACKLOG,
                            error);
}

static int http_start(struct http *http, struct error *error) {
    http->server = MHD_start_daemon(
        MHD_USE_EPOLL, 0, NULL, NULL, http_serve, http, MHD_OPTION_LISTEN_SOCKET, http->socket.fd,
        MHD_OPTION_CONNECTION_LIMIT, HTTP_CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)HTTP_MEMORY_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, HTTP_IDLE_S,
        MHD_OPTION_NOTIFY_CONNECTION, http_note, http, MHD_OPTION_END);
    if (http->server == NULL) {
        return error_set(error, -ENOMEM, "%s: libmicrohttpd did not start; set it to off",
                         HTTP_KEY);
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->server, MHD_DAEMON_INFO_EPOLL_FD);
    if (info == NULL || uv_poll_init(http->options.loop, &http->poll, info->epoll_fd) < 0) {
        return error_set(error, -ENOMEM, "%s: cannot be polled; set it to off", HTTP_KEY);
    }
    http->poll.data = http;
    (void)uv_timer_init(http->options.loop, &http->timer);
    http->timer.data = http;
    http->handles = 2;
    (void)uv_poll_start(&http->poll, UV_READABLE, http_polled);
    return 0;
}

static void http_stop(struct http *http) {
    if (http->server != NULL) {
        (void)MHD_quiesce_daemon(http->server); /* the socket stays ours to close */
        MHD_stop_daemon(http->server);
    }
    listen_close(&http->socket);
}

static void http_free(struct http *http) {
    free(http->text);
    free(http);
}

int http_open(const struct http_options *options, struct http **out, struct error *error) {
    struct http *http = calloc(1, sizeof *http);
    char *text = malloc(options->text_bytes);
    if (http == NULL || text == NULL) {
        free(http);
        free(text);
        return error_set(error, -ENOMEM, "%s: out of memory", HTTP_KEY);
    }
    http->options = *options;
    http->text = text;
    http->socket.fd = -1;
    int code = http_listen(http, error);
    if (code == 0) {
        code = http_start(http, error);
    }
    if (code < 0) {
        http_stop(http);
        http_free(http);
        return code;
    }
    log_line(LOG_INFO, "http", "answering /metrics, /healthz, /readyz listen=%s", options->listen);
    *out = http;
    return 0;
}

static void http_handle_closed(uv_handle_t *handle) {
    struct http *http = handle->data;
    if (--http->handles == 0) {
        http_free(http);
    }
}

void http_close(struct http *http) {
    if (http == NULL) {
        return;
    }
    (void)uv_poll_stop(&http->poll);
    http_stop(http);
    uv_close((uv_handle_t *)&http->poll, http_handle_closed);
    uv_close((uv_handle_t *)&http->timer, http_handle_closed);
}
