/* handover_bench: what it takes to hand a micro-batch to eight ranks, and how long they wait.
 *
 *     handover_bench [--json] [--smoke]
 *
 * A real daemon and eight ranks of one context-parallel group in processes of their own, more of
 * them than this machine may have cores. With the usual credits a batch lies in the socket before
 * its rank asks: what ballast_next takes then is the hand-over that a trainer sees. With one credit
 * it is a round trip, from the release of a micro-batch until the next, which is in the slab. The
 * peer is the least that a round trip can be, 16 bytes over a socket and 64 back; each rank makes
 * one in the middle of its thinking, so both meet the same scheduler, the same readers and the same
 * other work. Then ranks over many steps: how long they wait, and what the daemon costs a node. The
 * tokens are read by pool threads here, so that the loop's CPU is that of the hand-over. */
#include "client/ballast.h"
#include "tests/bench/figure.h"
#include "tests/bench/live.h"

#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS          8u
#define TURNS          7u
#define SAMPLES_MAX    65536u
#define SLOW_S         300 /* after which the bench is given up */
#define LONG_MEDIAN    32768u
#define SHORT_MEDIAN   1024u
#define LONGEST        1048576u
#define LARGE_WINDOW   8388608u /* tokens: 16 MB */
#define LOOP_S_PER_GB  0.02
#define NEXT_P50_US    60.0
#define NEXT_P99_US    2000.0
#define ROUND_RATIO    3.0 /* of the slowest in a hundred, which are the scheduler's */
#define WAIT_P99_US    1000.0
#define NODE_STEP_S    3.0
#define NODE_STEPS     10
#define STEADY_STEPS   2000
#define NODE_SHARE_MAX 0.02

/* What the processes share. */
struct shared {
    pthread_barrier_t barrier; /* the ranks and the parent */
    pthread_barrier_t step;    /* the ranks: they train together, so none runs away */
    struct samples {
        uint64_t count[RANKS];
        float us[RANKS][SAMPLES_MAX];
    } ours, peer;
};

/* What of a batch is noted. */
enum noted { NOTED_WAIT, NOTED_NEXT, NOTED_ROUND };

struct shape {
    uint32_t batches; /* of a turn */
    uint32_t credits;
    uint32_t think_us; /* for each batch */
    uint32_t pause_us; /* after each step */
    uint32_t cp;       /* ranks of a replica */
    enum noted noted;  /* but for waits, beside the peer */
};

struct bench {
    struct shared *shared;
    struct live live;
    struct shape shape;
    uint32_t turns;
    int peers[RANKS][2]; /* sockets of the prototype */
    pid_t ranks[RANKS];
    pid_t prototype;
};

static double now_us(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void think(uint32_t us) {
    const struct timespec pause = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000l};
    if (us > 0) {
        (void)nanosleep(&pause, NULL);
    }
}

static void meet(struct bench *bench) {
    (void)pthread_barrier_wait(&bench->shared->barrier);
}

static void note(struct samples *samples, uint32_t rank, double us) {
    uint64_t at = samples->count[rank]++;
    assert(at < SAMPLES_MAX);
    samples->us[rank][at] = (float)us;
}

/* Ranks */

static void rank_must(struct ballast *client, int code) {
    if (code < 0) {
        (void)fprintf(stderr, "%s\n", ballast_error(client));
        _exit(EXIT_FAILURE);
    }
}

static struct ballast *rank_open(const struct bench *bench, uint32_t rank) {
    struct ballast_options options = BALLAST_OPTIONS_INIT;
    struct ballast *client;
    options.socket = bench->live.socket;
    options.dp = rank / bench->shape.cp;
    options.cp = rank % bench->shape.cp;
    options.credits = bench->shape.credits;
    int code = ballast_open(&options, &client);
    rank_must(client, code);
    return client;
}

static void rank_ask_peer(struct bench *bench, uint32_t rank) {
    char message[64] = {0};
    double begin_us = now_us();
    ssize_t sent = write(bench->peers[rank][0], message, 16);
    ssize_t got = read(bench->peers[rank][0], message, sizeof message);
    assert(sent == 16 && got == (ssize_t)sizeof message);
    note(&bench->shared->peer, rank, now_us() - begin_us);
}

