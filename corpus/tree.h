/* tree: the files below a folder that import takes, in byte-wise order of their whole path. */
#ifndef BALLAST_CORPUS_TREE_H
#define BALLAST_CORPUS_TREE_H

#include "planner/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

struct tree_options {
    const char *root;           /* folder, or one file (taken whatever its name) */
    const char *suffixes;       /* as in import_options */
    bool ignore_gz;             /* a suffix is what stands before .gz */
    const struct stat *outputs; /* files never to take, by device and inode */
    size_t output_count;
};

struct tree {
    char **paths; /* root included; owned */
    size_t count;
    size_t capacity;
    uint64_t links; /* symbolic links with a matching name: not followed, not taken */
};

/* Fills a zeroed tree; on failure too it wants tree_deinit. A folder that cannot be read fails. */
int tree_list(const struct tree_options *options, struct tree *tree, struct error *error);
void tree_deinit(struct tree *tree);

/* Whether a file name ends in ".gz". */
bool tree_is_gz(const char *name);

#endif
