/* What clients in other languages take from libballast: batches off a stream, columns, releases. */
#include "client_world.h"

#include "client/plan_columns.h"
#include "proto/frame.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { STREAM = 5, BUFFER = 4096 };

/* Stands for an object of Python's: what its buffer is, and how often it is held. */
struct object {
    const char *format;
    size_t itemsize, rows;
    int ndim, held;
    void *memory;
};

/* As Py_buffer begins. */
struct buffer {
    void *buf, *object;
    ptrdiff_t len, itemsize;
    int readonly, ndim;
    const char *format;
    ptrdiff_t *shape, *strides, *suboffsets;
    void *internal;
};

static int object_get(void *of, void *into, int flags) {
    struct object *object = of;
    struct buffer *buffer = into;
    assert_int_equal(flags, 0x1 | 0x4 | 0x8);
    if (object->memory == NULL) {
        return -1;
    }
    *buffer = (struct buffer){.buf = object->memory,
                              .object = object,
                              .itemsize = (ptrdiff_t)object->itemsize,
                              .ndim = object->ndim,
                              .format = object->format,
                              .shape = (ptrdiff_t *)&object->rows};
    object->held++;
    return 0;
}

static void object_release(void *from) {
    ((struct object *)((struct buffer *)from)->object)->held--;
}

static const struct ballast_plan_python python = {object_get, object_release};

/* A stream whose daemon is the test, over the world's memory. */
struct wire {
    struct world_memory memory;
    struct ballast_plan_stream stream;
    struct ballast_plan_head head;
    struct ballast_plan *plan;
    int peer;
    uint8_t buffer[BUFFER];
};

static void wire_init(struct wire *wire) {
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    world_memory_create(&wire->memory, WORLD_SLOTS * WORLD_SLOT_BYTES);
    wire->peer = ends[1];
    wire->plan = ballast_plan_create(&wire->head, &python);
    assert_non_null(wire->plan);
    wire->stream = (struct ballast_plan_stream){.tokens_max = WORLD_TOKENS,
                                                .ranks = WORLD_CP,
                                                .slab = wire->memory.bytes,
                                                .slab_bytes = WORLD_SLOTS * WORLD_SLOT_BYTES,
                                                .micro_batches = WORLD_MICRO_BATCHES,
                                                .parts = BALLAST_PART_TOKENS | BALLAST_PART_LABELS,
                                                .token_bytes = 2,
                                                .fd = ends[0],
                                                .id = STREAM,
                                                .buffer = wire->buffer,
                                                .capacity = BUFFER};
}

static void wire_deinit(struct wire *wire) {
    ballast_plan_destroy(wire->plan);
    close(wire->stream.fd);
    close(wire->peer);
    world_memory_destroy(&wire->memory);
}

static int wire_next(struct wire *wire) {
    return ballast_plan_next(wire->plan, &wire->stream);
}

/* A frame around an event; how long it is. */
static size_t frame_of(const ProtobufCMessage *event, uint32_t stream, uint8_t *out) {
    struct frame_header header = {.stream = stream, .type = FRAME_DATA};
    header.length = (uint32_t)protobuf_c_message_get_packed_size(event);
    assert_true(FRAME_HEADER_BYTES + header.length <= BUFFER);
    frame_header_encode(&header, out);
    return FRAME_HEADER_BYTES + protobuf_c_message_pack(event, out + FRAME_HEADER_BYTES);
}

static size_t frame_of_batch(struct world_batch *batch, uint8_t *out) {
    Ballast__V1__StreamResponse event = BALLAST__V1__STREAM_RESPONSE__INIT;
    event.event_case = BALLAST__V1__STREAM_RESPONSE__EVENT_BATCH;
    event.batch = &batch->message;
    return frame_of(&event.base, STREAM, out);
}

static size_t frame_of_world(struct wire *wire, uint64_t step, uint32_t index, uint8_t *out) {
    struct world_batch batch;
    world_batch_init(&batch, &wire->memory, step, index);
    size_t bytes = frame_of_batch(&batch, out);
    world_batch_free(&batch);
    return bytes;
}

static void wire_put(const struct wire *wire, const uint8_t *bytes, size_t count) {
    assert_int_equal(write(wire->peer, bytes, count), count);
}

