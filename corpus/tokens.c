/* tokens: from parts to extents, and from a file's tokens to a slot's.
 *
 * Parts are sorted by where they stand on disk, so that neighbours become one extent wherever they
 * go in the slot; what is long is cut into several. A successor token is the token right behind a
 * part: where the next part begins with it, it is copied from there afterwards, since reading it
 * apart would tear the extent; else it is one more token of the same extent.
 * Memory of a job, in one allocation: places, extents, the place of each extent, iovecs, bounce. */
#include "corpus/tokens.h"
#include "corpus/convert.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files and slots are little endian");

#define NO_ROW UINT64_MAX

/* A part on disk, in the bounce memory and in the payload. */
struct tokens_place {
    uint64_t file_offset;   /* bytes, of its first token */
    uint64_t file_bytes;    /* without the successor token */
    uint64_t bounce_offset; /* bytes; the successor follows; unused when widths agree */
    uint64_t row;           /* tokens, from the start of the payload */
    uint64_t successor_row; /* NO_ROW: the document ends here */
    uint32_t dataset;
    uint32_t part; /* index in job->documents */
};

/* How much memory the parts need, at most. */
struct tokens_sizes {
    uint64_t iovecs; /* and extents */
    uint64_t bounce_bytes;
};

struct extent_builder {
    struct tokens_job *job;
    struct iovec *iovecs;     /* next free one */
    struct read_extent *open; /* NULL at first */
    uint64_t end;             /* of the open extent in the file */
    uint64_t bytes;           /* of the open extent */
};

uint64_t tokens_payload_bytes(const struct document *documents, uint32_t count,
                              uint32_t token_bytes) {
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < count; i++) {
        tokens += documents[i].length + (document_is_last_part(&documents[i]) ? 0u : 1u);
    }
    return tokens * token_bytes;
}

/* A part of B bytes touches at most B / 1 MB + 2 extents, and its successor adds an iovec. Bounce
 * memory is aligned anew at every change of dataset, hence at most once per part. */
static void tokens_add_sizes(const struct tokens_job *job, const struct document *document,
                             struct tokens_sizes *sizes) {
    const struct dataset *dataset = catalog_dataset(job->catalog, document->dataset);
    uint32_t width = dataset_width(dataset);
    uint64_t bytes = (uint64_t)document->length * width;
    assert(document->length > 0);
    assert(document->document < dataset_documents(dataset));
    assert((uint64_t)document->offset + document->length <= document->document_length);
    assert(document->document_length <= dataset_length(dataset, document->document) ||
           dataset_failed(dataset, NULL) < 0);
    sizes->iovecs += bytes / READ_EXTENT_BYTES_MAX + 3;
    if (width != job->token_bytes) {
        sizes->bounce_bytes += bytes + width + sizeof(uint64_t);
    }
}

static int tokens_reserve(struct tokens_job *job, const struct tokens_sizes *sizes) {
    uint64_t places_bytes = job->document_count * sizeof *job->places;
    uint64_t extents_bytes = sizes->iovecs * sizeof *job->read.extents;
    uint64_t iovecs_bytes = sizes->iovecs * sizeof(struct iovec);
    uint64_t starts_bytes = (sizes->iovecs + 1) / 2 * 2 * sizeof *job->extent_places;
    uint64_t bytes = places_bytes + extents_bytes + iovecs_bytes + starts_bytes +
                     sizes->bounce_bytes;
    if (bytes > job->memory_bytes) {
        tokens_job_deinit(job);
        job->memory = malloc(bytes + bytes / 4);
        if (job->memory == NULL) {
            return -ENOMEM;
        }
        job->memory_bytes = bytes + bytes / 4;
    }
    uint8_t *memory = job->memory;
    job->places = (struct tokens_place *)memory;
    job->read.extents = (struct read_extent *)(memory += places_bytes);
    job->iovecs = (struct iovec *)(memory += extents_bytes);
    job->extent_places = (uint32_t *)(memory += iovecs_bytes);
    job->bounce = memory + starts_bytes;
    return 0;
}

static int place_compare(const void *left, const void *right) {
    const struct tokens_place *a = left, *b = right;
    if (a->dataset != b->dataset) {
        return a->dataset < b->dataset ? -1 : 1;
    }
    if (a->file_offset != b->file_offset) {
        return a->file_offset < b->file_offset ? -1 : 1;
    }
    return a->part < b->part ? -1 : 1;
}

