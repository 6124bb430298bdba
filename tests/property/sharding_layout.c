/* Every row of every layout. Those that follow from the lengths alone against a dealer that deals
 * row by row; those that weigh documents by what must hold of any: all pairs of a query and a key
 * that it may see are computed once. Small worlds are exhausted, large ones drawn. */
#include "sharding/select.h"

#include "splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DOCUMENTS_MAX 128u
#define CP_MAX        16u
#define ROWS_MAX      (1u << 17)
#define PAD           UINT32_MAX

struct row {
    uint32_t document; /* PAD: a pad row */
    uint32_t position;
};

struct hand {
    struct row *rows;
    uint64_t count;
};

/* The rows of each rank in its own order, pads included. */
struct deal {
    uint32_t cp;
    struct hand hands[CP_MAX];
    uint64_t columns[2 * CP_MAX]; /* real rows of each column */
};

static struct row row_pool[CP_MAX][ROWS_MAX];

static void deal_init(struct deal *deal, uint32_t cp) {
    memset(deal, 0, sizeof *deal);
    deal->cp = cp;
    for (uint32_t rank = 0; rank < cp; rank++) {
        deal->hands[rank].rows = row_pool[rank];
    }
}

static void deal_row(struct deal *deal, uint32_t rank, uint32_t document, uint64_t position) {
    struct hand *hand = &deal->hands[rank];
    assert_true(hand->count < ROWS_MAX);
    hand->rows[hand->count++] = (struct row){document, (uint32_t)position};
}

static uint32_t column_rank(uint32_t column, uint32_t cp) {
    return column < cp ? column : 2 * cp - 1 - column;
}

/* Walks the padded sequence row by row; the chunk a row falls into says whose it is. */
static void literal_per_sequence(const struct packed_sequence *sequence, struct deal *deal) {
    uint64_t chunk_rows = (sequence->tokens + sequence->pad_tokens) / (2 * deal->cp);
    uint64_t row = 0;
    for (uint32_t document = 0; document < sequence->documents; document++) {
        for (uint32_t position = 0; position < sequence->lengths[document]; position++) {
            uint32_t column = (uint32_t)(row++ / chunk_rows);
            deal->columns[column]++;
            deal_row(deal, column_rank(column, deal->cp), document, position);
        }
    }
    for (; row < sequence->tokens + sequence->pad_tokens; row++) {
        deal_row(deal, column_rank((uint32_t)(row / chunk_rows), deal->cp), PAD, 0);
    }
}

/* Columns get the rows that divide, then one each in turn; chunks lie in column order. */
static void literal_per_document(const struct packed_sequence *sequence, struct deal *deal) {
    uint32_t columns = 2 * deal->cp;
    uint32_t pointer = 0;
    for (uint32_t document = 0; document < sequence->documents; document++) {
        uint32_t sizes[2 * CP_MAX];
        for (uint32_t column = 0; column < columns; column++) {
            sizes[column] = sequence->lengths[document] / columns;
        }
        for (uint32_t i = 0; i < sequence->lengths[document] % columns; i++) {
            sizes[pointer]++;
            pointer = (pointer + 1) % columns;
        }
        uint32_t position = 0;
        for (uint32_t column = 0; column < columns; column++) {
            deal->columns[column] += sizes[column];
            for (uint32_t i = 0; i < sizes[column]; i++) {
                deal_row(deal, column_rank(column, deal->cp), document, position++);
            }
        }
    }
    uint64_t rank_rows = (sequence->tokens + sequence->pad_tokens) / deal->cp;
    for (uint32_t rank = 0; rank < deal->cp; rank++) {
        while (deal->hands[rank].count < rank_rows) {
            deal_row(deal, rank, PAD, 0);
        }
    }
}

static const char *fragment_fault(const struct fragment *fragments, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (fragments[i].length == 0) {
            return "an empty fragment";
        }
        if (i > 0 && fragments[i].document == fragments[i - 1].document &&
            fragments[i - 1].start + fragments[i - 1].length == fragments[i].start) {
            return "touching runs in two fragments";
        }
    }
    return NULL;
}

