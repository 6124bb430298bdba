/* The level release by example: each point the contract settles, by hand. */
#include "queues/level.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WINDOW   1000u
#define SHORT    10u
#define SHORTS   2000u
#define POOL_MAX 16u
#define LINEAR   100u

/* Four bins of two windows, plenty of shorts of 10 tokens, outliers added in stream order. */
struct pool {
    struct level_options options;
    struct level_state state;
    uint32_t count;
    uint32_t lengths[POOL_MAX];
    uint64_t works[POOL_MAX];
    uint64_t nominal_steps[POOL_MAX];
    uint64_t indices[POOL_MAX];
    uint32_t short_lengths[SHORTS];
    uint64_t short_works[SHORTS];
    uint32_t shorts;
    uint8_t verdicts[POOL_MAX];
    struct level_decision decision;
};

static void pool_open(struct pool *pool, enum level_preset preset, uint64_t step) {
    memset(pool, 0, sizeof *pool);
    level_options_preset(preset, WINDOW, &pool->options);
    pool->options.bins = 4;
    pool->options.bin_tokens = 2 * WINDOW;
    pool->options.step_tokens = 4 * WINDOW;
    pool->options.token_work = LINEAR;
    pool->state.step = step;
    pool->state.target_tokens = step * pool->options.step_tokens;
    pool->state.delivered_tokens = pool->state.target_tokens;
    pool->shorts = SHORTS;
    for (uint32_t i = 0; i < SHORTS; i++) {
        pool->short_lengths[i] = SHORT;
        pool->short_works[i] = SHORT * (SHORT + LINEAR);
    }
}

/* Lengths ascending; nominal steps ascending among those of one length. */
static void pool_add(struct pool *pool, uint32_t length, uint64_t nominal_step) {
    uint32_t i = pool->count++;
    pool->lengths[i] = length;
    pool->works[i] = (uint64_t)length * (length + LINEAR);
    pool->nominal_steps[i] = nominal_step;
    pool->indices[i] = nominal_step * 100 + i;
}

static void pool_decide(struct pool *pool) {
    struct level_view view = {
        .candidates = pool->count,
        .lengths = pool->lengths,
        .works = pool->works,
        .nominal_steps = pool->nominal_steps,
        .stream_indices = pool->indices,
        .shorts = pool->shorts,
        .short_lengths = pool->short_lengths,
        .short_works = pool->short_works,
    };
    void *scratch = malloc(level_bytes(&pool->options, pool->count));
    assert_non_null(scratch);
    level_decide(&pool->options, &pool->state, &view, scratch, pool->verdicts, &pool->decision);
    free(scratch);
}

static void level_without_outliers_asks_for_the_steps_tokens(void **state) {
    (void)state;
    static struct pool pool;
    pool_open(&pool, LEVEL_BALANCED, 5);
    pool_decide(&pool);
    assert_int_equal(pool.decision.tokens, 4 * WINDOW);
    assert_int_equal(pool.decision.predicted_ppm, LEVEL_PPM);
    assert_int_equal(pool.decision.released, 0);
    assert_true(pool.decision.accepted);
}

static void level_releases_as_many_like_outliers_as_there_are_bins(void **state) {
    (void)state;
    static struct pool pool;
    pool_open(&pool, LEVEL_BALANCED, 5);
    for (uint32_t i = 0; i < 4; i++) {
        pool_add(&pool, 900 + i, 5);
    }
    pool_decide(&pool);
    assert_int_equal(pool.decision.released, 4);
    assert_int_equal(pool.decision.released_tokens, 3606);
    assert_true(pool.decision.accepted);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(pool.verdicts[i], LEVEL_RELEASED);
    }
}

static void level_holds_a_lone_outlier_until_it_is_due(void **state) {
    (void)state;
    static struct pool pool;
    for (uint64_t age = 0; age <= 64; age++) {
        pool_open(&pool, LEVEL_BALANCED, 100);
        pool_add(&pool, WINDOW, 100 - age);
        pool_decide(&pool);
        assert_int_equal(pool.verdicts[0], age < 64 ? LEVEL_WAITS : LEVEL_DUE);
        assert_int_equal(pool.decision.due, age == 64);
        assert_int_equal(pool.decision.present_tokens, WINDOW);
    }
    assert_false(pool.decision.accepted);
    assert_true(pool.decision.predicted_ppm > 2 * LEVEL_PPM);
    assert_int_equal(pool.decision.urgency_ppm, 125000); /* by backlog: the due one does not age */
}

