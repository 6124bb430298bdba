/* listen: sockets that others connect to.
 *
 * A socket file that is there already is replaced only if nobody listens behind it, and is removed
 * at the end only if it is still the one that was made here. Sockets that the service manager
 * opened (LISTEN_FDS) are found by the path they are bound to: their files stay, and so does the
 * manager's descriptor, so that clients queue while nothing accepts. Any thread. */
#ifndef BALLAST_DAEMON_LISTEN_H
#define BALLAST_DAEMON_LISTEN_H

#include "planner/error.h"

#include <stdbool.h>
#include <stdint.h>

#define LISTEN_PATH_BYTES 128u

struct listener {
    int fd;                       /* non-blocking; -1: closed */
    char path[LISTEN_PATH_BYTES]; /* of the file we made; "": none */
    uint64_t device, inode;       /* of that file */
};

/* `key` names the setting in remedies. -EADDRINUSE when somebody listens there, -EEXIST when the
 * path is something else than a socket, -ENAMETOOLONG, or what bind and listen say. */
int listen_unix(struct listener *listener, const char *path, const char *key, int backlog,
                struct error *error);

/* On a numeric IPv4 or IPv6 address. Likewise. */
int listen_tcp(struct listener *listener, const char *host, uint16_t port, const char *key,
               int backlog, struct error *error);

/* Idempotent; fine for fd -1. */
void listen_close(struct listener *listener);

/* Whether the service manager handed this process sockets. */
bool listen_activated(void);

#endif
