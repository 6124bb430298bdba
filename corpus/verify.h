/* verify: reads a whole dataset once: every token id within vocab, every document readable.
 *
 * What open cannot know without reading the tokens. Files are read front to back, which is every
 * document once in whatever order they stand (open has seen to that); where something else stands
 * between documents, these are read a second time. */
#ifndef BALLAST_CORPUS_VERIFY_H
#define BALLAST_CORPUS_VERIFY_H

#include "corpus/dataset.h"
#include "corpus/manifest.h"

struct verify_result {
    uint64_t documents, tokens, bytes, empty_documents;
    uint64_t token_max; /* 0 without tokens */
    /* Of all documents, empty ones too: lengths in rising order, at documents * 50 / 100 and so on;
     * exact. 0 without documents. */
    uint32_t length_p50, length_p90, length_p99, length_max;
    uint8_t fingerprint[16];
};

/* vocab 0: ids are only checked against the dtype: not negative, and below 2^31, the widest that is
 * delivered. `progress` may be NULL; called with bytes done and bytes in all, every 1 MB.
 * `fresh` (may be NULL) takes the hashes of what is read; without it the dataset's own manifest, if
 * it has one, is compared.
 * -EBADMSG or -EIO with document, file and byte offset of the first offence. */
int verify_dataset(const struct dataset *dataset, uint64_t vocab, struct manifest *fresh,
                   void (*progress)(uint64_t done, uint64_t total, void *context), void *context,
                   struct verify_result *result, struct error *error);

#endif
