/* tls: TLS 1.3 with certificates on both sides, as a filter between bytes and bytes.
 *
 * No socket and no loop: what came from the network is put in, what is to go there is taken out,
 * and plain bytes are read and written in between, the handshake by the way. Of OpenSSL 3, in
 * tls_openssl.c alone; a build without it has tls_none.c, where tls_context_create says so. A
 * context belongs to one thread, and so do its connections. */
#ifndef BALLAST_PROTO_TLS_H
#define BALLAST_PROTO_TLS_H

#include "planner/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TLS_NAME_BYTES 128u

struct tls_context;
struct tls;

struct tls_files {
    const char *certificate; /* PEM, the chain behind it; a client may have none: NULL */
    const char *key;         /* PEM */
    const char *ca;          /* PEM: who signs the other side's certificates */
};

/* Whether this build has TLS. */
bool tls_available(void);

/* -ENOSYS in a build without, -EINVAL or -ENOENT naming the file, -ENOMEM. */
int tls_context_create(const struct tls_files *files, bool server, struct tls_context **out,
                       struct error *error);
void tls_context_destroy(struct tls_context *context); /* NULL is fine */

/* `name`: of a client, whom the server's certificate must be for, a host name or an address; NULL
 * for a server. -ENOMEM. */
int tls_open(struct tls_context *context, const char *name, struct tls **out, struct error *error);
void tls_close(struct tls *tls); /* NULL is fine */

/* From the network: takes all of it, or -ENOMEM. */
int tls_put(struct tls *tls, const uint8_t *bytes, size_t count);
/* To the network: how many were taken out, 0 when nothing waits. Also after a failure: the alert
 * that tells the other side. */
size_t tls_take(struct tls *tls, uint8_t *out, size_t capacity);

/* Goes on with the handshake: 1 done, 0 bytes are awaited; -EACCES with a sentence when a
 * certificate was not accepted, by either side, -EPROTO otherwise. */
int tls_handshake(struct tls *tls, struct error *error);

/* Plain bytes that came: their count, at most `capacity`; 0 when more is awaited; -EPIPE at the
 * end; or as tls_handshake. */
int64_t tls_read(struct tls *tls, uint8_t *out, size_t capacity, struct error *error);

/* Plain bytes to send, all of them; after the handshake only. */
int tls_write(struct tls *tls, const uint8_t *bytes, size_t count, struct error *error);

/* Of the other side's certificate, after the handshake: whether it is for `name`; and a name of it
 * for people. */
bool tls_peer_is(const struct tls *tls, const char *name);
void tls_peer_name(const struct tls *tls, char out[TLS_NAME_BYTES]);

#endif