/* The fragments, spelled out row by row, are the hand up to its pads, and nothing follows those. */
static const char *hand_fault(const struct fragment *fragments, uint32_t count,
                              const struct hand *hand) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t position = 0; position < fragments[i].length; position++, at++) {
            if (at >= hand->count || hand->rows[at].document != fragments[i].document ||
                hand->rows[at].position != fragments[i].start + position) {
                return "a row that was dealt to somebody else, or in another order";
            }
        }
    }
    for (; at < hand->count; at++) {
        if (hand->rows[at].document != PAD) {
            return "a row in no fragment, or after a pad";
        }
    }
    return NULL;
}

static const char *rank_fault(enum layout layout, const struct packed_sequence *sequence,
                              const struct deal *deal, uint32_t rank) {
    uint32_t count = layout_fragments(layout, sequence, deal->cp, rank, NULL, 0);
    if (count > layout_rank_fragments_max(sequence->documents)) {
        return "more fragments than the bound says";
    }
    struct fragment *fragments = malloc((count + 1) * sizeof fragments[0]);
    assert_non_null(fragments);
    uint32_t written = layout_fragments(layout, sequence, deal->cp, rank, fragments, count);
    const char *fault = written != count ? "the count depends on the capacity" : NULL;
    fault = fault != NULL ? fault : fragment_fault(fragments, count);
    fault = fault != NULL ? fault : hand_fault(fragments, count, &deal->hands[rank]);
    free(fragments);
    uint64_t rows = (sequence->tokens + sequence->pad_tokens) / deal->cp;
    return fault == NULL && deal->hands[rank].count != rows ? "ranks have unequal rows" : fault;
}

static uint64_t rank_pairs(const struct packed_sequence *sequence, uint32_t cp, uint32_t rank) {
    static struct fragment fragments[2 * DOCUMENTS_MAX + 2];
    uint32_t count = layout_fragments(LAYOUT_PER_DOCUMENT, sequence, cp, rank, fragments,
                                      2 * DOCUMENTS_MAX + 2);
    uint64_t pairs = 0;
    for (uint32_t i = 0; i < count; i++) {
        pairs += fragment_pairs(fragments[i]);
    }
    return pairs;
}

struct extent {
    uint64_t least;
    uint64_t most;
};

static void extent_take(struct extent *extent, uint64_t value) {
    extent->least = value < extent->least ? value : extent->least;
    extent->most = value > extent->most ? value : extent->most;
}

/* Column totals differ by at most one row, rank totals too, and the ranks' pairs by no more than
 * the remainders can explain: 2 (length + 1) per document that 2*CP does not divide. */
static const char *per_document_fault(const struct packed_sequence *sequence,
                                      const struct deal *deal) {
    struct extent columns = {UINT64_MAX, 0};
    struct extent ranks = {UINT64_MAX, 0};
    struct extent pairs = {UINT64_MAX, 0};
    uint64_t pairs_sum = 0;
    for (uint32_t rank = 0; rank < deal->cp; rank++) {
        uint64_t low = deal->columns[rank];
        uint64_t high = deal->columns[2 * deal->cp - 1 - rank];
        uint64_t own_pairs = rank_pairs(sequence, deal->cp, rank);
        extent_take(&columns, low);
        extent_take(&columns, high);
        extent_take(&ranks, low + high);
        extent_take(&pairs, own_pairs);
        pairs_sum += own_pairs;
    }
    uint64_t spread_max = 0;
    for (uint32_t i = 0; i < sequence->documents; i++) {
        pairs_sum -= document_pairs(sequence->lengths[i]);
        if (sequence->lengths[i] % (2 * deal->cp) != 0) {
            spread_max += 2 * ((uint64_t)sequence->lengths[i] + 1);
        }
    }
    if (columns.most - columns.least > 1 || ranks.most - ranks.least > 1) {
        return "columns or ranks differ by more than a row";
    }
    if (pairs_sum != 0) {
        return "pairs of the ranks are not the documents'";
    }
    return pairs.most - pairs.least > spread_max ? "pairs spread too far" : NULL;
}

struct spread_world {
    struct spread spread;
    void *memory;
    struct tile_model model;
    uint32_t cut_deals; /* that gave some document to several ranks */
};

static struct spread_world spreads[CP_MAX + 1];

static void open_spreads(uint32_t documents_max) {
    for (uint32_t cp = 1; cp <= CP_MAX; cp++) {
        struct spread_world *world = &spreads[cp];
        free(world->memory);
        world->memory = malloc(spread_bytes(documents_max, cp, UINT32_MAX));
        assert_non_null(world->memory);
        spread_init(&world->spread, world->memory, documents_max, cp, UINT32_MAX);
        assert_int_equal(tile_model_analytic(128, 8, 1 + cp % 2, 0, &world->model), 0);
    }
}

