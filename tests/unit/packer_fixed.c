/* Fixed windows by example, in worlds small enough to follow by hand. */
#include "packer/fixed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define ITEMS_MAX 8u
#define BINS_MAX  4u

struct packing {
    struct fixed_piece pieces[ITEMS_MAX + BINS_MAX];
    uint32_t count;
    uint64_t work[BINS_MAX];
    uint64_t tokens[BINS_MAX];
};

static uint64_t square(const void *model, uint32_t length) {
    (void)model;
    return (uint64_t)length * length;
}

static struct packing pack(const uint32_t *lengths, uint32_t items, uint32_t bins,
                           uint32_t window) {
    _Alignas(max_align_t) unsigned char scratch[1024];
    struct fixed_input input = {lengths, items, bins, window, square, NULL};
    struct packing packing = {0};
    assert_true(items <= ITEMS_MAX && bins <= BINS_MAX);
    assert_true(pack_fixed_bytes(items, bins) <= sizeof scratch);
    packing.count = pack_fixed(&input, scratch, packing.pieces, packing.work, packing.tokens);
    return packing;
}

static void assert_pieces(const struct packing *packing, const struct fixed_piece *expected,
                          uint32_t count) {
    assert_int_equal(packing->count, count);
    assert_memory_equal(packing->pieces, expected, count * sizeof *expected);
}

static void fixed_gives_each_document_to_the_window_with_the_least_work(void **state) {
    (void)state;
    const uint32_t lengths[] = {2, 6, 5, 3};
    const struct fixed_piece expected[] = {{1, 0, 6, 0}, {0, 0, 2, 0}, {2, 0, 5, 1}, {3, 0, 3, 1}};
    struct packing packing = pack(lengths, 4, 2, 8);
    assert_pieces(&packing, expected, 4);
    assert_int_equal(packing.work[0], 40);
    assert_int_equal(packing.work[1], 34);
}

static void fixed_cuts_what_fits_nowhere_into_the_remaining_space(void **state) {
    (void)state;
    const uint32_t lengths[] = {5, 5, 6};
    const struct fixed_piece expected[] = {{2, 0, 6, 0}, {1, 0, 2, 0}, {0, 0, 5, 1}, {1, 2, 3, 1}};
    struct packing packing = pack(lengths, 3, 2, 8);
    assert_pieces(&packing, expected, 4);
    assert_int_equal(packing.tokens[0], 8);
    assert_int_equal(packing.tokens[1], 8);
}

static void fixed_cuts_a_document_longer_than_the_window(void **state) {
    (void)state;
    const uint32_t lengths[] = {10};
    const struct fixed_piece expected[] = {{0, 0, 4, 0}, {0, 4, 4, 1}, {0, 8, 2, 2}};
    struct packing packing = pack(lengths, 1, 3, 4);
    assert_pieces(&packing, expected, 3);
}

/* Two global batches of two: the two heaviest windows are one of them. */
static void fixed_deals_windows_of_like_work_to_one_global_batch(void **state) {
    (void)state;
    const uint32_t lengths[] = {2, 2, 2, 2, 8, 8};
    struct packing packing = pack(lengths, 6, 4, 8);
    const uint64_t work[] = {64, 64, 8, 8};
    assert_memory_equal(packing.work, work, sizeof work);
    assert_int_equal(packing.pieces[0].item, 4);
    assert_int_equal(packing.pieces[1].item, 5);
}

static void fixed_accepts_no_documents(void **state) {
    (void)state;
    struct packing packing = pack(NULL, 0, 2, 8);
    assert_int_equal(packing.count, 0);
    assert_int_equal(packing.work[0] + packing.work[1], 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixed_gives_each_document_to_the_window_with_the_least_work),
        cmocka_unit_test(fixed_cuts_what_fits_nowhere_into_the_remaining_space),
        cmocka_unit_test(fixed_cuts_a_document_longer_than_the_window),
        cmocka_unit_test(fixed_deals_windows_of_like_work_to_one_global_batch),
        cmocka_unit_test(fixed_accepts_no_documents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