static void expect_batch(const struct wire *wire, uint64_t step, uint32_t index) {
    const struct ballast_plan_head *head = &wire->head;
    int32_t tokens[WORLD_ROWS], labels[WORLD_ROWS];
    int64_t positions[WORLD_ROWS];
    assert_int_equal(head->step, step);
    assert_int_equal(head->index, index);
    assert_int_equal(head->rows, WORLD_ROWS);
    assert_int_equal(head->tokens, WORLD_TOKENS);
    assert_int_equal(head->slot_tokens, WORLD_TOKENS + 1);
    assert_int_equal(head->loss_denominator, 16);
    assert_int_equal(head->plan_digest[15], step + 1);
    assert_int_equal(ballast_plan_gather(wire->plan, BALLAST_TOKENS, BALLAST_INT32, tokens), 0);
    assert_int_equal(ballast_plan_gather(wire->plan, BALLAST_LABELS, BALLAST_INT32, labels), 0);
    assert_int_equal(ballast_plan_gather(wire->plan, BALLAST_POSITIONS, BALLAST_INT64, positions),
                     0);
    static const uint32_t rows[] = {0, 1, 6, 7};
    static const uint32_t at[] = {0, 1, 1, 2};
    for (uint32_t i = 0; i < WORLD_ROWS; i++) {
        assert_int_equal(tokens[i], world_token(step, index, rows[i]));
        assert_int_equal(labels[i], world_token(step, index, rows[i] + 1));
        assert_int_equal(positions[i], at[i]);
    }
}

static void batches_come_off_the_stream_one_after_the_other(void **state) {
    (void)state;
    struct wire wire;
    uint8_t frames[2 * BUFFER];
    wire_init(&wire);
    assert_int_equal(wire_next(&wire), BALLAST_PLAN_NOTHING);
    size_t first = frame_of_world(&wire, 3, 0, frames);
    size_t second = frame_of_world(&wire, 3, 1, frames + first);
    wire_put(&wire, frames, first + second);
    assert_int_equal(wire_next(&wire), BALLAST_PLAN_BATCH);
    assert_int_equal(wire.stream.end - wire.stream.begin, second);
    expect_batch(&wire, 3, 0);
    assert_int_equal(wire_next(&wire), BALLAST_PLAN_PLAIN);
    assert_true(wire.stream.begin == wire.stream.end);
    expect_batch(&wire, 3, 1);
    assert_int_equal(wire_next(&wire), BALLAST_PLAN_NOTHING);
    wire_deinit(&wire);
}

static void what_is_no_whole_batch_of_the_stream_is_left_to_the_caller(void **state) {
    (void)state;
    struct wire wire;
    uint8_t frame[BUFFER];
    Ballast__V1__StreamResponse event = BALLAST__V1__STREAM_RESPONSE__INIT;
    Ballast__V1__EndOfData end = BALLAST__V1__END_OF_DATA__INIT;
    wire_init(&wire);
    size_t bytes = frame_of_world(&wire, 3, 0, frame);
    for (size_t count = 1; count < bytes; count++) {
        wire.stream.begin = wire.stream.end = 0;
        wire_put(&wire, frame, count);
        assert_int_equal(wire_next(&wire), BALLAST_PLAN_OTHER);
        assert_int_equal(wire.stream.end - wire.stream.begin, count);
    }
    event.event_case = BALLAST__V1__STREAM_RESPONSE__EVENT_END_OF_DATA;
    event.end_of_data = &end;
    for (uint32_t i = 0; i < 2; i++) {
        wire.stream.begin = wire.stream.end = 0;
        bytes = i == 0 ? frame_of(&event.base, STREAM, frame) : frame_of_world(&wire, 3, 0, frame);
        frame[7] = i == 0 ? STREAM : STREAM + 2;
        wire_put(&wire, frame, bytes);
        assert_int_equal(wire_next(&wire), BALLAST_PLAN_OTHER);
        assert_memory_equal(wire.buffer, frame, bytes);
    }
    wire.stream.begin = wire.stream.end = 0;
    close(wire.peer);
    assert_int_equal(wire_next(&wire), BALLAST_PLAN_OTHER);
    assert_int_equal(wire.stream.end, 0);
    wire.peer = -1;
    wire_deinit(&wire);
}

