/* foreign: names the corpus formats that are not read here, and who converts them.
 *
 * Only recognition, by the first bytes of an index file or by what lies at a path; nothing is
 * parsed. A user whose corpus is refused should learn what it is and what to run. */
#ifndef BALLAST_CORPUS_FOREIGN_H
#define BALLAST_CORPUS_FOREIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct foreign_format {
    const char *name;   /* "an MDS folder (MosaicML streaming)" */
    const char *remedy; /* "read it with ... and write it with ..." */
};

/* Bytes of an index file's head that foreign_by_head wants to see. */
#define FOREIGN_HEAD_BYTES 16u

/* What an index file of `file_bytes` bytes starting with head[count] is; NULL when unknown. */
const struct foreign_format *foreign_by_head(const uint8_t *head, size_t count,
                                             uint64_t file_bytes);

/* What lies at a corpus prefix that has no PREFIX.idx; NULL when nothing known does. */
const struct foreign_format *foreign_by_path(const char *prefix);

/* Whether a path is x.idx or x.bin, and there is an x.idx. */
bool foreign_is_half(const char *prefix);

#endif
