/* Gathering against the plainest possible reference: every row of every rank is looked up in its
 * document, one by one. Random documents, splits and layouts; and a writer that reuses the slot
 * while it is read. */
#include "client_world.h"

#include "client/batch.h"
#include "sharding/layout.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { DOCUMENTS_MAX = 7, LENGTH_MAX = 23, ROWS_MAX = 512, FRAGMENTS_MAX = 2 * DOCUMENTS_MAX + 2 };

static uint64_t random_state;

static uint32_t random_below(uint32_t bound) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % bound);
}

/* Token at `position` of a whole document, so that a part's successor is known independently. */
static uint32_t token_at(uint32_t document, uint64_t position, uint32_t token_bytes) {
    uint32_t token = (document + 1) * 2654435761u ^ (uint32_t)position * 40503u;
    return token_bytes == 2 ? token & 0xffffu : token & 0x7fffffffu;
}

static void put_token(uint8_t *at, uint32_t token, uint32_t token_bytes) {
    if (token_bytes == 2) {
        uint16_t narrow = (uint16_t)token;
        memcpy(at, &narrow, sizeof narrow);
    } else {
        memcpy(at, &token, sizeof token);
    }
}

/* A micro-batch of random parts: as documents, as lengths, and as the bytes of its slot. */
struct sample {
    struct document documents[DOCUMENTS_MAX];
    uint32_t lengths[DOCUMENTS_MAX];
    struct packed_sequence sequence;
    uint64_t slot_bytes;
    uint32_t token_bytes;
};

static void sample_make(struct sample *sample, uint32_t cp, uint8_t *payload) {
    uint32_t count = random_below(DOCUMENTS_MAX + 1), token_bytes = 2u << random_below(2);
    *sample = (struct sample){.token_bytes = token_bytes};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t length = 1 + random_below(LENGTH_MAX), offset = random_below(3) * random_below(9);
        uint32_t rest = random_below(2) * random_below(5);
        sample->lengths[i] = length;
        sample->documents[i] = (struct document){.document = i,
                                                 .offset = offset,
                                                 .length = length,
                                                 .document_length = offset + length + rest};
        for (uint32_t j = 0; j < length; j++) {
            put_token(payload + sample->slot_bytes, token_at(i, offset + j, token_bytes),
                      token_bytes);
            sample->slot_bytes += token_bytes;
        }
        sample->sequence.tokens += length;
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct document *document = &sample->documents[i];
        if (!document_is_last_part(document)) {
            put_token(payload + sample->slot_bytes,
                      token_at(i, document->offset + document->length, token_bytes), token_bytes);
            sample->slot_bytes += token_bytes;
        }
    }
    uint64_t unit = 2ull * cp, rounded = (sample->sequence.tokens / unit + 1) * unit;
    sample->sequence.lengths = sample->lengths;
    sample->sequence.documents = count;
    sample->sequence.pad_tokens = rounded - sample->sequence.tokens;
}

static int64_t expected_value(const struct sample *sample, const struct fragment *fragment,
                              uint32_t row, enum ballast_column column) {
    const struct document *document = &sample->documents[fragment->document];
    uint64_t position = (uint64_t)document->offset + fragment->start + row;
    switch (column) {
    case BALLAST_TOKENS:
        return token_at(fragment->document, position, sample->token_bytes);
    case BALLAST_LABELS:
        return position + 1 == document->document_length
                   ? -100
                   : (int64_t)token_at(fragment->document, position + 1, sample->token_bytes);
    case BALLAST_POSITIONS:
        break;
    }
    return fragment->start + row;
}

static int64_t element(const void *out, enum ballast_type type, uint64_t row) {
    return type == BALLAST_INT32 ? ((const int32_t *)out)[row] : ((const int64_t *)out)[row];
}

