/* plan_step on streams that can be followed by hand, its failures, and states it must not accept.
 *
 * calloc is wrapped (--wrap): the n-th call from now on fails. */
#include "planner/planner.h"
#include "tests/property/planner_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static unsigned calloc_fails_at; /* 0: never; 1: the next call */

void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);

void *__wrap_calloc(size_t count, size_t bytes) {
    if (calloc_fails_at > 0 && --calloc_fails_at == 0) {
        return NULL;
    }
    return __real_calloc(count, bytes);
}

struct job {
    struct fake_dataset dataset;
    struct fake_source source;
    struct plan_options options;
    struct planner *planner;
    struct plan_state *now;
    struct plan_state *next;
};

static void job_start(struct job *job, struct plan_options options, const uint32_t *lengths,
                      uint64_t documents) {
    job->dataset = (struct fake_dataset){.lengths = lengths, .documents = documents, .weight = 1};
    job->options = options;
    fake_source_init(&job->source, &job->dataset, 1, 1);
    assert_int_equal(plan_options_resolve(&job->options, NULL), 0);
    job->planner = planner_create(&job->options, &job->source.source, NULL);
    assert_non_null(job->planner);
    assert_memory_equal(planner_options(job->planner), &job->options, sizeof job->options);
    assert_string_equal(planner_model(job->planner)->name, "cost:L2/8");
    job->now = planner_state_create(job->planner);
    job->next = planner_state_create(job->planner);
}

static void job_stop(struct job *job) {
    plan_state_destroy(job->now);
    plan_state_destroy(job->next);
    planner_destroy(job->planner);
}

/* The next step, or NULL at the end; the caller destroys it. */
static struct step_plan *job_step(struct job *job) {
    struct step_plan *plan = NULL;
    if (plan_step(job->planner, job->now, job->next, &plan, NULL) == 0) {
        return NULL;
    }
    struct plan_state *swapped = job->now;
    job->now = job->next;
    job->next = swapped;
    return plan;
}

/* The step's documents as "first second|third" by micro-batch, in plan order. */
static void expect_step(struct job *job, const char *expected) {
    char text[256] = "";
    size_t at = 0;
    struct step_plan *plan = job_step(job);
    assert_non_null(plan);
    for (uint32_t m = 0; m < plan->micro_batch_count; m++) {
        const struct micro_batch *micro_batch = &plan->micro_batches[m];
        for (uint32_t i = 0; i < micro_batch->document_count; i++) {
            const struct document *document = &plan->documents[micro_batch->document_begin + i];
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%lu", i > 0 ? " " : "",
                                   document->stream_index);
        }
        at += (size_t)snprintf(text + at, sizeof text - at, "%s",
                               m + 1 < plan->micro_batch_count ? "|" : "");
    }
    assert_string_equal(text, expected);
    step_plan_destroy(plan);
}

static void expect_end(struct job *job) {
    assert_null(job_step(job));
    assert_null(job_step(job));
}

static struct plan_options two_by_eight(enum policy policy) {
    struct plan_options options = world_options();
    options.policy = policy;
    options.micro_batches = 2;
    options.window = 8;
    options.tokens_max = 10;
    options.bands.bands = 1;
    options.bands.length_min[0] = 6;
    return options;
}

static void an_empty_stream_has_no_step(void **state) {
    (void)state;
    const uint32_t lengths[] = {0, 0};
    struct job job;
    for (enum policy policy = POLICY_PLAIN; policy <= POLICY_WLB_BANDS; policy++) {
        for (uint64_t documents = 0; documents <= 2; documents++) {
            job_start(&job, two_by_eight(policy), lengths, documents);
            expect_end(&job);
            job_stop(&job);
        }
    }
}

static void one_document_makes_one_step_with_empty_micro_batches(void **state) {
    (void)state;
    const uint32_t lengths[] = {7};
    struct job job;
    for (enum policy policy = POLICY_PLAIN; policy <= POLICY_WLB_BANDS; policy++) {
        job_start(&job, two_by_eight(policy), lengths, 1);
        struct step_plan *plan = job_step(&job);
        assert_non_null(plan);
        assert_int_equal(plan->document_count, 1);
        assert_int_equal(plan->micro_batches[0].tokens + plan->micro_batches[1].tokens, 7);
        assert_int_equal(plan->micro_batches[0].pad_tokens + plan->micro_batches[1].pad_tokens, 3);
        assert_int_equal(plan->label_tokens, 6);
        step_plan_destroy(plan);
        expect_end(&job);
        job_stop(&job);
    }
}

