/* listen: see listen.h. */
#include "daemon/listen.h"

#include "daemon/failpoint.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define LISTEN_MODE         0660
#define LISTEN_FDS_START    3 /* as sd_listen_fds(3) has it */
#define LISTEN_FDS_MAX      16
#define LISTEN_SOCKET_BYTES sizeof(((struct sockaddr_un *)0)->sun_path)

/* Handed over */

static int listen_fds(void) {
    const char *count = getenv("LISTEN_FDS");
    const char *pid = getenv("LISTEN_PID");
    if (count == NULL || pid == NULL || strtol(pid, NULL, 10) != (long)getpid()) {
        return 0;
    }
    long fds = strtol(count, NULL, 10);
    return fds < 0 ? 0 : fds > LISTEN_FDS_MAX ? LISTEN_FDS_MAX : (int)fds;
}

bool listen_activated(void) {
    return listen_fds() > 0;
}

/* A copy of the descriptor that is bound to the address; -1 without one. */
static int listen_handed(const struct sockaddr_un *wanted) {
    for (int fd = LISTEN_FDS_START; fd < LISTEN_FDS_START + listen_fds(); fd++) {
        struct sockaddr_un bound = {.sun_family = AF_UNSPEC};
        socklen_t bytes = sizeof bound;
        if (getsockname(fd, (struct sockaddr *)&bound, &bytes) < 0 || bound.sun_family != AF_UNIX ||
            strncmp(bound.sun_path, wanted->sun_path, sizeof bound.sun_path) != 0) {
            continue;
        }
        int copy = fcntl(fd, F_DUPFD_CLOEXEC, LISTEN_FDS_START + LISTEN_FDS_MAX);
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
        if (copy >= 0) {
            (void)fcntl(copy, F_SETFL, fcntl(copy, F_GETFL) | O_NONBLOCK);
        }
        return copy;
    }
    return -1;
}

/* Socket files */

static int listen_address(const char *path, const char *key, struct sockaddr_un *address,
                          struct error *error) {
    size_t bytes = strlen(path);
    if (bytes >= LISTEN_SOCKET_BYTES) {
        return error_set(error, -ENAMETOOLONG,
                         "socket path '%.64s...' has %zu characters, 107 are possible; choose a "
                         "shorter %s",
                         path, bytes, key);
    }
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, path, bytes + 1);
    return 0;
}

/* Whether somebody listens behind a socket file: 0 nobody, -EADDRINUSE. */
static int listen_probe(const struct sockaddr_un *address, const char *key, struct error *error) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return error_set(error, -errno, "socket: %s", strerror(errno));
    }
    int code = connect(fd, (const struct sockaddr *)address, sizeof *address) < 0 ? -errno : 0;
    (void)close(fd);
    if (code == -ECONNREFUSED || code == -ENOENT) {
        return 0;
    }
    return error_set(error, -EADDRINUSE,
                     "another process listens on %s; stop it or choose another %s",
                     address->sun_path, key);
}

/* Makes the path free: nothing there, or a socket that nobody listens behind, which is removed. */
static int listen_clear(const struct sockaddr_un *address, const char *key, struct error *error) {
    struct stat there;
    const char *path = address->sun_path;
    if (lstat(path, &there) < 0) {
        return errno == ENOENT ? 0 : error_set(error, -errno, "%s: %s", path, strerror(errno));
    }
    if (!S_ISSOCK(there.st_mode)) {
        return error_set(error, -EEXIST,
                         "%s is there and is no socket; remove it or choose another %s", path, key);
    }
    int code = listen_probe(address, key, error);
    if (code == 0) {
        code = FAILPOINT_ERROR(unlink, error);
    }
    if (code == 0 && unlink(path) < 0 && errno != ENOENT) {
        code = error_set(error, -errno, "removing the stale socket %s: %s", path, strerror(errno));
    }
    return code;
}

/* bind, then mode, then listen: nobody can connect before the mode is right. */
static int listen_bind(struct listener *listener, const struct sockaddr_un *address, int backlog,
                       struct error *error) {
    struct stat made;
    const char *path = address->sun_path;
    listener->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->fd < 0 ||
        bind(listener->fd, (const struct sockaddr *)address, sizeof *address) < 0) {
        return error_set(error, -errno, "%s: %s; its folder must exist and be writable", path,
                         strerror(errno));
    }
    if (lstat(path, &made) < 0 || chmod(path, LISTEN_MODE) < 0 ||
        listen(listener->fd, backlog) < 0) {
        int code = -errno;
        (void)unlink(path);
        return error_set(error, code, "%s: %s", path, strerror(-code));
    }
    (void)snprintf(listener->path, sizeof listener->path, "%s", path);
    listener->device = made.st_dev;
    listener->inode = made.st_ino;
    return 0;
}

static void listen_drop(struct listener *listener) {
    if (listener->fd >= 0) {
        (void)close(listener->fd);
    }
    *listener = (struct listener){.fd = -1};
}

int listen_unix(struct listener *listener, const char *path, const char *key, int backlog,
                struct error *error) {
    struct sockaddr_un address;
    *listener = (struct listener){.fd = -1};
    int code = listen_address(path, key, &address, error);
    if (code < 0) {
        return code;
    }
    listener->fd = listen_handed(&address);
    if (listener->fd >= 0) {
        return 0;
    }
    code = listen_clear(&address, key, error);
    if (code == 0) {
        code = listen_bind(listener, &address, backlog, error);
    }
    if (code == 0) {
        code = FAILPOINT_ERROR(listen, error);
    }
    if (code < 0) {
        listen_drop(listener);
    }
    return code;
}

int listen_tcp(struct listener *listener, const char *host, uint16_t port, const char *key,
               int backlog, struct error *error) {
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } address = {.four = {.sin_family = AF_INET, .sin_port = htons(port)}};
    socklen_t bytes = sizeof address.four;
    int yes = 1;
    *listener = (struct listener){.fd = -1};
    if (inet_pton(AF_INET, host, &address.four.sin_addr) != 1) {
        address.six = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
        bytes = sizeof address.six;
        if (inet_pton(AF_INET6, host, &address.six.sin6_addr) != 1) {
            return error_set(error, -EINVAL, "%s: '%s' is no numeric address", key, host);
        }
    }
    listener->fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->fd < 0 ||
        setsockopt(listener->fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) < 0 ||
        bind(listener->fd, &address.any, bytes) < 0 || listen(listener->fd, backlog) < 0) {
        int code = -errno;
        listen_drop(listener);
        return error_set(error, code, "listening on %s port %u: %s; choose another %s", host, port,
                         strerror(-code), key);
    }
    return 0;
}

void listen_close(struct listener *listener) {
    struct stat there;
    if (listener->fd < 0) {
        return;
    }
    if (listener->path[0] != '\0' && lstat(listener->path, &there) == 0 &&
        there.st_dev == listener->device && there.st_ino == listener->inode) {
        (void)unlink(listener->path);
    }
    listen_drop(listener);
}
