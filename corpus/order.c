/* order: see order.h. The Feistel construction over integers with cycle walking is Black and
 * Rogaway's (Ciphers with Arbitrary Finite Domains, CT-RSA 2002); it mixes, it does not hide. */
#include "corpus/order.h"

#include <assert.h>

/* With 12 rounds no chi-square test tells the arrangements of up to six elements from equally
 * likely ones; with 8, those of five and six are visibly uneven. */
#define ROUNDS 12u

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

/* What a key is for: blocks and windows are permuted independently. */
enum purpose { PURPOSE_DOCUMENTS = 0, PURPOSE_BLOCKS = 1, PURPOSE_WINDOW = 2 };

/* splitmix64's finalizer (Steele, Lea, Flood, OOPSLA 2014). */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Bits of one half: the least h with 4^h >= n. */
static unsigned half_bits(uint64_t n) {
    unsigned bits = 64u - (unsigned)__builtin_clzll(n - 1);
    return (bits + 1) / 2;
}

static uint64_t feistel(uint64_t key, unsigned half, uint64_t x) {
    uint64_t mask = (UINT64_C(1) << half) - 1;
    uint64_t left = x >> half;
    uint64_t right = x & mask;
    for (unsigned round = 0; round < ROUNDS; round++) {
        key += GOLDEN;
        uint64_t next = left ^ mix(key ^ right) >> (64u - half);
        left = right;
        right = next;
    }
    return left << half | right;
}

/* A Feistel network over more than four values is always an even permutation; a last exchange of 0
 * and 1, or none, lets odd ones be as likely. */
uint64_t permute(uint64_t key, uint64_t n, uint64_t i) {
    assert(i < n && n <= UINT64_C(1) << 62);
    if (n == 1) {
        return 0;
    }
    key = mix(key + GOLDEN);
    unsigned half = half_bits(n);
    do {
        i = feistel(key, half, i);
    } while (i >= n);
    return i < 2 ? i ^ (key >> 63) : i;
}

static uint64_t order_key(const struct order *order, uint32_t dataset, uint64_t epoch,
                          enum purpose purpose, uint64_t number) {
    uint64_t key = mix(order->seed + GOLDEN);
    key = mix(key ^ dataset) + GOLDEN;
    key = mix(key ^ epoch) + GOLDEN;
    key = mix(key ^ (uint64_t)purpose) + GOLDEN;
    return mix(key ^ number);
}

static uint64_t order_in_blocks(const struct order *order, uint32_t dataset, uint64_t epoch,
                                uint64_t documents, uint64_t position) {
    uint64_t block_documents = order->block_documents;
    uint64_t window_documents = block_documents * order->window_blocks;
    uint64_t window = position / window_documents;
    uint64_t start = window * window_documents;
    uint64_t count = documents - start < window_documents ? documents - start : window_documents;
    uint64_t window_key = order_key(order, dataset, epoch, PURPOSE_WINDOW, window);
    uint64_t place = start + permute(window_key, count, position - start);
    uint64_t blocks = documents / block_documents;
    uint64_t block = place / block_documents;
    if (block < blocks) {
        uint64_t key = order_key(order, dataset, epoch, PURPOSE_BLOCKS, 0);
        block = permute(key, blocks, block);
    }
    return block * block_documents + place % block_documents;
}

uint64_t order_document(const struct order *order, uint32_t dataset, uint64_t epoch,
                        uint64_t documents, uint64_t position) {
    assert(position < documents);
    switch (order->shuffle) {
    case ORDER_BLOCK:
        return order_in_blocks(order, dataset, epoch, documents, position);
    case ORDER_FULL:
        return permute(order_key(order, dataset, epoch, PURPOSE_DOCUMENTS, 0), documents, position);
    case ORDER_NONE:
        break;
    }
    return position;
}