/* Rows first, in the order of the parts; then into disk order. */
static void tokens_find_places(struct tokens_job *job) {
    uint64_t row = 0;
    for (uint32_t i = 0; i < job->document_count; i++) {
        const struct document *document = &job->documents[i];
        const struct dataset *dataset = catalog_dataset(job->catalog, document->dataset);
        uint64_t width = dataset_width(dataset);
        job->places[i] = (struct tokens_place){
            .file_offset = dataset_offset(dataset, document->document) + document->offset * width,
            .file_bytes = document->length * width,
            .row = row,
            .successor_row = NO_ROW,
            .dataset = document->dataset,
            .part = i,
        };
        row += document->length;
    }
    for (uint32_t i = 0; i < job->document_count; i++) {
        if (!document_is_last_part(&job->documents[i])) {
            job->places[i].successor_row = row++;
        }
    }
    qsort(job->places, job->document_count, sizeof *job->places, place_compare);
}

/* Whether the part behind this one on disk begins where it ends, and so has its successor. */
static bool place_is_followed(const struct tokens_job *job, uint32_t i) {
    const struct tokens_place *place = &job->places[i];
    return i + 1 < job->document_count && place[1].dataset == place->dataset &&
           place[1].file_offset == place->file_offset + place->file_bytes;
}

static bool place_reads_successor(const struct tokens_job *job, uint32_t i) {
    return job->places[i].successor_row != NO_ROW && !place_is_followed(job, i);
}

static void extent_open(struct extent_builder *builder, int fd, uint64_t offset, uint32_t place) {
    struct read_job *read = &builder->job->read;
    builder->open = &read->extents[read->extent_count];
    *builder->open = (struct read_extent){.fd = fd, .offset = offset, .iovecs = builder->iovecs};
    builder->job->extent_places[read->extent_count++] = place;
    builder->end = offset;
    builder->bytes = 0;
}

static bool extent_goes_on(const struct extent_builder *builder, int fd, uint64_t offset) {
    const struct read_extent *open = builder->open;
    return open != NULL && open->fd == fd && builder->end == offset &&
           builder->bytes < READ_EXTENT_BYTES_MAX && open->iovec_count < READ_EXTENT_IOVECS_MAX;
}

static void extent_append(struct extent_builder *builder, uint64_t bytes, uint8_t *to) {
    uint32_t count = builder->open->iovec_count;
    struct iovec *last = count > 0 ? &builder->open->iovecs[count - 1] : NULL;
    if (last != NULL && (uint8_t *)last->iov_base + last->iov_len == to) {
        last->iov_len += bytes;
    } else {
        *builder->iovecs++ = (struct iovec){to, bytes};
        builder->open->iovec_count++;
    }
    builder->bytes += bytes;
    builder->end += bytes;
}

