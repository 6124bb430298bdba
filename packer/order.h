/* order: the two orders of packing, without comparing callbacks and without allocation.
 *
 * Documents are placed by descending length, a radix sort with as few passes as the spread of the
 * lengths needs; bins, and the documents inside one, are ranked by descending work, in place. Ties
 * go to the lowest index in both, so an order depends on nothing but its keys. */
#ifndef BALLAST_PACKER_ORDER_H
#define BALLAST_PACKER_ORDER_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of scratch that order_by_length needs; alignment of uint64_t. */
size_t order_by_length_bytes(uint32_t items);

/* Fills order[0..items) with 0..items-1 by (lengths descending, index ascending). */
void order_by_length(const uint32_t *lengths, uint32_t items, void *scratch, uint32_t *order);

/* Sorts the indexes order[0..count), which differ, by (works descending, index ascending). In
 * place; O(count) if that is their order already, else O(count log count). */
void order_by_work(const uint64_t *works, uint32_t *order, uint32_t count);

#endif
