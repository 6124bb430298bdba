/* extents: see extents.h. Memory for waste is found at the end, when it is known how much there is;
 * until then its iovecs lead nowhere. */
#include "corpus/extents.h"
#include "corpus/bulk.h"
#include "corpus/files.h"
#include "corpus/manifest.h"
#include "corpus/mapped.h"
#include "corpus/volumes.h"

#include <assert.h>
#include <stdlib.h>

/* Of an extent that is checked: still in the processor's cache when it is. */
#define CHECKED_BYTES_MAX 262144u

#define ROOM_LEAST 64u

/* Where waste is before it is placed: nowhere near any payload. */
#define UNPLACED (UINTPTR_MAX / 4)

/* Where it is when it needs no place. */
#define DROPPED (UINTPTR_MAX / 2)

struct extents_mapping {
    struct mapping mapping;
    const struct volume *volume;
    struct extents_mapping *next;
};

void extents_begin(struct extents *extents, bool gaps) {
    extents_unmap(extents);
    extents->gaps = gaps;
    extents->cached = CACHED_ALL;
    extents->code = 0;
    extents->count = 0;
    extents->iovec_count = 0;
    extents->waste_bytes = 0;
    extents->waste_open = 0;
    extents->read_bytes = 0;
    extents->volume = NULL;
    extents->manifest = NULL;
}

void extents_expect(struct extents *extents, enum cached cached) {
    extents->cached = cached;
}

void extents_unmap(struct extents *extents) {
    for (uint32_t i = 0; extents->mappings != NULL && i < extents->count; i++) {
        extents->extents[i].mapping = NULL;
    }
    while (extents->mappings != NULL) {
        struct extents_mapping *first = extents->mappings;
        extents->mappings = first->next;
        mapping_close(&first->mapping);
        free(first);
    }
}

void extents_deinit(struct extents *extents) {
    extents_unmap(extents);
    free(extents->extents);
    free(extents->places);
    free(extents->iovecs);
    free(extents->waste);
    *extents = (struct extents){0};
}

/* Memory for more of them, what is there kept; NULL: it stays as it is. */
static void *grown(void *memory, uint64_t *max, size_t bytes) {
    uint64_t wanted = *max + *max / 2 + ROOM_LEAST;
    void *more = realloc(memory, wanted * bytes);
    *max = more == NULL ? *max : wanted;
    return more;
}

static bool extents_room(struct extents *extents) {
    if (extents->count < extents->max) {
        return true;
    }
    uint64_t max = extents->max, same = max;
    void *more = grown(extents->extents, &max, sizeof *extents->extents);
    extents->extents = more == NULL ? extents->extents : more;
    void *places = more == NULL ? NULL : grown(extents->places, &same, sizeof *extents->places);
    if (places == NULL || max > UINT32_MAX) {
        extents->code = -ENOMEM;
        return false;
    }
    extents->places = places;
    extents->max = (uint32_t)max;
    return true;
}

static bool extents_room_for_iovec(struct extents *extents) {
    if (extents->iovec_count < extents->iovec_max) {
        return true;
    }
    void *more = grown(extents->iovecs, &extents->iovec_max, sizeof *extents->iovecs);
    if (more == NULL) {
        extents->code = -ENOMEM;
        return false;
    }
    extents->iovecs = more;
    return true;
}

static struct read_extent *extent_opened(struct extents *extents) {
    return &extents->extents[extents->count - 1];
}

static void extent_append(struct extents *extents, uint64_t bytes, uint8_t *to) {
    extents->end += bytes;
    extents->read_bytes += bytes;
    if (extents->memory_end == to) {
        extents->iovecs[extents->iovec_count - 1].iov_len += bytes;
    } else if (extents_room_for_iovec(extents)) {
        extents->iovecs[extents->iovec_count++] = (struct iovec){to, bytes};
        extents->iovecs_open++;
    }
    extents->memory_end = to + bytes;
}

