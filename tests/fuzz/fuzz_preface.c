/* What a daemon takes as the preface of a TCP connection, and anybody as an address: the token lies
 * within the bytes, more bytes never change what was found, and an address is what it says. */
#include "proto/address.h"
#include "proto/preface.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
    fuzz_address(data, size);
    return 0;
}
