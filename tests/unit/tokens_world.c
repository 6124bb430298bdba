/* tokens_world: see the header. */
#include "tests/unit/tokens_world.h"
#include "tests/unit/corpus_files.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *zeroed(size_t count, size_t size) {
    void *memory = calloc(count + 1, size);
    assert_non_null(memory);
    return memory;
}

void tokens_world_open(struct tokens_world *world) {
    struct reader_options options = {.queue_depth = 8, .threads = 2, .jobs_max = 4, .rings = 2};
    struct error error = {0};
    *world = (struct tokens_world){0};
    test_folder_make(world->folder);
    assert_int_equal(reader_open(READER_AUTO, &options, &world->readers[0], NULL, &error), 0);
    assert_int_equal(reader_open(READER_PREAD, &options, &world->readers[1], NULL, &error), 0);
}

void tokens_world_close(struct tokens_world *world) {
    tokens_world_clear(world);
    reader_close(world->readers[0]);
    reader_close(world->readers[1]);
    test_folder_remove(world->folder);
}

struct token_set *tokens_world_add(struct tokens_world *world, uint8_t dtype,
                                   const uint32_t *lengths, uint32_t documents,
                                   const uint32_t *shuffled) {
    assert_true(world->set_count < TOKEN_SETS_MAX);
    struct token_set *set = &world->sets[world->set_count++];
    *set = (struct token_set){.dtype = dtype, .documents = documents};
    set->lengths = zeroed(documents, sizeof *set->lengths);
    set->starts = zeroed(documents, sizeof *set->starts);
    for (uint32_t i = 0; i < documents; i++) {
        uint32_t document = shuffled == NULL ? i : shuffled[i];
        set->lengths[document] = lengths[document];
        set->starts[document] = set->tokens;
        set->tokens += lengths[document];
    }
    set->values = zeroed(set->tokens, sizeof *set->values);
    return set;
}

uint64_t *token_at(const struct token_set *set, uint64_t document, uint64_t token) {
    assert_true(document < set->documents && token < set->lengths[document]);
    return &set->values[set->starts[document] + token];
}

void tokens_world_path(const struct tokens_world *world, uint32_t set, char path[96]) {
    snprintf(path, 96, "%s/set%u", world->folder, set);
}

static void token_set_write(const struct token_set *set, const char *prefix) {
    char path[512];
    uint32_t width = megatron_width(set->dtype);
    uint64_t *offsets = zeroed(set->documents, sizeof *offsets);
    uint8_t *bin = zeroed(set->tokens, width);
    for (uint32_t i = 0; i < set->documents; i++) {
        offsets[i] = set->starts[i] * width;
    }
    for (uint64_t i = 0; i < set->tokens; i++) {
        memcpy(bin + i * width, &set->values[i], width);
    }
    struct image_options options = {.dtype = set->dtype,
                                    .documents = set->documents,
                                    .lengths = set->lengths,
                                    .offsets = offsets};
    size_t count = image_build(&options, NULL, 0);
    uint8_t *index = zeroed(count, 1);
    image_build(&options, index, count);
    snprintf(path, sizeof path, "%s.idx", prefix);
    file_write(path, index, count);
    snprintf(path, sizeof path, "%s.bin", prefix);
    file_write(path, bin, set->tokens * width);
    free(index);
    free(bin);
    free(offsets);
}

void tokens_world_reopen(struct tokens_world *world) {
    char prefixes[TOKEN_SETS_MAX][96], names[TOKEN_SETS_MAX][16];
    struct catalog_entry entries[TOKEN_SETS_MAX];
    struct error error = {0};
    for (uint32_t i = 0; i < world->set_count; i++) {
        tokens_world_path(world, i, prefixes[i]);
        snprintf(names[i], sizeof names[i], "set%u", i);
        entries[i] = (struct catalog_entry){.name = names[i], .prefix = prefixes[i], .weight = 1};
    }
    catalog_close(world->catalog);
    world->catalog = NULL;
    if (catalog_open(entries, world->set_count, &world->catalog, &error) < 0) {
        fail_msg("%s", error.text);
    }
}