/* T = 16. Two of 7 make a group of two; until then the first waits. */
static void an_outlier_waits_for_its_like(void **state) {
    (void)state;
    const uint32_t lengths[] = {7, 3, 3, 3, 2, 2, 2, 2, 2, 7, 1, 1};
    struct job job;
    job_start(&job, two_by_eight(POLICY_WLB_BANDS), lengths, 12);
    expect_step(&job, "1 3|2"); /* 0 waits */
    assert_int_equal(job.now->waiting_count, 1);
    assert_int_equal(job.now->waiting[0].document.stream_index, 0);
    assert_int_equal(job.now->waiting[0].kind, WAITING_IN_QUEUE);
    assert_int_equal(job.now->queue_released[0], 0);
    job_stop(&job);
}

static void all_documents_equal_wait_for_nothing(void **state) {
    (void)state;
    const uint32_t lengths[] = {8, 8, 8, 8};
    struct job job;
    job_start(&job, two_by_eight(POLICY_WLB_BANDS), lengths, 4);
    expect_step(&job, "0|1");
    expect_step(&job, "2|3");
    expect_end(&job);
    job_stop(&job);
}

static void what_is_due_leaves_alone(void **state) {
    (void)state;
    uint32_t lengths[40];
    struct plan_options options = two_by_eight(POLICY_WLB_BANDS);
    struct job job;
    for (uint32_t i = 0; i < 40; i++) {
        lengths[i] = i == 0 ? 8 : 4;
    }
    options.bands.age_max = 3;
    job_start(&job, options, lengths, 40);
    for (uint32_t step = 0; step < 4; step++) {
        struct step_plan *plan = job_step(&job);
        assert_int_equal(plan->release.outliers, step == 3);
        assert_int_equal(plan->release.forced, step == 3);
        assert_int_equal(plan->balance.delay_max, step == 3 ? 3 : 0);
        step_plan_destroy(plan);
    }
    assert_int_equal(job.now->queue_released[0], 1);
    job_stop(&job);
}

/* Only outliers, one a step: the stream is read ahead for the other micro-batch. */
static void a_step_is_filled_from_the_stream_ahead(void **state) {
    (void)state;
    uint32_t lengths[12];
    struct plan_options options = two_by_eight(POLICY_WLB_BANDS);
    struct job job;
    for (uint32_t i = 0; i < 12; i++) {
        lengths[i] = 8;
    }
    options.step_tokens = 8;
    job_start(&job, options, lengths, 12);
    struct step_plan *plan = job_step(&job);
    assert_int_equal(plan->document_count, 2);
    assert_int_equal(plan->release.outliers, 2);
    assert_int_equal(plan->release.forced, 0);
    assert_int_equal(plan->release.early, 1);
    assert_int_equal(plan->documents[1].nominal_step, 1);
    step_plan_destroy(plan);
    job_stop(&job);
}

/* Micro-batches of 10: no 6 fits beside another. */
static void what_does_not_fit_is_first_in_line(void **state) {
    (void)state;
    const uint32_t lengths[] = {6, 6, 6, 6, 6, 6, 6, 6, 6, 6};
    struct job job;
    job_start(&job, two_by_eight(POLICY_WLB_NONE), lengths, 10);
    expect_step(&job, "0|1");
    assert_int_equal(job.now->waiting_count, 1);
    assert_int_equal(job.now->waiting[0].kind, WAITING_LEFT_OVER);
    expect_step(&job, "2|3");
    assert_int_equal(job.now->leftover_released, 1);
    job_stop(&job);
}

/* Ten steps' worth of tokens are due, two documents are allowed. */
static void reading_stops_at_documents_max(void **state) {
    (void)state;
    const uint32_t lengths[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 8, 8, 1, 1, 1};
    struct plan_options options = two_by_eight(POLICY_WLB_BANDS);
    struct job job;
    options.step_tokens = 4;
    options.documents_max = 2;
    options.backlog_max = 0;
    job_start(&job, options, lengths, 15);
    for (uint64_t step = 0; step < 5; step++) {
        struct step_plan *plan = job_step(&job);
        assert_int_equal(plan->tokens, 2);
        assert_int_equal(job.now->stream_parts, 2 * (step + 1));
        assert_int_equal(plan->documents[0].nominal_step, step / 2);
        step_plan_destroy(plan);
    }
    struct step_plan *plan = job_step(&job); /* both are late already, so none is early */
    assert_int_equal(plan->tokens, 16);
    assert_int_equal(plan->release.outliers, 2);
    assert_int_equal(plan->release.forced, 0);
    assert_int_equal(plan->release.early, 0);
    step_plan_destroy(plan);
    job_stop(&job);
}

