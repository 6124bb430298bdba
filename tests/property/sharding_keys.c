/* What ranks exchange in every layout, against a table of who has which row. */
#include "sharding/keys.h"
#include "sharding/select.h"

#include "splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DOCUMENTS_MAX 24u
#define CP_MAX        8u
#define ROWS_MAX      (DOCUMENTS_MAX * 600u)
#define FRAGMENTS_MAX 4096u

struct shards {
    uint32_t cp;
    struct fragment fragments[CP_MAX][FRAGMENTS_MAX];
    uint32_t counts[CP_MAX];
    uint64_t begins[DOCUMENTS_MAX]; /* of documents, in the tables */
    uint32_t owner[ROWS_MAX];
    uint32_t owner_row[ROWS_MAX];
};

static struct shards shards;

static void shards_take(struct layout_dealer *dealer, const struct packed_sequence *sequence) {
    for (uint32_t i = 0; i < sequence->documents; i++) {
        shards.begins[i] = i > 0 ? shards.begins[i - 1] + sequence->lengths[i - 1] : 0;
    }
    for (uint32_t rank = 0; rank < shards.cp; rank++) {
        const struct fragment *dealt = layout_dealt(dealer, rank, &shards.counts[rank]);
        uint32_t own_row = 0;
        assert_true(shards.counts[rank] <= FRAGMENTS_MAX);
        for (uint32_t i = 0; i < shards.counts[rank]; i++) {
            struct fragment fragment = dealt[i];
            shards.fragments[rank][i] = fragment;
            for (uint32_t k = 0; k < fragment.length; k++) {
                uint64_t row = shards.begins[fragment.document] + fragment.start + k;
                shards.owner[row] = rank;
                shards.owner_row[row] = own_row++;
            }
        }
    }
}

/* Marks every key that a rank sees. */
static void literal_seen(uint32_t rank, uint8_t *seen) {
    for (uint32_t i = 0; i < shards.counts[rank]; i++) {
        struct fragment fragment = shards.fragments[rank][i];
        memset(seen + shards.begins[fragment.document], 1, fragment.start + fragment.length);
    }
}

static const char *rank_fault(uint32_t rank, uint64_t tokens) {
    static uint8_t seen[ROWS_MAX];
    struct key_run runs[FRAGMENTS_MAX];
    uint64_t needed = 0;
    memset(seen, 0, tokens);
    literal_seen(rank, seen);
    for (uint32_t peer = 0; peer < shards.cp; peer++) {
        uint32_t count = peer == rank ? 0
                                      : keys_from(shards.fragments[rank], shards.counts[rank],
                                                  shards.fragments[peer], shards.counts[peer], runs,
                                                  FRAGMENTS_MAX);
        if (count > shards.counts[peer]) {
            return "more runs than the peer has fragments";
        }
        for (uint32_t i = 0; i < count; i++) {
            needed += runs[i].length;
            for (uint32_t k = 0; k < runs[i].length; k++) {
                uint64_t row = shards.begins[runs[i].document] + runs[i].start + k;
                if (seen[row]-- != 1 || shards.owner[row] != peer ||
                    shards.owner_row[row] != runs[i].row + k) {
                    return "a key that is not needed, sent twice, or another one";
                }
            }
            if (runs[i].length == 0) {
                return "an empty run";
            }
        }
    }
    for (uint64_t row = 0; row < tokens; row++) {
        if (seen[row] == 1 && shards.owner[row] != rank) {
            return "a key that nobody sends";
        }
    }
    return needed != keys_needed(shards.fragments[rank], shards.counts[rank])
               ? "keys_needed counts others"
               : NULL;
}

static void check_layouts(struct layout_dealer *dealer, const struct packed_sequence *sequence,
                          uint64_t seed) {
    for (enum layout layout = LAYOUT_PER_SEQUENCE; layout <= LAYOUT_CONTIGUOUS; layout++) {
        uint32_t levels = spread_levels(layout) > 0 ? spread_levels(layout) : 1;
        for (uint32_t level = 0; level < levels; level++) {
            assert_true(layout_deal(dealer, layout, level));
            shards_take(dealer, sequence);
            for (uint32_t rank = 0; rank < shards.cp; rank++) {
                const char *fault = rank_fault(rank, sequence->tokens);
                if (fault != NULL) {
                    fail_msg("seed %" PRIu64 ", %s level %u, rank %u: %s", seed,
                             layout_name(layout), level, rank, fault);
                }
            }
        }
    }
}

static void ranks_are_sent_every_key_that_they_see_once(void **state) {
    (void)state;
    struct layout_options options = {LAYOUTS_ALLOWED, UINT32_MAX};
    struct tile_model model;
    assert_int_equal(tile_model_analytic(128, 8, 2, 0, &model), 0);
    for (uint64_t seed = 1; seed <= 300; seed++) {
        uint64_t random = seed;
        uint32_t lengths[DOCUMENTS_MAX];
        struct layout_dealer dealer;
        struct packed_sequence sequence = {.lengths = lengths};
        shards.cp = splitmix_between(&random, 1, CP_MAX);
        sequence.documents = splitmix_between(&random, 0, DOCUMENTS_MAX);
        for (uint32_t i = 0; i < sequence.documents; i++) {
            lengths[i] = splitmix_between(&random, 1, splitmix_between(&random, 1, 600));
            sequence.tokens += lengths[i];
        }
        uint64_t unit = 2 * (uint64_t)shards.cp;
        sequence.pad_tokens = unit - sequence.tokens % unit;
        void *memory = malloc(layout_dealer_bytes(&options, sequence.documents, shards.cp));
        assert_non_null(memory);
        layout_dealer_init(&dealer, memory, &options, sequence.documents, shards.cp);
        layout_begin(&dealer, &sequence, &model);
        check_layouts(&dealer, &sequence, seed);
        free(memory);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_sent_every_key_that_they_see_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
