/* tls_none: tls.h in a build without OpenSSL. Without a context nothing else is ever called. */
#include "proto/tls.h"

#include <stdlib.h>

bool tls_available(void) {
    return false;
}

int tls_context_create(const struct tls_files *files, bool server, struct tls_context **out,
                       struct error *error) {
    (void)files;
    (void)server;
    (void)out;
    return error_set(error, -ENOSYS,
                     "this build has no TLS; build it with OpenSSL 3 (libssl-dev) and "
                     "-DBALLAST_TLS=ON");
}

void tls_context_destroy(struct tls_context *context) {
    (void)context;
}

int tls_open(struct tls_context *context, const char *name, struct tls **out, struct error *error) {
    (void)context;
    (void)name;
    (void)out;
    return error_set(error, -ENOSYS, "this build has no TLS");
}

void tls_close(struct tls *tls) {
    (void)tls;
}

int tls_put(struct tls *tls, const uint8_t *bytes, size_t count) {
    (void)tls;
    (void)bytes;
    (void)count;
    abort();
}

size_t tls_take(struct tls *tls, uint8_t *out, size_t capacity) {
    (void)tls;
    (void)out;
    (void)capacity;
    abort();
}

int tls_handshake(struct tls *tls, struct error *error) {
    (void)tls;
    (void)error;
    abort();
}

int64_t tls_read(struct tls *tls, uint8_t *out, size_t capacity, struct error *error) {
    (void)tls;
    (void)out;
    (void)capacity;
    (void)error;
    abort();
}

int tls_write(struct tls *tls, const uint8_t *bytes, size_t count, struct error *error) {
    (void)tls;
    (void)bytes;
    (void)count;
    (void)error;
    abort();
}

bool tls_peer_is(const struct tls *tls, const char *name) {
    (void)tls;
    (void)name;
    abort();
}

void tls_peer_name(const struct tls *tls, char out[TLS_NAME_BYTES]) {
    (void)tls;
    (void)out;
    abort();
}
