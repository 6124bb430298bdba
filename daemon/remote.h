/* remote: connections over TCP: who they are, before any call of theirs is looked at.
 *
 *     plain text, on loopback alone   --a preface with a token (proto/preface.h)-->  known
 *     TLS 1.3, anywhere               --a handshake, both certificates (proto/tls.h)--> known
 *
 * A peer that is known but may do nothing gets a sentence as the answer to its first call; one that
 * does not get so far is logged, told as far as its protocol allows, and closed. Half-open
 * connections end after listen.timeout, by keep-alive and TCP_USER_TIMEOUT. Loop thread only. */
#ifndef BALLAST_DAEMON_REMOTE_H
#define BALLAST_DAEMON_REMOTE_H

#include "daemon/config.h"
#include "daemon/listen.h"
#include "daemon/session.h"
#include "proto/preface.h"
#include "proto/tls.h"

struct conn;

struct remote {
    const struct config *config;
    struct tls_context *tls; /* NULL: plain text */
    char token[PREFACE_TOKEN_BYTES_MAX + 1];
    char admin_token[PREFACE_TOKEN_BYTES_MAX + 1];
};

/* Reads tokens or certificates. -EINVAL, -ENOENT, ... naming the key and the file. */
int remote_open(struct remote *remote, const struct config *config, struct error *error);
void remote_close(struct remote *remote); /* idempotent; fine for a zeroed one */

/* A socket that listens on listen.tcp. -EADDRINUSE, ... */
int remote_listen(const struct remote *remote, struct listener *listener, int backlog,
                  struct error *error);

/* Options and name of an accepted connection; who it is comes later. */
void remote_identify(const struct remote *remote, int fd, struct session_peer *peer);

/* A TLS connection's filter in *tls, NULL in plain text. -ENOMEM. */
int remote_begin(const struct remote *remote, struct tls **tls);

/* Goes on with the preface or the handshake: 1 the peer is known, and session.peer says what it
 * may; 0 more is awaited; negative: told as far as possible, to be closed. */
int remote_know(const struct remote *remote, struct conn *conn);

#endif
