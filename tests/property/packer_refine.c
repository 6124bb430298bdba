/* Refinement against the optimum of small worlds, all of them, and against its promises on large
 * ones. */
#include "packer/refine.h"

#include "splitmix.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ITEMS_MAX  600u
#define BINS_MAX   100u
#define SMALL_MAX  8u /* documents of a small world */
#define LENGTH_MAX 6u /* their longest */

/* What refinement reaches of the optimum, over all small worlds of one tightness. */
#define OPTIMAL_PERCENT_MIN 98u
#define ABOVE_PPM_MAX       600u

struct packing {
    uint32_t bin_of[ITEMS_MAX];
    uint32_t order[ITEMS_MAX];
    uint64_t work[BINS_MAX];
    uint64_t tokens[BINS_MAX];
};

static void pack(const struct pack_input *input, struct packing *out) {
    void *scratch = malloc(pack_greedy_bytes(input->items, input->bins));
    assert_non_null(scratch);
    pack_greedy(input, scratch, out->bin_of, out->order, out->work, out->tokens);
    free(scratch);
}

/* Scratch is exactly as large as the contract asks for: a sanitizer sees one byte more. */
static struct refine_report refine(const struct pack_input *input, uint32_t gap_ppm,
                                   uint64_t probes_max, struct packing *packing) {
    struct refine_options options = {gap_ppm, probes_max};
    void *scratch = malloc(pack_refine_bytes(input->items, input->bins));
    assert_non_null(scratch);
    struct refine_report report = pack_refine(input, &options, scratch, packing->bin_of,
                                              packing->order, packing->work, packing->tokens);
    free(scratch);
    return report;
}

static uint64_t heaviest(const uint64_t *work, uint32_t bins) {
    uint64_t most = 0;
    for (uint32_t bin = 0; bin < bins; bin++) {
        most = work[bin] > most ? work[bin] : most;
    }
    return most;
}

static const char *refined_fault(const struct pack_input *input, const struct packing *greedy,
                                 const struct packing *refined,
                                 const struct refine_report *report) {
    uint64_t work[BINS_MAX] = {0};
    uint64_t tokens[BINS_MAX] = {0};
    for (uint32_t i = 0; i < input->items; i++) {
        uint32_t bin = refined->bin_of[i];
        if ((bin == PACK_LEFT_OVER) != (greedy->bin_of[i] == PACK_LEFT_OVER)) {
            return "another document is left over";
        }
        if (bin == PACK_LEFT_OVER) {
            continue;
        }
        if (bin >= input->bins) {
            return "no such bin";
        }
        work[bin] += input->works[i];
        tokens[bin] += input->lengths[i];
    }
    if (memcmp(work, refined->work, input->bins * sizeof work[0]) != 0 ||
        memcmp(tokens, refined->tokens, input->bins * sizeof tokens[0]) != 0) {
        return "totals are not the sums";
    }
    for (uint32_t bin = 0; bin < input->bins; bin++) {
        if (tokens[bin] > input->tokens_max) {
            return "bound exceeded";
        }
    }
    if (memcmp(greedy->order, refined->order, input->items * sizeof greedy->order[0]) != 0) {
        return "order changed";
    }
    if (report->max != heaviest(work, input->bins)) {
        return "reported maximum is another";
    }
    if (report->max > heaviest(greedy->work, input->bins)) {
        return "worse than before";
    }
    return report->max < report->bound ? "below the bound" : NULL;
}

/* The optimum: branch and bound over the bins of one document after the other. */

struct optimum {
    const uint64_t *works;
    const uint32_t *lengths;
    uint32_t items;
    uint32_t bins;
    uint64_t tokens_max;
    uint64_t work[4];
    uint64_t tokens[4];
    uint64_t best;
};

static void optimum_place(struct optimum *optimum, uint32_t item) {
    if (item == optimum->items) {
        uint64_t most = heaviest(optimum->work, optimum->bins);
        optimum->best = most < optimum->best ? most : optimum->best;
        return;
    }
    for (uint32_t bin = 0; bin < optimum->bins; bin++) {
        bool first_empty = optimum->tokens[bin] == 0;
        optimum->work[bin] += optimum->works[item];
        optimum->tokens[bin] += optimum->lengths[item];
        if (optimum->tokens[bin] <= optimum->tokens_max && optimum->work[bin] < optimum->best) {
            optimum_place(optimum, item + 1);
        }
        optimum->work[bin] -= optimum->works[item];
        optimum->tokens[bin] -= optimum->lengths[item];
        if (first_empty) {
            break;
        }
    }
}

