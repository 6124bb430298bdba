/* tokens: from parts to extents, and from a file's tokens to a slot's.
 *
 * Parts are sorted by where they stand on disk, so that neighbours become one extent wherever they
 * go (corpus/extents.h). A successor token is the token right behind a part: where the next part
 * begins with it, it is copied from there afterwards, since reading it apart would tear the extent;
 * else it is one more token of the same extent. */
#include "corpus/tokens.h"
#include "corpus/bulk.h"
#include "corpus/convert.h"
#include "corpus/files.h"
#include "corpus/volumes.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files and slots are little endian");

#define NO_ROW UINT64_MAX

/* A part on disk, in the bounce memory and in the payload. */
struct tokens_place {
    uint64_t file_offset;   /* address of its first token */
    uint64_t file_bytes;    /* without the successor token */
    uint64_t bounce_offset; /* bytes; the successor follows; unused when widths agree */
    uint64_t row;           /* tokens, from the start of the payload */
    uint64_t successor_row; /* NO_ROW: the document ends here */
    struct tokens_target *target;
    uint32_t dataset;
    uint32_t part; /* index in target->documents */
    uint32_t width;
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

static void tokens_find_place(const struct dataset *dataset, struct tokens_target *target,
                              uint32_t part, struct tokens_place *place) {
    const struct document *document = &target->documents[part];
    uint32_t width = dataset_width(dataset), length;
    uint64_t offset = dataset_place(dataset, document->document, &length);
    assert(document->length > 0);
    assert((uint64_t)document->offset + document->length <= document->document_length);
    assert(document->document_length <= length || dataset_failed(dataset, NULL) < 0);
    place->file_offset = offset + (uint64_t)document->offset * width;
    place->file_bytes = (uint64_t)document->length * width;
    place->successor_row = NO_ROW;
    place->target = target;
    place->dataset = document->dataset;
    place->part = part;
    place->width = width;
}

/* Rows in the order of the parts. */
static void tokens_find_target(const struct tokens_job *job, struct tokens_target *target,
                               struct tokens_place *places) {
    const struct dataset *dataset = NULL;
    uint64_t row = 0;
    for (uint32_t i = 0; i < target->count; i++) {
        const struct document *document = &target->documents[i];
        if (i == 0 || document->dataset != document[-1].dataset) {
            dataset = catalog_dataset(job->catalog, document->dataset);
        }
        tokens_find_place(dataset, target, i, &places[i]);
        places[i].row = row;
        row += document->length;
    }
    for (uint32_t i = 0; i < target->count; i++) {
        if (!document_is_last_part(&target->documents[i])) {
            places[i].successor_row = row++;
        }
    }
}

#define DIGIT_BITS   11u
#define PLACES_AHEAD 8u /* that are fetched while one is copied */

/* One pass of a radix sort, stable. */
static void keys_sort_by(const struct tokens_key *from, struct tokens_key *to, uint32_t count,
                         unsigned shift) {
    uint32_t starts[1u << DIGIT_BITS] = {0}, mask = (1u << DIGIT_BITS) - 1;
    for (uint32_t i = 0; i < count; i++) {
        starts[from[i].value >> shift & mask]++;
    }
    for (uint32_t digit = 0, start = 0; digit <= mask; digit++) {
        uint32_t digit_count = starts[digit];
        starts[digit] = start;
        start += digit_count;
    }
    for (uint32_t i = 0; i < count; i++) {
        to[starts[from[i].value >> shift & mask]++] = from[i];
    }
}

/* Into disk order; what begins at the same byte stays in the order of targets and parts. */
static void tokens_sort_places(struct tokens_job *job) {
    struct tokens_place *sorted = job->places + job->places_max;
    struct tokens_key *keys = job->keys, *spare = job->keys + job->places_max;
    uint64_t ones = 0, all = UINT64_MAX;
    for (uint32_t i = 0; i < job->place_count; i++) {
        const struct tokens_place *place = &job->places[i];
        assert(place->file_offset >> KEY_OFFSET_BITS == 0);
        keys[i].value = (uint64_t)place->dataset << KEY_OFFSET_BITS | place->file_offset;
        keys[i].place = i;
        ones |= keys[i].value;
        all &= keys[i].value;
    }
    uint64_t differ = ones ^ all; /* digits that are the same everywhere are not sorted by */
    while (differ != 0) {
        unsigned shift = (unsigned)__builtin_ctzll(differ);
        keys_sort_by(keys, spare, job->place_count, shift);
        differ &= ~((((uint64_t)1 << DIGIT_BITS) - 1) << shift);
        struct tokens_key *swapped = keys;
        keys = spare;
        spare = swapped;
    }
    for (uint32_t i = 0; i < job->place_count; i++) {
        uint32_t later = i + PLACES_AHEAD < job->place_count ? i + PLACES_AHEAD : i;
        __builtin_prefetch(&job->places[keys[later].place]);
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

static uint8_t *payload_at(const struct tokens_job *job, const struct tokens_place *place,
                           uint64_t row) {
    return (uint8_t *)place->target->payload + row * job->token_bytes;
}

/* Returns the bytes of bounce memory. */
static uint64_t tokens_place_bounce(struct tokens_job *job) {
    uint64_t offset = 0;
    job->wanted_bytes = 0;
    job->has_successors = false;
    for (uint32_t i = 0; i < job->place_count; i++) {
        struct tokens_place *place = &job->places[i];
        uint64_t width = place->width;
        uint64_t bytes = place->file_bytes + (place_reads_successor(job, i) ? width : 0);
        job->has_successors = job->has_successors || place->successor_row != NO_ROW;
        job->wanted_bytes += bytes;
        if (width != job->token_bytes) {
            offset = (offset + width - 1) / width * width;
            place->bounce_offset = offset;
            offset += bytes;
        }
    }
    return offset;
}

static int tokens_reserve_bounce(struct tokens_job *job, uint64_t bytes) {
    if (bytes > job->bounce_max) {
        free(job->bounce);
        job->bounce_max = bytes + bytes / 4;
        job->bounce = malloc(job->bounce_max);
        if (job->bounce == NULL) {
            job->bounce_max = 0;
            return -ENOMEM;
        }
    }
    return 0;
}

static bool dataset_is_converted(const struct tokens_job *job, const struct dataset *dataset) {
    return dataset_width(dataset) != job->token_bytes ||
           convert_forbidden_bits(dataset_dtype(dataset), job->token_bytes) != 0;
}

#define SAMPLES 16u /* of what a job wants of a dataset */

/* How much of what is wanted of a dataset is in the page cache, by a few of its places, which begin
 * with this one. Where the kernel cannot tell of extents, less than half of it is nothing. */
static enum cached tokens_sample(const struct tokens_job *job, const struct dataset *dataset,
                                 uint32_t first) {
    uint32_t end = first, tried = 0, cached = 0;
    bool telling = true;
    while (end < job->place_count && job->places[end].dataset == job->places[first].dataset) {
        end++;
    }
    uint32_t step = (end - first + SAMPLES - 1) / SAMPLES;
    for (uint32_t i = first + step / 2; i < end; i += step, tried++) {
        const struct tokens_place *place = &job->places[i];
        const struct volume *volume = volumes_find(dataset_volumes(dataset), place->file_offset);
        uint64_t offset = volume_offset(volume, place->file_offset);
        int found = file_cached(volume->file, offset, place->file_bytes);
        telling = telling && found >= 0;
        cached += found > 0 || (found < 0 && file_holds(volume->file, offset));
    }
    if (cached == tried) {
        return CACHED_ALL;
    }
    return (telling && cached > 0) || 2 * cached >= tried ? CACHED_PARTLY : CACHED_NONE;
}

static int tokens_find_extents(struct tokens_job *job, bool gaps) {
    const struct dataset *dataset = NULL;
    extents_begin(&job->extents, gaps);
    job->is_converted = false;
    for (uint32_t i = 0; i < job->place_count; i++) {
        const struct tokens_place *place = &job->places[i];
        bool direct = place->width == job->token_bytes;
        uint8_t *to = direct ? payload_at(job, place, place->row)
                             : job->bounce + place->bounce_offset;
        if (i == 0 || place->dataset != place[-1].dataset) {
            dataset = catalog_dataset(job->catalog, place->dataset);
            job->is_converted = job->is_converted || dataset_is_converted(job, dataset);
            if (dataset_volumes(dataset)->chosen || dataset_volumes(dataset)->mapped) {
                extents_expect(&job->extents, tokens_sample(job, dataset, i));
            }
        }
        extents_add(&job->extents, dataset, place->file_offset, place->file_bytes, to, i);
        if (place_reads_successor(job, i)) {
            to = direct ? payload_at(job, place, place->successor_row) : to + place->file_bytes;
            extents_add(&job->extents, dataset, place->file_offset + place->file_bytes,
                        place->width, to, i);
        }
    }
    return extents_finish(&job->extents);
}

static void tokens_complete(struct read_job *read);

/* On a thread of the reader, mostly. */
static int tokens_prepare(struct read_job *read) {
    struct tokens_job *job = (struct tokens_job *)read;
    int rc = tokens_reserve_places(job);
    if (rc < 0) {
        return rc;
    }
    tokens_find_places(job);
    rc = tokens_reserve_bounce(job, tokens_place_bounce(job));
    if (rc == 0) {
        rc = tokens_find_extents(job, !job->exact);
    }
    job->read.extents = job->extents.extents;
    job->read.extent_count = job->extents.count;
    job->read_bytes = job->extents.read_bytes;
    return rc;
}

void tokens_job_begin(struct tokens_job *job, const struct catalog *catalog, uint32_t token_bytes,
                      bool exact, struct tokens_target *targets) {
    assert(token_bytes == 2 || token_bytes == 4);
    job->catalog = catalog;
    job->token_bytes = token_bytes;
    job->exact = exact;
    job->targets = targets;
    job->wanted_bytes = 0;
    job->read_bytes = 0;
    job->read.extents = NULL;
    job->read.extent_count = 0;
    job->read.prepare = tokens_prepare;
    job->read.complete = tokens_complete;
}

int tokens_job_prepare(struct tokens_job *job, const struct catalog *catalog, uint32_t token_bytes,
                       bool exact, struct tokens_target *targets) {
    tokens_job_begin(job, catalog, token_bytes, exact, targets);
    job->read.prepare = NULL;
    return tokens_prepare(&job->read);
}

void tokens_job_deinit(struct tokens_job *job) {
    extents_deinit(&job->extents);
    free(job->bounce);
    free(job->places_memory);
    job->bounce = NULL;
    job->bounce_max = 0;
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
    uint64_t offset;
    const char *path = dataset_locate(dataset, place->file_offset + (run->first + index) * width,
                                      &offset);
    return error_set(error, -EBADMSG,
                     "dataset '%s': %s: byte %" PRIu64 " (document %" PRIu64 ", token %" PRIu64
                     "): token id %s; run `ballastctl verify %s` and make the dataset again",
                     dataset_name(dataset), path, offset, document->document,
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
    uint32_t width = place->width;
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
    uint64_t offset; /* address */
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
    uint64_t address = failure->offset > place->file_offset ? failure->offset : place->file_offset;
    uint64_t token = document->offset + (address - place->file_offset) / place->width;
    uint64_t offset;
    const char *path = dataset_locate(dataset, address, &offset);
    (void)error_set(&target->error, failure->code,
                    "dataset '%s': %s: byte %" PRIu64 " (document %" PRIu64 ", token %" PRIu64
                    "): %s; %s",
                    dataset_name(dataset), path, offset, document->document, token,
                    failure_reason(failure->code), failure_remedy(failure->code));
}

static uint64_t extent_bytes(const struct read_extent *extent) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < extent->iovec_count; i++) {
        bytes += extent->iovecs[i].iov_len;
    }
    return bytes;
}

/* All places with bytes in an extent behind the first `done`, successors included. */
static void tokens_fail_extent(const struct tokens_job *job, uint32_t e, int code, uint64_t done) {
    const struct read_extent *extent = &job->read.extents[e];
    const struct volume *volume = extent->check_context;
    uint64_t begin = volume->base + (extent->offset - volume->start);
    struct read_failure failure = {code, begin + done};
    uint64_t end = begin + extent_bytes(extent);
    uint32_t dataset = job->places[job->extents.places[e]].dataset;
    for (uint32_t i = job->extents.places[e]; i < job->place_count; i++) {
        const struct tokens_place *place = &job->places[i];
        if (place->dataset != dataset || place->file_offset >= end) {
            return;
        }
        uint64_t successor = place_reads_successor(job, i) ? place->width : 0;
        if (place->file_offset + place->file_bytes + successor > failure.offset) {
            target_fail(job, place, &failure);
        }
    }
}

/* All places with bytes in a file that is not what it was. */
static void tokens_fail_volume(const struct tokens_job *job, const struct volume *volume,
                               int code) {
    for (uint32_t e = 0; e < job->read.extent_count; e++) {
        if (job->read.extents[e].check_context == volume) {
            tokens_fail_extent(job, e, code, 0);
        }
    }
}

/* What was read came from the files that were opened if these are unchanged now. Extents are in the
 * order of addresses, so those of a file are neighbours. */
static void tokens_check_files(const struct tokens_job *job) {
    const struct volume *before = NULL;
    for (uint32_t e = 0; e < job->read.extent_count; e++) {
        const struct volume *volume = job->read.extents[e].check_context;
        int code = volume == before ? 0 : file_check(volume->file);
        before = volume;
        if (code < 0) {
            tokens_fail_volume(job, volume, code);
        }
    }
}

/* Successors from the end, so that what follows a place is settled before the place. */
static void tokens_finish_places(const struct tokens_job *job) {
    for (uint32_t i = 0; job->is_converted && i < job->place_count; i++) {
        struct error *error = &job->places[i].target->error;
        if (error->code == 0) {
            (void)finish_place(job, i, error);
        }
    }
    for (uint32_t i = job->has_successors ? job->place_count : 0; i-- > 0;) {
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
        target->hash = bulk_hash(
            target->payload, tokens_payload_bytes(target->documents, target->count, token_bytes));
    }
}

/* On a thread of the reader. Without extents the job could not be prepared. */
static void tokens_complete(struct read_job *read) {
    struct tokens_job *job = (struct tokens_job *)read;
    extents_unmap(&job->extents);
    for (struct tokens_target *target = job->targets; target != NULL; target = target->next) {
        target->hash = 0;
        target->error = (struct error){0};
        if (read->extent_count == 0) {
            (void)error_set(&target->error, read->result, "reading could not begin: %s",
                            strerror(-read->result));
        }
    }
    if (read->extent_count == 0) {
        return;
    }
    for (uint32_t e = 0; e < read->extent_count; e++) {
        if (read->extents[e].result < 0) {
            tokens_fail_extent(job, e, read->extents[e].result, read->extents[e].done);
        }
    }
    tokens_check_files(job);
    tokens_finish_places(job);
    for (struct tokens_target *target = job->targets; target != NULL; target = target->next) {
        target_hash(target, job->token_bytes);
    }
}
