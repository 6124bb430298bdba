/* address: where a daemon is, as people write it.
 *
 *     unix:/run/ballast/ballast.sock    or the path alone
 *     tcp:127.0.0.1:7411                loopback, with a token
 *     tls:loader.example:7411           TLS 1.3, certificates on both sides; [v6] in brackets
 *
 * Pure: text in, fields out; names are not looked up here. */
#ifndef BALLAST_PROTO_ADDRESS_H
#define BALLAST_PROTO_ADDRESS_H

#include "planner/error.h"

#include <stdbool.h>
#include <stdint.h>

#define ADDRESS_TEXT_BYTES 272u /* of the whole text, terminator included */
#define ADDRESS_HOST_BYTES 256u

enum address_kind { ADDRESS_UNIX = 0, ADDRESS_TCP = 1, ADDRESS_TLS = 2 };

struct address {
    enum address_kind kind;
    char host[ADDRESS_HOST_BYTES]; /* name or literal without brackets; for UNIX the path */
    uint16_t port;                 /* 0 for UNIX */
};

/* -EINVAL naming the text and the three forms, -ENAMETOOLONG. */
int address_parse(const char *text, struct address *out, struct error *error);

/* HOST:PORT or [HOST]:PORT, port 1 to 65535, into the last two fields: 0 or -EINVAL. */
int address_parse_host(const char *text, struct address *out);

/* Whether the host is a literal of 127.0.0.0/8 or ::1; names, "localhost" too, are not. */
bool address_is_loopback(const struct address *address);

#endif