static void plain_deals_windows_in_reading_order(void **state) {
    (void)state;
    const uint32_t lengths[] = {8, 3, 10, 11, 20};
    struct plan_options options = two_by_eight(POLICY_PLAIN);
    struct job job;
    options.micro_batches = 4;
    options.dp = 2;
    job_start(&job, options, lengths, 5);
    struct step_plan *plan = job_step(&job); /* 0 | 1 2 | 2 3 | 3, windows 0 2 to replica 0 */
    assert_int_equal(plan->document_count, 6);
    const uint64_t documents[] = {0, 2, 3, 1, 2, 3};
    const uint32_t offsets[] = {0, 5, 0, 0, 0, 3};
    const uint32_t parts[] = {8, 5, 3, 3, 5, 8};
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(plan->documents[i].document, documents[i]);
        assert_int_equal(plan->documents[i].offset, offsets[i]);
        assert_int_equal(plan->documents[i].length, parts[i]);
        assert_int_equal(plan->documents[i].nominal_step, 0);
    }
    assert_int_equal(plan->balance.attention_ppm, plan->balance.original_ppm);
    step_plan_destroy(plan);
    plan = job_step(&job); /* 20 tokens: two windows, half a third, none */
    assert_int_equal(plan->tokens, 20);
    assert_int_equal(plan->micro_batches[1].pad_tokens, 4);
    assert_int_equal(plan->micro_batches[3].document_count, 0);
    assert_int_equal(plan->micro_batches[3].pad_tokens, 2);
    step_plan_destroy(plan);
    expect_end(&job);
    job_stop(&job);
}

static void memory_that_runs_out_leaves_everything_as_it_was(void **state) {
    (void)state;
    const uint32_t lengths[] = {7, 3, 3, 3, 2, 2, 2, 2, 2, 7, 1, 1};
    uint8_t before[2][4096];
    uint8_t after[2][4096];
    struct step_plan *plan = NULL;
    struct error error = {0};
    struct job job;
    job_start(&job, two_by_eight(POLICY_WLB_BANDS), lengths, 12);
    job.next->step = 42;
    size_t now_bytes = plan_state_encode(job.now, before[0], sizeof before[0]);
    size_t next_bytes = plan_state_encode(job.next, before[1], sizeof before[1]);
    calloc_fails_at = 1;
    assert_int_equal(plan_step(job.planner, job.now, job.next, &plan, &error), -ENOMEM);
    assert_null(plan);
    assert_non_null(strstr(error.text, "step 0"));
    assert_int_equal(plan_state_encode(job.now, after[0], sizeof after[0]), now_bytes);
    assert_int_equal(plan_state_encode(job.next, after[1], sizeof after[1]), next_bytes);
    assert_memory_equal(before[0], after[0], now_bytes);
    assert_memory_equal(before[1], after[1], next_bytes);
    expect_step(&job, "1 3|2");
    for (unsigned fail = 1; fail <= 2; fail++) {
        calloc_fails_at = fail;
        assert_null(planner_create(&job.options, &job.source.source, &error));
        assert_int_equal(error.code, -ENOMEM);
    }
    calloc_fails_at = 1;
    assert_null(planner_state_create(job.planner));
    calloc_fails_at = 0;
    job_stop(&job);
    planner_destroy(NULL);
    plan_state_destroy(NULL);
}

/* A step allocates its plan and nothing else. */
static void a_step_allocates_once(void **state) {
    (void)state;
    const uint32_t lengths[] = {7, 3, 3, 3, 2, 2, 2, 2, 2, 7, 1, 1};
    struct job job;
    job_start(&job, two_by_eight(POLICY_WLB_BANDS), lengths, 12);
    calloc_fails_at = 2;
    expect_step(&job, "1 3|2");
    assert_int_equal(calloc_fails_at, 1);
    calloc_fails_at = 0;
    job_stop(&job);
}

static void refuses_state(struct job *job, const char *text) {
    struct error error = {0};
    assert_int_equal(planner_check_state(job->planner, job->now, &error), -EBADMSG);
    if (strstr(error.text, text) == NULL) {
        print_error("'%s' does not say '%s'\n", error.text, text);
        fail();
    }
}

