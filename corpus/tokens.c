/* tokens: from parts to extents, and from a file's tokens to a slot's.
 *
 * Parts are sorted by where they stand on disk, so that neighbours become one extent wherever they
 * go; what is long is cut into several. Bytes between two parts are read along and thrown away
 * where that is cheaper than another read. A successor token is the token right behind a part:
 * where the next part begins with it, it is copied from there afterwards, since reading it apart
 * would tear the extent; else it is one more token of the same extent.
 * Extents are built twice: once to know how many, then into one allocation: extents, iovecs, the
 * place of each extent, bounce memory and what is thrown away. */
#include "corpus/tokens.h"
#include "corpus/convert.h"
#include "corpus/files.h"
#include "corpus/gathered.h"
#include "corpus/manifest.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files and slots are little endian");

#define NO_ROW UINT64_MAX

#define CHECKED_BYTES_MAX 262144u /* of an extent; a multiple of smaller pieces */

/* Where bounce memory and waste are while they are only counted: nowhere near any payload. */
#define UNPLACED ((uint8_t *)(UINTPTR_MAX / 4))

/* A part on disk, in the bounce memory and in the payload. */
struct tokens_place {
    uint64_t file_offset;   /* bytes, of its first token */
    uint64_t file_bytes;    /* without the successor token */
    uint64_t bounce_offset; /* bytes; the successor follows; unused when widths agree */
    uint64_t row;           /* tokens, from the start of the payload */
    uint64_t successor_row; /* NO_ROW: the document ends here */
    struct tokens_target *target;
    uint32_t dataset;
    uint32_t part; /* index in target->documents */
};

/* Without memory yet (extents NULL) it only counts. */
struct extent_builder {
    const struct tokens_job *job;
    struct read_extent *extents;
    uint32_t *extent_places;
    struct iovec *iovecs;
    uint8_t *waste;
    bool gaps;             /* are read along */
    uint32_t extent_count; /* the last is open */
    uint64_t iovec_count;
    uint64_t waste_bytes; /* of the extents before the open one */
    /* The open extent: */
    const struct dataset *dataset;
    uint64_t piece_bytes; /* of its manifest: it begins and ends at these; 1 without */
    uint32_t iovecs_open;
    uint64_t end;        /* in the file */
    uint64_t bytes;      /* so far */
    uint64_t waste_open; /* for its gaps: the largest, or all where they are checked */
    uint8_t *memory_end; /* of its last iovec */
    uint64_t read_bytes; /* of all extents */
};

uint64_t tokens_payload_bytes(const struct document *documents, uint32_t count,
                              uint32_t token_bytes) {
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < count; i++) {
        tokens += documents[i].length + (document_is_last_part(&documents[i]) ? 0u : 1u);
    }
    return tokens * token_bytes;
}

/* A place's dataset and offset, and where it stands among the unsorted. */
struct tokens_key {
    uint64_t value;
    uint32_t place;
};

#define KEY_OFFSET_BITS 48u

static int tokens_reserve_places(struct tokens_job *job) {
    uint64_t count = 0;
    for (const struct tokens_target *target = job->targets; target != NULL; target = target->next) {
        assert(target->count > 0 && (uintptr_t)target->payload % job->token_bytes == 0);
        count += target->count;
    }
    assert(count > 0 && count < UINT32_MAX / 2);
    if (count > job->places_max) {
        free(job->places_memory);
        job->places_max = 0;
        uint64_t most = count + count / 4;
        job->places_memory = malloc(most * 2 * (sizeof *job->places + sizeof *job->keys));
        if (job->places_memory == NULL) {
            return -ENOMEM;
        }
        job->places_max = (uint32_t)most;
    }
    job->places = job->places_memory;
    job->keys = (struct tokens_key *)(void *)(job->places + 2 * (uint64_t)job->places_max);
    job->place_count = (uint32_t)count;
    return 0;
}

static struct tokens_place tokens_find_place(const struct tokens_job *job,
                                             struct tokens_target *target, uint32_t part) {
    const struct document *document = &target->documents[part];
    const struct dataset *dataset = catalog_dataset(job->catalog, document->dataset);
    uint64_t width = dataset_width(dataset);
    assert(document->length > 0);
    assert(document->document < dataset_documents(dataset));
    assert((uint64_t)document->offset + document->length <= document->document_length);
    assert(document->document_length <= dataset_length(dataset, document->document) ||
           dataset_failed(dataset, NULL) < 0);
    return (struct tokens_place){
        .file_offset = dataset_offset(dataset, document->document) + document->offset * width,
        .file_bytes = document->length * width,
        .successor_row = NO_ROW,
        .target = target,
        .dataset = document->dataset,
        .part = part,
    };
}

