/* conn: see conn.h. */
#include "daemon/conn.h"

#include "daemon/failpoint.h"
#include "daemon/loader.h"
#include "daemon/log.h"
#include "daemon/remote.h"
#include "daemon/server.h"
#include "proto/payload.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONN_HEAD_BYTES   (FRAME_HEADER_BYTES + PAYLOAD_HEAD_BYTES_MAX)
#define CONN_SOCKET_BYTES (1 << 20)
#define CONN_RECORD_BYTES 17000u /* what TLS sends of 16 KiB, and somewhat more */

static struct conn *conn_of(const struct session *session) {
    return session->owner;
}

/* Output */

static bool conn_reserve(struct conn_output *output, size_t bytes) {
    if (output->capacity - output->used >= bytes) {
        return true;
    }
    size_t capacity = output->capacity == 0 ? 1024 : output->capacity;
    while (capacity - output->used < bytes && capacity < CONN_OUTPUT_BYTES / 16) {
        capacity *= 2;
    }
    if (capacity - output->used < bytes) {
        capacity = output->used + bytes;
    }
    uint8_t *grown = realloc(output->bytes, capacity);
    if (grown == NULL) {
        return false;
    }
    output->bytes = grown;
    output->capacity = capacity;
    return true;
}

static void conn_output_free(struct conn *conn, struct conn_output *output) {
    conn->server->output_bytes -= output->used;
    free(output->bytes);
    *output = (struct conn_output){0};
}

static void conn_output_lost(struct conn *conn, size_t bytes) {
    log_line(LOG_ERR, "conn", "out of memory for output, closing bytes=%zu", bytes);
    conn->server->output_bytes -= conn->waiting.used;
    conn->waiting.used = 0;
    conn_finish(conn);
}

void conn_collect(struct conn *conn) {
    size_t taken = 1;
    while (conn->tls != NULL && taken > 0) {
        if (!conn_reserve(&conn->waiting, CONN_RECORD_BYTES)) {
            conn_output_lost(conn, CONN_RECORD_BYTES);
            return;
        }
        taken = tls_take(conn->tls, conn->waiting.bytes + conn->waiting.used,
                         conn->waiting.capacity - conn->waiting.used);
        conn->waiting.used += taken;
        conn->server->output_bytes += taken;
    }
    if (conn->waiting.used > 0) {
        server_ready(conn->server, conn);
    }
}

/* Over TLS, puts what was appended behind `start` into records. */
static void conn_seal(struct conn *conn, size_t start) {
    struct conn_output *waiting = &conn->waiting;
    struct error error;
    if (conn->tls == NULL || conn->unknown) {
        return;
    }
    int code = tls_write(conn->tls, waiting->bytes + start, waiting->used - start, &error);
    conn->server->output_bytes -= waiting->used - start;
    waiting->used = start;
    if (code < 0) {
        conn_finish(conn);
    }
    conn_collect(conn);
}

void conn_send(struct session *session, uint32_t stream, enum frame_type type,
               const ProtobufCMessage *message) {
    struct conn *conn = conn_of(session);
    size_t bytes = protobuf_c_message_get_packed_size(message);
    const struct frame_header header = {
        .length = (uint32_t)bytes, .stream = stream, .type = (uint8_t)type};
    assert(bytes <= FRAME_DATA_BYTES_MAX);
    if (conn->closing) {
        return;
    }
    if (!conn_reserve(&conn->waiting, FRAME_HEADER_BYTES + bytes)) {
        conn_output_lost(conn, bytes);
        return;
    }
    uint8_t *at = conn->waiting.bytes + conn->waiting.used;
    frame_header_encode(&header, at);
    protobuf_c_message_pack(message, at + FRAME_HEADER_BYTES);
    conn->waiting.used += FRAME_HEADER_BYTES + bytes;
    conn->server->output_bytes += FRAME_HEADER_BYTES + bytes;
    conn_seal(conn, conn->waiting.used - FRAME_HEADER_BYTES - bytes);
    server_ready(conn->server, conn);
}

/* The frame of a FetchResponse as far as its payload, whose bytes follow as they are. */
static size_t conn_payload_head(uint32_t stream, uint32_t bytes, uint8_t out[CONN_HEAD_BYTES]) {
    size_t head = payload_write_head(bytes, out + FRAME_HEADER_BYTES);
    const struct frame_header header = {
        .length = (uint32_t)head + bytes, .stream = stream, .type = FRAME_DATA};
    frame_header_encode(&header, out);
    return FRAME_HEADER_BYTES + head;
}

