/* bulk: what is done with every byte that is read, by the widest vectors that the processor has
 * (libraries know only those of every processor). Pure; any thread. */
#ifndef BALLAST_CORPUS_BULK_H
#define BALLAST_CORPUS_BULK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* XXH3-64. */
uint64_t bulk_hash(const void *bytes, size_t count);

/* Deals the bytes at `from` out to the iovecs, in order; those of an iovec without a base are
 * passed over. Pieces are written past the processor's cache, which is half the memory traffic:
 * whoever reads them next does so later, from another core. They are there when this returns. */
void bulk_scatter(const struct iovec *iovecs, uint32_t count, const uint8_t *from);

struct bulk_lengths {
    uint64_t sum;
    uint32_t longest;
};

struct bulk_lengths bulk_lengths(const uint32_t *lengths, size_t count);

/* Whether none is below the one before it, nor above INT64_MAX. count > 0. */
bool bulk_rises(const uint64_t *values, size_t count);

/* Whether each offset but the first is the end of the document before it, lengths being of `width`
 * bytes. count > 0. */
bool bulk_chains(const uint64_t *offsets, const uint32_t *lengths, size_t count, uint32_t width);

#endif
