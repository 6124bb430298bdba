/* order: a stable radix sort for lengths, a heap sort for works. */
#include "packer/order.h"

#include <stdbool.h>
#include <string.h>

#define DIGIT_BITS_MAX 11u

size_t order_by_length_bytes(uint32_t items) {
    return 2 * sizeof(uint64_t) * (size_t)items;
}

static unsigned order_bits(uint32_t value) {
    unsigned bits = 0;
    for (; value > 0; value >>= 1) {
        bits++;
    }
    return bits;
}

/* One stable counting pass over the digit of `bits` bits at `shift`. */
static void order_pass(const uint64_t *keys, uint32_t items, unsigned shift, unsigned bits,
                       uint64_t *out) {
    uint32_t starts[1u << DIGIT_BITS_MAX];
    uint32_t mask = (1u << bits) - 1;
    memset(starts, 0, (mask + (size_t)1) * sizeof starts[0]);
    for (uint32_t i = 0; i < items; i++) {
        starts[keys[i] >> shift & mask]++;
    }
    uint32_t start = 0;
    for (uint32_t digit = 0; digit <= mask; digit++) {
        uint32_t count = starts[digit];
        starts[digit] = start;
        start += count;
    }
    for (uint32_t i = 0; i < items; i++) {
        out[starts[keys[i] >> shift & mask]++] = keys[i];
    }
}

/* Keys are (longest length - length, index): ascending keys are descending lengths, and as they
 * start in index order, stable passes over the upper half are enough. */
void order_by_length(const uint32_t *lengths, uint32_t items, void *scratch, uint32_t *order) {
    uint64_t *keys = scratch;
    uint64_t *spare = keys + items;
    uint32_t shortest = UINT32_MAX;
    uint32_t longest = 0;
    for (uint32_t i = 0; i < items; i++) {
        shortest = lengths[i] < shortest ? lengths[i] : shortest;
        longest = lengths[i] > longest ? lengths[i] : longest;
    }
    for (uint32_t i = 0; i < items; i++) {
        keys[i] = (uint64_t)(longest - lengths[i]) << 32 | i;
    }
    unsigned width = items > 0 ? order_bits(longest - shortest) : 0;
    unsigned passes = (width + DIGIT_BITS_MAX - 1) / DIGIT_BITS_MAX;
    for (unsigned pass = 0; pass < passes; pass++) {
        unsigned bits = (width + passes - 1) / passes;
        order_pass(keys, items, 32 + pass * bits, bits, spare);
        uint64_t *sorted = spare;
        spare = keys;
        keys = sorted;
    }
    for (uint32_t i = 0; i < items; i++) {
        order[i] = (uint32_t)(keys[i] & UINT32_MAX);
    }
}

static bool order_before(const uint64_t *works, uint32_t a, uint32_t b) {
    return works[a] > works[b] || (works[a] == works[b] && a < b);
}

/* Lets order[at] sink in a heap whose root comes last. */
static void order_sink(const uint64_t *works, uint32_t *order, size_t count, size_t at) {
    uint32_t sinking = order[at];
    for (size_t child = 2 * at + 1; child < count; child = 2 * at + 1) {
        if (child + 1 < count && order_before(works, order[child], order[child + 1])) {
            child++;
        }
        if (order_before(works, order[child], sinking)) {
            break;
        }
        order[at] = order[child];
        at = child;
    }
    order[at] = sinking;
}

void order_by_work(const uint64_t *works, uint32_t *order, uint32_t count) {
    uint32_t sorted = 1;
    while (sorted < count && order_before(works, order[sorted - 1], order[sorted])) {
        sorted++;
    }
    if (sorted >= count) {
        return;
    }
    for (size_t at = count / 2; at-- > 0;) {
        order_sink(works, order, count, at);
    }
    for (size_t left = count - 1; left > 0; left--) {
        uint32_t last = order[0];
        order[0] = order[left];
        order[left] = last;
        order_sink(works, order, left, 0);
    }
}
