/* balance: how even a step's work is, in parts per million; 1000000 is perfect, and so is 0/0.
 *
 * The formulas behind `struct balance` (plan.h), on plain arrays. Floors, 128-bit products. */
#ifndef BALLAST_PLANNER_BALANCE_H
#define BALLAST_PLANNER_BALANCE_H

#include <stdint.h>

#define PPM 1000000u

/* floor(max * count * 1000000 / sum): a step waits for its largest part. */
uint64_t balance_ppm(uint64_t max, uint64_t sum, uint32_t count);

/* balance_ppm of `count` loads. Their sum fits 64 bits. */
uint64_t balance_of(const uint64_t *loads, uint32_t count);

/* What no assignment of these documents to `bins` can beat: pack_bound over the mean; `scratch` is
 * pack_bound's. */
uint64_t balance_bound(const uint64_t *works, uint32_t count, uint32_t bins, void *scratch);

/* Attention balance of the documents in this order, concatenated and cut into `spans` equal spans
 * at floor(i * tokens / spans), every piece a document of its own: fixed-length packing of the same
 * documents. */
uint64_t balance_of_spans(const uint32_t *lengths, uint32_t count, uint32_t spans);

#endif
