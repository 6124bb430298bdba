/* call: see call.h.
 *
 * Frames are read into one buffer and looked at in place; only those that arrive out of turn (a
 * batch while a unary call waits) are copied to a list. Sending gives up after SEND_TIMEOUT_MS:
 * our messages are small, so a socket that stays full means a daemon that stopped reading. */
#include "client/call.h"

#include "client/deadline.h"
#include "proto/frame.h"
#include "proto/payload.h"
#include "ttrpc.pb-c.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define READER_BYTES       (FRAME_HEADER_BYTES + FRAME_DATA_BYTES_MAX)
#define OUT_BYTES_MAX      (4u * FRAME_DATA_BYTES_MAX) /* message, envelope and frame of one send */
#define KEPT_BYTES_MAX     (64u << 20)
#define ENVELOPE_BYTES_MAX (64u << 10) /* besides the payload */
#define SEND_TIMEOUT_MS    30000
#define SEALED_BYTES       (32u << 10)
#define RETRY_MS_MIN       10
#define RETRY_MS_MAX       500

struct call_frame {
    struct call_frame *next;
    struct frame_header header;
    uint8_t data[];
};

/* Where payloads of a fetch go, and how much of a frame whose beginning was seen goes there
 * straight from the socket, past the reader. */
struct call_sink {
    uint8_t *to;
    uint64_t left;
    uint64_t bytes;
    uint8_t *direct_to; /* NULL: to nowhere, the fetch was dropped */
    uint64_t direct;
};

struct call_channel {
    struct dialed dialed;
    uint32_t stream_next; /* id of the next request */
    uint32_t stream;      /* id of the open stream, 0 without */
    uint32_t pending;     /* id of the unary call that is waited for, 0 without */
    uint32_t fetch;       /* id of the call that is answered by messages, 0 without */
    int send_code;        /* why nothing can be sent any more, 0 while it can */
    int receive_code;     /* likewise for receiving */
    struct frame_reader reader;
    uint8_t *buffer;
    struct call_frame *kept; /* oldest first */
    struct call_frame **kept_end;
    size_t kept_bytes;
    struct call_sink sink; /* of the fetch */
    struct arena out;
    struct error failure;         /* what TLS said of a connection that it ended */
    uint8_t sealed[SEALED_BYTES]; /* as received or to be sent, over TLS */
};

/* A frame in hand: `owned` is freed after use, NULL while it stands in the reader's buffer. */
struct call_taken {
    struct frame_header header;
    const uint8_t *data;
    struct call_frame *owned;
};

static int call_broken(const struct call_channel *channel, int code, struct error *error) {
    if (channel->failure.code == code && code != -EPIPE) {
        return error_set(error, code, "%s", channel->failure.text);
    }
    switch (code) {
    case -EPIPE:
        return error_set(error, code, "the daemon closed the connection");
    case -EMSGSIZE:
    case -EPROTO:
        return error_set(error, code,
                         "the connection does not follow the protocol; is this the "
                         "socket of a ballastd of this version?");
    case -ETIMEDOUT:
        return error_set(error, code, "the daemon reads nothing from the connection");
    default:
        return error_set(error, code, "connection to the daemon: %s", strerror(-code));
    }
}

static int call_dial_until(const char *address, const struct dial_credentials *credentials,
                           int64_t deadline, struct dialed *out, struct error *error) {
    int64_t pause_ns = (int64_t)RETRY_MS_MIN * 1000000;
    for (;;) {
        int code = dial_begin(address, credentials, DEADLINE_NEVER, out, error);
        code = code < 0 ? code : dial_advance(out, credentials, DEADLINE_NEVER, error);
        int64_t now = deadline_now_ns();
        if (code != -ECONNREFUSED || now >= deadline) {
            return code;
        }
        (void)deadline_poll(-1, 0, deadline_earlier(deadline, now + pause_ns));
        pause_ns = deadline_earlier(2 * pause_ns, (int64_t)RETRY_MS_MAX * 1000000);
    }
}