/* Rows in the order of the parts. */
static void tokens_find_target(const struct tokens_job *job, struct tokens_target *target,
                               struct tokens_place *places) {
    uint64_t row = 0;
    for (uint32_t i = 0; i < target->count; i++) {
        places[i] = tokens_find_place(job, target, i);
        places[i].row = row;
        row += target->documents[i].length;
    }
    for (uint32_t i = 0; i < target->count; i++) {
        if (!document_is_last_part(&target->documents[i])) {
            places[i].successor_row = row++;
        }
    }
}

/* One pass of a radix sort, stable; false when all have the same digit. */
static bool keys_sort_by(const struct tokens_key *from, struct tokens_key *to, uint32_t count,
                         unsigned shift) {
    uint32_t starts[256] = {0};
    for (uint32_t i = 0; i < count; i++) {
        starts[from[i].value >> shift & 255]++;
    }
    if (starts[from[0].value >> shift & 255] == count) {
        return false;
    }
    for (uint32_t digit = 0, start = 0; digit < 256; digit++) {
        uint32_t digit_count = starts[digit];
        starts[digit] = start;
        start += digit_count;
    }
    for (uint32_t i = 0; i < count; i++) {
        to[starts[from[i].value >> shift & 255]++] = from[i];
    }
    return true;
}

/* Into disk order; what begins at the same byte stays in the order of targets and parts. */
static void tokens_sort_places(struct tokens_job *job) {
    struct tokens_place *sorted = job->places + job->places_max;
    struct tokens_key *keys = job->keys, *spare = job->keys + job->places_max;
    for (uint32_t i = 0; i < job->place_count; i++) {
        const struct tokens_place *place = &job->places[i];
        assert(place->file_offset >> KEY_OFFSET_BITS == 0);
        keys[i].value = (uint64_t)place->dataset << KEY_OFFSET_BITS | place->file_offset;
        keys[i].place = i;
    }
    for (unsigned shift = 0; shift < 64; shift += 8) {
        if (keys_sort_by(keys, spare, job->place_count, shift)) {
            struct tokens_key *swapped = keys;
            keys = spare;
            spare = swapped;
        }
    }
    for (uint32_t i = 0; i < job->place_count; i++) {
        sorted[i] = job->places[keys[i].place];
    }
    job->places = sorted;
}

static void tokens_find_places(struct tokens_job *job) {
    struct tokens_place *places = job->places;
    for (struct tokens_target *target = job->targets; target != NULL; target = target->next) {
        tokens_find_target(job, target, places);
        places += target->count;
    }
    tokens_sort_places(job);
}

/* Whether the part behind this one on disk begins where it ends, and so has its successor. */
static bool place_is_followed(const struct tokens_job *job, uint32_t i) {
    const struct tokens_place *place = &job->places[i];
    return i + 1 < job->place_count && place[1].dataset == place->dataset &&
           place[1].file_offset == place->file_offset + place->file_bytes;
}

static bool place_reads_successor(const struct tokens_job *job, uint32_t i) {
    return job->places[i].successor_row != NO_ROW && !place_is_followed(job, i);
}

static int tokens_check_extent(struct read_extent *extent);

static void extent_append(struct extent_builder *builder, uint64_t bytes, uint8_t *to) {
    bool goes_on = builder->memory_end == to;
    if (builder->extents != NULL) {
        struct iovec *next = &builder->iovecs[builder->iovec_count];
        if (goes_on) {
            next[-1].iov_len += bytes;
        } else {
            *next = (struct iovec){to, bytes};
        }
    }
    if (!goes_on) {
        builder->iovec_count++;
        builder->iovecs_open++;
    }
    if (builder->extents != NULL) {
        builder->extents[builder->extent_count - 1].iovec_count = builder->iovecs_open;
    }
    builder->memory_end = to + bytes;
    builder->bytes += bytes;
    builder->end += bytes;
    builder->read_bytes += bytes;
}

/* What is only read to be checked has memory of its own; the rest overwrites itself. */
static void extent_skip(struct extent_builder *builder, uint64_t bytes) {
    bool kept = builder->piece_bytes > 1;
    uint64_t at = builder->waste_bytes + (kept ? builder->waste_open : 0);
    if (bytes > 0) {
        builder->memory_end = NULL;
        extent_append(builder, bytes, builder->extents == NULL ? UNPLACED : builder->waste + at);
        builder->memory_end = NULL;
        if (kept) {
            builder->waste_open += bytes;
        } else if (bytes > builder->waste_open) {
            builder->waste_open = bytes;
        }
    }
}

