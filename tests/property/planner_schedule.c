/* Streams whose config changes on the way: in random worlds, and in small ones at every step. What
 * every plan is made of, that every token is delivered once and in its dataset's order, that
 * weights count from where nothing was known, that a step follows from its state alone, and that a
 * section changes nothing before it. */
#include "planner/schedule.h"
#include "planner_world.h"
#include "splitmix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define WORLDS       600u
#define WORLDS_FULL  30000u /* with BALLAST_TEST_FULL */
#define SECTIONS_MAX 6u
#define STEPS_MAX    20000u
#define STATE_BYTES  65536u
#define PARTS_MAX    65536u

struct job {
    struct world world; /* with the options of step 0 */
    struct plan_section sections[SECTIONS_MAX];
    uint32_t count;
    uint64_t weights[SECTIONS_MAX][WORLD_DATASETS_MAX]; /* of blends 1, 2, ... */
    /* What is planned. */
    struct schedule *schedule;
    struct schedule *other;  /* goes on from decoded states only */
    struct schedule *prefix; /* of the sections up to the present one */
    uint32_t prefix_count;
    struct plan_state *now, *next;
    struct document *delivered;
    uint64_t delivered_count;
    uint64_t switches[SECTIONS_MAX]; /* stream index at which blend i + 1 begins */
    uint32_t switch_count;
};

static struct document delivered[PARTS_MAX];

#define JOB_CHECK(job, holds) WORLD_CHECK(&(job)->world, holds)

/* Options that may follow on those before; as they were when none are found. */
static struct plan_options mutated(uint64_t *dice, const struct plan_options *before) {
    for (uint32_t i = 0; i < 30; i++) {
        struct plan_options made = *before;
        made.dp = splitmix_between(dice, 1, 3);
        made.micro_batches = made.dp * splitmix_between(dice, 1, 4);
        made.pp = splitmix_between(dice, 1, 3);
        made.cp = splitmix_between(dice, 1, 3);
        made.tp = splitmix_between(dice, 1, 2);
        made.tokens_max = before->window / 2 + splitmix_between(dice, 0, 2 * before->window);
        made.step_tokens = splitmix_between(dice, 0, 1) == 0
                               ? 0
                               : splitmix_between(dice, 1, made.micro_batches * before->window);
        made.bands.bands = BANDS_AUTO;
        made.bands.age_max = splitmix_between(dice, 1, 8);
        made.documents_max = splitmix_between(dice, 0, 1) == 0
                                 ? WORLD_NO_LIMIT
                                 : 40 + splitmix_between(dice, 0, 200);
        made.waiting_max = made.documents_max + splitmix_between(dice, 0, 20);
        made.backlog_max = splitmix_between(dice, 0, 3);
        made.level.candidate_length = splitmix_between(dice, 1, before->window);
        made.level.max_age = splitmix_between(dice, 0, 8);
        made.level.horizon = made.level.look_ahead + splitmix_between(dice, 8, 12);
        made.level.max_backlog = splitmix_between(dice, 0, 3 * LEVEL_PPM);
        if (plan_options_follow(&made, before, NULL) == 0) {
            return made;
        }
    }
    return *before;
}

/* Weights for what was there, and now and then a dataset more. */
static void make_blend(struct job *job, uint64_t *dice, struct plan_section *section) {
    uint32_t datasets = job->world.source.source.dataset_count;
    section->blend = section[-1].blend;
    if (splitmix_between(dice, 0, 2) == 0) {
        return;
    }
    const uint64_t *before = section->blend > 0 ? job->weights[section->blend - 1] : NULL;
    uint64_t *weights = job->weights[section->blend++];
    for (uint32_t i = 0; i < datasets; i++) {
        bool was_there = (before != NULL ? before[i] : job->world.datasets[i].weight) > 0;
        weights[i] = was_there ? splitmix_between(dice, 1, 5) : splitmix_between(dice, 0, 2);
    }
}

static void make_sections(struct job *job, uint64_t seed) {
    uint64_t dice = seed ^ 0x5ec7;
    uint32_t datasets = job->world.source.source.dataset_count;
    job->sections[0] = (struct plan_section){.options = job->world.options};
    job->count = splitmix_between(&dice, 2, SECTIONS_MAX);
    if (datasets > 1 && splitmix_between(&dice, 0, 1) == 0) {
        job->world.datasets[datasets - 1].weight = 0;
    }
    for (uint32_t i = 1; i < job->count; i++) {
        struct plan_section *section = &job->sections[i];
        section->step = section[-1].step + splitmix_between(&dice, 1, 6);
        section->options = splitmix_between(&dice, 0, 4) == 0
                               ? section[-1].options
                               : mutated(&dice, &section[-1].options);
        make_blend(job, &dice, section);
    }
}