static void an_impossible_plan_is_refused_with_its_contradiction(void **state) {
    (void)state;
    struct wire wire;
    struct world_batch batch;
    char why[256];
    int64_t column;
    size_t capacity = 1;
    uint8_t frame[BUFFER];
    wire_init(&wire);
    world_batch_init(&batch, &wire.memory, 3, 0);
    batch.plan.tokens++;
    wire_put(&wire, frame, frame_of_batch(&batch, frame));
    assert_int_equal(wire_next(&wire), BALLAST_PLAN_REFUSED);
    assert_int_equal(wire.head.step, 3);
    assert_int_equal(ballast_plan_why(wire.plan, why, sizeof why), -EPROTO);
    assert_non_null(strstr(why, "its documents are not as long as it says"));
    assert_int_equal(ballast_plan_gather(wire.plan, BALLAST_POSITIONS, BALLAST_INT64, &column),
                     -EINVAL);
    assert_int_equal(ballast_plan_columns(wire.plan, &column, &capacity), -EINVAL);
    world_batch_free(&batch);
    wire_deinit(&wire);
}

/* What a gather of the tokens of the batch that is taken says. */
static int gather_tokens_of(const struct wire *wire) {
    int32_t tokens[WORLD_ROWS];
    return ballast_plan_gather(wire->plan, BALLAST_TOKENS, BALLAST_INT32, tokens);
}

/* The same where the slot is said to be at `offset`. */
static int gather_at(struct wire *wire, uint64_t offset, uint64_t generation) {
    struct world_batch batch;
    uint8_t frame[BUFFER];
    world_batch_init(&batch, &wire->memory, 3, 0);
    batch.message.slab_offset = offset;
    batch.message.slot_generation = generation;
    wire_put(wire, frame, frame_of_batch(&batch, frame));
    world_batch_free(&batch);
    assert_int_equal(wire_next(wire), BALLAST_PLAN_BATCH);
    return gather_tokens_of(wire);
}

static void a_slot_is_read_within_the_slab_and_while_it_is_the_batchs(void **state) {
    (void)state;
    struct wire wire;
    wire_init(&wire);
    const uint64_t end = wire.stream.slab_bytes, mine = 6 * WORLD_SLOT_BYTES;
    assert_int_equal(gather_at(&wire, mine, 4), 0);
    assert_int_equal(gather_at(&wire, mine, 5), -ESTALE);
    const uint64_t beyond[] = {end, end - 64, mine + 1, UINT64_MAX - 63, UINT64_MAX - 127};
    for (size_t i = 0; i < sizeof beyond / sizeof beyond[0]; i++) {
        assert_int_equal(gather_at(&wire, beyond[i], 4), -EINVAL);
    }
    uint8_t *copy = aligned_alloc(64, WORLD_SLOT_BYTES);
    assert_non_null(copy);
    memcpy(copy, wire.memory.bytes + mine, WORLD_SLOT_BYTES);
    ballast_plan_place(wire.plan, copy); /* as of a batch that was fetched */
    expect_batch(&wire, 3, 0);
    free(copy);
    wire_deinit(&wire);
}

/* What batch 3.1 is found to be behind 3.0, which is of two micro-batches. */
static int found_behind(struct wire *wire, void (*change)(struct world_batch *)) {
    struct world_batch batch;
    uint8_t frame[BUFFER];
    wire_put(wire, frame, frame_of_world(wire, 3, 0, frame));
    assert_int_equal(wire_next(wire), BALLAST_PLAN_BATCH);
    world_batch_init(&batch, &wire->memory, 3, 1);
    change(&batch);
    wire_put(wire, frame, frame_of_batch(&batch, frame));
    world_batch_free(&batch);
    return wire_next(wire);
}

static void as_it_is(struct world_batch *batch) {
    (void)batch;
}

static void of_another_step(struct world_batch *batch) {
    batch->id.step++;
}

static void of_another_replica(struct world_batch *batch) {
    batch->id.dp++;
}

static void again(struct world_batch *batch) {
    batch->id.index = 0;
}

static void beyond_the_step(struct world_batch *batch) {
    batch->id.index++;
}

static void in_a_longer_step(struct world_batch *batch) {
    batch->message.micro_batches++;
}

static void of_another_plan(struct world_batch *batch) {
    batch->digest[15]++;
}

static void with_a_hash(struct world_batch *batch) {
    batch->message.payload_hash = 1;
}

static void without_a_slot(struct world_batch *batch) {
    batch->message.slab_bytes = 0;
}

static void with_a_pool(struct world_batch *batch) {
    static Ballast__V1__PoolPart part;
    ballast__v1__pool_part__init(&part);
    batch->message.pool = &part;
}

