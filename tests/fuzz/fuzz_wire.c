/* What stands outside of messages: the payload of a FetchResponse, read by hand as protobuf would
 * read it; the preface of a TCP connection; an address. What is found lies within the bytes, and
 * more bytes never change what was found. */
#include "ballast.pb-c.h"
#include "proto/address.h"
#include "proto/payload.h"
#include "proto/preface.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz_payload(const uint8_t *data, size_t size) {
    const uint8_t *payload;
    size_t count;
    int code = payload_find(data, size, &payload, &count);
    for (size_t have = 0; have <= size; have++) {
        size_t head = payload_read_head(data, have, size);
        if (head > 0 && (code < 0 || payload != data + head || count != size - head)) {
            abort();
        }
    }
    if (code < 0) {
        return;
    }
    if (count > 0 && (payload < data || count > size - (size_t)(payload - data))) {
        abort();
    }
    Ballast__V1__FetchResponse *response = ballast__v1__fetch_response__unpack(NULL, size, data);
    if (response != NULL) {
        if (response->payload.len != count ||
            (count > 0 && memcmp(response->payload.data, payload, count) != 0)) {
            abort();
        }
        ballast__v1__fetch_response__free_unpacked(response, NULL);
    }
}

static void fuzz_preface(const uint8_t *data, size_t size) {
    const uint8_t *token = NULL, *again = NULL;
    size_t count = 0, count_again = 0;
    int whole = preface_read(data, size, &token, &count);
    if (whole > 0 && ((size_t)whole > size || token < data || count < PREFACE_TOKEN_BYTES_MIN ||
                      count > PREFACE_TOKEN_BYTES_MAX || token + count + 1 != data + whole)) {
        abort();
    }
    for (size_t have = 0; have < size; have++) {
        int part = preface_read(data, have, &again, &count_again);
        if (part != 0 && part != whole) {
            abort();
        }
    }
}

static void fuzz_address(const uint8_t *data, size_t size) {
    char text[ADDRESS_TEXT_BYTES];
    struct address address;
    struct error error;
    size_t bytes = size < sizeof text ? size : sizeof text - 1;
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    if (address_parse(text, &address, &error) == 0 &&
        (address.host[0] == '\0' || (address.kind != ADDRESS_UNIX && address.port == 0))) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_payload(data, size);
    fuzz_preface(data, size);
    fuzz_address(data, size);
    return 0;
}