static void expect_column(const struct sample *sample, const struct batch *batch,
                          const struct fragment *fragments, enum ballast_column column,
                          enum ballast_type type) {
    int64_t storage[ROWS_MAX];
    uint64_t row = 0, rows = batch->view.rows;
    memset(storage, 0x5a, sizeof storage);
    int64_t canary = element(storage, type, rows);
    assert_int_equal(batch_gather(batch, column, type, storage, rows - 1), -ENOBUFS);
    assert_int_equal(batch_gather(batch, column, type, storage, rows), rows);
    for (uint32_t i = 0; i < batch->view.fragment_count; i++) {
        assert_int_equal(batch->view.fragments[i].row, row);
        for (uint32_t j = 0; j < fragments[i].length; j++) {
            assert_int_equal(element(storage, type, row++),
                             expected_value(sample, &fragments[i], j, column));
        }
    }
    assert_int_equal(rows - row, batch->view.pad_rows);
    for (; row < rows; row++) {
        assert_int_equal(element(storage, type, row), column == BALLAST_LABELS ? -100 : 0);
    }
    assert_int_equal(element(storage, type, rows), canary);
}

static void expect_rank(const struct sample *sample, enum layout layout, uint32_t cp, uint32_t rank,
                        struct mapping *mapping, uint64_t generation) {
    struct fragment fragments[FRAGMENTS_MAX];
    uint64_t rows = (sample->sequence.tokens + sample->sequence.pad_tokens) / cp, own = 0;
    uint32_t count = layout_fragments(layout, &sample->sequence, cp, rank, fragments,
                                      FRAGMENTS_MAX);
    assert_true(count <= FRAGMENTS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        own += fragments[i].length;
    }
    struct world_batch made;
    world_batch_make(&made, sample->documents, sample->sequence.documents, fragments, count, rows,
                     rows - own, cp, rank);
    made.message.slab_bytes = sample->slot_bytes;
    made.message.slot_generation = generation;
    struct ballast_job job = {.cp = cp, .tokens_max = 1u << 20, .token_bytes = sample->token_bytes};
    struct batch_context context = {
        .job = &job, .arena = &made.arena, .mapping = mapping, .cp = rank, .slot_wanted = true};
    struct error error = {0};
    struct batch batch;
    batch_init(&batch);
    assert_int_equal(batch_read(&batch, world_batch_envelope(&made), &context, &error), 0);
    batch.held = true;
    for (int column = BALLAST_TOKENS; column <= BALLAST_POSITIONS; column++) {
        expect_column(sample, &batch, fragments, (enum ballast_column)column, BALLAST_INT32);
        expect_column(sample, &batch, fragments, (enum ballast_column)column, BALLAST_INT64);
    }
    batch_deinit(&batch);
    world_batch_free(&made);
}

static void every_row_is_what_its_document_says(void **state) {
    (void)state;
    struct world_memory memory;
    world_memory_create(&memory, 1u << 16);
    struct mapping *mapping = world_memory_map(&memory);
    for (uint64_t seed = 1; seed <= 400; seed++) {
        struct sample sample;
        random_state = seed;
        uint32_t cp = 1 + random_below(4);
        enum layout layout = random_below(2) == 0 ? LAYOUT_PER_SEQUENCE : LAYOUT_PER_DOCUMENT;
        world_memory_stamp(&memory, 0, seed);
        sample_make(&sample, cp, memory.bytes + MAPPING_SLOT_HEADER_BYTES);
        for (uint32_t rank = 0; rank < cp; rank++) {
            expect_rank(&sample, layout, cp, rank, mapping, seed);
        }
    }
    mapping_drop(mapping);
    world_memory_destroy(&memory);
}

/* The writer reuses the slot once for each time it is asked, as the daemon does: the next
 * generation, a fence, then the bytes. Every token of a generation is its low 16 bits. */
struct reuse {
    uint8_t *slot;
    uint32_t tokens;
    atomic_uint asked;
    atomic_uint done;
    atomic_bool stop;
};

static void reuse_once(struct reuse *reuse, uint64_t generation) {
    uint16_t *tokens = (uint16_t *)(reuse->slot + MAPPING_SLOT_HEADER_BYTES);
    atomic_store((_Atomic uint64_t *)reuse->slot, generation);
    atomic_thread_fence(memory_order_seq_cst);
    for (uint32_t i = 0; i < reuse->tokens; i++) {
        tokens[i] = (uint16_t)generation;
    }
}

static void *reuse_run(void *argument) {
    struct reuse *reuse = argument;
    while (!atomic_load(&reuse->stop)) {
        unsigned asked = atomic_load(&reuse->asked);
        if (asked == atomic_load(&reuse->done)) {
            sched_yield();
            continue;
        }
        reuse_once(reuse, asked);
        atomic_store(&reuse->done, asked);
    }
    return NULL;
}

