/* The choice of a layout by example. */
#include "sharding/select.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define BOTH          (1u << LAYOUT_PER_SEQUENCE | 1u << LAYOUT_PER_DOCUMENT)
#define DOCUMENTS_MAX 256u
#define CP_MAX        8u

static struct layout_choice choose(struct layout_options options, const uint32_t *lengths,
                                   uint32_t documents, uint32_t cp) {
    static uint64_t memory[1u << 17];
    struct layout_dealer dealer;
    struct packed_sequence sequence = {.lengths = lengths, .documents = documents};
    for (uint32_t i = 0; i < documents; i++) {
        sequence.tokens += lengths[i];
    }
    uint64_t unit = 2 * (uint64_t)cp;
    sequence.pad_tokens = sequence.tokens == 0 ? unit : (unit - sequence.tokens % unit) % unit;
    struct tile_model model;
    assert_int_equal(tile_model_analytic(128, 32, 8, 8, &model), 0);
    uint64_t rank_ps[2 * CP_MAX];
    struct layout_choice choice;
    assert_true(layout_dealer_bytes(&options, documents, cp) <= sizeof memory);
    layout_dealer_init(&dealer, memory, &options, documents, cp);
    layout_select(&options, &sequence, &model, &dealer, rank_ps, &choice);
    return choice;
}

/* The last ranks of the zigzag see only short documents, the first ones most of the long one. */
static void selector_cuts_every_document_when_a_long_one_dominates(void **state) {
    (void)state;
    uint32_t lengths[33] = {65536};
    for (uint32_t i = 1; i < 33; i++) {
        lengths[i] = 2048;
    }
    struct layout_choice choice = choose((struct layout_options){BOTH, UINT32_MAX, {0}}, lengths,
                                         33, 4);
    assert_int_equal(choice.layout, LAYOUT_PER_DOCUMENT);
    assert_int_equal(choice.candidate_count, 2);
    assert_int_equal(choice.candidates[0].layout, LAYOUT_PER_SEQUENCE);
    assert_int_equal(choice.candidates[1].layout, LAYOUT_PER_DOCUMENT);
    assert_true(choice.candidates[1].slowest_ps < choice.candidates[0].slowest_ps);
}

static void selector_keeps_short_documents_whole(void **state) {
    (void)state;
    uint32_t lengths[DOCUMENTS_MAX];
    for (uint32_t i = 0; i < DOCUMENTS_MAX; i++) {
        lengths[i] = 300 + i % 5;
    }
    struct layout_choice choice = choose((struct layout_options){BOTH, UINT32_MAX, {0}}, lengths,
                                         DOCUMENTS_MAX, 8);
    assert_int_equal(choice.layout, LAYOUT_PER_SEQUENCE);
}

/* One document that 2*CP divides is dealt alike by both layouts. */
static void selector_breaks_full_ties_to_the_lower_number(void **state) {
    (void)state;
    const uint32_t length = 8192;
    struct layout_choice choice = choose((struct layout_options){BOTH, UINT32_MAX, {0}}, &length, 1,
                                         4);
    assert_int_equal(choice.candidates[0].slowest_ps, choice.candidates[1].slowest_ps);
    assert_int_equal(choice.candidates[0].fragments, 7);
    assert_int_equal(choice.candidates[1].fragments, 7);
    assert_int_equal(choice.layout, LAYOUT_PER_SEQUENCE);
}

/* a bb cc on 4 columns. Chunks of 2 rows: ab bc c. .., the columns: a b b c and c on top of a. No
 * rank fills its machine, so every rank takes its longest tile. */
static void selector_breaks_ties_to_fewer_fragments(void **state) {
    (void)state;
    const uint32_t lengths[] = {1, 2, 2};
    struct layout_choice choice = choose((struct layout_options){BOTH, UINT32_MAX, {0}}, lengths, 3,
                                         2);
    assert_int_equal(choice.candidates[0].slowest_ps, choice.candidates[1].slowest_ps);
    assert_int_equal(choice.candidates[0].fragments, 4);
    assert_int_equal(choice.candidates[1].fragments, 3);
    assert_int_equal(choice.layout, LAYOUT_PER_DOCUMENT);
}

static void selector_considers_only_what_is_allowed_and_known(void **state) {
    (void)state;
    const uint32_t lengths[] = {100, 100, 100};
    uint32_t allowed = 1u << LAYOUT_PER_DOCUMENT | 1u << LAYOUT_CONTIGUOUS;
    struct layout_choice choice = choose((struct layout_options){allowed, UINT32_MAX, {0}}, lengths,
                                         3, 4);
    assert_int_equal(choice.candidate_count, 1);
    assert_int_equal(choice.layout, LAYOUT_PER_DOCUMENT);
}

static void selector_drops_candidates_with_too_many_fragments(void **state) {
    (void)state;
    uint32_t lengths[33] = {65536};
    for (uint32_t i = 1; i < 33; i++) {
        lengths[i] = 2048;
    }
    struct layout_choice free = choose((struct layout_options){BOTH, UINT32_MAX, {0}}, lengths, 33,
                                       4);
    uint32_t needed = free.candidates[1].fragments;
    struct layout_choice choice = choose((struct layout_options){BOTH, needed, {0}}, lengths, 33,
                                         4);
    assert_int_equal(choice.layout, LAYOUT_PER_DOCUMENT);
    choice = choose((struct layout_options){BOTH, needed - 1, {0}}, lengths, 33, 4);
    assert_int_equal(choice.candidate_count, 1);
    assert_int_equal(choice.layout, LAYOUT_PER_SEQUENCE);
    choice = choose((struct layout_options){1u << LAYOUT_PER_DOCUMENT, 0, {0}}, lengths, 33, 4);
    assert_int_equal(choice.candidate_count, 1);
    assert_int_equal(choice.layout, LAYOUT_PER_SEQUENCE);
    assert_int_equal(choice.candidates[0].fragments, free.candidates[0].fragments);
}

static void selector_has_no_choice_on_one_rank(void **state) {
    (void)state;
    const uint32_t lengths[] = {100, 100, 100};
    struct layout_choice choice = choose(
        (struct layout_options){1u << LAYOUT_PER_DOCUMENT, UINT32_MAX, {0}}, lengths, 3, 1);
    assert_int_equal(choice.candidate_count, 1);
    assert_int_equal(choice.layout, LAYOUT_PER_SEQUENCE);
    assert_int_equal(choice.candidates[0].fragments, 3);
}

static void selector_prices_an_empty_micro_batch_at_nothing(void **state) {
    (void)state;
    struct layout_choice choice = choose((struct layout_options){BOTH, UINT32_MAX, {0}}, NULL, 0,
                                         4);
    assert_int_equal(choice.layout, LAYOUT_PER_SEQUENCE);
    assert_int_equal(choice.candidates[0].slowest_ps, 0);
    assert_int_equal(choice.candidates[0].fragments, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(selector_cuts_every_document_when_a_long_one_dominates),
        cmocka_unit_test(selector_keeps_short_documents_whole),
        cmocka_unit_test(selector_breaks_full_ties_to_the_lower_number),
        cmocka_unit_test(selector_breaks_ties_to_fewer_fragments),
        cmocka_unit_test(selector_considers_only_what_is_allowed_and_known),
        cmocka_unit_test(selector_drops_candidates_with_too_many_fragments),
        cmocka_unit_test(selector_has_no_choice_on_one_rank),
        cmocka_unit_test(selector_prices_an_empty_micro_batch_at_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