/* Straight to the socket when nothing waits before it: how many bytes that took. */
static size_t conn_try_payload(struct conn *conn, const uint8_t *head, size_t head_bytes,
                               const uint8_t *payload, uint32_t bytes) {
    uv_buf_t buffers[2] = {uv_buf_init((char *)head, (unsigned)head_bytes),
                           uv_buf_init((char *)payload, bytes)};
    if (conn->waiting.used > 0 || conn->flight.used > 0 || conn->tls != NULL) {
        return 0;
    }
    int written = uv_try_write((uv_stream_t *)&conn->pipe, buffers, 2);
    if (written <= 0) {
        return 0; /* whatever is wrong, writing what waits will say */
    }
    session_drained(&conn->session, uv_hrtime());
    return (size_t)written;
}

static void conn_append(struct conn *conn, const uint8_t *bytes, size_t count) {
    memcpy(conn->waiting.bytes + conn->waiting.used, bytes, count);
    conn->waiting.used += count;
    conn->server->output_bytes += count;
}

/* The kernel doubles what is asked for, up to its own limit. */
static void conn_widen(struct conn *conn) {
    const int bytes = CONN_SOCKET_BYTES;
    if (!conn->fetches) {
        (void)setsockopt(conn->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    }
    conn->fetches = true;
}

bool conn_send_payload(struct session *session, uint32_t stream, const uint8_t *payload,
                       uint32_t bytes) {
    struct conn *conn = conn_of(session);
    uint8_t head[CONN_HEAD_BYTES];
    if (conn->closing) {
        return false;
    }
    conn_widen(conn);
    size_t head_bytes = conn_payload_head(stream, bytes, head);
    size_t taken = conn_try_payload(conn, head, head_bytes, payload, bytes);
    if (!conn_reserve(&conn->waiting, head_bytes + bytes - taken)) {
        conn_output_lost(conn, bytes);
        return false;
    }
    size_t start = conn->waiting.used;
    if (taken < head_bytes) {
        conn_append(conn, head + taken, head_bytes - taken);
        taken = head_bytes;
    }
    if (taken < head_bytes + bytes) {
        conn_append(conn, payload + (taken - head_bytes), bytes - (taken - head_bytes));
        conn_seal(conn, start);
    }
    return conn->waiting.used == 0 && conn->flight.used == 0;
}

void conn_again(struct session *session) {
    server_go_on(conn_of(session)->server);
}

bool conn_congested(const struct session *session) {
    const struct conn *conn = conn_of(session);
    size_t queued = conn->waiting.used + conn->flight.used;
    bool crowded = conn->server->output_bytes > SERVER_OUTPUT_BYTES;
    return queued > CONN_OUTPUT_BYTES || (crowded && queued > 0);
}

bool conn_crowded(const struct session *session, size_t bytes) {
    const struct server *server = conn_of(session)->server;
    return bytes > CONN_ANSWER_BYTES && server->output_bytes + bytes > SERVER_OUTPUT_BYTES;
}

static void conn_process(struct conn *conn);
static void conn_resume(struct conn *conn);

/* What is being fetched need not wait for the loop's turn. */
static void conn_go_on(struct conn *conn) {
    if (conn->session.fetch_count > 0 && !conn->finishing && !conn->closing) {
        fetch_deliver(&conn->session, uv_hrtime());
        conn_flush(conn);
    }
}

static void conn_wrote(uv_write_t *write, int status) {
    struct conn *conn = write->data;
    conn_output_free(conn, &conn->flight);
    if (conn->closing) {
        return;
    }
    if (status < 0) {
        conn_close(conn);
        return;
    }
    session_drained(&conn->session, uv_hrtime());
    conn_process(conn);
    conn_go_on(conn);
    server_ready(conn->server, conn);
}

/* Writes what the socket takes at once; true when nothing is left. */
static bool conn_write_now(struct conn *conn) {
    struct conn_output *waiting = &conn->waiting;
    uv_buf_t buffer = uv_buf_init((char *)waiting->bytes, (unsigned)waiting->used);
    if (FAILPOINT(conn_write) == FAILPOINT_DOES_SHORT) {
        buffer.len = (buffer.len + 1) / 2;
    }
    int written = uv_try_write((uv_stream_t *)&conn->pipe, &buffer, 1);
    if (written == UV_EAGAIN) {
        return false;
    }
    if (written < 0) {
        conn_close(conn);
        return true;
    }
    session_drained(&conn->session, uv_hrtime());
    waiting->used -= (size_t)written;
    conn->server->output_bytes -= (size_t)written;
    memmove(waiting->bytes, waiting->bytes + written, waiting->used);
    return waiting->used == 0;
}

void conn_flush(struct conn *conn) {
    if (conn->closing || conn->flight.used > 0) {
        return;
    }
    bool wrote = conn->waiting.used > 0;
    if (wrote && !conn_write_now(conn)) {
        conn->flight = conn->waiting;
        conn->waiting = (struct conn_output){0};
        uv_buf_t buffer = uv_buf_init((char *)conn->flight.bytes, (unsigned)conn->flight.used);
        if (uv_write(&conn->write, (uv_stream_t *)&conn->pipe, &buffer, 1, conn_wrote) < 0) {
            conn_output_free(conn, &conn->flight);
            conn_close(conn);
        }
        return;
    }
    if (wrote && conn->session.fetch_count > 0) {
        server_go_on(conn->server); /* no callback will say that there is room again */
    }
    if (conn->waiting.capacity > CONN_OUTPUT_BYTES / 4) {
        conn_output_free(conn, &conn->waiting);
    }
    if (conn->finishing) {
        if (!conn->lingers) {
            conn_close(conn);
        }
    } else if (!conn->reading && !conn_congested(&conn->session)) {
        conn_process(conn);
        server_ready(conn->server, conn);
    }
}

/* Input */

static int conn_resize(struct conn *conn, size_t capacity) {
    struct frame_reader *reader = &conn->reader;
    uint64_t others = conn->server->input_bytes - reader->capacity;
    if (capacity > reader->capacity && others + capacity > SERVER_INPUT_BYTES) {
        return -ENOBUFS;
    }
    uint8_t *buffer = realloc(reader->buffer, capacity);
    if (buffer == NULL) {
        return -ENOMEM;
    }
    conn->server->input_bytes = others + capacity;
    reader->buffer = buffer;
    reader->capacity = capacity;
    return 0;
}

/* Makes room for the whole next frame if its header is there and legal. */
static int conn_fit_input(struct conn *conn, struct frame_header *header) {
    struct frame_reader *reader = &conn->reader;
    size_t rest = reader->used - reader->done;
    if (rest < FRAME_HEADER_BYTES) {
        return 0;
    }
    frame_header_decode(reader->buffer + reader->done, header);
    if (frame_header_check(header, NULL) < 0 ||
        FRAME_HEADER_BYTES + header->length <= reader->capacity) {
        return 0;
    }
    return conn_resize(conn, FRAME_HEADER_BYTES + header->length);
}

static void conn_shrink_input(struct conn *conn) {
    struct frame_reader *reader = &conn->reader;
    size_t bytes;
    if (reader->capacity > CONN_INPUT_BYTES && reader->used - reader->done < CONN_INPUT_BYTES) {
        (void)frame_reader_space(reader, &bytes);
        (void)conn_resize(conn, CONN_INPUT_BYTES);
    }
}

/* Over TLS, moves what has come to the frame reader: the bytes; 0 none; negative: at an end. */
static int64_t conn_unseal(struct conn *conn) {
    struct error error;
    size_t room;
    if (conn->tls == NULL) {
        return 0;
    }
    uint8_t *space = frame_reader_space(&conn->reader, &room);
    int64_t got = tls_read(conn->tls, space, room, &error);
    if (got > 0) {
        frame_reader_fill(&conn->reader, (size_t)got);
    } else if (got < 0 && got != -EPIPE) {
        log_line(LOG_WARNING, "conn", "%s peer=%s", error.text, conn->session.peer.name);
    }
    conn_collect(conn);
    return got;
}

/* The next frame: 1; 0 none yet; negative: told the peer, to be closed. */
static int conn_next(struct conn *conn, struct frame_header *header, const uint8_t **data) {
    const char *reason = "too many large messages at a time; try again";
    int code;
    do {
        code = conn_fit_input(conn, header) < 0 ? -EMSGSIZE : 0;
        if (code == 0) {
            code = frame_reader_next(&conn->reader, header, data, &reason);
        }
        if (code < 0) {
            session_bad_frame(&conn->session, header, code, reason);
        }
        if (code == 0) {
            int64_t got = conn_unseal(conn);
            code = got > 0 ? 2 : (int)got;
        }
    } while (code == 2);
    return code;
}

/* Until the peer is known no frame of it is looked at. */
static int conn_know(struct conn *conn) {
    int code = remote_know(&conn->server->remote, conn);
    conn->unknown = code != 1;
    return code;
}

static void conn_pause(struct conn *conn) {
    if (conn->reading) {
        (void)uv_read_stop((uv_stream_t *)&conn->pipe);
        conn->reading = false;
    }
}

static void conn_process(struct conn *conn) {
    struct frame_header header = {0};
    const uint8_t *data;
    int code = 1;
    while (code == 1 && !conn->finishing && !conn->closing) {
        if (conn_congested(&conn->session)) {
            conn_pause(conn);
            return;
        }
        if (conn->unknown) {
            code = conn_know(conn);
            continue;
        }
        code = conn_next(conn, &header, &data);
        if (code == 1 && session_frame(&conn->session, &header, data, uv_hrtime()) < 0) {
            code = -EPROTO;
        }
    }
    if (code < 0) {
        conn->server->metrics->frames_invalid += conn->session.peer.refusal == STATUS_OK;
        conn_finish(conn);
    }
    if (!conn->finishing && !conn->closing) {
        conn_shrink_input(conn);
        conn_resume(conn);
    }
}

static void conn_allocate(uv_handle_t *handle, size_t suggested, uv_buf_t *buffer) {
    struct conn *conn = handle->data;
    size_t bytes;
    (void)suggested;
    if (conn->tls != NULL) { /* read at once and put into TLS, so all connections share it */
        *buffer = uv_buf_init((char *)conn->server->sealed, sizeof conn->server->sealed);
        return;
    }
    uint8_t *space = frame_reader_space(&conn->reader, &bytes);
    if (FAILPOINT(conn_read) == FAILPOINT_DOES_SHORT) {
        bytes = (bytes + 1) / 2;
    }
    *buffer = uv_buf_init((char *)space, (unsigned)bytes);
}

static void conn_read(uv_stream_t *stream, ssize_t bytes, const uv_buf_t *buffer) {
    struct conn *conn = stream->data;
    if (bytes < 0) {
        conn_close(conn);
    } else if (bytes > 0 && conn->tls != NULL) {
        if (tls_put(conn->tls, (const uint8_t *)buffer->base, (size_t)bytes) < 0) {
            conn_close(conn);
        } else {
            conn_process(conn);
        }
    } else if (bytes > 0) {
        frame_reader_fill(&conn->reader, (size_t)bytes);
        conn_process(conn);
    }
    server_ready(conn->server, conn);
}

static void conn_resume(struct conn *conn) {
    if (!conn->reading) {
        conn->reading = uv_read_start((uv_stream_t *)&conn->pipe, conn_allocate, conn_read) == 0;
    }
}

/* Life */

static void conn_free(struct conn *conn) {
    conn_output_free(conn, &conn->waiting);
    conn_output_free(conn, &conn->flight);
    conn->server->input_bytes -= conn->reader.capacity;
    tls_close(conn->tls);
    free(conn->reader.buffer);
    free(conn);
}

static void conn_closed(uv_handle_t *handle) {
    struct conn *conn = handle->data;
    struct server *server = conn->server;
    conn_free(conn);
    server->closed++;
    server->handles--;
}

int conn_open(struct server *server, int fd, const struct session_peer *peer, struct conn **out) {
    struct conn *conn = calloc(1, sizeof *conn);
    uint8_t *buffer = malloc(CONN_INPUT_BYTES);
    if (conn == NULL || buffer == NULL || uv_pipe_init(server->loop, &conn->pipe, 0) < 0) {
        free(conn);
        free(buffer);
        (void)close(fd);
        return -ENOMEM;
    }
    conn->server = server;
    conn->fd = fd;
    conn->unknown = peer->remote;
    conn->pipe.data = conn;
    conn->write.data = conn;
    frame_reader_init(&conn->reader, buffer, CONN_INPUT_BYTES);
    server->handles++;
    server->input_bytes += CONN_INPUT_BYTES;
    session_init(&conn->session, server->world, conn, peer, uv_hrtime());
    int code = peer->remote ? remote_begin(&server->remote, &conn->tls) : 0;
    code = code < 0 ? code : uv_pipe_open(&conn->pipe, fd);
    if (code < 0) {
        (void)close(fd);
        conn->closing = true;
        uv_close((uv_handle_t *)&conn->pipe, conn_closed);
        return code;
    }
    conn_resume(conn);
    *out = conn;
    return 0;
}

void conn_finish(struct conn *conn) {
    if (conn->finishing || conn->closing) {
        return;
    }
    conn->finishing = true;
    conn->finish_by_ns = uv_hrtime() + CONN_FINISH_NS;
    conn_pause(conn);
    server_ready(conn->server, conn);
    server_look_again(conn->server);
}

void conn_close(struct conn *conn) {
    if (conn->closing) {
        return;
    }
    conn->closing = true;
    conn->reading = false;
    session_deinit(&conn->session, uv_hrtime());
    server_forget(conn->server, conn);
    uv_close((uv_handle_t *)&conn->pipe, conn_closed);
}
