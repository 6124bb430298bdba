/* What a client takes as a FetchResponse: the payload lies within the message, and where protobuf
 * can read the message it is the one that protobuf finds. */
#include "ballast.pb-c.h"
#include "proto/payload.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *payload;
    size_t count;
    if (payload_find(data, size, &payload, &count) < 0) {
        return 0;
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
    return 0;
}
