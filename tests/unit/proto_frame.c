/* The ttrpc frame codec: whole frames out of any slicing of a byte stream, bad headers refused from
 * the header alone. */
#include "proto/frame.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define STREAM_BYTES_MAX 4096u

static const struct frame_header frames[] = {
    {.length = 5, .stream = 1, .type = FRAME_REQUEST, .flags = FRAME_REMOTE_CLOSED},
    {.length = 0, .stream = 1, .type = FRAME_RESPONSE, .flags = 0},
    {.length = 1, .stream = 3, .type = FRAME_REQUEST, .flags = FRAME_REMOTE_OPEN},
    {.length = 0, .stream = 3, .type = FRAME_DATA, .flags = 0},
    {.length = 300, .stream = 3, .type = FRAME_DATA, .flags = 0},
    {.length = 0, .stream = 3, .type = FRAME_DATA, .flags = FRAME_REMOTE_CLOSED | FRAME_NO_DATA},
    {.length = 17, .stream = UINT32_MAX, .type = FRAME_RESPONSE, .flags = 0},
};
#define FRAME_COUNT (sizeof frames / sizeof frames[0])

static uint8_t payload_byte(size_t frame, size_t i) {
    return (uint8_t)(31 * frame + 7 * i + 1);
}

static size_t write_frames(uint8_t *out) {
    size_t used = 0;
    for (size_t frame = 0; frame < FRAME_COUNT; frame++) {
        frame_header_encode(&frames[frame], out + used);
        used += FRAME_HEADER_BYTES;
        for (size_t i = 0; i < frames[frame].length; i++) {
            out[used++] = payload_byte(frame, i);
        }
    }
    assert_true(used <= STREAM_BYTES_MAX);
    return used;
}

static void expect_frame(size_t frame, const struct frame_header *header, const uint8_t *data) {
    assert_true(frame < FRAME_COUNT);
    assert_int_equal(header->length, frames[frame].length);
    assert_int_equal(header->stream, frames[frame].stream);
    assert_int_equal(header->type, frames[frame].type);
    assert_int_equal(header->flags, frames[frame].flags);
    for (size_t i = 0; i < header->length; i++) {
        assert_int_equal(data[i], payload_byte(frame, i));
    }
}

/* Feeds bytes as a socket would, at most what fits, and takes every frame; returns how many. */
static size_t feed(struct frame_reader *reader, const uint8_t *bytes, size_t count, size_t frame) {
    while (count > 0) {
        size_t space;
        uint8_t *to = frame_reader_space(reader, &space);
        assert_true(space > 0);
        size_t taken = space < count ? space : count;
        memcpy(to, bytes, taken);
        frame_reader_fill(reader, taken);
        bytes += taken;
        count -= taken;
        struct frame_header header;
        const uint8_t *data;
        const char *reason;
        while (frame_reader_next(reader, &header, &data, &reason) == 1) {
            expect_frame(frame++, &header, data);
        }
    }
    return frame;
}

static void frames_survive_every_split_of_the_stream(void **state) {
    (void)state;
    uint8_t bytes[STREAM_BYTES_MAX], buffer[FRAME_HEADER_BYTES + 300];
    size_t count = write_frames(bytes);
    for (size_t first = 0; first <= count; first++) {
        for (size_t second = first; second <= count; second += 1 + (second - first) / 4) {
            struct frame_reader reader;
            frame_reader_init(&reader, buffer, sizeof buffer);
            size_t seen = feed(&reader, bytes, first, 0);
            seen = feed(&reader, bytes + first, second - first, seen);
            seen = feed(&reader, bytes + second, count - second, seen);
            assert_int_equal(seen, FRAME_COUNT);
        }
    }
}

static void frames_survive_every_chunk_size(void **state) {
    (void)state;
    uint8_t bytes[STREAM_BYTES_MAX], buffer[FRAME_HEADER_BYTES + 300];
    size_t count = write_frames(bytes);
    for (size_t chunk = 1; chunk <= count; chunk++) {
        struct frame_reader reader;
        frame_reader_init(&reader, buffer, sizeof buffer);
        size_t seen = 0;
        for (size_t at = 0; at < count; at += chunk) {
            seen = feed(&reader, bytes + at, count - at < chunk ? count - at : chunk, seen);
        }
        assert_int_equal(seen, FRAME_COUNT);
    }
}

static void half_a_frame_gives_nothing(void **state) {
    (void)state;
    uint8_t bytes[FRAME_HEADER_BYTES + 5], buffer[64];
    frame_header_encode(&frames[0], bytes);
    memset(bytes + FRAME_HEADER_BYTES, 9, 5);
    for (size_t count = 0; count < sizeof bytes; count++) {
        struct frame_reader reader;
        frame_reader_init(&reader, buffer, sizeof buffer);
        assert_int_equal(feed(&reader, bytes, count, 0), 0);
        struct frame_header header;
        const uint8_t *data;
        assert_int_equal(frame_reader_next(&reader, &header, &data, NULL), 0);
    }
}

