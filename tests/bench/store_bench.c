/* store_bench: what a durable step costs, against a bare write and fdatasync of the same bytes.
 *
 *     store_bench [FOLDER [STEPS [STATE_BYTES]]]
 *
 * Three ways take turns, so that all of them see the same disk: an append to a
 * preallocated file with fdatasync; a group of one step; a group of eight. The store writes back
 * between groups, as a daemon does when it is idle, and never in the timed part. A program to be
 * run by hand, not a test. */
#include "daemon/store.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define GROUP 8u

struct samples {
    uint64_t *ns;
    size_t count;
};

static uint64_t clock_ns(clockid_t clock) {
    struct timespec time;
    (void)clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void report(const char *way, struct samples *samples, unsigned steps, uint64_t raw_p50_ns) {
    qsort(samples->ns, samples->count, sizeof samples->ns[0], compare);
    uint64_t p50_ns = samples->ns[samples->count / 2];
    printf("%-22s p50 %7.3f ms  p99 %7.3f ms  %7.3f ms/step  x raw %.2f\n", way,
           (double)p50_ns / 1e6, (double)samples->ns[samples->count * 99 / 100] / 1e6,
           (double)p50_ns / 1e6 / steps, (double)p50_ns / (double)raw_p50_ns);
}

static void put_group(struct store *store, uint64_t first, unsigned steps, const uint8_t *state,
                      size_t state_bytes) {
    struct error error = {0};
    int code = store_begin(store, &error);
    for (uint64_t k = first; code == 0 && k < first + steps; k++) {
        struct store_step step = {.step = k, .state = state, .state_bytes = state_bytes};
        code = store_put_step(store, &step, &error);
    }
    if (code == 0) {
        code = store_put_committed(store, first, &error);
    }
    if (code == 0) {
        code = store_prune(store, first + steps < 1000 ? 0 : first + steps - 1000, &error);
    }
    if (code == 0) {
        code = store_commit(store, &error);
    }
    if (code < 0) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
}

struct bench {
    int fd;
    size_t rounds;
    size_t state_bytes;
    uint8_t *state;
    struct store *store;
    struct samples ways[3];
    uint64_t step;
    uint64_t cpu_ns; /* of the groups of one */
};

static void bench_open(struct bench *bench, const char *folder) {
    static const struct store_job job = {.plan_text = "bench = 1\n", .version = "bench"};
    char path[4096];
    struct error error = {0};
    (void)snprintf(path, sizeof path, "%s/store_bench.raw", folder);
    bench->fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert(bench->fd >= 0);
    int code = posix_fallocate(bench->fd, 0, (off_t)(bench->rounds * bench->state_bytes));
    bench->state = calloc(1, bench->state_bytes);
    assert(code == 0 && bench->state != NULL);
    for (size_t i = 0; i < 3; i++) {
        bench->ways[i] = (struct samples){calloc(bench->rounds, sizeof(uint64_t)), bench->rounds};
        assert(bench->ways[i].ns != NULL);
    }
    (void)snprintf(path, sizeof path, "%s/store_bench.state", folder);
    if (store_open(path, &job, &bench->store, &error) < 0) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
}

static void time_raw(struct bench *bench, size_t round) {
    uint64_t started = clock_ns(CLOCK_MONOTONIC);
    ssize_t written = pwrite(bench->fd, bench->state, bench->state_bytes,
                             (off_t)(round * bench->state_bytes));
    int synced = fdatasync(bench->fd);
    bench->ways[0].ns[round] = clock_ns(CLOCK_MONOTONIC) - started;
    assert(written == (ssize_t)bench->state_bytes && synced == 0);
}

static void time_group(struct bench *bench, size_t round, size_t way, unsigned steps) {
    uint64_t started = clock_ns(CLOCK_MONOTONIC);
    uint64_t cpu_started = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    put_group(bench->store, bench->step, steps, bench->state, bench->state_bytes);
    bench->cpu_ns += steps == 1 ? clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_started : 0;
    bench->ways[way].ns[round] = clock_ns(CLOCK_MONOTONIC) - started;
    bench->step += steps;
}

static void bench_run(struct bench *bench) {
    for (size_t round = 0; round < bench->rounds; round++) {
        struct error error = {0};
        memset(bench->state, (int)round, bench->state_bytes);
        time_raw(bench, round);
        time_group(bench, round, 1, 1);
        time_group(bench, round, 2, GROUP);
        if (store_checkpoint(bench->store, STORE_WAL_BYTES_MAX / 4, &error) < 0) {
            fprintf(stderr, "%s\n", error.text);
            exit(1);
        }
    }
}

int main(int argc, char **argv) {
    struct bench bench = {
        .rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : 300,
        .state_bytes = argc > 3 ? strtoul(argv[3], NULL, 10) : 8192,
    };
    bench_open(&bench, argc > 1 ? argv[1] : ".");
    bench_run(&bench);
    printf("%zu rounds of %zu-byte states, SQLite %s\n", bench.rounds, bench.state_bytes,
           store_library_version());
    qsort(bench.ways[0].ns, bench.rounds, sizeof bench.ways[0].ns[0], compare);
    uint64_t raw_p50_ns = bench.ways[0].ns[bench.rounds / 2];
    report("write + fdatasync", &bench.ways[0], 1, raw_p50_ns);
    report("store, group of 1", &bench.ways[1], 1, raw_p50_ns);
    report("store, group of 8", &bench.ways[2], GROUP, raw_p50_ns);
    printf("CPU of a group of 1: %" PRIu64 " us\n", bench.cpu_ns / bench.rounds / 1000);
    store_close(bench.store);
    (void)close(bench.fd);
    return 0;
}
