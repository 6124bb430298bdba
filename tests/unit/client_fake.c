/* The scripted daemon: see client_fake.h. */
#include "client_fake.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define WAIT_MS 30000

static int fake_listener(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    FAKE_CHECK(strlen(path) < sizeof address.sun_path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FAKE_CHECK(fd >= 0);
    FAKE_CHECK(bind(fd, (const struct sockaddr *)&address, sizeof address) == 0);
    FAKE_CHECK(listen(fd, 8) == 0);
    return fd;
}

static void fake_wait(int fd) {
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    FAKE_CHECK(poll(&poll_fd, 1, WAIT_MS) == 1);
}

static void *fake_run(void *argument) {
    struct fake *fake = argument;
    fake->script(fake);
    return NULL;
}

void fake_prepare(struct fake *fake) {
    *fake = (struct fake){.listener = -1, .data_listener = -1, .connection = -1};
    (void)snprintf(fake->dir, sizeof fake->dir, "/tmp/ballast-fake-XXXXXX");
    FAKE_CHECK(mkdtemp(fake->dir) != NULL);
    (void)snprintf(fake->path, sizeof fake->path, "%s/sock", fake->dir);
    (void)snprintf(fake->data_path, sizeof fake->data_path, "%s.data", fake->path);
    fake->buffer = malloc(FRAME_HEADER_BYTES + FRAME_DATA_BYTES_MAX);
    FAKE_CHECK(fake->buffer != NULL);
    arena_init(&fake->arena, 64u << 20);
}

void fake_listen(struct fake *fake) {
    fake->listener = fake_listener(fake->path);
    fake->data_listener = fake_listener(fake->data_path);
}

void fake_start(struct fake *fake, void (*script)(struct fake *fake), void *context) {
    fake_prepare(fake);
    fake_listen(fake);
    fake->script = script;
    fake->context = context;
    FAKE_CHECK(pthread_create(&fake->thread, NULL, fake_run, fake) == 0);
}

void fake_stop(struct fake *fake) {
    if (fake->script != NULL) {
        FAKE_CHECK(pthread_join(fake->thread, NULL) == 0);
    }
    fake_hang_up(fake);
    if (fake->listener >= 0) {
        close(fake->listener);
        close(fake->data_listener);
        unlink(fake->path);
        unlink(fake->data_path);
    }
    rmdir(fake->dir);
    arena_deinit(&fake->arena);
    free(fake->buffer);
}

bool fake_accept_any(struct fake *fake) {
    fake_hang_up(fake);
    fake->connection = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC);
    frame_reader_init(&fake->reader, fake->buffer, FRAME_HEADER_BYTES + FRAME_DATA_BYTES_MAX);
    return fake->connection >= 0;
}

void fake_accept(struct fake *fake) {
    fake_hang_up(fake);
    fake_wait(fake->listener);
    FAKE_CHECK(fake_accept_any(fake));
}

void fake_hang_up(struct fake *fake) {
    if (fake->connection >= 0) {
        close(fake->connection);
    }
    fake->connection = -1;
}

void fake_send_raw(struct fake *fake, const void *bytes, size_t count) {
    const uint8_t *at = bytes;
    while (count > 0) {
        ssize_t sent = send(fake->connection, at, count, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) {
            return; /* the client has gone, which the next receive will say */
        }
        FAKE_CHECK(sent > 0);
        at += sent;
        count -= (size_t)sent;
    }
}

void fake_send_frame(struct fake *fake, const struct frame_header *header, const uint8_t *data) {
    uint8_t *frame = malloc(FRAME_HEADER_BYTES + header->length);
    FAKE_CHECK(frame != NULL);
    frame_header_encode(header, frame);
    if (header->length > 0) {
        memcpy(frame + FRAME_HEADER_BYTES, data, header->length);
    }
    fake_send_raw(fake, frame, FRAME_HEADER_BYTES + header->length);
    free(frame);
}

