/* dial: see dial.h. */
#include "client/dial.h"

#include "client/deadline.h"
#include "proto/address.h"
#include "proto/keep_alive.h"
#include "proto/preface.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int dial_text(const char *given, const char *variable, char out[DIAL_FILE_BYTES],
                     struct error *error) {
    const char *text = given != NULL ? given : getenv(variable);
    size_t bytes = text == NULL ? 0 : strlen(text);
    if (bytes >= DIAL_FILE_BYTES) {
        return error_set(error, -ENAMETOOLONG, "%s: %zu characters, at most %u are possible",
                         variable, bytes, DIAL_FILE_BYTES - 1);
    }
    (void)snprintf(out, DIAL_FILE_BYTES, "%s", text == NULL ? "" : text);
    return 0;
}

int dial_resolve(const struct dial_given *given, struct dial_credentials *out,
                 struct error *error) {
    int code = dial_text(given->token_file, "BALLAST_TOKEN_FILE", out->token_file, error);
    if (code == 0) {
        code = dial_text(given->certificate, "BALLAST_TLS_CERTIFICATE", out->certificate, error);
    }
    if (code == 0) {
        code = dial_text(given->key, "BALLAST_TLS_KEY", out->key, error);
    }
    if (code == 0) {
        code = dial_text(given->ca, "BALLAST_TLS_CA", out->ca, error);
    }
    return code < 0 ? code : dial_text(given->name, "BALLAST_TLS_NAME", out->name, error);
}

void dial_close(struct dialed *dialed) {
    if (dialed->fd >= 0) {
        close(dialed->fd);
    }
    if (dialed->found != NULL) {
        freeaddrinfo(dialed->found);
    }
    tls_close(dialed->tls);
    tls_context_destroy(dialed->context);
    *dialed = (struct dialed){.fd = -1};
}

/* Unix */

static int dial_unix_failed(int code, const char *path, struct error *error) {
    switch (code) {
    case -ENOENT:
    case -ECONNREFUSED:
        return error_set(error, -ECONNREFUSED,
                         "no daemon listens on %s; start ballastd, or name its socket (--socket, "
                         "BALLAST_SOCKET)",
                         path);
    case -EAGAIN:
        return error_set(error, -ECONNREFUSED, "the daemon on %s accepts no more connections",
                         path);
    case -EACCES:
        return error_set(error, code,
                         "not allowed to connect to %s; ask for its group, or check its mode",
                         path);
    default:
        return error_set(error, code, "connect to %s: %s", path, strerror(-code));
    }
}

static int dial_unix(const char *path, struct dialed *out, struct error *error) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t bytes = strlen(path) + 1;
    if (bytes > sizeof address.sun_path) {
        return error_set(error, -ENAMETOOLONG, "socket path %s has %zu bytes, at most %zu fit",
                         path, bytes - 1, sizeof address.sun_path - 1);
    }
    memcpy(address.sun_path, path, bytes);
    out->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (out->fd < 0) {
        return error_set(error, -errno, "open a socket: %s", strerror(errno));
    }
    return connect(out->fd, (const struct sockaddr *)&address, sizeof address) == 0
               ? 0
               : dial_unix_failed(-errno, path, error);
}

/* TCP */

/* What became of the connection that was begun: 0, -EINPROGRESS when until_ns has come. */
static int dial_wait(int fd, int64_t until_ns) {
    int failed = 0;
    socklen_t bytes = sizeof failed;
    int ready = deadline_poll(fd, POLLOUT, until_ns);
    if (ready <= 0) {
        return ready == 0 ? -EINPROGRESS : ready;
    }
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &bytes) < 0 ? -errno : -failed;
}

/* Begins to connect to one place. */
static int dial_one(const struct addrinfo *at, int *out) {
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return -errno;
    }
    int code = connect(fd, at->ai_addr, at->ai_addrlen) < 0 ? -errno : 0;
    if (code < 0 && code != -EINPROGRESS) {
        close(fd);
        return code;
    }
    *out = fd;
    return code;
}

static int dial_look_up(const struct address *address, struct addrinfo **found,
                        struct error *error) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    char port[8];
    (void)snprintf(port, sizeof port, "%u", address->port);
    int failed = getaddrinfo(address->host, port, &hints, found);
    if (failed == 0) {
        return 0;
    }
    return error_set(error, failed == EAI_AGAIN ? -ECONNREFUSED : -ENOENT,
                     "host %s is not known: %s; check the name in --socket or BALLAST_SOCKET",
                     address->host, gai_strerror(failed));
}

