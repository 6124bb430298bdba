/* sim_uv: as much of libuv as the daemon uses, over wires that are arrays; see sim.h.
 *
 * One round of the loop is timers, prepare, poll, closing, as in libuv 1.44; before each poll the
 * other threads may run. A poll takes in what is ready in random order and, of pipes, a random
 * piece. The listening sockets are two numbers, a connection's descriptor is its wire's. */
#include "sim.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define HANDLES_MAX 96u
#define FD_CONTROL  5001
#define FD_DATA     5002
#define FD_READER   5003
#define FD_WIRE     6000
#define WIRE_PIECE  4096u

enum kind { KIND_ASYNC, KIND_POLL, KIND_PREPARE, KIND_TIMER, KIND_SIGNAL, KIND_PIPE };

struct handle {
    uv_handle_t *handle;
    enum kind kind;
    bool active;
    bool closing;
    uv_close_cb closed;
    union {
        uv_async_cb async;
        uv_poll_cb poll;
        uv_prepare_cb prepare;
        uv_timer_cb timer;
        uv_signal_cb signal;
        uv_read_cb read;
    } call;
    bool pending; /* an async that was sent, a signal that came */
    int fd;       /* of a poll; number of a signal */
    uint64_t due_ns, repeat_ns;
    struct sim_wire *wire;
    uv_alloc_cb allocate;
    uv_write_t *write; /* waits for room */
    uv_write_cb written;
    const char *write_bytes;
    size_t write_count;
};

static struct {
    struct handle handles[HANDLES_MAX];
    uint32_t count;
    uv_loop_t *loop;
    bool stop;
    bool at_poll;
    int sockets;   /* made so far by this loop's daemon */
    bool bound[2]; /* control, data */
    bool listening;
    int signals[4];
    uint32_t signal_count;
} uv;

static struct sim_wire wires[SIM_WIRES_MAX];

/* Bytes */

static void bytes_put(struct sim_bytes *to, const void *bytes, size_t count) {
    if (to->used + count > to->capacity) {
        to->capacity = 2 * (to->used + count);
        to->bytes = realloc(to->bytes, to->capacity);
        assert(to->bytes != NULL);
    }
    memcpy(to->bytes + to->used, bytes, count);
    to->used += count;
}

static void bytes_take(struct sim_bytes *from, void *out, size_t count) {
    assert(count <= from->used);
    memcpy(out, from->bytes, count);
    from->used -= count;
    memmove(from->bytes, from->bytes + count, from->used);
}

/* Wires */

static void wire_free(struct sim_wire *wire) {
    if (wire->rank_gone && (wire->daemon_gone || !wire->accepted)) {
        free(wire->to_daemon.bytes);
        free(wire->to_rank.bytes);
        *wire = (struct sim_wire){0};
    }
}

struct sim_wire *sim_wire_connect(uint32_t rank) {
    for (uint32_t i = 0; uv.listening && !sim.dead && i < SIM_WIRES_MAX; i++) {
        if (!wires[i].used) {
            wires[i] = (struct sim_wire){.used = true, .rank = rank, .room = 65536};
            if (sim.faults.short_wire > 0 && !sim.peace) {
                wires[i].room = sim.faults.short_wire;
            }
            return &wires[i];
        }
    }
    return NULL;
}

void sim_wire_send(struct sim_wire *wire, const void *bytes, size_t count) {
    if (!wire->daemon_gone) {
        bytes_put(&wire->to_daemon, bytes, count);
    }
}

size_t sim_wire_receive(struct sim_wire *wire, void *bytes, size_t count) {
    size_t taken = count < wire->to_rank.used ? count : wire->to_rank.used;
    bytes_take(&wire->to_rank, bytes, taken);
    return taken;
}

void sim_wire_close(struct sim_wire *wire) {
    wire->rank_gone = true;
    wire->to_rank.used = 0;
    wire_free(wire);
}

void sim_wire_cut(struct sim_wire *wire) {
    wire->to_daemon.used = 0;
    wire->to_rank.used = 0;
    wire->rank_gone = true;
    wire_free(wire);
}

static void wire_leave(struct sim_wire *wire) {
    wire->daemon_gone = true;
    wire->to_daemon.used = 0;
    wire_free(wire);
}

static struct sim_wire *wire_of(int fd) {
    return fd >= FD_WIRE && fd < FD_WIRE + (int)SIM_WIRES_MAX ? &wires[fd - FD_WIRE] : NULL;
}