/* The fake source takes rows without gaps. */
static void pack_weights(struct job *job) {
    static uint64_t rows[SECTIONS_MAX * WORLD_DATASETS_MAX];
    uint32_t datasets = job->world.source.source.dataset_count;
    for (uint32_t i = 0; i < SECTIONS_MAX; i++) {
        memcpy(&rows[i * datasets], job->weights[i], datasets * sizeof rows[0]);
    }
    job->world.source.weights = rows;
    job->world.source.source.context = &job->world.source;
}

static struct schedule *job_schedule(const struct job *job, uint32_t count) {
    struct error error;
    struct schedule *schedule = schedule_create(job->sections, count, &job->world.source.source,
                                                &error);
    if (schedule == NULL) {
        print_error("%s\n", error.text);
    }
    JOB_CHECK(job, schedule != NULL);
    return schedule;
}

static void job_open(struct job *job) {
    pack_weights(job);
    job->schedule = job_schedule(job, job->count);
    job->other = job_schedule(job, job->count);
    job->prefix = job_schedule(job, 1);
    job->prefix_count = 1;
    job->now = schedule_state_create(job->schedule);
    job->next = schedule_state_create(job->schedule);
    job->delivered = delivered;
    job->delivered_count = 0;
    job->switch_count = 0;
}

static void job_close(struct job *job) {
    plan_state_destroy(job->now);
    plan_state_destroy(job->next);
    schedule_destroy(job->schedule);
    schedule_destroy(job->other);
    schedule_destroy(job->prefix);
}

/* The same step from the state's bytes: the same plan, the same bytes after it. */
static void check_from_bytes(const struct job *job, struct schedule *schedule,
                             const struct step_plan *plan) {
    static uint8_t bytes[STATE_BYTES], after[STATE_BYTES], again[STATE_BYTES];
    struct plan_state *decoded = schedule_state_create(schedule);
    struct plan_state *next = schedule_state_create(schedule);
    struct step_plan *replanned = NULL;
    struct error error = {0};
    size_t count = plan_state_encode(job->now, bytes, sizeof bytes);
    JOB_CHECK(job, count <= sizeof bytes);
    int code = plan_state_decode(decoded, bytes, count, &error);
    if (code == 0) {
        code = schedule_check_state(schedule, decoded, &error);
    }
    if (code < 0) {
        print_error("step %lu: %s\n", (unsigned long)job->now->step, error.text);
    }
    JOB_CHECK(job, code == 0);
    JOB_CHECK(job, schedule_step(schedule, decoded, next, &replanned, NULL) == 1);
    JOB_CHECK(job, memcmp(plan->digest, replanned->digest, sizeof plan->digest) == 0);
    size_t after_count = plan_state_encode(job->next, after, sizeof after);
    JOB_CHECK(job, plan_state_encode(next, again, sizeof again) == after_count);
    JOB_CHECK(job, memcmp(after, again, after_count) == 0);
    step_plan_destroy(replanned);
    plan_state_destroy(decoded);
    plan_state_destroy(next);
}

static void check_plan(const struct job *job, const struct step_plan *plan,
                       const struct plan_options *options) {
    JOB_CHECK(job, plan->micro_batch_count == options->micro_batches && plan->dp == options->dp);
    JOB_CHECK(job, plan->cp == options->cp && plan->tp == options->tp && plan->pp == options->pp);
    for (uint32_t m = 0; m < plan->micro_batch_count; m++) {
        const struct micro_batch *micro_batch = &plan->micro_batches[m];
        uint64_t padded = micro_batch->tokens + micro_batch->pad_tokens;
        JOB_CHECK(job, padded <= options->tokens_max && padded % plan_row_unit(options) == 0);
        JOB_CHECK(job, micro_batch->dp == m / (options->micro_batches / options->dp));
    }
    JOB_CHECK(job, plan_state_conserves(job->next));
    JOB_CHECK(job, job->next->waiting_count <= job->next->waiting_max);
    JOB_CHECK(job, job->next->target_tokens + job->next->slip_tokens ==
                       job->now->target_tokens + job->now->slip_tokens + options->step_tokens);
}

/* Where the section's weights are to begin. */
static void note_switch(struct job *job, uint32_t section) {
    if (section > 0 && job->sections[section].step == job->now->step &&
        job->sections[section].blend > job->sections[section - 1].blend) {
        job->switches[job->switch_count++] = plan_state_known_end(job->now);
    }
}