int call_open_dialed(struct dialed *dialed, struct call_channel **out, struct error *error) {
    struct call_channel *channel = calloc(1, sizeof *channel);
    uint8_t *buffer = malloc(READER_BYTES);
    if (channel == NULL || buffer == NULL) {
        free(buffer);
        free(channel);
        dial_close(dialed);
        return error_set(error, -ENOMEM, "connect to the daemon: out of memory");
    }
    channel->dialed = *dialed;
    *dialed = (struct dialed){.fd = -1};
    channel->stream_next = 1;
    channel->buffer = buffer;
    channel->kept_end = &channel->kept;
    frame_reader_init(&channel->reader, buffer, READER_BYTES);
    arena_init(&channel->out, OUT_BYTES_MAX);
    *out = channel;
    return 0;
}

int call_open_as(const char *address, const struct dial_credentials *credentials, int timeout_ms,
                 struct call_channel **out, struct error *error) {
    struct dialed dialed;
    int code = call_dial_until(address, credentials, deadline_in_ms(timeout_ms), &dialed, error);
    return code < 0 ? code : call_open_dialed(&dialed, out, error);
}

int call_open(const char *address, int timeout_ms, struct call_channel **out, struct error *error) {
    struct dial_credentials credentials;
    int code = dial_resolve(&(struct dial_given){0}, &credentials, error);
    return code < 0 ? code : call_open_as(address, &credentials, timeout_ms, out, error);
}

void call_close(struct call_channel *channel) {
    if (channel == NULL) {
        return;
    }
    dial_close(&channel->dialed);
    while (channel->kept != NULL) {
        struct call_frame *next = channel->kept->next;
        free(channel->kept);
        channel->kept = next;
    }
    arena_deinit(&channel->out);
    free(channel->buffer);
    free(channel);
}

int call_fd(const struct call_channel *channel) {
    return channel->dialed.fd;
}

static int call_write_plain(struct call_channel *channel, const uint8_t *bytes, size_t count) {
    int64_t deadline = deadline_in_ms(SEND_TIMEOUT_MS);
    int fd = channel->dialed.fd;
    while (count > 0) {
        ssize_t sent = send(fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) {
            bytes += sent;
            count -= (size_t)sent;
        } else if (errno == EAGAIN) {
            int ready = deadline_poll(fd, POLLOUT, deadline);
            if (ready <= 0) {
                return ready == 0 ? -ETIMEDOUT : ready;
            }
        } else if (errno != EINTR) {
            return -errno;
        }
    }
    return 0;
}

/* Sends what TLS has to send. */
static int call_write_sealed(struct call_channel *channel) {
    size_t count;
    int code = 0;
    while (code == 0 &&
           (count = tls_take(channel->dialed.tls, channel->sealed, SEALED_BYTES)) > 0) {
        code = call_write_plain(channel, channel->sealed, count);
    }
    return code;
}

static int call_read_sealed(struct call_channel *channel, uint8_t *to, size_t space);

static int call_write(struct call_channel *channel, const uint8_t *bytes, size_t count) {
    struct tls *tls = channel->dialed.tls;
    if (tls == NULL) {
        return call_write_plain(channel, bytes, count);
    }
    int code = tls_write(tls, bytes, count, &channel->failure);
    if (code == 0) {
        code = call_write_sealed(channel);
    }
    if (code == -EPIPE || code == -ECONNRESET) { /* why may have come before that */
        size_t space;
        uint8_t *to = frame_reader_space(&channel->reader, &space);
        int why = call_read_sealed(channel, to, space);
        code = why < 0 && why != -EAGAIN ? why : code;
    }
    return code;
}

/* Packs a message behind `before` bytes of room; out->len counts the message alone. */
static int call_pack(struct call_channel *channel, const ProtobufCMessage *message, size_t before,
                     ProtobufCBinaryData *out, struct error *error) {
    size_t bytes = protobuf_c_message_get_packed_size(message);
    if (bytes > FRAME_DATA_BYTES_MAX) {
        return error_set(error, -EMSGSIZE, "a message of %zu bytes does not fit a frame of %u",
                         bytes, FRAME_DATA_BYTES_MAX);
    }
    out->data = arena_alloc(&channel->out, before + bytes);
    if (out->data == NULL) {
        return error_set(error, -ENOMEM, "send a message of %zu bytes: out of memory", bytes);
    }
    out->len = protobuf_c_message_pack(message, out->data + before);
    return 0;
}