/* What is checked should still be in the processor's cache when it is. */
static uint64_t extent_bytes_max(const struct extent_builder *builder) {
    bool small = builder->piece_bytes > 1 && builder->piece_bytes < CHECKED_BYTES_MAX;
    return small ? CHECKED_BYTES_MAX : READ_EXTENT_BYTES_MAX;
}

/* Where the pieces end that the open extent has begun. */
static uint64_t extent_whole_end(const struct extent_builder *builder) {
    uint64_t piece = builder->piece_bytes, bin = dataset_bin_bytes(builder->dataset);
    uint64_t end = (builder->end + piece - 1) / piece * piece;
    return end < bin ? end : bin;
}

static void extent_close(struct extent_builder *builder) {
    if (builder->extent_count > 0) {
        extent_skip(builder, extent_whole_end(builder) - builder->end);
        builder->waste_bytes += builder->waste_open;
        builder->waste_open = 0;
    }
}

static void extent_open(struct extent_builder *builder, const struct dataset *dataset,
                        uint64_t offset, uint32_t place) {
    const struct manifest *manifest = dataset_manifest(dataset);
    extent_close(builder);
    builder->piece_bytes = manifest == NULL ? 1 : manifest_piece_bytes(manifest);
    uint64_t begin = offset / builder->piece_bytes * builder->piece_bytes;
    if (builder->extents != NULL) {
        builder->extents[builder->extent_count] = (struct read_extent){
            .file = dataset_bin(dataset),
            .offset = begin,
            .iovecs = builder->iovecs + builder->iovec_count,
            .check = manifest == NULL ? NULL : tokens_check_extent,
            .check_context = manifest,
        };
        builder->extent_places[builder->extent_count] = place;
    }
    builder->extent_count++;
    builder->dataset = dataset;
    builder->iovecs_open = 0;
    builder->end = begin;
    builder->bytes = 0;
    builder->memory_end = NULL;
    extent_skip(builder, offset - begin);
}

/* Whether the open extent can go on at `offset`, with room for a gap, a part's first bytes and what
 * is to be read behind it. */
static bool extent_goes_on(const struct extent_builder *builder, const struct dataset *dataset,
                           uint64_t offset) {
    if (builder->extent_count == 0 || builder->dataset != dataset || builder->end > offset) {
        return false;
    }
    uint64_t gap = offset - builder->end;
    uint32_t iovecs = builder->iovecs_open + 1 + (gap > 0) + (builder->piece_bytes > 1);
    uint64_t gap_max = !builder->gaps                         ? 0
                       : file_is_direct(dataset_bin(dataset)) ? TOKENS_GAP_BYTES_MAX_DIRECT
                                                              : TOKENS_GAP_BYTES_MAX;
    return (gap <= gap_max || offset < extent_whole_end(builder)) &&
           builder->bytes + gap < extent_bytes_max(builder) && iovecs <= READ_EXTENT_IOVECS_MAX;
}

static void extents_add(struct extent_builder *builder, const struct dataset *dataset,
                        uint64_t offset, uint64_t bytes, uint8_t *to, uint32_t place) {
    while (bytes > 0) {
        if (!extent_goes_on(builder, dataset, offset)) {
            extent_open(builder, dataset, offset, place);
        }
        extent_skip(builder, offset - builder->end);
        uint64_t room = extent_bytes_max(builder) - builder->bytes;
        uint64_t taken = bytes < room ? bytes : room;
        extent_append(builder, taken, to);
        offset += taken;
        bytes -= taken;
        to += taken;
    }
}

static uint32_t place_width(const struct tokens_job *job, const struct tokens_place *place) {
    return dataset_width(catalog_dataset(job->catalog, place->dataset));
}

static uint8_t *payload_at(const struct tokens_job *job, const struct tokens_place *place,
                           uint64_t row) {
    return (uint8_t *)place->target->payload + row * job->token_bytes;
}

/* Returns the bytes of bounce memory. */
static uint64_t tokens_place_bounce(struct tokens_job *job) {
    uint64_t offset = 0;
    job->wanted_bytes = 0;
    for (uint32_t i = 0; i < job->place_count; i++) {
        struct tokens_place *place = &job->places[i];
        uint64_t width = place_width(job, place);
        uint64_t bytes = place->file_bytes + (place_reads_successor(job, i) ? width : 0);
        job->wanted_bytes += bytes;
        if (width != job->token_bytes) {
            offset = (offset + width - 1) / width * width;
            place->bounce_offset = offset;
            offset += bytes;
        }
    }
    return offset;
}

