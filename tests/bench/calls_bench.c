/* calls_bench: small calls to one loop, the daemon's, against the least that answers them.
 *
 *     calls_bench [--json] [--smoke]
 *
 * Eight connections with one Ping each on its way. The peer is a loop of libuv that reads frames,
 * unpacks the request and answers with an empty response: what framing and protobuf take by
 * themselves. Calls per CPU second of the loop say what one loop can do, whatever else runs. */
#include "proto/frame.h"
#include "tests/bench/figure.h"
#include "tests/bench/live.h"
#include "ttrpc.pb-c.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#define CONNECTIONS  8u
#define TURNS        7u
#define ROUNDS       4000u
#define CALLS_LEAST  40000.0
#define ECHO_BACKLOG 16
#define BUFFER_BYTES 4096u

/* The peer */

struct echo {
    uv_pipe_t pipe;
    uv_write_t write;
    struct frame_reader reader;
    uint8_t buffer[BUFFER_BYTES];
    uint8_t out[BUFFER_BYTES];
    size_t out_bytes;
};

static void echo_allocate(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer) {
    struct echo *echo = handle->data;
    size_t bytes;
    (void)suggested;
    uint8_t *space = frame_reader_space(&echo->reader, &bytes);
    *buffer = uv_buf_init((char *)space, (unsigned)bytes);
}

static void echo_answer(struct echo *echo, const struct frame_header *header, const uint8_t *data) {
    Ttrpc__Request *request = ttrpc__request__unpack(NULL, header->length, data);
    Ttrpc__Response response = TTRPC__RESPONSE__INIT;
    assert(request != NULL);
    ttrpc__request__free_unpacked(request, NULL);
    uint8_t *at = echo->out + echo->out_bytes;
    size_t bytes = ttrpc__response__pack(&response, at + FRAME_HEADER_BYTES);
    const struct frame_header answer = {
        .length = (uint32_t)bytes, .stream = header->stream, .type = FRAME_RESPONSE};
    frame_header_encode(&answer, at);
    echo->out_bytes += FRAME_HEADER_BYTES + bytes;
}

static void echo_read(uv_stream_t *stream, ssize_t bytes, const uv_buf_t *buffer) {
    struct echo *echo = stream->data;
    struct frame_header header;
    const uint8_t *data;
    (void)buffer;
    if (bytes < 0) {
        uv_close((uv_handle_t *)stream, NULL);
        return;
    }
    frame_reader_fill(&echo->reader, (size_t)bytes);
    while (frame_reader_next(&echo->reader, &header, &data, NULL) == 1) {
        echo_answer(echo, &header, data);
    }
    uv_buf_t out = uv_buf_init((char *)echo->out, (unsigned)echo->out_bytes);
    int written = echo->out_bytes > 0 ? uv_try_write(stream, &out, 1) : 0;
    assert(written == (int)echo->out_bytes);
    echo->out_bytes = 0;
}

static void echo_connected(uv_stream_t *listener, int status) {
    struct echo *echo = calloc(1, sizeof *echo);
    assert(echo != NULL && status == 0);
    (void)uv_pipe_init(listener->loop, &echo->pipe, 0);
    echo->pipe.data = echo;
    frame_reader_init(&echo->reader, echo->buffer, sizeof echo->buffer);
    int code = uv_accept(listener, (uv_stream_t *)&echo->pipe);
    assert(code == 0);
    (void)uv_read_start((uv_stream_t *)&echo->pipe, echo_allocate, echo_read);
}

static pid_t echo_start(const char *path) {
    uv_loop_t loop;
    uv_pipe_t listener;
    int ready[2];
    char byte = 0;
    int rc = pipe(ready);
    assert(rc == 0);
    pid_t pid = fork();
    if (pid != 0) {
        ssize_t got = read(ready[0], &byte, 1);
        assert(got == 1);
        (void)close(ready[0]);
        (void)close(ready[1]);
        return pid;
    }
    (void)uv_loop_init(&loop);
    (void)uv_pipe_init(&loop, &listener, 0);
    rc = uv_pipe_bind(&listener, path);
    assert(rc == 0);
    (void)uv_listen((uv_stream_t *)&listener, ECHO_BACKLOG, echo_connected);
    ssize_t sent = write(ready[1], &byte, 1);
    assert(sent == 1);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    _exit(EXIT_SUCCESS);
}

/* The client */

