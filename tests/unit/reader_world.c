/* reader_world: see the header. */
#include "tests/unit/reader_world.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GAP_BYTE 0xEE

uint64_t world_random(struct reader_world *world) {
    uint64_t z = world->random += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

uint32_t world_below(struct reader_world *world, uint32_t bound) {
    return (uint32_t)(world_random(world) % bound);
}

static int world_write_file(const uint8_t *bytes, size_t size) {
    char path[] = "/tmp/ballast-reader-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    unlink(path);
    for (size_t done = 0; done < size;) {
        ssize_t written = write(fd, bytes + done, size - done);
        assert_true(written > 0);
        done += (size_t)written;
    }
    return fd;
}

void world_open(struct reader_world *world, uint64_t seed, size_t bytes) {
    *world = (struct reader_world){.random = seed};
    for (uint32_t f = 0; f < WORLD_FILES; f++) {
        world->sizes[f] = bytes + world_below(world, 5000);
        world->bytes[f] = malloc(world->sizes[f] + 8);
        assert_non_null(world->bytes[f]);
        for (size_t i = 0; i < world->sizes[f]; i += 8) {
            uint64_t word = world_random(world);
            memcpy(world->bytes[f] + i, &word, 8);
        }
        world->fds[f] = world_write_file(world->bytes[f], world->sizes[f]);
    }
}

void world_close(struct reader_world *world) {
    for (uint32_t f = 0; f < WORLD_FILES; f++) {
        close(world->fds[f]);
        free(world->bytes[f]);
    }
}

static uint32_t world_extent_bytes(struct reader_world *world, enum world_sizes sizes) {
    switch (sizes) {
    case WORLD_TINY:
        return 1 + world_below(world, 200);
    case WORLD_MIXED:
        return 1 + world_below(world, 1u << (4 + world_below(world, 17)));
    case WORLD_FULL:
        return READ_EXTENT_BYTES_MAX;
    }
    abort();
}

/* Cuts `bytes` into 1 to `max` pieces, none empty. */
static uint32_t world_cut(struct reader_world *world, uint32_t bytes, uint32_t max,
                          struct iovec *iovecs) {
    uint32_t count = 1 + world_below(world, bytes < max ? bytes : max);
    uint32_t left = bytes;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t room = left - (count - 1 - i);
        uint32_t length = i == count - 1 ? left : 1 + world_below(world, (room + 1) / 2);
        iovecs[i].iov_len = length;
        left -= length;
    }
    return count;
}

/* Gives every iovec its place in memory, in an order of its own, with gaps between. */
static void world_scatter(struct reader_world *world, struct world_job *job) {
    uint32_t *order = malloc(job->iovec_count * sizeof *order);
    assert_non_null(order);
    for (uint32_t i = 0; i < job->iovec_count; i++) {
        uint32_t j = world_below(world, i + 1);
        order[i] = order[j];
        order[j] = i;
        job->memory_bytes += job->iovecs[i].iov_len + 3;
    }
    job->memory = malloc(job->memory_bytes);
    job->expected = malloc(job->memory_bytes);
    assert_true(job->memory != NULL && job->expected != NULL);
    memset(job->memory, GAP_BYTE, job->memory_bytes);
    memset(job->expected, GAP_BYTE, job->memory_bytes);
    uint8_t *place = job->memory;
    for (uint32_t i = 0; i < job->iovec_count; i++) {
        struct iovec *iovec = &job->iovecs[order[i]];
        iovec->iov_base = place + world_below(world, 4);
        place += iovec->iov_len + 3;
    }
    free(order);
}

static void world_expect(struct world_job *job, const struct read_extent *extent,
                         const uint8_t *bytes) {
    for (uint32_t i = 0; i < extent->iovec_count; i++) {
        const struct iovec *iovec = &extent->iovecs[i];
        memcpy(job->expected + ((uint8_t *)iovec->iov_base - job->memory), bytes, iovec->iov_len);
        bytes += iovec->iov_len;
    }
}

struct world_job *world_job_create(struct reader_world *world, uint32_t extent_count,
                                   enum world_sizes sizes) {
    struct world_job *job = calloc(1, sizeof *job);
    uint32_t *files = calloc(extent_count, sizeof *files);
    assert_true(job != NULL && files != NULL);
    job->read.extents = calloc(extent_count, sizeof *job->read.extents);
    job->read.extent_count = extent_count;
    job->iovecs = calloc((size_t)extent_count * READ_EXTENT_IOVECS_MAX, sizeof *job->iovecs);
    assert_true(job->read.extents != NULL && job->iovecs != NULL);
    for (uint32_t e = 0; e < extent_count; e++) {
        uint32_t bytes = world_extent_bytes(world, sizes);
        uint32_t max = world_below(world, 4) == 0 ? READ_EXTENT_IOVECS_MAX : 3;
        struct iovec *iovecs = job->iovecs + job->iovec_count;
        files[e] = world_below(world, WORLD_FILES);
        uint32_t start_max = (uint32_t)(world->sizes[files[e]] - bytes);
        job->read.extents[e] = (struct read_extent){
            .fd = world->fds[files[e]],
            .iovec_count = world_cut(world, bytes, max, iovecs),
            .offset = world_below(world, start_max + 1),
            .iovecs = iovecs,
        };
        job->iovec_count += job->read.extents[e].iovec_count;
    }
    world_scatter(world, job);
    for (uint32_t e = 0; e < extent_count; e++) {
        const struct read_extent *extent = &job->read.extents[e];
        world_expect(job, extent, world->bytes[files[e]] + extent->offset);
    }
    free(files);
    return job;
}

void world_job_destroy(struct world_job *job) {
    free(job->read.extents);
    free(job->iovecs);
    free(job->memory);
    free(job->expected);
    free(job);
}

bool world_job_is_right(const struct world_job *job) {
    return job->read.result == 0 && memcmp(job->memory, job->expected, job->memory_bytes) == 0;
}

uint32_t world_reap(struct reader *reader, struct world_job **reaped, uint32_t max) {
    struct pollfd poll_fd = {.fd = reader->event_fd, .events = POLLIN};
    uint64_t count;
    assert_int_equal(poll(&poll_fd, 1, 60000), 1);
    assert_int_equal(read(reader->event_fd, &count, sizeof count), sizeof count);
    uint32_t reaped_count = 0;
    struct read_job *job;
    while ((job = reader_reap(reader)) != NULL) {
        assert_true(reaped_count < max);
        reaped[reaped_count++] = (struct world_job *)job;
    }
    return reaped_count;
}

void world_run(struct reader *reader, struct world_job *job) {
    struct world_job *reaped = NULL;
    assert_int_equal(reader_submit(reader, &job->read), 0);
    assert_int_equal(world_reap(reader, &reaped, 1), 1);
    assert_ptr_equal(reaped, job);
}
