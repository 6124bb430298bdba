/* fetch: a batch's bytes over the control connection, where memory cannot be shared.
 *
 * Loader.Fetch answers with a stream of FetchResponse, whose one field is the payload itself. It is
 * read here by hand, since unpacking would allocate and copy every token once more. */
#ifndef BALLAST_CLIENT_FETCH_H
#define BALLAST_CLIENT_FETCH_H

#include "client/batch.h"
#include "client/call.h"

/* The payload within a FetchResponse: 0, its bytes stand in the message; fields of later versions
 * are passed over. -EPROTO when the message cannot be read, or has the payload twice. */
int fetch_payload(const uint8_t *message, size_t bytes, const uint8_t **payload, size_t *count);

/* Asks for what batch_read made room for. */
int fetch_start(struct batch *batch, struct call_channel *channel, struct error *error);

/* Goes on: 1 when all of it is there, 0 after the timeout, to be called again. A negative errno is
 * what the daemon said, -EPROTO for more or less than was promised. */
int fetch_advance(struct batch *batch, struct call_channel *channel, int timeout_ms,
                  struct error *error);

#endif
