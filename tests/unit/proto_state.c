/* States as messages: what waits by queue, what arrived and where it went, how late it was. */
#include "proto/message.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { DATASETS = 2, WAITING = 6 };

static const struct plan_options options = {
    .policy = POLICY_WLB_BANDS,
    .bands = {.length_min = {100, 1000}, .bands = 2, .group = 4, .age_max = 64}};

/* In arrival order: bands 0, 1, 0; two leftovers; one that no band knows. */
static struct plan_state *make_state(void) {
    static const struct {
        uint32_t length;
        uint64_t nominal_step;
        enum waiting_kind kind;
        uint32_t dataset;
    } rows[WAITING] = {{150, 9, WAITING_IN_QUEUE, 0},   {5000, 7, WAITING_IN_QUEUE, 1},
                       {999, 3, WAITING_IN_QUEUE, 1},   {20, 12, WAITING_LEFT_OVER, 0},
                       {700, 11, WAITING_LEFT_OVER, 0}, {99, 5, WAITING_IN_QUEUE, 1}};
    struct plan_state *state = plan_state_create(DATASETS, 16);
    assert_non_null(state);
    for (uint32_t i = 0; i < WAITING; i++) {
        state->waiting[i].document = (struct document){.document = 40 + i,
                                                       .nominal_step = rows[i].nominal_step,
                                                       .dataset = rows[i].dataset,
                                                       .length = rows[i].length,
                                                       .document_length = rows[i].length};
        state->waiting[i].kind = rows[i].kind;
    }
    state->waiting_count = WAITING;
    state->queue_released[0] = 21;
    state->queue_released[1] = 22;
    state->leftover_released = 23;
    return state;
}

static void expect_queue(const Ballast__V1__Queue *queue, const char *name, uint64_t length_min,
                         uint64_t length_max, uint64_t released) {
    assert_string_equal(queue->name, name);
    assert_int_equal(queue->length_min, length_min);
    assert_int_equal(queue->length_max, length_max);
    assert_int_equal(queue->released, released);
}

static void expect_waiting(const Ballast__V1__Queue *queue, const uint64_t *documents, size_t count,
                           uint64_t tokens, uint64_t oldest_step) {
    assert_int_equal(queue->documents, count);
    assert_int_equal(queue->tokens, tokens);
    assert_int_equal(queue->oldest_step, oldest_step);
    assert_int_equal(queue->n_waiting, count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(queue->waiting[i]->document, documents[i]);
    }
}

static void every_waiting_part_is_in_the_queue_that_it_waits_in(void **state) {
    (void)state;
    static const uint64_t band_0[] = {40, 42}, band_1[] = {41}, leftover[] = {43, 44, 45};
    struct arena arena;
    struct plan_state *made = make_state();
    arena_init(&arena, 1u << 16);
    Ballast__V1__QueuesResponse *queues = message_queues(&arena, made, &options, true);
    assert_non_null(queues);
    assert_int_equal(queues->n_queues, 3);
    expect_queue(queues->queues[0], "band 0", 100, 999, 21);
    expect_waiting(queues->queues[0], band_0, 2, 1149, 3);
    expect_queue(queues->queues[1], "band 1", 1000, 0, 22);
    expect_waiting(queues->queues[1], band_1, 1, 5000, 7);
    expect_queue(queues->queues[2], "leftover", 0, 0, 23);
    expect_waiting(queues->queues[2], leftover, 3, 819, 5);
    arena_deinit(&arena);
    plan_state_destroy(made);
}

static void queues_are_counted_also_when_they_are_not_listed(void **state) {
    (void)state;
    struct arena arena;
    struct plan_state *made = make_state();
    arena_init(&arena, 1u << 16);
    Ballast__V1__QueuesResponse *queues = message_queues(&arena, made, &options, false);
    assert_int_equal(queues->queues[0]->documents, 2);
    assert_int_equal(queues->queues[0]->n_waiting, 0);
    made->waiting_count = 0;
    queues = message_queues(&arena, made, &options, true);
    for (size_t i = 0; i < queues->n_queues; i++) {
        expect_waiting(queues->queues[i], NULL, 0, 0, 0);
    }
    static const struct plan_options none = {.policy = POLICY_WLB_NONE};
    queues = message_queues(&arena, made, &none, true);
    assert_int_equal(queues->n_queues, 1);
    assert_string_equal(queues->queues[0]->name, "leftover");
    arena_deinit(&arena);
    plan_state_destroy(made);
}

