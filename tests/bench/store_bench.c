/* store_bench: what a durable step costs, against a bare write and fdatasync of the same bytes.
 *
 *     store_bench [FOLDER [STEPS [STATE_BYTES]]]
 *
 * Three ways take turns, so that all of them see the same disk: an append to a preallocated file
 * with fdatasync; a group of one step; a group of eight. A group also stores what waits, 200
 * documents of which 8 are others than before. The store writes back between groups, as a daemon
 * does when it is idle, and never in the timed part. Judged with 100 steps or more: the median of a
 * group of one is at most twice the bare write's, its 99th percentile ten times, and a step in a
 * group of eight costs at most 1/3.5 of one alone. */
#include "daemon/store.h"
#include "planner/state.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define GROUP        8u
#define WAITING      200u
#define WAITING_MOVE 8u
#define STEPS_JUDGED 100u

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

static double percentile_ms(const struct samples *samples, unsigned percent) {
    return (double)samples->ns[samples->count * percent / 100] / 1e6;
}

/* `raw`, sorted, is what it is compared with. */
static void report(const char *way, struct samples *samples, unsigned steps,
                   const struct samples *raw) {
    qsort(samples->ns, samples->count, sizeof samples->ns[0], compare);
    double p50_ms = percentile_ms(samples, 50);
    double p99_ms = percentile_ms(samples, 99);
    printf("%-22s p50 %7.3f ms  p99 %7.3f ms  %7.3f ms/step  x raw %.2f %.2f\n", way, p50_ms,
           p99_ms, p50_ms / steps, p50_ms / percentile_ms(raw, 50),
           p99_ms / percentile_ms(raw, 99));
}

/* What waits as group follows group. */
static void move_waiting(struct plan_state *state, uint64_t group) {
    state->waiting_count = WAITING;
    for (uint32_t i = 0; i < WAITING; i++) {
        uint64_t index = group * WAITING_MOVE + i;
        state->waiting[i].document = (struct document){
            .document = index * 7919 % 100000, .length = 4096, .stream_index = index};
    }
}

static void put_group(struct store *store, uint64_t first, unsigned steps, const uint8_t *state,
                      size_t state_bytes, const struct plan_state *waiting) {
    struct error error = {0};
    int code = store_begin(store, &error);
    for (uint64_t k = first; code == 0 && k < first + steps; k++) {
        struct store_step step = {.step = k, .state = state, .state_bytes = state_bytes};
        code = store_put_step(store, &step, &error);
    }
    if (code == 0) {
        code = store_put_rows(store, waiting, &error);
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
    struct plan_state *waiting;
    uint64_t groups;
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
    bench->waiting = plan_state_create(1, WAITING);
    assert(code == 0 && bench->state != NULL && bench->waiting != NULL);
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
    move_waiting(bench->waiting, bench->groups++);
    uint64_t started = clock_ns(CLOCK_MONOTONIC);
    uint64_t cpu_started = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    put_group(bench->store, bench->step, steps, bench->state, bench->state_bytes, bench->waiting);
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

static bool within_limits(const struct samples ways[3]) {
    double raw_ms = percentile_ms(&ways[0], 50);
    double one_ms = percentile_ms(&ways[1], 50);
    return one_ms <= 2 * raw_ms &&
           percentile_ms(&ways[1], 99) <= 10 * percentile_ms(&ways[0], 99) &&
           percentile_ms(&ways[2], 50) * 3.5 <= one_ms * GROUP;
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
    report("write + fdatasync", &bench.ways[0], 1, &bench.ways[0]);
    report("store, group of 1", &bench.ways[1], 1, &bench.ways[0]);
    report("store, group of 8", &bench.ways[2], GROUP, &bench.ways[0]);
    printf("CPU of a group of 1: %" PRIu64 " us\n", bench.cpu_ns / bench.rounds / 1000);
    store_close(bench.store);
    plan_state_destroy(bench.waiting);
    (void)close(bench.fd);
    return bench.rounds < STEPS_JUDGED || within_limits(bench.ways) ? 0 : 1;
}
