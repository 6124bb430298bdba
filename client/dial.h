/* dial: a connection to a daemon's address, up to where frames begin.
 *
 * Unix sockets connect at once or not at all. TCP connects, says keep-alive and the preface with
 * the token; TLS connects and shakes hands, both sides with certificates. */
#ifndef BALLAST_CLIENT_DIAL_H
#define BALLAST_CLIENT_DIAL_H

#include "planner/error.h"
#include "proto/tls.h"

#include <stdint.h>

#define DIAL_FILE_BYTES 512u
#define DIAL_MS         5000   /* most that connecting over TCP and shaking hands may take */
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

struct dialed {
    int fd;                      /* non-blocking; -1: none */
    struct tls_context *context; /* NULL in plain text, like the next */
    struct tls *tls;
};

/* -ENAMETOOLONG. */
int dial_resolve(const struct dial_given *given, struct dial_credentials *out, struct error *error);

/* One try. -ECONNREFUSED when nobody is there (the remedy is in the sentence), -ETIMEDOUT, -EINVAL
 * for an address or credentials that cannot be, -EACCES and -EPROTO as in proto/tls.h, -ENOSYS TLS
 * in a build without. */
int dial(const char *address, const struct dial_credentials *credentials, struct dialed *out,
         struct error *error);
void dial_close(struct dialed *dialed); /* idempotent */

#endif
