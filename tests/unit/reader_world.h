/* reader_world: files with known bytes, and jobs that know what they must come back with. */
#ifndef BALLAST_TESTS_READER_WORLD_H
#define BALLAST_TESTS_READER_WORLD_H

#include "corpus/reader.h"

#include <stdbool.h>
#include <stddef.h>

#define WORLD_FILES 3u

struct reader_world {
    uint64_t random; /* state of splitmix64 */
    int fds[WORLD_FILES];
    uint8_t *bytes[WORLD_FILES];
    size_t sizes[WORLD_FILES];
};

struct world_job {
    struct read_job read; /* first: a reaped read_job is its world_job */
    struct iovec *iovecs; /* of all extents */
    uint32_t iovec_count;
    uint8_t *memory;
    uint8_t *expected; /* gaps between the iovecs included: they must stay as they were */
    size_t memory_bytes;
};

enum world_sizes { WORLD_TINY, WORLD_MIXED, WORLD_FULL };

uint64_t world_random(struct reader_world *world);
uint32_t world_below(struct reader_world *world, uint32_t bound);

/* Unlinked files of about `bytes` each. */
void world_open(struct reader_world *world, uint64_t seed, size_t bytes);
void world_close(struct reader_world *world);

/* A job of `extent_count` extents at random places, scattered over its memory. */
struct world_job *world_job_create(struct reader_world *world, uint32_t extent_count,
                                   enum world_sizes sizes);
void world_job_destroy(struct world_job *job);

/* Result 0, every byte as it is in the files, and nothing else touched. */
bool world_job_is_right(const struct world_job *job);

/* Polls the eventfd (5 s at most), drains it, and reaps until NULL; the number of jobs, which go to
 * `reaped`. */
uint32_t world_reap(struct reader *reader, struct world_job **reaped, uint32_t max);

/* Submits one job and waits for it. */
void world_run(struct reader *reader, struct world_job *job);

#endif
