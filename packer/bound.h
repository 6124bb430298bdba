/* bound: the heaviest bin that no assignment of documents can avoid.
 *
 * Documents are not cut, so it is the largest of: the largest work W_1, the mean rounded up, and
 * W_bins + W_(bins+1), as of bins + 1 documents two share a bin. */
#ifndef BALLAST_PACKER_BOUND_H
#define BALLAST_PACKER_BOUND_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of scratch, aligned for uint64_t. */
size_t pack_bound_bytes(uint32_t bins);

/* `bin_of` may be NULL; what it leaves over (PACK_LEFT_OVER) does not count. The sum of the works
 * fits 64 bits. O(count log bins), for works in random order about O(count). */
uint64_t pack_bound(const uint64_t *works, const uint32_t *bin_of, uint32_t count, uint32_t bins,
                    void *scratch);

#endif
