/* What both readers promise, each test run once with each. Faults are in corpus_reader_faults.c. */
#include "tests/unit/reader_world.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <dirent.h>
#include <unistd.h>

struct bench {
    enum reader_backend backend;
    struct reader_world world;
    struct reader *reader;
};

static struct reader *bench_reader(const struct bench *bench, struct reader_options options) {
    struct reader *reader = NULL;
    struct error error = {0};
    int rc = reader_open(bench->backend, &options, &reader, NULL, &error);
    if (rc < 0) {
        fail_msg("%s", error.text);
    }
    return reader;
}

static int bench_open(void **state, enum reader_backend backend) {
    struct bench *bench = calloc(1, sizeof *bench);
    assert_non_null(bench);
    bench->backend = backend;
    world_open(&bench->world, 1, 2u << 20);
    bench->reader = bench_reader(
        bench, (struct reader_options){.queue_depth = 8, .threads = 3, .jobs_max = 16});
    *state = bench;
    return 0;
}

static int bench_open_uring(void **state) {
    return bench_open(state, READER_URING);
}

static int bench_open_pread(void **state) {
    return bench_open(state, READER_PREAD);
}

static int bench_close(void **state) {
    struct bench *bench = *state;
    reader_close(bench->reader);
    world_close(&bench->world);
    free(bench);
    return 0;
}

static void reader_says_which_backend_it_is(void **state) {
    struct bench *bench = *state;
    const char *name = bench->backend == READER_URING ? "io_uring" : "pread";
    assert_string_equal(bench->reader->backend, name);
}

static void reader_scatters_extents_of_every_size(void **state) {
    struct bench *bench = *state;
    for (int sizes = WORLD_TINY; sizes <= WORLD_FULL; sizes++) {
        struct world_job *job = world_job_create(&bench->world, 40, (enum world_sizes)sizes);
        world_run(bench->reader, job);
        assert_true(world_job_is_right(job));
        world_job_destroy(job);
    }
}

static void reader_works_at_depth_one(void **state) {
    struct bench *bench = *state;
    struct reader *reader = bench_reader(
        bench, (struct reader_options){.queue_depth = 1, .threads = 1, .jobs_max = 1});
    struct world_job *job = world_job_create(&bench->world, 100, WORLD_MIXED);
    world_run(reader, job);
    assert_true(world_job_is_right(job));
    world_job_destroy(job);
    reader_close(reader);
}

static void an_idle_reader_has_nothing_to_reap_and_is_not_readable(void **state) {
    struct bench *bench = *state;
    struct pollfd poll_fd = {.fd = bench->reader->event_fd, .events = POLLIN};
    assert_null(reader_reap(bench->reader));
    assert_int_equal(poll(&poll_fd, 1, 0), 0);
}

static void end_of_file_inside_an_extent_fails_at_its_offset(void **state) {
    struct bench *bench = *state;
    struct world_job *job = world_job_create(&bench->world, 4, WORLD_FULL);
    struct read_extent *extent = &job->read.extents[2];
    extent->fd = bench->world.fds[0];
    extent->offset = bench->world.sizes[0] - 1000;
    world_run(bench->reader, job);
    assert_int_equal(job->read.result, -ENODATA);
    assert_int_equal(job->read.failed_extent, 2);
    assert_int_equal(extent->offset + extent->done, bench->world.sizes[0]);
    world_job_destroy(job);
}

static void an_extent_behind_the_end_of_its_file_fails(void **state) {
    struct bench *bench = *state;
    struct world_job *job = world_job_create(&bench->world, 1, WORLD_TINY);
    job->read.extents[0].offset = 1ull << 40;
    world_run(bench->reader, job);
    assert_int_equal(job->read.result, -ENODATA);
    assert_int_equal(job->read.extents[0].offset, 1ull << 40);
    world_job_destroy(job);
}

static void a_bad_descriptor_is_ebadf_and_the_next_job_is_well(void **state) {
    struct bench *bench = *state;
    struct world_job *bad = world_job_create(&bench->world, 9, WORLD_TINY);
    struct world_job *good = world_job_create(&bench->world, 9, WORLD_TINY);
    bad->read.extents[4].fd = -1;
    world_run(bench->reader, bad);
    world_run(bench->reader, good);
    assert_int_equal(bad->read.result, -EBADF);
    assert_int_equal(bad->read.failed_extent, 4);
    assert_true(world_job_is_right(good));
    world_job_destroy(bad);
    world_job_destroy(good);
}