/* Every way that a machine or network may be away for a while is the same to who tries again. */
static int dial_tcp_failed(int code, const struct dialed *dialed, struct error *error) {
    const struct address *address = &dialed->address;
    switch (code) {
    case -ETIMEDOUT:
        return error_set(error, code,
                         "%s port %u does not answer a connect within %lld ms; check the address, "
                         "and that no firewall drops it",
                         address->host, address->port,
                         (long long)(deadline_now_ns() - dialed->begin_ns) / 1000000);
    case -ECONNREFUSED:
        return error_set(error, code,
                         "nobody listens on %s port %u; start ballastd with listen.tcp, or name "
                         "another address (--socket, BALLAST_SOCKET)",
                         address->host, address->port);
    case -EHOSTUNREACH:
    case -ENETUNREACH:
    case -EHOSTDOWN:
    case -ENETDOWN:
        return error_set(error, -ECONNREFUSED, "connect to %s port %u: %s", address->host,
                         address->port, strerror(-code));
    default:
        return error_set(error, code, "connect to %s port %u: %s", address->host, address->port,
                         strerror(-code));
    }
}

/* Goes through the places of the host until one takes the connection: 1, 0 when until_ns has come.
 */
static int dial_connect(struct dialed *dialed, int64_t until_ns, struct error *error) {
    int code = -ECONNREFUSED;
    for (; dialed->at != NULL; dialed->at = dialed->at->ai_next) {
        if (dialed->fd < 0) {
            code = dial_one(dialed->at, &dialed->fd);
        }
        if (dialed->fd >= 0) {
            code = dial_wait(dialed->fd, deadline_earlier(until_ns, dialed->give_up_ns));
        }
        if (code == 0) {
            freeaddrinfo(dialed->found);
            dialed->found = NULL;
            keep_alive(dialed->fd, DIAL_TIMEOUT_MS);
            return 1;
        }
        if (code == -EINPROGRESS && deadline_now_ns() < dialed->give_up_ns) {
            return 0;
        }
        if (dialed->fd >= 0) {
            close(dialed->fd);
        }
        dialed->fd = -1;
    }
    return dial_tcp_failed(code == -EINPROGRESS ? -ETIMEDOUT : code, dialed, error);
}

static int dial_send(int fd, const uint8_t *bytes, size_t count, int64_t deadline) {
    while (count > 0) {
        ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL);
        if (sent >= 0) {
            bytes += sent;
            count -= (size_t)sent;
            continue;
        }
        int ready = errno == EAGAIN ? deadline_poll(fd, POLLOUT, deadline) : 1;
        if (ready <= 0 || (errno != EAGAIN && errno != EINTR)) {
            return ready == 0 ? -ETIMEDOUT : ready < 0 ? ready : -errno;
        }
    }
    return 0;
}

static int dial_introduce(const struct dial_credentials *credentials, int64_t deadline,
                          struct dialed *out, struct error *error) {
    char token[PREFACE_TOKEN_BYTES_MAX + 1];
    char preface[PREFACE_BYTES_MAX];
    int code = preface_load_token(credentials->token_file, token, error);
    if (code < 0) {
        return code;
    }
    size_t bytes = preface_write(token, preface);
    code = dial_send(out->fd, (const uint8_t *)preface, bytes, deadline);
    explicit_bzero(token, sizeof token);
    explicit_bzero(preface, sizeof preface);
    return code < 0 ? error_set(error, code, "connection to the daemon: %s", strerror(-code)) : 0;
}

/* TLS */

static int dial_lost(int code, struct error *error) {
    switch (code) {
    case -ETIMEDOUT:
        return error_set(error, code, "the TLS handshake with the daemon takes too long");
    case -EPIPE:
        return error_set(error, code, "the daemon closed the connection in the TLS handshake");
    default:
        return error_set(error, code, "connection to the daemon: %s", strerror(-code));
    }
}

/* Gives TLS what has come, waiting for it: 1; 0 when until_ns has come; or what broke. */
static int dial_receive(struct dialed *out, int64_t until_ns) {
    uint8_t bytes[4096];
    for (;;) {
        ssize_t got = recv(out->fd, bytes, sizeof bytes, 0);
        if (got > 0) {
            int code = tls_put(out->tls, bytes, (size_t)got);
            return code < 0 ? code : 1;
        }
        if (got == 0) {
            return -EPIPE;
        }
        if (errno != EAGAIN && errno != EINTR) {
            return -errno;
        }
        int ready = deadline_poll(out->fd, POLLIN, until_ns);
        if (ready <= 0) {
            return ready;
        }
    }
}

