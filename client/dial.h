/* dial: a connection to a daemon's address, up to where frames begin.
 *
 * Unix sockets connect at once or not at all. TCP connects, says keep-alive and the preface with
 * the token; TLS connects and shakes hands, both sides with certificates. Whatever the network
 * does, a caller is back when it wants to be, and goes on where it was; only the look-up of a host
 * by name takes the time that the resolver takes. */
#ifndef BALLAST_CLIENT_DIAL_H
#define BALLAST_CLIENT_DIAL_H

#include "planner/error.h"
#include "proto/address.h"
#include "proto/tls.h"

#include <stdint.h>

#define DIAL_FILE_BYTES 512u
#define DIAL_MS         5000   /* most that one try, over TCP or TLS, may take */
#define DIAL_TIMEOUT_MS 30000u /* proto/keep_alive.h */

/* Files and a name; empty: none. */
struct dial_credentials {
    char token_file[DIAL_FILE_BYTES];
    char certificate[DIAL_FILE_BYTES];
    char key[DIAL_FILE_BYTES];
    char ca[DIAL_FILE_BYTES];
    char name[DIAL_FILE_BYTES]; /* that the daemon's certificate must be for; empty: the host */
};

/* What a caller gave, each NULL for the environment's: BALLAST_TOKEN_FILE, BALLAST_TLS_CERTIFICATE,
 * BALLAST_TLS_KEY, BALLAST_TLS_CA, BALLAST_TLS_NAME. */
struct dial_given {
    const char *token_file, *certificate, *key, *ca, *name;
};

enum dial_phase { DIAL_NONE = 0, DIAL_CONNECTING, DIAL_SHAKING, DIAL_DONE };

struct dialed {
    int fd;                      /* non-blocking; -1: none */
    struct tls_context *context; /* NULL in plain text, like the next */
    struct tls *tls;
    enum dial_phase phase;
    /* Of a try that is under way. */
    struct address address;
    struct addrinfo *found; /* where the host is, NULL once connected */
    struct addrinfo *at;    /* of these, the one being tried */
    int64_t begin_ns, give_up_ns;
};

/* -ENAMETOOLONG. */
int dial_resolve(const struct dial_given *given, struct dial_credentials *out, struct error *error);

/* Begins one try, which ends at give_up_ns (deadline.h) or after DIAL_MS: 0, go on with
 * dial_advance. -ECONNREFUSED when nobody is there (the remedy is in the sentence), -EINVAL for an
 * address or credentials that cannot be, -ENOSYS TLS in a build without. */
int dial_begin(const char *address, const struct dial_credentials *credentials, int64_t give_up_ns,
               struct dialed *out, struct error *error);
/* 1: connected; 0: until_ns has come; or -ECONNREFUSED, -ETIMEDOUT when the try is over, -EACCES
 * and -EPROTO as in proto/tls.h. After a failure, and of either function, nothing is to be closed.
 */
int dial_advance(struct dialed *dialed, const struct dial_credentials *credentials,
                 int64_t until_ns, struct error *error);
void dial_close(struct dialed *dialed); /* idempotent */

#endif
