/* Refinement by example: one trade of each kind, and when there is none to make. */
#include "packer/refine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define ITEMS_MAX 8u
#define BINS_MAX  4u

struct packing {
    uint32_t bin_of[ITEMS_MAX];
    uint64_t work[BINS_MAX];
    uint64_t tokens[BINS_MAX];
    struct refine_report report;
};

/* Refines the packing that bin_of says. */
static struct packing refine(const struct pack_input *input, const uint32_t *bin_of,
                             uint32_t gap_ppm, uint64_t probes_max) {
    _Alignas(max_align_t) unsigned char scratch[2048];
    struct refine_options options = {gap_ppm, probes_max};
    struct packing packing = {0};
    uint32_t order[ITEMS_MAX];
    assert_true(input->items <= ITEMS_MAX && input->bins <= BINS_MAX);
    assert_true(pack_refine_bytes(input->items, input->bins) <= sizeof scratch);
    for (uint32_t i = 0; i < input->items; i++) {
        order[i] = i;
        packing.bin_of[i] = bin_of[i];
        if (bin_of[i] != PACK_LEFT_OVER) {
            packing.work[bin_of[i]] += input->works[i];
            packing.tokens[bin_of[i]] += input->lengths[i];
        }
    }
    packing.report = pack_refine(input, &options, scratch, packing.bin_of, order, packing.work,
                                 packing.tokens);
    return packing;
}

static void refine_moves_a_document_to_the_lightest_bin(void **state) {
    (void)state;
    const uint32_t lengths[] = {5, 3, 4, 4};
    const uint64_t works[] = {5, 3, 4, 4};
    const uint32_t before[] = {0, 0, 0, 1};
    const uint32_t after[] = {0, 0, 1, 1};
    struct pack_input input = {lengths, works, 4, 2, 100, PACK_SEARCH_EXACT};
    struct packing packing = refine(&input, before, 0, 1000);
    assert_memory_equal(packing.bin_of, after, sizeof after);
    assert_int_equal(packing.report.max, 8);
    assert_int_equal(packing.report.bound, 8);
    assert_int_equal(packing.report.rounds, 1);
}

static void refine_swaps_where_the_bound_forbids_a_move(void **state) {
    (void)state;
    const uint32_t lengths[] = {5, 4, 4, 3};
    const uint64_t works[] = {25, 16, 16, 9};
    const uint32_t before[] = {0, 0, 1, 1};
    const uint32_t after[] = {1, 0, 0, 1};
    struct pack_input input = {lengths, works, 4, 2, 9, PACK_SEARCH_EXACT};
    struct packing packing = refine(&input, before, 0, 1000);
    assert_memory_equal(packing.bin_of, after, sizeof after);
    assert_int_equal(packing.report.max, 34);
}

/* Both bins are full: only equal tokens can change places, 4 for 2 + 2. */
static void refine_gives_one_document_for_two_when_memory_is_tight(void **state) {
    (void)state;
    const uint32_t lengths[] = {4, 4, 2, 2, 2, 2};
    const uint64_t works[] = {16, 16, 4, 4, 4, 4};
    const uint32_t before[] = {0, 0, 1, 1, 1, 1};
    const uint32_t after[] = {1, 0, 0, 0, 1, 1};
    struct pack_input input = {lengths, works, 6, 2, 8, PACK_SEARCH_EXACT};
    struct packing packing = refine(&input, before, 0, 1000);
    assert_int_equal(packing.report.max, 24);
    assert_int_equal(packing.report.bound, 24);
    assert_int_equal(packing.tokens[0], 8);
    assert_int_equal(packing.tokens[1], 8);
    assert_memory_equal(packing.bin_of, after, sizeof after);
}

static void refine_gives_two_documents_for_one(void **state) {
    (void)state;
    const uint32_t lengths[] = {3, 2, 2, 3, 2};
    const uint64_t works[] = {3, 2, 2, 3, 2};
    const uint32_t before[] = {0, 0, 0, 1, 1};
    struct pack_input input = {lengths, works, 5, 2, 100, PACK_SEARCH_EXACT};
    struct packing packing = refine(&input, before, 0, 1000);
    assert_int_equal(packing.report.max, 6);
    assert_int_equal(packing.bin_of[0], packing.bin_of[3]);
}

