/* order: in which order the documents of a dataset are read, without a table.
 *
 * A keyed permutation of 0..n-1 (a balanced Feistel network over the next power of four with
 * cycle walking; round keys from (seed, dataset, epoch) by splitmix64), so a cursor is one integer
 * and resuming is O(1).
 *   ORDER_BLOCK  blocks of `block_documents` neighbours are permuted; documents are then permuted
 *                inside each window of `window_blocks` successive blocks of that order, so that
 *                reads coalesce (default);
 *   ORDER_FULL   documents are permuted;
 *   ORDER_NONE   file order.
 * The documents behind the last whole block, fewer than a block, keep their place at the end of the
 * block order and are mixed with the last window only. Every block before them is then whole, and
 * position, block and window follow from one another by division. The last window is as long as
 * what is left for it.
 * Pure, integers only, any thread: each remembers what it worked out last, since a planner asks for
 * the same positions more than once. */
#ifndef BALLAST_CORPUS_ORDER_H
#define BALLAST_CORPUS_ORDER_H

#include <stdint.h>

enum order_shuffle { ORDER_BLOCK = 0, ORDER_FULL = 1, ORDER_NONE = 2 };

struct order {
    uint64_t seed;
    enum order_shuffle shuffle;
    uint32_t block_documents; /* > 0 */
    uint32_t window_blocks;   /* > 0 */
};

/* Document at `position` (< documents) of pass `epoch` over dataset number `dataset`. For fixed
 * (dataset, epoch, documents) a bijection of [0, documents). */
uint64_t order_document(const struct order *order, uint32_t dataset, uint64_t epoch,
                        uint64_t documents, uint64_t position);

/* The keyed permutation itself: value of i in [0, n), 0 < n <= 2^62. */
uint64_t permute(uint64_t key, uint64_t n, uint64_t i);

#endif
