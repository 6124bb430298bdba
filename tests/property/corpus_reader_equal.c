/* Random files, random jobs, random queues: both readers bring the bytes that are in the files, and
 * fail the jobs that reach behind an end at the same extent. A seed is printed when it fails;
 * BALLAST_TEST_SEED runs it alone. */
#include "tests/unit/reader_world.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOBS_MAX 6u

struct outcome {
    int result;
    uint32_t failed_extent;
};

static struct world_job *random_job(struct reader_world *world) {
    enum world_sizes sizes = (enum world_sizes)world_below(world, 3);
    uint32_t extents_max = sizes == WORLD_TINY ? 3000 : sizes == WORLD_MIXED ? 200 : 8;
    struct world_job *job = world_job_create(world, 1 + world_below(world, extents_max), sizes);
    if (world_below(world, 4) == 0) {
        uint32_t first = world_below(world, job->read.extent_count);
        for (uint32_t e = first; e < job->read.extent_count; e += 1 + world_below(world, 9)) {
            job->read.extents[e].offset = world->sizes[0] + 10000;
        }
    }
    return job;
}

static bool job_is_settled(const struct world_job *job) {
    return job->read.result < 0 || world_job_is_right(job);
}

/* The same jobs for the same seed, whichever reader. */
static bool run_jobs(enum reader_backend backend, uint64_t seed,
                     struct outcome outcomes[JOBS_MAX]) {
    struct reader_world world;
    struct world_job *jobs[JOBS_MAX], *reaped[JOBS_MAX];
    struct reader *reader = NULL;
    struct error error = {0};
    world_open(&world, seed, (1u << 20) + 10000);
    struct reader_options options = {.queue_depth = 1 + world_below(&world, 64),
                                     .threads = 1 + world_below(&world, 8),
                                     .jobs_max = JOBS_MAX,
                                     .rings = world_below(&world, 4)};
    assert_int_equal(reader_open(backend, &options, &reader, NULL, &error), 0);
    uint32_t count = 1 + world_below(&world, JOBS_MAX);
    bool right = true;
    for (uint32_t i = 0; i < count; i++) {
        jobs[i] = random_job(&world);
        assert_int_equal(reader_submit(reader, &jobs[i]->read), 0);
    }
    for (uint32_t returned = 0; returned < count;) {
        returned += world_reap(reader, reaped, JOBS_MAX);
    }
    for (uint32_t i = 0; i < count; i++) {
        right = right && job_is_settled(jobs[i]);
        outcomes[i] = (struct outcome){jobs[i]->read.result, jobs[i]->read.failed_extent};
        world_job_destroy(jobs[i]);
    }
    reader_close(reader);
    world_close(&world);
    return right;
}

static void run_seed(uint64_t seed) {
    struct outcome uring[JOBS_MAX] = {{0}}, pread[JOBS_MAX] = {{0}};
    if (!run_jobs(READER_AUTO, seed, uring) || !run_jobs(READER_PREAD, seed, pread) ||
        memcmp(uring, pread, sizeof uring) != 0) {
        fail_msg("BALLAST_TEST_SEED=%llu", (unsigned long long)seed);
    }
}

static void both_readers_bring_the_bytes_of_the_files(void **state) {
    (void)state;
    const char *seed = getenv("BALLAST_TEST_SEED");
    uint64_t seeds = getenv("BALLAST_TEST_FULL") != NULL ? 3000 : 40;
    if (seed != NULL) {
        run_seed(strtoull(seed, NULL, 10));
        seeds = 0;
    }
    for (uint64_t s = 1; s <= seeds; s++) {
        run_seed(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_readers_bring_the_bytes_of_the_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