/* All waste of an extent overwrites itself, or needs no place: the reader deals it out. */
static void extent_skip(struct extents *extents, uint64_t bytes) {
    if (bytes == 0) {
        return;
    }
    bool dropped = extent_opened(extents)->dropped;
    extents->skipped_open += bytes;
    extents->memory_end = NULL;
    extent_append(extents, bytes, (uint8_t *)(dropped ? DROPPED : UNPLACED + extents->waste_bytes));
    extents->memory_end = NULL;
    if (!dropped && bytes > extents->waste_open) {
        extents->waste_open = bytes;
    }
}

/* Where the pieces end that the open extent has begun. */
static uint64_t extent_whole_end(const struct extents *extents) {
    if (extents->manifest == NULL) {
        return extents->end;
    }
    const struct volume *volume = extents->volume;
    uint64_t piece = manifest_piece_bytes(extents->manifest);
    uint64_t end = (extents->end - volume->base + piece - 1) / piece * piece;
    end = volume->base + (end < volume->bytes ? end : volume->bytes);
    return end > extents->end ? end : extents->end; /* which may be WINDOWS_NOWHERE */
}

/* Once it is known how far the open extent goes. */
static void extent_choose(struct extents *extents) {
    struct read_extent *extent = extent_opened(extents);
    const struct volume *volume = extents->volume;
    uint64_t bytes = volume_offset(volume, extents->end) - extent->offset;
    if (volume->direct != NULL && file_cached(volume->file, extent->offset, bytes) == 0) {
        extent->file = volume->direct;
    }
}

/* Where an extent is cut if it is not mapped after all. */
static void extent_note_seam(struct extents *extents, uint64_t gap, uint32_t place) {
    if (extents->mappable && gap > EXTENT_GAP_BYTES_MAX) {
        assert(extents->seam_count < READ_EXTENT_IOVECS_MAX);
        extents->seams[extents->seam_count++] = place;
    }
}

/* A gap that is read along after all. */
static void extent_waste(struct extents *extents, struct iovec *gap) {
    gap->iov_base = (uint8_t *)(UNPLACED + extents->waste_bytes);
    extents->waste_open = gap->iov_len > extents->waste_open ? gap->iov_len : extents->waste_open;
}

/* Makes several extents of the open one, which will not be mapped, with nothing at its seams. */
static void extent_split(struct extents *extents) {
    extent_opened(extents)->dropped = false;
    const struct read_extent whole = *extent_opened(extents);
    uint64_t from = extents->iovec_count - extents->iovecs_open, end = extents->iovec_count;
    uint64_t offset = whole.offset;
    const uint32_t *place = extents->seams;
    extents->iovec_count = from;
    extents->iovecs_open = 0;
    for (uint64_t i = from; i < end; i++) {
        struct iovec iovec = extents->iovecs[i];
        bool gap = iovec.iov_base == (uint8_t *)DROPPED;
        offset += iovec.iov_len;
        if (!gap || iovec.iov_len <= EXTENT_GAP_BYTES_MAX) {
            if (gap) {
                extent_waste(extents, &iovec);
            }
            extents->iovecs[extents->iovec_count++] = iovec;
            extents->iovecs_open++;
            continue;
        }
        extent_opened(extents)->iovec_count = extents->iovecs_open;
        if (!extents_room(extents)) {
            return;
        }
        extents->extents[extents->count] = whole;
        extents->extents[extents->count].offset = offset;
        extents->places[extents->count++] = *place++;
        extents->iovecs_open = 0;
        extents->read_bytes -= iovec.iov_len;
    }
    extent_opened(extents)->iovec_count = extents->iovecs_open;
}

/* A page that a mapping has to wait for is waited for by the whole thread, and read with as many
 * around it as the disk is set to. */
static bool extent_is_cached(const struct extents *extents, uint64_t offset, uint64_t bytes) {
    int found = file_cached(extents->volume->file, offset, bytes);
    return found > 0 || (found < 0 && extents->cached == CACHED_ALL);
}

static bool volume_map(const struct volume *volume, struct mapping *mapping) {
    int fd = file_acquire(volume->file);
    if (fd < 0) {
        return false;
    }
    bool mapped = mapping_open(fd, mapping);
    file_release(volume->file);
    return mapped;
}