/* Of the documents that greedy placed, heaviest first. */
static uint64_t optimal_heaviest(const struct pack_input *input, const struct packing *packing) {
    uint64_t works[SMALL_MAX];
    uint32_t lengths[SMALL_MAX];
    struct optimum optimum = {.works = works,
                              .lengths = lengths,
                              .bins = input->bins,
                              .tokens_max = input->tokens_max,
                              .best = UINT64_MAX};
    for (uint32_t i = 0; i < input->items; i++) {
        uint32_t item = packing->order[i];
        if (packing->bin_of[item] != PACK_LEFT_OVER) {
            works[optimum.items] = input->works[item];
            lengths[optimum.items++] = input->lengths[item];
        }
    }
    optimum_place(&optimum, 0);
    return optimum.best;
}

/* How far above the optimum, over all worlds. */
struct gaps {
    uint32_t worlds;
    uint32_t optimal;
    uint32_t above[4]; /* up to 2 %, 5 %, 10 %, more */
    uint64_t worst_ppm;
    uint64_t sum_ppm;
};

static void gaps_count(struct gaps *gaps, uint64_t max, uint64_t optimum) {
    const uint64_t limits[] = {20000, 50000, 100000, UINT64_MAX};
    uint64_t ppm = optimum > 0 ? (max - optimum) * 1000000 / optimum : 0;
    uint32_t class = 0;
    while (ppm > limits[class]) {
        class ++;
    }
    gaps->worlds++;
    gaps->optimal += max == optimum;
    gaps->above[class] += max != optimum;
    gaps->sum_ppm += ppm;
    gaps->worst_ppm = ppm > gaps->worst_ppm ? ppm : gaps->worst_ppm;
}

static void gaps_print(const char *name, const struct gaps *gaps) {
    double percent = 100.0 / gaps->worlds;
    printf("%-17s %u worlds: %.2f %% optimal; above it by up to 2 %%: %.2f %%, 5 %%: %.2f %%, "
           "10 %%: %.2f %%, more: %.2f %%; mean %.3f %%, worst %.1f %%\n",
           name, gaps->worlds, gaps->optimal * percent, gaps->above[0] * percent,
           gaps->above[1] * percent, gaps->above[2] * percent, gaps->above[3] * percent,
           (double)gaps->sum_ppm / 1e4 / gaps->worlds, (double)gaps->worst_ppm / 1e4);
}

static bool digits_next_ascending(uint32_t *digits, uint32_t count, uint32_t base) {
    for (uint32_t i = count; i-- > 0;) {
        if (digits[i] + 1 < base) {
            uint32_t digit = digits[i] + 1;
            for (uint32_t j = i; j < count; j++) {
                digits[j] = digit;
            }
            return true;
        }
    }
    return false;
}

static void check_small_world(const struct pack_input *input, struct gaps *before,
                              struct gaps *after) {
    struct packing greedy;
    pack(input, &greedy);
    struct packing refined = greedy;
    struct refine_report report = refine(input, 0, UINT64_MAX, &refined);
    uint64_t optimum = optimal_heaviest(input, &greedy);
    const char *fault = refined_fault(input, &greedy, &refined, &report);
    if (fault == NULL && (report.max < optimum || report.bound > optimum)) {
        fault = report.max < optimum ? "below the optimum" : "the bound is above the optimum";
    }
    if (fault != NULL) {
        print_error("%u bins of %" PRIu64 ":", input->bins, input->tokens_max);
        for (uint32_t i = 0; i < input->items; i++) {
            print_error(" %u", input->lengths[i]);
        }
        fail_msg(" %s", fault);
    }
    gaps_count(before, heaviest(greedy.work, input->bins), optimum);
    gaps_count(after, report.max, optimum);
}

/* `above_mean`: tokens that a bin holds beyond an equal share. */
static void check_small_worlds(uint64_t above_mean, struct gaps *before, struct gaps *after) {
    for (uint32_t items = 0; items <= SMALL_MAX; items++) {
        uint32_t digits[SMALL_MAX] = {0};
        do {
            uint32_t lengths[SMALL_MAX];
            uint64_t works[SMALL_MAX];
            uint64_t tokens = 0;
            for (uint32_t i = 0; i < items; i++) {
                lengths[i] = 1 + digits[i];
                works[i] = (uint64_t)lengths[i] * (lengths[i] + 4);
                tokens += lengths[i];
            }
            for (uint32_t bins = 1; bins <= 4; bins++) {
                struct pack_input input = {
                    lengths,          works, items, bins, (tokens + bins - 1) / bins + above_mean,
                    PACK_SEARCH_EXACT};
                check_small_world(&input, before, after);
            }
        } while (digits_next_ascending(digits, items, LENGTH_MAX));
    }
}

