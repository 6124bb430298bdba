/* extents: from parts in disk order to the reads that fetch them.
 *
 * Parts that are neighbours on disk become one read wherever their tokens go, up to 1 MB; what is
 * longer is cut. Bytes between two parts are read along and thrown away where that is cheaper than
 * another read. What a manifest covers and was not checked yet is read by whole pieces, to be
 * checked on the way; what was checked is read like any other. Of files that may be read past the
 * page cache, what is not in it is.
 * One thread. Nothing is allocated that is there from the time before. */
#ifndef BALLAST_CORPUS_EXTENTS_H
#define BALLAST_CORPUS_EXTENTS_H

#include "corpus/dataset.h"
#include "corpus/reader.h"

#include <stdbool.h>

/* Gaps of up to this many bytes are read along: about what the page cache, or the disk where it is
 * read past the cache, delivers in the time of one read. */
#define EXTENT_GAP_BYTES_MAX        4096u
#define EXTENT_GAP_BYTES_MAX_DIRECT 16384u

/* An extent that is in the page cache and goes to several places is taken from a mapping, whatever
 * its gaps up to this. Two conditions: it has so many wanted bytes, since less is read as fast, and
 * one in so many is wanted, since the pages of gaps come along and cost something. */
#define EXTENT_GAP_BYTES_MAX_MAPPED 65536u
#define EXTENT_MAPPED_BYTES_MIN     16384u
#define EXTENT_MAPPED_SHARE         4u

/* How much of what is wanted is in the page cache. */
enum cached { CACHED_NONE, CACHED_PARTLY, CACHED_ALL };

struct extents_mapping;

struct extents {
    struct read_extent *extents; /* check_context is the volume */
    uint32_t *places;            /* the first place with bytes in each extent */
    uint32_t count;
    uint64_t read_bytes; /* of all extents, with gaps */
    /* private from here on */
    uint32_t max; /* that there is room for */
    struct iovec *iovecs;
    uint64_t iovec_count, iovec_max;
    uint8_t *waste; /* what is read and not wanted */
    uint64_t waste_bytes, waste_max;
    struct extents_mapping *mappings; /* of the files that extents are mapped of */
    bool gaps;                        /* are read along */
    enum cached cached;               /* of the dataset */
    int code;                         /* -ENOMEM: there is none of what was to be had */
    /* The open extent: */
    const struct volume *volume;            /* of whose dataset; which it does not leave */
    const struct manifest *manifest;        /* it is checked against; NULL: not checked */
    bool undecided;                         /* whether it is read past the page cache */
    bool mappable;                          /* may be taken from a mapping */
    uint64_t skipped_open;                  /* bytes of it that are not wanted */
    uint32_t seams[READ_EXTENT_IOVECS_MAX]; /* places behind gaps too wide to be read along */
    uint32_t seam_count;
    uint32_t iovecs_open;
    uint64_t gap_max;
    uint64_t end;        /* address */
    uint64_t bound;      /* where it has to end */
    uint64_t waste_open; /* for its gaps: the largest */
    uint8_t *memory_end; /* of its last iovec */
};

/* Empties it; memory is kept. Zero it the first time. */
void extents_begin(struct extents *extents, bool gaps);

/* For what is added next, of datasets that are chosen for (volumes.chosen) or mapped: whatever is
 * not CACHED_NONE, it looks at each extent, as far as the kernel can tell (file_cached). */
void extents_expect(struct extents *extents, enum cached cached);

/* `bytes` bytes at the address `offset` of a dataset go to `to`, for the place of this number;
 * datasets and offsets ascend, but one may begin before the last one ends. */
void extents_add(struct extents *extents, const struct dataset *dataset, uint64_t offset,
                 uint64_t bytes, uint8_t *to, uint32_t place);

/* 0: all of them can be read; or -ENOMEM. */
int extents_finish(struct extents *extents);

/* All extents have been read; any thread. */
void extents_unmap(struct extents *extents);

void extents_deinit(struct extents *extents); /* of a zeroed one, too */

#endif