/* 1, or 0 when until_ns has come. */
static int dial_shake_hands(struct dialed *out, int64_t until_ns, struct error *error) {
    for (;;) {
        uint8_t bytes[4096];
        int done = tls_handshake(out->tls, error);
        int code = 0;
        for (size_t n = tls_take(out->tls, bytes, sizeof bytes); n > 0 && code == 0;
             n = tls_take(out->tls, bytes, sizeof bytes)) {
            code = dial_send(out->fd, bytes, n, out->give_up_ns);
        }
        if (done != 0) {
            return done < 0 ? done : code < 0 ? dial_lost(code, error) : 1;
        }
        code = code < 0 ? code : dial_receive(out, deadline_earlier(until_ns, out->give_up_ns));
        if (code == 0 && deadline_now_ns() < out->give_up_ns) {
            return 0;
        }
        if (code <= 0) {
            return dial_lost(code == 0 ? -ETIMEDOUT : code, error);
        }
    }
}

static int dial_secure(struct dialed *out, const struct dial_credentials *credentials,
                       struct error *error) {
    bool own = credentials->certificate[0] != '\0';
    const struct tls_files files = {.certificate = own ? credentials->certificate : NULL,
                                    .key = own ? credentials->key : NULL,
                                    .ca = credentials->ca};
    const char *name = credentials->name[0] != '\0' ? credentials->name : out->address.host;
    int code = tls_context_create(&files, false, &out->context, error);
    return code < 0 ? code : tls_open(out->context, name, &out->tls, error);
}

/* What must be given with an address before anything is tried. */
static int dial_check(const struct address *address, const struct dial_credentials *credentials,
                      const char *text, struct error *error) {
    if (address->kind == ADDRESS_TCP && !address_is_loopback(address)) {
        return error_set(error, -EINVAL,
                         "%s is not loopback, where plain text would be read by others; use "
                         "tls:%s:%u",
                         text, address->host, address->port);
    }
    if (address->kind == ADDRESS_TCP && credentials->token_file[0] == '\0') {
        return error_set(error, -EINVAL,
                         "%s needs the daemon's token; name its file (--token-file, "
                         "BALLAST_TOKEN_FILE)",
                         text);
    }
    if (address->kind == ADDRESS_TLS && !tls_available()) {
        return error_set(error, -ENOSYS,
                         "%s: this build has no TLS; build it with OpenSSL 3 (libssl-dev) and "
                         "-DBALLAST_TLS=ON",
                         text);
    }
    if (address->kind == ADDRESS_TLS && credentials->ca[0] == '\0') {
        return error_set(error, -EINVAL,
                         "%s needs the authority that signs the daemon's certificate; name its "
                         "file (--tls-ca, BALLAST_TLS_CA)",
                         text);
    }
    if ((credentials->certificate[0] == '\0') != (credentials->key[0] == '\0')) {
        return error_set(error, -EINVAL,
                         "a certificate and its key belong together; name both (--tls-certificate "
                         "and --tls-key, BALLAST_TLS_CERTIFICATE and BALLAST_TLS_KEY)");
    }
    return 0;
}

int dial_begin(const char *text, const struct dial_credentials *credentials, int64_t give_up_ns,
               struct dialed *out, struct error *error) {
    *out = (struct dialed){.fd = -1, .begin_ns = deadline_now_ns()};
    out->give_up_ns = deadline_earlier(give_up_ns, deadline_in_ms(DIAL_MS));
    int code = address_parse(text, &out->address, error);
    if (code == 0) {
        code = dial_check(&out->address, credentials, text, error);
    }
    if (code == 0) {
        code = out->address.kind == ADDRESS_UNIX ? dial_unix(out->address.host, out, error)
                                                 : dial_look_up(&out->address, &out->found, error);
    }
    out->at = out->found;
    out->phase = out->address.kind == ADDRESS_UNIX ? DIAL_DONE : DIAL_CONNECTING;
    if (code < 0) {
        dial_close(out);
    }
    return code;
}

/* Over TCP: what comes once the connection stands. */
static int dial_connected(struct dialed *dialed, const struct dial_credentials *credentials,
                          struct error *error) {
    if (dialed->address.kind == ADDRESS_TLS) {
        dialed->phase = DIAL_SHAKING;
        return dial_secure(dialed, credentials, error);
    }
    dialed->phase = DIAL_DONE;
    return dial_introduce(credentials, dialed->give_up_ns, dialed, error);
}

int dial_advance(struct dialed *dialed, const struct dial_credentials *credentials,
                 int64_t until_ns, struct error *error) {
    int code = 1;
    if (dialed->phase == DIAL_CONNECTING) {
        code = dial_connect(dialed, until_ns, error);
        if (code == 1) {
            int begun = dial_connected(dialed, credentials, error);
            code = begun < 0 ? begun : 1;
        }
    }
    if (code == 1 && dialed->phase == DIAL_SHAKING) {
        code = dial_shake_hands(dialed, until_ns, error);
        dialed->phase = code == 1 ? DIAL_DONE : DIAL_SHAKING;
    }
    if (code < 0) {
        dial_close(dialed);
    }
    return code;
}
