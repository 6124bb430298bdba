/* descend: see descend.h. The heap's root is the index that comes last. */
#include "planner/descend.h"

#include <stdbool.h>

static bool descend_before(const uint64_t *keys, uint32_t a, uint32_t b) {
    return keys[a] != keys[b] ? keys[a] > keys[b] : a < b;
}

static void descend_sift(const uint64_t *keys, uint32_t *heap, uint32_t count, uint32_t at) {
    uint32_t moved = heap[at];
    for (uint64_t child = 2 * (uint64_t)at + 1; child < count; child = 2 * (uint64_t)at + 1) {
        if (child + 1 < count && descend_before(keys, heap[child], heap[child + 1])) {
            child++;
        }
        if (!descend_before(keys, moved, heap[child])) {
            break;
        }
        heap[at] = heap[child];
        at = (uint32_t)child;
    }
    heap[at] = moved;
}

void descend(const uint64_t *keys, uint32_t count, uint32_t *order) {
    for (uint32_t i = 0; i < count; i++) {
        order[i] = i;
    }
    for (uint32_t i = count / 2; i > 0; i--) {
        descend_sift(keys, order, count, i - 1);
    }
    for (uint32_t left = count; left > 1; left--) {
        uint32_t last = order[0];
        order[0] = order[left - 1];
        order[left - 1] = last;
        descend_sift(keys, order, left - 1, 0);
    }
}
