/* floor: a model below which no cutting of documents can bring their work.
 *
 * A cut leaves the forward tiles the key blocks that they see, where query tiles divide key blocks
 * (K/V groups of a power of two), and adds tiles. In the backward pass it parts the query tiles
 * over which a key block loops, and every part is a tile of its own: that costs another t0 where
 * the curve of cost.h is a line or bends down, but can be cheaper where it bends up, as long tiles
 * then take more a block. A line with a t0 of 0 or more that is nowhere above such a curve makes no
 * two parts cheaper than the whole. Pure, integers only, no allocation. */
#ifndef BALLAST_SHARDING_FLOOR_H
#define BALLAST_SHARDING_FLOOR_H

#include "sharding/cost.h"

#include <stdbool.h>

/* Fills a model that prices no fragments above `model` does, and no cut of documents of these
 * lengths, into up to two runs a rank or over heads, below the documents whole. Returns false where
 * it is `model` itself, whose backward curve bends nowhere up; else its backward curve is the line,
 * of those that follow a part of the curve or begin at nothing, that prices the documents highest.
 */
bool tile_model_floor(const struct tile_model *model, const uint32_t *lengths, uint32_t count,
                      struct tile_model *out);

#endif
