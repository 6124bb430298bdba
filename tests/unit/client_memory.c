/* Every allocation of libballast fails once: each failure is -ENOMEM with a sentence, nothing leaks
 * (the sanitizer build looks), and the same client then goes on at the same batch. malloc and
 * calloc are wrapped at link time and fail in the client's thread only. */
#include "client_world.h"

#include "client/ballast.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static _Thread_local unsigned allocations_left; /* 0: none fails */
static _Thread_local unsigned allocations_failed;

static bool allocation_fails(void) {
    if (allocations_left == 0 || --allocations_left > 0) {
        return false;
    }
    allocations_failed++;
    return true;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

void *__wrap_malloc(size_t bytes) {
    return allocation_fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes) {
    return allocation_fails() ? NULL : __real_calloc(count, bytes);
}

/* A daemon for as many connections as come: greets, passes memory, sends step 3 from where it is
 * asked to, and answers commits. Ends when its listeners are shut down. */
struct server {
    struct fake *fake;
    struct world_memory memory;
};

static void serve_stream(struct server *server, uint32_t stream, const uint8_t *data,
                         uint32_t bytes) {
    Ballast__V1__StreamRequest *request = ballast__v1__stream_request__unpack(
        &server->fake->arena.allocator, bytes, data);
    FAKE_CHECK(request != NULL);
    if (request->from == NULL) {
        return;
    }
    for (uint32_t index = request->from->index; index < WORLD_MICRO_BATCHES; index++) {
        world_send_batch(server->fake, stream, &server->memory, request->from->step, index);
    }
    world_send_end_of_step(server->fake, stream, request->from->step);
}

static void serve_request(struct server *server, uint32_t stream, const uint8_t *data,
                          uint32_t bytes) {
    Ballast__V1__HelloResponse hello;
    Ballast__V1__CommitResponse commit = BALLAST__V1__COMMIT_RESPONSE__INIT;
    const char *method = fake_unpack_request(server->fake, data, bytes)->method;
    world_hello_init(&hello, server->fake);
    if (strcmp(method, "Hello") == 0) {
        fake_respond(server->fake, stream, &hello.base);
    } else if (strcmp(method, "Commit") == 0) {
        fake_respond(server->fake, stream, &commit.base);
    }
}

static void serve_connection(struct server *server) {
    struct frame_header header;
    const uint8_t *data;
    while (fake_receive(server->fake, &header, &data)) {
        arena_reset(&server->fake->arena);
        if (header.type == FRAME_REQUEST) {
            serve_request(server, header.stream, data, header.length);
        } else {
            serve_stream(server, header.stream, data, header.length);
        }
    }
}

static void serve_all(struct fake *fake) {
    struct server *server = fake->context;
    server->fake = fake;
    while (fake_accept_any(fake)) {
        serve_connection(server);
    }
}

static void *serve_data(void *argument) {
    struct server *server = argument;
    uint8_t token[MAPPING_TOKEN_BYTES];
    for (;;) {
        int fd = accept4(server->fake->data_listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) {
            return NULL;
        }
        if (recv(fd, token, sizeof token, MSG_WAITALL) == (ssize_t)sizeof token) {
            world_send_fd(fd, server->memory.fd);
        }
        close(fd);
    }
}

struct progress {
    unsigned taken; /* batches of step 3 */
    bool ended;     /* step 3 was seen to end */
};

/* Takes what is left of step 3 and commits it. Returns the first failure. */
static int take_a_step(struct ballast *client, struct progress *progress) {
    int32_t rows[WORLD_ROWS];
    while (!progress->ended) {
        const struct ballast_batch *batch = NULL;
        int event = ballast_next(client, -1, &batch);
        if (event < 0) {
            return event;
        }
        progress->ended = event == BALLAST_END_OF_STEP;
        if (progress->ended) {
            break;
        }
        assert_int_equal(batch->index, progress->taken++);
        assert_int_equal(
            ballast_gather(client, batch, BALLAST_LABELS, BALLAST_INT32, rows, WORLD_ROWS),
            WORLD_ROWS);
        int code = ballast_release(client, batch);
        if (code < 0) {
            return code;
        }
    }
    return ballast_commit(client, 3);
}

/* One client, whose `nth` allocation fails. Returns whether it had so many. */
static bool run_with_failure(const struct fake *fake, unsigned nth) {
    struct ballast_options options = BALLAST_OPTIONS_INIT;
    struct ballast *client = NULL;
    struct progress progress = {0};
    options.socket = fake->path;
    allocations_failed = 0;
    allocations_left = nth;
    int opened = ballast_open(&options, &client);
    int code = opened == 0 ? take_a_step(client, &progress) : opened;
    allocations_left = 0;
    if (code < 0) {
        assert_int_equal(code, -ENOMEM);
        assert_int_equal(allocations_failed, 1);
        assert_non_null(strstr(ballast_error(client), "memory"));
    }
    if (opened == 0 && code < 0) {
        assert_int_equal(take_a_step(client, &progress), 0);
        assert_int_equal(progress.taken, WORLD_MICRO_BATCHES);
    }
    ballast_close(client);
    return allocations_failed == 1;
}

static void every_allocation_may_fail_once(void **state) {
    (void)state;
    struct fake fake;
    struct server server = {0};
    pthread_t data_thread;
    world_memory_create(&server.memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    server.fake = &fake;
    fake_start(&fake, serve_all, &server);
    assert_int_equal(pthread_create(&data_thread, NULL, serve_data, &server), 0);
    unsigned nth = 1;
    while (run_with_failure(&fake, nth)) {
        nth++;
    }
    assert_true(nth > 10);
    shutdown(fake.listener, SHUT_RDWR);
    shutdown(fake.data_listener, SHUT_RDWR);
    pthread_join(data_thread, NULL);
    fake_stop(&fake);
    world_memory_destroy(&server.memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
