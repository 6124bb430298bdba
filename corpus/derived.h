/* derived: files made once from a dataset's own and kept: decompressed chunks, and where documents
 * end in files that do not say it.
 *
 * A derived file is named by the path of what it was made from and what was done to it, then by
 * these with size and time of change, so that a changed source has another one; it appears whole or
 * not at all, so that several processes may share a folder. Whoever uses the folder holds a shared
 * lock on its file "lock"; old files go only while nobody does (derived_prune), and one that is
 * missing is made again. The time of access says when a file was asked for last. Without a folder
 * they are kept below TMPDIR until derived_destroy. One thread. */
#ifndef BALLAST_CORPUS_DERIVED_H
#define BALLAST_CORPUS_DERIVED_H

#include "planner/error.h"

#include <stdbool.h>
#include <stdint.h>

struct derived;
struct files;

/* Makes nothing yet. `folder` (copied, NULL: temporary) is made when it is needed, and is in use as
 * long as `files` are. bytes_max 0: no bound on all that this dataset uses of it. -ENOMEM. */
int derived_create(const char *folder, uint64_t bytes_max, struct files *files,
                   struct derived **out, struct error *error);
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

/* What lies in a folder of derived files. Stale is what was not asked for in so many days, what
 * another version of the same source has superseded, and what writers left that died. */
struct derived_usage {
    uint64_t files, bytes;
    uint64_t stale_files, stale_bytes;
    uint64_t oldest_s; /* since the one that was asked for longest ago */
    bool in_use;       /* by some process: then nothing is removed */
    bool removed;      /* what is stale */
};

/* Looks through `folder` (zeros where there is none), and removes what is stale if asked to. days
 * 0: no age is too old. What reading the folder or removing said, with the path. */
int derived_prune(const char *folder, uint32_t days, bool remove, struct derived_usage *usage,
                  struct error *error);

#endif