static void level_hides_a_shorter_outlier_beside_a_due_one(void **state) {
    (void)state;
    static struct pool pool;
    pool_open(&pool, LEVEL_BALANCED, 100);
    pool_add(&pool, 600, 100);
    pool_add(&pool, WINDOW, 36);
    pool_decide(&pool);
    assert_int_equal(pool.verdicts[0], LEVEL_RELEASED);
    assert_int_equal(pool.verdicts[1], LEVEL_DUE);
}

static void level_completes_a_group_from_the_steps_ahead(void **state) {
    (void)state;
    static struct pool pool;
    pool_open(&pool, LEVEL_BALANCED, 50);
    pool_add(&pool, 900, 48);
    pool_add(&pool, 901, 49);
    pool_add(&pool, 902, 50);
    pool_add(&pool, 903, 52);
    pool_decide(&pool);
    assert_int_equal(pool.verdicts[3], LEVEL_EARLY);
    assert_int_equal(pool.decision.released, 4);
    assert_int_equal(pool.decision.early, 1);
    pool.nominal_steps[3] = 55; /* beyond look_ahead */
    pool_decide(&pool);
    assert_int_equal(pool.decision.released, 0);
}

static void level_leaves_companions_that_are_too_short_to_their_steps(void **state) {
    (void)state;
    static struct pool pool;
    pool_open(&pool, LEVEL_BALANCED, 50);
    pool_add(&pool, 629, 51); /* below 7/10 of 900 */
    for (uint32_t i = 0; i < 4; i++) {
        pool_add(&pool, 900, 50);
    }
    pool_decide(&pool);
    assert_int_equal(pool.verdicts[0], LEVEL_WAITS);
    assert_int_equal(pool.decision.released, 4);
}

static void level_takes_the_oldest_as_due_when_the_pool_outgrows_the_horizon(void **state) {
    (void)state;
    static struct pool pool;
    pool_open(&pool, LEVEL_BALANCED, 50);
    pool.options.horizon = 4;
    for (uint32_t i = 0; i < 13; i++) {
        pool_add(&pool, WINDOW, 40 + i / 2);
    }
    pool_decide(&pool);
    assert_int_equal(pool.decision.present_tokens, 13 * WINDOW);
    assert_int_equal(pool.decision.due, 1); /* 12 windows are three steps */
    assert_int_equal(pool.verdicts[0], LEVEL_DUE);
}

static void level_says_how_many_due_documents_found_no_room(void **state) {
    (void)state;
    static struct pool pool;
    pool_open(&pool, LEVEL_STEADY, 100);
    for (uint32_t i = 0; i < 6; i++) {
        pool_add(&pool, WINDOW, 30 + i);
    }
    pool_decide(&pool);
    assert_int_equal(pool.decision.due, 4); /* 1 % above 4 windows is not a fifth */
    assert_int_equal(pool.decision.due_missed, 2);
    assert_int_equal(pool.verdicts[4], LEVEL_WAITS);
}

static void level_returns_what_a_step_took_too_much_in_the_next(void **state) {
    (void)state;
    static struct pool pool;
    pool_open(&pool, LEVEL_BALANCED, 5);
    pool.state.delivered_tokens += 300;
    pool_decide(&pool);
    assert_int_equal(pool.decision.tokens, 4 * WINDOW - 300);
    pool.state.delivered_tokens -= 500;
    pool_decide(&pool);
    assert_int_equal(pool.decision.tokens, 4 * WINDOW + 200);
}

static void level_keeps_a_step_within_the_tolerance(void **state) {
    (void)state;
    static struct pool pool;
    pool_open(&pool, LEVEL_STEADY, 5);
    pool.options.token_tolerance = LEVEL_PPM / 100;
    pool.state.delivered_tokens += 300;
    pool_decide(&pool);
    assert_in_range(pool.decision.tokens, 4 * WINDOW * 99 / 100, 4 * WINDOW * 99 / 100 + 1);
    pool.state.delivered_tokens -= 600;
    pool_decide(&pool);
    assert_in_range(pool.decision.tokens, 4 * WINDOW * 101 / 100 - 1, 4 * WINDOW * 101 / 100);
}