bool fake_receive(struct fake *fake, struct frame_header *header, const uint8_t **data) {
    for (;;) {
        const char *reason = "";
        int code = frame_reader_next(&fake->reader, header, data, &reason);
        FAKE_CHECK(code >= 0);
        if (code == 1) {
            return true;
        }
        size_t space;
        uint8_t *to = frame_reader_space(&fake->reader, &space);
        fake_wait(fake->connection);
        ssize_t got = recv(fake->connection, to, space, 0);
        if (got <= 0) {
            return false;
        }
        frame_reader_fill(&fake->reader, (size_t)got);
    }
}

const Ttrpc__Request *fake_unpack_request(struct fake *fake, const uint8_t *data, uint32_t bytes) {
    Ttrpc__Request *request = ttrpc__request__unpack(&fake->arena.allocator, bytes, data);
    FAKE_CHECK(request != NULL);
    return request;
}

void *fake_request(struct fake *fake, const char *method, const ProtobufCMessageDescriptor *type,
                   uint32_t *stream) {
    struct frame_header header;
    const uint8_t *data;
    arena_reset(&fake->arena);
    FAKE_CHECK(fake_receive(fake, &header, &data));
    FAKE_CHECK(header.type == FRAME_REQUEST);
    const Ttrpc__Request *request = fake_unpack_request(fake, data, header.length);
    FAKE_CHECK(strcmp(request->method, method) == 0);
    *stream = header.stream;
    void *message = protobuf_c_message_unpack(type, &fake->arena.allocator, request->payload.len,
                                              request->payload.data);
    FAKE_CHECK(message != NULL);
    return message;
}

static void fake_send_message(struct fake *fake, struct frame_header header,
                              const ProtobufCMessage *message) {
    header.length = (uint32_t)protobuf_c_message_get_packed_size(message);
    uint8_t *packed = malloc(header.length + 1u);
    FAKE_CHECK(packed != NULL);
    protobuf_c_message_pack(message, packed);
    fake_send_frame(fake, &header, packed);
    free(packed);
}

void fake_respond(struct fake *fake, uint32_t stream, const ProtobufCMessage *message) {
    Ttrpc__Response response = TTRPC__RESPONSE__INIT;
    response.payload.len = protobuf_c_message_get_packed_size(message);
    response.payload.data = malloc(response.payload.len + 1);
    FAKE_CHECK(response.payload.data != NULL);
    protobuf_c_message_pack(message, response.payload.data);
    fake_send_message(fake, (struct frame_header){.stream = stream, .type = FRAME_RESPONSE},
                      &response.base);
    free(response.payload.data);
}

void fake_refuse(struct fake *fake, uint32_t stream, enum status status, const char *sentence) {
    Ttrpc__Response response = TTRPC__RESPONSE__INIT;
    Ttrpc__Status inner = TTRPC__STATUS__INIT;
    inner.code = (int32_t)status;
    inner.message = (char *)sentence;
    response.status = &inner;
    fake_send_message(fake, (struct frame_header){.stream = stream, .type = FRAME_RESPONSE},
                      &response.base);
}

void fake_send(struct fake *fake, uint32_t stream, const ProtobufCMessage *message) {
    fake_send_message(fake, (struct frame_header){.stream = stream, .type = FRAME_DATA}, message);
}

Ballast__V1__StreamRequest *fake_stream_request(struct fake *fake, uint32_t stream) {
    struct frame_header header;
    const uint8_t *data;
    arena_reset(&fake->arena);
    FAKE_CHECK(fake_receive(fake, &header, &data));
    FAKE_CHECK(header.type == FRAME_DATA);
    FAKE_CHECK(header.stream == stream);
    Ballast__V1__StreamRequest *message = ballast__v1__stream_request__unpack(
        &fake->arena.allocator, header.length, data);
    FAKE_CHECK(message != NULL);
    return message;
}
