/* measured: how long micro-batches really took, as trainers say with Commit.
 *
 * For each of the last steps and each local micro-batch the slowest rank's time counts; a step has
 * a ratio when all of its local micro-batches were measured. Told, never acted on: plans do not
 * depend on it. Loop thread only. */
#ifndef BALLAST_DAEMON_MEASURED_H
#define BALLAST_DAEMON_MEASURED_H

#include <stdint.h>

#define MEASURED_STEPS 8u

struct measured {
    uint32_t batches;               /* of a step, local */
    uint64_t steps[MEASURED_STEPS]; /* which; entries are replaced round robin by step */
    uint32_t known[MEASURED_STEPS]; /* micro-batches with a time */
    uint64_t *times_ns;             /* MEASURED_STEPS * batches; 0: not measured */
};

/* -ENOMEM. */
int measured_init(struct measured *measured, uint32_t batches);
void measured_deinit(struct measured *measured); /* fine for a zeroed one */

/* A rank's time of a local micro-batch (< batches); 0 is none. */
void measured_add(struct measured *measured, uint64_t step, uint32_t batch, uint64_t time_ns);

/* Largest time to the mean, in ppm, of the newest step that has all; 0 without any. */
uint64_t measured_ppm(const struct measured *measured);

#endif