static void a_job_fails_with_its_lowest_failed_extent(void **state) {
    struct bench *bench = *state;
    for (int round = 0; round < 100; round++) {
        struct world_job *job = world_job_create(&bench->world, 60, WORLD_TINY);
        uint32_t lowest = world_below(&bench->world, 50);
        job->read.extents[lowest].offset = 1ull << 40;
        for (uint32_t e = lowest + 1; e < 60; e++) {
            job->read.extents[e].fd = -1;
        }
        world_run(bench->reader, job);
        assert_int_equal(job->read.result, -ENODATA);
        assert_int_equal(job->read.failed_extent, lowest);
        world_job_destroy(job);
    }
}

static void a_full_queue_refuses_until_something_is_reaped(void **state) {
    struct bench *bench = *state;
    struct reader *reader = bench_reader(
        bench, (struct reader_options){.queue_depth = 4, .threads = 2, .jobs_max = 2});
    struct world_job *jobs[3], *reaped[2];
    for (int i = 0; i < 3; i++) {
        jobs[i] = world_job_create(&bench->world, 3, WORLD_TINY);
    }
    assert_int_equal(reader_submit(reader, &jobs[0]->read), 0);
    assert_int_equal(reader_submit(reader, &jobs[1]->read), 0);
    assert_int_equal(reader_submit(reader, &jobs[2]->read), -ENOBUFS);
    assert_true(world_reap(reader, reaped, 2) > 0);
    assert_int_equal(reader_submit(reader, &jobs[2]->read), 0);
    reader_close(reader);
    for (int i = 0; i < 3; i++) {
        world_job_destroy(jobs[i]);
    }
}

/* Keeps the reader full while it polls, drains and reaps until NULL: every job comes back once. */
static void polling_and_reaping_until_null_never_loses_a_job(void **state) {
    enum { jobs_in_all = 3000, jobs_max = 16 };
    struct bench *bench = *state;
    struct world_job *idle[jobs_max], *reaped[jobs_max];
    uint32_t idle_count = jobs_max, submitted = 0, returned = 0;
    for (uint32_t i = 0; i < jobs_max; i++) {
        idle[i] = world_job_create(&bench->world, 1, WORLD_TINY);
    }
    while (returned < jobs_in_all) {
        uint32_t burst = 1 + world_below(&bench->world, jobs_max);
        while (burst-- > 0 && idle_count > 0 && submitted < jobs_in_all) {
            struct world_job *job = idle[--idle_count];
            world_job_destroy(job);
            job = world_job_create(&bench->world, 1 + world_below(&bench->world, 20), WORLD_TINY);
            assert_int_equal(reader_submit(bench->reader, &job->read), 0);
            submitted++;
        }
        uint32_t count = world_reap(bench->reader, reaped, jobs_max);
        for (uint32_t i = 0; i < count; i++) {
            assert_true(world_job_is_right(reaped[i]));
            idle[idle_count++] = reaped[i];
        }
        returned += count;
    }
    assert_int_equal(idle_count, jobs_max);
    for (uint32_t i = 0; i < jobs_max; i++) {
        world_job_destroy(idle[i]);
    }
}

static void after_close_nothing_writes_into_the_jobs_any_more(void **state) {
    enum { jobs_max = 16 };
    struct bench *bench = *state;
    for (int round = 0; round < 3; round++) {
        struct reader *reader = bench_reader(
            bench, (struct reader_options){.queue_depth = 32, .threads = 4, .jobs_max = jobs_max});
        struct world_job *jobs[jobs_max];
        for (uint32_t i = 0; i < jobs_max; i++) {
            jobs[i] = world_job_create(&bench->world, 8, i % 2 ? WORLD_FULL : WORLD_MIXED);
        }
        for (uint32_t i = 0; i < jobs_max; i++) {
            assert_int_equal(reader_submit(reader, &jobs[i]->read), 0);
        }
        reader_close(reader);
        for (uint32_t i = 0; i < jobs_max; i++) {
            memset(jobs[i]->memory, 0xAA, jobs[i]->memory_bytes);
            memset(jobs[i]->expected, 0xAA, jobs[i]->memory_bytes);
        }
        struct world_job *other = world_job_create(&bench->world, 20, WORLD_MIXED);
        world_run(bench->reader, other);
        world_job_destroy(other);
        for (uint32_t i = 0; i < jobs_max; i++) {
            assert_memory_equal(jobs[i]->memory, jobs[i]->expected, jobs[i]->memory_bytes);
            world_job_destroy(jobs[i]);
        }
    }
}