static void tokens_build_extents(struct extent_builder *builder, uint8_t *bounce) {
    const struct tokens_job *job = builder->job;
    for (uint32_t i = 0; i < job->place_count; i++) {
        const struct tokens_place *place = &job->places[i];
        uint32_t width = place_width(job, place);
        bool direct = width == job->token_bytes;
        uint8_t *to = direct ? payload_at(job, place, place->row) : bounce + place->bounce_offset;
        const struct dataset *dataset = catalog_dataset(job->catalog, place->dataset);
        extents_add(builder, dataset, place->file_offset, place->file_bytes, to, i);
        if (place_reads_successor(job, i)) {
            to = direct ? payload_at(job, place, place->successor_row) : to + place->file_bytes;
            extents_add(builder, dataset, place->file_offset + place->file_bytes, width, to, i);
        }
    }
    extent_close(builder);
}

/* Memory for what was counted, with a cache line between what lies behind one another. */
static int tokens_reserve(struct tokens_job *job, const struct extent_builder *counted,
                          uint64_t bounce_bytes, struct extent_builder *builder) {
    uint64_t extents_bytes = counted->extent_count * sizeof *job->read.extents;
    uint64_t iovecs_bytes = counted->iovec_count * sizeof *job->iovecs;
    uint64_t places_bytes = (counted->extent_count + 1ull) / 2 * 2 * sizeof *job->extent_places;
    bounce_bytes = (bounce_bytes + 63) / 64 * 64;
    uint64_t bytes = extents_bytes + iovecs_bytes + places_bytes + bounce_bytes +
                     counted->waste_bytes;
    if (bytes > job->memory_bytes) {
        free(job->memory);
        job->memory_bytes = 0;
        job->memory = malloc(bytes + bytes / 4);
        if (job->memory == NULL) {
            return -ENOMEM;
        }
        job->memory_bytes = bytes + bytes / 4;
    }
    uint8_t *memory = job->memory;
    job->read.extents = (struct read_extent *)(void *)memory;
    job->iovecs = (struct iovec *)(void *)(memory += extents_bytes);
    job->extent_places = (uint32_t *)(void *)(memory += iovecs_bytes);
    job->bounce = memory + places_bytes;
    builder->extents = job->read.extents;
    builder->extent_places = job->extent_places;
    builder->iovecs = job->iovecs;
    builder->waste = job->bounce + bounce_bytes;
    return 0;
}

/* On a thread of the reader. */
static int tokens_check_extent(struct read_extent *extent) {
    const struct manifest *manifest = extent->check_context;
    uint64_t piece_bytes = manifest_piece_bytes(manifest), bytes = extent->done;
    struct gathered from = {.iovec = extent->iovecs};
    for (uint64_t at = 0; at < bytes; at += piece_bytes) {
        size_t piece = (size_t)(bytes - at < piece_bytes ? bytes - at : piece_bytes);
        uint64_t hash = gathered_hash(&from, piece);
        if (hash != manifest_hash(manifest, (extent->offset + at) / piece_bytes)) {
            extent->done = at;
            return -EBADMSG;
        }
    }
    return 0;
}

static void tokens_complete(struct read_job *read);

int tokens_job_prepare(struct tokens_job *job, const struct catalog *catalog, uint32_t token_bytes,
                       bool exact, struct tokens_target *targets) {
    assert(token_bytes == 2 || token_bytes == 4);
    job->catalog = catalog;
    job->token_bytes = token_bytes;
    job->targets = targets;
    int rc = tokens_reserve_places(job);
    if (rc < 0) {
        return rc;
    }
    tokens_find_places(job);
    uint64_t bounce_bytes = tokens_place_bounce(job);
    struct extent_builder counted = {.job = job, .gaps = !exact};
    struct extent_builder builder = counted;
    tokens_build_extents(&counted, UNPLACED);
    rc = tokens_reserve(job, &counted, bounce_bytes, &builder);
    if (rc < 0) {
        return rc;
    }
    tokens_build_extents(&builder, job->bounce);
    assert(builder.extent_count == counted.extent_count);
    assert(builder.iovec_count <= counted.iovec_count);
    job->read.extent_count = builder.extent_count;
    job->read.complete = tokens_complete;
    job->read_bytes = builder.read_bytes;
    return 0;
}