static void a_batch_with_something_to_judge_is_not_plain(void **state) {
    (void)state;
    struct wire wire;
    static void (*const changes[])(struct world_batch *) = {
        of_another_step, of_another_replica, again,          beyond_the_step, in_a_longer_step,
        of_another_plan, with_a_hash,        without_a_slot, with_a_pool,
    };
    wire_init(&wire);
    assert_int_equal(found_behind(&wire, as_it_is), BALLAST_PLAN_PLAIN);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        assert_int_equal(found_behind(&wire, changes[i]), BALLAST_PLAN_BATCH);
    }
    wire.stream.slab = NULL;
    assert_int_equal(found_behind(&wire, as_it_is), BALLAST_PLAN_BATCH);
    wire_deinit(&wire);
}

static void nothing_follows_what_the_caller_took_by_another_way(void **state) {
    (void)state;
    struct wire wire;
    uint8_t frame[BUFFER];
    wire_init(&wire);
    wire_put(&wire, frame, frame_of_world(&wire, 3, 0, frame));
    assert_int_equal(wire_next(&wire), BALLAST_PLAN_BATCH);
    wire.stream.follows = 0;
    wire_put(&wire, frame, frame_of_world(&wire, 3, 1, frame));
    assert_int_equal(wire_next(&wire), BALLAST_PLAN_BATCH);
    wire_deinit(&wire);
}

static void columns_that_are_not_among_the_parts_are_not_gathered(void **state) {
    (void)state;
    struct wire wire;
    uint8_t frame[BUFFER];
    int64_t rows[WORLD_ROWS];
    static const enum ballast_column columns[] = {BALLAST_TOKENS, BALLAST_LABELS,
                                                  BALLAST_POSITIONS};
    static const uint32_t parts[] = {BALLAST_PART_TOKENS, BALLAST_PART_LABELS, BALLAST_PART_PLAN};
    wire_init(&wire);
    for (uint32_t i = 0; i < 3; i++) {
        wire.stream.parts = parts[i];
        wire_put(&wire, frame, frame_of_world(&wire, 3, 0, frame));
        assert_int_equal(wire_next(&wire), BALLAST_PLAN_BATCH);
        for (uint32_t n = 0; n < 3; n++) {
            assert_int_equal(ballast_plan_gather(wire.plan, columns[n], BALLAST_INT64, rows),
                             n == i || n == 2 ? 0 : -EINVAL);
        }
    }
    assert_int_equal(ballast_plan_gather(NULL, BALLAST_TOKENS, BALLAST_INT64, rows), -EINVAL);
    assert_int_equal(ballast_plan_release(NULL, &wire.stream), -1);
    wire_deinit(&wire);
}

static void an_object_is_filled_if_its_buffer_is_flat_and_of_a_type_with_room(void **state) {
    (void)state;
    struct wire wire;
    uint8_t frame[BUFFER];
    int64_t memory[WORLD_ROWS + 1];
    const struct {
        const char *format;
        size_t itemsize, rows;
        int ndim, code;
    } cases[] = {
        {"i", 4, WORLD_ROWS, 1, 0},           {"l", 8, WORLD_ROWS, 1, 0},
        {"q", 8, WORLD_ROWS, 1, 0},           {"i", 4, WORLD_ROWS + 1, 1, 1},
        {"i", 4, WORLD_ROWS - 1, 1, -EINVAL}, {"i", 4, WORLD_ROWS, 2, -EINVAL},
        {"I", 4, WORLD_ROWS, 1, -EINVAL},     {"f", 4, WORLD_ROWS, 1, -EINVAL},
        {"d", 8, WORLD_ROWS, 1, -EINVAL},     {">i", 4, WORLD_ROWS, 1, -EINVAL},
        {"ii", 8, WORLD_ROWS, 1, -EINVAL},    {"l", 4, WORLD_ROWS, 1, -EINVAL},
        {"", 4, WORLD_ROWS, 1, -EINVAL},      {NULL, 4, WORLD_ROWS, 1, -EINVAL},
    };
    wire_init(&wire);
    wire_put(&wire, frame, frame_of_world(&wire, 3, 0, frame));
    assert_int_equal(wire_next(&wire), BALLAST_PLAN_BATCH);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct object object = {cases[i].format, cases[i].itemsize, cases[i].rows, cases[i].ndim, 0,
                                memory};
        memset(memory, 0xAA, sizeof memory);
        assert_int_equal(ballast_plan_fill(wire.plan, BALLAST_TOKENS, &object), cases[i].code);
        assert_int_equal(object.held, 0);
        for (uint32_t row = 0; row <= WORLD_ROWS; row++) {
            int64_t found = object.itemsize == 4 ? ((int32_t *)memory)[row] : memory[row];
            int64_t kept = object.itemsize == 4 ? (int32_t)0xAAAAAAAA : (int64_t)0xAAAAAAAAAAAAAAAA;
            bool filled = cases[i].code >= 0 && row < WORLD_ROWS;
            assert_true(filled == (found != kept));
        }
    }
    struct object none = {"i", 4, WORLD_ROWS, 1, 0, NULL};
    assert_int_equal(ballast_plan_fill(wire.plan, BALLAST_TOKENS, &none), -EINVAL);
    assert_int_equal(ballast_plan_fill(NULL, BALLAST_TOKENS, &none), -EINVAL);
    wire_deinit(&wire);
}

