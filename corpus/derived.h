/* derived: files made once from a dataset's own and kept: decompressed chunks, and where documents
 * end in files that do not say it.
 *
 * A derived file is named by the path, size and time of change of what it was made from and by what
 * was done to it, so that a changed source has another one; it appears whole or not at all, so that
 * several processes may share a folder. Without a folder they are kept below TMPDIR until
 * derived_destroy. One thread. */
#ifndef BALLAST_CORPUS_DERIVED_H
#define BALLAST_CORPUS_DERIVED_H

#include "planner/error.h"

#include <stdint.h>

struct derived;

/* Makes nothing yet. `folder` (copied, NULL: temporary) is made when it is needed. bytes_max 0: no
 * bound on all that this dataset uses of it. -ENOMEM. */
int derived_create(const char *folder, uint64_t bytes_max, struct derived **out,
                   struct error *error);
void derived_destroy(struct derived *derived); /* takes NULL */

struct derivation {
    const char *source; /* path */
    const char *what;   /* "zstd", "eod 50256 u16" */
    uint64_t bytes;     /* of the result where they are known, else 0 */
    /* Writes the result to fd; `error` set on failure. */
    int (*make)(void *context, int fd, struct error *error);
    void *context;
};

/* The path of the result (heap), made now or before. -EFBIG over the bound. */
int derived_get(struct derived *derived, const struct derivation *derivation, char **out,
                struct error *error);

#endif
