/* The reading order: exact bijections in small worlds, and how well it mixes. */
#include "corpus/order.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SMALL_MAX 2000u

static bool seen[SMALL_MAX];

static void assert_bijection(const struct order *order, uint64_t epoch, uint64_t documents) {
    memset(seen, 0, sizeof seen);
    for (uint64_t i = 0; i < documents; i++) {
        uint64_t document = order_document(order, 3, epoch, documents, i);
        if (document >= documents || seen[document]) {
            fail_msg("shuffle %d, block %u, window %u, %lu documents: %lu at position %lu %s",
                     (int)order->shuffle, order->block_documents, order->window_blocks, documents,
                     document, i, document >= documents ? "outside" : "twice");
        }
        seen[document] = true;
    }
}

static void permute_is_a_bijection_for_every_small_n(void **state) {
    (void)state;
    struct order order = {.seed = 1, .shuffle = ORDER_FULL};
    for (uint64_t n = 1; n <= SMALL_MAX; n++) {
        assert_bijection(&order, n, n);
    }
}

static void block_order_is_a_bijection_for_every_small_world(void **state) {
    (void)state;
    struct order order = {.seed = 2, .shuffle = ORDER_BLOCK};
    for (uint64_t n = 1; n <= 70; n++) {
        for (order.block_documents = 1; order.block_documents <= 20; order.block_documents++) {
            for (order.window_blocks = 1; order.window_blocks <= 8; order.window_blocks++) {
                assert_bijection(&order, n, n);
            }
        }
    }
}

static void block_order_is_a_bijection_with_real_sizes(void **state) {
    (void)state;
    static const uint64_t sizes[] = {255, 256, 257, 512, 767, 1024, 1113, 2000};
    struct order order = {.seed = 3, .shuffle = ORDER_BLOCK, .block_documents = 256};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (order.window_blocks = 1; order.window_blocks <= 64; order.window_blocks *= 4) {
            assert_bijection(&order, 0, sizes[i]);
        }
    }
}

static void no_shuffle_is_file_order(void **state) {
    (void)state;
    struct order order = {.seed = 9, .shuffle = ORDER_NONE};
    for (uint64_t i = 0; i < 100; i++) {
        assert_int_equal(order_document(&order, 1, 2, 100, i), i);
    }
}

static int compare_u64(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left;
    uint64_t b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

static void permute_never_meets_itself_near_2_to_40(void **state) {
    (void)state;
    enum { SAMPLES = 20000 };
    static const uint64_t sizes[] = {(UINT64_C(1) << 40) - 1, UINT64_C(1) << 40,
                                     (UINT64_C(1) << 40) + 1, (UINT64_C(1) << 62)};
    static uint64_t values[SAMPLES];
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (uint64_t i = 0; i < SAMPLES; i++) {
            uint64_t from = i < SAMPLES / 2 ? i : sizes[s] - 1 - (i - SAMPLES / 2) * 7919;
            values[i] = permute(s + 5, sizes[s], from);
            assert_true(values[i] < sizes[s]);
        }
        qsort(values, SAMPLES, sizeof values[0], compare_u64);
        for (size_t i = 1; i < SAMPLES; i++) {
            assert_true(values[i - 1] != values[i]);
        }
    }
}

/* Mean of chi-square with f degrees of freedom is f, its variance 2f: seven deviations away is no
 * accident, and the keys are fixed, so this test gives the same figure for ever. */
static void assert_even(const char *what, uint64_t n, double chi_square, double freedom) {
    double excess = chi_square - freedom;
    if (excess > 0 && excess * excess > 49.0 * 2.0 * freedom) {
        fail_msg("%s, n %lu: chi-square %.1f with %.0f degrees of freedom", what, n, chi_square,
                 freedom);
    }
}

