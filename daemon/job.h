/* job: a job's corpus as its store knows it, for the daemon and the CLI. */
#ifndef BALLAST_DAEMON_JOB_H
#define BALLAST_DAEMON_JOB_H

#include "corpus/catalog.h"
#include "daemon/store.h"

/* Describes the first `count` datasets; names are the catalog's. Reads their fingerprints. */
int job_datasets(const struct catalog *catalog, uint32_t count, struct store_dataset *out,
                 struct error *error);

#endif
