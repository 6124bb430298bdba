/* http: see http.h. In a build without libmicrohttpd. */
#include "daemon/http.h"

int http_open(const struct http_options *options, struct http **out, struct error *error) {
    (void)out;
    return error_set(error, -EINVAL,
                     "metrics.listen = %s: this build has no libmicrohttpd; set it to off, or "
                     "build with libmicrohttpd-dev",
                     options->listen);
}

void http_close(struct http *http) {
    (void)http;
}
