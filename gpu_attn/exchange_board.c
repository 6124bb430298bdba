/* exchange_board: the transport between CPUs.
 *
 * start copies what is sent into the rank's window of the board and posts the call; wait looks at
 * the posts of all ranks for the same call, compares, and copies out. So nothing arrives early, and
 * a window is free again once all have taken from it. The first rank that sees something wrong
 * writes the sentence on the board; all ranks, then and later, return it. Waiting is bounded by a
 * deadline; a rank that closed is not waited for. */
#include "gpu_attn/error.h"
#include "gpu_attn/ballast_exchange.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define RANKS_MAX   BALLAST_BOARD_RANKS_MAX
#define SLOTS       4u /* transfers in flight */
#define GATHER_MAX  64u
#define BOARD_MAGIC UINT64_C(0x62616c6c61737462)
#define POISON      0xff /* not a number, as bf16, float or double */

struct post {
    uint64_t call;  /* from 1; 0: none yet */
    uint32_t taken; /* by so many other ranks */
    char name[32];
    uint64_t bytes[RANKS_MAX]; /* to each rank */
};

/* In memory that all ranks see; under the mutex, but for the windows: the sender writes its own
 * while it is free, the others read it once it is posted. */
struct board {
    uint64_t magic;
    uint64_t window_bytes;
    uint32_t ranks;
    int failed; /* the errno of `text` */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t calls[RANKS_MAX]; /* made by each rank */
    bool left[RANKS_MAX];
    struct post posts[RANKS_MAX][SLOTS];
    char text[256];
};

struct flight {
    const void *send;
    uint64_t send_bytes;
    uint64_t send_hash;
    void *receive;
    uint64_t receive_bytes[RANKS_MAX];
};

struct board_transport {
    struct ballast_exchange_transport transport; /* first */
    struct board *board;
    uint32_t deadline_ms;
    uint64_t started; /* calls */
    uint64_t waited;
    struct flight flights[SLOTS];
};

static struct board_transport *board_of(struct ballast_exchange_transport *transport) {
    return (struct board_transport *)transport;
}

static size_t board_head_bytes(void) {
    return (sizeof(struct board) + 63) / 64 * 64;
}