/* Sends one frame around a message; `header` lacks the length only. */
static int call_send(struct call_channel *channel, struct frame_header header,
                     const ProtobufCMessage *message, struct error *error) {
    ProtobufCBinaryData frame;
    if (channel->send_code < 0) {
        return call_broken(channel, channel->send_code, error);
    }
    int code = call_pack(channel, message, FRAME_HEADER_BYTES, &frame, error);
    if (code < 0) {
        return code;
    }
    header.length = (uint32_t)frame.len;
    frame_header_encode(&header, frame.data);
    channel->send_code = call_write(channel, frame.data, FRAME_HEADER_BYTES + frame.len);
    return channel->send_code < 0 ? call_broken(channel, channel->send_code, error) : 0;
}

/* Sends a request frame for a new stream id, which is returned in *stream. */
static int call_request(struct call_channel *channel, const char *service, const char *method,
                        const ProtobufCMessage *payload, uint8_t flags, uint32_t *stream,
                        struct error *error) {
    Ttrpc__Request request = TTRPC__REQUEST__INIT;
    uint32_t id = channel->stream_next;
    struct frame_header header = {.stream = id, .type = FRAME_REQUEST, .flags = flags};
    request.service = (char *)service;
    request.method = (char *)method;
    arena_reset(&channel->out);
    int code = payload == NULL ? 0 : call_pack(channel, payload, 0, &request.payload, error);
    if (code == 0) {
        code = call_send(channel, header, &request.base, error);
    }
    if (code == 0) {
        channel->stream_next = id + 2;
        *stream = id;
    }
    return code;
}

static int call_keep(struct call_channel *channel, const struct frame_header *header,
                     const uint8_t *data) {
    size_t bytes = sizeof(struct call_frame) + header->length;
    if (bytes > KEPT_BYTES_MAX - channel->kept_bytes) {
        return -EPROTO;
    }
    struct call_frame *frame = malloc(bytes);
    if (frame == NULL) {
        return -ENOMEM;
    }
    frame->next = NULL;
    frame->header = *header;
    memcpy(frame->data, data, header->length);
    *channel->kept_end = frame;
    channel->kept_end = &frame->next;
    channel->kept_bytes += bytes;
    return 0;
}

static bool call_take_kept(struct call_channel *channel, uint32_t stream, struct call_taken *out) {
    for (struct call_frame **at = &channel->kept; *at != NULL; at = &(*at)->next) {
        struct call_frame *frame = *at;
        if (frame->header.stream == stream) {
            *at = frame->next;
            if (frame->next == NULL) {
                channel->kept_end = at;
            }
            channel->kept_bytes -= sizeof *frame + frame->header.length;
            *out = (struct call_taken){frame->header, frame->data, frame};
            return true;
        }
    }
    return false;
}

static void call_sink_put(struct call_sink *sink, const uint8_t *bytes, uint64_t count) {
    if (count > 0) {
        memcpy(sink->to, bytes, count);
        sink->to += count;
        sink->left -= count;
    }
}

/* A message of the fetch that is whole. */
static int call_sink_message(struct call_channel *channel, const uint8_t *message, size_t bytes) {
    const uint8_t *payload;
    size_t count;
    if (payload_find(message, bytes, &payload, &count) < 0) {
        return error_set(&channel->failure, -EPROTO,
                         "the daemon's FetchResponse of %zu bytes does not unpack", bytes);
    }
    if (count > channel->sink.left) {
        return error_set(&channel->failure, -EPROTO,
                         "the daemon sent more than the %llu bytes of its batch",
                         (unsigned long long)channel->sink.bytes);
    }
    call_sink_put(&channel->sink, payload, count);
    return 0;
}

