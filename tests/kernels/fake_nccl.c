/* fake_nccl: see the header. Signatures are NCCL's. */
#include "fake_nccl.h"

#include "fake_runtime.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RANKS_MAX   8
#define OPS_MAX     (2 * RANKS_MAX)
#define TRACE_BYTES 4096
#define DEADLINE_S  60

enum { SUCCESS, UNHANDLED = 1, INVALID_USAGE = 5, STREAM_FAILED = 719 };

struct nccl_id {
    char bytes[128];
};

struct message {
    struct message *next;
    char kind;
    size_t bytes;
    char data[];
};

/* Those who have the same identity; lives as long as the process. */
struct world {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct world *next;
    struct message *first[RANKS_MAX][RANKS_MAX]; /* from, to */
};

struct communicator {
    struct world *world;
    int rank;
    int ranks;
};

struct op {
    bool send;
    char kind;
    const void *from;
    void *to;
    size_t bytes;
    int peer;
};

struct group {
    struct communicator *communicator;
    void *stream;
    int count;
    struct op ops[OPS_MAX];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct world *worlds;
static char fault[256];
static char traces[RANKS_MAX][TRACE_BYTES];
static _Thread_local bool grouped;
static _Thread_local struct group current;

int ncclGetUniqueId(struct nccl_id *id);
int ncclCommInitRank(void **out, int ranks, struct nccl_id id, int rank);
int ncclCommDestroy(void *communicator);
int ncclCommAbort(void *communicator);
int ncclCommGetAsyncError(void *communicator, int *result);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclSend(const void *buffer, size_t count, int type, int peer, void *communicator,
             void *stream);
int ncclRecv(void *buffer, size_t count, int type, int peer, void *communicator, void *stream);
int ncclAllGather(const void *send, void *receive, size_t count, int type, void *communicator,
                  void *stream);
const char *ncclGetErrorString(int result);

__attribute__((format(printf, 1, 2))) static void wrong(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    (void)pthread_mutex_lock(&lock);
    if (fault[0] == 0) {
        (void)vsnprintf(fault, sizeof fault, format, arguments);
    }
    (void)pthread_mutex_unlock(&lock);
    va_end(arguments);
}

const char *fake_nccl_fault(void) {
    static char taken[sizeof fault];
    memcpy(taken, fault, sizeof taken);
    fault[0] = 0;
    return taken[0] != 0 ? taken : NULL;
}

const char *fake_nccl_trace(uint32_t rank) {
    return traces[rank];
}

/* A rank's trace is written by its own thread. */
static void trace(int rank, const char *text) {
    size_t used = strlen(traces[rank]);
    (void)snprintf(traces[rank] + used, TRACE_BYTES - used, "%s", text);
}

int ncclGetUniqueId(struct nccl_id *id) {
    struct world *world = calloc(1, sizeof *world);
    if (world == NULL) {
        return UNHANDLED;
    }
    (void)pthread_mutex_init(&world->mutex, NULL);
    (void)pthread_cond_init(&world->changed, NULL);
    memset(id, 0, sizeof *id);
    memcpy(id->bytes, &world, sizeof world);
    (void)pthread_mutex_lock(&lock);
    world->next = worlds;
    worlds = world;
    (void)pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int ncclCommInitRank(void **out, int ranks, struct nccl_id id, int rank) {
    struct communicator *made = malloc(sizeof *made);
    if (made == NULL || ranks > RANKS_MAX) {
        free(made);
        return UNHANDLED;
    }
    *made = (struct communicator){.rank = rank, .ranks = ranks};
    memcpy(&made->world, id.bytes, sizeof made->world);
    traces[rank][0] = 0;
    trace(rank, "i");
    *out = made;
    return SUCCESS;
}

int ncclCommDestroy(void *memory) {
    trace(((struct communicator *)memory)->rank, "d");
    free(memory);
    return SUCCESS;
}

int ncclCommAbort(void *memory) {
    trace(((struct communicator *)memory)->rank, "a");
    free(memory);
    return SUCCESS;
}

int ncclCommGetAsyncError(void *communicator, int *result) {
    (void)communicator;
    *result = SUCCESS;
    return SUCCESS;
}

const char *ncclGetErrorString(int result) {
    return result == INVALID_USAGE ? "invalid usage" : "unhandled error";
}

static int message_send(struct communicator *c, const struct op *op) {
    struct message *message = malloc(sizeof *message + op->bytes);
    if (message == NULL) {
        return STREAM_FAILED;
    }
    *message = (struct message){.kind = op->kind, .bytes = op->bytes};
    memcpy(message->data, op->from, op->bytes);
    (void)pthread_mutex_lock(&c->world->mutex);
    struct message **last = &c->world->first[c->rank][op->peer];
    while (*last != NULL) {
        last = &(*last)->next;
    }
    *last = message;
    (void)pthread_cond_broadcast(&c->world->changed);
    (void)pthread_mutex_unlock(&c->world->mutex);
    return SUCCESS;
}

static struct message *message_await(struct communicator *c, int peer) {
    struct message **first = &c->world->first[peer][c->rank];
    struct timespec deadline;
    (void)clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += DEADLINE_S;
    (void)pthread_mutex_lock(&c->world->mutex);
    int result = 0;
    while (*first == NULL && result == 0) {
        result = pthread_cond_timedwait(&c->world->changed, &c->world->mutex, &deadline);
    }
    struct message *message = *first;
    if (message != NULL) {
        *first = message->next;
    }
    (void)pthread_mutex_unlock(&c->world->mutex);
    return message;
}

static int message_receive(struct communicator *c, const struct op *op) {
    struct message *message = message_await(c, op->peer);
    if (message == NULL) {
        wrong("rank %d waits for rank %d, which does not send", c->rank, op->peer);
        return STREAM_FAILED;
    }
    bool right = message->bytes == op->bytes && message->kind == op->kind;
    if (right) {
        memcpy(op->to, message->data, op->bytes);
    } else {
        wrong("rank %d sends %zu bytes (%c), rank %d receives %zu (%c)", op->peer, message->bytes,
              message->kind, c->rank, op->bytes, op->kind);
    }
    free(message);
    return right ? SUCCESS : STREAM_FAILED;
}

static int group_run(void *argument) {
    struct group *group = argument;
    int result = SUCCESS;
    for (int i = 0; result == SUCCESS && i < group->count; i++) {
        result = group->ops[i].send ? message_send(group->communicator, &group->ops[i]) : SUCCESS;
    }
    for (int i = 0; result == SUCCESS && i < group->count; i++) {
        result = group->ops[i].send ? SUCCESS
                                    : message_receive(group->communicator, &group->ops[i]);
    }
    free(group);
    return result;
}

static int group_append(const struct group *group) {
    struct group *kept = malloc(sizeof *kept);
    if (kept == NULL) {
        return UNHANDLED;
    }
    *kept = *group;
    return fake_stream_append(group->stream, group_run, kept) == 0 ? SUCCESS : UNHANDLED;
}

int ncclGroupStart(void) {
    if (grouped) {
        wrong("a group inside a group");
        return INVALID_USAGE;
    }
    grouped = true;
    current = (struct group){0};
    return SUCCESS;
}

int ncclGroupEnd(void) {
    if (!grouped) {
        wrong("the end of no group");
        return INVALID_USAGE;
    }
    grouped = false;
    if (current.count == 0) {
        return SUCCESS;
    }
    int rank = current.communicator->rank;
    trace(rank, "(");
    for (int i = 0; i < current.count; i++) {
        const char text[] = {current.ops[i].send ? 's' : 'r', (char)('0' + current.ops[i].peer), 0};
        trace(rank, text);
    }
    trace(rank, ")");
    return group_append(&current);
}

static int group_add(struct communicator *c, void *stream, int type, struct op op) {
    if (!grouped || type != 1 || op.bytes == 0 || op.peer == c->rank || op.peer >= c->ranks ||
        current.count == OPS_MAX || (current.count > 0 && current.stream != stream)) {
        wrong("rank %d: %s %zu bytes, peer %d, type %d, %s a group", c->rank,
              op.send ? "sends" : "receives", op.bytes, op.peer, type, grouped ? "in" : "outside");
        return INVALID_USAGE;
    }
    current.communicator = c;
    current.stream = stream;
    current.ops[current.count++] = op;
    return SUCCESS;
}

int ncclSend(const void *buffer, size_t count, int type, int peer, void *communicator,
             void *stream) {
    return group_add(
        communicator, stream, type,
        (struct op){.send = true, .kind = 'p', .from = buffer, .bytes = count, .peer = peer});
}

int ncclRecv(void *buffer, size_t count, int type, int peer, void *communicator, void *stream) {
    return group_add(communicator, stream, type,
                     (struct op){.kind = 'p', .to = buffer, .bytes = count, .peer = peer});
}

int ncclAllGather(const void *send, void *receive, size_t count, int type, void *communicator,
                  void *stream) {
    struct communicator *c = communicator;
    struct group group = {.communicator = c, .stream = stream};
    if (grouped || type != 1 || count == 0) {
        wrong("rank %d: all-gather of %zu bytes, type %d", c->rank, count, type);
        return INVALID_USAGE;
    }
    trace(c->rank, "g");
    for (int peer = 0; peer < c->ranks; peer++) {
        group.ops[group.count++] = (struct op){
            .send = true, .kind = 'g', .from = send, .bytes = count, .peer = peer};
        group.ops[group.count++] = (struct op){.kind = 'g',
                                               .to = (char *)receive + (size_t)peer * count,
                                               .bytes = count,
                                               .peer = peer};
    }
    return group_append(&group);
}
