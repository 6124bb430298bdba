/* order: see order.h. The Feistel construction over integers with cycle walking is Black and
 * Rogaway's (Ciphers with Arbitrary Finite Domains, CT-RSA 2002); it mixes, it does not hide. */
#include "corpus/order.h"

#include <assert.h>
#include <stdbool.h>

#define ORDER_LINE   32u  /* positions that are worked out together */
#define ORDER_LINES  256u /* of them, which a thread remembers: 80 KB with the places */
#define ORDER_PLACES 256u /* of blocks */

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

/* What a thread worked out last. Readers go through positions one by one, planners more than once,
 * and the documents of a window lie in few blocks; all of it follows from the arguments alone. */
struct order_place {
    uint64_t key, blocks, block; /* blocks 0: empty */
    uint64_t document_block;
};

struct order_line {
    struct order order;
    uint32_t dataset;
    uint64_t epoch;
    uint64_t documents; /* 0: empty */
    uint64_t first;     /* position */
    bool known;         /* else asked for once, for one position */
    uint64_t items[ORDER_LINE];
};

static _Thread_local struct order_place order_places[ORDER_PLACES];
static _Thread_local struct order_line order_lines[ORDER_LINES];

static uint64_t order_block(uint64_t key, uint64_t blocks, uint64_t block) {
    struct order_place *at = &order_places[(block ^ key) % ORDER_PLACES];
    if (at->key != key || at->blocks != blocks || at->block != block) {
        *at = (struct order_place){key, blocks, block, permute(key, blocks, block)};
    }
    return at->document_block;
}

static void order_in_blocks(const struct order_line *line, uint64_t begin, uint64_t count,
                            uint64_t *items) {
    const struct order *order = &line->order;
    uint64_t block_documents = order->block_documents;
    uint64_t window_documents = block_documents * order->window_blocks;
    uint64_t blocks = line->documents / block_documents;
    uint64_t key = order_key(order, line->dataset, line->epoch, PURPOSE_BLOCKS, 0);
    uint64_t window = UINT64_MAX, window_key = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t position = begin + i;
        if (position / window_documents != window) {
            window = position / window_documents;
            window_key = order_key(order, line->dataset, line->epoch, PURPOSE_WINDOW, window);
        }
        uint64_t start = window * window_documents;
        uint64_t left = line->documents - start;
        uint64_t place = start + permute(window_key,
                                         left < window_documents ? left : window_documents,
                                         position - start);
        uint64_t block = place / block_documents;
        block = block < blocks ? order_block(key, blocks, block) : block;
        items[i] = block * block_documents + place % block_documents;
    }
}

static void order_documents(const struct order_line *line, uint64_t begin, uint64_t count,
                            uint64_t *items) {
    if (line->order.shuffle == ORDER_BLOCK) {
        order_in_blocks(line, begin, count, items);
        return;
    }
    uint64_t key = order_key(&line->order, line->dataset, line->epoch, PURPOSE_DOCUMENTS, 0);
    for (uint64_t i = 0; i < count; i++) {
        items[i] = permute(key, line->documents, begin + i);
    }
}

static bool order_line_is(const struct order_line *line, const struct order_line *wanted) {
    return line->first == wanted->first && line->documents == wanted->documents &&
           line->epoch == wanted->epoch && line->dataset == wanted->dataset &&
           line->order.seed == wanted->order.seed && line->order.shuffle == wanted->order.shuffle &&
           line->order.block_documents == wanted->order.block_documents &&
           line->order.window_blocks == wanted->order.window_blocks;
}

/* A line is worked out when it is asked for again, so that who jumps pays for one document. */
static uint64_t order_remembered(const struct order_line *wanted, uint64_t position) {
    uint64_t slot = wanted->first / ORDER_LINE + mix(wanted->dataset + wanted->epoch * GOLDEN);
    struct order_line *line = &order_lines[slot % ORDER_LINES];
    if (!order_line_is(line, wanted)) {
        uint64_t document;
        *line = *wanted;
        order_documents(line, position, 1, &document);
        return document;
    }
    if (!line->known) {
        uint64_t left = line->documents - line->first;
        order_documents(line, line->first, left < ORDER_LINE ? left : ORDER_LINE, line->items);
        line->known = true;
    }
    return line->items[position - line->first];
}

uint64_t order_document(const struct order *order, uint32_t dataset, uint64_t epoch,
                        uint64_t documents, uint64_t position) {
    assert(position < documents);
    if (order->shuffle == ORDER_NONE) {
        return position;
    }
    struct order_line wanted; /* without items, which would take as long as a document */
    wanted.order = *order;
    wanted.dataset = dataset;
    wanted.epoch = epoch;
    wanted.documents = documents;
    wanted.first = position - position % ORDER_LINE;
    wanted.known = false;
    return order_remembered(&wanted, position);
}
