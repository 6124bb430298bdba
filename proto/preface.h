/* preface: what a client says first on a TCP connection without TLS, and the token in it.
 *
 *     ballast/1 bearer TOKEN\n
 *
 * then ttrpc frames as everywhere. The token is what keeps other users of the machine out, since a
 * loopback port has no owner as a socket file has. Tokens are 16 to 256 characters, printable, no
 * blanks. preface_read and preface_write are pure; both sides load the token from a file. */
#ifndef BALLAST_PROTO_PREFACE_H
#define BALLAST_PROTO_PREFACE_H

#include "planner/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PREFACE_TOKEN_BYTES_MIN 16u
#define PREFACE_TOKEN_BYTES_MAX 256u
#define PREFACE_BYTES_MAX       (17u + PREFACE_TOKEN_BYTES_MAX + 1u)

/* Of a good token; returns the bytes written, without a terminator. */
size_t preface_write(const char *token, char out[PREFACE_BYTES_MAX]);

/* The bytes that the preface takes of `count`, with the token pointing into them; 0 while it is not
 * whole; -EPROTO as soon as it can be none. */
int preface_read(const uint8_t *bytes, size_t count, const uint8_t **token, size_t *token_bytes);

/* Reads the first line of a file. -EINVAL when it is no token, -EACCES when others may read it. */
int preface_load_token(const char *path, char out[PREFACE_TOKEN_BYTES_MAX + 1],
                       struct error *error);

/* In a time that does not tell where they differ. An empty `expected` is no token's equal. */
bool preface_token_is(const uint8_t *token, size_t token_bytes, const char *expected);

#endif
