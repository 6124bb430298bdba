/* payload: a FetchResponse by hand: a tag, a length, then the bytes themselves.
 *
 * Packing or unpacking it as a message would copy every token once more on each side. What is
 * written here is what protobuf would write; what is read is what it would read. Pure. */
#ifndef BALLAST_PROTO_PAYLOAD_H
#define BALLAST_PROTO_PAYLOAD_H

#include <stddef.h>
#include <stdint.h>

#define PAYLOAD_HEAD_BYTES_MAX 6u

/* What stands before `bytes` of payload: its length, at most PAYLOAD_HEAD_BYTES_MAX. */
size_t payload_write_head(uint32_t bytes, uint8_t out[PAYLOAD_HEAD_BYTES_MAX]);

/* The payload within a FetchResponse: 0, its bytes stand in the message; fields of later versions
 * are passed over. -EPROTO when the message cannot be read, or has the payload twice. */
int payload_find(const uint8_t *message, size_t bytes, const uint8_t **payload, size_t *count);

/* Of a message of `whole` bytes, of which the first `have` are there, whether the rest is nothing
 * but payload: the bytes before it, 0 if it is not so or not known yet. */
size_t payload_read_head(const uint8_t *message, size_t have, size_t whole);

#endif