static void refine_stands_between_optimum_and_greedy_in_all_small_worlds(void **state) {
    (void)state;
    const uint64_t above_mean[] = {0, 1, 1000};
    for (int i = 0; i < 3; i++) {
        struct gaps before = {0};
        struct gaps after = {0};
        check_small_worlds(above_mean[i], &before, &after);
        printf("bins of the mean and %" PRIu64 " tokens more\n", above_mean[i]);
        gaps_print("  greedy", &before);
        gaps_print("  greedy and refine", &after);
        assert_true(after.sum_ppm <= before.sum_ppm && after.optimal >= before.optimal);
        assert_true(after.optimal * 100 >= after.worlds * OPTIMAL_PERCENT_MIN);
        assert_true(after.sum_ppm <= (uint64_t)after.worlds * ABOVE_PPM_MAX);
    }
}

static uint64_t drawn_work(uint64_t *random, uint32_t kind, uint32_t length) {
    switch (kind) {
    case 0:
    case 1:
        return (uint64_t)length * (length + 24576);
    case 2:
        return splitmix_next(random) >> 20;
    case 3:
        return splitmix_next(random) % 3;
    default:
        return 0;
    }
}

struct large_world {
    uint32_t lengths[ITEMS_MAX];
    uint64_t works[ITEMS_MAX];
    struct pack_input input;
};

static void draw_large_world(struct large_world *world, uint64_t seed) {
    uint64_t random = seed;
    uint32_t items = splitmix_between(&random, 1, ITEMS_MAX);
    uint32_t bins = splitmix_between(&random, 1, seed % 2 ? 8 : BINS_MAX);
    uint32_t length_max = seed % 4 ? 65536 : 40;
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < items; i++) {
        world->lengths[i] = splitmix_between(&random, 1, length_max);
        world->works[i] = drawn_work(&random, (uint32_t)(seed % 5), world->lengths[i]);
        tokens += world->lengths[i];
    }
    uint64_t tightness = splitmix_between(&random, 90, 150); /* percent */
    world->input = (struct pack_input){
        world->lengths,   world->works, items, bins, tokens * tightness / (100 * bins) + 1,
        PACK_SEARCH_EXACT};
}

static void refine_keeps_its_promises_on_large_random_worlds(void **state) {
    (void)state;
    static struct large_world world;
    static struct packing greedy;
    static struct packing refined;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        draw_large_world(&world, seed);
        pack(&world.input, &greedy);
        refined = greedy;
        struct refine_report report = refine(&world.input, 0, 20000, &refined);
        const char *fault = refined_fault(&world.input, &greedy, &refined, &report);
        if (fault != NULL) {
            fail_msg("seed %" PRIu64 ": %s", seed, fault);
        }
    }
}

static uint32_t largest_length(const struct pack_input *input) {
    uint32_t largest = 0;
    for (uint32_t i = 0; i < input->items; i++) {
        largest = input->lengths[i] > largest ? input->lengths[i] : largest;
    }
    return largest;
}

/* Whether trading items of the heaviest bin for items of another levels the two. The index `items`
 * stands for none. */
static bool trade_helps(const struct pack_input *input, const struct packing *packing,
                        const uint32_t out[2], const uint32_t in[2], uint32_t light) {
    uint32_t heavy = packing->bin_of[out[0]];
    uint64_t work[2] = {packing->work[heavy], packing->work[light]};
    uint64_t tokens[2] = {packing->tokens[heavy], packing->tokens[light]};
    for (int i = 0; i < 2; i++) {
        if (out[i] != input->items) {
            work[0] -= input->works[out[i]];
            work[1] += input->works[out[i]];
            tokens[0] -= input->lengths[out[i]];
            tokens[1] += input->lengths[out[i]];
        }
        if (in[i] != input->items) {
            work[0] += input->works[in[i]];
            work[1] -= input->works[in[i]];
            tokens[0] += input->lengths[in[i]];
            tokens[1] -= input->lengths[in[i]];
        }
    }
    return work[0] < packing->work[heavy] && work[1] < packing->work[heavy] &&
           tokens[0] <= input->tokens_max && tokens[1] <= input->tokens_max;
}

/* The items of a bin and, last, one that stands for none. */
static uint32_t items_of(const struct pack_input *input, const struct packing *packing,
                         uint32_t bin, uint32_t *items) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < input->items; i++) {
        if (packing->bin_of[i] == bin) {
            items[count++] = i;
        }
    }
    items[count++] = input->items;
    return count;
}

