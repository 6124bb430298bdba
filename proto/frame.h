/* frame: ttrpc framing. 10 bytes: length u32 BE, stream id u32 BE, type u8, flags u8; then `length`
 * bytes of data.
 *
 * The length is judged from the header alone, before any arithmetic or allocation: above
 * FRAME_DATA_BYTES_MAX the peer is answered and cut, nothing is read on and discarded. A length of
 * 0 is an empty message (responses, data), never a request, which at least names its method.
 * Pure: bytes in, frames out; both sides use it. */
#ifndef BALLAST_PROTO_FRAME_H
#define BALLAST_PROTO_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FRAME_HEADER_BYTES   10u
#define FRAME_DATA_BYTES_MAX (4u << 20)

enum frame_type { FRAME_REQUEST = 1, FRAME_RESPONSE = 2, FRAME_DATA = 3 };

enum frame_flags {
    FRAME_REMOTE_CLOSED = 1, /* the sender sends no more on this stream */
    FRAME_REMOTE_OPEN = 2,   /* request: data frames follow */
    FRAME_NO_DATA = 4,       /* data frame without a message */
};

struct frame_header {
    uint32_t length;
    uint32_t stream;
    uint8_t type;
    uint8_t flags;
};

void frame_header_encode(const struct frame_header *header, uint8_t out[FRAME_HEADER_BYTES]);
void frame_header_decode(const uint8_t in[FRAME_HEADER_BYTES], struct frame_header *header);

/* Judges a header by itself: 0, -EMSGSIZE (longer than FRAME_DATA_BYTES_MAX), or -EPROTO (unknown
 * type or flags, an empty request, FRAME_NO_DATA with data). Whether the type is one that this side
 * may receive, and on which stream, is the caller's question. `reason` (may be NULL) receives a
 * static sentence on failure. */
int frame_header_check(const struct frame_header *header, const char **reason);

/* Client streams are odd and strictly rising, for new requests: 0 with *last = stream, or -EPROTO
 * with the reason (may be NULL). *last starts at 0. */
int frame_stream_check(uint32_t stream, uint32_t *last, const char **reason);

/* Collects frames out of a byte stream. The buffer is the caller's and holds at least
 * FRAME_HEADER_BYTES + the largest frame wanted; a longer frame is -EMSGSIZE. */
struct frame_reader {
    uint8_t *buffer;
    size_t capacity;
    size_t used; /* bytes in the buffer */
    size_t done; /* bytes of frames already given out */
};

void frame_reader_init(struct frame_reader *reader, uint8_t *buffer, size_t capacity);

/* Where to put the next bytes and how many fit (never 0 after frame_reader_next returned 0); then
 * tell how many came. frame_reader_space makes frames given out before invalid. */
uint8_t *frame_reader_space(struct frame_reader *reader, size_t *bytes);
void frame_reader_fill(struct frame_reader *reader, size_t bytes);

/* 1: *header and *data (valid until the next frame_reader_space) hold a frame; 0: more bytes are
 * needed; negative: the header is bad (*header filled, *reason set), the stream cannot go on and
 * every further call says the same. */
int frame_reader_next(struct frame_reader *reader, struct frame_header *header,
                      const uint8_t **data, const char **reason);

#endif
