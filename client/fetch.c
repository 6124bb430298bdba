/* fetch: see fetch.h. */
#include "client/fetch.h"

#include "client/deadline.h"

#include <string.h>

#define FETCH_PAYLOAD_FIELD 1u

enum fetch_wire { FETCH_VARINT = 0, FETCH_FIXED64 = 1, FETCH_BYTES = 2, FETCH_FIXED32 = 5 };

/* The bytes that a varint takes, 0 when it is not whole or too long. */
static size_t fetch_varint(const uint8_t *at, size_t left, uint64_t *out) {
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
static int fetch_field(const uint8_t *at, size_t left, unsigned wire, size_t *skip,
                       uint64_t *count) {
    uint64_t value;
    *skip = 0;
    switch (wire) {
    case FETCH_VARINT:
        *count = fetch_varint(at, left, &value);
        return *count > 0 ? 0 : -EPROTO;
    case FETCH_FIXED64:
        *count = 8;
        break;
    case FETCH_FIXED32:
        *count = 4;
        break;
    case FETCH_BYTES:
        *skip = fetch_varint(at, left, count);
        if (*skip == 0) {
            return -EPROTO;
        }
        break;
    default:
        return -EPROTO;
    }
    return *count <= left - *skip ? 0 : -EPROTO;
}

int fetch_payload(const uint8_t *message, size_t bytes, const uint8_t **payload, size_t *count) {
    const uint8_t *at = message;
    const uint8_t *end = message + bytes;
    *payload = NULL;
    *count = 0;
    while (at < end) {
        uint64_t tag, content;
        size_t skip;
        size_t head = fetch_varint(at, (size_t)(end - at), &tag);
        at += head;
        if (head == 0 || tag >> 3 == 0 ||
            fetch_field(at, (size_t)(end - at), tag & 7, &skip, &content) < 0) {
            return -EPROTO;
        }
        if (tag >> 3 == FETCH_PAYLOAD_FIELD) {
            if ((tag & 7) != FETCH_BYTES || *payload != NULL) {
                return -EPROTO;
            }
            *payload = at + skip;
            *count = (size_t)content;
        }
        at += skip + content;
    }
    return 0;
}

int fetch_start(struct batch *batch, struct call_channel *channel, struct error *error) {
    Ballast__V1__FetchRequest request = BALLAST__V1__FETCH_REQUEST__INIT;
    Ballast__V1__BatchId id = BALLAST__V1__BATCH_ID__INIT;
    id.step = batch->view.step;
    id.dp = batch->view.dp;
    id.index = batch->view.index;
    request.id = &id;
    batch->fetched = 0;
    return call_fetch_start(channel, "ballast.v1.Loader", "Fetch", &request.base, error);
}

static int fetch_take(struct batch *batch, const uint8_t *message, size_t bytes,
                      struct error *error) {
    const uint8_t *payload;
    size_t count;
    if (fetch_payload(message, bytes, &payload, &count) < 0) {
        return error_set(error, -EPROTO, "the daemon's FetchResponse of %zu bytes does not unpack",
                         bytes);
    }
    if (count > batch->slot_bytes - batch->fetched) {
        return error_set(error, -EPROTO, "the daemon sent more than the %llu bytes of its batch",
                         (unsigned long long)batch->slot_bytes);
    }
    if (count > 0) {
        memcpy(batch->copy + MAPPING_SLOT_HEADER_BYTES + batch->fetched, payload, count);
        batch->fetched += count;
    }
    return 0;
}

int fetch_advance(struct batch *batch, struct call_channel *channel, int timeout_ms,
                  struct error *error) {
    int64_t deadline = deadline_in_ms(timeout_ms);
    for (;;) {
        const uint8_t *message;
        size_t bytes;
        int code = call_fetch_next(channel, &message, &bytes, deadline_left_ms(deadline), error);
        if (code == 1) {
            code = fetch_take(batch, message, bytes, error);
        } else if (code == -ENODATA && batch->fetched == batch->slot_bytes) {
            return 1;
        } else if (code == -ENODATA) {
            return error_set(error, -EPROTO, "the daemon sent %llu of the %llu bytes of a batch",
                             (unsigned long long)batch->fetched,
                             (unsigned long long)batch->slot_bytes);
        } else {
            return code;
        }
        if (code < 0) {
            return code;
        }
    }
}
