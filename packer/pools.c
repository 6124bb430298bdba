/* pools: see pools.h. The heap of Algorithm 1 holds the pools that have a place left. */
#include "packer/pools.h"

#include "packer/order.h"

#include <assert.h>

size_t pools_bytes(uint32_t sequences) {
    return 3 * sizeof(uint32_t) * (size_t)sequences;
}

static uint32_t pools_count(const struct pools_input *input) {
    assert(input->pool_size > 0 && input->sequences > 0 &&
           input->sequences % input->pool_size == 0);
    return input->sequences / input->pool_size;
}

static void pools_order(const uint64_t *works, uint32_t count, uint32_t *order) {
    for (uint32_t i = 0; i < count; i++) {
        order[i] = i;
    }
    order_by_work(works, order, count);
}

static bool pools_lighter(const uint64_t *loads, uint32_t a, uint32_t b) {
    return loads[a] < loads[b] || (loads[a] == loads[b] && a < b);
}

/* Lets the root sink: it has become heavier, or was replaced. */
static void pools_sift(const uint64_t *loads, uint32_t *heap, uint32_t count) {
    uint32_t at = 0;
    for (uint32_t child = 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && pools_lighter(loads, heap[child + 1], heap[child])) {
            child++;
        }
        if (!pools_lighter(loads, heap[child], heap[at])) {
            break;
        }
        uint32_t sinking = heap[at];
        heap[at] = heap[child];
        heap[child] = sinking;
        at = child;
    }
}

void pools_vrsp(const struct pools_input *input, void *scratch, uint32_t *members,
                uint64_t *loads) {
    uint32_t *order = scratch;
    uint32_t *heap = order + input->sequences;
    uint32_t *taken = heap + input->sequences;
    uint32_t open = pools_count(input);
    pools_order(input->works, input->sequences, order);
    for (uint32_t pool = 0; pool < open; pool++) {
        heap[pool] = pool;
        taken[pool] = 0;
        loads[pool] = 0;
    }
    for (uint32_t i = 0; i < input->sequences; i++) {
        uint32_t pool = heap[0];
        members[(size_t)pool * input->pool_size + taken[pool]++] = order[i];
        loads[pool] += input->works[order[i]];
        if (taken[pool] == input->pool_size) {
            heap[0] = heap[--open];
        }
        pools_sift(loads, heap, open);
    }
}

void pools_zigzag(const struct pools_input *input, void *scratch, uint32_t *members,
                  uint64_t *loads) {
    uint32_t *order = scratch;
    uint32_t pools = pools_count(input);
    pools_order(input->works, input->sequences, order);
    for (uint32_t pool = 0; pool < pools; pool++) {
        loads[pool] = 0;
    }
    for (uint32_t i = 0; i < input->sequences; i++) {
        uint32_t round = i / pools;
        uint32_t pool = round % 2 == 0 ? i % pools : pools - 1 - i % pools;
        members[(size_t)pool * input->pool_size + round] = order[i];
        loads[pool] += input->works[order[i]];
    }
}

/* Places in members, and the larger load of the two pools afterwards. */
struct pools_trade {
    uint32_t out;
    uint32_t in;
    uint64_t max;
};

/* Better trades of the heaviest pool with another one. */
static void pools_search(const struct pools_input *input, const uint32_t *members,
                         const uint64_t *loads, uint32_t heaviest, uint32_t other,
                         struct pools_trade *best) {
    uint32_t size = input->pool_size;
    for (uint32_t out = heaviest * size; out < (heaviest + 1) * size; out++) {
        uint64_t work = input->works[members[out]];
        for (uint32_t in = other * size; in < (other + 1) * size; in++) {
            uint64_t back = input->works[members[in]];
            if (back >= work) {
                continue;
            }
            uint64_t left = loads[heaviest] - (work - back);
            uint64_t grown = loads[other] + (work - back);
            uint64_t max = left > grown ? left : grown;
            if (max < best->max) {
                *best = (struct pools_trade){out, in, max};
            }
        }
    }
}

static bool pools_swap_once(const struct pools_input *input, uint32_t *members, uint64_t *loads) {
    uint32_t pools = pools_count(input);
    uint32_t heaviest = 0;
    for (uint32_t pool = 1; pool < pools; pool++) {
        heaviest = loads[pool] > loads[heaviest] ? pool : heaviest;
    }
    struct pools_trade best = {.max = loads[heaviest]};
    for (uint32_t pool = 0; pool < pools; pool++) {
        if (pool != heaviest) {
            pools_search(input, members, loads, heaviest, pool, &best);
        }
    }
    if (best.max == loads[heaviest]) {
        return false;
    }
    uint32_t leaving = members[best.out];
    uint64_t moved = input->works[leaving] - input->works[members[best.in]];
    loads[heaviest] -= moved;
    loads[best.in / input->pool_size] += moved;
    members[best.out] = members[best.in];
    members[best.in] = leaving;
    return true;
}

uint32_t pools_swap(const struct pools_input *input, uint32_t swaps_max, uint32_t *members,
                    uint64_t *loads) {
    uint32_t swaps = 0;
    while (swaps < swaps_max && pools_swap_once(input, members, loads)) {
        swaps++;
    }
    return swaps;
}

uint64_t pools_bound(const struct pools_input *input, void *scratch) {
    uint32_t *order = scratch;
    uint32_t pools = pools_count(input);
    uint64_t sum = 0;
    pools_order(input->works, input->sequences, order);
    for (uint32_t i = 0; i < input->sequences; i++) {
        sum += input->works[i];
    }
    uint64_t mean = sum / pools + (sum % pools > 0);
    uint64_t with_heaviest = input->works[order[0]];
    for (uint32_t i = 1; i < input->pool_size; i++) {
        with_heaviest += input->works[order[input->sequences - i]];
    }
    return with_heaviest > mean ? with_heaviest : mean;
}

void pools_emit(const struct pools_input *input, uint32_t replicas, bool snake,
                const uint32_t *members, const uint64_t *loads, void *scratch,
                uint32_t *positions) {
    uint32_t *order = scratch;
    uint32_t pools = pools_count(input);
    uint32_t size = input->pool_size;
    assert(replicas % size == 0 && input->sequences % replicas == 0);
    uint32_t slots = replicas / size;
    for (uint32_t pool = 0; pool < pools; pool++) {
        order[pool] = pool;
    }
    if (snake) {
        order_by_work(loads, order, pools);
    }
    for (uint32_t i = 0; i < pools; i++) {
        uint32_t ga = i / slots;
        uint32_t slot = snake && ga % 2 == 1 ? slots - 1 - i % slots : i % slots;
        for (uint32_t member = 0; member < size; member++) {
            positions[members[(size_t)order[i] * size + member]] = ga * replicas + slot * size +
                                                                   member;
        }
    }
}
