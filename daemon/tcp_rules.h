/* tcp_rules: what [listen] may say together, and who its names are. Pure. */
#ifndef BALLAST_DAEMON_TCP_RULES_H
#define BALLAST_DAEMON_TCP_RULES_H

#include "daemon/config.h"
#include "proto/address.h"

#include <stdbool.h>

#define TCP_REASON_BYTES 256u

/* Whether TCP is asked for, and whether with TLS. */
bool tcp_asked(const struct config *config);
bool tcp_secured(const struct config *config);

/* 0, or -EINVAL with the key of [listen] that is at fault and why, remedy last. Plain text is
 * served on loopback alone, and to those who have a token. */
int tcp_check(const struct config *config, bool tls_available, const char **key,
              char reason[TCP_REASON_BYTES]);

/* Whether any name of a list with commas answers true. */
bool tcp_any_name(const char *names, bool (*is)(const void *context, const char *name),
                  const void *context);

#endif