static void columns_are_the_documents_and_the_fragments_of_all_ranks(void **state) {
    (void)state;
    struct wire wire;
    uint8_t frame[BUFFER];
    int64_t out[64];
    size_t capacity = 0;
    wire_init(&wire);
    wire_put(&wire, frame, frame_of_world(&wire, 3, 0, frame));
    assert_int_equal(wire_next(&wire), BALLAST_PLAN_BATCH);
    assert_int_equal(ballast_plan_columns(wire.plan, NULL, &capacity), -ENOBUFS);
    assert_int_equal(capacity, 2 + 3 * WORLD_CP + 7 * 2 + 4 * 2);
    assert_int_equal(ballast_plan_columns(wire.plan, out, &capacity), capacity);
    static const int64_t expected[] = {2, 2, 4, 0, 2, 4, 4, 0, 0, 0, 7, 9, 0, 4, 5,
                                       3, 5, 8, 0, 0, 0, 0, 0, 1, 0, 1, 2, 2, 0, 2};
    assert_int_equal(capacity, sizeof expected / sizeof expected[0]);
    for (size_t i = 0; i < capacity; i++) {
        assert_int_equal(out[i], expected[i]);
    }
    wire_deinit(&wire);
}

static void a_release_names_the_batch_and_what_was_waited(void **state) {
    (void)state;
    struct wire wire;
    uint8_t frame[BUFFER];
    struct frame_header header;
    wire_init(&wire);
    wire_put(&wire, frame, frame_of_world(&wire, 3, 1, frame));
    assert_int_equal(wire_next(&wire), BALLAST_PLAN_BATCH);
    wire.stream.waited_ns = UINT64_MAX;
    assert_int_equal(ballast_plan_release(wire.plan, &wire.stream), 0);
    assert_int_equal(wire.stream.waited_ns, 0);
    ssize_t got = recv(wire.peer, frame, sizeof frame, 0);
    assert_int_equal(got, wire.stream.frame_bytes);
    frame_header_decode(frame, &header);
    assert_int_equal(header.length, got - FRAME_HEADER_BYTES);
    assert_int_equal(header.stream, STREAM);
    Ballast__V1__StreamRequest *request = ballast__v1__stream_request__unpack(
        NULL, header.length, frame + FRAME_HEADER_BYTES);
    assert_non_null(request);
    assert_int_equal(request->credits, 1);
    assert_int_equal(request->n_released, 1);
    assert_int_equal(request->released[0]->step, 3);
    assert_int_equal(request->released[0]->index, 1);
    assert_int_equal(request->n_waited_ns, 1);
    assert_true(request->waited_ns[0] == UINT64_MAX);
    ballast__v1__stream_request__free_unpacked(request, NULL);
    close(wire.peer);
    wire.peer = -1;
    assert_int_equal(ballast_plan_release(wire.plan, &wire.stream), -1);
    wire_deinit(&wire);
}

