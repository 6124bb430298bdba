/* planner_pipeline: times of small pipelines that were worked out independently, what is refused,
 * and the critical path. */
#include "planner/pipeline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MICRO_BATCHES_MAX 8u
#define DURATIONS_MAX     256u

struct run {
    struct pipeline_shape shape;
    uint64_t forward[DURATIONS_MAX];
    uint64_t backward[DURATIONS_MAX];
    uint64_t send[MICRO_BATCHES_MAX];
    struct pipeline_times times;
    struct pipeline pipeline;
    void *memory;
};

/* Micro-batch i takes forward[i] and backward[i] in every chunk. */
static int run_begin(struct run *run, struct pipeline_shape shape, const uint64_t *forward,
                     const uint64_t *backward, struct error *error) {
    uint32_t chunks = shape.stages * shape.chunks;
    run->shape = shape;
    run->times = (struct pipeline_times){.forward = run->forward, .backward = run->backward};
    for (uint32_t i = 0; i < shape.micro_batches; i++) {
        for (uint32_t q = 0; q < chunks; q++) {
            run->forward[i * chunks + q] = forward[i];
            run->backward[i * chunks + q] = backward[i];
        }
    }
    run->memory = malloc(pipeline_bytes(&shape));
    pipeline_init(&run->pipeline, &run->shape, run->memory);
    return pipeline_run(&run->pipeline, &run->times, error);
}

struct golden {
    uint32_t stages, micro_batches, chunks;
    uint64_t forward[MICRO_BATCHES_MAX];
    uint64_t in_turn; /* 1f1b, or interleaved with several chunks */
    uint64_t afab;    /* 0: not known */
};

static uint64_t golden_time(const struct golden *golden, enum pipeline_schedule schedule) {
    struct pipeline_shape shape = {schedule, golden->stages, golden->micro_batches, golden->chunks,
                                   0};
    uint64_t backward[MICRO_BATCHES_MAX];
    struct run run;
    for (uint32_t i = 0; i < golden->micro_batches; i++) {
        backward[i] = 2 * golden->forward[i];
    }
    assert_int_equal(pipeline_check(&shape, NULL), 0);
    assert_int_equal(run_begin(&run, shape, golden->forward, backward, NULL), 0);
    free(run.memory);
    return run.pipeline.time_ns;
}

static void times_are_those_of_two_independent_implementations(void **state) {
    static const struct golden goldens[] = {
        {4, 4, 1, {100, 100, 100, 100}, 2100, 2100},
        {4, 4, 1, {144, 85, 85, 86}, 2386, 0},
        {4, 4, 1, {85, 144, 85, 86}, 2155, 0},
        {4, 4, 1, {85, 85, 86, 144}, 2434, 0},
        {4, 4, 2, {50, 50, 50, 50}, 1650, 1650},
        {4, 4, 2, {72, 43, 42, 43}, 1984, 2112},
        {4, 4, 2, {43, 42, 43, 72}, 2024, 2112},
        {4, 4, 4, {36, 21, 21, 22}, 1856, 1920},
        {4, 8, 2, {50, 50, 50, 50, 50, 50, 50, 50}, 2850, 2850},
        {2, 3, 1, {10, 30, 20}, 230, 0},
        {8, 8, 2, {50, 50, 50, 50, 50, 50, 50, 100}, 5500, 5850},
    };
    (void)state;
    for (size_t i = 0; i < sizeof goldens / sizeof goldens[0]; i++) {
        const struct golden *golden = &goldens[i];
        if (golden->chunks == 1) {
            assert_int_equal(golden_time(golden, PIPELINE_1F1B), golden->in_turn);
        }
        assert_int_equal(golden_time(golden, PIPELINE_INTERLEAVED), golden->in_turn);
        if (golden->afab > 0) {
            assert_int_equal(golden_time(golden, PIPELINE_AFAB), golden->afab);
        }
    }
}

static void backwards_need_not_be_twice_the_forwards(void **state) {
    static const uint64_t forward[] = {72, 43, 42, 43};
    static const uint64_t backward[] = {180, 107, 105, 107};
    struct run run;
    (void)state;
    assert_int_equal(run_begin(&run, (struct pipeline_shape){PIPELINE_INTERLEAVED, 4, 4, 2, 0},
                               forward, backward, NULL),
                     0);
    assert_int_equal(run.pipeline.time_ns, 2335);
    free(run.memory);
}

static void a_send_delays_the_next_stage_alone(void **state) {
    static const uint64_t forward[] = {10};
    static const uint64_t backward[] = {20};
    struct run run = {.send = {3}};
    (void)state;
    struct pipeline_shape shape = {PIPELINE_1F1B, 3, 1, 1, 0};
    assert_int_equal(run_begin(&run, shape, forward, backward, NULL), 0);
    run.times.send = run.send;
    assert_int_equal(pipeline_run(&run.pipeline, &run.times, NULL), 0);
    assert_int_equal(run.pipeline.time_ns, 3 * 30 + 4 * 3);
    assert_int_equal(run.pipeline.busy_ns, 3 * 30);
    free(run.memory);
}