static struct sim_wire *wire_waiting(void) {
    for (uint32_t i = 0; i < SIM_WIRES_MAX; i++) {
        if (wires[i].used && !wires[i].accepted) {
            return &wires[i];
        }
    }
    return NULL;
}

/* Handles */

static struct handle *handle_of(const void *handle) {
    for (uint32_t i = 0; i < uv.count; i++) {
        if ((const void *)uv.handles[i].handle == handle) {
            return &uv.handles[i];
        }
    }
    sim_fail("a handle is used that is not open");
}

static struct handle *handle_add(void *handle, enum kind kind) {
    assert(uv.count < HANDLES_MAX);
    for (uint32_t i = 0; i < uv.count; i++) {
        sim_check((void *)uv.handles[i].handle != handle, "a handle is opened twice");
    }
    struct handle *at = &uv.handles[uv.count++];
    *at = (struct handle){.handle = handle, .kind = kind, .due_ns = SIM_NEVER};
    return at;
}

static bool handle_ready(const struct handle *at) {
    if (at->closing) {
        return true;
    }
    if (!at->active) {
        return at->kind == KIND_PIPE && at->write != NULL &&
               (at->wire->rank_gone || at->wire->to_rank.used < at->wire->room);
    }
    switch (at->kind) {
    case KIND_ASYNC:
    case KIND_SIGNAL:
        return at->pending;
    case KIND_POLL:
        return at->fd == FD_READER ? sim_reader_ready()
                                   : at->fd == FD_CONTROL && wire_waiting() != NULL;
    case KIND_TIMER:
        return sim.now_ns >= at->due_ns;
    case KIND_PREPARE:
        return false;
    case KIND_PIPE:
        return at->wire->to_daemon.used > 0 || at->wire->rank_gone ||
               (at->write != NULL && at->wire->to_rank.used < at->wire->room);
    }
    return false;
}

bool sim_uv_ready(void) {
    for (uint32_t i = 0; i < uv.count; i++) {
        if (handle_ready(&uv.handles[i])) {
            return true;
        }
    }
    return uv.stop;
}

bool sim_uv_at_poll(void) {
    return uv.at_poll;
}

uint64_t sim_uv_due_ns(void) {
    uint64_t due_ns = SIM_NEVER;
    for (uint32_t i = 0; i < uv.count; i++) {
        const struct handle *at = &uv.handles[i];
        if (at->kind == KIND_TIMER && at->active && at->due_ns < due_ns) {
            due_ns = at->due_ns;
        }
    }
    return due_ns;
}

/* Held back, until a loop takes it. */
static void signal_hold(int number) {
    if (uv.signal_count < sizeof uv.signals / sizeof uv.signals[0]) {
        uv.signals[uv.signal_count++] = number;
    }
}

void sim_uv_signal(int number) {
    for (uint32_t i = 0; i < uv.count; i++) {
        struct handle *at = &uv.handles[i];
        if (at->kind == KIND_SIGNAL && at->active && at->fd == number) {
            at->pending = true;
            return;
        }
    }
    signal_hold(number);
}

void sim_uv_reset(void) {
    memset(&uv, 0, sizeof uv);
    for (uint32_t i = 0; i < SIM_WIRES_MAX; i++) {
        if (wires[i].used) {
            wires[i].accepted = true;
            wire_leave(&wires[i]);
        }
    }
}

/* What the daemon calls */

int uv_loop_init(uv_loop_t *loop) {
    uv.loop = loop;
    uv.sockets = 0;
    sim.daemon = (struct daemon *)(void *)((char *)loop - offsetof(struct daemon, loop));
    return 0;
}

int uv_loop_close(uv_loop_t *loop) {
    (void)loop;
    sim_check(uv.count == 0, "the loop is closed with %u open handles", uv.count);
    sim.daemon = NULL;
    return 0;
}

uint64_t uv_hrtime(void) {
    return sim.now_ns;
}

const char *uv_strerror(int code) {
    return strerror(-code);
}

uv_buf_t uv_buf_init(char *base, unsigned bytes) {
    return (uv_buf_t){.base = base, .len = bytes};
}

void uv_stop(uv_loop_t *loop) {
    (void)loop;
    uv.stop = true;
}

int uv_is_closing(const uv_handle_t *handle) {
    return handle_of(handle)->closing;
}

int uv_is_active(const uv_handle_t *handle) {
    return handle_of(handle)->active;
}

void uv_walk(uv_loop_t *loop, uv_walk_cb each, void *argument) {
    (void)loop;
    for (uint32_t i = 0; i < uv.count; i++) {
        each(uv.handles[i].handle, argument);
    }
}

