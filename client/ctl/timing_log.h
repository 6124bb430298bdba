/* timing_log: forward times of micro-batches as a trainer logs them, to calibrate step times by.
 *
 * A line is a micro-batch: the forward time of one middle stage (no embedding, no head) in ns, then
 * the lengths of its documents in row order, between spaces. Empty lines and lines that begin with
 * '#' are skipped. */
#ifndef BALLAST_CTL_TIMING_LOG_H
#define BALLAST_CTL_TIMING_LOG_H

#include "planner/calibrate.h"
#include "planner/planner.h"

#define TIMING_NS_MAX UINT64_C(1000000000000000) /* 11 days */

/* The samples of a log, padded and laid out as the job would; the caller frees them. Refuses, with
 * file and line, what is no such line, more tokens than plan.tokens_max holds, and more lines than
 * CALIBRATE_SAMPLES_MAX. */
int timing_log_read(const char *path, const struct plan_options *plan,
                    const struct tile_model *tiles, struct calibrate_sample **out, uint32_t *count,
                    struct error *error);

#endif