static void the_reader_of_an_open_queue_closes_without_a_job(void **state) {
    reader_close(bench_reader(
        *state, (struct reader_options){.queue_depth = 8, .threads = 8, .jobs_max = 1}));
    reader_close(NULL);
}

static void options_out_of_range_are_refused_by_name(void **state) {
    struct bench *bench = *state;
    static const struct {
        struct reader_options options;
        const char *name;
    } cases[] = {
        {{.queue_depth = 0, .threads = 1, .jobs_max = 1}, "queue depth 0"},
        {{.queue_depth = READER_QUEUE_DEPTH_MAX + 1, .threads = 1, .jobs_max = 1},
         "queue depth 4097"},
        {{.queue_depth = 1, .threads = 0, .jobs_max = 1}, "threads 0"},
        {{.queue_depth = 1, .threads = READER_THREADS_MAX + 1, .jobs_max = 1}, "threads 257"},
        {{.queue_depth = 1, .threads = 1, .jobs_max = 0}, "jobs 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct reader *reader = NULL;
        struct error error = {0};
        assert_int_equal(reader_open(bench->backend, &cases[i].options, &reader, NULL, &error),
                         -EINVAL);
        assert_non_null(strstr(error.text, cases[i].name));
        assert_null(reader);
    }
}

static void warm_threads_are_as_many_as_processors(void **state) {
    cpu_set_t all, one;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    assert_int_equal(reader_threads(true), 32);
    assert_int_equal(reader_threads(false), CPU_COUNT(&all) < 4 ? CPU_COUNT(&all) : 4);
    CPU_ZERO(&one);
    for (size_t cpu = 0; CPU_COUNT(&one) == 0; cpu++) {
        if (CPU_ISSET(cpu, &all)) {
            CPU_SET(cpu, &one);
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(reader_threads(false), 1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

static void the_largest_queue_depth_opens(void **state) {
    struct bench *bench = *state;
    struct reader *reader = bench_reader(
        bench, (struct reader_options){
                   .queue_depth = READER_QUEUE_DEPTH_MAX, .threads = 2, .jobs_max = 1});
    struct world_job *job = world_job_create(&bench->world, 6000, WORLD_TINY);
    world_run(reader, job);
    assert_true(world_job_is_right(job));
    world_job_destroy(job);
    reader_close(reader);
}

/* SIGTERM belongs to the thread that runs the loop. */
static void threads_of_the_reader_block_all_signals(void **state) {
    struct bench *bench = *state;
    struct world_job *job = world_job_create(&bench->world, 1, WORLD_TINY);
    world_run(bench->reader, job); /* so that one has begun */
    world_job_destroy(job);
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;
    int readers = 0;
    assert_non_null(tasks);
    while ((task = readdir(tasks)) != NULL) {
        char path[300], line[256], name[64] = "";
        unsigned long long blocked = 0;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = fopen(path, "r");
        while (status != NULL && fgets(line, sizeof line, status) != NULL) {
            (void)sscanf(line, "Name: %63s", name);
            (void)sscanf(line, "SigBlk: %llx", &blocked);
        }
        if (status != NULL) {
            fclose(status);
        }
        if (strncmp(name, "ballast-", 8) == 0) {
            readers++;
            assert_true(blocked & (1ull << (15 - 1)));
        }
    }
    closedir(tasks);
    assert_true(readers > 0);
}

struct closer {
    struct reader *reader;
    const char *memory;
    bool had_bytes; /* when close returned */
};

static void *close_and_look(void *context) {
    struct closer *closer = context;
    reader_close(closer->reader);
    closer->had_bytes = memcmp(closer->memory, "ballast", 8) == 0;
    return NULL;
}

/* An empty pipe is storage that takes its time; once the job behind it is back, it is being read.
 * The pause gives a close that does not wait the chance to show it; one that waits passes however
 * long it is. */
static void close_waits_for_a_read_in_flight(void **state) {
    struct bench *bench = *state;
    int pipe_fds[2];
    char memory[8] = "";
    struct iovec iovec = {memory, sizeof memory};
    struct read_extent extent = {.iovec_count = 1, .iovecs = &iovec};
    struct read_job job = {.extents = &extent, .extent_count = 1};
    struct closer closer = {
        bench_reader(bench, (struct reader_options){.queue_depth = 8, .threads = 1, .jobs_max = 2}),
        memory, false};
    struct world_job *behind = world_job_create(&bench->world, 1, WORLD_TINY), *reaped = NULL;
    pthread_t thread;
    assert_int_equal(pipe(pipe_fds), 0);
    extent.fd = pipe_fds[0];
    assert_int_equal(reader_submit(closer.reader, &job), 0);
    assert_int_equal(reader_submit(closer.reader, &behind->read), 0);
    assert_int_equal(world_reap(closer.reader, &reaped, 1), 1);
    assert_ptr_equal(reaped, behind);
    assert_int_equal(pthread_create(&thread, NULL, close_and_look, &closer), 0);
    poll(NULL, 0, 50);
    assert_int_equal(write(pipe_fds[1], "ballast", 8), 8);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(closer.had_bytes);
    world_job_destroy(behind);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

static void auto_takes_io_uring_where_it_is_to_be_had_and_says_nothing(void **state) {
    (void)state;
    struct reader *reader = NULL;
    struct error why = {.code = -1, .text = "left over"}, error = {0};
    struct reader_options options = {.queue_depth = 8, .threads = 2, .jobs_max = 4};
    assert_int_equal(reader_open(READER_AUTO, &options, &reader, &why, &error), 0);
    assert_string_equal(reader->backend, "io_uring");
    assert_int_equal(why.code, 0);
    assert_string_equal(why.text, "");
    reader_close(reader);
}

#define BOTH(X)                                                                                    \
    X(reader_says_which_backend_it_is)                                                             \
    X(reader_scatters_extents_of_every_size)                                                       \
    X(reader_works_at_depth_one)                                                                   \
    X(an_idle_reader_has_nothing_to_reap_and_is_not_readable)                                      \
    X(end_of_file_inside_an_extent_fails_at_its_offset)                                            \
    X(an_extent_behind_the_end_of_its_file_fails)                                                  \
    X(a_bad_descriptor_is_ebadf_and_the_next_job_is_well)                                          \
    X(a_job_fails_with_its_lowest_failed_extent)                                                   \
    X(a_full_queue_refuses_until_something_is_reaped)                                              \
    X(polling_and_reaping_until_null_never_loses_a_job)                                            \
    X(after_close_nothing_writes_into_the_jobs_any_more)                                           \
    X(the_reader_of_an_open_queue_closes_without_a_job)                                            \
    X(options_out_of_range_are_refused_by_name)                                                    \
    X(the_largest_queue_depth_opens)                                                               \
    X(threads_of_the_reader_block_all_signals)

int main(void) {
#define X(test) {#test " (pread)", test, bench_open_pread, bench_close, NULL},
    const struct CMUnitTest pread_tests[] = {
        BOTH(X) cmocka_unit_test(warm_threads_are_as_many_as_processors)};
#undef X
#define X(test) {#test " (io_uring)", test, bench_open_uring, bench_close, NULL},
    const struct CMUnitTest uring_tests[] = {
        BOTH(X) X(close_waits_for_a_read_in_flight)
            cmocka_unit_test(auto_takes_io_uring_where_it_is_to_be_had_and_says_nothing)};
#undef X
    int failed = cmocka_run_group_tests(pread_tests, NULL, NULL);
    struct reader *reader = NULL;
    struct error error = {0};
    if (reader_uring_open(&(struct reader_options){.queue_depth = 8, .threads = 1, .jobs_max = 1},
                          &reader, &error) < 0) {
        printf("io_uring skipped: %s\n", error.text);
        return failed ? failed : 77;
    }
    reader_close(reader);
    return failed + cmocka_run_group_tests(uring_tests, NULL, NULL);
}