static uint64_t next_value(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* What was read agrees with what protobuf makes of the same bytes. */
static void expect_as_protobuf(const struct ballast_plan_head *head, const uint8_t *message,
                               size_t bytes) {
    Ballast__V1__StreamEnvelope *peer = ballast__v1__stream_envelope__unpack(NULL, bytes, message);
    assert_non_null(peer);
    assert_int_equal(peer->event_case, BALLAST__V1__STREAM_ENVELOPE__EVENT_BATCH);
    const Ballast__V1__BatchEnvelope *batch = peer->batch;
    assert_int_equal(head->step, batch->id->step);
    assert_int_equal(head->dp, batch->id->dp);
    assert_int_equal(head->index, batch->id->index);
    assert_true(head->slab_offset == batch->slab_offset && head->slab_bytes == batch->slab_bytes);
    assert_true(head->slot_generation == batch->slot_generation);
    assert_true(head->payload_hash == batch->payload_hash);
    assert_true(head->loss_denominator == batch->loss_denominator);
    assert_true(head->label_tokens == batch->label_tokens);
    assert_int_equal(head->micro_batches, batch->micro_batches);
    assert_int_equal(batch->plan_digest.len, sizeof head->plan_digest);
    assert_memory_equal(head->plan_digest, batch->plan_digest.data, sizeof head->plan_digest);
    assert_int_equal(head->pool_at != 0, batch->pool != NULL);
    ballast__v1__stream_envelope__free_unpacked(peer, NULL);
}

/* Bytes changed anywhere, or cut: nothing is read beyond them, or written beyond the rows. */
static void damaged_messages_are_read_as_protobuf_reads_them_or_not_at_all(void **state) {
    (void)state;
    struct wire wire;
    struct world_batch batch;
    uint8_t frame[BUFFER];
    uint64_t random = 11;
    uint32_t counts[4] = {0};
    wire_init(&wire);
    world_batch_init(&batch, &wire.memory, 3, 0);
    batch.message.payload_hash = UINT64_MAX;
    size_t bytes = frame_of_batch(&batch, frame) - FRAME_HEADER_BYTES;
    for (uint32_t i = 0; i < 50000; i++) {
        size_t count = i % 5 == 0 ? next_value(&random) % bytes : bytes;
        uint8_t *damaged = malloc(count + 1);
        memcpy(damaged, frame + FRAME_HEADER_BYTES, count);
        for (uint32_t n = 0; n < 1 + i % 2 && count > 0; n++) {
            damaged[next_value(&random) % count] = (uint8_t)next_value(&random);
        }
        int code = ballast_plan_read(wire.plan, &wire.stream, damaged, count);
        const struct ballast_plan_head *head = &wire.head;
        counts[code]++;
        if (code == BALLAST_PLAN_BATCH) {
            assert_true(head->rows <= WORLD_TOKENS);
            int64_t *rows = malloc((size_t)head->rows * sizeof *rows + 1);
            (void)ballast_plan_gather(wire.plan, BALLAST_TOKENS, BALLAST_INT64, rows);
            (void)ballast_plan_gather(wire.plan, BALLAST_LABELS, BALLAST_INT64, rows);
            (void)ballast_plan_gather(wire.plan, BALLAST_POSITIONS, BALLAST_INT64, rows);
            free(rows);
        }
        if (code == BALLAST_PLAN_BATCH || (code == BALLAST_PLAN_REFUSED && i % 8 == 0)) {
            expect_as_protobuf(head, damaged, count);
        }
        free(damaged);
    }
    assert_true(counts[BALLAST_PLAN_BATCH] > 5000 && counts[BALLAST_PLAN_REFUSED] > 5000 &&
                counts[BALLAST_PLAN_OTHER] > 5000);
    world_batch_free(&batch);
    wire_deinit(&wire);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_come_off_the_stream_one_after_the_other),
        cmocka_unit_test(what_is_no_whole_batch_of_the_stream_is_left_to_the_caller),
        cmocka_unit_test(an_impossible_plan_is_refused_with_its_contradiction),
        cmocka_unit_test(a_slot_is_read_within_the_slab_and_while_it_is_the_batchs),
        cmocka_unit_test(a_batch_with_something_to_judge_is_not_plain),
        cmocka_unit_test(nothing_follows_what_the_caller_took_by_another_way),
        cmocka_unit_test(columns_that_are_not_among_the_parts_are_not_gathered),
        cmocka_unit_test(an_object_is_filled_if_its_buffer_is_flat_and_of_a_type_with_room),
        cmocka_unit_test(columns_are_the_documents_and_the_fragments_of_all_ranks),
        cmocka_unit_test(a_release_names_the_batch_and_what_was_waited),
        cmocka_unit_test(damaged_messages_are_read_as_protobuf_reads_them_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
