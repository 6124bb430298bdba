/* best_fit: documents to full windows of fixed length with few cuts.
 *
 * Best-fit decreasing, as packed sequences of fixed length are commonly made: documents by
 * descending length go to the window with the least room that holds them whole. A document that
 * none holds is cut, at its turn, into the windows with the most room. Documents of which there are
 * no more than empty windows begin one each, so that none stays empty for want of one. Windows
 * then stand in the order in which their longest documents are read, so that heavy ones come as
 * they would without packing. Ties go to the window that was begun first. A document that is cut
 * appears in ascending order, each piece a document of its own to attention. Rooms lie in a few
 * thousand buckets: a search looks at one bucket and finds the next by its bits. Integers only; no
 * allocation; the result depends on nothing but the arguments. */
#ifndef BALLAST_PACKER_BEST_FIT_H
#define BALLAST_PACKER_BEST_FIT_H

#include "packer/fixed.h"

struct best_fit_input {
    const uint32_t *lengths; /* tokens, one per item, 0 < length; at most bins * window in all */
    uint32_t items;
    uint32_t bins;   /* 0 < bins <= 2^31 */
    uint32_t window; /* tokens that a bin holds, > 0 */
};

/* Bytes of scratch that pack_best_fit needs; alignment of max_align_t. */
size_t pack_best_fit_bytes(uint32_t items, uint32_t bins);

/* Fills pieces (pack_fixed_pieces_max of them) by ascending bin, in a bin in the order of
 * placing, and the tokens of the bins; returns the number of pieces. Bins that stay empty come
 * last. */
uint32_t pack_best_fit(const struct best_fit_input *input, void *scratch,
                       struct fixed_piece *pieces, uint64_t *bin_tokens);

#endif