/* If what is left of the buffer is the beginning of one, empties it: the rest comes directly. */
static void call_sink_begin(struct call_channel *channel) {
    struct frame_reader *reader = &channel->reader;
    struct call_sink *sink = &channel->sink;
    struct frame_header header;
    size_t have = reader->used - reader->done;
    if (channel->fetch == 0 || have < FRAME_HEADER_BYTES) {
        return;
    }
    const uint8_t *message = reader->buffer + reader->done + FRAME_HEADER_BYTES;
    have -= FRAME_HEADER_BYTES;
    frame_header_decode(reader->buffer + reader->done, &header);
    if (header.type != FRAME_DATA || header.stream != channel->fetch) {
        return;
    }
    size_t head = payload_read_head(message, have, header.length);
    if (head == 0 || header.length - head > sink->left) {
        return;
    }
    call_sink_put(sink, message + head, have - head);
    sink->direct = header.length - have;
    sink->direct_to = sink->to;
    sink->to += sink->direct;
    sink->left -= sink->direct;
    reader->done = reader->used;
}

/* Where the next bytes of the connection go. */
static uint8_t *call_space(struct call_channel *channel, size_t *space) {
    struct call_sink *sink = &channel->sink;
    uint8_t *to = frame_reader_space(&channel->reader, space);
    if (sink->direct > 0 && sink->direct < *space) {
        *space = (size_t)sink->direct;
    }
    return sink->direct > 0 && sink->direct_to != NULL ? sink->direct_to : to;
}

static void call_filled(struct call_channel *channel, size_t count) {
    struct call_sink *sink = &channel->sink;
    if (sink->direct == 0) {
        frame_reader_fill(&channel->reader, count);
        return;
    }
    sink->direct -= count;
    sink->direct_to = sink->direct_to == NULL ? NULL : sink->direct_to + count;
}

/* Looks at the next frame in the buffer: 1 it is of `stream`; 0 there is none; 2 it was another's,
 * and is kept, or dropped as the late answer to a call that was given up. */
static int call_take_read(struct call_channel *channel, uint32_t stream, struct call_taken *out) {
    const char *reason;
    struct frame_header *header = &out->header;
    out->owned = NULL;
    int code = frame_reader_next(&channel->reader, header, &out->data, &reason);
    if (code == 0) {
        call_sink_begin(channel);
    }
    if (code <= 0) {
        return code;
    }
    if (header->type == FRAME_REQUEST || header->stream % 2 == 0 ||
        header->stream >= channel->stream_next) {
        return -EPROTO;
    }
    if (header->type == FRAME_DATA && header->stream == channel->fetch) {
        code = call_sink_message(channel, out->data, header->length);
        return code < 0 ? code : 2;
    }
    if (header->stream == stream) {
        return 1;
    }
    if (header->stream == channel->stream || header->stream == channel->pending ||
        header->stream == channel->fetch) {
        code = call_keep(channel, header, out->data);
    }
    return code < 0 ? code : 2;
}

/* Once, without waiting: bytes; -EAGAIN none are there; -EPIPE the end. */
static int call_read_plain(const struct call_channel *channel, uint8_t *to, size_t space) {
    ssize_t got = recv(channel->dialed.fd, to, space, MSG_DONTWAIT);
    if (got < 0) {
        return errno == EINTR ? -EAGAIN : -errno;
    }
    return got == 0 ? -EPIPE : (int)got;
}

/* The same through TLS, which may have bytes that the socket has no more. */
static int call_read_sealed(struct call_channel *channel, uint8_t *to, size_t space) {
    for (;;) {
        int64_t plain = tls_read(channel->dialed.tls, to, space, &channel->failure);
        if (plain != 0) {
            return (int)plain;
        }
        int got = call_read_plain(channel, channel->sealed, SEALED_BYTES);
        if (got > 0) {
            got = tls_put(channel->dialed.tls, channel->sealed, (size_t)got);
        }
        if (got < 0) {
            return got;
        }
    }
}

static int call_read(struct call_channel *channel, int64_t deadline) {
    for (;;) {
        size_t space;
        uint8_t *to = call_space(channel, &space);
        int got = channel->dialed.tls == NULL ? call_read_plain(channel, to, space)
                                              : call_read_sealed(channel, to, space);
        if (got > 0) {
            call_filled(channel, (size_t)got);
            return 1;
        }
        if (got != -EAGAIN) {
            return got;
        }
        int ready = deadline_poll(channel->dialed.fd, POLLIN, deadline);
        if (ready <= 0) {
            return ready;
        }
    }
}