static void refine_stops_at_the_gap_it_is_given(void **state) {
    (void)state;
    const uint32_t lengths[] = {10, 10, 1};
    const uint64_t works[] = {10, 10, 1};
    const uint32_t before[] = {0, 1, 1};
    struct pack_input input = {lengths, works, 3, 2, 100, PACK_SEARCH_EXACT};
    assert_int_equal(refine(&input, before, 0, 1000).report.rounds, 0);
    const uint32_t all_in_one[] = {0, 0, 0};
    assert_int_equal(refine(&input, all_in_one, 0, 1000).report.max, 11);
    assert_int_equal(refine(&input, all_in_one, 909091, 1000).report.max, 21);
}

static void refine_reports_each_part_of_the_bound(void **state) {
    (void)state;
    const uint32_t lengths[] = {9, 1, 1, 1};
    const uint32_t bin_of[] = {0, 1, 1, 1};
    const uint64_t one_large[] = {9, 1, 1, 1};
    const uint64_t level[] = {3, 2, 2, 2};
    const uint64_t two_share[] = {6, 5, 4, 0};
    struct pack_input input = {lengths, one_large, 4, 2, 100, PACK_SEARCH_EXACT};
    assert_int_equal(refine(&input, bin_of, 0, 0).report.bound, 9);
    input.works = level;
    assert_int_equal(refine(&input, bin_of, 0, 0).report.bound, 5);
    input.works = two_share;
    assert_int_equal(refine(&input, bin_of, 0, 0).report.bound, 9);
}

static void refine_without_probes_only_reports(void **state) {
    (void)state;
    const uint32_t lengths[] = {5, 3, 4, 4};
    const uint64_t works[] = {5, 3, 4, 4};
    const uint32_t before[] = {0, 0, 0, 1};
    struct pack_input input = {lengths, works, 4, 2, 100, PACK_SEARCH_EXACT};
    struct packing packing = refine(&input, before, 0, 0);
    assert_memory_equal(packing.bin_of, before, sizeof before);
    assert_int_equal(packing.report.max, 12);
    assert_int_equal(packing.report.rounds, 0);
}

static void refine_leaves_leftovers_where_they_are(void **state) {
    (void)state;
    const uint32_t lengths[] = {20, 3, 4, 4};
    const uint64_t works[] = {400, 3, 4, 4};
    const uint32_t before[] = {PACK_LEFT_OVER, 0, 0, 0};
    struct pack_input input = {lengths, works, 4, 2, 11, PACK_SEARCH_EXACT};
    struct packing packing = refine(&input, before, 0, 1000);
    assert_int_equal(packing.bin_of[0], PACK_LEFT_OVER);
    assert_int_equal(packing.report.max, 7);
    assert_int_equal(packing.report.bound, 7);
}

static void refine_accepts_one_bin_and_no_documents(void **state) {
    (void)state;
    const uint32_t length = 7;
    const uint64_t work = 9;
    const uint32_t bin = 0;
    struct pack_input input = {&length, &work, 1, 1, 10, PACK_SEARCH_EXACT};
    assert_int_equal(refine(&input, &bin, 0, 1000).report.bound, 9);
    input.items = 0;
    assert_int_equal(refine(&input, NULL, 0, 1000).report.max, 0);
    input.bins = 3;
    assert_int_equal(refine(&input, NULL, 0, 1000).report.bound, 0);
}

static void refine_holds_works_up_to_63_bits(void **state) {
    (void)state;
    const uint32_t lengths[] = {UINT32_MAX, UINT32_MAX, 1, 1};
    const uint64_t works[] = {UINT64_C(1) << 61, UINT64_C(1) << 61, UINT64_C(1) << 60, 1};
    const uint32_t before[] = {0, 0, 0, 0};
    struct pack_input input = {lengths, works, 4, 2, UINT64_MAX, PACK_SEARCH_EXACT};
    struct packing packing = refine(&input, before, 0, 1000);
    assert_int_equal(packing.report.max, (UINT64_C(1) << 61) + (UINT64_C(1) << 60));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refine_moves_a_document_to_the_lightest_bin),
        cmocka_unit_test(refine_swaps_where_the_bound_forbids_a_move),
        cmocka_unit_test(refine_gives_one_document_for_two_when_memory_is_tight),
        cmocka_unit_test(refine_gives_two_documents_for_one),
        cmocka_unit_test(refine_stops_at_the_gap_it_is_given),
        cmocka_unit_test(refine_reports_each_part_of_the_bound),
        cmocka_unit_test(refine_without_probes_only_reports),
        cmocka_unit_test(refine_leaves_leftovers_where_they_are),
        cmocka_unit_test(refine_accepts_one_bin_and_no_documents),
        cmocka_unit_test(refine_holds_works_up_to_63_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
