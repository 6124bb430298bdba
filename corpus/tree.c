/* tree: see tree.h. */
#include "corpus/tree.h"

#include <fts.h>
#include <stdlib.h>
#include <string.h>

static bool ends_with(const char *name, size_t chars, const char *ending, size_t ending_chars) {
    return ending_chars > 0 && chars > ending_chars &&
           memcmp(name + chars - ending_chars, ending, ending_chars) == 0 &&
           name[chars - ending_chars - 1] == '.';
}

bool tree_is_gz(const char *name) {
    return ends_with(name, strlen(name), "gz", 2);
}

static bool matches(const struct tree_options *options, const char *name) {
    size_t chars = strlen(name);
    if (options->suffixes == NULL) {
        return true;
    }
    if (options->ignore_gz && tree_is_gz(name)) {
        chars -= strlen(".gz");
    }
    for (const char *suffix = options->suffixes; *suffix != '\0';) {
        suffix += *suffix == '.';
        size_t suffix_chars = strcspn(suffix, ",");
        if (ends_with(name, chars, suffix, suffix_chars)) {
            return true;
        }
        suffix += suffix_chars;
        suffix += *suffix == ',';
    }
    return false;
}

static bool is_output(const struct tree_options *options, const struct stat *info) {
    for (size_t i = 0; i < options->output_count; i++) {
        const struct stat *output = &options->outputs[i];
        if (info->st_dev == output->st_dev && info->st_ino == output->st_ino) {
            return true;
        }
    }
    return false;
}

static int tree_add(struct tree *tree, const char *path, struct error *error) {
    if (tree->count == tree->capacity) {
        size_t capacity = tree->capacity == 0 ? 1024 : 2 * tree->capacity;
        char **paths = reallocarray(tree->paths, capacity, sizeof *paths);
        if (paths == NULL) {
            return error_set(error, -ENOMEM, "no memory for %zu paths; import in parts", capacity);
        }
        tree->paths = paths;
        tree->capacity = capacity;
    }
    tree->paths[tree->count] = strdup(path);
    if (tree->paths[tree->count] == NULL) {
        return error_set(error, -ENOMEM, "no memory for a path; import in parts");
    }
    tree->count++;
    return 0;
}

static int tree_visit(const struct tree_options *options, struct tree *tree, const FTSENT *entry,
                      struct error *error) {
    bool taken = entry->fts_level == 0 || matches(options, entry->fts_name);
    switch (entry->fts_info) {
    case FTS_F:
        if (taken && !is_output(options, entry->fts_statp)) {
            return tree_add(tree, entry->fts_path, error);
        }
        return 0;
    case FTS_SL:
    case FTS_SLNONE:
        tree->links += taken;
        return 0;
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS:
        return error_set(error, -entry->fts_errno, "%s: %s; check the path and its permissions",
                         entry->fts_path, strerror(entry->fts_errno));
    default:
        return 0;
    }
}

static int compare_paths(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

int tree_list(const struct tree_options *options, struct tree *tree, struct error *error) {
    char *roots[] = {(char *)(uintptr_t)options->root, NULL};
    FTS *fts = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, NULL);
    int rc = 0;
    if (fts == NULL) {
        return error_set(error, -errno, "%s: %s; check the path", options->root, strerror(errno));
    }
    while (rc == 0) {
        errno = 0;
        const FTSENT *entry = fts_read(fts);
        if (entry == NULL) {
            break;
        }
        rc = tree_visit(options, tree, entry, error);
    }
    if (rc == 0 && errno != 0) {
        rc = error_set(error, -errno, "%s: %s; check the path", options->root, strerror(errno));
    }
    fts_close(fts);
    if (rc == 0 && tree->count > 0) {
        qsort(tree->paths, tree->count, sizeof *tree->paths, compare_paths);
    }
    return rc;
}

void tree_deinit(struct tree *tree) {
    while (tree->count > 0) {
        free(tree->paths[--tree->count]);
    }
    free(tree->paths);
    *tree = (struct tree){0};
}
