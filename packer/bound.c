/* bound: a heap keeps the bins + 1 largest works, zeros as long as there are fewer. */
#include "packer/bound.h"

#include "packer/greedy.h"

#include <assert.h>
#include <string.h>

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

size_t pack_bound_bytes(uint32_t bins) {
    return ((size_t)bins + 1) * sizeof(uint64_t);
}

/* Lets keys[0] sink in a heap with the least key at the root. */
static void bound_sink(uint64_t *keys, size_t count) {
    uint64_t sinking = keys[0];
    size_t at = 0;
    for (size_t child = 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && keys[child + 1] < keys[child]) {
            child++;
        }
        if (sinking <= keys[child]) {
            break;
        }
        keys[at] = keys[child];
        at = child;
    }
    keys[at] = sinking;
}

uint64_t pack_bound(const uint64_t *works, const uint32_t *bin_of, uint32_t count, uint32_t bins,
                    void *scratch) {
    uint64_t *heap = scratch;
    size_t kept = (size_t)bins + 1;
    uint64_t bound = 0;
    uint64_t sum = 0;
    assert(bins > 0);
    memset(heap, 0, kept * sizeof *heap);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t work = bin_of == NULL || bin_of[i] != PACK_LEFT_OVER ? works[i] : 0;
        sum += work;
        bound = larger(bound, work);
        if (work > heap[0]) {
            heap[0] = work;
            bound_sink(heap, kept);
        }
    }
    uint64_t mean = sum / bins + (sum % bins > 0);
    uint64_t shared = heap[0] + (kept > 2 && heap[2] < heap[1] ? heap[2] : heap[1]);
    return larger(bound, larger(mean, shared));
}