void tokens_world_write(struct tokens_world *world) {
    char prefix[96];
    for (uint32_t i = 0; i < world->set_count; i++) {
        tokens_world_path(world, i, prefix);
        token_set_write(&world->sets[i], prefix);
    }
    tokens_world_reopen(world);
}

void tokens_world_clear(struct tokens_world *world) {
    catalog_close(world->catalog);
    world->catalog = NULL;
    while (world->set_count > 0) {
        struct token_set *set = &world->sets[--world->set_count];
        free(set->lengths);
        free(set->starts);
        free(set->values);
    }
}

struct document tokens_world_part(const struct tokens_world *world, uint32_t set, uint64_t document,
                                  uint32_t offset, uint32_t length) {
    return (struct document){.document = document,
                             .dataset = set,
                             .offset = offset,
                             .length = length,
                             .document_length = world->sets[set].lengths[document]};
}

static uint8_t *reference_put(const struct tokens_world *world, const struct document *document,
                              uint64_t token, uint32_t token_bytes, uint8_t *to) {
    memcpy(to, token_at(&world->sets[document->dataset], document->document, token), token_bytes);
    return to + token_bytes;
}

void tokens_reference(const struct tokens_world *world, const struct document *documents,
                      uint32_t count, uint32_t token_bytes, void *payload) {
    uint8_t *to = payload;
    for (uint32_t i = 0; i < count; i++) {
        for (uint64_t j = 0; j < documents[i].length; j++) {
            to = reference_put(world, &documents[i], documents[i].offset + j, token_bytes, to);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        uint64_t end = (uint64_t)documents[i].offset + documents[i].length;
        if (end < documents[i].document_length) {
            to = reference_put(world, &documents[i], end, token_bytes, to);
        }
    }
}

int tokens_prepare_one(struct tokens_job *job, const struct tokens_world *world,
                       const struct document *documents, uint32_t count, uint32_t token_bytes,
                       bool exact, void *payload, struct tokens_target *target) {
    *target = (struct tokens_target){.documents = documents, .count = count, .payload = payload};
    return tokens_job_prepare(job, world->catalog, token_bytes, exact, target);
}

static uint64_t extent_bytes(const struct read_extent *extent) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < extent->iovec_count; i++) {
        bytes += extent->iovecs[i].iov_len;
    }
    return bytes;
}

bool extents_are_bounded(const struct read_job *read) {
    for (uint32_t e = 0; e < read->extent_count; e++) {
        const struct read_extent *extent = &read->extents[e];
        uint64_t bytes = extent_bytes(extent);
        if (bytes == 0 || bytes > READ_EXTENT_BYTES_MAX || extent->iovec_count == 0 ||
            extent->iovec_count > READ_EXTENT_IOVECS_MAX) {
            return false;
        }
    }
    return true;
}

bool extents_are_coalesced(const struct read_job *read, uint64_t gap_bytes_max) {
    for (uint32_t e = 0; e < read->extent_count; e++) {
        const struct read_extent *extent = &read->extents[e], *before = extent - 1;
        uint64_t end = e > 0 ? before->offset + extent_bytes(before) : 0;
        uint64_t gap = extent->offset - end;
        if (e > 0 && before->file == extent->file && end <= extent->offset &&
            gap <= gap_bytes_max && extent_bytes(before) + gap < READ_EXTENT_BYTES_MAX &&
            before->iovec_count + (gap > 0) < READ_EXTENT_IOVECS_MAX) {
            return false;
        }
    }
    return extents_are_bounded(read);
}

void tokens_run_read(struct reader *reader, struct tokens_job *job) {
    struct pollfd poll_fd = {.fd = reader->event_fd, .events = POLLIN};
    uint64_t count;
    assert_int_equal(reader_submit(reader, &job->read), 0);
    assert_int_equal(poll(&poll_fd, 1, 60000), 1);
    assert_int_equal(read(reader->event_fd, &count, sizeof count), sizeof count);
    assert_ptr_equal(reader_reap(reader), &job->read);
}
