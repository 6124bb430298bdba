/* bulk: what is done with every byte that is read, by the widest vectors that the processor has
 * (libraries know only those of every processor). Pure; any thread. */
#ifndef BALLAST_CORPUS_BULK_H
#define BALLAST_CORPUS_BULK_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* XXH3-64. */
uint64_t bulk_hash(const void *bytes, size_t count);

/* Deals the bytes at `from` out to the iovecs, in order; those of an iovec without a base are
 * passed over. Pieces are written past the processor's cache, which is half the memory traffic:
 * whoever reads them next does so later, from another core. They are there when this returns. */
void bulk_scatter(const struct iovec *iovecs, uint32_t count, const uint8_t *from);

#endif