static bool job_step(struct job *job) {
    struct step_plan *plan = NULL;
    uint64_t step = job->now->step;
    uint32_t section = plan_section_at(job->sections, job->count, step);
    note_switch(job, section);
    int code = schedule_step(job->schedule, job->now, job->next, &plan, NULL);
    JOB_CHECK(job, code >= 0);
    if (code == 0) {
        return false;
    }
    check_plan(job, plan, &job->sections[section].options);
    for (uint32_t i = 0; i < plan->document_count; i++) {
        JOB_CHECK(job, job->delivered_count < PARTS_MAX);
        job->delivered[job->delivered_count++] = plan->documents[i];
    }
    if (job->prefix_count <= section) {
        schedule_destroy(job->prefix);
        job->prefix_count = section + 1;
        job->prefix = job_schedule(job, job->prefix_count);
    }
    check_from_bytes(job, job->other, plan);
    check_from_bytes(job, job->prefix, plan);
    step_plan_destroy(plan);
    struct plan_state *swap = job->now;
    job->now = job->next;
    job->next = swap;
    return true;
}

static int by_stream_index(const void *a, const void *b) {
    const struct document *x = a;
    const struct document *y = b;
    if (x->stream_index != y->stream_index) {
        return x->stream_index < y->stream_index ? -1 : 1;
    }
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The source read from end to end, with new weights from the noted parts on. */
static void check_stream(struct job *job) {
    const struct document_source *source = &job->world.source.source;
    const struct plan_options *options = &job->world.options;
    struct plan_state *front = plan_state_create(source->dataset_count, 0);
    uint32_t switched = 0;
    uint64_t i = 0;
    for (;; i++) {
        struct document part;
        while (switched < job->switch_count && job->switches[switched] == i) {
            switched++;
            front->cursor.blend++;
            for (uint32_t j = 0; j < source->dataset_count; j++) {
                front->cursor.datasets[j].stream_tokens = 0;
            }
        }
        if (source->next(source->context, &front->cursor, plan_part_limit(options), &part) == 0) {
            break;
        }
        const struct document *got = &job->delivered[i];
        JOB_CHECK(job, i < job->delivered_count && got->stream_index == i);
        JOB_CHECK(job, got->dataset == part.dataset && got->document == part.document &&
                           got->epoch == part.epoch && got->offset == part.offset &&
                           got->length == part.length &&
                           got->document_length == part.document_length);
    }
    JOB_CHECK(job, i == job->delivered_count);
    plan_state_destroy(front);
}

/* First step whose target is beyond this token. */
static uint64_t nominal_step(const struct job *job, uint64_t offset) {
    uint64_t step = 0;
    uint64_t target = 0;
    for (;; step++) {
        uint32_t section = plan_section_at(job->sections, job->count, step);
        target += job->sections[section].options.step_tokens;
        if (target > offset) {
            return step;
        }
    }
}

/* Pieces of one dataset follow one another as they would without sections, each token once. */
static void check_order(const struct job *job, uint32_t dataset) {
    const struct fake_source *fake = &job->world.source;
    const struct fake_dataset *data = &fake->datasets[dataset];
    uint64_t epoch = 0, position = 0;
    uint32_t at = 0;
    for (uint64_t i = 0; i < job->delivered_count; i++) {
        const struct document *piece = &job->delivered[i];
        if (piece->dataset != dataset) {
            continue;
        }
        while (at == 0 &&
               fake->source.length(fake, dataset, fake_document(data, epoch, position)) == 0) {
            epoch += ++position == data->documents;
            position %= data->documents;
        }
        JOB_CHECK(job, piece->epoch == epoch && piece->offset == at);
        JOB_CHECK(job, piece->document == fake_document(data, epoch, position));
        at += piece->length;
        if (at == piece->document_length) {
            at = 0;
            epoch += ++position == data->documents;
            position %= data->documents;
        }
    }
    JOB_CHECK(job, at == 0);
}

static void check_delivered(struct job *job) {
    uint64_t offset = 0;
    qsort(job->delivered, job->delivered_count, sizeof *job->delivered, by_stream_index);
    for (uint32_t i = 0; i < job->world.source.source.dataset_count; i++) {
        check_order(job, i);
    }
    if (!policy_cuts(job->world.options.policy)) {
        check_stream(job);
    }
    for (uint64_t i = 0; i < job->delivered_count; i++) {
        if (job->world.options.policy == POLICY_PLAIN) {
            JOB_CHECK(job, job->delivered[i].nominal_step == nominal_step(job, offset));
        }
        offset += job->delivered[i].length;
    }
}

/* To the end of the data, when everything was delivered. */
static void job_run(struct job *job) {
    job_open(job);
    uint32_t steps = 0;
    while (job_step(job)) {
        JOB_CHECK(job, ++steps < STEPS_MAX);
    }
    JOB_CHECK(job, job->now->waiting_count == 0 && job->now->run_count == 0);
    check_delivered(job);
    job_close(job);
}

static bool full(void) {
    return getenv("BALLAST_TEST_FULL") != NULL;
}

static uint32_t worlds(void) {
    return full() ? WORLDS_FULL : WORLDS;
}

static void run_worlds(void (*make)(struct world *world, uint64_t seed)) {
    static struct job job;
    for (uint64_t seed = 1; seed <= worlds(); seed++) {
        memset(&job, 0, sizeof job);
        make(&job.world, seed);
        job.world.source.source.context = &job.world.source;
        make_sections(&job, seed);
        job_run(&job);
    }
}

static void streams_with_sections_keep_every_token_and_order(void **state) {
    (void)state;
    run_worlds(world_make);
}

static void so_do_those_of_level(void **state) {
    (void)state;
    run_worlds(world_make_level);
}

static void so_do_those_of_fixed(void **state) {
    (void)state;
    run_worlds(world_make_fixed);
}

/* Two datasets of two and one or two documents, the second from the start or appended; N before and
 * after; the border at every step. */
static void make_small(struct job *job, uint32_t number, enum policy policy) {
    static const uint32_t micro_batches[] = {1, 2, 3};
    uint32_t which = number;
    memset(job, 0, sizeof *job);
    job->world.seed = number;
    struct plan_options *options = &job->world.options;
    *options = world_options();
    options->policy = policy;
    options->tokens_max = 64;
    options->micro_batches = micro_batches[which % 3];
    which /= 3;
    uint32_t after = micro_batches[which % 3];
    which /= 3;
    uint64_t border = 1 + which % 5;
    which /= 5;
    bool appended = which % 2 == 1;
    which /= 2;
    for (uint32_t i = 0; i < (full() ? 4 : 3); i++) {
        job->world.lengths[i % 2][i / 2] = which % 3 == 0 ? 20 : which % 3 == 1 ? 64 : 150;
        which /= 3;
    }
    JOB_CHECK(job, plan_options_resolve(options, NULL) == 0);
    job->world.datasets[0] = (struct fake_dataset){job->world.lengths[0], 2, 1};
    job->world.datasets[1] = (struct fake_dataset){job->world.lengths[1], full() ? 2 : 1,
                                                   appended ? 0 : 1};
    fake_source_init(&job->world.source, job->world.datasets, 2, 1);
    job->count = 2;
    job->sections[0].options = *options;
    job->sections[1] = (struct plan_section){.step = border, .blend = 1, .options = *options};
    job->sections[1].options.micro_batches = after;
    job->sections[1].options.step_tokens = 0;
    job->weights[0][0] = 1;
    job->weights[0][1] = 3;
    JOB_CHECK(job, plan_options_follow(&job->sections[1].options, options, NULL) == 0);
}

static void every_small_world_goes_on_at_every_step(void **state) {
    (void)state;
    static struct job job;
    static const enum policy policies[] = {POLICY_PLAIN, POLICY_WLB_NONE, POLICY_WLB_BANDS,
                                           POLICY_WLB_LEVEL};
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        for (uint32_t number = 0; number < 3 * 3 * 5 * 2 * (full() ? 81 : 27); number++) {
            make_small(&job, number, policies[i]);
            job_run(&job);
        }
    }
}

/* A state that lies behind new weights needs the section that brought them. */
static void a_state_of_other_sections_is_refused_by_name(void **state) {
    (void)state;
    static struct job job;
    struct error error;
    make_small(&job, 26 * 90, POLICY_WLB_NONE); /* the longest documents, the border at step 1 */
    job_open(&job);
    assert_true(job_step(&job) && job_step(&job));
    assert_int_equal(job.now->step, 2);
    assert_int_equal(schedule_check_state(job.schedule, job.now, &error), 0);
    struct schedule *without = job_schedule(&job, 1);
    assert_int_equal(schedule_check_state(without, job.now, &error), -EBADMSG);
    assert_non_null(strstr(error.text, "step 2 was reached with 1 changes of weights"));
    schedule_destroy(without);
    job_close(&job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_with_sections_keep_every_token_and_order),
        cmocka_unit_test(so_do_those_of_level),
        cmocka_unit_test(so_do_those_of_fixed),
        cmocka_unit_test(every_small_world_goes_on_at_every_step),
        cmocka_unit_test(a_state_of_other_sections_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