static bool any_trade_helps(const struct pack_input *input, const struct packing *packing,
                            uint32_t heavy, uint32_t light) {
    uint32_t out[ITEMS_MAX + 1];
    uint32_t in[ITEMS_MAX + 1];
    uint32_t outs = items_of(input, packing, heavy, out);
    uint32_t ins = items_of(input, packing, light, in);
    for (uint32_t a = 0; a + 1 < outs; a++) {
        for (uint32_t b = a + 1; b < outs; b++) {
            for (uint32_t c = 0; c < ins; c++) {
                for (uint32_t d = c + 1 < ins ? c + 1 : c; d < ins; d++) {
                    bool two_for_two = b + 1 < outs && c + 1 < ins && d + 1 < ins;
                    if (!two_for_two && trade_helps(input, packing, (uint32_t[]){out[a], out[b]},
                                                    (uint32_t[]){in[c], in[d]}, light)) {
                        return true;
                    }
                }
            }
        }
    }
    return false;
}

/* With probes left and no gap allowed, it ends where no trade helps any more, or at the bound. */
static void refine_ends_where_no_trade_helps_the_heaviest_bin(void **state) {
    (void)state;
    static struct large_world world;
    static struct packing packing;
    uint32_t above_bound = 0;
    for (uint64_t seed = 5; seed <= 1500; seed += 5) { /* works that follow length */
        draw_large_world(&world, seed);
        world.input.items = world.input.items % 60 + 1;
        world.input.bins = world.input.bins % 14 + 2;
        world.input.tokens_max = largest_length(&world.input) + seed % 7 * 10000;
        pack(&world.input, &packing);
        struct refine_report report = refine(&world.input, 0, UINT64_MAX, &packing);
        uint32_t heavy = 0;
        while (packing.work[heavy] < report.max) {
            heavy++;
        }
        for (uint32_t light = 0; light < world.input.bins && report.max > report.bound; light++) {
            if (light != heavy && any_trade_helps(&world.input, &packing, heavy, light)) {
                fail_msg("seed %" PRIu64 ": bins %u and %u", seed, heavy, light);
            }
        }
        above_bound += report.max > report.bound;
    }
    assert_true(above_bound >= 100);
}

static void refine_gives_the_same_again(void **state) {
    (void)state;
    static struct large_world world;
    static struct packing greedy;
    static struct packing first;
    static struct packing second;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        draw_large_world(&world, seed);
        pack(&world.input, &greedy);
        first = greedy;
        second = greedy;
        struct refine_report a = refine(&world.input, 10, 50000, &first);
        struct refine_report b = refine(&world.input, 10, 50000, &second);
        assert_int_equal(a.rounds, b.rounds);
        assert_memory_equal(first.bin_of, second.bin_of,
                            world.input.items * sizeof first.bin_of[0]);
    }
}

/* Documents in any order that a caller likes: the lists inside are sorted all the same. */
static void refine_takes_documents_in_any_order(void **state) {
    (void)state;
    static struct large_world world;
    static struct packing greedy;
    static struct packing ordered;
    static struct packing reversed;
    for (uint64_t seed = 5; seed <= 250; seed += 5) { /* works that follow length */
        draw_large_world(&world, seed);
        uint32_t items = world.input.items;
        pack(&world.input, &greedy);
        ordered = greedy;
        reversed = greedy;
        for (uint32_t i = 0; i < items; i++) {
            reversed.order[i] = greedy.order[items - 1 - i];
        }
        struct refine_report a = refine(&world.input, 10, 50000, &ordered);
        struct refine_report b = refine(&world.input, 10, 50000, &reversed);
        assert_int_equal(a.max, b.max);
        assert_memory_equal(ordered.work, reversed.work, world.input.bins * sizeof(uint64_t));
    }
}

static void refine_within_the_gap_changes_nothing(void **state) {
    (void)state;
    static struct large_world world;
    static struct packing greedy;
    static struct packing refined;
    uint32_t within = 0;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        draw_large_world(&world, seed);
        pack(&world.input, &greedy);
        refined = greedy;
        struct refine_report report = refine(&world.input, 100000, 100000, &refined);
        uint64_t enough = report.bound + report.bound / 10;
        if (heaviest(greedy.work, world.input.bins) <= enough) {
            assert_int_equal(report.rounds, 0);
            assert_memory_equal(&refined, &greedy, sizeof greedy);
            within++;
        }
    }
    assert_in_range(within, 10, 90);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refine_stands_between_optimum_and_greedy_in_all_small_worlds),
        cmocka_unit_test(refine_keeps_its_promises_on_large_random_worlds),
        cmocka_unit_test(refine_ends_where_no_trade_helps_the_heaviest_bin),
        cmocka_unit_test(refine_gives_the_same_again),
        cmocka_unit_test(refine_takes_documents_in_any_order),
        cmocka_unit_test(refine_within_the_gap_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