static const char *ordered_fault(const struct fragment *fragments, uint32_t count) {
    for (uint32_t i = 1; i < count; i++) {
        if (fragments[i].document < fragments[i - 1].document ||
            (fragments[i].document == fragments[i - 1].document &&
             fragments[i].start < fragments[i - 1].start)) {
            return "rows not document-major, or descending";
        }
    }
    return fragment_fault(fragments, count);
}

/* Marks a rank's rows in `taken`, which has one byte for every row of the sequence. */
static const char *taken_fault(const struct packed_sequence *sequence, const uint64_t *begins,
                               const struct fragment *fragments, uint32_t count, uint8_t *taken,
                               uint64_t *rows) {
    for (uint32_t i = 0; i < count; i++) {
        struct fragment fragment = fragments[i];
        if (fragment.document >= sequence->documents ||
            (uint64_t)fragment.start + fragment.length > sequence->lengths[fragment.document]) {
            return "a row that does not exist";
        }
        uint8_t *row = taken + begins[fragment.document] + fragment.start;
        if (memchr(row, 1, fragment.length) != NULL) {
            return "a row dealt twice";
        }
        memset(row, 1, fragment.length);
        *rows += fragment.length;
    }
    return NULL;
}

static const char *deal_fault(struct spread_world *world, const struct packed_sequence *sequence,
                              uint32_t cp) {
    static uint8_t taken[CP_MAX * ROWS_MAX];
    static uint64_t begins[DOCUMENTS_MAX];
    uint64_t all = 0;
    uint64_t fragments_count = 0;
    for (uint32_t i = 0; i < sequence->documents; i++) {
        begins[i] = i > 0 ? begins[i - 1] + sequence->lengths[i - 1] : 0;
    }
    memset(taken, 0, sequence->tokens);
    for (uint32_t rank = 0; rank < cp; rank++) {
        uint32_t count;
        uint64_t rows = 0;
        const struct fragment *fragments = spread_fragments(&world->spread, rank, &count);
        const char *fault = ordered_fault(fragments, count);
        fault = fault != NULL ? fault
                              : taken_fault(sequence, begins, fragments, count, taken, &rows);
        if (fault != NULL) {
            return fault;
        }
        if (rows > (sequence->tokens + sequence->pad_tokens) / cp) {
            return "more rows than a rank has";
        }
        all += rows;
        fragments_count += count;
    }
    world->cut_deals += fragments_count > sequence->documents;
    return all != sequence->tokens ? "a row in no fragment" : NULL;
}

static const char *spread_fault(const struct packed_sequence *sequence, uint32_t cp,
                                enum layout layout) {
    struct spread_world *world = &spreads[cp];
    spread_begin(&world->spread, sequence, &world->model);
    for (uint32_t level = 0; level < spread_levels(layout); level++) {
        if (!spread_deal(&world->spread, (struct spread_rule){layout, level}, UINT64_MAX)) {
            return "no room for the fragments";
        }
        const char *fault = deal_fault(world, sequence, cp);
        if (fault != NULL) {
            return fault;
        }
    }
    return NULL;
}

static void print_world(enum layout layout, const struct packed_sequence *sequence, uint32_t cp) {
    print_error("%s, cp %u, pad %" PRIu64 ", lengths", layout_name(layout), cp,
                sequence->pad_tokens);
    for (uint32_t i = 0; i < sequence->documents; i++) {
        print_error(" %u", sequence->lengths[i]);
    }
    print_error("\n");
}

static void check_spreads(const struct packed_sequence *sequence, uint32_t cp, uint64_t seed) {
    static const enum layout layouts[] = {LAYOUT_VARIABLE_DEGREE, LAYOUT_HYBRID};
    for (size_t i = 0; i < 2; i++) {
        const char *fault = spread_fault(sequence, cp, layouts[i]);
        if (fault != NULL) {
            print_world(layouts[i], sequence, cp);
            fail_msg("seed %" PRIu64 ": %s", seed, fault);
        }
    }
}

