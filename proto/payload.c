/* payload: see payload.h. */
#include "proto/payload.h"

#include <errno.h>

#define PAYLOAD_FIELD 1u

enum payload_wire {
    PAYLOAD_VARINT = 0,
    PAYLOAD_FIXED64 = 1,
    PAYLOAD_BYTES = 2,
    PAYLOAD_FIXED32 = 5
};

/* The bytes that a varint takes, 0 when it is not whole or too long. */
static size_t payload_varint(const uint8_t *at, size_t left, uint64_t *out) {
    uint64_t value = 0;
    for (size_t i = 0; i < left && i < 10; i++) {
        value |= (uint64_t)(at[i] & 0x7f) << (7 * i);
        if ((at[i] & 0x80) == 0) {
            *out = value;
            return i + 1;
        }
    }
    return 0;
}

/* The bytes of the field's content at `at`, behind `skip` bytes of its length. */
static int payload_field(const uint8_t *at, size_t left, unsigned wire, size_t *skip,
                         uint64_t *count) {
    uint64_t value;
    *skip = 0;
    switch (wire) {
    case PAYLOAD_VARINT:
        *count = payload_varint(at, left, &value);
        return *count > 0 ? 0 : -EPROTO;
    case PAYLOAD_FIXED64:
        *count = 8;
        break;
    case PAYLOAD_FIXED32:
        *count = 4;
        break;
    case PAYLOAD_BYTES:
        *skip = payload_varint(at, left, count);
        if (*skip == 0) {
            return -EPROTO;
        }
        break;
    default:
        return -EPROTO;
    }
    return *count <= left - *skip ? 0 : -EPROTO;
}

int payload_find(const uint8_t *message, size_t bytes, const uint8_t **payload, size_t *count) {
    const uint8_t *at = message;
    const uint8_t *end = bytes > 0 ? message + bytes : message; /* no offset to NULL */
    *payload = NULL;
    *count = 0;
    while (at < end) {
        uint64_t tag, content;
        size_t skip;
        size_t head = payload_varint(at, (size_t)(end - at), &tag);
        at += head;
        if (head == 0 || tag >> 3 == 0 ||
            payload_field(at, (size_t)(end - at), tag & 7, &skip, &content) < 0) {
            return -EPROTO;
        }
        if (tag >> 3 == PAYLOAD_FIELD) {
            if ((tag & 7) != PAYLOAD_BYTES || *payload != NULL) {
                return -EPROTO;
            }
            *payload = at + skip;
            *count = (size_t)content;
        }
        at += skip + content;
    }
    return 0;
}

size_t payload_write_head(uint32_t bytes, uint8_t out[PAYLOAD_HEAD_BYTES_MAX]) {
    size_t at = 0;
    out[at++] = PAYLOAD_FIELD << 3 | PAYLOAD_BYTES;
    while (bytes > 0x7f) {
        out[at++] = (uint8_t)(bytes | 0x80);
        bytes >>= 7;
    }
    out[at++] = (uint8_t)bytes;
    return at;
}

size_t payload_read_head(const uint8_t *message, size_t have, size_t whole) {
    uint64_t count;
    if (have < 2 || message[0] != (PAYLOAD_FIELD << 3 | PAYLOAD_BYTES)) {
        return 0;
    }
    size_t length = payload_varint(message + 1, have - 1, &count);
    return length > 0 && whole > 1 + length && count == whole - 1 - length ? 1 + length : 0;
}
