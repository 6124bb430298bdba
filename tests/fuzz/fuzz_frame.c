/* The frame reader on arbitrary bytes in arbitrary chunks gives the same frames, in the same order,
 * and the same verdict as on all bytes at once. */
#include "proto/frame.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define READER_BYTES (FRAME_HEADER_BYTES + 1024u)

/* What a reader said: a running hash of everything that it gave out, and how it ended. */
struct verdict {
    uint64_t hash;
    uint64_t frames;
    int code;
};

static void verdict_add(struct verdict *verdict, const void *bytes, size_t count) {
    const uint8_t *at = bytes;
    for (size_t i = 0; i < count; i++) {
        verdict->hash = (verdict->hash ^ at[i]) * 1099511628211u;
    }
}

static void verdict_take(struct verdict *verdict, struct frame_reader *reader) {
    struct frame_header header;
    const uint8_t *data;
    const char *reason = NULL;
    while (verdict->code == 0) {
        int code = frame_reader_next(reader, &header, &data, &reason);
        if (code == 0) {
            return;
        }
        uint8_t encoded[FRAME_HEADER_BYTES];
        frame_header_encode(&header, encoded);
        verdict_add(verdict, encoded, sizeof encoded);
        if (code < 0) {
            assert(reason != NULL);
            verdict->code = code;
            return;
        }
        assert(header.length <= READER_BYTES - FRAME_HEADER_BYTES);
        verdict_add(verdict, data, header.length);
        verdict->frames++;
    }
}

/* Chunk sizes come from `sizes`, cyclically; without any, all that fits at once. */
static struct verdict run(const uint8_t *bytes, size_t count, const uint8_t *sizes,
                          size_t size_count) {
    uint8_t *buffer = malloc(READER_BYTES);
    struct verdict verdict = {.hash = 14695981039346656037u};
    struct frame_reader reader;
    assert(buffer != NULL);
    frame_reader_init(&reader, buffer, READER_BYTES);
    for (size_t at = 0, turn = 0; at < count && verdict.code == 0; turn++) {
        size_t space;
        uint8_t *to = frame_reader_space(&reader, &space);
        assert(space > 0);
        size_t chunk = size_count == 0 ? space : 1u + sizes[turn % size_count];
        chunk = chunk < space ? chunk : space;
        chunk = chunk < count - at ? chunk : count - at;
        memcpy(to, bytes + at, chunk);
        frame_reader_fill(&reader, chunk);
        at += chunk;
        verdict_take(&verdict, &reader);
    }
    free(buffer);
    return verdict;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) {
        return 0;
    }
    size_t size_count = data[0] % 8u;
    size_count = size_count < size - 1 ? size_count : size - 1;
    const uint8_t *bytes = data + 1 + size_count;
    size_t count = size - 1 - size_count;
    struct verdict chunked = run(bytes, count, data + 1, size_count);
    struct verdict whole = run(bytes, count, NULL, 0);
    assert(chunked.frames == whole.frames);
    assert(chunked.code == whole.code);
    assert(chunked.hash == whole.hash);
    return 0;
}