/* Next frame of a stream: 1, or 0 when the deadline passed. */
static int call_take(struct call_channel *channel, uint32_t stream, int64_t deadline,
                     struct call_taken *out, struct error *error) {
    if (call_take_kept(channel, stream, out)) {
        return 1;
    }
    for (;;) {
        int code = call_take_read(channel, stream, out);
        if (code == 1) {
            return 1;
        }
        if (code == 0) {
            code = channel->receive_code;
            if (code == 0) {
                code = call_read(channel, deadline);
            }
            if (code == 0) {
                return 0;
            }
        }
        if (code < 0) {
            channel->receive_code = code;
            return call_broken(channel, code, error);
        }
    }
}

static int call_unpack(const ProtobufCMessageDescriptor *type, struct arena *arena, size_t bytes,
                       const uint8_t *data, ProtobufCMessage **out, struct error *error) {
    ProtobufCMessage *message = protobuf_c_message_unpack(type, &arena->allocator, bytes, data);
    if (message == NULL && arena->full) {
        return error_set(error, -ENOMEM, "the daemon's %s of %zu bytes does not fit into memory",
                         type->short_name, bytes);
    }
    if (message == NULL) {
        return error_set(error, -EPROTO, "the daemon's %s of %zu bytes does not unpack",
                         type->short_name, bytes);
    }
    *out = message;
    return 0;
}

/* Opens a response frame: refusals become errors, the payload of a success is unpacked as `type`
 * (NULL: there is nothing to unpack). */
static int call_open_response(const struct call_taken *taken,
                              const ProtobufCMessageDescriptor *type, struct arena *arena,
                              ProtobufCMessage **out, struct error *error) {
    struct arena envelope;
    ProtobufCMessage *message = NULL;
    arena_init(&envelope, taken->header.length + (size_t)ENVELOPE_BYTES_MAX);
    int code = call_unpack(&ttrpc__response__descriptor, &envelope, taken->header.length,
                           taken->data, &message, error);
    if (code == 0) {
        const Ttrpc__Response *response = (const Ttrpc__Response *)message;
        const Ttrpc__Status *status = response->status;
        if (status != NULL && status->code != 0) {
            code = status_to_error((unsigned)status->code);
            const char *sentence = status->message[0] != '\0'
                                       ? status->message
                                       : status_sentence(status_from_error(code));
            (void)error_set(error, code, "%s", sentence);
        } else if (type != NULL) {
            code = call_unpack(type, arena, response->payload.len, response->payload.data, out,
                               error);
        }
    }
    arena_deinit(&envelope);
    return code;
}

/* Forgets a call or stream, if any: what comes of it, or has come, is dropped. */
static void call_abandon(struct call_channel *channel, uint32_t *stream) {
    struct call_taken taken;
    while (*stream != 0 && call_take_kept(channel, *stream, &taken)) {
        free(taken.owned);
    }
    *stream = 0;
}

int call_start(struct call_channel *channel, const char *service, const char *method,
               const ProtobufCMessage *request, struct error *error) {
    call_abandon(channel, &channel->pending);
    return call_request(channel, service, method, request, FRAME_REMOTE_CLOSED, &channel->pending,
                        error);
}

int call_finish(struct call_channel *channel, const ProtobufCMessageDescriptor *response_type,
                struct arena *arena, ProtobufCMessage **response, int timeout_ms,
                struct error *error) {
    struct call_taken taken;
    assert(channel->pending != 0);
    int code = call_take(channel, channel->pending, deadline_in_ms(timeout_ms), &taken, error);
    if (code <= 0) {
        return code;
    }
    channel->pending = 0;
    if (taken.header.type == FRAME_RESPONSE) {
        code = call_open_response(&taken, response_type, arena, response, error);
    } else {
        code = error_set(error, -EPROTO, "the daemon answered a plain call with a stream");
    }
    free(taken.owned);
    return code < 0 ? code : 1;
}