static size_t window_aligned(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

static char *board_window(struct board *board, uint32_t rank, uint64_t call) {
    size_t index = (size_t)rank * SLOTS + call % SLOTS;
    return (char *)board + board_head_bytes() + index * window_aligned(board->window_bytes);
}

size_t ballast_board_bytes(uint32_t ranks, size_t window_bytes) {
    size_t gather = (size_t)ranks * GATHER_MAX;
    size_t window = window_bytes > gather ? window_bytes : gather;
    return board_head_bytes() + (size_t)ranks * SLOTS * window_aligned(window);
}

static int board_locks_init(struct board *board) {
    pthread_mutexattr_t mutex;
    pthread_condattr_t condition;
    int result = pthread_mutexattr_init(&mutex);
    if (result != 0) {
        return -result;
    }
    (void)pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    (void)pthread_mutexattr_setrobust(&mutex, PTHREAD_MUTEX_ROBUST);
    result = pthread_mutex_init(&board->mutex, &mutex);
    (void)pthread_mutexattr_destroy(&mutex);
    result = result != 0 ? result : pthread_condattr_init(&condition);
    if (result != 0) {
        return -result;
    }
    (void)pthread_condattr_setpshared(&condition, PTHREAD_PROCESS_SHARED);
    (void)pthread_condattr_setclock(&condition, CLOCK_MONOTONIC);
    result = pthread_cond_init(&board->changed, &condition);
    (void)pthread_condattr_destroy(&condition);
    return -result;
}

int ballast_board_init(void *memory, uint32_t ranks, size_t window_bytes,
                       struct ballast_attn_error *error) {
    struct board *board = memory;
    size_t gather = (size_t)ranks * GATHER_MAX;
    if (ranks == 0 || ranks > RANKS_MAX) {
        return attn_error(error, -EINVAL, "a board for %u ranks; it takes 1 to %u", ranks,
                          RANKS_MAX);
    }
    memset(board, 0, sizeof *board);
    int result = board_locks_init(board);
    if (result != 0) {
        return attn_error(error, result, "the board's lock: %s", strerror(-result));
    }
    board->ranks = ranks;
    board->window_bytes = window_bytes > gather ? window_bytes : gather;
    board->magic = BOARD_MAGIC;
    return 0;
}

/* A rank that died with the lock left the board half written. */
static void board_lock_result(struct board *board, int result) {
    if (result == EOWNERDEAD) {
        (void)pthread_mutex_consistent(&board->mutex);
        if (board->failed == 0) {
            board->failed = -EPROTO;
            (void)snprintf(board->text, sizeof board->text, "a rank died inside a transfer");
        }
    }
    assert(result == 0 || result == EOWNERDEAD || result == ETIMEDOUT);
}

static void board_lock(struct board *board) {
    board_lock_result(board, pthread_mutex_lock(&board->mutex));
}

static void board_unlock(struct board *board) {
    (void)pthread_mutex_unlock(&board->mutex);
}

/* With the lock. The first sentence stays; all ranks wake up to it. */
static void board_fail(struct board *board, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void board_fail(struct board *board, int code, const char *format, ...) {
    if (board->failed == 0) {
        va_list arguments;
        va_start(arguments, format);
        board->failed = code;
        (void)vsnprintf(board->text, sizeof board->text, format, arguments);
        va_end(arguments);
    }
    (void)pthread_cond_broadcast(&board->changed);
}

static struct timespec deadline_after(uint32_t ms) {
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    time.tv_sec += ms / 1000;
    time.tv_nsec += (long)(ms % 1000) * 1000000;
    time.tv_sec += time.tv_nsec / 1000000000;
    time.tv_nsec %= 1000000000;
    return time;
}

/* Unlocks and returns the board's state. */
static int board_leave(struct board *board, struct ballast_attn_error *error) {
    int result = board->failed;
    if (result != 0) {
        (void)attn_error(error, result, "%s", board->text);
    }
    board_unlock(board);
    return result;
}

static bool window_free(const struct board *board, uint32_t rank, uint64_t call) {
    const struct post *post = &board->posts[rank][call % SLOTS];
    return post->call == 0 || post->taken == board->ranks - 1;
}

/* With the lock: until the window of the call SLOTS ago was taken by all. */
static void window_claim(struct board_transport *t, uint64_t call) {
    struct board *board = t->board;
    struct timespec deadline = deadline_after(t->deadline_ms);
    while (board->failed == 0 && !window_free(board, t->transport.rank, call)) {
        int result = pthread_cond_timedwait(&board->changed, &board->mutex, &deadline);
        board_lock_result(board, result);
        if (result == ETIMEDOUT) {
            board_fail(board, -ETIMEDOUT, "rank %u: '%s' was not taken by all within %u ms",
                       t->transport.rank, board->posts[t->transport.rank][call % SLOTS].name,
                       t->deadline_ms);
        }
    }
}

static uint64_t total(const uint64_t *bytes, uint32_t ranks) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < ranks; i++) {
        sum += bytes[i];
    }
    return sum;
}

static void flight_begin(struct board_transport *t,
                         const struct ballast_exchange_transfer *transfer) {
    uint32_t ranks = t->transport.ranks;
    struct flight *flight = &t->flights[t->started % SLOTS];
    flight->send = transfer->send;
    flight->send_bytes = total(transfer->send_bytes, ranks);
    flight->send_hash = XXH3_64bits(transfer->send, flight->send_bytes);
    flight->receive = transfer->receive;
    memcpy(flight->receive_bytes, transfer->receive_bytes, ranks * sizeof(uint64_t));
    uint64_t receive_bytes = total(transfer->receive_bytes, ranks);
    if (receive_bytes > 0) {
        memset(flight->receive, POISON, receive_bytes);
    }
}

static int board_start(struct ballast_exchange_transport *transport,
                       const struct ballast_exchange_transfer *transfer, void *stream,
                       struct ballast_attn_error *error) {
    struct board_transport *t = board_of(transport);
    struct board *board = t->board;
    uint64_t bytes = total(transfer->send_bytes, transport->ranks);
    (void)stream;
    assert(transfer->send_bytes[transport->rank] == 0);
    board_lock(board);
    if (t->started - t->waited == SLOTS) {
        board_fail(board, -EPROTO, "rank %u starts '%s' with %u transfers in flight",
                   transport->rank, transfer->name, SLOTS);
    }
    if (bytes > board->window_bytes) {
        board_fail(board, -ENOSPC, "rank %u sends %llu bytes in '%s', the board's window is %llu",
                   transport->rank, (unsigned long long)bytes, transfer->name,
                   (unsigned long long)board->window_bytes);
    }
    window_claim(t, t->started + 1);
    int result = board_leave(board, error);
    if (result != 0) {
        return result;
    }
    t->started++;
    flight_begin(t, transfer);
    if (bytes > 0) {
        memcpy(board_window(board, transport->rank, t->started), transfer->send, bytes);
    }
    board_lock(board);
    struct post *post = &board->posts[transport->rank][t->started % SLOTS];
    *post = (struct post){.call = t->started};
    memcpy(post->name, transfer->name, sizeof post->name);
    memcpy(post->bytes, transfer->send_bytes, transport->ranks * sizeof *post->bytes);
    board->calls[transport->rank] = t->started;
    (void)pthread_cond_broadcast(&board->changed);
    return board_leave(board, error);
}

