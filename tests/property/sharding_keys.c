/* The exchange of needed keys, key by key: what ballast_key_runs and ballast_key_counts say of a
 * batch, against a byte for every (rank, key). All small mixes in every layout at every level, then
 * random large ones. */
#include "client/ballast.h"
#include "client/rank_verify.h"
#include "sharding/keys.h"
#include "sharding/select.h"

#include "splitmix.h"

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DOCUMENTS_MAX 10000u
#define CP_MAX        64u
#define ROWS_MAX      (1u << 18)
#define FRAGMENTS_MAX (4u * DOCUMENTS_MAX)

static const struct layout_options every = {LAYOUTS_ALLOWED, UINT32_MAX, {0}};

/* A batch as a client sees it, dealt in one layout. */
struct dealt_batch {
    struct ballast_batch batch;
    struct ballast_document documents[DOCUMENTS_MAX];
    struct ballast_shard shards[CP_MAX];
    struct ballast_fragment fragments[FRAGMENTS_MAX];
    uint32_t begins[DOCUMENTS_MAX + 1]; /* rows of the packed sequence */
};

static struct dealt_batch dealt;
static uint8_t owners[ROWS_MAX];    /* by row */
static uint16_t partials[ROWS_MAX]; /* gradients that come to a row's owner */
static uint64_t received[CP_MAX][CP_MAX];
static uint64_t sent[CP_MAX][CP_MAX];

static void deal_documents(const struct packed_sequence *sequence) {
    dealt.begins[0] = 0;
    for (uint32_t i = 0; i < sequence->documents; i++) {
        dealt.documents[i].length = sequence->lengths[i];
        dealt.begins[i + 1] = dealt.begins[i] + sequence->lengths[i];
    }
    dealt.batch = (struct ballast_batch){.documents = dealt.documents,
                                         .document_count = sequence->documents,
                                         .shards = dealt.shards,
                                         .exchange = 2}; /* ballast.proto's needed-only */
}

/* Copies what the dealer has dealt, and marks who owns each row. */
static void deal_shards(const struct packed_sequence *sequence, struct layout_dealer *dealer) {
    uint32_t count_all = 0;
    dealt.batch.group_ranks = dealer->cp;
    for (uint32_t rank = 0; rank < dealer->cp; rank++) {
        uint32_t count;
        const struct fragment *from = layout_dealt(dealer, rank, &count);
        struct ballast_shard *shard = &dealt.shards[rank];
        assert_true(count_all + count <= FRAGMENTS_MAX);
        *shard = (struct ballast_shard){.fragment_count = count,
                                        .fragments = dealt.fragments + count_all};
        for (uint32_t i = 0; i < count; i++) {
            dealt.fragments[count_all++] = (struct ballast_fragment){
                from[i].document, from[i].start, from[i].length, (uint32_t)shard->rows};
            memset(owners + dealt.begins[from[i].document] + from[i].start, (int)rank,
                   from[i].length);
            shard->rows += from[i].length;
        }
        shard->pad_rows = (sequence->tokens + sequence->pad_tokens) / dealer->cp - shard->rows;
        shard->rows += shard->pad_rows;
        dealt.batch.rows = shard->rows;
    }
}

/* Marks with 1 the keys that queries of the rank see. */
static void mark_seen(const struct ballast_shard *shard, uint8_t *seen) {
    for (uint32_t i = 0; i < shard->fragment_count; i++) {
        const struct ballast_fragment *fragment = &shard->fragments[i];
        memset(seen + dealt.begins[fragment->document], 1, fragment->start + fragment->length);
    }
}

/* The runs of one pair: of rows that the owner has at their place, seen, and not had before. */
static const char *pair_fault(uint32_t reader, uint32_t owner, uint8_t *seen, uint64_t *rows) {
    static struct ballast_key_run runs[FRAGMENTS_MAX];
    int count = ballast_key_runs(&dealt.batch, reader, owner, runs, FRAGMENTS_MAX);
    uint32_t row = 0;
    if (count < 0 || (uint32_t)count > dealt.shards[owner].fragment_count) {
        return "more runs than the owner has fragments";
    }
    *rows = 0;
    for (int i = 0; i < count; i++) {
        uint32_t first = dealt.begins[runs[i].document] + runs[i].start;
        if (runs[i].length == 0 || runs[i].row < row) {
            return "an empty run, or out of the order of the owner's rows";
        }
        row = runs[i].row + runs[i].length;
        *rows += runs[i].length;
        for (uint32_t k = first; k < first + runs[i].length; k++) {
            if (owners[k] != owner) {
                return "a key from a rank that has it not";
            }
            if (seen[k] != 1) {
                return seen[k] == 0 ? "a key that no query sees" : "a key twice";
            }
            seen[k] = 2;
            partials[k]++;
        }
    }
    return count > 0 && ballast_key_runs(&dealt.batch, reader, owner, runs, (size_t)count - 1) !=
                            -ENOBUFS
               ? "more runs than fit"
               : NULL;
}