void uv_close(uv_handle_t *handle, uv_close_cb closed) {
    struct handle *at = handle_of(handle);
    sim_check(!at->closing, "a handle is closed twice");
    at->closing = true;
    at->active = false;
    at->closed = closed;
    if (at->kind == KIND_SIGNAL && at->pending) {
        signal_hold(at->fd);
    }
    if (at->wire != NULL) {
        wire_leave(at->wire);
        at->wire = NULL;
    }
}

int uv_async_init(uv_loop_t *loop, uv_async_t *async, uv_async_cb call) {
    (void)loop;
    struct handle *at = handle_add(async, KIND_ASYNC);
    at->call.async = call;
    at->active = true;
    return 0;
}

int uv_async_send(uv_async_t *async) {
    struct handle *at = handle_of(async);
    sim_check(!at->closing, "a thread wakes a loop that is closing");
    at->pending = true;
    return 0;
}

int uv_poll_init(uv_loop_t *loop, uv_poll_t *poll, int fd) {
    (void)loop;
    handle_add(poll, KIND_POLL)->fd = fd;
    return 0;
}

int uv_poll_start(uv_poll_t *poll, int events, uv_poll_cb call) {
    struct handle *at = handle_of(poll);
    (void)events;
    at->call.poll = call;
    at->active = true;
    return 0;
}

int uv_poll_stop(uv_poll_t *poll) {
    handle_of(poll)->active = false;
    return 0;
}

int uv_prepare_init(uv_loop_t *loop, uv_prepare_t *prepare) {
    (void)loop;
    (void)handle_add(prepare, KIND_PREPARE);
    return 0;
}

int uv_prepare_start(uv_prepare_t *prepare, uv_prepare_cb call) {
    struct handle *at = handle_of(prepare);
    at->call.prepare = call;
    at->active = true;
    return 0;
}

int uv_timer_init(uv_loop_t *loop, uv_timer_t *timer) {
    (void)loop;
    (void)handle_add(timer, KIND_TIMER);
    return 0;
}

int uv_timer_start(uv_timer_t *timer, uv_timer_cb call, uint64_t timeout_ms, uint64_t repeat_ms) {
    struct handle *at = handle_of(timer);
    at->call.timer = call;
    at->active = true;
    at->due_ns = sim.now_ns + timeout_ms * SIM_MS;
    at->repeat_ns = repeat_ms * SIM_MS;
    return 0;
}

int uv_signal_init(uv_loop_t *loop, uv_signal_t *handle) {
    (void)loop;
    (void)handle_add(handle, KIND_SIGNAL);
    return 0;
}

int uv_signal_start(uv_signal_t *handle, uv_signal_cb call, int number) {
    struct handle *at = handle_of(handle);
    at->call.signal = call;
    at->fd = number;
    at->active = true;
    for (uint32_t i = 0; i < uv.signal_count; i++) {
        at->pending |= uv.signals[i] == number;
    }
    return 0;
}

int uv_pipe_init(uv_loop_t *loop, uv_pipe_t *pipe, int ipc) {
    (void)loop;
    (void)ipc;
    (void)handle_add(pipe, KIND_PIPE);
    return 0;
}

int uv_pipe_open(uv_pipe_t *pipe, uv_file fd) {
    struct handle *at = handle_of(pipe);
    at->wire = wire_of(fd);
    assert(at->wire != NULL);
    return 0;
}

int uv_read_start(uv_stream_t *stream, uv_alloc_cb allocate, uv_read_cb call) {
    struct handle *at = handle_of(stream);
    at->allocate = allocate;
    at->call.read = call;
    at->active = true;
    return 0;
}

int uv_read_stop(uv_stream_t *stream) {
    handle_of(stream)->active = false;
    return 0;
}

/* As much as the wire takes; UV_EAGAIN when that is nothing. */
static int wire_write(struct sim_wire *wire, const char *bytes, size_t count) {
    if (sim.dead) {
        return (int)count;
    }
    if (wire->rank_gone) {
        return UV_EPIPE;
    }
    size_t room = wire->to_rank.used < wire->room ? wire->room - wire->to_rank.used : 0;
    size_t written = count < room ? count : room;
    if (written == 0) {
        return UV_EAGAIN;
    }
    sim_note(bytes, written);
    sim_rank_sent(wire, (const uint8_t *)bytes, written);
    bytes_put(&wire->to_rank, bytes, written);
    return (int)written;
}

