/* Plans as messages: packed and unpacked again, every field is the plan's; a full arena is NULL and
 * nothing else. */
#include "proto/message.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { MICRO_BATCHES = 3, CP = 2, DOCUMENTS = 4, FRAGMENTS = 9 };

/* A plan of three micro-batches on two ranks, the last of them empty, with every field different.
 */
struct made_plan {
    struct step_plan plan;
    struct micro_batch micro_batches[MICRO_BATCHES];
    struct document documents[DOCUMENTS];
    struct rank_shard shards[MICRO_BATCHES * CP];
    struct fragment fragments[FRAGMENTS];
};

static uint64_t next_value(uint64_t *value) {
    *value = *value * 6364136223846793005u + 1442695040888963407u;
    return *value >> 8;
}

static void make_documents(struct made_plan *made, uint64_t *value) {
    for (uint32_t i = 0; i < DOCUMENTS; i++) {
        made->documents[i] = (struct document){
            .document = next_value(value),
            .epoch = next_value(value),
            .nominal_step = next_value(value),
            .dataset = (uint32_t)next_value(value),
            .offset = (uint32_t)next_value(value),
            .length = (uint32_t)next_value(value),
            .document_length = (uint32_t)next_value(value),
        };
    }
}

static void make_shards(struct made_plan *made, uint64_t *value) {
    static const uint32_t counts[MICRO_BATCHES * CP] = {2, 3, 0, 4, 0, 0};
    uint32_t begin = 0;
    for (uint32_t i = 0; i < MICRO_BATCHES * CP; i++) {
        made->shards[i] = (struct rank_shard){
            .fragment_begin = begin,
            .fragment_count = counts[i],
            .rows = next_value(value),
            .pad_rows = next_value(value),
            .pairs = next_value(value),
            .predicted_ns = next_value(value),
            .kv_rows_in = next_value(value),
        };
        begin += counts[i];
    }
    for (uint32_t i = 0; i < FRAGMENTS; i++) {
        made->fragments[i] = (struct fragment){
            (uint32_t)next_value(value), (uint32_t)next_value(value), (uint32_t)next_value(value)};
    }
}

static void make_micro_batches(struct made_plan *made, uint64_t *value) {
    static const uint32_t documents[MICRO_BATCHES] = {3, 1, 0};
    uint32_t begin = 0;
    for (uint32_t i = 0; i < MICRO_BATCHES; i++) {
        made->micro_batches[i] = (struct micro_batch){
            .dp = i,
            .index = 7 + i,
            .document_begin = begin,
            .document_count = documents[i],
            .shard_begin = i * CP,
            .exchange = EXCHANGE_ALL_GATHER,
            .tokens = next_value(value),
            .pad_tokens = next_value(value),
            .work_ns = next_value(value),
            .attention_ns = next_value(value),
            .other_ns = next_value(value),
            .choice = {.layout = LAYOUT_PER_DOCUMENT,
                       .candidate_count = 2,
                       .candidates = {{LAYOUT_PER_SEQUENCE, 5, 1234567, 0},
                                      {LAYOUT_PER_DOCUMENT, 9, 999, 0}}},
        };
        begin += documents[i];
    }
}

static void make_plan(struct made_plan *made) {
    uint64_t value = 42;
    *made = (struct made_plan){0};
    make_documents(made, &value);
    make_shards(made, &value);
    make_micro_batches(made, &value);
    made->plan = (struct step_plan){
        .step = next_value(&value),
        .policy = "wlb:bands",
        .dp = 3,
        .pp = 1,
        .cp = CP,
        .tp = 1,
        .micro_batch_count = MICRO_BATCHES,
        .document_count = DOCUMENTS,
        .fragment_count = FRAGMENTS,
        .micro_batches = made->micro_batches,
        .documents = made->documents,
        .shards = made->shards,
        .fragments = made->fragments,
        .balance = {1, 2, 3, 4, 5, 6, 7, 8},
        .release = {11, 12, 13, 14, 15, 16, 17},
        .loss_denominator = next_value(&value),
        .label_tokens = next_value(&value),
        .plan_ns = next_value(&value),
    };
    for (unsigned i = 0; i < PLAN_DIGEST_BYTES; i++) {
        made->plan.digest[i] = (uint8_t)(i + 1);
    }
}

/* Packs, and unpacks into the same arena. */
static void *round_trip(struct arena *arena, const ProtobufCMessage *message) {
    size_t bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *packed = arena_alloc(arena, bytes);
    assert_non_null(packed);
    assert_int_equal(protobuf_c_message_pack(message, packed), bytes);
    void *out = protobuf_c_message_unpack(message->descriptor, &arena->allocator, bytes, packed);
    assert_non_null(out);
    return out;
}