/* A dealer has one rank's fragments at a time. */
static uint64_t needed_from(struct layout_dealer *dealer, uint32_t reader, uint32_t owner) {
    static struct fragment fragments[FRAGMENTS_MAX];
    uint32_t count;
    uint32_t owner_count;
    const struct fragment *from = layout_dealt(dealer, reader, &count);
    memcpy(fragments, from, count * sizeof *fragments);
    from = layout_dealt(dealer, owner, &owner_count);
    return keys_needed_from(fragments, count, from, owner_count);
}

static const char *reader_fault(const struct packed_sequence *sequence, uint32_t reader,
                                struct layout_dealer *dealer) {
    static uint8_t seen[ROWS_MAX];
    uint64_t came = 0;
    uint32_t count;
    memset(seen, 0, sequence->tokens);
    mark_seen(&dealt.shards[reader], seen);
    dealt.batch.group_rank = reader;
    ballast_key_counts(&dealt.batch, received[reader], sent[reader]);
    for (uint32_t owner = 0; owner < dealer->cp; owner++) {
        uint64_t rows = 0;
        const char *fault = owner == reader ? NULL : pair_fault(reader, owner, seen, &rows);
        if (fault != NULL || rows != received[reader][owner]) {
            return fault != NULL ? fault : "a count that is not the runs'";
        }
        if (rows != (owner == reader ? 0 : needed_from(dealer, reader, owner))) {
            return "keys_needed_from is another number";
        }
        came += rows;
    }
    for (uint64_t k = 0; k < sequence->tokens; k++) {
        if (seen[k] == 1 && owners[k] != reader) {
            return "a key that a query sees does not come";
        }
    }
    const struct fragment *fragments = layout_dealt(dealer, reader, &count);
    const char *why = NULL;
    dealt.batch.fragments = dealt.shards[reader].fragments;
    dealt.batch.fragment_count = dealt.shards[reader].fragment_count;
    if (reader % 7 == 0 && rank_verify_rows(&dealt.batch, &why) < 0) {
        return why;
    }
    return came != keys_needed(fragments, count) ? "keys_needed is another number" : NULL;
}

/* As many gradients come home for a key as other ranks see it. */
static const char *gradient_fault(const struct packed_sequence *sequence, uint32_t cp) {
    static uint8_t seen[ROWS_MAX];
    for (uint32_t rank = 0; rank < cp; rank++) {
        memset(seen, 0, sequence->tokens);
        mark_seen(&dealt.shards[rank], seen);
        for (uint64_t k = 0; k < sequence->tokens; k++) {
            partials[k] = (uint16_t)(partials[k] - (seen[k] == 1 && owners[k] != rank));
        }
    }
    for (uint64_t k = 0; k < sequence->tokens; k++) {
        if (partials[k] != 0) {
            return "a gradient is missing, or of a rank that did not see the key";
        }
    }
    return NULL;
}

static const char *deal_fault(const struct packed_sequence *sequence,
                              struct layout_dealer *dealer) {
    deal_shards(sequence, dealer);
    memset(partials, 0, sequence->tokens * sizeof partials[0]);
    for (uint32_t reader = 0; reader < dealer->cp; reader++) {
        const char *fault = reader_fault(sequence, reader, dealer);
        if (fault != NULL) {
            return fault;
        }
    }
    for (uint32_t a = 0; a < dealer->cp; a++) {
        for (uint32_t b = 0; b < dealer->cp; b++) {
            if (sent[a][b] != received[b][a]) {
                return "sender and receiver count differently";
            }
        }
    }
    return gradient_fault(sequence, dealer->cp);
}