static void states_of_another_corpus_or_job_are_refused(void **state) {
    (void)state;
    uint32_t lengths[] = {7, 3, 3, 3, 2, 2, 2, 2, 2, 7, 1, 1};
    struct job job;
    job_start(&job, two_by_eight(POLICY_WLB_BANDS), lengths, 12);
    expect_step(&job, "1 3|2");
    assert_int_equal(planner_check_state(job.planner, job.now, NULL), 0);
    lengths[0] = 6;
    refuses_state(&job, "document 0 of dataset 0 has 7 tokens there and 6");
    lengths[0] = 7;
    job.now->waiting[0].document.document = 12;
    refuses_state(&job, "document 12");
    job.now->step += UINT64_C(1) << 40;
    refuses_state(&job, "step = ");
    job.now->step -= UINT64_C(1) << 40;
    job.now->waiting[0].document.document = 0;
    job.now->waiting[0].document.length = 9;
    refuses_state(&job, "at most 8");
    job.now->waiting[0].document.length = 7;
    job.now->draining = true;
    job.now->drain_steps = 2;
    refuses_state(&job, "drain of 2 steps");
    job.now->waiting_count = 2;
    job.now->waiting[1] = job.now->waiting[0];
    job.now->waiting[0].bin = job.now->waiting[1].bin = 2;
    refuses_state(&job, "at most 10 tokens"); /* two of 7 in one bin, of the right step */
    job.now->draining = false;
    job.now->cursor.open = true;
    job.now->cursor.open_document = 1;
    job.now->cursor.open_length = 4;
    refuses_state(&job, "the open document");
    job_stop(&job);
    struct plan_options plain = two_by_eight(POLICY_PLAIN);
    struct job other;
    job_start(&job, two_by_eight(POLICY_WLB_BANDS), lengths, 12);
    job_start(&other, plain, lengths, 12);
    expect_step(&job, "1 3|2");
    plan_state_copy(other.now, job.now);
    refuses_state(&other, "policy plain");
    job_stop(&job);
    job_stop(&other);
}

/* 7, 6 and 5 wait in a band each; two of them never share a micro-batch of 10. */
static void the_drain_gives_every_step_its_micro_batches(void **state) {
    (void)state;
    const uint32_t lengths[] = {1, 1, 7, 6, 5};
    const uint32_t thresholds[] = {3, 6, 7};
    struct plan_options options = two_by_eight(POLICY_WLB_BANDS);
    struct job job;
    options.bands.bands = 3;
    memcpy(options.bands.length_min, thresholds, sizeof thresholds);
    job_start(&job, options, lengths, 5);
    expect_step(&job, "0|1");
    expect_step(&job, "2|3");
    assert_true(job.now->draining);
    assert_int_equal(job.now->drain_start, 1);
    assert_int_equal(job.now->drain_steps, 2);
    assert_int_equal(job.now->waiting[0].bin, 2);
    expect_step(&job, "4|");
    assert_false(job.now->draining);
    assert_int_equal(job.now->queue_released[0] + job.now->queue_released[1], 2);
    expect_end(&job);
    job_stop(&job);
}

/* No band would release these: the oldest leave, then the stream is read ahead. */
static void outliers_alone_make_whole_steps(void **state) {
    (void)state;
    const uint32_t lengths[] = {8, 8, 8, 7, 7, 1};
    struct plan_options options = two_by_eight(POLICY_WLB_BANDS);
    struct job job;
    options.micro_batches = 4;
    options.step_tokens = 20;
    job_start(&job, options, lengths, 6);
    expect_step(&job, "2|0|1|3");
    expect_step(&job, "|4|5|");
    expect_end(&job);
    job_stop(&job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_stream_has_no_step),
        cmocka_unit_test(one_document_makes_one_step_with_empty_micro_batches),
        cmocka_unit_test(an_outlier_waits_for_its_like),
        cmocka_unit_test(all_documents_equal_wait_for_nothing),
        cmocka_unit_test(what_is_due_leaves_alone),
        cmocka_unit_test(a_step_is_filled_from_the_stream_ahead),
        cmocka_unit_test(what_does_not_fit_is_first_in_line),
        cmocka_unit_test(reading_stops_at_documents_max),
        cmocka_unit_test(plain_deals_windows_in_reading_order),
        cmocka_unit_test(memory_that_runs_out_leaves_everything_as_it_was),
        cmocka_unit_test(a_step_allocates_once),
        cmocka_unit_test(states_of_another_corpus_or_job_are_refused),
        cmocka_unit_test(the_drain_gives_every_step_its_micro_batches),
        cmocka_unit_test(outliers_alone_make_whole_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
