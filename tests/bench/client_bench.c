/* client_bench: what libballast costs a rank, as the peer of python_bench.py: a line per batch with
 * its step, index, rows, CPU microseconds of the gather of three columns (the least of four), and
 * of all calls for it with a gather before those.
 *
 *   client_bench SOCKET CP STEPS BYTES    steps from 0; BYTES of a number in the columns, 4 or 8;
 *                                         nothing is committed */
#include "client/ballast.h"
#include "tests/bench/figure.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BENCH_TURNS 4 /* of the gather after the one that counts with all calls */

struct bench {
    struct ballast *client;
    void *columns[3];
    enum ballast_type type;
    size_t capacity;
};

static int bench_gather(struct bench *bench, const struct ballast_batch *batch) {
    for (int i = 0; i < 3; i++) {
        enum ballast_column column = (enum ballast_column)(BALLAST_TOKENS + i);
        if (ballast_gather(bench->client, batch, column, bench->type, bench->columns[i],
                           bench->capacity) < 0) {
            return -1;
        }
    }
    return 0;
}

static int bench_take(struct bench *bench, const struct ballast_batch *batch, double begin_us) {
    uint64_t step = batch->step, rows = batch->rows;
    uint32_t index = batch->index;
    double gather_us[BENCH_TURNS];
    if (bench_gather(bench, batch) < 0) {
        return -1;
    }
    double whole_us = figure_cpu_us() - begin_us;
    for (int turn = 0; turn < BENCH_TURNS; turn++) {
        double turn_us = figure_cpu_us();
        if (bench_gather(bench, batch) < 0) {
            return -1;
        }
        gather_us[turn] = figure_cpu_us() - turn_us;
    }
    double release_us = figure_cpu_us();
    if (ballast_release(bench->client, batch) < 0) {
        return -1;
    }
    printf("%" PRIu64 " %u %" PRIu64 " %.3f %.3f\n", step, index, rows,
           figure_least(gather_us, BENCH_TURNS), whole_us + figure_cpu_us() - release_us);
    return 0;
}

static int bench_run(struct bench *bench, uint64_t steps) {
    for (;;) {
        const struct ballast_batch *batch = NULL;
        double begin_us = figure_cpu_us();
        int event = ballast_next(bench->client, -1, &batch);
        if (event == BALLAST_BATCH) {
            event = bench_take(bench, batch, begin_us);
        } else if (event == BALLAST_END_OF_STEP && ballast_step(bench->client) + 1 == steps) {
            return 0;
        } else if (event == BALLAST_END_OF_DATA) {
            return 0;
        }
        if (event < 0) {
            return -1;
        }
    }
}

static int bench_open(struct bench *bench, const char *socket, uint32_t cp) {
    struct ballast_options options = BALLAST_OPTIONS_INIT;
    struct ballast_job job;
    options.socket = socket;
    options.cp = cp;
    options.from_step = 0;
    if (ballast_open(&options, &bench->client) < 0 || ballast_job(bench->client, &job) < 0) {
        return -1;
    }
    bench->capacity = job.tokens_max;
    for (int i = 0; i < 3; i++) {
        bench->columns[i] = calloc(bench->capacity, (size_t)bench->type);
        if (bench->columns[i] == NULL) {
            return -1;
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    struct bench bench = {0};
    if (argc != 5 || (strcmp(argv[4], "4") != 0 && strcmp(argv[4], "8") != 0)) {
        fprintf(stderr, "usage: client_bench SOCKET CP STEPS 4|8\n");
        return 2;
    }
    bench.type = argv[4][0] == '4' ? BALLAST_INT32 : BALLAST_INT64;
    int code = bench_open(&bench, argv[1], (uint32_t)strtoul(argv[2], NULL, 10));
    if (code == 0) {
        code = bench_run(&bench, strtoull(argv[3], NULL, 10));
    }
    if (code < 0) {
        fprintf(stderr, "client_bench: %s\n", ballast_error(bench.client));
    }
    ballast_close(bench.client);
    for (int i = 0; i < 3; i++) {
        free(bench.columns[i]);
    }
    return code < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
