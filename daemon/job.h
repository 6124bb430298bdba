/* job: a job as its store and its checkpoints know it, for the daemon and the CLI. */
#ifndef BALLAST_DAEMON_JOB_H
#define BALLAST_DAEMON_JOB_H

#include "corpus/catalog.h"
#include "daemon/blob.h"
#include "daemon/config.h"
#include "daemon/store.h"

/* Describes the first `count` datasets; names are the catalog's. Reads their fingerprints. */
int job_datasets(const struct catalog *catalog, uint32_t count, struct store_dataset *out,
                 struct error *error);

/* What checkpoints say of the job: its datasets are the first of the config, those that were
 * appended stand in the settings. `writer` and the datasets' names are borrowed. Fills a zeroed
 * *out, whose texts are freed by job_identity_deinit, also after a failure; it takes a zeroed one.
 */
int job_identity_init(struct blob *out, const char *writer, const struct config *config,
                      const struct catalog *catalog, struct error *error);
void job_identity_deinit(struct blob *identity);

#endif