static void rank_think(struct bench *bench, uint32_t rank) {
    if (bench->shape.noted == NOTED_WAIT) {
        think(bench->shape.think_us);
        return;
    }
    think(bench->shape.think_us / 2);
    rank_ask_peer(bench, rank);
    think(bench->shape.think_us / 2);
}

/* The first batch of a step makes no round: what it comes after is a commit. */
static void rank_turn(struct bench *bench, uint32_t rank, struct ballast *client) {
    const struct ballast_batch *batch;
    struct samples *ours = &bench->shared->ours;
    double released_us = 0;
    for (uint32_t taken = 0; taken < bench->shape.batches;) {
        double begin_us = now_us();
        int event = ballast_next(client, -1, &batch);
        rank_must(client, event);
        if (event == BALLAST_END_OF_STEP) {
            rank_must(client, ballast_commit(client, ballast_step(client)));
            (void)pthread_barrier_wait(&bench->shared->step);
            think(bench->shape.pause_us);
            released_us = 0;
            continue;
        }
        double now = now_us();
        if (bench->shape.noted == NOTED_WAIT) {
            note(ours, rank, (double)batch->waited_us);
        } else if (released_us > 0) {
            note(ours, rank, now - (bench->shape.noted == NOTED_NEXT ? begin_us : released_us));
        }
        taken++;
        rank_think(bench, rank);
        released_us = now_us();
        rank_must(client, ballast_release(client, batch));
    }
}

static void rank_run(struct bench *bench, uint32_t rank) {
    struct ballast *client = rank_open(bench, rank);
    for (uint32_t turn = 0; turn < bench->turns; turn++) {
        meet(bench);
        rank_turn(bench, rank, client);
        meet(bench);
    }
    ballast_close(client);
    _exit(EXIT_SUCCESS);
}

/* Answers each rank's 16 bytes with 64. */
static void prototype_run(struct bench *bench) {
    struct pollfd fds[RANKS];
    char message[64] = {0};
    for (uint32_t i = 0; i < RANKS; i++) {
        fds[i] = (struct pollfd){.fd = bench->peers[i][1], .events = POLLIN};
    }
    while (poll(fds, RANKS, -1) > 0) {
        for (uint32_t i = 0; i < RANKS; i++) {
            if (fds[i].revents != 0 && (read(fds[i].fd, message, sizeof message) <= 0 ||
                                        write(fds[i].fd, message, sizeof message) <= 0)) {
                _exit(EXIT_SUCCESS);
            }
        }
    }
    _exit(EXIT_FAILURE);
}

/* The parent */

static pid_t bench_fork(void (*run)(struct bench *bench, uint32_t rank), struct bench *bench,
                        uint32_t rank) {
    pid_t pid = fork();
    if (pid == 0) {
        run(bench, rank);
    }
    return pid;
}

static void prototype_start(struct bench *bench, uint32_t rank) {
    (void)rank;
    prototype_run(bench);
}

static void bench_begin(struct bench *bench, const struct shape *shape, uint32_t turns) {
    pthread_barrierattr_t attributes;
    (void)pthread_barrierattr_init(&attributes);
    (void)pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    (void)pthread_barrier_init(&bench->shared->barrier, &attributes, RANKS + 1);
    (void)pthread_barrier_init(&bench->shared->step, &attributes, RANKS);
    bench->shape = *shape;
    bench->turns = turns;
    for (uint32_t i = 0; i < RANKS; i++) {
        int rc = socketpair(AF_UNIX, SOCK_STREAM, 0, bench->peers[i]);
        assert(rc == 0);
    }
    bench->prototype = bench_fork(prototype_start, bench, 0);
    for (uint32_t i = 0; i < RANKS; i++) {
        bench->ranks[i] = bench_fork(rank_run, bench, i);
    }
}

static void bench_end(struct bench *bench) {
    for (uint32_t i = 0; i < RANKS; i++) {
        int status = 0;
        (void)waitpid(bench->ranks[i], &status, 0);
        assert(status == 0);
        (void)close(bench->peers[i][0]);
        (void)close(bench->peers[i][1]);
    }
    (void)kill(bench->prototype, SIGKILL);
    (void)waitpid(bench->prototype, NULL, 0);
}