static void expect_document(const struct document *document, const Ballast__V1__Document *message) {
    assert_int_equal(message->dataset, document->dataset);
    assert_int_equal(message->document, document->document);
    assert_int_equal(message->offset, document->offset);
    assert_int_equal(message->length, document->length);
    assert_int_equal(message->nominal_step, document->nominal_step);
    assert_int_equal(message->epoch, document->epoch);
    assert_int_equal(message->document_length, document->document_length);
}

static void expect_shard(const struct made_plan *made, const struct rank_shard *shard,
                         const Ballast__V1__RankShard *message, bool fragments) {
    assert_int_equal(message->rows, shard->rows);
    assert_int_equal(message->pad_rows, shard->pad_rows);
    assert_int_equal(message->predicted_ns, shard->predicted_ns);
    assert_int_equal(message->pairs, shard->pairs);
    assert_int_equal(message->kv_rows_in, shard->kv_rows_in);
    assert_int_equal(message->n_fragments, fragments ? shard->fragment_count : 0);
    for (uint32_t i = 0; i < message->n_fragments; i++) {
        const struct fragment *fragment = &made->fragments[shard->fragment_begin + i];
        assert_int_equal(message->fragments[i]->document, fragment->document);
        assert_int_equal(message->fragments[i]->start, fragment->start);
        assert_int_equal(message->fragments[i]->length, fragment->length);
    }
}

static void expect_sharding(const struct made_plan *made, const struct micro_batch *micro_batch,
                            const Ballast__V1__Sharding *message, bool fragments) {
    assert_int_equal(message->layout, BALLAST__V1__LAYOUT__LAYOUT_PER_DOCUMENT);
    assert_int_equal(message->exchange, BALLAST__V1__EXCHANGE__EXCHANGE_ALL_GATHER);
    assert_int_equal(message->n_ranks, CP);
    for (uint32_t cp = 0; cp < CP; cp++) {
        expect_shard(made, &made->shards[micro_batch->shard_begin + cp], message->ranks[cp],
                     fragments);
    }
    assert_int_equal(message->n_candidates, 2);
    assert_int_equal(message->candidates[0]->layout, BALLAST__V1__LAYOUT__LAYOUT_PER_SEQUENCE);
    assert_int_equal(message->candidates[0]->slowest_ns, 1234);
    assert_int_equal(message->candidates[0]->fragments, 5);
    assert_int_equal(message->candidates[1]->layout, BALLAST__V1__LAYOUT__LAYOUT_PER_DOCUMENT);
    assert_int_equal(message->candidates[1]->slowest_ns, 0);
    assert_int_equal(message->candidates[1]->fragments, 9);
}

static void expect_micro_batch(const struct made_plan *made, uint32_t i,
                               const Ballast__V1__MicroBatch *message, bool fragments) {
    const struct micro_batch *micro_batch = &made->micro_batches[i];
    assert_int_equal(message->dp, micro_batch->dp);
    assert_int_equal(message->index, micro_batch->index);
    assert_int_equal(message->tokens, micro_batch->tokens);
    assert_int_equal(message->pad_tokens, micro_batch->pad_tokens);
    assert_int_equal(message->work_ns, micro_batch->work_ns);
    assert_int_equal(message->attention_ns, micro_batch->attention_ns);
    assert_int_equal(message->other_ns, micro_batch->other_ns);
    assert_int_equal(message->n_documents, micro_batch->document_count);
    for (uint32_t d = 0; d < micro_batch->document_count; d++) {
        expect_document(&made->documents[micro_batch->document_begin + d], message->documents[d]);
    }
    expect_sharding(made, micro_batch, message->sharding, fragments);
}

