/* replicas: which data-parallel replica runs a micro-batch, and when in its pipeline.
 *
 * Equal-count LPT: by descending work, each micro-batch goes to the replica with the least work
 * that has a slot left, so counts are equal (collectives need that) and sums are level. Then every
 * replica runs a "mountain": light, rising, the heaviest in the middle, falling, because warm-up
 * and drain of a 1F1B pipeline run at the pace of its first and last micro-batches. */
#ifndef BALLAST_PLANNER_REPLICAS_H
#define BALLAST_PLANNER_REPLICAS_H

#include <stdint.h>

/* Deals `count` micro-batches, given their works, to `replicas` (> 0, divides count). slots[m] is
 * dp * (count / replicas) + index of micro-batch m; a bijection. Ties: lower micro-batch first,
 * lower replica first. `order` (count long), `heap`, `taken` and `loads` (replicas long) are
 * scratch. */
void replicas_deal(const uint64_t *works, uint32_t count, uint32_t replicas, uint32_t *order,
                   uint32_t *heap, uint32_t *taken, uint64_t *loads, uint32_t *slots);

/* The same in reading order: micro-batch m is number m / replicas of replica m % replicas. */
void replicas_deal_in_order(uint32_t count, uint32_t replicas, uint32_t *slots);

/* Pipeline position of the i-th heaviest of n: reverse(d0, d2, d4, ...), then d1, d3, ... */
uint32_t replicas_mountain(uint32_t i, uint32_t n);

#endif