static void level_waives_the_tolerance_more_than_half_a_step_behind(void **state) {
    (void)state;
    static struct pool pool;
    pool_open(&pool, LEVEL_STEADY, 5);
    pool.state.delivered_tokens -= 2001;
    pool_decide(&pool);
    assert_int_equal(pool.decision.tokens, 6001);
    pool.state.delivered_tokens -= 1999;
    pool_decide(&pool);
    assert_int_equal(pool.decision.tokens, 8 * WINDOW); /* all that the bins hold */
}

static void level_sets_the_clock_back_by_what_exceeds_a_step(void **state) {
    (void)state;
    static struct pool pool;
    pool_open(&pool, LEVEL_STEADY, 0);
    struct level_state clock = {0};
    level_advance(&pool.options, &clock, 1000);
    assert_int_equal(clock.target_tokens, 4000);
    assert_int_equal(clock.slip_tokens, 0);
    level_advance(&pool.options, &clock, 2500);
    assert_int_equal(clock.step, 2);
    assert_int_equal(clock.delivered_tokens, 3500);
    assert_int_equal(clock.target_tokens, 7500);
    assert_int_equal(clock.slip_tokens, 500);
}

/* Tokens of the shorts marked, and that the others are not. */
static void check_taken(const struct level_options *options, uint64_t tokens,
                        const uint8_t *expected) {
    static const uint32_t lengths[] = {5, 4, 3, 9, 1, 2, 1};
    uint8_t taken[7];
    uint64_t sum = 0;
    memset(taken, 0xff, sizeof taken);
    for (uint32_t i = 0; i < 7; i++) {
        sum += expected[i] ? lengths[i] : 0;
    }
    assert_int_equal(level_take_shorts(options, lengths, 7, 100, 100 + tokens, taken), sum);
    assert_memory_equal(taken, expected, sizeof taken);
}

static void level_takes_shorts_in_order_then_those_that_still_fit(void **state) {
    (void)state;
    struct level_options options;
    level_options_preset(LEVEL_BALANCED, WINDOW, &options);
    check_taken(&options, 0, (const uint8_t[]){0, 0, 0, 0, 0, 0, 0});
    check_taken(&options, 9, (const uint8_t[]){1, 1, 0, 0, 0, 0, 0});
    check_taken(&options, 14, (const uint8_t[]){1, 1, 1, 0, 1, 0, 1});
    check_taken(&options, 25, (const uint8_t[]){1, 1, 1, 1, 1, 1, 1});
    check_taken(&options, 1000, (const uint8_t[]){1, 1, 1, 1, 1, 1, 1});
    options.fit_window = 1;
    check_taken(&options, 14, (const uint8_t[]){1, 1, 1, 0, 0, 0, 0});
    options.fit_window = 2;
    check_taken(&options, 14, (const uint8_t[]){1, 1, 1, 0, 1, 0, 0});
    check_taken(&options, 15, (const uint8_t[]){1, 1, 1, 0, 1, 0, 0});
    check_taken(&options, 4, (const uint8_t[]){0, 1, 0, 0, 0, 0, 0});
}

static void level_presets_are_sound_and_found_by_name_alone(void **state) {
    (void)state;
    static const char *const names[] = {"balanced", "steady", "prompt", "fine"};
    for (uint32_t i = 0; i < 4; i++) {
        enum level_preset preset = LEVEL_BALANCED;
        assert_int_equal(level_preset_parse(names[i], &preset), 0);
        assert_int_equal(preset, i);
        assert_string_equal(level_preset_name(preset), names[i]);
        struct level_options options;
        struct level_fault fault;
        level_options_preset(preset, WINDOW, &options);
        assert_int_equal(level_options_check(&options, &fault), 0);
        assert_int_equal(options.candidate_length, WINDOW / 8);
        level_options_preset(preset, 1, &options);
        assert_int_equal(level_options_check(&options, &fault), 0);
    }
    enum level_preset untouched = LEVEL_FINE;
    assert_int_equal(level_preset_parse("Balanced", &untouched), -EINVAL);
    assert_int_equal(level_preset_parse("", &untouched), -EINVAL);
    assert_int_equal(untouched, LEVEL_FINE);
    assert_null(level_preset_name((enum level_preset)4));
}