/* Receives posted just before use, in the strictest reading: interleaved orders cross. */
static void a_blocked_order_is_reported_with_the_operation(void **state) {
    static const uint64_t durations[] = {1, 1, 1, 1};
    struct error error = {0};
    struct run run;
    (void)state;
    struct pipeline_shape shape = {PIPELINE_INTERLEAVED, 4, 4, 2, 1};
    assert_int_equal(run_begin(&run, shape, durations, durations, &error), -EDEADLK);
    assert_non_null(strstr(error.text, "interleaved blocks itself"));
    assert_non_null(strstr(error.text, "micro-batch"));
    free(run.memory);
}

static void what_no_schedule_runs_is_refused_by_name(void **state) {
    static const struct {
        struct pipeline_shape shape;
        const char *says;
    } refused[] = {
        {{PIPELINE_1F1B, 0, 1, 1, 0}, "at least one"},
        {{PIPELINE_1F1B, 1, 0, 1, 0}, "at least one"},
        {{PIPELINE_1F1B, 1, 1, 0, 0}, "at least one"},
        {{(enum pipeline_schedule)9, 1, 1, 1, 0}, "at least one"},
        {{PIPELINE_1F1B, 2, 2, 2, 0}, "1f1b runs one chunk"},
        {{PIPELINE_INTERLEAVED, 4, 6, 2, 0}, "not a multiple of the 4 stages"},
        {{PIPELINE_AFAB, 4, 6, 2, 0}, "take 8"},
        {{PIPELINE_INTERLEAVED, 65536, 65536, 1, 0}, "more than"},
        {{PIPELINE_INTERLEAVED, UINT32_MAX, UINT32_MAX, UINT32_MAX, 0}, "more than"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct error error = {0};
        assert_int_equal(pipeline_check(&refused[i].shape, &error), -EINVAL);
        assert_non_null(strstr(error.text, refused[i].says));
    }
}

static void schedules_have_names(void **state) {
    (void)state;
    for (enum pipeline_schedule i = PIPELINE_1F1B; i <= PIPELINE_AFAB; i++) {
        enum pipeline_schedule parsed = (enum pipeline_schedule)9;
        assert_int_equal(pipeline_schedule_parse(pipeline_schedule_name(i), &parsed), 0);
        assert_int_equal(parsed, i);
    }
    enum pipeline_schedule untouched = PIPELINE_AFAB;
    assert_int_equal(pipeline_schedule_parse("gpipe", &untouched), -EINVAL);
    assert_int_equal(untouched, PIPELINE_AFAB);
    assert_null(pipeline_schedule_name((enum pipeline_schedule)9));
}

/* Sums the path; sends lie between operations. */
static void the_critical_path_explains_all_of_the_time(void **state) {
    static const uint64_t forward[] = {72, 43, 42, 43};
    static const uint64_t backward[] = {150, 80, 90, 85};
    static const uint32_t depths[] = {0, 2, 3};
    (void)state;
    for (size_t i = 0; i < sizeof depths / sizeof depths[0]; i++) {
        struct run run;
        struct pipeline_shape shape = {PIPELINE_INTERLEAVED, 4, 4, 2, depths[i]};
        assert_int_equal(run_begin(&run, shape, forward, backward, NULL), 0);
        struct pipeline_operation op = pipeline_last(&run.pipeline);
        assert_int_equal(pipeline_end_ns(&run.pipeline, op), run.pipeline.time_ns);
        struct pipeline_operation before;
        while (pipeline_before(&run.pipeline, op, &before)) {
            assert_int_equal(pipeline_end_ns(&run.pipeline, before),
                             pipeline_start_ns(&run.pipeline, op));
            op = before;
        }
        assert_int_equal(pipeline_start_ns(&run.pipeline, op), 0);
        assert_int_equal(op.micro_batch + op.virtual_stage + op.backward, 0);
        free(run.memory);
    }
}

static void memory_is_used_as_asked_for(void **state) {
    static const uint64_t durations[] = {5, 7, 6, 9};
    (void)state;
    for (uint32_t depth = 0; depth < 4; depth += 2) {
        struct run run;
        struct pipeline_shape shape = {PIPELINE_INTERLEAVED, 4, 4, 2, depth};
        assert_int_equal(run_begin(&run, shape, durations, durations, NULL), 0);
        uint64_t time_ns = run.pipeline.time_ns;
        size_t bytes = pipeline_bytes(&shape);
        uint8_t *guarded = malloc(bytes + 8);
        memset(guarded, 0xa5, bytes + 8);
        pipeline_init(&run.pipeline, &shape, guarded);
        assert_int_equal(pipeline_run(&run.pipeline, &run.times, NULL), 0);
        assert_int_equal(run.pipeline.time_ns, time_ns);
        for (size_t i = bytes; i < bytes + 8; i++) {
            assert_int_equal(guarded[i], 0xa5);
        }
        free(guarded);
        free(run.memory);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_are_those_of_two_independent_implementations),
        cmocka_unit_test(backwards_need_not_be_twice_the_forwards),
        cmocka_unit_test(a_send_delays_the_next_stage_alone),
        cmocka_unit_test(a_blocked_order_is_reported_with_the_operation),
        cmocka_unit_test(what_no_schedule_runs_is_refused_by_name),
        cmocka_unit_test(schedules_have_names),
        cmocka_unit_test(the_critical_path_explains_all_of_the_time),
        cmocka_unit_test(memory_is_used_as_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
