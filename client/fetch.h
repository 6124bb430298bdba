/* fetch: a batch's bytes over the control connection, where memory cannot be shared.
 *
 * Loader.Fetch answers with a stream of FetchResponse (proto/payload.h), whose bytes go from the
 * socket to the batch's copy of its slot. */
#ifndef BALLAST_CLIENT_FETCH_H
#define BALLAST_CLIENT_FETCH_H

#include "client/batch.h"
#include "client/call.h"

/* Asks for what batch_read made room for; call_fetch_finish waits for it. */
int fetch_start(struct batch *batch, struct call_channel *channel, struct error *error);

#endif