/* Gathers while the slot is reused, until the reader was overtaken often enough. Returns how often
 * it was; every other read must be of one generation. */
static unsigned gather_against(struct reuse *reuse, struct batch *batch, int32_t *rows,
                               unsigned reads_max, unsigned stale_wanted) {
    unsigned stale = 0;
    for (unsigned i = 0; i < reads_max && stale < stale_wanted; i++) {
        while (atomic_load(&reuse->done) != atomic_load(&reuse->asked)) {
            sched_yield();
        }
        batch->slot_generation = mapping_generation_begin(reuse->slot);
        atomic_fetch_add(&reuse->asked, 1);
        int64_t got = batch_gather(batch, BALLAST_TOKENS, BALLAST_INT32, rows, reuse->tokens);
        if (got == -ESTALE) {
            stale++;
            continue;
        }
        assert_int_equal(got, reuse->tokens);
        for (uint32_t row = 0; row < reuse->tokens; row++) {
            assert_int_equal(rows[row], batch->slot_generation & 0xffff);
        }
    }
    return stale;
}

static void a_slot_that_is_reused_while_it_is_read_is_stale_and_never_mixed(void **state) {
    (void)state;
    enum { TOKENS = 1 << 20 };
    struct world_memory memory;
    world_memory_create(&memory, MAPPING_SLOT_HEADER_BYTES + 2 * TOKENS);
    struct mapping *mapping = world_memory_map(&memory);
    struct reuse reuse = {.slot = memory.bytes, .tokens = TOKENS, .asked = 1, .done = 1};
    struct document document = {.length = TOKENS, .document_length = TOKENS};
    struct fragment fragment = {0, 0, TOKENS};
    struct world_batch made;
    struct ballast_job job = {.cp = 1, .tokens_max = TOKENS, .token_bytes = 2};
    struct batch_context context = {
        .job = &job, .arena = &made.arena, .mapping = mapping, .slot_wanted = true};
    struct batch batch;
    struct error error = {0};
    int32_t *rows = calloc(TOKENS, sizeof *rows);
    world_batch_make(&made, &document, 1, &fragment, 1, TOKENS, 0, 1, 0);
    made.message.slab_bytes = TOKENS * 2;
    batch_init(&batch);
    assert_int_equal(batch_read(&batch, world_batch_envelope(&made), &context, &error), 0);
    pthread_t writer;
    reuse_once(&reuse, 1);
    assert_int_equal(pthread_create(&writer, NULL, reuse_run, &reuse), 0);
    unsigned stale = gather_against(&reuse, &batch, rows, 2000, 20);
    atomic_store(&reuse.stop, true);
    pthread_join(writer, NULL);
    assert_true(stale > 0);
    free(rows);
    batch_deinit(&batch);
    world_batch_free(&made);
    mapping_drop(mapping);
    world_memory_destroy(&memory);
}

static void cu_seqlens_are_the_prefix_sums_of_both_sides(void **state) {
    (void)state;
    static const struct ballast_fragment fragments[] = {{0, 5, 3, 0}, {2, 0, 7, 3}, {2, 9, 1, 10}};
    struct ballast_batch batch = {.fragment_count = 3, .fragments = fragments};
    static const int32_t q_expected[] = {0, 3, 10, 11}, k_expected[] = {0, 8, 15, 25};
    int32_t q[4], k[4];
    assert_int_equal(ballast_cu_seqlens(&batch, q, k, 4), 4);
    assert_memory_equal(q, q_expected, sizeof q);
    assert_memory_equal(k, k_expected, sizeof k);
    assert_int_equal(ballast_cu_seqlens(&batch, NULL, NULL, 4), 4);
    assert_int_equal(ballast_cu_seqlens(&batch, q, k, 3), -ENOBUFS);
    batch.fragment_count = 0;
    assert_int_equal(ballast_cu_seqlens(&batch, q, k, 1), 1);
    static const struct ballast_fragment large[] = {{0, INT32_MAX, 1, 0}};
    struct ballast_batch too_large = {.fragment_count = 1, .fragments = large};
    assert_int_equal(ballast_cu_seqlens(&too_large, q, k, 4), -ERANGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_what_its_document_says),
        cmocka_unit_test(a_slot_that_is_reused_while_it_is_read_is_stale_and_never_mixed),
        cmocka_unit_test(cu_seqlens_are_the_prefix_sums_of_both_sides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