static void every_document_stands_at_every_place_equally_often(void **state) {
    (void)state;
    enum { N_MAX = 64, KEYS_PER_CELL = 50 };
    for (uint64_t n = 2; n <= N_MAX; n++) {
        static uint32_t counts[N_MAX][N_MAX];
        uint64_t keys = n * KEYS_PER_CELL;
        double chi_square = 0;
        memset(counts, 0, sizeof counts);
        for (uint64_t key = 0; key < keys; key++) {
            for (uint64_t i = 0; i < n; i++) {
                counts[i][permute(key, n, i)]++;
            }
        }
        for (uint64_t i = 0; i < n; i++) {
            for (uint64_t j = 0; j < n; j++) {
                double difference = counts[i][j] - (double)KEYS_PER_CELL;
                chi_square += difference * difference / KEYS_PER_CELL;
            }
        }
        assert_even("place", n, chi_square, (double)((n - 1) * (n - 1)));
    }
}

/* Pairs: where i goes says nothing about where its neighbour goes. */
static void neighbours_part_evenly(void **state) {
    (void)state;
    enum { N_MAX = 64, KEYS_PER_CELL = 200 };
    for (uint64_t n = 3; n <= N_MAX; n++) {
        uint32_t counts[N_MAX] = {0};
        uint64_t keys = (n - 1) * KEYS_PER_CELL;
        double chi_square = 0;
        for (uint64_t key = 0; key < keys; key++) {
            uint64_t i = key % (n - 1);
            counts[(permute(key, n, i + 1) + n - permute(key, n, i)) % n]++;
        }
        assert_int_equal(counts[0], 0);
        for (uint64_t j = 1; j < n; j++) {
            double difference = counts[j] - (double)KEYS_PER_CELL;
            chi_square += difference * difference / KEYS_PER_CELL;
        }
        assert_even("distance", n, chi_square, (double)(n - 2));
    }
}

static void every_arrangement_of_a_few_is_equally_likely(void **state) {
    (void)state;
    enum { PER_ARRANGEMENT = 500 };
    static const uint64_t factorials[] = {1, 1, 2, 6, 24, 120, 720};
    for (uint64_t n = 2; n <= 6; n++) {
        static uint32_t counts[46656];
        memset(counts, 0, sizeof counts);
        uint64_t keys = factorials[n] * PER_ARRANGEMENT;
        double chi_square = 0;
        for (uint64_t key = 0; key < keys; key++) {
            uint64_t arrangement = 0;
            for (uint64_t i = 0; i < n; i++) {
                arrangement = arrangement * n + permute(key, n, i);
            }
            counts[arrangement]++;
        }
        uint64_t met = 0;
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            if (counts[i] > 0) {
                double difference = counts[i] - (double)PER_ARRANGEMENT;
                chi_square += difference * difference / PER_ARRANGEMENT;
                met++;
            }
        }
        assert_int_equal(met, factorials[n]);
        assert_even("arrangement", n, chi_square, (double)(factorials[n] - 1));
    }
}

static uint64_t agreements(const struct order *left, uint32_t left_dataset, uint64_t left_epoch,
                           const struct order *right, uint32_t right_dataset,
                           uint64_t right_epoch) {
    uint64_t same = 0;
    for (uint64_t i = 0; i < 10000; i++) {
        same += order_document(left, left_dataset, left_epoch, 10000, i) ==
                order_document(right, right_dataset, right_epoch, 10000, i);
    }
    return same;
}

static void seed_dataset_and_epoch_each_make_another_order(void **state) {
    (void)state;
    static const enum order_shuffle shuffles[] = {ORDER_BLOCK, ORDER_FULL};
    for (size_t i = 0; i < 2; i++) {
        struct order order = {
            .seed = 7, .shuffle = shuffles[i], .block_documents = 8, .window_blocks = 64};
        struct order other = order;
        other.seed = 8;
        assert_int_equal(agreements(&order, 0, 0, &order, 0, 0), 10000);
        assert_true(agreements(&order, 0, 0, &other, 0, 0) < 20);
        assert_true(agreements(&order, 0, 0, &order, 1, 0) < 20);
        assert_true(agreements(&order, 0, 0, &order, 0, 1) < 20);
        assert_true(agreements(&order, 0, 1, &order, 1, 0) < 20);
    }
}