int uv_try_write(uv_stream_t *stream, const uv_buf_t buffers[], unsigned count) {
    struct handle *at = handle_of(stream);
    size_t total = 0;
    assert(at->wire != NULL && at->write == NULL);
    for (unsigned i = 0; i < count; i++) {
        int written = wire_write(at->wire, buffers[i].base, buffers[i].len);
        if (written < 0) {
            return total > 0 ? (int)total : written;
        }
        total += (size_t)written;
        if ((size_t)written < buffers[i].len) {
            break;
        }
    }
    return (int)total;
}

int uv_write(uv_write_t *request, uv_stream_t *stream, const uv_buf_t buffers[], unsigned count,
             uv_write_cb written) {
    struct handle *at = handle_of(stream);
    assert(count == 1 && at->wire != NULL && at->write == NULL);
    at->write = request;
    at->written = written;
    at->write_bytes = buffers[0].base;
    at->write_count = buffers[0].len;
    return 0;
}

/* The loop */

static void write_end(struct handle *at, int status) {
    uv_write_t *request = at->write;
    at->write = NULL;
    at->written(request, status);
}

static void write_on(struct handle *at) {
    int written = wire_write(at->wire, at->write_bytes, at->write_count);
    if (written == UV_EAGAIN) {
        return;
    }
    if (written > 0 && (size_t)written < at->write_count) {
        at->write_bytes += written;
        at->write_count -= (size_t)written;
        return;
    }
    write_end(at, written < 0 ? written : 0);
}

static void read_on(struct handle *at) {
    uv_buf_t buffer;
    uv_stream_t *stream = (uv_stream_t *)(void *)at->handle;
    struct sim_bytes *from = &at->wire->to_daemon;
    at->allocate(at->handle, WIRE_PIECE, &buffer);
    if (from->used == 0) {
        at->call.read(stream, UV_EOF, &buffer);
        return;
    }
    size_t count = from->used < buffer.len ? from->used : buffer.len;
    if (!sim.peace && sim_between(0, 3) == 0) {
        count = sim_between(1, (uint32_t)count);
    }
    bytes_take(from, buffer.base, count);
    at->call.read(stream, (ssize_t)count, &buffer);
}

/* Calls back for one handle that is ready; handles may come and go meanwhile. */
static void handle_serve(struct handle *at) {
    switch (at->kind) {
    case KIND_ASYNC:
        at->pending = false;
        at->call.async((uv_async_t *)(void *)at->handle);
        break;
    case KIND_SIGNAL:
        at->pending = false;
        at->call.signal((uv_signal_t *)(void *)at->handle, at->fd);
        break;
    case KIND_POLL:
        at->call.poll((uv_poll_t *)(void *)at->handle, 0, UV_READABLE);
        break;
    case KIND_TIMER:
    case KIND_PREPARE:
        break;
    case KIND_PIPE:
        if (at->write != NULL && (at->wire->rank_gone || at->wire->to_rank.used < at->wire->room)) {
            write_on(at);
        } else {
            read_on(at);
        }
        break;
    }
}

static void loop_timers(void) {
    for (uint32_t i = 0; i < uv.count; i++) {
        struct handle *at = &uv.handles[i];
        if (at->kind == KIND_TIMER && at->active && sim.now_ns >= at->due_ns) {
            at->active = at->repeat_ns > 0;
            at->due_ns = at->active ? sim.now_ns + at->repeat_ns : SIM_NEVER;
            at->call.timer((uv_timer_t *)(void *)at->handle);
        }
    }
}

static void loop_prepare(void) {
    for (uint32_t i = 0; i < uv.count; i++) {
        struct handle *at = &uv.handles[i];
        if (at->kind == KIND_PREPARE && at->active) {
            at->call.prepare((uv_prepare_t *)(void *)at->handle);
        }
    }
}

static void loop_poll(void) {
    void *ready[HANDLES_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < uv.count; i++) {
        const struct handle *at = &uv.handles[i];
        if (!at->closing && at->kind != KIND_TIMER && handle_ready(at)) {
            ready[count++] = at->handle;
        }
    }
    while (count > 0) {
        uint32_t which = sim_between(0, count - 1);
        struct handle *at = handle_of(ready[which]);
        ready[which] = ready[--count];
        if (!at->closing && handle_ready(at)) {
            handle_serve(at);
        }
    }
}

