/* The exact fixed-length solver: against every assignment there is, and against the clock. */
#include "client/ctl/exact.h"

#include "client/ctl/progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PIECES_MAX 400u

static uint64_t next_random(uint64_t *seed) {
    *seed += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = *seed;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint32_t draw(uint64_t *seed, uint32_t low, uint32_t high) {
    return low + (uint32_t)(next_random(seed) % (high - low + 1));
}

/* `model` is the linear part. */
static uint64_t quadratic(const void *model, uint32_t length) {
    return (uint64_t)length * (length + *(const uint32_t *)model);
}

/* Windows filled one after the other, so that they fit; some to the last token. */
static uint32_t pieces_draw(uint64_t *seed, uint32_t windows, uint32_t window_tokens,
                            uint32_t each_max, struct exact_piece *pieces) {
    uint32_t count = 0;
    for (uint32_t w = 0; w < windows; w++) {
        uint32_t left = window_tokens;
        uint32_t each = draw(seed, 1, each_max);
        bool full = draw(seed, 0, 2) > 0;
        for (uint32_t i = 0; i < each && left > 0; i++) {
            uint32_t length = i + 1 == each && full ? left : draw(seed, 1, left / 2 + 1);
            pieces[count++] = (struct exact_piece){.length = length, .window = w};
            left -= length;
        }
    }
    return count;
}

struct brute {
    const struct exact_piece *pieces;
    uint32_t count, windows, window_tokens, linear;
    uint64_t works[4];
    uint32_t tokens[4];
    uint64_t best;
};

static void brute_place(struct brute *brute, uint32_t piece, uint64_t heaviest) {
    if (piece == brute->count) {
        brute->best = heaviest < brute->best ? heaviest : brute->best;
        return;
    }
    uint32_t length = brute->pieces[piece].length;
    uint64_t work = quadratic(&brute->linear, length);
    for (uint32_t w = 0; w < brute->windows; w++) {
        if (brute->tokens[w] + length <= brute->window_tokens) {
            brute->tokens[w] += length;
            brute->works[w] += work;
            brute_place(brute, piece + 1, brute->works[w] > heaviest ? brute->works[w] : heaviest);
            brute->works[w] -= work;
            brute->tokens[w] -= length;
        }
    }
}

static void expect_counted_once(const struct exact_instance *instance, uint64_t heaviest) {
    uint64_t found = 0;
    for (uint32_t c = 0; c < instance->class_count; c++) {
        uint32_t count = 0;
        for (uint32_t w = 0; w < instance->windows; w++) {
            count += instance->held[w * instance->class_count + c];
        }
        assert_int_equal(count, instance->classes[c].count);
    }
    for (uint32_t w = 0; w < instance->windows; w++) {
        uint64_t tokens = 0;
        for (uint32_t c = 0; c < instance->class_count; c++) {
            tokens += (uint64_t)instance->held[w * instance->class_count + c] *
                      instance->classes[c].length;
        }
        assert_true(tokens <= instance->window_tokens);
        uint64_t work = exact_window_work(instance, w);
        found = work > found ? work : found;
    }
    assert_int_equal(found, heaviest);
}

static void exact_is_what_trying_every_assignment_finds(void **state) {
    (void)state;
    uint32_t improved = 0;
    for (uint64_t world = 0; world < 600; world++) {
        uint64_t seed = world;
        struct exact_piece pieces[16];
        struct exact_instance instance;
        struct exact_answer answer;
        struct error error = {0};
        uint32_t windows = draw(&seed, 1, 4);
        struct brute brute = {
            .pieces = pieces,
            .windows = windows,
            .window_tokens = draw(&seed, 4, 60),
            .linear = draw(&seed, 0, 1) * 24,
            .best = UINT64_MAX,
        };
        brute.count = pieces_draw(&seed, windows, brute.window_tokens, 10 / windows, pieces);
        assert_int_equal(exact_instance_init(&instance, pieces, brute.count, windows,
                                             brute.window_tokens, quadratic, &brute.linear, &error),
                         0);
        brute_place(&brute, 0, 0);
        assert_int_equal(exact_solve(&instance, 60000, &answer, &error), 0);
        if (!answer.optimal || answer.work != brute.best || answer.bound_work != brute.best) {
            fail_msg("world %d: optimal %d, work %ju, bound %ju, brute force %ju", (int)world,
                     answer.optimal, (uintmax_t)answer.work, (uintmax_t)answer.bound_work,
                     (uintmax_t)brute.best);
        }
        assert_true(answer.work <= answer.greedy_work);
        expect_counted_once(&instance, answer.work);
        improved += answer.work < answer.greedy_work;
        exact_instance_deinit(&instance);
    }
    assert_true(improved > 100);
}

/* Sixteen windows full to the last token: far too many assignments for the time given. */
static void exact_keeps_its_time_and_still_proves_a_bound(void **state) {
    (void)state;
    static const uint32_t linear = 24576;
    static const uint32_t window_tokens = 131072;
    struct exact_piece pieces[PIECES_MAX];
    struct exact_instance instance;
    struct exact_answer answer;
    struct error error = {0};
    uint64_t seed = 20250707;
    uint32_t count = pieces_draw(&seed, 16, window_tokens, PIECES_MAX / 16, pieces);
    assert_int_equal(exact_instance_init(&instance, pieces, count, 16, window_tokens, quadratic,
                                         &linear, &error),
                     0);
    uint64_t start_ns = progress_clock_ns();
    assert_int_equal(exact_solve(&instance, 300, &answer, &error), 0);
    assert_true(progress_clock_ns() - start_ns < UINT64_C(30000000000));
    assert_true(answer.bound_work <= answer.work);
    assert_true(answer.work <= answer.greedy_work);
    assert_true(answer.bound_work >= quadratic(&linear, instance.classes[0].length));
    expect_counted_once(&instance, answer.work);
    exact_instance_deinit(&instance);
}

static void too_large_an_instance_is_refused(void **state) {
    (void)state;
    enum { COUNT = 2000 };
    static const uint32_t linear = 0;
    struct exact_piece *pieces = calloc(COUNT, sizeof *pieces);
    struct exact_instance instance = {0};
    struct error error = {0};
    assert_non_null(pieces);
    for (uint32_t i = 0; i < COUNT; i++) {
        pieces[i] = (struct exact_piece){.length = i + 1, .window = i};
    }
    assert_int_equal(
        exact_instance_init(&instance, pieces, COUNT, COUNT, COUNT, quadratic, &linear, &error),
        -ENOBUFS);
    assert_non_null(strstr(error.text, "fewer batches"));
    exact_instance_deinit(&instance);
    free(pieces);
}

int main(void) {
    struct error error = {0};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_is_what_trying_every_assignment_finds),
        cmocka_unit_test(exact_keeps_its_time_and_still_proves_a_bound),
        cmocka_unit_test(too_large_an_instance_is_refused),
    };
    if (exact_check(&error) < 0) {
        printf("skipped: %s\n", error.text);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
