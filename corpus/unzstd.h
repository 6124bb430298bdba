/* unzstd: a whole file through zstd, which a build may lack. */
#ifndef BALLAST_CORPUS_UNZSTD_H
#define BALLAST_CORPUS_UNZSTD_H

#include "planner/error.h"

#include <stdint.h>

struct file;

struct unzstd {
    const char *path; /* for messages */
    struct file *file;
    uint64_t bytes; /* that have to come out */
};

/* derivation.make of a struct unzstd. -EBADMSG damaged, cut off, or of another size; -ENOSYS
 * without zstd in this build. */
int unzstd_make(void *context, int fd, struct error *error);

#endif