/* Ulysses owns rows as contiguous shards do: row by row, in order. */
static void literal_contiguous(const struct packed_sequence *sequence, struct deal *deal) {
    uint64_t shard_rows = (sequence->tokens + sequence->pad_tokens) / deal->cp;
    uint64_t row = 0;
    for (uint32_t document = 0; document < sequence->documents; document++) {
        for (uint32_t position = 0; position < sequence->lengths[document]; position++) {
            deal_row(deal, (uint32_t)(row++ / shard_rows), document, position);
        }
    }
    for (; row < sequence->tokens + sequence->pad_tokens; row++) {
        deal_row(deal, (uint32_t)(row / shard_rows), PAD, 0);
    }
}

static void check_world(const struct packed_sequence *sequence, uint32_t cp, uint64_t seed) {
    static const struct {
        enum layout layout;
        void (*literal)(const struct packed_sequence *sequence, struct deal *deal);
        const char *(*fault)(const struct packed_sequence *sequence, const struct deal *deal);
    } rules[] = {
        {LAYOUT_PER_SEQUENCE, literal_per_sequence, NULL},
        {LAYOUT_PER_DOCUMENT, literal_per_document, per_document_fault},
        {LAYOUT_ULYSSES, literal_contiguous, NULL},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        struct deal deal;
        deal_init(&deal, cp);
        rules[i].literal(sequence, &deal);
        const char *fault = rules[i].fault != NULL ? rules[i].fault(sequence, &deal) : NULL;
        for (uint32_t rank = 0; rank < cp && fault == NULL; rank++) {
            fault = rank_fault(rules[i].layout, sequence, &deal, rank);
        }
        if (fault != NULL) {
            print_world(rules[i].layout, sequence, cp);
            fail_msg("seed %" PRIu64 ": %s", seed, fault);
        }
    }
    check_spreads(sequence, cp, seed);
}

/* With the least padding, then with `more_units` units of 2*CP rows on top. */
static void check_padded(const uint32_t *lengths, uint32_t documents, uint32_t cp,
                         uint64_t more_units, uint64_t seed) {
    struct packed_sequence sequence = {.lengths = lengths, .documents = documents};
    for (uint32_t i = 0; i < documents; i++) {
        sequence.tokens += lengths[i];
    }
    uint64_t unit = 2 * (uint64_t)cp;
    uint64_t units = (sequence.tokens + unit - 1) / unit;
    units = units + more_units > 0 ? units + more_units : 1;
    sequence.pad_tokens = units * unit - sequence.tokens;
    check_world(&sequence, cp, seed);
}

/* Up to 4 documents of 1 to 9 tokens on 1 to 5 ranks; two more units make pads that fill whole
 * chunks. */
static void layouts_deal_every_row_of_all_small_sequences(void **state) {
    (void)state;
    open_spreads(4);
    for (uint32_t documents = 0; documents <= 4; documents++) {
        uint32_t lengths[4] = {1, 1, 1, 1};
        bool more = true;
        while (more) {
            for (uint32_t cp = 1; cp <= 5; cp++) {
                check_padded(lengths, documents, cp, 0, 0);
                check_padded(lengths, documents, cp, 2, 0);
            }
            more = false;
            for (uint32_t i = 0; i < documents && !more; i++) {
                more = lengths[i] < 9;
                lengths[i] = more ? lengths[i] + 1 : 1;
            }
        }
    }
}

static void layouts_deal_every_row_of_large_random_sequences(void **state) {
    (void)state;
    const uint32_t cps[] = {1, 2, 3, 4, 5, 7, 8, 12, 16};
    open_spreads(DOCUMENTS_MAX);
    for (uint64_t seed = 1; seed <= 600; seed++) {
        uint64_t random = seed;
        static uint32_t lengths[DOCUMENTS_MAX];
        uint32_t cp = cps[splitmix_between(&random, 0, 8)];
        uint32_t documents = splitmix_between(&random, 0, DOCUMENTS_MAX);
        uint32_t longest = 1u << splitmix_between(&random, 0, 9);
        for (uint32_t i = 0; i < documents; i++) {
            uint32_t limit = splitmix_between(&random, 1, longest);
            lengths[i] = splitmix_between(&random, 1, limit);
        }
        if (documents > 0 && seed % 3 == 0) {
            lengths[splitmix_between(&random, 0, documents - 1)] = splitmix_between(&random, 1,
                                                                                    20000);
        }
        check_padded(lengths, documents, cp, splitmix_between(&random, 0, 40), seed);
    }
    assert_true(spreads[16].cut_deals > 100);
}

