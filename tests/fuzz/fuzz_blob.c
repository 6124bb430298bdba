/* Checkpoint blobs of arbitrary bytes: refused with a reason, or what was read is written and read
 * as itself. The input is tried as it is and as fields to which a fitting frame is added. */
#include "daemon/blob.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEAD_BYTES 12u

static void read_and_write(const uint8_t *bytes, size_t count) {
    struct error error = {0};
    struct blob *blob = NULL, *again = NULL;
    size_t written;
    bool same_step = false;
    if (blob_decode(bytes, count, &blob, &error) < 0) {
        assert(error.code < 0 && error.text[0] != '\0' && blob == NULL);
        return;
    }
    uint8_t *packed = blob_encode(blob, &written, &error);
    assert(packed != NULL);
    assert(blob_decode(packed, written, &again, &error) == 0);
    assert(again->step == blob->step && again->dataset_count == blob->dataset_count &&
           again->state_bytes == blob->state_bytes &&
           memcmp(again->state, blob->state, blob->state_bytes) == 0 &&
           strcmp(again->plan_text, blob->plan_text) == 0);
    assert(blob_check_job(blob, again, &same_step, &error) == 0 && same_step);
    free(packed);
    free(again);
    free(blob);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint8_t head[HEAD_BYTES] = {'B', 'L', 'C', 'K', BLOB_FORMAT};
    XXH64_canonical_t hash;
    size_t count = sizeof head + size + sizeof hash.digest;
    uint8_t *bytes = malloc(count);
    assert(bytes != NULL);
    memcpy(bytes, head, sizeof head);
    if (size > 0) {
        memcpy(bytes + sizeof head, data, size);
    }
    for (size_t i = 0; i < 4; i++) {
        bytes[8 + i] = (uint8_t)(count >> (8 * i));
    }
    XXH64_canonicalFromHash(&hash, XXH3_64bits(bytes, sizeof head + size));
    memcpy(bytes + sizeof head + size, hash.digest, sizeof hash.digest);
    read_and_write(bytes, count);
    read_and_write(data, size);
    free(bytes);
    return 0;
}
