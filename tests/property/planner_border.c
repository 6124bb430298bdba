/* wlb:level where a section of small steps follows on one of large steps: of the many parts between
 * the front and the last that was delivered early, a step reads what is its own, whether its clock
 * is set back or not, and plans what a planner does that reads them all again. */
#include "planner/distribution.h"
#include "planner/schedule.h"
#include "planner_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DOCUMENTS   60000u
#define STATE_BYTES (1u << 20)
#define LARGE       1024u /* micro-batches */
#define LARGE_STEPS 4u
#define SMALL_STEPS 300u
#define EVERY       25u /* steps that are planned once more */

/* A source that counts what is read of another. */
struct counted_source {
    struct document_source source;
    const struct document_source *counted;
    uint64_t *reads;
};

struct job {
    uint32_t lengths[DOCUMENTS];
    struct fake_dataset dataset;
    struct fake_source fake;
    struct counted_source source;
    uint64_t reads;
    struct plan_section sections[2];
    struct schedule *schedule;
    struct plan_state *now;
    struct plan_state *next;
};

static int counted_next(const void *context, struct source_cursor *cursor, uint32_t limit,
                        struct document *out) {
    const struct counted_source *source = context;
    ++*source->reads;
    return source->counted->next(source->counted->context, cursor, limit, out);
}

static void job_options(struct job *job, enum level_preset preset, uint32_t small) {
    uint32_t window = distribution_window(distribution_find("wlb128k"));
    struct plan_options options = world_options();
    options.policy = POLICY_WLB_LEVEL;
    options.window = window;
    options.tokens_max = window / 4 * 5;
    options.documents_max = DOCUMENTS;
    options.waiting_max = DOCUMENTS;
    options.level_preset = preset;
    options.model.cost_linear = 24576;
    options.micro_batches = LARGE;
    job->sections[0] = (struct plan_section){.options = options};
    options.micro_batches = small;
    job->sections[1] = (struct plan_section){.step = LARGE_STEPS, .options = options};
    assert_int_equal(plan_options_resolve(&job->sections[0].options, NULL), 0);
    assert_int_equal(
        plan_options_follow(&job->sections[1].options, &job->sections[0].options, NULL), 0);
}

static void job_open(struct job *job, enum level_preset preset, uint32_t small) {
    const struct distribution *list = distribution_find("wlb128k");
    for (uint32_t i = 0; i < DOCUMENTS; i++) {
        job->lengths[i] = distribution_length(list, 7, i);
    }
    job->dataset = (struct fake_dataset){job->lengths, DOCUMENTS, 1};
    fake_source_init(&job->fake, &job->dataset, 1, 0);
    job->source = (struct counted_source){job->fake.source, &job->fake.source, &job->reads};
    job->source.source.next = counted_next;
    job->source.source.context = &job->source;
    job_options(job, preset, small);
    job->schedule = schedule_create(job->sections, 2, &job->source.source, NULL);
    job->now = schedule_state_create(job->schedule);
    job->next = schedule_state_create(job->schedule);
}

static void job_close(struct job *job) {
    plan_state_destroy(job->now);
    plan_state_destroy(job->next);
    schedule_destroy(job->schedule);
}

/* Plans a step; as many parts as it read. */
static uint64_t job_step(struct job *job, struct step_plan **plan) {
    job->reads = 0;
    assert_int_equal(schedule_step(job->schedule, job->now, job->next, plan, NULL), 1);
    return job->reads;
}

static void job_advance(struct job *job) {
    struct plan_state *swapped = job->now;
    job->now = job->next;
    job->next = swapped;
}

/* By a planner to which the state is new. */
static void check_again(struct job *job, const struct step_plan *plan) {
    static uint8_t bytes[STATE_BYTES], others[STATE_BYTES];
    struct schedule *other = schedule_create(job->sections, 2, &job->source.source, NULL);
    struct plan_state *next = schedule_state_create(other);
    struct step_plan *again = NULL;
    assert_int_equal(schedule_step(other, job->now, next, &again, NULL), 1);
    assert_memory_equal(plan->digest, again->digest, sizeof plan->digest);
    assert_int_equal(schedule_in_hand(other), schedule_in_hand(job->schedule));
    size_t count = plan_state_encode(job->next, bytes, sizeof bytes);
    assert_true(count <= sizeof bytes);
    assert_int_equal(plan_state_encode(next, others, sizeof others), count);
    assert_memory_equal(bytes, others, count);
    step_plan_destroy(again);
    plan_state_destroy(next);
    schedule_destroy(other);
}

/* Returns whether its clock was set back. */
static bool check_border(enum level_preset preset, uint32_t small) {
    static struct job job;
    struct step_plan *plan = NULL;
    uint64_t reads = 0;
    uint64_t known = 0; /* what the steps would read that began at the front */
    uint64_t front = 0;
    job_open(&job, preset, small);
    for (uint32_t i = 0; i < LARGE_STEPS + SMALL_STEPS; i++) {
        uint64_t read = job_step(&job, &plan);
        if (i > LARGE_STEPS) { /* the first step of a section looks anew */
            reads += read;
            known += plan_state_known_end(job.now) - job.now->stream_parts;
        } else {
            front = job.next->stream_parts;
        }
        if (i % EVERY == 0) {
            check_again(&job, plan);
        }
        step_plan_destroy(plan);
        job_advance(&job);
    }
    uint64_t passed = job.now->stream_parts - front;
    bool slipped = job.now->slip_tokens > 0;
    print_message("%s, %u micro-batches: %u steps passed %lu parts, read %lu, knew %lu%s\n",
                  level_preset_name(preset), small, SMALL_STEPS, (unsigned long)passed,
                  (unsigned long)reads, (unsigned long)known, slipped ? ", slipped" : "");
    assert_true(reads <= 2 * passed);
    assert_true(known > 20 * reads);
    job_close(&job);
    return slipped;
}

static void a_small_step_behind_large_ones_reads_what_is_its_own(void **state) {
    (void)state;
    bool slipped = false;
    for (uint32_t small = 1; small <= 2; small *= 2) {
        for (int preset = 0; preset < 2; preset++) {
            slipped |= check_border((enum level_preset)preset, small);
        }
    }
    assert_true(slipped);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_step_behind_large_ones_reads_what_is_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
