/* fetch_bench: a micro-batch fetched over the Unix socket, from a daemon's slot to where gather
 * reads it, beside the same bytes written to a socket in the same pieces by one process and read by
 * another, which is the most that any protocol over it can do. */
#include "client/ballast.h"
#include "tests/bench/figure.h"
#include "tests/unit/corpus_files.h"

#include <errno.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BENCH_TURNS       15u
#define BENCH_DOCUMENTS   8u
#define BENCH_PIECE_BYTES (256u << 10) /* as the daemon cuts them */
#define BENCH_THINK_MS    60           /* in which the daemon reads ahead */
#define RATIO_LIMIT       0.5          /* of the raw socket's speed */
/* Setting up is not what is measured, but must have worked. */
#define BENCH_MUST(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (void)fprintf(stderr, "fetch_bench: line %d: %s\n", __LINE__, strerror(errno));        \
            exit(EXIT_FAILURE);                                                                    \
        }                                                                                          \
    } while (0)

struct bench {
    char folder[64];
    char socket[96];
    size_t bytes; /* of one micro-batch */
    pid_t daemon;
    pid_t writer;
    int raw; /* the socket that `writer` answers on */
    uint8_t *to;
};

static double bench_now_us(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void bench_think(void) {
    const struct timespec time = {.tv_nsec = BENCH_THINK_MS * 1000000L};
    (void)nanosleep(&time, NULL);
}

/* The ceiling: a byte asks, the whole batch is the answer. */

static void raw_write(int fd, const uint8_t *from, size_t bytes) {
    char asked;
    while (read(fd, &asked, 1) == 1) {
        for (size_t done = 0; done < bytes;) {
            size_t left = bytes - done;
            ssize_t sent = send(fd, from + done,
                                left < BENCH_PIECE_BYTES ? left : BENCH_PIECE_BYTES, MSG_NOSIGNAL);
            BENCH_MUST(sent > 0);
            done += (size_t)sent;
        }
    }
    _exit(0);
}

static void raw_start(struct bench *bench) {
    int pair[2];
    uint8_t *from = malloc(bench->bytes);
    BENCH_MUST(from != NULL && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    memset(from, 1, bench->bytes);
    bench->writer = fork();
    BENCH_MUST(bench->writer >= 0);
    if (bench->writer == 0) {
        (void)close(pair[0]);
        raw_write(pair[1], from, bench->bytes);
    }
    (void)close(pair[1]);
    free(from);
    bench->raw = pair[0];
}

static double raw_turn(const struct bench *bench) {
    double begin_us = bench_now_us();
    BENCH_MUST(write(bench->raw, "", 1) == 1);
    for (size_t done = 0; done < bench->bytes;) {
        ssize_t got = recv(bench->raw, bench->to + done, bench->bytes - done, 0);
        BENCH_MUST(got > 0);
        done += (size_t)got;
    }
    return bench_now_us() - begin_us;
}

/* The daemon: one rank, one micro-batch of all documents a step, over and over. */

static void daemon_start(struct bench *bench, const char *program, uint32_t window) {
    char path[128], text[1024];
    uint32_t lengths[BENCH_DOCUMENTS];
    for (uint32_t i = 0; i < BENCH_DOCUMENTS; i++) {
        lengths[i] = window / BENCH_DOCUMENTS;
    }
    const struct image_options options = {
        .dtype = 8, .documents = BENCH_DOCUMENTS, .lengths = lengths};
    (void)snprintf(path, sizeof path, "%s/d", bench->folder);
    dataset_write(path, &options);
    int bytes = snprintf(text, sizeof text,
                         "[dataset d]\npath = d\n[corpus]\nshuffle = none\n"
                         "[plan]\npolicy = plain\nwindow = %u\ntokens_max = %u\n"
                         "micro_batches = 1\n[limits]\ncredits = 2\n"
                         "[daemon]\nsocket = b.sock\nstate_dir = state\nlog_level = error\n",
                         window, window);
    (void)snprintf(path, sizeof path, "%s/ballast.conf", bench->folder);
    file_write(path, text, (size_t)bytes);
    bench->daemon = fork();
    BENCH_MUST(bench->daemon >= 0);
    if (bench->daemon == 0) {
        (void)execl(program, program, "--config", path, (char *)NULL);
        _exit(127);
    }
}

static double fetch_turn(struct ballast *client) {
    const struct ballast_batch *batch = NULL;
    bench_think();
    double begin_us = bench_now_us();
    int event = ballast_next(client, -1, &batch);
    double took_us = bench_now_us() - begin_us;
    if (event == BALLAST_BATCH) {
        event = ballast_release(client, batch);
    }
    if (event == 0) {
        event = ballast_next(client, -1, &batch);
    }
    if (event == BALLAST_END_OF_STEP) {
        event = ballast_commit(client, ballast_step(client));
    }
    if (event < 0) {
        (void)fprintf(stderr, "fetch_bench: %s\n", ballast_error(client));
        exit(EXIT_FAILURE);
    }
    return took_us;
}

static void bench_run(struct bench *bench, struct figures *figures) {
    double fetched[BENCH_TURNS], raw[BENCH_TURNS];
    uint32_t turns = figures->smoke ? 2 : BENCH_TURNS;
    struct ballast_options options = BALLAST_OPTIONS_INIT;
    struct ballast *client = NULL;
    char subject[64];
    options.socket = bench->socket;
    options.transport = BALLAST_TRANSPORT_FETCH;
    options.credits = 1;
    if (ballast_open(&options, &client) < 0) {
        (void)fprintf(stderr, "fetch_bench: %s\n", ballast_error(client));
        exit(EXIT_FAILURE);
    }
    (void)fetch_turn(client); /* memory is touched for the first time */
    (void)raw_turn(bench);
    for (uint32_t turn = 0; turn < turns; turn++) {
        fetched[turn] = (double)bench->bytes / 1e3 / fetch_turn(client);
        raw[turn] = (double)bench->bytes / 1e3 / raw_turn(bench);
    }
    ballast_close(client);
    (void)snprintf(subject, sizeof subject, "batch of %zu MiB, Unix", bench->bytes >> 20);
    const struct figure figure = {.subject = subject,
                                  .name = "fetched",
                                  .unit = "GB/s",
                                  .peer = "raw socket",
                                  .rule = FIGURE_AT_LEAST,
                                  .limit = RATIO_LIMIT};
    figures_add_turns(figures, &figure, fetched, raw, turns);
}

int main(int argc, char **argv) {
    struct bench bench = {.raw = -1};
    struct figures figures;
    char program[512];
    figures_begin(&figures, "fetch", &argc, argv);
    uint32_t window = figures.smoke ? 1u << 20 : 1u << 23;
    (void)snprintf(program, sizeof program, "%s/ballastd", dirname(argv[0]));
    test_folder_make(bench.folder);
    (void)snprintf(bench.socket, sizeof bench.socket, "%s/b.sock", bench.folder);
    bench.bytes = (size_t)window * 2;
    bench.to = malloc(bench.bytes);
    BENCH_MUST(bench.to != NULL);
    raw_start(&bench);
    daemon_start(&bench, program, window);
    bench_run(&bench, &figures);
    (void)close(bench.raw);
    (void)kill(bench.daemon, SIGKILL);
    (void)waitpid(bench.daemon, NULL, 0);
    (void)waitpid(bench.writer, NULL, 0);
    test_folder_remove(bench.folder);
    free(bench.to);
    return figures_end(&figures);
}