/* Of the open extent's file, for all of the job; NULL: it is not to be had. */
static const struct mapping *extents_mapping(struct extents *extents) {
    struct extents_mapping *first = extents->mappings;
    if (first != NULL && first->volume == extents->volume) {
        return &first->mapping;
    }
    struct extents_mapping *fresh = malloc(sizeof *fresh);
    if (fresh == NULL || !volume_map(extents->volume, &fresh->mapping)) {
        free(fresh);
        return NULL;
    }
    fresh->volume = extents->volume;
    fresh->next = first;
    extents->mappings = fresh;
    return &fresh->mapping;
}

/* Once it is known what the open extent has: what is taken from a mapping passes over what is not
 * wanted, at a small cost. */
static void extent_map(struct extents *extents) {
    struct read_extent *extent = extent_opened(extents);
    uint64_t bytes = volume_offset(extents->volume, extents->end) - extent->offset;
    uint64_t wanted = bytes - extents->skipped_open;
    if (extents->iovecs_open > 1 && wanted >= EXTENT_MAPPED_BYTES_MIN &&
        wanted >= bytes / EXTENT_MAPPED_SHARE && extent_is_cached(extents, extent->offset, bytes)) {
        extent->mapping = extents_mapping(extents);
    }
    if (extent->mapping != NULL) {
        extents->read_bytes -= extents->skipped_open;
    } else {
        extent_split(extents);
    }
}

static void extent_close(struct extents *extents) {
    if (extents->count > 0) {
        extent_skip(extents, extent_whole_end(extents) - extents->end);
        extent_opened(extents)->iovec_count = extents->iovecs_open;
        if (extents->undecided) {
            extent_choose(extents);
        }
        if (extents->mappable) {
            extent_map(extents);
        }
        extents->waste_bytes += extents->waste_open;
        extents->waste_open = 0;
    }
}

/* On a thread of the reader. */
static int extent_check(struct read_extent *extent, const uint8_t *bytes_read) {
    const struct volume *volume = extent->check_context;
    const struct manifest *manifest = volume->manifest;
    uint64_t first = volume->pieces_at + (extent->offset - volume->start);
    uint64_t piece_bytes = manifest_piece_bytes(manifest), bytes = extent->done;
    for (uint64_t at = 0; at < bytes; at += piece_bytes) {
        size_t piece_size = (size_t)(bytes - at < piece_bytes ? bytes - at : piece_bytes);
        uint64_t piece = (first + at) / piece_bytes;
        if (bulk_hash(bytes_read + at, piece_size) != manifest_hash(manifest, piece)) {
            extent->done = at;
            return -EBADMSG;
        }
        manifest_note_checked(manifest, piece);
    }
    return 0;
}

/* Where an extent has to end: with its volume, but for an address behind all (WINDOWS_NOWHERE). */
static uint64_t extent_bound(const struct volume *volume, uint64_t from, uint64_t most) {
    uint64_t end = volume->base + volume->bytes;
    return from < end && end - from < most ? end : from + most;
}

/* Where an extent that begins at `offset` is to begin and end, and whether it is checked. */
static void extent_bounds(struct extents *extents, uint64_t offset) {
    const struct volume *volume = extents->volume;
    const struct manifest *manifest = volume->manifest;
    extents->manifest = NULL;
    extents->end = offset;
    extents->bound = extent_bound(volume, offset, READ_EXTENT_BYTES_MAX);
    if (manifest == NULL || offset - volume->base >= volume->bytes) {
        return;
    }
    uint64_t shift = volume->pieces_at - volume->base; /* from an address to the manifest's space */
    uint64_t checked_end = manifest_checked_end(manifest, offset + shift, extents->bound + shift);
    if (checked_end > offset + shift) {
        extents->bound = checked_end - shift;
        return;
    }
    uint64_t piece = manifest_piece_bytes(manifest);
    uint64_t most = piece < CHECKED_BYTES_MAX ? CHECKED_BYTES_MAX : READ_EXTENT_BYTES_MAX;
    extents->manifest = manifest;
    extents->end = offset - (offset - volume->base) % piece;
    extents->bound = extent_bound(volume, extents->end, most / piece * piece);
}