static int check(uint32_t length, uint8_t type, uint8_t flags) {
    struct frame_header header = {.length = length, .stream = 1, .type = type, .flags = flags};
    const char *reason = NULL;
    int code = frame_header_check(&header, &reason);
    assert_true((code < 0) == (reason != NULL));
    return code;
}

static void lengths_are_judged_from_the_header(void **state) {
    (void)state;
    assert_int_equal(check(FRAME_DATA_BYTES_MAX, FRAME_DATA, 0), 0);
    assert_int_equal(check(FRAME_DATA_BYTES_MAX + 1, FRAME_DATA, 0), -EMSGSIZE);
    assert_int_equal(check(UINT32_MAX, FRAME_REQUEST, 0), -EMSGSIZE);
    assert_int_equal(check(0, FRAME_REQUEST, FRAME_REMOTE_CLOSED), -EPROTO);
    assert_int_equal(check(0, FRAME_RESPONSE, 0), 0);
    assert_int_equal(check(0, FRAME_DATA, 0), 0);
    assert_int_equal(check(0, FRAME_DATA, FRAME_NO_DATA), 0);
    assert_int_equal(check(1, FRAME_DATA, FRAME_NO_DATA), -EPROTO);
}

static void only_known_types_and_flags_pass(void **state) {
    (void)state;
    for (unsigned type = 0; type < 256; type++) {
        for (unsigned flags = 0; flags < 256; flags++) {
            int expected = type >= 1 && type <= 3 && flags < 4 ? 0 : -EPROTO;
            assert_int_equal(check(1, (uint8_t)type, (uint8_t)flags), expected);
        }
    }
}

static void a_bad_header_stops_the_stream_for_good(void **state) {
    (void)state;
    static const struct frame_header bad = {.length = UINT32_MAX, .stream = 1, .type = 1};
    uint8_t buffer[64];
    struct frame_reader reader;
    frame_reader_init(&reader, buffer, sizeof buffer);
    size_t space;
    uint8_t *to = frame_reader_space(&reader, &space);
    frame_header_encode(&bad, to);
    frame_reader_fill(&reader, FRAME_HEADER_BYTES);
    for (int i = 0; i < 3; i++) {
        struct frame_header header = {0};
        const uint8_t *data = NULL;
        const char *reason = NULL;
        assert_int_equal(frame_reader_next(&reader, &header, &data, &reason), -EMSGSIZE);
        assert_int_equal(header.length, UINT32_MAX);
        assert_non_null(reason);
        assert_null(data);
    }
}

static void a_frame_larger_than_the_buffer_is_refused(void **state) {
    (void)state;
    uint8_t buffer[FRAME_HEADER_BYTES + 8];
    for (uint32_t length = 8; length <= 9; length++) {
        struct frame_header header = {.length = length, .stream = 1, .type = FRAME_DATA};
        struct frame_reader reader;
        frame_reader_init(&reader, buffer, sizeof buffer);
        size_t space;
        frame_header_encode(&header, frame_reader_space(&reader, &space));
        frame_reader_fill(&reader, FRAME_HEADER_BYTES);
        const uint8_t *data;
        const char *reason;
        int expected = length == 8 ? 0 : -EMSGSIZE;
        assert_int_equal(frame_reader_next(&reader, &header, &data, &reason), expected);
    }
}

static void request_streams_are_odd_and_rise(void **state) {
    (void)state;
    uint32_t last = 0;
    const char *reason;
    assert_int_equal(frame_stream_check(0, &last, &reason), -EPROTO);
    assert_int_equal(frame_stream_check(2, &last, &reason), -EPROTO);
    assert_int_equal(frame_stream_check(1, &last, &reason), 0);
    assert_int_equal(frame_stream_check(1, &last, &reason), -EPROTO);
    assert_int_equal(frame_stream_check(7, &last, &reason), 0);
    assert_int_equal(frame_stream_check(5, &last, &reason), -EPROTO);
    assert_int_equal(frame_stream_check(8, &last, &reason), -EPROTO);
    assert_int_equal(frame_stream_check(UINT32_MAX, &last, NULL), 0);
    assert_int_equal(last, UINT32_MAX);
    assert_int_equal(frame_stream_check(1, &last, NULL), -EPROTO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_survive_every_split_of_the_stream),
        cmocka_unit_test(frames_survive_every_chunk_size),
        cmocka_unit_test(half_a_frame_gives_nothing),
        cmocka_unit_test(lengths_are_judged_from_the_header),
        cmocka_unit_test(only_known_types_and_flags_pass),
        cmocka_unit_test(a_bad_header_stops_the_stream_for_good),
        cmocka_unit_test(a_frame_larger_than_the_buffer_is_refused),
        cmocka_unit_test(request_streams_are_odd_and_rise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
