/* gather: one rank's rows out of a slot, as the columns a model takes.
 *
 * A slot holds the tokens of all parts of a micro-batch in row order, unsigned and `token_bytes`
 * wide, then a successor token for each part that is not its document's last. A rank's rows are its
 * fragments one after the other, then pad rows. Pure loops over memory; nothing is checked here. */
#ifndef BALLAST_CLIENT_GATHER_H
#define BALLAST_CLIENT_GATHER_H

#include "client/ballast.h"

#define GATHER_LABEL_NONE   (-100)
#define GATHER_NO_SUCCESSOR UINT64_MAX

struct gather_rows {
    const struct ballast_document *documents;
    const struct ballast_fragment *fragments;
    const uint64_t *first_rows; /* per document: its first token, counted from `tokens` */
    const uint64_t *successors; /* per document: its successor, likewise, or GATHER_NO_SUCCESSOR */
    const uint8_t *tokens;      /* of the slot, aligned to token_bytes */
    uint32_t token_bytes;       /* 2 or 4 */
    uint32_t fragment_count;
    uint64_t pad_rows;
};

/* Each fills the rows of all fragments and pad_rows more, as int32_t or int64_t. Tokens: 0 on pad
 * rows. Labels: next token of the same document, its successor at the end of a part, and
 * GATHER_LABEL_NONE at the end of a document and on pad rows. Positions count from the start of the
 * part; 0 on pad rows. gather_positions reads no tokens. */
void gather_tokens(const struct gather_rows *rows, enum ballast_type type, void *out);
void gather_labels(const struct gather_rows *rows, enum ballast_type type, void *out);
void gather_positions(const struct gather_rows *rows, enum ballast_type type, void *out);

#endif