static void expect_sound(const struct packed_sequence *sequence, struct layout_dealer *dealer,
                         uint64_t seed) {
    deal_documents(sequence);
    for (enum layout layout = LAYOUT_PER_SEQUENCE; layout <= LAYOUT_CONTIGUOUS; layout++) {
        uint32_t levels = spread_levels(layout) > 0 ? spread_levels(layout) : 1;
        for (uint32_t level = 0; level < levels; level++) {
            assert_true(layout_deal(dealer, layout, level));
            const char *fault = deal_fault(sequence, dealer);
            if (fault != NULL) {
                fail_msg("seed %" PRIu64 ", %s level %" PRIu32 ", cp %" PRIu32 ", %" PRIu32
                         " documents of %" PRIu64 " tokens: %s",
                         seed, layout_name(layout), level, dealer->cp, sequence->documents,
                         sequence->tokens, fault);
            }
        }
    }
}

static void try_sequence(const uint32_t *lengths, uint32_t documents, uint32_t cp,
                         uint32_t more_units, uint64_t seed) {
    struct packed_sequence sequence = {.lengths = lengths, .documents = documents};
    struct layout_dealer dealer;
    struct tile_model model;
    uint64_t unit = 2 * (uint64_t)cp;
    void *memory = malloc(layout_dealer_bytes(&every, documents, cp) + 8);
    assert_non_null(memory);
    assert_int_equal(tile_model_analytic(128, 8, 2, 0, &model), 0);
    for (uint32_t i = 0; i < documents; i++) {
        sequence.tokens += lengths[i];
    }
    assert_true(sequence.tokens <= ROWS_MAX);
    sequence.pad_tokens = (unit - sequence.tokens % unit) % unit + more_units * unit;
    sequence.pad_tokens += sequence.tokens + sequence.pad_tokens == 0 ? unit : 0;
    layout_dealer_init(&dealer, memory, &every, documents, cp);
    layout_begin(&dealer, &sequence, &model);
    expect_sound(&sequence, &dealer, seed);
    free(memory);
}

/* Up to three documents of 1 to 7 tokens on 1 to 4 ranks. */
static void small_mixes_exchange_exactly_the_keys_that_are_seen(void **state) {
    (void)state;
    for (uint32_t documents = 0; documents <= 3; documents++) {
        uint32_t lengths[3] = {1, 1, 1};
        bool more = true;
        while (more) {
            for (uint32_t cp = 1; cp <= 4; cp++) {
                try_sequence(lengths, documents, cp, lengths[0] % 2, 0);
            }
            more = false;
            for (uint32_t i = 0; i < documents && !more; i++) {
                more = lengths[i] < 7;
                lengths[i] = more ? lengths[i] + 1 : 1;
            }
        }
    }
}

static void large_mixes_exchange_exactly_the_keys_that_are_seen(void **state) {
    (void)state;
    static const uint32_t cps[] = {1, 2, 3, 5, 7, 8, 12, 16, 64};
    static uint32_t lengths[256];
    for (uint64_t seed = 1; seed <= (getenv("BALLAST_TEST_FULL") != NULL ? 2000 : 60); seed++) {
        uint64_t random = seed;
        uint32_t cp = cps[splitmix_between(&random, 0, 8)];
        uint32_t documents = splitmix_between(&random, 0, 255);
        uint32_t longest = 1u << splitmix_between(&random, 0, 6);
        for (uint32_t i = 0; i < documents; i++) {
            bool heavy = splitmix_between(&random, 0, 50) == 0;
            lengths[i] = splitmix_between(&random, 1, heavy ? 4000 : longest);
        }
        try_sequence(lengths, documents, cp, splitmix_between(&random, 0, 2), seed);
    }
}

/* A full window, ten thousand documents, one token, nothing; no rank count divides any. */
static void extreme_sequences_exchange_exactly_the_keys_that_are_seen(void **state) {
    static const uint32_t cps[] = {1, 3, 5, 7, 12, 64};
    static uint32_t ones[DOCUMENTS_MAX];
    const uint32_t full = 65536;
    const uint32_t one = 1;
    (void)state;
    for (uint32_t i = 0; i < DOCUMENTS_MAX; i++) {
        ones[i] = 1 + i % 3;
    }
    for (size_t i = 0; i < sizeof cps / sizeof cps[0]; i++) {
        try_sequence(&full, 1, cps[i], 0, 0);
        try_sequence(&one, 1, cps[i], 0, 0);
        try_sequence(&one, 0, cps[i], 0, 0);
    }
    try_sequence(ones, DOCUMENTS_MAX, 5, 0, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_mixes_exchange_exactly_the_keys_that_are_seen),
        cmocka_unit_test(large_mixes_exchange_exactly_the_keys_that_are_seen),
        cmocka_unit_test(extreme_sequences_exchange_exactly_the_keys_that_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
