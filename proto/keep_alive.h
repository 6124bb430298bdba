/* keep_alive: how a lost TCP peer is noticed: a pulled cable, a machine that went away. */
#ifndef BALLAST_PROTO_KEEP_ALIVE_H
#define BALLAST_PROTO_KEEP_ALIVE_H

#include <stdint.h>

/* A peer that acknowledges nothing for `timeout_ms`, what was sent or a probe, ends the connection
 * with ETIMEDOUT; so does one that takes nothing for so long. Whole seconds as far as probes go.
 * Small messages are no longer held back. */
void keep_alive(int fd, uint32_t timeout_ms);

#endif
