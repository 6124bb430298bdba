/* replicas: see replicas.h. Replicas with a free slot form a heap whose root is dealt to next. */
#include "planner/replicas.h"

#include "packer/order.h"

#include <assert.h>
#include <stdbool.h>

static bool replicas_before(const uint64_t *loads, uint32_t a, uint32_t b) {
    return loads[a] != loads[b] ? loads[a] < loads[b] : a < b;
}

/* Restores the heap after the root's load grew or another replica took its place. */
static void replicas_sift(const uint64_t *loads, uint32_t *heap, uint32_t count) {
    uint32_t at = 0;
    uint32_t moved = heap[0];
    for (uint32_t child = 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && replicas_before(loads, heap[child + 1], heap[child])) {
            child++;
        }
        if (!replicas_before(loads, heap[child], moved)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

uint32_t replicas_mountain(uint32_t i, uint32_t n) {
    uint32_t rising = (n + 1) / 2;
    return i % 2 == 0 ? rising - 1 - i / 2 : rising + i / 2;
}

void replicas_deal(const uint64_t *works, uint32_t count, uint32_t replicas, uint32_t *order,
                   uint32_t *heap, uint32_t *taken, uint64_t *loads, uint32_t *slots) {
    assert(replicas > 0 && count % replicas == 0);
    uint32_t share = count / replicas;
    uint32_t open = replicas;
    for (uint32_t dp = 0; dp < replicas; dp++) {
        heap[dp] = dp;
        taken[dp] = 0;
        loads[dp] = 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        order[i] = i;
    }
    order_by_work(works, order, count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t dp = heap[0];
        slots[order[i]] = dp * share + replicas_mountain(taken[dp], share);
        loads[dp] += works[order[i]];
        if (++taken[dp] == share) {
            heap[0] = heap[--open];
        }
        replicas_sift(loads, heap, open);
    }
}

void replicas_deal_in_order(uint32_t count, uint32_t replicas, uint32_t *slots) {
    assert(replicas > 0 && count % replicas == 0);
    for (uint32_t m = 0; m < count; m++) {
        slots[m] = m % replicas * (count / replicas) + m / replicas;
    }
}
