/* scrape: the daemon's figures as monitoring reads them; docs/metrics.md lists them. Loop thread
 * only; nothing is allocated. */
#ifndef BALLAST_DAEMON_SCRAPE_H
#define BALLAST_DAEMON_SCRAPE_H

#include "daemon/daemon.h"

/* Enough for METRICS_RANKS_MAX ranks; a test says so. */
#define SCRAPE_BYTES (512u << 10)

/* Writes the exposition into `out` (SCRAPE_BYTES); its length. */
size_t scrape(const struct daemon *daemon, char *out);

/* Whether ranks are served; if not, `why` is a word or two. */
bool scrape_ready(const struct daemon *daemon, const char **why);

#endif