int call_unary(struct call_channel *channel, const char *service, const char *method,
               const ProtobufCMessage *request, const ProtobufCMessageDescriptor *response_type,
               struct arena *arena, ProtobufCMessage **response, int timeout_ms,
               struct error *error) {
    int code = call_start(channel, service, method, request, error);
    if (code < 0) {
        return code;
    }
    code = call_finish(channel, response_type, arena, response, timeout_ms, error);
    if (code == 0) {
        call_abandon(channel, &channel->pending);
        return error_set(error, -ETIMEDOUT, "the daemon did not answer %s within %d ms", method,
                         timeout_ms);
    }
    return code < 0 ? code : 0;
}

int call_stream_open(struct call_channel *channel, const char *service, const char *method,
                     struct error *error) {
    assert(channel->stream == 0);
    return call_request(channel, service, method, NULL, FRAME_REMOTE_OPEN, &channel->stream, error);
}

int call_stream_send(struct call_channel *channel, const ProtobufCMessage *message,
                     struct error *error) {
    if (channel->stream == 0) {
        return error_set(error, -EPIPE, "the stream has ended");
    }
    arena_reset(&channel->out);
    struct frame_header header = {.stream = channel->stream, .type = FRAME_DATA};
    return call_send(channel, header, message, error);
}

void call_stream_drop(struct call_channel *channel) {
    call_abandon(channel, &channel->stream);
}

void call_fetch_drop(struct call_channel *channel) {
    call_abandon(channel, &channel->fetch);
    channel->sink.to = NULL;
    channel->sink.left = 0;
    channel->sink.direct_to = NULL;
}

int call_fetch_start(struct call_channel *channel, const char *service, const char *method,
                     const ProtobufCMessage *request, uint8_t *to, uint64_t bytes,
                     struct error *error) {
    call_fetch_drop(channel);
    channel->sink.to = to;
    channel->sink.left = bytes;
    channel->sink.bytes = bytes;
    return call_request(channel, service, method, request, FRAME_REMOTE_CLOSED, &channel->fetch,
                        error);
}

int call_fetch_finish(struct call_channel *channel, int timeout_ms, struct error *error) {
    struct call_taken taken;
    uint64_t left;
    assert(channel->fetch != 0);
    int code = call_take(channel, channel->fetch, deadline_in_ms(timeout_ms), &taken, error);
    if (code <= 0) {
        return code;
    }
    left = channel->sink.left;
    channel->fetch = 0;
    code = call_open_response(&taken, NULL, NULL, NULL, error);
    free(taken.owned);
    if (code == 0 && left > 0) {
        code = error_set(error, -EPROTO, "the daemon sent %llu of the %llu bytes of a batch",
                         (unsigned long long)(channel->sink.bytes - left),
                         (unsigned long long)channel->sink.bytes);
    }
    return code < 0 ? code : 1;
}

/* The response frame that ends a stream, as an error. */
static int call_stream_end(struct call_channel *channel, const struct call_taken *taken,
                           struct error *error) {
    int code = call_open_response(taken, NULL, NULL, NULL, error);
    channel->stream = 0;
    return code < 0 ? code : error_set(error, -EPIPE, "the daemon ended the stream");
}

int call_stream_next(struct call_channel *channel, const ProtobufCMessageDescriptor *type,
                     struct arena *arena, ProtobufCMessage **message, int timeout_ms,
                     struct error *error) {
    int64_t deadline = deadline_in_ms(timeout_ms);
    for (;;) {
        struct call_taken taken;
        if (channel->stream == 0) {
            return error_set(error, -EPIPE, "the stream has ended");
        }
        int code = call_take(channel, channel->stream, deadline, &taken, error);
        if (code <= 0) {
            return code;
        }
        bool empty = (taken.header.flags & FRAME_NO_DATA) != 0;
        if (taken.header.type == FRAME_RESPONSE) {
            code = call_stream_end(channel, &taken, error);
        } else if (!empty) {
            code = call_unpack(type, arena, taken.header.length, taken.data, message, error);
        }
        free(taken.owned);
        if (code < 0 || !empty) {
            return code < 0 ? code : 1;
        }
    }
}
