/* wlb:level in the planner against the same decisions carried out on plain arrays, on the built-in
 * length lists; and what it remembers between steps: that a planner which has to read ahead again
 * plans the same, and how many bytes a state takes. */
#include "planner/distribution.h"
#include "planner/planner.h"

#include "fake_source.h"
#include "level_world.h"
#include "planner_world.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DOCUMENTS   12000u
#define STEPS_MAX   120u
#define STATE_BYTES 65536u

struct cell {
    const char *list;
    uint32_t micro_batches;
    uint32_t headroom_percent; /* tokens_max over window */
    enum level_preset preset;
    uint64_t seed;
};

struct job {
    struct cell cell;
    uint32_t lengths[DOCUMENTS];
    struct fake_dataset dataset;
    struct fake_source source;
    struct plan_options options;
    struct planner *planner;
    struct plan_state *now;
    struct plan_state *next;
};

#define JOB_CHECK(job, holds)                                                                      \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            print_error("%s N %u S_max %u %% preset %s seed %" PRIu64 " step %" PRIu64 ": %s\n",   \
                        (job)->cell.list, (job)->cell.micro_batches, (job)->cell.headroom_percent, \
                        level_preset_name((job)->cell.preset), (job)->cell.seed, (job)->now->step, \
                        #holds);                                                                   \
            _fail(__FILE__, __LINE__);                                                             \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static void job_open(struct job *job, const struct cell *cell, uint32_t documents) {
    const struct distribution *list = distribution_find(cell->list);
    uint32_t window = distribution_window(list);
    *job = (struct job){.cell = *cell, .options = world_options()};
    for (uint32_t i = 0; i < documents; i++) {
        uint32_t length = distribution_length(list, cell->seed, i);
        job->lengths[i] = length < window ? length : window;
    }
    job->dataset = (struct fake_dataset){job->lengths, documents, 1};
    fake_source_init(&job->source, &job->dataset, 1, 1);
    job->options.policy = POLICY_WLB_LEVEL;
    job->options.window = window;
    job->options.micro_batches = cell->micro_batches;
    job->options.tokens_max = (uint64_t)window * cell->headroom_percent / 100;
    job->options.documents_max = DOCUMENTS;
    job->options.waiting_max = DOCUMENTS;
    job->options.backlog_max = 4;
    job->options.level_preset = cell->preset;
    job->options.model.cost_linear = 24576;
    struct error error;
    if (plan_options_resolve(&job->options, &error) != 0) {
        print_error("%s\n", error.text);
        _fail(__FILE__, __LINE__);
    }
    job->planner = planner_create(&job->options, &job->source.source, NULL);
    job->now = planner_state_create(job->planner);
    job->next = planner_state_create(job->planner);
}

static void job_close(struct job *job) {
    plan_state_destroy(job->now);
    plan_state_destroy(job->next);
    planner_destroy(job->planner);
}

static void job_advance(struct job *job) {
    struct plan_state *swapped = job->now;
    job->now = job->next;
    job->next = swapped;
}

/* Every document of the step where the simulation has it, or in another bin of the same work. */
static void check_same_step(struct job *job, const struct level_world *world,
                            const struct step_plan *plan) {
    uint64_t released = 0;
    uint64_t most = 0;
    JOB_CHECK(job, plan->document_count == world->packed);
    for (uint32_t i = 0; i < plan->document_count; i++) {
        const struct document *document = &plan->documents[i];
        JOB_CHECK(job, world->delivered_in[document->stream_index] == plan->step);
        JOB_CHECK(job, world->nominal_steps[document->stream_index] == document->nominal_step);
        released += document->length >= job->options.level.candidate_length;
    }
    for (uint32_t bin = 0; bin < world->options.bins; bin++) {
        most = world->bin_works[bin] > most ? world->bin_works[bin] : most;
    }
    for (uint32_t m = 0; m < plan->micro_batch_count; m++) {
        most = plan->micro_batches[m].work_ns == most ? 0 : most;
    }
    const struct level_decision *decision = &world->decision;
    JOB_CHECK(job, most == 0 && plan->balance.total_ppm == level_world_imbalance(world));
    JOB_CHECK(job, plan->release.allowance_ppm == decision->allowance_ppm);
    JOB_CHECK(job, plan->release.urgency_ppm == decision->urgency_ppm);
    JOB_CHECK(job, plan->release.outliers == released && plan->release.forced == decision->due);
    JOB_CHECK(job, decision->predicted_ppm == UINT64_MAX ||
                       plan->balance.predicted_ppm == decision->predicted_ppm);
}

static bool every_bin_has_one(const struct level_world *world) {
    for (uint32_t bin = 0; bin < world->options.bins; bin++) {
        if (world->bin_tokens[bin] == 0) {
            return false;
        }
    }
    return true;
}

/* As long as the simulation leaves no micro-batch empty and its clock does not slip: what has been
 * looked at keeps its nominal step there, and here it is what the clock says. */
static uint64_t compare_cell(const struct cell *cell) {
    static struct job job;
    struct level_world world;
    job_open(&job, cell, DOCUMENTS);
    level_world_open(&world, &job.options.level, 24576, job.lengths, DOCUMENTS);
    while (job.now->step < STEPS_MAX && level_world_step(&world) && every_bin_has_one(&world) &&
           world.state.slip_tokens == 0) {
        struct step_plan *plan = NULL;
        JOB_CHECK(&job, plan_step(job.planner, job.now, job.next, &plan, NULL) == 1);
        check_same_step(&job, &world, plan);
        JOB_CHECK(&job, job.next->target_tokens == world.state.target_tokens);
        step_plan_destroy(plan);
        job_advance(&job);
    }
    uint64_t steps = job.now->step;
    level_world_close(&world);
    job_close(&job);
    return steps;
}