static void loop_close(void) {
    uint32_t i = 0;
    while (i < uv.count) {
        struct handle *at = &uv.handles[i];
        if (!at->closing) {
            i++;
            continue;
        }
        if (at->write != NULL) {
            write_end(at, UV_ECANCELED);
            at = handle_of(at->handle);
        }
        uv_handle_t *handle = at->handle;
        uv_close_cb closed = at->closed;
        *at = uv.handles[--uv.count];
        if (closed != NULL) {
            closed(handle);
        }
        i = 0;
    }
}

static bool loop_alive(void) {
    for (uint32_t i = 0; i < uv.count; i++) {
        if (uv.handles[i].active || uv.handles[i].closing) {
            return true;
        }
    }
    return false;
}

int uv_run(uv_loop_t *loop, uv_run_mode mode) {
    (void)loop;
    (void)mode;
    while (loop_alive() && !uv.stop) {
        loop_timers();
        loop_prepare();
        uv.at_poll = true;
        sim_thread_wait(sim_uv_ready);
        uv.at_poll = false;
        loop_poll();
        loop_close();
    }
    uv.stop = false;
    return 0;
}

/* System calls of server.c and daemon.c on the numbers above; everything else is the system's. */

int __wrap_socket(int domain, int type, int protocol);
int __wrap_bind(int fd, const struct sockaddr *address, socklen_t bytes);
int __wrap_listen(int fd, int backlog);
int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *bytes);
int __wrap_lstat(const char *path, struct stat *out);
int __wrap_chmod(const char *path, mode_t mode);
int __wrap_unlink(const char *path);
int __wrap_close(int fd);
int __real_close(int fd);
int __real_unlink(const char *path);
ssize_t __wrap_read(int fd, void *out, size_t count);
ssize_t __real_read(int fd, void *out, size_t count);

int __wrap_socket(int domain, int type, int protocol) {
    (void)domain;
    (void)type;
    (void)protocol;
    return uv.sockets++ == 0 ? FD_CONTROL : FD_DATA;
}

static bool *bound_at(const char *path) {
    return &uv.bound[strstr(path, ".data") != NULL];
}

int __wrap_bind(int fd, const struct sockaddr *address, socklen_t bytes) {
    const struct sockaddr_un *path = (const struct sockaddr_un *)(const void *)address;
    (void)fd;
    (void)bytes;
    *bound_at(path->sun_path) = true;
    return 0;
}

int __wrap_listen(int fd, int backlog) {
    (void)backlog;
    uv.listening |= fd == FD_CONTROL;
    return 0;
}

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags) {
    struct sim_wire *wire = fd == FD_CONTROL ? wire_waiting() : NULL;
    (void)address;
    (void)bytes;
    (void)flags;
    if (wire == NULL) {
        errno = EAGAIN;
        return -1;
    }
    wire->accepted = true;
    return FD_WIRE + (int)(wire - wires);
}

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *bytes) {
    const struct sim_wire *wire = wire_of(fd);
    struct ucred *credentials = value;
    assert(wire != NULL && level == SOL_SOCKET && name == SO_PEERCRED);
    assert(*bytes == sizeof *credentials);
    *credentials = (struct ucred){.pid = (pid_t)(100 + wire->rank), .uid = geteuid()};
    return 0;
}

int __wrap_lstat(const char *path, struct stat *out) {
    if (!*bound_at(path)) {
        errno = ENOENT;
        return -1;
    }
    *out = (struct stat){.st_mode = S_IFSOCK};
    return 0;
}

int __wrap_chmod(const char *path, mode_t mode) {
    (void)path;
    (void)mode;
    return 0;
}

int __wrap_unlink(const char *path) {
    if (strncmp(path, "/sim/", 5) != 0) {
        return __real_unlink(path);
    }
    *bound_at(path) = false;
    return 0;
}

int __wrap_close(int fd) {
    struct sim_wire *wire = wire_of(fd);
    if (fd == FD_CONTROL) {
        uv.listening = false;
        for (uint32_t i = 0; i < SIM_WIRES_MAX; i++) {
            if (wires[i].used && !wires[i].accepted) {
                wires[i].accepted = true;
                wire_leave(&wires[i]);
            }
        }
        return 0;
    }
    if (wire != NULL) {
        wire_leave(wire);
        return 0;
    }
    return fd == FD_DATA ? 0 : __real_close(fd);
}

ssize_t __wrap_read(int fd, void *out, size_t count) {
    if (fd != FD_READER) {
        return __real_read(fd, out, count);
    }
    assert(count == sizeof(uint64_t));
    sim_reader_drain();
    memset(out, 1, count);
    return (ssize_t)count;
}