/* With the lock: until a rank has posted the call. */
static void post_await(struct board_transport *t, uint32_t peer, uint64_t call,
                       const struct timespec *deadline) {
    struct board *board = t->board;
    const char *name = board->posts[t->transport.rank][call % SLOTS].name;
    while (board->failed == 0 && board->calls[peer] < call) {
        if (board->left[peer]) {
            board_fail(board, -EPROTO, "rank %u left after %llu calls, before '%s'", peer,
                       (unsigned long long)board->calls[peer], name);
            break;
        }
        int result = pthread_cond_timedwait(&board->changed, &board->mutex, deadline);
        board_lock_result(board, result);
        if (result == ETIMEDOUT) {
            board_fail(board, -ETIMEDOUT,
                       "rank %u did not come to '%s' within %u ms; it has made %llu calls", peer,
                       name, t->deadline_ms, (unsigned long long)board->calls[peer]);
        }
    }
}

/* With the lock, all have posted. Of two calls the one of fewer ranks is the odd one. */
static void names_compare(struct board *board, uint64_t call) {
    uint32_t best = 0;
    uint32_t best_count = 0;
    for (uint32_t i = 0; i < board->ranks; i++) {
        uint32_t count = 0;
        for (uint32_t j = 0; j < board->ranks; j++) {
            count += strncmp(board->posts[i][call % SLOTS].name, board->posts[j][call % SLOTS].name,
                             sizeof board->posts[0][0].name) == 0;
        }
        best = count > best_count ? i : best;
        best_count = count > best_count ? count : best_count;
    }
    const char *most = board->posts[best][call % SLOTS].name;
    for (uint32_t i = 0; i < board->ranks; i++) {
        const char *name = board->posts[i][call % SLOTS].name;
        if (strncmp(name, most, sizeof board->posts[0][0].name) != 0) {
            board_fail(board, -EPROTO, "rank %u calls '%s' where %u of %u ranks call '%s'", i, name,
                       best_count, board->ranks, most);
        }
    }
}

static void counts_compare(struct board_transport *t, uint64_t call, const struct flight *flight) {
    struct board *board = t->board;
    uint32_t rank = t->transport.rank;
    for (uint32_t peer = 0; board->failed == 0 && peer < board->ranks; peer++) {
        const struct post *post = &board->posts[peer][call % SLOTS];
        if (post->bytes[rank] != flight->receive_bytes[peer]) {
            board_fail(board, -EPROTO,
                       "'%s': rank %u sends %llu bytes to rank %u, which expects %llu", post->name,
                       peer, (unsigned long long)post->bytes[rank], rank,
                       (unsigned long long)flight->receive_bytes[peer]);
        }
    }
}

/* All have posted and agree, so their windows stay as they are until this rank has taken. */
static void windows_take(struct board_transport *t, uint64_t call, const struct flight *flight) {
    struct board *board = t->board;
    char *to = flight->receive;
    for (uint32_t peer = 0; peer < board->ranks; peer++) {
        const struct post *post = &board->posts[peer][call % SLOTS];
        uint64_t offset = total(post->bytes, t->transport.rank);
        if (flight->receive_bytes[peer] > 0) {
            memcpy(to, board_window(board, peer, call) + offset, flight->receive_bytes[peer]);
            to += flight->receive_bytes[peer];
        }
    }
}

