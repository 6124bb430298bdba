/* mapped: takes what the page cache has out of a mapping of the file.
 *
 * A read(2) copies through the processor's cache and costs a turn in the kernel for each piece it
 * deals out; from a mapping, whose pages come as they are touched, the pieces are copied past it. A
 * mapping is made for a job and keeps its pages as long: threads that map and unmap wait for, and
 * interrupt, one another. Pages that a file no longer has, or that its storage cannot deliver, are
 * a SIGBUS to whoever touches them. The copy is guarded against that signal, thread by thread: it
 * ends, and the caller reads instead, which tells what is wrong and where. A SIGBUS from anywhere
 * else goes on to whoever had it before the first copy; nobody may take it later. */
#ifndef BALLAST_CORPUS_MAPPED_H
#define BALLAST_CORPUS_MAPPED_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

/* Addresses of a whole file. */
struct mapping {
    uint8_t *pages;
    uint64_t bytes;
};

/* False: it cannot be mapped, or is empty. The descriptor may be closed before the mapping. */
bool mapping_open(int fd, struct mapping *out);
void mapping_close(struct mapping *mapping);

/* Deals the bytes of the file from `offset` on out to the iovecs, as bulk_scatter does: all of
 * them, or false, with the iovecs' memory in any state. `fd` is of the same file. Several threads
 * may at once, if they do not block SIGBUS. */
bool mapping_scatter(const struct mapping *mapping, int fd, uint64_t offset,
                     const struct iovec *iovecs, uint32_t count);

/* Whether the file is on a file system of this machine, whose mappings are the page cache itself.
 */
bool mapped_suits(int fd);

#endif
