/* gathered: the XXH3-64 of bytes that lie in several pieces, by the widest vectors that the
 * processor has: the library's own build knows only those of every processor. */
#ifndef BALLAST_CORPUS_GATHERED_H
#define BALLAST_CORPUS_GATHERED_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct gathered {
    const struct iovec *iovec;
    size_t at; /* in it */
};

/* Of the next `bytes` bytes, which are there; moves on behind them. Any thread. */
uint64_t gathered_hash(struct gathered *from, size_t bytes);

#endif