static int board_wait(struct ballast_exchange_transport *transport, void *stream,
                      struct ballast_attn_error *error) {
    struct board_transport *t = board_of(transport);
    struct board *board = t->board;
    struct timespec deadline = deadline_after(t->deadline_ms);
    (void)stream;
    assert(t->waited < t->started);
    uint64_t call = ++t->waited;
    struct flight *flight = &t->flights[call % SLOTS];
    board_lock(board);
    for (uint32_t peer = 0; peer < board->ranks; peer++) {
        post_await(t, peer, call, &deadline);
    }
    if (board->failed == 0) {
        names_compare(board, call);
        counts_compare(t, call, flight);
    }
    if (XXH3_64bits(flight->send, flight->send_bytes) != flight->send_hash) {
        board_fail(board, -EPROTO, "rank %u changed what it sends in '%s' while it was in flight",
                   transport->rank, board->posts[transport->rank][call % SLOTS].name);
    }
    int result = board_leave(board, error);
    if (result != 0) {
        return result;
    }
    windows_take(t, call, flight);
    board_lock(board);
    for (uint32_t peer = 0; peer < board->ranks; peer++) {
        board->posts[peer][call % SLOTS].taken += peer != transport->rank;
    }
    (void)pthread_cond_broadcast(&board->changed);
    return board_leave(board, error);
}

static int board_gather(struct ballast_exchange_transport *transport, const void *mine, void *all,
                        size_t bytes, struct ballast_attn_error *error) {
    char send[RANKS_MAX * GATHER_MAX];
    char receive[RANKS_MAX * GATHER_MAX];
    uint64_t counts[RANKS_MAX] = {0};
    uint32_t others = 0;
    assert(bytes <= GATHER_MAX);
    for (uint32_t peer = 0; peer < transport->ranks; peer++) {
        if (peer != transport->rank) {
            counts[peer] = bytes;
            memcpy(send + others++ * bytes, mine, bytes);
        }
    }
    const struct ballast_exchange_transfer transfer = {.name = "agreement",
                                                       .send = send,
                                                       .receive = receive,
                                                       .send_bytes = counts,
                                                       .receive_bytes = counts};
    int result = board_start(transport, &transfer, NULL, error);
    result = result != 0 ? result : board_wait(transport, NULL, error);
    if (result != 0) {
        return result;
    }
    uint32_t from = 0;
    for (uint32_t peer = 0; peer < transport->ranks; peer++) {
        memcpy((char *)all + peer * bytes,
               peer == transport->rank ? mine : receive + from++ * bytes, bytes);
    }
    return 0;
}

static int board_copy(struct ballast_exchange_transport *transport,
                      const struct ballast_copy *copies, uint32_t count, void *stream,
                      struct ballast_attn_error *error) {
    (void)transport;
    (void)stream;
    (void)error;
    for (const struct ballast_copy *copy = copies; copy < copies + count; copy++) {
        for (size_t row = 0; row < copy->rows; row++) {
            memcpy((char *)copy->to + row * copy->to_stride,
                   (const char *)copy->from + row * copy->from_stride, copy->row_bytes);
        }
    }
    return 0;
}

static void add_rows(const struct ballast_copy *copy) {
    for (size_t row = 0; row < copy->rows; row++) {
        float *to = (float *)(void *)((char *)copy->to + row * copy->to_stride);
        const float *from = (const float *)(const void *)((const char *)copy->from +
                                                          row * copy->from_stride);
        for (size_t i = 0; i < copy->row_bytes / sizeof(float); i++) {
            to[i] += from[i];
        }
    }
}

static int board_add(struct ballast_exchange_transport *transport,
                     const struct ballast_copy *copies, uint32_t count, void *stream,
                     struct ballast_attn_error *error) {
    (void)transport;
    (void)stream;
    (void)error;
    for (uint32_t i = 0; i < count; i++) {
        add_rows(&copies[i]);
    }
    return 0;
}

static void board_close(struct ballast_exchange_transport *transport) {
    struct board_transport *t = board_of(transport);
    board_lock(t->board);
    t->board->left[transport->rank] = true;
    (void)pthread_cond_broadcast(&t->board->changed);
    board_unlock(t->board);
    free(t);
}

static const struct ballast_transport_operations board_operations = {
    .gather = board_gather,
    .start = board_start,
    .wait = board_wait,
    .copy = board_copy,
    .add = board_add,
    .close = board_close,
};

int ballast_transport_board(struct ballast_exchange_transport **out, void *memory, uint32_t rank,
                            uint32_t deadline_ms, struct ballast_attn_error *error) {
    struct board *board = memory;
    if (board->magic != BOARD_MAGIC || rank >= board->ranks) {
        return attn_error(error, -EINVAL, "rank %u on a board of %u ranks", rank, board->ranks);
    }
    struct board_transport *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return attn_error(error, -ENOMEM, "no memory for a transport");
    }
    t->transport = (struct ballast_exchange_transport){
        .operations = &board_operations, .rank = rank, .ranks = board->ranks};
    t->board = board;
    t->deadline_ms = deadline_ms;
    *out = &t->transport;
    return 0;
}