/* Level's parts by candidate_length; what fixed has packed is one queue. */
static void each_policy_has_its_queues(void **state) {
    (void)state;
    static const uint64_t level[] = {41, 42}, shorts[] = {40, 45}, leftover[] = {43, 44};
    static const uint64_t fixed[] = {40, 41, 42, 45};
    struct arena arena;
    struct plan_state *made = make_state();
    struct plan_options of = {.policy = POLICY_WLB_LEVEL, .level.candidate_length = 200};
    arena_init(&arena, 1u << 16);
    Ballast__V1__QueuesResponse *queues = message_queues(&arena, made, &of, true);
    assert_int_equal(queues->n_queues, 3);
    expect_queue(queues->queues[0], "level", 200, 0, 21);
    expect_waiting(queues->queues[0], level, 2, 5999, 3);
    expect_queue(queues->queues[1], "short", 0, 199, 22);
    expect_waiting(queues->queues[1], shorts, 2, 249, 5);
    expect_waiting(queues->queues[2], leftover, 2, 720, 11);
    of.policy = (enum policy)(POLICY_FIXED + 4);
    queues = message_queues(&arena, made, &of, true);
    assert_int_equal(queues->n_queues, 2);
    expect_queue(queues->queues[0], "fixed", 0, 0, 21);
    expect_waiting(queues->queues[0], fixed, 4, 6248, 3);
    assert_string_equal(queues->queues[1]->name, "leftover");
    made->delays[0].early_tokens = 9;
    made->delays[0].early_documents = 2;
    made->cursor.datasets[0].arrived_tokens = 100;
    made->cursor.datasets[0].arrived_documents = 5;
    Ballast__V1__DatasetStatus *status = message_dataset(&arena, made, 0, "d", 10, 1000);
    assert_int_equal(status->arrived_tokens, 109);
    assert_int_equal(status->arrived_documents, 7);
    arena_deinit(&arena);
    plan_state_destroy(made);
}

static void a_dataset_is_what_its_cursor_and_its_deliveries_say(void **state) {
    (void)state;
    struct arena arena;
    struct plan_state *made = make_state();
    arena_init(&arena, 1u << 16);
    made->delivered_tokens = 3000;
    made->delays[1].delivered_tokens = 1000;
    made->cursor.datasets[1] = (struct dataset_cursor){.position = 5,
                                                       .epoch = 2,
                                                       .arrived_documents = 11,
                                                       .arrived_tokens = 12,
                                                       .dropped_documents = 13,
                                                       .dropped_tokens = 14,
                                                       .truncated_tokens = 15,
                                                       .overlong_documents = 16,
                                                       .empty_documents = 17};
    Ballast__V1__DatasetStatus *status = message_dataset(&arena, made, 1, "perl", 100, 2000);
    assert_string_equal(status->name, "perl");
    assert_int_equal(status->documents, 100);
    assert_int_equal(status->tokens, 2000);
    assert_int_equal(status->epoch, 2);
    assert_int_equal(status->arrived_documents, 11);
    assert_int_equal(status->arrived_tokens, 12);
    assert_int_equal(status->dropped_documents, 13);
    assert_int_equal(status->dropped_tokens, 14);
    assert_int_equal(status->truncated_tokens, 15);
    assert_int_equal(status->overlong_documents, 16);
    assert_int_equal(status->empty_documents, 17);
    assert_int_equal(status->delivered_tokens, 1000);
    assert_int_equal(status->waiting_tokens, 5000 + 999 + 99);
    assert_int_equal(status->share_ppm, 333333);
    made->cursor.datasets[1].position = 0;
    assert_int_equal(message_dataset(&arena, made, 1, "perl", 100, 2000)->epoch, 1);
    assert_int_equal(message_dataset(&arena, made, 0, "man", 1, 1)->epoch, 0);
    made->delivered_tokens = made->delays[1].delivered_tokens = 0;
    assert_int_equal(message_dataset(&arena, made, 1, "perl", 100, 2000)->share_ppm, 1000000);
    arena_deinit(&arena);
    plan_state_destroy(made);
}

static const char *name_given(const void *context, uint32_t i) {
    (void)i;
    return context;
}

static Ballast__V1__DatasetDelay *delay_of(struct arena *arena, const struct plan_state *made,
                                           uint32_t dataset, const char *name) {
    Ballast__V1__DatasetDelay **all = message_delays(arena, &made->delays[dataset], 1, name_given,
                                                     name);
    return all == NULL ? NULL : all[0];
}