static void check_fault(const struct level_options *options, const char *key, uint64_t value) {
    struct level_fault fault = {0};
    assert_int_equal(level_options_check(options, &fault), -EINVAL);
    assert_string_equal(fault.key, key);
    assert_int_equal(fault.value, value);
    assert_true(fault.value < fault.least || fault.value > fault.most);
    assert_true(strlen(fault.remedy) > 0);
}

#define CHECK_FAULT(field, wrong)                                                                  \
    do {                                                                                           \
        struct level_options options;                                                              \
        level_options_preset(LEVEL_BALANCED, WINDOW, &options);                                    \
        options.field = (wrong);                                                                   \
        check_fault(&options, #field, (wrong));                                                    \
    } while (0)

static void level_refuses_options_by_name_value_and_remedy(void **state) {
    (void)state;
    CHECK_FAULT(token_tolerance, LEVEL_PPM + 1);
    CHECK_FAULT(headroom_share, LEVEL_PPM + 1);
    CHECK_FAULT(allowance, 1000 * LEVEL_PPM + 1);
    CHECK_FAULT(allowance_urgent, 39999u); /* below allowance */
    CHECK_FAULT(allowance_ramp, 1000 * LEVEL_PPM + 1);
    CHECK_FAULT(urgency_power, 0u);
    CHECK_FAULT(urgency_power, 17u);
    CHECK_FAULT(imbalance_price, 1001u);
    CHECK_FAULT(max_age, (1u << 20) + 1);
    CHECK_FAULT(max_backlog, 1000 * LEVEL_PPM + 1);
    CHECK_FAULT(look_ahead, (1u << 12) + 1);
    CHECK_FAULT(horizon, 3u); /* below look_ahead, and max_backlog and 2 */
    CHECK_FAULT(horizon, (1u << 13) + 1);
    CHECK_FAULT(candidate_length, 0u);
    CHECK_FAULT(companion, LEVEL_PPM + 1);
    CHECK_FAULT(max_evaluations, 0u);
    CHECK_FAULT(fit_window, 0u);
}

static void level_asks_for_a_horizon_beyond_look_ahead_and_backlog(void **state) {
    (void)state;
    struct level_options options;
    struct level_fault fault;
    level_options_preset(LEVEL_BALANCED, WINDOW, &options);
    options.horizon = 4; /* max_backlog 2 and 2, look_ahead 4 */
    assert_int_equal(level_options_check(&options, &fault), 0);
    options.look_ahead = 5;
    check_fault(&options, "horizon", 4);
    options.look_ahead = 0;
    options.max_backlog = 2 * LEVEL_PPM + 1;
    check_fault(&options, "horizon", 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(level_without_outliers_asks_for_the_steps_tokens),
        cmocka_unit_test(level_releases_as_many_like_outliers_as_there_are_bins),
        cmocka_unit_test(level_holds_a_lone_outlier_until_it_is_due),
        cmocka_unit_test(level_hides_a_shorter_outlier_beside_a_due_one),
        cmocka_unit_test(level_completes_a_group_from_the_steps_ahead),
        cmocka_unit_test(level_leaves_companions_that_are_too_short_to_their_steps),
        cmocka_unit_test(level_takes_the_oldest_as_due_when_the_pool_outgrows_the_horizon),
        cmocka_unit_test(level_says_how_many_due_documents_found_no_room),
        cmocka_unit_test(level_returns_what_a_step_took_too_much_in_the_next),
        cmocka_unit_test(level_keeps_a_step_within_the_tolerance),
        cmocka_unit_test(level_waives_the_tolerance_more_than_half_a_step_behind),
        cmocka_unit_test(level_sets_the_clock_back_by_what_exceeds_a_step),
        cmocka_unit_test(level_takes_shorts_in_order_then_those_that_still_fit),
        cmocka_unit_test(level_presets_are_sound_and_found_by_name_alone),
        cmocka_unit_test(level_refuses_options_by_name_value_and_remedy),
        cmocka_unit_test(level_asks_for_a_horizon_beyond_look_ahead_and_backlog),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