static void extent_open(struct extents *extents, const struct dataset *dataset, uint64_t offset,
                        uint32_t place) {
    extent_close(extents);
    if (!extents_room(extents)) {
        return;
    }
    const struct volume *volume = volumes_find(dataset_volumes(dataset), offset);
    bool chosen = dataset_volumes(dataset)->chosen;
    bool direct = volume->direct != NULL && (!chosen || extents->cached == CACHED_NONE);
    extents->volume = volume;
    extents->undecided = chosen && extents->cached == CACHED_PARTLY;
    extent_bounds(extents, offset);
    extents->mappable = extents->gaps && dataset_volumes(dataset)->mapped && !direct &&
                        !extents->undecided && extents->cached != CACHED_NONE &&
                        extents->manifest == NULL;
    extents->skipped_open = 0;
    extents->seam_count = 0;
    extents->gap_max = !extents->gaps      ? 0
                       : extents->mappable ? EXTENT_GAP_BYTES_MAX_MAPPED
                       : direct            ? EXTENT_GAP_BYTES_MAX_DIRECT
                                           : EXTENT_GAP_BYTES_MAX;
    extents->extents[extents->count] = (struct read_extent){
        .file = direct ? volume->direct : volume->file,
        .dropped = direct || extents->manifest != NULL || extents->mappable,
        .offset = volume_offset(volume, extents->end),
        .check = extents->manifest == NULL ? NULL : extent_check,
        .check_context = volume,
    };
    extents->places[extents->count++] = place;
    extents->iovecs_open = 0;
    extents->memory_end = NULL;
    extent_skip(extents, offset - extents->end);
}

/* Whether the open extent can go on at `offset`, with room for a gap, a part's first bytes and what
 * is to be read behind it. */
static bool extent_goes_on(const struct extents *extents, const struct dataset *dataset,
                           uint64_t offset) {
    if (extents->count == 0 || extents->end > offset || offset >= extents->bound ||
        extents->volume != volumes_find(dataset_volumes(dataset), offset)) {
        return false;
    }
    uint64_t gap = offset - extents->end;
    uint32_t iovecs = extents->iovecs_open + 1 + (gap > 0) + (extents->manifest != NULL);
    return (gap <= extents->gap_max || offset < extent_whole_end(extents)) &&
           iovecs <= READ_EXTENT_IOVECS_MAX;
}

void extents_add(struct extents *extents, const struct dataset *dataset, uint64_t offset,
                 uint64_t bytes, uint8_t *to, uint32_t place) {
    while (bytes > 0 && extents->code == 0) {
        if (!extent_goes_on(extents, dataset, offset)) {
            extent_open(extents, dataset, offset, place);
            if (extents->code < 0) {
                return;
            }
        }
        extent_note_seam(extents, offset - extents->end, place);
        extent_skip(extents, offset - extents->end);
        uint64_t room = extents->bound - extents->end;
        uint64_t taken = bytes < room ? bytes : room;
        extent_append(extents, taken, to);
        offset += taken;
        bytes -= taken;
        to += taken;
    }
}

static int extents_place_waste(struct extents *extents) {
    if (extents->waste_bytes > extents->waste_max) {
        free(extents->waste);
        extents->waste_max = extents->waste_bytes + extents->waste_bytes / 4;
        extents->waste = malloc(extents->waste_max);
        if (extents->waste == NULL) {
            extents->waste_max = 0;
            return -ENOMEM;
        }
    }
    for (uint64_t i = 0; i < extents->iovec_count; i++) {
        uintptr_t at = (uintptr_t)extents->iovecs[i].iov_base - UNPLACED;
        if (at < extents->waste_bytes) {
            extents->iovecs[i].iov_base = extents->waste + at;
        } else if (at == DROPPED - UNPLACED) {
            extents->iovecs[i].iov_base = NULL;
        }
    }
    return 0;
}

int extents_finish(struct extents *extents) {
    if (extents->code == 0) {
        extent_close(extents);
    }
    if (extents->code == 0) {
        extents->code = extents_place_waste(extents);
    }
    struct iovec *iovecs = extents->iovecs;
    for (uint32_t i = 0; extents->code == 0 && i < extents->count; i++) {
        extents->extents[i].iovecs = iovecs;
        iovecs += extents->extents[i].iovec_count;
    }
    return extents->code;
}
