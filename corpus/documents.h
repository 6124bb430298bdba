/* documents: collects where documents lie, for formats whose files do not say it as Megatron's do.
 *
 * Documents come in rising order of address. Up to 4 million stay in memory; beyond that they are
 * kept in an unnamed file in TMPDIR (/var/tmp without one), 4 bytes each, 12 where there are gaps,
 * and are read from there through windows (corpus/windows.h). One thread fills; the index that it
 * gives may be asked by any. */
#ifndef BALLAST_CORPUS_DOCUMENTS_H
#define BALLAST_CORPUS_DOCUMENTS_H

#include "corpus/document_index.h"

struct documents {
    uint32_t width; /* of a token */
    bool gapped;    /* some document does not begin where the one before ends */
    uint64_t count;
    uint64_t tokens;
    uint64_t next; /* address at which the last one ends */
    uint32_t longest;
    uint32_t *lengths; /* those that are held */
    uint64_t *offsets;
    size_t held, capacity;
    int lengths_fd, offsets_fd; /* of those that are not; -1: all are held */
    uint64_t spilled;
};

void documents_init(struct documents *documents, uint32_t width);
void documents_deinit(struct documents *documents);

/* A document of `tokens` tokens (any number; from 2^31 on it is refused) at `address`, not below
 * the end of the one before. `path` is for messages. -EBADMSG, -ENOBUFS, -ENOMEM, or what writing
 * said. */
int documents_add(struct documents *documents, uint64_t address, uint64_t tokens, const char *path,
                  struct error *error);

/* Fills `index`, which needs `documents` as long as it is used. `seen` is shown all lengths (u32),
 * then, where there are gaps, all addresses (u64). */
int documents_index(struct documents *documents, uint8_t dtype,
                    void (*seen)(void *context, const void *bytes, size_t count), void *context,
                    struct document_index *index, struct error *error);

#endif