void tokens_job_deinit(struct tokens_job *job) {
    free(job->memory);
    free(job->places_memory);
    job->memory = NULL;
    job->memory_bytes = 0;
    job->places_memory = NULL;
    job->places_max = 0;
}

/* Consecutive tokens of one part, read. */
struct tokens_run {
    const uint8_t *from;
    uint64_t first; /* tokens after the part's first */
    uint64_t count;
    uint64_t row; /* where the first goes */
};

static int refuse_id(const struct tokens_job *job, const struct tokens_place *place,
                     const struct tokens_run *run, uint64_t index, struct error *error) {
    const struct dataset *dataset = catalog_dataset(job->catalog, place->dataset);
    const struct document *document = &place->target->documents[place->part];
    uint32_t width = dataset_width(dataset), spare_bits = 64 - 8 * width;
    uint64_t bits = 0;
    char reason[64];
    memcpy(&bits, run->from + index * width, width);
    int64_t value = (int64_t)(bits << spare_bits) >> spare_bits;
    if (value < 0 && convert_is_signed(dataset_dtype(dataset))) {
        snprintf(reason, sizeof reason, "%" PRId64 " is negative", value);
    } else {
        snprintf(reason, sizeof reason, "%" PRIu64 " is over %u", bits,
                 job->token_bytes == 2 ? UINT16_MAX : (uint32_t)INT32_MAX);
    }
    return error_set(error, -EBADMSG,
                     "dataset '%s': %s: byte %" PRIu64 " (document %" PRIu64 ", token %" PRIu64
                     "): token id %s; run `ballastctl verify %s` and make the dataset again",
                     dataset_name(dataset), dataset_bin_path(dataset),
                     place->file_offset + (run->first + index) * width, document->document,
                     document->offset + run->first + index, reason, dataset_prefix(dataset));
}

static int finish_run(const struct tokens_job *job, const struct tokens_place *place,
                      const struct tokens_run *run, struct error *error) {
    const struct dataset *dataset = catalog_dataset(job->catalog, place->dataset);
    uint32_t width = dataset_width(dataset);
    uint64_t forbidden = convert_forbidden_bits(dataset_dtype(dataset), job->token_bytes);
    uint64_t sound = convert_check(run->from, width, run->count, forbidden);
    if (sound < run->count) {
        return refuse_id(job, place, run, sound, error);
    }
    if (width != job->token_bytes) {
        convert_tokens(run->from, width, payload_at(job, place, run->row), job->token_bytes,
                       run->count);
    }
    return 0;
}

static int finish_place(const struct tokens_job *job, uint32_t i, struct error *error) {
    const struct tokens_place *place = &job->places[i];
    uint32_t width = place_width(job, place);
    bool direct = width == job->token_bytes;
    const uint8_t *bounced = direct ? NULL : job->bounce + place->bounce_offset;
    uint64_t count = place->file_bytes / width;
    struct tokens_run part = {direct ? payload_at(job, place, place->row) : bounced, 0, count,
                              place->row};
    int rc = finish_run(job, place, &part, error);
    if (rc < 0 || !place_reads_successor(job, i)) {
        return rc;
    }
    struct tokens_run successor = {direct ? payload_at(job, place, place->successor_row)
                                          : bounced + place->file_bytes,
                                   count, 1, place->successor_row};
    return finish_run(job, place, &successor, error);
}

struct read_failure {
    int code;
    uint64_t offset; /* bytes, in the file */
};

static const char *failure_reason(int code) {
    switch (-code) {
    case ENODATA:
        return "the file ends here, shorter than its index says";
    case ESTALE:
        return "the file is not the one that was opened: it was written to or replaced since";
    case ENOENT:
        return "the file is gone";
    case EBADMSG:
        return "the bytes around it are not those that the manifest was made of";
    default:
        return strerror(-code);
    }
}

static const char *failure_remedy(int code) {
    switch (-code) {
    case ENODATA:
    case ESTALE:
    case ENOENT:
        return "restore the file, it was cut off, changed or replaced while in use, and start the "
               "daemon again";
    case EBADMSG:
        return "restore the file; `ballastctl verify` finds all that is damaged";
    case EMFILE:
    case ENFILE:
        return "raise the limit of open files";
    default:
        return "check the storage, then restore the file if it is damaged";
    }
}