/* Of all ranks' samples, sorted, the one that `percent` do not exceed. */
static int compare_floats(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

struct quantiles {
    double p50_us, p99_us;
};

static struct quantiles samples_judge(const struct samples *samples) {
    static float all[RANKS * SAMPLES_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < RANKS; i++) {
        memcpy(all + count, samples->us[i], samples->count[i] * sizeof *all);
        count += (uint32_t)samples->count[i];
    }
    qsort(all, count, sizeof *all, compare_floats);
    return count == 0 ? (struct quantiles){0}
                      : (struct quantiles){.p50_us = (double)all[count / 2],
                                           .p99_us = (double)all[(count - 1) * 99ull / 100]};
}

struct outcome {
    struct quantiles ours, peer;
    double loop_s, daemon_s; /* CPU of the daemon */
    double wall_s;
};

static struct outcome bench_turn(struct bench *bench) {
    struct outcome outcome;
    memset(bench->shared->ours.count, 0, sizeof bench->shared->ours.count);
    memset(bench->shared->peer.count, 0, sizeof bench->shared->peer.count);
    uint64_t loop_ns = live_loop_cpu_ns(&bench->live), cpu_ns = live_cpu_ns(&bench->live);
    double begin_us = now_us();
    meet(bench);
    meet(bench);
    outcome.wall_s = (now_us() - begin_us) / 1e6;
    outcome.loop_s = (double)(live_loop_cpu_ns(&bench->live) - loop_ns) / 1e9;
    outcome.daemon_s = (double)(live_cpu_ns(&bench->live) - cpu_ns) / 1e9;
    outcome.ours = samples_judge(&bench->shared->ours);
    outcome.peer = samples_judge(&bench->shared->peer);
    return outcome;
}

static const char *const corpus_config = "[model]\ncost = L2/24576\n[reader]\nbackend = pread\n";

static void bench_start(struct bench *bench, const char *plan) {
    char config[1024];
    (void)snprintf(config, sizeof config, "%s%s", corpus_config, plan);
    live_start(&bench->live, config);
}

/* The turns of one shape, as figures: ours, and where a round trip is noted, beside the peer. */
static void bench_turns(struct figures *figures, struct bench *bench, const struct shape *shape,
                        const char *subject, bool judged) {
    uint32_t turns = figures->smoke ? 1 : TURNS;
    double p50_us[TURNS], p99_us[TURNS], peer_p50_us[TURNS], peer_p99_us[TURNS], loop[TURNS];
    double gigabytes = 2.0 * LARGE_WINDOW * shape->batches / 1e9;
    bool round = shape->noted == NOTED_ROUND;
    enum figure_rule rule = judged ? FIGURE_AT_MOST : FIGURE_REPORTED;
    bench_begin(bench, shape, turns);
    for (uint32_t turn = 0; turn < turns; turn++) {
        struct outcome outcome = bench_turn(bench);
        p50_us[turn] = outcome.ours.p50_us, p99_us[turn] = outcome.ours.p99_us;
        peer_p50_us[turn] = outcome.peer.p50_us, peer_p99_us[turn] = outcome.peer.p99_us;
        loop[turn] = outcome.loop_s / gigabytes;
    }
    bench_end(bench);
    struct figure figure = {.subject = subject, .unit = "us", .rule = rule, .peer = "socket"};
    if (round) {
        figure.rule = FIGURE_REPORTED;
        figure.name = "round trip p50";
        figures_add_turns(figures, &figure, p50_us, peer_p50_us, turns);
        figure.rule = rule, figure.limit = ROUND_RATIO;
        figure.name = "round trip p99";
        figures_add_turns(figures, &figure, p99_us, peer_p99_us, turns);
    } else {
        figure.peer = NULL;
        figure.name = "hand-over p50";
        figure.value = figure_median(p50_us, turns), figure.limit = NEXT_P50_US;
        figures_add(figures, &figure);
        figure.name = "hand-over p99";
        figure.value = figure_median(p99_us, turns), figure.limit = NEXT_P99_US;
        figures_add(figures, &figure);
    }
    figures_add(figures, &(struct figure){.subject = subject,
                                          .name = "loop's CPU",
                                          .unit = "s/GB",
                                          .value = figure_median(loop, turns),
                                          .rule = rule,
                                          .limit = LOOP_S_PER_GB});
}

/* A micro-batch of 16 MB for all ranks, of documents about so long; the more there are, the more
 * there is to say of them. Judged for the long ones that such windows are for. */
static void bench_handover(struct figures *figures, struct bench *bench, uint32_t median) {
    bool judged = median == LONG_MEDIAN;
    const char *documents = judged ? "long documents" : "short documents";
    char plan[256], subject[64];
    struct shape shape = {.batches = figures->smoke ? 4 : 64, .think_us = 20000, .cp = RANKS};
    (void)snprintf(plan, sizeof plan,
                   "[plan]\nwindow = %u\nmicro_batches = 16\ntokens_max = 1w\n[parallel]\ncp = 8\n"
                   "[daemon]\nahead_steps = 1\n[slab]\nslots = 20\n",
                   figures->smoke ? 65536 : LARGE_WINDOW);
    live_write_corpus(&bench->live, figures->smoke ? 1u << 20 : 1u << 27, median, LONGEST);
    bench_start(bench, plan);
    (void)snprintf(subject, sizeof subject, "16 MB, %s", documents);
    shape.noted = NOTED_NEXT, shape.credits = 4;
    bench_turns(figures, bench, &shape, subject, judged);
    (void)snprintf(subject, sizeof subject, "16 MB, %s, 1 credit", documents);
    shape.noted = NOTED_ROUND, shape.credits = 1;
    bench_turns(figures, bench, &shape, subject, judged);
    live_stop(&bench->live);
}

/* Ranks that think 20 ms a step, as many steps as a figure of one in a hundred wants. */
static void bench_steady(struct figures *figures, struct bench *bench) {
    const struct shape shape = {.batches = figures->smoke ? 4 : STEADY_STEPS,
                                .credits = 4,
                                .think_us = 20000,
                                .cp = RANKS / 2};
    bench_start(bench, "[plan]\nwindow = 65536\nmicro_batches = 2\n[parallel]\ndp = 2\ncp = 4\n");
    bench_begin(bench, &shape, 1);
    struct outcome outcome = bench_turn(bench);
    bench_end(bench);
    live_stop(&bench->live);
    struct figure figure = {.subject = "thinking 20 ms a step", .unit = "us"};
    figure.name = "wait p50";
    figure.value = outcome.ours.p50_us;
    figures_add(figures, &figure);
    figure.name = "wait p99";
    figure.value = outcome.ours.p99_us;
    figure.rule = FIGURE_AT_MOST;
    figure.limit = WAIT_P99_US;
    figures_add(figures, &figure);
}

/* Steps of 8 M tokens in 64 micro-batches, as fast as they go but for a pause: the CPU of one is
 * what a step every 3 s takes of a core. */
static void bench_node(struct figures *figures, struct bench *bench) {
    const struct shape shape = {.batches = 32 * (figures->smoke ? 1 : NODE_STEPS),
                                .credits = 4,
                                .pause_us = figures->smoke ? 0 : 300000,
                                .cp = RANKS / 2};
    bench_start(bench, "[plan]\nwindow = 131072\nmicro_batches = 64\n[parallel]\ndp = 2\ncp = 4\n");
    bench_begin(bench, &shape, 1);
    struct outcome outcome = bench_turn(bench);
    bench_end(bench);
    live_stop(&bench->live);
    double step_s = outcome.daemon_s / (figures->smoke ? 1 : NODE_STEPS);
    figures_add(figures, &(struct figure){.subject = "8 ranks, 8 M tokens in 3 s",
                                          .name = "daemon's CPU",
                                          .unit = "of a core",
                                          .value = step_s / NODE_STEP_S,
                                          .rule = FIGURE_AT_MOST,
                                          .limit = NODE_SHARE_MAX});
}

int main(int argc, char **argv) {
    struct figures figures;
    static struct bench bench;
    figures_begin(&figures, "handover", &argc, argv);
    (void)alarm(SLOW_S);
    bench.shared = mmap(NULL, sizeof *bench.shared, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert(bench.shared != MAP_FAILED);
    live_open(&bench.live);

    bench_handover(&figures, &bench, LONG_MEDIAN);
    bench_handover(&figures, &bench, SHORT_MEDIAN);
    bench_steady(&figures, &bench);
    bench_node(&figures, &bench);
    live_close(&bench.live);
    return figures_end(&figures);
}
