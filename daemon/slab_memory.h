/* slab_memory: the sealed memfd that a slab is cut from.
 *
 * Its pages are small, huge ones of the kernel's pool (hugetlb), or, where that has too few, small
 * ones that the kernel may join (transparent). They come into being when they are first written, on
 * the NUMA node that was asked for, if any, else on the writer's. The seals leave this process's
 * mapping as the only one that can write, and nobody can shrink what a rank has mapped. */
#ifndef BALLAST_DAEMON_SLAB_MEMORY_H
#define BALLAST_DAEMON_SLAB_MEMORY_H

#include "planner/error.h"

#include <stdint.h>

#define SLAB_NODE_ANY  UINT32_MAX
#define SLAB_NODES_MAX 1024u

/* As in [slab] huge_pages. */
enum slab_huge { SLAB_HUGE_OFF = 0, SLAB_HUGE_TRY = 1, SLAB_HUGE_ON = 2 };

enum slab_pages { SLAB_PAGES_SMALL = 0, SLAB_PAGES_TRANSPARENT = 1, SLAB_PAGES_HUGE = 2 };

struct slab_memory {
    int fd; /* -1: none; the mapping stands without it */
    uint8_t *base;
    uint64_t bytes; /* mapped: what was asked for, rounded up to whole pages of their kind */
    enum slab_pages pages;
};

/* -ENOMEM when the machine or this process's control group has not that much memory, or not enough
 * huge pages where they must be; -EINVAL for a node that is not there. On failure nothing is left
 * open. */
int slab_memory_open(struct slab_memory *memory, uint64_t bytes, enum slab_huge huge, uint32_t node,
                     struct error *error);

/* Idempotent; fine for a zeroed one whose base is NULL. */
void slab_memory_close(struct slab_memory *memory);

const char *slab_pages_name(enum slab_pages pages);

#endif