static void a_window_holds_whole_blocks(void **state) {
    (void)state;
    enum { BLOCK = 16, WINDOW = 4, DOCUMENTS = 1000 };
    struct order order = {
        .seed = 4, .shuffle = ORDER_BLOCK, .block_documents = BLOCK, .window_blocks = WINDOW};
    for (uint64_t start = 0; start + BLOCK * WINDOW <= DOCUMENTS; start += BLOCK * WINDOW) {
        uint32_t members[DOCUMENTS / BLOCK + 1] = {0};
        for (uint64_t i = start; i < start + BLOCK * WINDOW; i++) {
            members[order_document(&order, 0, 0, DOCUMENTS, i) / BLOCK]++;
        }
        for (size_t i = 0; i < DOCUMENTS / BLOCK; i++) {
            assert_true(members[i] == 0 || members[i] == BLOCK);
        }
    }
}

/* Fixed for ever: a changed order would be another job. */
static void order_of_known_keys_is_known(void **state) {
    (void)state;
    struct order order = {
        .seed = 42, .shuffle = ORDER_BLOCK, .block_documents = 256, .window_blocks = 64};
    uint64_t hash = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        hash = hash * UINT64_C(0x100000001b3) ^
               order_document(&order, 1, 2, UINT64_C(1) << 30, i * 1048573);
        hash = hash * UINT64_C(0x100000001b3) ^ permute(i, i + 1, i / 2);
    }
    assert_int_equal(hash, UINT64_C(0xa813a3166a3ced4b));
}

#define ASKED      20000u
#define ASKED_JUMP 7919u /* so no two in a row are near one another */

static const struct order asked_orders[] = {
    {.seed = 1, .shuffle = ORDER_FULL},
    {.seed = 2, .shuffle = ORDER_FULL},
    {.seed = 1, .shuffle = ORDER_BLOCK, .block_documents = 64, .window_blocks = 9},
    {.seed = 1, .shuffle = ORDER_BLOCK, .block_documents = 64, .window_blocks = 10},
    {.seed = 1, .shuffle = ORDER_BLOCK, .block_documents = 60, .window_blocks = 10},
};
#define ASKED_ORDERS (sizeof asked_orders / sizeof *asked_orders)

/* Asks a thread that knows nothing for one position after the other, all far apart. */
static void *ask_jumping(void *context) {
    uint64_t(*documents)[2][ASKED] = context;
    for (size_t order = 0; order < ASKED_ORDERS; order++) {
        for (uint32_t epoch = 0; epoch < 2; epoch++) {
            for (uint64_t i = 0; i < ASKED; i++) {
                uint64_t position = i * ASKED_JUMP % ASKED;
                documents[order][epoch][position] = order_document(&asked_orders[order], 3, epoch,
                                                                   ASKED, position);
            }
        }
    }
    return NULL;
}

/* Two readers of each order at once, one behind the other, as a planner has them. */
static void what_was_asked_before_changes_nothing(void **state) {
    (void)state;
    static uint64_t documents[ASKED_ORDERS][2][ASKED];
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, ask_jumping, documents), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    for (uint64_t i = 0; i < ASKED; i++) {
        for (size_t order = 0; order < ASKED_ORDERS; order++) {
            for (uint32_t epoch = 0; epoch < 2; epoch++) {
                uint64_t behind = i / 2 + i % 2;
                assert_int_equal(order_document(&asked_orders[order], 3, epoch, ASKED, i),
                                 documents[order][epoch][i]);
                assert_int_equal(order_document(&asked_orders[order], 3, epoch, ASKED, behind),
                                 documents[order][epoch][behind]);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(permute_is_a_bijection_for_every_small_n),
        cmocka_unit_test(block_order_is_a_bijection_for_every_small_world),
        cmocka_unit_test(block_order_is_a_bijection_with_real_sizes),
        cmocka_unit_test(no_shuffle_is_file_order),
        cmocka_unit_test(permute_never_meets_itself_near_2_to_40),
        cmocka_unit_test(every_document_stands_at_every_place_equally_often),
        cmocka_unit_test(neighbours_part_evenly),
        cmocka_unit_test(every_arrangement_of_a_few_is_equally_likely),
        cmocka_unit_test(seed_dataset_and_epoch_each_make_another_order),
        cmocka_unit_test(a_window_holds_whole_blocks),
        cmocka_unit_test(order_of_known_keys_is_known),
        cmocka_unit_test(what_was_asked_before_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
