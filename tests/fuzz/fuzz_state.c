/* The state decoder on arbitrary bytes: what it accepts, it would have written; of the version
 * before, it writes what it then accepts. The input is tried as it is and as fields to which magic,
 * version and a fitting hash are added, which a fuzzer does not find by itself. */
#include "planner/state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define WAITING_MAX  64u
#define DATASETS_MAX 4u
#define VERSION      3

static void check_bytes(struct plan_state *state, const uint8_t *bytes, size_t count) {
    size_t needed = plan_state_encode(state, NULL, 0);
    uint8_t *again = malloc(needed);
    assert(again != NULL && plan_state_encode(state, again, needed) == needed);
    if (bytes[4] == VERSION) {
        assert(needed == count && memcmp(bytes, again, count) == 0);
    } else {
        assert(plan_state_decode(state, again, needed, NULL) == 0);
        check_bytes(state, again, needed);
    }
    free(again);
}

static void decode(uint32_t datasets, const uint8_t *bytes, size_t count) {
    struct plan_state *state = plan_state_create(datasets, WAITING_MAX);
    struct error error = {0};
    assert(state != NULL);
    if (plan_state_decode(state, bytes, count, &error) == 0) {
        assert(plan_state_conserves(state));
        for (uint32_t i = 0; i < state->waiting_count; i++) {
            assert(state->waiting[i].document.stream_index < state->stream_parts);
        }
        for (uint32_t i = 0; i < state->run_count; i++) {
            assert(state->runs[i].index > state->stream_parts && state->runs[i].count > 0);
        }
        for (uint32_t i = 0; i < state->blend_switch_count; i++) {
            assert(state->blend_switches[i] > state->stream_parts);
        }
        check_bytes(state, bytes, count);
    } else {
        assert(error.code < 0 && error.text[0] != '\0');
        assert(state->waiting_count == 0 && state->run_count == 0 && state->step == 0 &&
               !state->cursor.open);
    }
    plan_state_destroy(state);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t head[] = {'B', 'L', 'P', 'S', VERSION};
    XXH64_canonical_t hash;
    if (size == 0) {
        return 0;
    }
    uint32_t datasets = 1 + data[0] % DATASETS_MAX;
    head[4] = data[0] / DATASETS_MAX % 2 == 0 ? VERSION - 1 : VERSION;
    data++;
    size--;
    size_t count = sizeof head + size + sizeof hash.digest;
    uint8_t *bytes = malloc(count);
    assert(bytes != NULL);
    memcpy(bytes, head, sizeof head);
    memcpy(bytes + sizeof head, data, size);
    XXH64_canonicalFromHash(&hash, XXH3_64bits(bytes, sizeof head + size));
    memcpy(bytes + sizeof head + size, hash.digest, sizeof hash.digest);
    decode(datasets, bytes, count);
    decode(datasets, data, size);
    free(bytes);
    return 0;
}