static void the_planner_decides_as_the_simulation_does(void **state) {
    (void)state;
    static const char *const lists[] = {"wlb128k", "prolong", "libra256k", "libra1m"};
    static const uint32_t headrooms[] = {100, 125, 200};
    uint64_t steps = 0;
    for (size_t list = 0; list < 4; list++) {
        for (size_t i = 0; i < 12; i++) {
            struct cell cell = {lists[list], i % 2 == 0 ? 4 : 16, headrooms[i / 4],
                                (enum level_preset)(i % 4), 7 + i};
            steps += compare_cell(&cell);
        }
    }
    assert_true(steps > 500);
}

static bool same_bytes(const struct plan_state *a, const struct plan_state *b) {
    static uint8_t bytes[STATE_BYTES];
    static uint8_t others[STATE_BYTES];
    size_t count = plan_state_encode(a, bytes, sizeof bytes);
    return count <= sizeof bytes && plan_state_encode(b, others, sizeof others) == count &&
           memcmp(bytes, others, count) == 0;
}

static struct plan_state *through_bytes(const struct job *job, const struct plan_state *state) {
    static uint8_t bytes[STATE_BYTES];
    size_t count = plan_state_encode(state, bytes, sizeof bytes);
    struct plan_state *decoded = planner_state_create(job->planner);
    JOB_CHECK(job, count <= sizeof bytes);
    JOB_CHECK(job, plan_state_decode(decoded, bytes, count, NULL) == 0);
    return decoded;
}

/* The whole stream, drain included. A second planner plans each step twice, once from bytes, so
 * that it always has to read ahead anew. */
static void what_was_looked_at_ahead_changes_nothing(void **state) {
    (void)state;
    static struct job job;
    static const struct cell cells[] = {
        {"wlb128k", 4, 125, LEVEL_BALANCED, 3},
        {"libra256k", 4, 100, LEVEL_STEADY, 4},
        {"libra1m", 2, 200, LEVEL_FINE, 5},
    };
    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++) {
        job_open(&job, &cells[i], 3000);
        struct planner *other = planner_create(&job.options, &job.source.source, NULL);
        struct plan_state *next = planner_state_create(other);
        struct step_plan *plan;
        while (plan_step(job.planner, job.now, job.next, &plan, NULL) == 1) {
            struct plan_state *decoded = through_bytes(&job, job.now);
            JOB_CHECK(&job, planner_check_state(other, decoded, NULL) == 0);
            for (int round = 0; round < 2; round++) {
                struct step_plan *again;
                JOB_CHECK(&job, plan_step(other, decoded, next, &again, NULL) == 1);
                JOB_CHECK(&job, memcmp(plan->digest, again->digest, sizeof plan->digest) == 0);
                JOB_CHECK(&job, same_bytes(job.next, next));
                step_plan_destroy(again);
            }
            plan_state_destroy(decoded);
            step_plan_destroy(plan);
            job_advance(&job);
        }
        JOB_CHECK(&job, job.now->waiting_count == 0 && job.now->stream_parts == 3000);
        plan_state_destroy(next);
        planner_destroy(other);
        job_close(&job);
    }
}

static uint64_t state_count(struct job *job) {
    return plan_state_encode(job->now, NULL, 0);
}

/* Beside what waits, a state has the runs of what was delivered early. */
static void a_state_is_small(void **state) {
    (void)state;
    static struct job job;
    const struct cell cell = {"wlb128k", 16, 125, LEVEL_BALANCED, 9};
    job_open(&job, &cell, DOCUMENTS);
    uint64_t empty = state_count(&job);
    struct step_plan *plan;
    while (plan_step(job.planner, job.now, job.next, &plan, NULL) == 1) {
        step_plan_destroy(plan);
        job_advance(&job);
        if (!job.now->draining) {
            JOB_CHECK(&job, state_count(&job) <= empty + 256 +
                                                     UINT64_C(24) * job.now->waiting_count +
                                                     UINT64_C(4) * job.now->run_count);
        }
    }
    job_close(&job);
}

/* Early counts that do not fit the corpus, runs beyond the limits, runs under another policy. */
static void a_state_that_was_delivered_otherwise_is_refused(void **state) {
    (void)state;
    static struct job job;
    const struct cell cell = {"wlb128k", 4, 125, LEVEL_BALANCED, 11};
    struct error error = {0};
    job_open(&job, &cell, DOCUMENTS);
    for (int i = 0; i < 8 || job.now->run_count == 0; i++) {
        struct step_plan *plan;
        assert_int_equal(plan_step(job.planner, job.now, job.next, &plan, NULL), 1);
        step_plan_destroy(plan);
        job_advance(&job);
    }
    assert_int_equal(planner_check_state(job.planner, job.now, &error), 0);
    job.now->delays[0].early_tokens++;
    assert_int_equal(planner_check_state(job.planner, job.now, &error), -EBADMSG);
    job.now->delays[0].early_tokens--;
    job.now->runs[job.now->run_count - 1].count += DOCUMENTS;
    assert_int_equal(planner_check_state(job.planner, job.now, &error), -EBADMSG);
    job.now->runs[job.now->run_count - 1].count += UINT64_C(1) << 40;
    assert_int_equal(planner_check_state(job.planner, job.now, &error), -EBADMSG);
    assert_non_null(strstr(error.text, "queues.waiting_max"));
    job_close(&job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_planner_decides_as_the_simulation_does),
        cmocka_unit_test(what_was_looked_at_ahead_changes_nothing),
        cmocka_unit_test(a_state_is_small),
        cmocka_unit_test(a_state_that_was_delivered_otherwise_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