static int client_connect(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(address.sun_path, path, strlen(path) + 1);
    int code = connect(fd, (const struct sockaddr *)&address, sizeof address);
    assert(fd >= 0 && code == 0);
    return fd;
}

static size_t client_request(uint32_t stream, uint8_t *out) {
    Ttrpc__Request request = TTRPC__REQUEST__INIT;
    request.service = "ballast.v1.Loader";
    request.method = "Ping";
    size_t bytes = ttrpc__request__pack(&request, out + FRAME_HEADER_BYTES);
    const struct frame_header header = {.length = (uint32_t)bytes,
                                        .stream = stream,
                                        .type = FRAME_REQUEST,
                                        .flags = FRAME_REMOTE_CLOSED};
    frame_header_encode(&header, out);
    return FRAME_HEADER_BYTES + bytes;
}

/* One whole answer, which comes in one piece or a few. */
static void client_answer(int fd) {
    uint8_t buffer[BUFFER_BYTES];
    struct frame_reader reader;
    struct frame_header header;
    const uint8_t *data;
    size_t space;
    frame_reader_init(&reader, buffer, sizeof buffer);
    while (frame_reader_next(&reader, &header, &data, NULL) == 0) {
        uint8_t *to = frame_reader_space(&reader, &space);
        ssize_t got = read(fd, to, space);
        assert(got > 0);
        frame_reader_fill(&reader, (size_t)got);
    }
}

static double now_s(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Calls per second of wall time, and per second of the loop's CPU. */
static void client_turn(const char *path, const struct live *server, uint32_t rounds,
                        double *per_wall, double *per_cpu) {
    int fds[CONNECTIONS];
    uint8_t request[256];
    for (uint32_t i = 0; i < CONNECTIONS; i++) {
        fds[i] = client_connect(path);
    }
    double begin_s = now_s();
    uint64_t begin_ns = live_loop_cpu_ns(server);
    for (uint32_t round = 0; round < rounds; round++) {
        size_t bytes = client_request(2 * round + 1, request);
        for (uint32_t i = 0; i < CONNECTIONS; i++) {
            ssize_t sent = write(fds[i], request, bytes);
            assert(sent == (ssize_t)bytes);
        }
        for (uint32_t i = 0; i < CONNECTIONS; i++) {
            client_answer(fds[i]);
        }
    }
    double calls = (double)rounds * CONNECTIONS;
    *per_wall = calls / (now_s() - begin_s);
    *per_cpu = calls * 1e9 / (double)(live_loop_cpu_ns(server) - begin_ns);
    for (uint32_t i = 0; i < CONNECTIONS; i++) {
        (void)close(fds[i]);
    }
}

int main(int argc, char **argv) {
    struct figures figures;
    struct live live, echo = {0};
    double wall[TURNS], cpu[TURNS], echo_wall[TURNS], echo_cpu[TURNS];
    char path[96];
    figures_begin(&figures, "calls", &argc, argv);
    uint32_t turns = figures.smoke ? 1 : TURNS, rounds = figures.smoke ? 10 : ROUNDS;
    live_open(&live);
    (void)snprintf(path, sizeof path, "%s/echo.sock", live.folder);
    live_write_corpus(&live, 1u << 20, 1024, 8192);
    live_start(&live, "[plan]\nwindow = 8192\n[model]\ncost = L2/24576\n");
    echo.pid = echo_start(path);
    for (uint32_t turn = 0; turn < turns; turn++) {
        client_turn(live.socket, &live, rounds, &wall[turn], &cpu[turn]);
        client_turn(path, &echo, rounds, &echo_wall[turn], &echo_cpu[turn]);
    }
    struct figure figure = {.subject = "Ping, 8 connections", .unit = "calls/s", .peer = "uv echo"};
    figure.name = "calls per second";
    figures_add_turns(&figures, &figure, wall, echo_wall, turns);
    figure.name = "calls per CPU second";
    figures_add_turns(&figures, &figure, cpu, echo_cpu, turns);
    figures_add(&figures, &(struct figure){.subject = figure.subject,
                                           .name = "calls, one loop",
                                           .unit = "calls/s",
                                           .value = figure_median(cpu, turns),
                                           .rule = FIGURE_AT_LEAST,
                                           .limit = CALLS_LEAST});
    (void)kill(echo.pid, SIGKILL);
    (void)waitpid(echo.pid, NULL, 0);
    live_close(&live);
    return figures_end(&figures);
}