static void extents_add(struct extent_builder *builder, int fd, uint64_t offset, uint64_t bytes,
                        uint8_t *to, uint32_t place) {
    while (bytes > 0) {
        if (!extent_goes_on(builder, fd, offset)) {
            extent_open(builder, fd, offset, place);
        }
        uint64_t room = READ_EXTENT_BYTES_MAX - builder->bytes;
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

static uint8_t *payload_at(const struct tokens_job *job, uint64_t row) {
    return job->payload + row * job->token_bytes;
}

static void tokens_place_bounce(struct tokens_job *job) {
    uint64_t offset = 0;
    for (uint32_t i = 0; i < job->document_count; i++) {
        struct tokens_place *place = &job->places[i];
        uint64_t width = place_width(job, place);
        if (width != job->token_bytes) {
            offset = (offset + width - 1) / width * width;
            place->bounce_offset = offset;
            offset += place->file_bytes + (place_reads_successor(job, i) ? width : 0);
        }
    }
}

static void tokens_build_extents(struct tokens_job *job) {
    struct extent_builder builder = {.job = job, .iovecs = job->iovecs};
    job->read.extent_count = 0;
    for (uint32_t i = 0; i < job->document_count; i++) {
        const struct tokens_place *place = &job->places[i];
        uint32_t width = place_width(job, place);
        bool direct = width == job->token_bytes;
        uint8_t *to = direct ? payload_at(job, place->row) : job->bounce + place->bounce_offset;
        int fd = dataset_bin_fd(catalog_dataset(job->catalog, place->dataset));
        extents_add(&builder, fd, place->file_offset, place->file_bytes, to, i);
        if (place_reads_successor(job, i)) {
            to = direct ? payload_at(job, place->successor_row) : to + place->file_bytes;
            extents_add(&builder, fd, place->file_offset + place->file_bytes, width, to, i);
        }
    }
}

int tokens_job_prepare(struct tokens_job *job, const struct catalog *catalog,
                       const struct document *documents, uint32_t count, uint32_t token_bytes,
                       void *payload) {
    struct tokens_sizes sizes = {0};
    assert(count > 0);
    assert(token_bytes == 2 || token_bytes == 4);
    assert((uintptr_t)payload % token_bytes == 0);
    job->catalog = catalog;
    job->documents = documents;
    job->document_count = count;
    job->token_bytes = token_bytes;
    job->payload = payload;
    for (uint32_t i = 0; i < count; i++) {
        tokens_add_sizes(job, &documents[i], &sizes);
    }
    int rc = tokens_reserve(job, &sizes);
    if (rc < 0) {
        return rc;
    }
    tokens_find_places(job);
    tokens_place_bounce(job);
    tokens_build_extents(job);
    return 0;
}

void tokens_job_deinit(struct tokens_job *job) {
    free(job->memory);
    job->memory = NULL;
    job->memory_bytes = 0;
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
    const struct document *document = &job->documents[place->part];
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
        convert_tokens(run->from, width, payload_at(job, run->row), job->token_bytes, run->count);
    }
    return 0;
}

static int finish_place(const struct tokens_job *job, uint32_t i, struct error *error) {
    const struct tokens_place *place = &job->places[i];
    uint32_t width = place_width(job, place);
    bool direct = width == job->token_bytes;
    const uint8_t *bounced = direct ? NULL : job->bounce + place->bounce_offset;
    uint64_t count = place->file_bytes / width;
    struct tokens_run part = {direct ? payload_at(job, place->row) : bounced, 0, count, place->row};
    int rc = finish_run(job, place, &part, error);
    if (rc < 0 || !place_reads_successor(job, i)) {
        return rc;
    }
    struct tokens_run successor = {direct ? payload_at(job, place->successor_row)
                                          : bounced + place->file_bytes,
                                   count, 1, place->successor_row};
    return finish_run(job, place, &successor, error);
}

/* The last place that begins at or before this offset, from the one at which the extent began. */
static const struct tokens_place *place_at(const struct tokens_job *job, uint32_t i,
                                           uint64_t offset) {
    while (i + 1 < job->document_count && job->places[i + 1].dataset == job->places[i].dataset &&
           job->places[i + 1].file_offset <= offset) {
        i++;
    }
    return &job->places[i];
}

static int refuse_read(const struct tokens_job *job, struct error *error) {
    const struct read_extent *extent = &job->read.extents[job->read.failed_extent];
    const struct tokens_place *place = place_at(job, job->extent_places[job->read.failed_extent],
                                                extent->offset);
    const struct dataset *dataset = catalog_dataset(job->catalog, place->dataset);
    const struct document *document = &job->documents[place->part];
    uint64_t token = document->offset +
                     (extent->offset - place->file_offset) / place_width(job, place);
    const char *reason = strerror(-job->read.result);
    const char *remedy = "check the storage, then restore the file if it is damaged";
    struct stat info;
    if (job->read.result == -EIO && fstat(extent->fd, &info) == 0 &&
        (uint64_t)info.st_size <= extent->offset) {
        reason = "the file ends here, shorter than its index says";
        remedy = "restore the file, it was cut off or replaced while in use";
    }
    return error_set(error, job->read.result,
                     "dataset '%s': %s: byte %" PRIu64 " (document %" PRIu64 ", token %" PRIu64
                     "): %s; %s",
                     dataset_name(dataset), dataset_bin_path(dataset), extent->offset,
                     document->document, token, reason, remedy);
}

int tokens_job_finish(struct tokens_job *job, struct error *error) {
    if (job->read.result < 0) {
        return refuse_read(job, error);
    }
    for (uint32_t i = 0; i < job->document_count; i++) {
        int rc = finish_place(job, i, error);
        if (rc < 0) {
            return rc;
        }
    }
    for (uint32_t i = 0; i < job->document_count; i++) {
        const struct tokens_place *place = &job->places[i];
        if (place->successor_row != NO_ROW && place_is_followed(job, i)) {
            memcpy(payload_at(job, place->successor_row), payload_at(job, place[1].row),
                   job->token_bytes);
        }
    }
    return 0;
}