static void shares_do_not_overflow(void **state) {
    (void)state;
    struct arena arena;
    struct plan_state *made = make_state();
    arena_init(&arena, 1u << 16);
    made->delivered_tokens = UINT64_MAX;
    made->delays[0].delivered_tokens = UINT64_MAX / 2;
    made->delays[0].delay_token_steps = UINT64_MAX - 1;
    assert_int_equal(message_dataset(&arena, made, 0, "man", 1, 1)->share_ppm, 499999);
    assert_int_equal(delay_of(&arena, made, 0, "man")->mean_milli, 2000);
    arena_deinit(&arena);
    plan_state_destroy(made);
}

/* By counting: the delays of all tokens in order, the one at rank ceil(percent * n / 100). */
static uint64_t percentile_by_counting(const struct delay_counts *delays, uint64_t percent) {
    uint64_t at = (delays->delivered_tokens * percent + 99) / 100;
    for (uint32_t delay = 0; delay < DELAY_BUCKETS; delay++) {
        for (uint64_t i = 0; i < delays->tokens_by_delay[delay]; i++) {
            if (at <= 1) {
                return delay;
            }
            at--;
        }
    }
    return 0;
}

static void delays_are_weighted_by_tokens(void **state) {
    (void)state;
    struct arena arena;
    struct plan_state *made = make_state();
    struct delay_counts *delays = &made->delays[1];
    arena_init(&arena, 1u << 20);
    Ballast__V1__DatasetDelay *delay = delay_of(&arena, made, 1, "perl");
    assert_string_equal(delay->name, "perl");
    assert_int_equal(delay->mean_milli, 0);
    assert_int_equal(delay->p50, 0);
    assert_int_equal(delay->p99, 0);
    uint64_t value = 3;
    for (int round = 0; round < 60; round++) {
        value = value * 6364136223846793005u + 1442695040888963407u;
        uint32_t bucket = (uint32_t)(value >> 33) % DELAY_BUCKETS, tokens = (uint32_t)(value >> 50);
        delays->tokens_by_delay[bucket] += tokens % 37;
        delays->delivered_tokens += tokens % 37;
        delays->delay_token_steps += tokens % 37 * (uint64_t)bucket;
        delay = delay_of(&arena, made, 1, "perl");
        assert_int_equal(delay->p50, percentile_by_counting(delays, 50));
        assert_int_equal(delay->p99, percentile_by_counting(delays, 99));
    }
    delays->delay_max = 71;
    delay = delay_of(&arena, made, 1, "perl");
    assert_int_equal(delay->max, 71);
    assert_int_equal(delay->mean_milli,
                     delays->delay_token_steps * 1000 / delays->delivered_tokens);
    assert_int_equal(delay->n_histogram, DELAY_BUCKETS);
    assert_memory_equal(delay->histogram, delays->tokens_by_delay, sizeof delays->tokens_by_delay);
    arena_deinit(&arena);
    plan_state_destroy(made);
}

static void a_full_arena_is_null_at_every_allocation(void **state) {
    (void)state;
    struct plan_state *made = make_state();
    bool queues = false, dataset = false, delay = false;
    for (size_t bytes_max = 0; !queues || !dataset || !delay; bytes_max += 16) {
        struct arena arena;
        arena_init(&arena, bytes_max);
        queues = message_queues(&arena, made, &options, true) != NULL;
        assert_true(queues || arena.full);
        arena_reset(&arena);
        dataset = message_dataset(&arena, made, 0, "man", 1, 1) != NULL;
        assert_true(dataset || arena.full);
        arena_reset(&arena);
        delay = delay_of(&arena, made, 0, "man") != NULL;
        assert_true(delay || arena.full);
        arena_deinit(&arena);
    }
    plan_state_destroy(made);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_waiting_part_is_in_the_queue_that_it_waits_in),
        cmocka_unit_test(each_policy_has_its_queues),
        cmocka_unit_test(queues_are_counted_also_when_they_are_not_listed),
        cmocka_unit_test(a_dataset_is_what_its_cursor_and_its_deliveries_say),
        cmocka_unit_test(shares_do_not_overflow),
        cmocka_unit_test(delays_are_weighted_by_tokens),
        cmocka_unit_test(a_full_arena_is_null_at_every_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
