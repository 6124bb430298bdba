/* descend: the order that every tie-break here is built on: larger first, then lower index.
 *
 * A heap sort of indexes: no allocation (qsort may), and total, so the result follows from the keys
 * alone. O(n log n). */
#ifndef BALLAST_PLANNER_DESCEND_H
#define BALLAST_PLANNER_DESCEND_H

#include <stdint.h>

/* order[0..count) receives 0..count-1 by (keys descending, index ascending). */
void descend(const uint64_t *keys, uint32_t count, uint32_t *order);

#endif