/* The first failure of a target is the one that is told. */
static void target_fail(const struct tokens_job *job, const struct tokens_place *place,
                        const struct read_failure *failure) {
    struct tokens_target *target = place->target;
    if (target->error.code < 0) {
        return;
    }
    const struct dataset *dataset = catalog_dataset(job->catalog, place->dataset);
    const struct document *document = &target->documents[place->part];
    uint64_t offset = failure->offset > place->file_offset ? failure->offset : place->file_offset;
    uint64_t token = document->offset + (offset - place->file_offset) / place_width(job, place);
    (void)error_set(&target->error, failure->code,
                    "dataset '%s': %s: byte %" PRIu64 " (document %" PRIu64 ", token %" PRIu64
                    "): %s; %s",
                    dataset_name(dataset), dataset_bin_path(dataset), offset, document->document,
                    token, failure_reason(failure->code), failure_remedy(failure->code));
}

static uint64_t extent_bytes(const struct read_extent *extent) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < extent->iovec_count; i++) {
        bytes += extent->iovecs[i].iov_len;
    }
    return bytes;
}

/* All places with bytes in what an extent did not read, successors included. */
static void tokens_fail_extent(const struct tokens_job *job, uint32_t e) {
    const struct read_extent *extent = &job->read.extents[e];
    struct read_failure failure = {extent->result, extent->offset + extent->done};
    uint64_t end = extent->offset + extent_bytes(extent);
    uint32_t dataset = job->places[job->extent_places[e]].dataset;
    for (uint32_t i = job->extent_places[e]; i < job->place_count; i++) {
        const struct tokens_place *place = &job->places[i];
        if (place->dataset != dataset || place->file_offset >= end) {
            return;
        }
        uint64_t successor = place_reads_successor(job, i) ? place_width(job, place) : 0;
        if (place->file_offset + place->file_bytes + successor > failure.offset) {
            target_fail(job, place, &failure);
        }
    }
}

static void tokens_fail_dataset(const struct tokens_job *job, uint32_t first, int code) {
    uint32_t dataset = job->places[first].dataset;
    for (uint32_t i = first; i < job->place_count && job->places[i].dataset == dataset; i++) {
        target_fail(job, &job->places[i], &(struct read_failure){.code = code});
    }
}

/* What was read came from the files that were opened if these are unchanged now. */
static void tokens_check_files(const struct tokens_job *job) {
    for (uint32_t i = 0; i < job->place_count; i++) {
        if (i == 0 || job->places[i].dataset != job->places[i - 1].dataset) {
            uint32_t dataset = job->places[i].dataset;
            int code = file_check(dataset_bin(catalog_dataset(job->catalog, dataset)));
            if (code < 0) {
                tokens_fail_dataset(job, i, code);
            }
        }
    }
}

/* Successors from the end, so that what follows a place is settled before the place. */
static void tokens_finish_places(const struct tokens_job *job) {
    for (uint32_t i = 0; i < job->place_count; i++) {
        struct error *error = &job->places[i].target->error;
        if (error->code == 0) {
            (void)finish_place(job, i, error);
        }
    }
    for (uint32_t i = job->place_count; i-- > 0;) {
        const struct tokens_place *place = &job->places[i];
        if (place->successor_row == NO_ROW || !place_is_followed(job, i)) {
            continue;
        }
        if (place[1].target->error.code < 0 && place->target->error.code == 0) {
            place->target->error = place[1].target->error;
        }
        memcpy(payload_at(job, place, place->successor_row),
               payload_at(job, &place[1], place[1].row), job->token_bytes);
    }
}

static void target_hash(struct tokens_target *target, uint32_t token_bytes) {
    target->hash = 0;
    if (target->wants_hash && target->error.code == 0) {
        struct iovec payload = {
            target->payload, tokens_payload_bytes(target->documents, target->count, token_bytes)};
        target->hash = gathered_hash(&(struct gathered){.iovec = &payload}, payload.iov_len);
    }
}

/* On a thread of the reader. */
static void tokens_complete(struct read_job *read) {
    const struct tokens_job *job = (const struct tokens_job *)read;
    for (struct tokens_target *target = job->targets; target != NULL; target = target->next) {
        target->error = (struct error){0};
    }
    for (uint32_t e = 0; e < read->extent_count; e++) {
        if (read->extents[e].result < 0) {
            tokens_fail_extent(job, e);
        }
    }
    tokens_check_files(job);
    tokens_finish_places(job);
    for (struct tokens_target *target = job->targets; target != NULL; target = target->next) {
        target_hash(target, job->token_bytes);
    }
}