static void expect_frame_of_plan(const struct step_plan *plan,
                                 const Ballast__V1__StepPlan *message) {
    assert_int_equal(message->step, plan->step);
    assert_string_equal(message->policy, plan->policy);
    assert_int_equal(message->digest.len, PLAN_DIGEST_BYTES);
    assert_memory_equal(message->digest.data, plan->digest, PLAN_DIGEST_BYTES);
    assert_int_equal(message->loss_denominator, plan->loss_denominator);
    assert_int_equal(message->label_tokens, plan->label_tokens);
    assert_int_equal(message->plan_ns, plan->plan_ns);
    assert_int_equal(message->n_pools, 0);
    assert_int_equal(message->profile_hash.len, 0);
    const Ballast__V1__Balance *balance = message->balance;
    const uint64_t ratios[] = {balance->attention_ppm,    balance->total_ppm,
                               balance->predicted_ppm,    balance->bound_ppm,
                               balance->context_ppm,      balance->original_ppm,
                               balance->delay_mean_milli, balance->delay_max};
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(ratios[i], 1 + i);
    }
    assert_null(message->measured);
    const Ballast__V1__Release *release = message->release;
    const uint64_t counts[] = {
        release->allowance_ppm, release->urgency_ppm,    release->outliers, release->early,
        release->forced,        release->waiting_tokens, release->leftovers};
    for (unsigned i = 0; i < 7; i++) {
        assert_int_equal(counts[i], 11 + i);
    }
}

static void a_plan_survives_the_wire(void **state) {
    (void)state;
    struct made_plan made;
    make_plan(&made);
    for (int fragments = 0; fragments < 2; fragments++) {
        struct arena arena;
        arena_init(&arena, 1u << 20);
        Ballast__V1__StepPlan *built = message_step_plan(&arena, &made.plan, 0, UINT32_MAX,
                                                         fragments != 0);
        assert_non_null(built);
        Ballast__V1__StepPlan *message = round_trip(&arena, &built->base);
        expect_frame_of_plan(&made.plan, message);
        assert_int_equal(message->n_micro_batches, MICRO_BATCHES);
        for (uint32_t i = 0; i < MICRO_BATCHES; i++) {
            expect_micro_batch(&made, i, message->micro_batches[i], fragments != 0);
        }
        arena_deinit(&arena);
    }
}

static void a_micro_batch_is_packed_and_read_without_its_message(void **state) {
    (void)state;
    struct made_plan made;
    struct arena arena;
    make_plan(&made);
    made.documents[1].offset = 0;
    made.documents[2].document = UINT64_MAX;
    made.fragments[3].start = 127;
    made.fragments[4].start = 128;
    arena_init(&arena, 1u << 20);
    for (uint32_t i = 0; i < MICRO_BATCHES; i++) {
        Ballast__V1__MicroBatch *message = message_micro_batch(&arena, &made.plan, i, true);
        size_t bytes = ballast__v1__micro_batch__get_packed_size(message);
        uint8_t *packed = arena_alloc(&arena, bytes);
        ballast__v1__micro_batch__pack(message, packed);
        size_t capacity = message_wire_bytes_max(&made.plan, i);
        uint8_t *wire = malloc(capacity);
        size_t count = message_wire_micro_batch(&made.plan, i, wire, capacity);
        assert_int_equal(count, bytes);
        assert_memory_equal(wire + capacity - count, packed, count);
        Ballast__V1__MicroBatch *read = message_read_micro_batch(&arena, packed, bytes);
        assert_non_null(read);
        expect_micro_batch(&made, i, read, true);
        free(wire);
    }
    arena_deinit(&arena);
}

static void numbers_of_every_length_are_read(void **state) {
    (void)state;
    struct made_plan made;
    make_plan(&made);
    for (uint32_t bits = 0; bits < 128; bits++) {
        struct arena arena;
        uint8_t wire[4096];
        uint64_t power = 1ull << bits / 2;
        uint64_t number = bits % 2 == 0 ? power - 1 : power;
        arena_init(&arena, 1u << 20);
        made.documents[0].document = number;
        made.documents[0].epoch = number;
        made.documents[0].document_length = (uint32_t)number;
        size_t bytes = message_wire_micro_batch(&made.plan, 0, wire, sizeof wire);
        uint8_t *exact = malloc(bytes);
        memcpy(exact, wire + sizeof wire - bytes, bytes);
        Ballast__V1__MicroBatch *read = message_read_micro_batch(&arena, exact, bytes);
        assert_non_null(read);
        expect_micro_batch(&made, 0, read, true);
        free(exact);
        arena_deinit(&arena);
    }
}

/* Whether both say the same, as far as this side knows the fields. */
static void expect_equal_messages(Ballast__V1__MicroBatch *read, Ballast__V1__MicroBatch *peer) {
    size_t bytes = ballast__v1__micro_batch__get_packed_size(read);
    assert_int_equal(read->n_documents, peer->n_documents);
    assert_int_equal(read->tokens, peer->tokens);
    assert_int_equal(read->other_ns, peer->other_ns);
    if (ballast__v1__micro_batch__get_packed_size(peer) == bytes) {
        uint8_t *packed = malloc(2 * bytes + 1);
        (void)ballast__v1__micro_batch__pack(read, packed);
        (void)ballast__v1__micro_batch__pack(peer, packed + bytes);
        assert_memory_equal(packed, packed + bytes, bytes);
        free(packed);
    }
}

