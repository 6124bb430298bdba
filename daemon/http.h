/* http: what monitoring asks for: /metrics, /healthz (the loop turns) and /readyz (ranks are
 * served).
 *
 * libmicrohttpd without a thread: its epoll descriptor is polled by our loop. At most
 * HTTP_CONNECTIONS peers at a time, of HTTP_MEMORY_BYTES each, one answer a connection, gone after
 * HTTP_IDLE_S of silence and after HTTP_DEADLINE_NS whatever they do; further ones wait in the
 * backlog. GET and HEAD only; bodies are not read. Loop thread only. */
#ifndef BALLAST_DAEMON_HTTP_H
#define BALLAST_DAEMON_HTTP_H

#include "planner/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#define HTTP_CONNECTIONS  8u
#define HTTP_MEMORY_BYTES 8192u
#define HTTP_IDLE_S       2u
#define HTTP_DEADLINE_NS  5000000000ull

struct http;

struct http_options {
    uv_loop_t *loop;
    const char *listen; /* as metrics.listen has it, not "off" */
    size_t text_bytes;  /* that `metrics` may write */
    size_t (*metrics)(void *context, char *out);
    bool (*ready)(void *context, const char **why);
    void *context;
};

/* -EINVAL in a build without libmicrohttpd, else as listen.h. */
int http_open(const struct http_options *options, struct http **out, struct error *error);

/* Its handles close as the loop runs on, then its memory goes. NULL is fine. */
void http_close(struct http *http);

#endif
