/* fake_nccl: a libnccl.so.2 between threads, over fake_runtime's streams, that checks its calls.
 *
 * Sends and receives of a pair match in order, each with as many bytes; of the same kind; inside a
 * group; never of none. What breaks this, or does not come within a few seconds, fails the stream
 * and is kept as a sentence. */
#ifndef BALLAST_TESTS_FAKE_NCCL_H
#define BALLAST_TESTS_FAKE_NCCL_H

#include <stdint.h>

/* The first thing that was wrong, or NULL. Forgets it. */
const char *fake_nccl_fault(void);

/* Calls of a rank since its last ncclCommInitRank: i init, g all-gather, ( ) a group, s and r with
 * the peer's digit a send and a receive, d destroy, a abort. */
const char *fake_nccl_trace(uint32_t rank);

#endif