/* Bytes changed anywhere, or cut: nothing is read beyond them. */
static void damaged_bytes_are_read_as_protobuf_reads_them_or_not_at_all(void **state) {
    (void)state;
    struct made_plan made;
    uint64_t random = 7;
    uint8_t whole[4096];
    make_plan(&made);
    size_t bytes = message_wire_micro_batch(&made.plan, 0, whole, sizeof whole);
    for (uint32_t i = 0; i < 50000; i++) {
        struct arena arena;
        size_t count = i % 3 == 0 ? next_value(&random) % bytes : bytes;
        uint8_t *damaged = malloc(count + 1);
        memcpy(damaged, whole + sizeof whole - bytes, count);
        for (uint32_t n = 0; n < 1 + i % 2 && count > 0; n++) {
            damaged[next_value(&random) % count] = (uint8_t)next_value(&random);
        }
        arena_init(&arena, 1u << 20);
        Ballast__V1__MicroBatch *read = message_read_micro_batch(&arena, damaged, count);
        Ballast__V1__MicroBatch *peer = ballast__v1__micro_batch__unpack(&arena.allocator, count,
                                                                         damaged);
        if (read != NULL) {
            assert_non_null(peer);
            expect_equal_messages(read, peer);
        }
        arena_deinit(&arena);
        free(damaged);
    }
}

static void pages_of_a_plan_are_cut_at_its_end(void **state) {
    (void)state;
    struct made_plan made;
    make_plan(&made);
    for (uint32_t first = 0; first < MICRO_BATCHES + 2; first++) {
        for (uint32_t count = 0; count < MICRO_BATCHES + 2; count++) {
            struct arena arena;
            arena_init(&arena, 1u << 20);
            Ballast__V1__StepPlan *page = message_step_plan(&arena, &made.plan, first, count, true);
            assert_non_null(page);
            uint32_t rest = first < MICRO_BATCHES ? MICRO_BATCHES - first : 0;
            assert_int_equal(page->n_micro_batches, count < rest ? count : rest);
            for (uint32_t i = 0; i < page->n_micro_batches; i++) {
                expect_micro_batch(&made, first + i, page->micro_batches[i], true);
            }
            arena_deinit(&arena);
        }
    }
}

/* Every allocation fails once: the bound grows until the plan fits. */
static void a_full_arena_is_null_at_every_allocation(void **state) {
    (void)state;
    struct made_plan made;
    make_plan(&made);
    Ballast__V1__StepPlan *page = NULL;
    size_t bytes_max = 0;
    for (; page == NULL; bytes_max += 16) {
        struct arena arena;
        arena_init(&arena, bytes_max);
        page = message_step_plan(&arena, &made.plan, 0, MICRO_BATCHES, true);
        assert_true(arena.held_bytes <= bytes_max);
        arena_deinit(&arena);
    }
    assert_true(bytes_max > 1000);
}

static void unpacking_stays_within_the_arena_at_every_bound(void **state) {
    (void)state;
    struct made_plan made;
    struct arena arena;
    make_plan(&made);
    arena_init(&arena, 1u << 20);
    Ballast__V1__StepPlan *built = message_step_plan(&arena, &made.plan, 0, MICRO_BATCHES, true);
    size_t bytes = ballast__v1__step_plan__get_packed_size(built);
    uint8_t *packed = arena_alloc(&arena, bytes);
    ballast__v1__step_plan__pack(built, packed);
    Ballast__V1__StepPlan *plan = NULL;
    for (size_t bytes_max = 0; plan == NULL; bytes_max += 16) {
        struct arena small;
        arena_init(&small, bytes_max);
        plan = ballast__v1__step_plan__unpack(&small.allocator, bytes, packed);
        assert_true(small.held_bytes <= bytes_max);
        arena_deinit(&small);
    }
    arena_deinit(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_survives_the_wire),
        cmocka_unit_test(a_micro_batch_is_packed_and_read_without_its_message),
        cmocka_unit_test(numbers_of_every_length_are_read),
        cmocka_unit_test(damaged_bytes_are_read_as_protobuf_reads_them_or_not_at_all),
        cmocka_unit_test(pages_of_a_plan_are_cut_at_its_end),
        cmocka_unit_test(a_full_arena_is_null_at_every_allocation),
        cmocka_unit_test(unpacking_stays_within_the_arena_at_every_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