/* Rank totals are equal if and only if CP divides the tokens; else CP - 1 pads, at most one a rank,
 * make them so. */
static void per_document_is_exact_in_100000_random_sequences(void **state) {
    (void)state;
    uint32_t exact = 0;
    for (uint64_t seed = 1; seed <= 100000; seed++) {
        uint64_t random = seed;
        uint32_t lengths[16];
        uint32_t cp = splitmix_between(&random, 1, CP_MAX);
        struct packed_sequence sequence = {.lengths = lengths};
        sequence.documents = splitmix_between(&random, 1, 16);
        for (uint32_t i = 0; i < sequence.documents; i++) {
            lengths[i] = splitmix_between(&random, 1, 1u << splitmix_between(&random, 0, 17));
            sequence.tokens += lengths[i];
        }
        uint64_t unit = 2 * (uint64_t)cp;
        sequence.pad_tokens = (unit - sequence.tokens % unit) % unit;
        struct extent ranks = {UINT64_MAX, 0};
        for (uint32_t rank = 0; rank < cp; rank++) {
            struct fragment fragments[34];
            uint64_t rows = 0;
            uint32_t count = layout_fragments(LAYOUT_PER_DOCUMENT, &sequence, cp, rank, fragments,
                                              34);
            for (uint32_t i = 0; i < count; i++) {
                rows += fragments[i].length;
            }
            extent_take(&ranks, rows);
        }
        exact += sequence.tokens % cp == 0;
        if ((ranks.least == ranks.most) != (sequence.tokens % cp == 0) ||
            ranks.most != (sequence.tokens + cp - 1) / cp || ranks.most - ranks.least > 1) {
            print_world(LAYOUT_PER_DOCUMENT, &sequence, cp);
            fail_msg("seed %" PRIu64 ": ranks have %" PRIu64 " to %" PRIu64 " rows", seed,
                     ranks.least, ranks.most);
        }
    }
    assert_true(exact > 1000 && exact < 99000);
}

static void many_documents(uint32_t documents, uint32_t length_max, uint32_t cp) {
    uint64_t random = documents;
    static uint32_t lengths[10000];
    struct packed_sequence sequence = {.lengths = lengths, .documents = documents};
    for (uint32_t i = 0; i < documents; i++) {
        lengths[i] = splitmix_between(&random, 1, length_max);
        sequence.tokens += lengths[i];
    }
    uint64_t unit = 2 * (uint64_t)cp;
    sequence.pad_tokens = (unit - sequence.tokens % unit) % unit;
    const enum layout layouts[] = {LAYOUT_VARIABLE_DEGREE, LAYOUT_HYBRID};
    struct spread_world world = {.memory = malloc(spread_bytes(documents, cp, 1u << 20))};
    assert_non_null(world.memory);
    assert_int_equal(tile_model_analytic(128, 32, 8, 0, &world.model), 0);
    spread_init(&world.spread, world.memory, documents, cp, 1u << 20);
    spread_begin(&world.spread, &sequence, &world.model);
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t level = 0; level < spread_levels(layouts[i]); level++) {
            uint64_t rows = 0;
            assert_true(
                spread_deal(&world.spread, (struct spread_rule){layouts[i], level}, UINT64_MAX));
            for (uint32_t rank = 0; rank < cp; rank++) {
                uint32_t count;
                const struct fragment *fragments = spread_fragments(&world.spread, rank, &count);
                assert_null(ordered_fault(fragments, count));
                for (uint32_t k = 0; k < count; k++) {
                    rows += fragments[k].length;
                }
            }
            assert_int_equal(rows, sequence.tokens);
        }
    }
    free(world.memory);
}

static void layouts_deal_windows_of_one_and_of_10000_documents(void **state) {
    (void)state;
    many_documents(10000, 26, 16);
    many_documents(10000, 1, 7);
    many_documents(1, 1u << 20, 16);
    many_documents(1, 1, 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(per_document_is_exact_in_100000_random_sequences),
        cmocka_unit_test(layouts_deal_windows_of_one_and_of_10000_documents),
        cmocka_unit_test(layouts_deal_every_row_of_all_small_sequences),
        cmocka_unit_test(layouts_deal_every_row_of_large_random_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
