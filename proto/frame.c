/* frame: see frame.h. */
#include "proto/frame.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define FRAME_FLAGS_KNOWN (FRAME_REMOTE_CLOSED | FRAME_REMOTE_OPEN | FRAME_NO_DATA)

static void frame_put_u32(uint8_t out[4], uint32_t value) {
    out[0] = (uint8_t)(value >> 24);
    out[1] = (uint8_t)(value >> 16);
    out[2] = (uint8_t)(value >> 8);
    out[3] = (uint8_t)value;
}

static uint32_t frame_get_u32(const uint8_t in[4]) {
    return (uint32_t)in[0] << 24 | (uint32_t)in[1] << 16 | (uint32_t)in[2] << 8 | in[3];
}

void frame_header_encode(const struct frame_header *header, uint8_t out[FRAME_HEADER_BYTES]) {
    frame_put_u32(out, header->length);
    frame_put_u32(out + 4, header->stream);
    out[8] = header->type;
    out[9] = header->flags;
}

void frame_header_decode(const uint8_t in[FRAME_HEADER_BYTES], struct frame_header *header) {
    *header = (struct frame_header){
        .length = frame_get_u32(in),
        .stream = frame_get_u32(in + 4),
        .type = in[8],
        .flags = in[9],
    };
}

static int frame_refuse(int code, const char *sentence, const char **reason) {
    if (reason != NULL) {
        *reason = sentence;
    }
    return code;
}

int frame_header_check(const struct frame_header *header, const char **reason) {
    if (header->length > FRAME_DATA_BYTES_MAX) {
        return frame_refuse(-EMSGSIZE, "frame longer than 4 MiB", reason);
    }
    if (header->type < FRAME_REQUEST || header->type > FRAME_DATA) {
        return frame_refuse(-EPROTO, "unknown frame type", reason);
    }
    if ((header->flags & ~FRAME_FLAGS_KNOWN) != 0) {
        return frame_refuse(-EPROTO, "unknown frame flags", reason);
    }
    if (header->type == FRAME_REQUEST && header->length == 0) {
        return frame_refuse(-EPROTO, "empty request frame", reason);
    }
    if ((header->flags & FRAME_NO_DATA) != 0 && header->length != 0) {
        return frame_refuse(-EPROTO, "frame flagged as without data has data", reason);
    }
    return 0;
}

int frame_stream_check(uint32_t stream, uint32_t *last, const char **reason) {
    if (stream % 2 == 0) {
        return frame_refuse(-EPROTO, "stream id of a request is not odd", reason);
    }
    if (stream <= *last) {
        return frame_refuse(-EPROTO, "stream id of a request does not rise", reason);
    }
    *last = stream;
    return 0;
}

void frame_reader_init(struct frame_reader *reader, uint8_t *buffer, size_t capacity) {
    assert(capacity > FRAME_HEADER_BYTES);
    *reader = (struct frame_reader){.buffer = buffer, .capacity = capacity};
}

uint8_t *frame_reader_space(struct frame_reader *reader, size_t *bytes) {
    if (reader->done > 0) {
        reader->used -= reader->done;
        memmove(reader->buffer, reader->buffer + reader->done, reader->used);
        reader->done = 0;
    }
    *bytes = reader->capacity - reader->used;
    return reader->buffer + reader->used;
}

void frame_reader_fill(struct frame_reader *reader, size_t bytes) {
    assert(bytes <= reader->capacity - reader->used);
    reader->used += bytes;
}

int frame_reader_next(struct frame_reader *reader, struct frame_header *header,
                      const uint8_t **data, const char **reason) {
    size_t waiting = reader->used - reader->done;
    if (waiting < FRAME_HEADER_BYTES) {
        return 0;
    }
    frame_header_decode(reader->buffer + reader->done, header);
    int code = frame_header_check(header, reason);
    if (code < 0) {
        return code;
    }
    if (header->length > reader->capacity - FRAME_HEADER_BYTES) {
        return frame_refuse(-EMSGSIZE, "frame longer than the reader's buffer", reason);
    }
    if (waiting - FRAME_HEADER_BYTES < header->length) {
        return 0;
    }
    *data = reader->buffer + reader->done + FRAME_HEADER_BYTES;
    reader->done += FRAME_HEADER_BYTES + header->length;
    return 1;
}
