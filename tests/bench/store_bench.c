/* store_bench: what a durable step costs, against a bare write and fdatasync of the same bytes.
 *
 *     store_bench [--json] [--smoke] [FOLDER [STEPS [STATE_BYTES]]]
 *
 * Three ways take turns, so that all of them see the same disk: an append to a preallocated file
 * with fdatasync; a group of one step; a group of eight. A group also stores what waits, 200
 * documents of which 8 are others than before, and half of eight ranks are ahead of the rest. The
 * store writes back between groups, as a daemon does when it is idle, and never in the timed part.
 */
#include "daemon/store.h"
#include "planner/state.h"
#include "tests/bench/figure.h"

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
#define RANKS_AHEAD  4u
#define STEPS_MAX    1000u

/* Of a group of one, over the bare write; of a step in a group of eight, over one alone. */
#define P50_LIMIT   2.0
#define P99_LIMIT   10.0
#define GROUP_LIMIT (1 / 3.5)

enum way { WAY_RAW, WAY_ONE, WAY_GROUP, WAYS };

static uint64_t clock_ns(clockid_t clock) {
    struct timespec time;
    (void)clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
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

static int put_ranks(struct store *store, uint64_t committed_step, struct error *error) {
    struct store_rank ranks[RANKS_AHEAD];
    for (uint32_t i = 0; i < RANKS_AHEAD; i++) {
        ranks[i] = (struct store_rank){.dp = i, .committed_step = committed_step + 1};
    }
    return store_put_ranks(store, ranks, RANKS_AHEAD, error);
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
        code = put_ranks(store, first, &error);
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
    double ms[WAYS][STEPS_MAX]; /* a step of a way */
    uint64_t step;
    double cpu_us[STEPS_MAX]; /* of the groups of one */
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
    bench->ms[WAY_RAW][round] = (double)(clock_ns(CLOCK_MONOTONIC) - started) / 1e6;
    assert(written == (ssize_t)bench->state_bytes && synced == 0);
}

static void time_group(struct bench *bench, size_t round, enum way way, unsigned steps) {
    move_waiting(bench->waiting, bench->groups++);
    uint64_t started = clock_ns(CLOCK_MONOTONIC);
    uint64_t cpu_started = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    put_group(bench->store, bench->step, steps, bench->state, bench->state_bytes, bench->waiting);
    if (way == WAY_ONE) {
        bench->cpu_us[round] = (double)(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_started) / 1e3;
    }
    bench->ms[way][round] = (double)(clock_ns(CLOCK_MONOTONIC) - started) / 1e6 / steps;
    bench->step += steps;
}

static void bench_run(struct bench *bench) {
    for (size_t round = 0; round < bench->rounds; round++) {
        struct error error = {0};
        memset(bench->state, (int)round, bench->state_bytes);
        time_raw(bench, round);
        time_group(bench, round, WAY_ONE, 1);
        time_group(bench, round, WAY_GROUP, GROUP);
        if (store_checkpoint(bench->store, STORE_WAL_BYTES_MAX / 4, &error) < 0) {
            fprintf(stderr, "%s\n", error.text);
            exit(1);
        }
    }
}

static void report(struct figures *figures, struct bench *bench) {
    uint32_t rounds = (uint32_t)bench->rounds;
    double one_ms[STEPS_MAX];
    memcpy(one_ms, bench->ms[WAY_ONE], sizeof one_ms);
    struct figure figure = {
        .subject = "group of 1",
        .name = "p50",
        .unit = "ms",
        .peer = "fdatasync",
        .rule = FIGURE_AT_MOST,
        .limit = P50_LIMIT,
    };
    figures_add_turns(figures, &figure, bench->ms[WAY_ONE], bench->ms[WAY_RAW], rounds);
    figure.name = "p99";
    figure.value = bench->ms[WAY_ONE][rounds * 99 / 100];
    figure.peer_value = bench->ms[WAY_RAW][rounds * 99 / 100];
    figure.ratio = figure.value / figure.peer_value;
    figure.limit = P99_LIMIT;
    figures_add(figures, &figure);
    figure = (struct figure){
        .subject = "group of 1",
        .name = "CPU",
        .unit = "us",
        .value = figure_median(bench->cpu_us, rounds),
    };
    figures_add(figures, &figure);
    figure = (struct figure){
        .subject = "step in a group of 8",
        .name = "p50",
        .unit = "ms",
        .peer = "group of 1",
        .rule = FIGURE_AT_MOST,
        .limit = GROUP_LIMIT,
    };
    figures_add_turns(figures, &figure, bench->ms[WAY_GROUP], one_ms, rounds);
}

int main(int argc, char **argv) {
    static struct bench bench;
    struct figures figures;
    figures_begin(&figures, "store", &argc, argv);
    bench.rounds = argc > 2 ? strtoul(argv[2], NULL, 10) : figures.smoke ? 8 : 300;
    bench.state_bytes = argc > 3 ? strtoul(argv[3], NULL, 10) : 8192;
    if (bench.rounds == 0 || bench.rounds > STEPS_MAX || bench.state_bytes == 0) {
        fprintf(stderr, "usage: store_bench [--json] [--smoke] [FOLDER [STEPS [STATE_BYTES]]]\n");
        return 2;
    }
    bench_open(&bench, argc > 1 ? argv[1] : ".");
    bench_run(&bench);
    report(&figures, &bench);
    store_close(bench.store);
    plan_state_destroy(bench.waiting);
    (void)close(bench.fd);
    return figures_end(&figures);
}
