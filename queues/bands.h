/* bands: WLB-LLM's multi-level FIFO queues for outlier documents (Algorithm 1, lines 3-9).
 *
 * A document at least as long as the first threshold waits in the band of its length until the
 * band holds enough documents to give every micro-batch one. The waiting documents are the
 * caller's single list in arrival order; bands are a view of it, so the list is the whole state.
 * Settled here, open in the paper: one release of N per band and step unless `release` is ALL;
 * whatever reached the age bound is released as due.
 * Integers only, no allocation. */
#ifndef BALLAST_QUEUES_BANDS_H
#define BALLAST_QUEUES_BANDS_H

#include <stdint.h>

#define BANDS_MAX 8u
#define BAND_NONE UINT32_MAX

enum bands_release { BANDS_RELEASE_ONCE = 0, BANDS_RELEASE_ALL = 1 };

struct bands_options {
    uint32_t length_min[BANDS_MAX]; /* thresholds in tokens, strictly ascending, > 0 */
    uint32_t bands;                 /* how many; 0: nothing ever waits */
    uint32_t group;   /* N: documents released together, the micro-batches of a step */
    uint32_t age_max; /* steps after which a waiting document is due; > 0 */
    enum bands_release release;
};

enum band_verdict { BAND_WAITS = 0, BAND_RELEASED = 1, BAND_DUE = 2 };

/* Band of a length: the last one whose threshold it reaches; BAND_NONE below the first. */
uint32_t bands_of(const struct bands_options *options, uint32_t length);

/* Decides for each waiting document, given in arrival order (all of them belong to a band).
 * verdicts[i] is RELEASED for the first N of each band that holds N (every whole N with ALL), then
 * DUE for those still waiting with step - nominal_steps[i] >= age_max, else WAITS. Returns the
 * number that leave. */
uint32_t bands_decide(const struct bands_options *options, const uint32_t *lengths,
                      const uint64_t *nominal_steps, uint32_t waiting, uint64_t step,
                      uint8_t *verdicts);

#endif
