/* The packing loop by example: each settled point of the contract, in a world small enough to
 * follow by hand. */
#include "packer/greedy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define ITEMS_MAX 16u
#define BINS_MAX  8u

struct packing {
    uint32_t bin_of[ITEMS_MAX];
    uint32_t order[ITEMS_MAX];
    uint64_t work[BINS_MAX];
    uint64_t tokens[BINS_MAX];
};

static struct packing pack(const struct pack_input *input) {
    _Alignas(max_align_t) unsigned char scratch[1024];
    assert_true(input->items <= ITEMS_MAX && input->bins <= BINS_MAX);
    assert_true(pack_greedy_bytes(input->items, input->bins) <= sizeof scratch);
    struct packing packing = {0};
    pack_greedy(input, scratch, packing.bin_of, packing.order, packing.work, packing.tokens);
    return packing;
}

static void packer_places_longest_documents_first_and_equal_ones_in_order(void **state) {
    (void)state;
    const uint32_t lengths[] = {3, 70000, 3, 16777216, 70000, 256};
    const uint64_t works[] = {1, 1, 1, 1, 1, 1};
    struct pack_input input = {lengths, works, 6, 1, 1u << 30, PACK_SEARCH_EXACT};
    struct packing packing = pack(&input);
    const uint32_t order[] = {3, 1, 4, 5, 0, 2};
    assert_memory_equal(packing.order, order, sizeof order);
}

static void packer_gives_each_document_to_the_bin_with_the_least_work(void **state) {
    (void)state;
    const uint32_t lengths[] = {6, 5, 4, 3, 2};
    const uint64_t works[] = {36, 25, 16, 9, 4};
    struct pack_input input = {lengths, works, 5, 2, 100, PACK_SEARCH_EXACT};
    struct packing packing = pack(&input);
    const uint32_t bin_of[] = {0, 1, 1, 0, 1};
    assert_memory_equal(packing.bin_of, bin_of, sizeof bin_of);
    assert_int_equal(packing.work[0], 45);
    assert_int_equal(packing.work[1], 45);
    assert_int_equal(packing.tokens[0], 9);
    assert_int_equal(packing.tokens[1], 11);
}

static void packer_breaks_ties_to_the_lowest_bin(void **state) {
    (void)state;
    const uint32_t lengths[] = {2, 2, 2, 2, 2, 2, 2};
    const uint64_t works[] = {7, 7, 7, 7, 7, 7, 7};
    struct pack_input input = {lengths, works, 7, 5, 100, PACK_SEARCH_EXACT};
    for (int search = PACK_SEARCH_EXACT; search <= PACK_SEARCH_PAPER; search++) {
        input.search = search == PACK_SEARCH_EXACT ? PACK_SEARCH_EXACT : PACK_SEARCH_PAPER;
        struct packing packing = pack(&input);
        const uint32_t bin_of[] = {0, 1, 2, 3, 4, 0, 1};
        assert_memory_equal(packing.bin_of, bin_of, sizeof bin_of);
    }
}

static void packer_fills_a_bin_to_exactly_the_bound(void **state) {
    (void)state;
    const uint32_t lengths[] = {8, 5, 3};
    const uint64_t works[] = {64, 25, 9};
    struct pack_input input = {lengths, works, 3, 2, 8, PACK_SEARCH_EXACT};
    struct packing packing = pack(&input);
    const uint32_t bin_of[] = {0, 1, 1};
    assert_memory_equal(packing.bin_of, bin_of, sizeof bin_of);
    assert_int_equal(packing.tokens[1], 8);
}

static void packer_leaves_over_what_is_longer_than_the_bound(void **state) {
    (void)state;
    const uint32_t lengths[] = {4, 9, 4};
    const uint64_t works[] = {1, 1, 1};
    struct pack_input input = {lengths, works, 3, 1, 8, PACK_SEARCH_EXACT};
    struct packing packing = pack(&input);
    const uint32_t bin_of[] = {0, PACK_LEFT_OVER, 0};
    assert_memory_equal(packing.bin_of, bin_of, sizeof bin_of);
    assert_int_equal(packing.work[0], 2);
}

/* The last document finds works 5, 6, 7 and tokens 9, 8, 6 of 10: bin 0 is out, 1 and 2 have room.
 */
static void packer_exact_search_takes_the_least_work_among_bins_with_room(void **state) {
    (void)state;
    const uint32_t lengths[] = {9, 8, 6, 2};
    const uint64_t works[] = {5, 6, 7, 1};
    struct pack_input input = {lengths, works, 4, 3, 10, PACK_SEARCH_EXACT};
    assert_int_equal(pack(&input).bin_of[3], 1);
}

static void packer_paper_search_falls_back_to_the_bin_with_the_fewest_tokens(void **state) {
    (void)state;
    const uint32_t lengths[] = {9, 8, 6, 2};
    const uint64_t works[] = {5, 6, 7, 1};
    struct pack_input input = {lengths, works, 4, 3, 10, PACK_SEARCH_PAPER};
    assert_int_equal(pack(&input).bin_of[3], 2);
}

static void packer_accepts_no_documents_and_more_bins_than_documents(void **state) {
    (void)state;
    struct pack_input input = {NULL, NULL, 0, 3, 10, PACK_SEARCH_EXACT};
    struct packing packing = pack(&input);
    assert_int_equal(packing.work[0] + packing.work[1] + packing.work[2], 0);
    const uint32_t length = 1;
    const uint64_t work = 0;
    input = (struct pack_input){&length, &work, 1, 3, 10, PACK_SEARCH_EXACT};
    assert_int_equal(pack(&input).bin_of[0], 0);
}

static void packer_holds_works_up_to_63_bits(void **state) {
    (void)state;
    const uint32_t lengths[] = {UINT32_MAX, UINT32_MAX, 1};
    const uint64_t works[] = {UINT64_C(1) << 62, (UINT64_C(1) << 62) - 2, 1};
    struct pack_input input = {lengths, works, 3, 2, UINT64_MAX, PACK_SEARCH_EXACT};
    struct packing packing = pack(&input);
    const uint32_t bin_of[] = {0, 1, 1};
    assert_memory_equal(packing.bin_of, bin_of, sizeof bin_of);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packer_places_longest_documents_first_and_equal_ones_in_order),
        cmocka_unit_test(packer_gives_each_document_to_the_bin_with_the_least_work),
        cmocka_unit_test(packer_breaks_ties_to_the_lowest_bin),
        cmocka_unit_test(packer_fills_a_bin_to_exactly_the_bound),
        cmocka_unit_test(packer_leaves_over_what_is_longer_than_the_bound),
        cmocka_unit_test(packer_exact_search_takes_the_least_work_among_bins_with_room),
        cmocka_unit_test(packer_paper_search_falls_back_to_the_bin_with_the_fewest_tokens),
        cmocka_unit_test(packer_accepts_no_documents_and_more_bins_than_documents),
        cmocka_unit_test(packer_holds_works_up_to_63_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
