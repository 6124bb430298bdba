/* What the daemon knows of the stream besides sockets: planning ahead, writing down, replaying,
 * recovering. A small corpus, a real store, the real threads. */
#include "corpus_files.h"
#include "daemon/ahead.h"
#include "daemon/memo.h"
#include "daemon/plans.h"
#include "daemon/recover.h"
#include "daemon/samples.h"
#include "faulty_vfs.h"

#include <sqlite3.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define DOCUMENTS 300u

static struct {
    char folder[64], prefix[80], state_dir[80];
    struct catalog *catalog;
    struct corpus_source source;
    struct plan_section section;
    struct schedule *schedule;
    struct store *store;
    sem_t woken;
    struct error error;
} world;

static const struct store_job job = {.job_digest = {1}, .plan_text = "a = 1\n", .version = "test"};

static void wake(void *context) {
    (void)context;
    (void)sem_post(&world.woken);
}

static void check(int code) {
    if (code < 0) {
        fail_msg("%s", world.error.text);
    }
}

static int set_up(void **state) {
    static uint32_t lengths[DOCUMENTS];
    struct image_options image = {.dtype = 8, .documents = DOCUMENTS, .lengths = lengths};
    struct plan_options options = {
        .policy = POLICY_WLB_BANDS,
        .window = 256,
        .micro_batches = 2,
        .dp = 1,
        .pp = 1,
        .cp = 1,
        .tp = 1,
        .tokens_max = 320,
        .documents_max = 64,
        .waiting_max = 256,
        .backlog_max = 4,
        .bands = {.bands = BANDS_AUTO, .age_max = 8},
        .level = LEVEL_AUTO_OPTIONS,
        .refine_gap_ppm = REFINE_NOT,
        .layouts = {.allowed = 1 << LAYOUT_PER_SEQUENCE, .fragments_max = 1024},
        .model = {.layers = 4,
                  .hidden = 256,
                  .ffn = 512,
                  .q_heads = 4,
                  .kv_heads = 4,
                  .head_dim = 64,
                  .gemm_flops_per_ns = 600000,
                  .memory_bytes_per_us = 2800000,
                  .cost_linear = 24576}};
    struct corpus_source_options source = {
        .order = {.seed = 3, .block_documents = 8, .window_blocks = 4}, .epochs = 1};
    (void)state;
    memset(&world, 0, sizeof world);
    for (uint32_t i = 0; i < DOCUMENTS; i++) {
        lengths[i] = 1 + i * 37 % 200;
    }
    test_folder_make(world.folder);
    (void)snprintf(world.prefix, sizeof world.prefix, "%s/d", world.folder);
    (void)snprintf(world.state_dir, sizeof world.state_dir, "%s/state", world.folder);
    dataset_write(world.prefix, &image);
    const struct catalog_entry entry = {.name = "d", .prefix = world.prefix, .weight = 1};
    check(plan_options_resolve(&options, &world.error));
    source.part_limit = plan_part_limit(&options);
    check(catalog_open(&entry, 1, &world.catalog, &world.error));
    check(corpus_source_init(&world.source, world.catalog, &source, &world.error));
    world.section.options = options;
    world.schedule = schedule_create(&world.section, 1, &world.source.source, &world.error);
    check(world.schedule == NULL ? -1 : 0);
    check(store_open(world.state_dir, &job, &world.store, &world.error));
    return sem_init(&world.woken, 0, 0);
}

static int tear_down(void **state) {
    (void)state;
    store_close(world.store);
    schedule_destroy(world.schedule);
    catalog_close(world.catalog);
    test_folder_remove(world.folder);
    return sem_destroy(&world.woken);
}

static struct ahead *started(void) {
    struct ahead *ahead = NULL;
    check(ahead_start(world.schedule, &world.source, NULL, schedule_state_create(world.schedule),
                      wake, NULL, &ahead, &world.error));
    return ahead;
}

static struct ahead_result *awaited(struct ahead *ahead) {
    struct ahead_result *result;
    while ((result = ahead_take(ahead)) == NULL) {
        assert_int_equal(sem_wait(&world.woken), 0);
    }
    return result;
}

/* The digests and states of the first steps, planned without threads. */
struct reference {
    uint8_t digest[PLAN_DIGEST_BYTES];
    uint8_t *state;
    size_t state_bytes;
};

static uint64_t refer(struct reference *out, uint64_t steps) {
    struct plan_state *state = schedule_state_create(world.schedule);
    struct plan_state *next = schedule_state_create(world.schedule);
    struct step_plan *plan;
    uint64_t step = 0;
    while (step < steps && schedule_step(world.schedule, state, next, &plan, &world.error) == 1) {
        out[step].state = ahead_encode(state, &out[step].state_bytes);
        memcpy(out[step].digest, plan->digest, sizeof plan->digest);
        step_plan_destroy(plan);
        plan_state_copy(state, next);
        step++;
    }
    plan_state_destroy(state);
    plan_state_destroy(next);
    return step;
}

static void refer_free(struct reference *reference, uint64_t steps) {
    for (uint64_t step = 0; step < steps; step++) {
        free(reference[step].state);
    }
}

static void steps_are_planned_up_to_the_limit_and_no_further(void **state) {
    struct reference reference[6];
    (void)state;
    assert_int_equal(refer(reference, 6), 6);
    struct ahead *ahead = started();
    assert_null(ahead_take(ahead));
    ahead_extend(ahead, 5);
    ahead_extend(ahead, 2);
    for (uint64_t step = 0; step < 5; step++) {
        struct ahead_result *result = awaited(ahead);
        assert_int_equal(result->kind, AHEAD_PLANNED);
        assert_int_equal(result->step, step);
        assert_memory_equal(result->plan->digest, reference[step].digest, PLAN_DIGEST_BYTES);
        assert_int_equal(result->state_after_bytes, reference[step + 1].state_bytes);
        assert_memory_equal(result->state_after, reference[step + 1].state,
                            result->state_after_bytes);
        ahead_result_destroy(result);
    }
    ahead_freeze(ahead);
    ahead_extend(ahead, 1000);
    ahead_stop(ahead);
    refer_free(reference, 6);
}

static void the_end_of_data_is_told_once(void **state) {
    (void)state;
    struct ahead *ahead = started();
    uint64_t steps = 0;
    ahead_extend(ahead, 1000000);
    for (;;) {
        struct ahead_result *result = awaited(ahead);
        enum ahead_kind kind = result->kind;
        assert_int_equal(result->step, steps);
        ahead_result_destroy(result);
        if (kind == AHEAD_ENDED) {
            break;
        }
        assert_int_equal(kind, AHEAD_PLANNED);
        steps++;
    }
    assert_true(steps > 10);
    ahead_extend(ahead, 2000000);
    ahead_stop(ahead);
}

static struct replay_row row_of(const struct reference *reference, uint64_t step) {
    struct replay_row row = {
        .step = step, .state_bytes = reference[step].state_bytes, .digest_known = true};
    row.state = malloc(row.state_bytes);
    memcpy(row.state, reference[step].state, row.state_bytes);
    memcpy(row.digest, reference[step].digest, sizeof row.digest);
    return row;
}

static void a_replayed_step_is_the_step_it_was(void **state) {
    struct reference reference[12];
    (void)state;
    assert_int_equal(refer(reference, 12), 12);
    struct ahead *ahead = started();
    for (uint64_t step = 3; step < 12; step++) {
        struct replay_row row = row_of(reference, 3);
        assert_int_equal(ahead_replay(ahead, step, &row), 0);
        struct ahead_result *result = awaited(ahead);
        assert_int_equal(result->kind, AHEAD_REPLAYED);
        assert_int_equal(result->step, step);
        assert_memory_equal(result->plan->digest, reference[step].digest, PLAN_DIGEST_BYTES);
        ahead_result_destroy(result);
    }
    ahead_stop(ahead);
    refer_free(reference, 12);
}

static void a_row_that_is_not_what_it_was_is_refused(void **state) {
    struct reference reference[4];
    (void)state;
    assert_int_equal(refer(reference, 4), 4);
    struct ahead *ahead = started();
    for (int damage = 0; damage < 3; damage++) {
        struct replay_row row = row_of(reference, 2);
        row.digest[0] ^= damage == 0;
        row.state[row.state_bytes / 2] ^= damage == 1;
        row.step -= damage == 2;
        assert_int_equal(ahead_replay(ahead, 3, &row), 0);
        struct ahead_result *result = awaited(ahead);
        assert_int_equal(result->kind, AHEAD_FAILED);
        assert_int_equal(result->wish, AHEAD_WISH_REPLAY);
        assert_int_equal(result->error.code, -EBADMSG);
        ahead_result_destroy(result);
    }
    ahead_stop(ahead);
    refer_free(reference, 4);
}

/* Puts steps [from, to) as the daemon would, and waits until they are durable. */
static void put_steps(struct memo *memo, const struct reference *reference, uint64_t from,
                      uint64_t to) {
    struct memo_progress progress;
    for (uint64_t step = from; step < to; step++) {
        struct step_plan *plan = step_plan_create(1, 1, 1, 1);
        struct replay_row row = row_of(reference, step);
        plan->step = step;
        memcpy(plan->digest, row.digest, sizeof plan->digest);
        assert_int_equal(memo_put_step(memo, plan, false, row.state, row.state_bytes), 0);
        step_plan_destroy(plan);
    }
    memo_progress(memo, &progress);
    while (progress.durable_step < to) {
        assert_int_equal(sem_wait(&world.woken), 0);
        memo_progress(memo, &progress);
        assert_false(progress.failed);
    }
}

static struct memo *memo_started(uint64_t durable_step) {
    struct memo *memo = NULL;
    const struct memo_options options = {
        .durable_step = durable_step, .exports_retained = 3, .ranks_max = 1};
    check(memo_start(world.store, &options, wake, NULL, &memo, &world.error));
    return memo;
}

static void put_committed(struct memo *memo, uint64_t step, uint64_t oldest) {
    static uint64_t change;
    const struct memo_commits commits = {
        .change = ++change, .committed_step = step, .oldest_step_kept = oldest};
    memo_put_commits(memo, &commits);
}

static struct memo_fetched *fetched(struct memo *memo, uint64_t step) {
    struct memo_fetched *answer;
    assert_int_equal(memo_fetch(memo, MEMO_REPLAY, step), 0);
    while ((answer = memo_take(memo)) == NULL) {
        assert_int_equal(sem_wait(&world.woken), 0);
    }
    return answer;
}

static void what_is_put_becomes_durable_and_can_be_fetched(void **state) {
    struct reference reference[8];
    (void)state;
    assert_int_equal(refer(reference, 8), 8);
    struct memo *memo = memo_started(0);
    struct memo_fetched *answer = fetched(memo, 3);
    assert_false(answer->found);
    memo_fetched_destroy(answer);
    put_steps(memo, reference, 0, 8);
    answer = fetched(memo, 5);
    assert_true(answer->found);
    assert_int_equal(answer->step, 5);
    assert_int_equal(answer->row.step, 5);
    assert_int_equal(answer->row.state_bytes, reference[5].state_bytes);
    assert_memory_equal(answer->row.state, reference[5].state, answer->row.state_bytes);
    memo_fetched_destroy(answer);
    check(memo_stop(memo, &world.error));
    refer_free(reference, 8);
}

/* Large states faster than the disk takes them, in as few groups as the memo likes. */
static void the_wal_stays_below_16_mb_whatever_is_put(void **state) {
    enum { STEPS = 300, STATE_BYTES = 400000 };
    char path[300];
    struct stat info;
    struct memo_progress progress;
    off_t largest = 0;
    (void)state;
    (void)snprintf(path, sizeof path, "%s/ballast.db-wal", world.state_dir);
    struct memo *memo = memo_started(0);
    struct step_plan *plan = step_plan_create(1, 1, 1, 1);
    for (plan->step = 0; plan->step < STEPS; plan->step++) {
        uint8_t *bytes = calloc(1, STATE_BYTES);
        memset(bytes, (int)plan->step, STATE_BYTES);
        assert_int_equal(memo_put_step(memo, plan, false, bytes, STATE_BYTES), 0);
        put_committed(memo, plan->step, plan->step < 20 ? 0 : plan->step - 20);
        do {
            memo_progress(memo, &progress);
            assert_false(progress.failed);
            assert_true(progress.durable_committed_step <= progress.durable_step);
            largest = stat(path, &info) == 0 && info.st_size > largest ? info.st_size : largest;
        } while (progress.durable_step + 60 < plan->step);
    }
    step_plan_destroy(plan);
    check(memo_stop(memo, &world.error));
    print_message("%ld bytes at most\n", (long)largest);
    assert_true(largest > 4 << 20 && largest <= 16 << 20);
    struct store_summary summary;
    check(store_summary(world.store, &summary, &world.error));
    assert_int_equal(summary.steps_end, STEPS);
    assert_int_equal(summary.committed_step, STEPS - 1);
}

static struct memo_fetched *awaited_answer(struct memo *memo) {
    struct memo_fetched *answer;
    while ((answer = memo_take(memo)) == NULL) {
        assert_int_equal(sem_wait(&world.woken), 0);
    }
    return answer;
}

static void a_generation_is_one_group_with_all_that_was_put_before(void **state) {
    const struct memo_generation generation = {.number = 1, .step = 3, .by = "rank"};
    struct reference reference[8];
    struct memo_progress progress;
    struct store_summary summary;
    (void)state;
    assert_int_equal(refer(reference, 8), 8);
    struct memo *memo = memo_started(0);
    put_steps(memo, reference, 0, 8);
    put_committed(memo, 6, 0);
    assert_int_equal(memo_put_generation(memo, &generation), 0);
    struct memo_fetched *begun = awaited_answer(memo);
    assert_int_equal(begun->purpose, MEMO_BEGUN);
    assert_int_equal(begun->rows_end, 8);
    assert_int_equal(begun->digest_count, 5);
    for (uint32_t i = 0; i < 5; i++) {
        assert_memory_equal(begun->digests[i], reference[3 + i].digest, PLAN_DIGEST_BYTES);
    }
    memo_fetched_destroy(begun);
    memo_progress(memo, &progress);
    assert_int_equal(progress.generation, 1);
    assert_int_equal(progress.durable_step, 8);
    assert_int_equal(progress.durable_committed_step, 3);
    check(memo_stop(memo, &world.error));
    check(store_summary(world.store, &summary, &world.error));
    assert_int_equal(summary.committed_step, 3);
    assert_int_equal(summary.generation_step, 3);
    refer_free(reference, 8);
}

static void await_progress(struct memo *memo, struct memo_progress *progress,
                           bool (*enough)(const struct memo_progress *progress)) {
    memo_progress(memo, progress);
    while (!enough(progress)) {
        assert_int_equal(sem_wait(&world.woken), 0);
        memo_progress(memo, progress);
    }
}

static bool is_full(const struct memo_progress *progress) {
    return progress->full;
}

static bool has_failed(const struct memo_progress *progress) {
    return progress->failed;
}

static bool commits_are_durable(const struct memo_progress *progress) {
    return progress->durable_change == 2;
}

/* Whether the store knows that rank dp 1 has committed up to step. */
static void expect_rank(uint64_t step) {
    struct store_rank rank = {.dp = 1};
    assert_int_equal(store_get_rank(world.store, &rank, &world.error), step > 0);
    assert_int_equal(rank.committed_step, step);
}

static void ranks_ahead_are_in_the_group_of_their_commit_until_a_generation_begins(void **state) {
    const struct memo_generation generation = {.number = 1, .step = 2, .change = 3};
    struct store_rank rank = {.dp = 1, .committed_step = 4};
    struct memo_commits commits = {.change = 1, .committed_step = 2, .ranks = &rank};
    struct memo_progress progress;
    (void)state;
    struct memo *memo = memo_started(0);
    faulty = (struct faulty){.operations = FAULTY_WRITE, .fail_at = 1, .sticky = true};
    faulty.code = SQLITE_FULL;
    commits.rank_count = 1;
    memo_put_commits(memo, &commits);
    await_progress(memo, &progress, is_full);
    assert_int_equal(progress.durable_change, 0);
    rank.committed_step = 5;
    commits.change = 2;
    memo_put_commits(memo, &commits);
    faulty = (struct faulty){0};
    await_progress(memo, &progress, commits_are_durable);
    check(memo_stop(memo, &world.error));
    expect_rank(5);
    memo = memo_started(0);
    memo_put_commits(memo, &commits);
    assert_int_equal(memo_put_generation(memo, &generation), 0);
    memo_fetched_destroy(awaited_answer(memo));
    memo_progress(memo, &progress);
    assert_int_equal(progress.durable_change, 3);
    check(memo_stop(memo, &world.error));
    expect_rank(0);
}

static void a_step_that_comes_out_differently_the_second_time_ends_the_memo(void **state) {
    struct reference reference[4];
    struct memo_progress progress = {0};
    (void)state;
    assert_int_equal(refer(reference, 4), 4);
    struct memo *memo = memo_started(0);
    put_steps(memo, reference, 0, 4);
    for (int other = 0; other < 2; other++) {
        struct step_plan *plan = step_plan_create(1, 1, 1, 1);
        struct replay_row row = row_of(reference, 2);
        plan->step = 2;
        memcpy(plan->digest, row.digest, sizeof plan->digest);
        plan->digest[0] ^= (uint8_t)other;
        assert_int_equal(memo_put_step(memo, plan, true, row.state, row.state_bytes), 0);
        step_plan_destroy(plan);
    }
    while (!progress.failed) {
        assert_int_equal(sem_wait(&world.woken), 0);
        memo_progress(memo, &progress);
    }
    assert_int_equal(progress.error.code, -EBADMSG);
    assert_non_null(strstr(progress.error.text, "step 2"));
    assert_int_equal(memo_stop(memo, &world.error), -EBADMSG);
    refer_free(reference, 4);
}

static void a_restarted_planner_goes_on_from_the_other_state(void **state) {
    struct reference reference[12];
    (void)state;
    assert_int_equal(refer(reference, 12), 12);
    struct ahead *ahead = started();
    for (uint64_t round = 0; round < 20; round++) {
        uint64_t from = round * 7 % 10;
        struct replay_row row = row_of(reference, from);
        ahead_extend(ahead, 12);
        if (round % 2 == 0) {
            ahead_result_destroy(awaited(ahead));
        }
        ahead_restart(ahead, row.state, row.state_bytes);
        ahead_extend(ahead, from + 2);
        for (uint64_t step = from; step < from + 2; step++) {
            struct ahead_result *result = awaited(ahead);
            assert_int_equal(result->kind, AHEAD_PLANNED);
            assert_int_equal(result->step, step);
            assert_memory_equal(result->plan->digest, reference[step].digest, PLAN_DIGEST_BYTES);
            ahead_result_destroy(result);
        }
    }
    ahead_stop(ahead);
    refer_free(reference, 12);
}

static void a_far_step_is_reached_from_a_row_or_the_start_or_given_up(void **state) {
    struct reference reference[12];
    (void)state;
    assert_int_equal(refer(reference, 12), 12);
    struct ahead *ahead = started();
    for (int from_start = 0; from_start < 2; from_start++) {
        struct replay_row row = row_of(reference, 2);
        if (from_start) {
            free(row.state);
        }
        assert_int_equal(ahead_reach(ahead, 9, from_start ? NULL : &row), 0);
        struct ahead_result *result = awaited(ahead);
        assert_int_equal(result->kind, AHEAD_REACHED);
        assert_int_equal(result->step, 9);
        assert_memory_equal(result->plan->digest, reference[9].digest, PLAN_DIGEST_BYTES);
        assert_int_equal(result->state_bytes, reference[9].state_bytes);
        assert_memory_equal(result->state, reference[9].state, result->state_bytes);
        ahead_result_destroy(result);
    }
    assert_int_equal(ahead_reach(ahead, 1000000, NULL), 0);
    struct ahead_result *result = awaited(ahead);
    assert_int_equal(result->kind, AHEAD_FAILED);
    assert_int_equal(result->wish, AHEAD_WISH_REACH);
    assert_int_equal(result->error.code, -ERANGE);
    ahead_result_destroy(result);
    ahead_stop(ahead);
    refer_free(reference, 12);
}

static void stopping_makes_everything_durable_first(void **state) {
    struct reference reference[8];
    struct store_summary summary;
    (void)state;
    assert_int_equal(refer(reference, 8), 8);
    struct memo *memo = memo_started(0);
    put_steps(memo, reference, 0, 8);
    put_committed(memo, 3, 0);
    put_committed(memo, 5, 4);
    check(memo_stop(memo, &world.error));
    check(store_summary(world.store, &summary, &world.error));
    assert_int_equal(summary.committed_step, 5);
    assert_int_equal(summary.steps_end, 8);
    refer_free(reference, 8);
}

static void put_step(struct memo *memo, const struct reference *reference, uint64_t step) {
    struct step_plan *plan = step_plan_create(1, 1, 1, 1);
    struct replay_row row = row_of(reference, step);
    plan->step = step;
    assert_int_equal(memo_put_step(memo, plan, false, row.state, row.state_bytes), 0);
    step_plan_destroy(plan);
}

static void a_full_disk_is_waited_for_and_nothing_is_lost(void **state) {
    struct reference reference[6];
    struct memo_progress progress;
    struct store_summary summary;
    (void)state;
    assert_int_equal(refer(reference, 6), 6);
    struct memo *memo = memo_started(0);
    put_steps(memo, reference, 0, 2);
    faulty = (struct faulty){.operations = FAULTY_WRITE, .fail_at = 1, .sticky = true};
    faulty.code = SQLITE_FULL;
    put_step(memo, reference, 2);
    await_progress(memo, &progress, is_full);
    assert_int_equal(progress.durable_step, 2);
    put_step(memo, reference, 3);
    put_committed(memo, 2, 0);
    faulty = (struct faulty){0};
    put_steps(memo, reference, 4, 6);
    check(memo_stop(memo, &world.error));
    check(store_summary(world.store, &summary, &world.error));
    assert_int_equal(summary.steps_end, 6);
    assert_int_equal(summary.committed_step, 2);
    refer_free(reference, 6);
}

static void after_a_failed_sync_nothing_is_called_durable(void **state) {
    struct reference reference[6];
    struct memo_progress progress;
    (void)state;
    assert_int_equal(refer(reference, 6), 6);
    struct memo *memo = memo_started(0);
    put_steps(memo, reference, 0, 2);
    faulty = (struct faulty){.operations = FAULTY_SYNC, .fail_at = 1};
    faulty.code = SQLITE_IOERR_FSYNC;
    put_step(memo, reference, 2);
    await_progress(memo, &progress, has_failed);
    put_step(memo, reference, 3);
    memo_progress(memo, &progress);
    assert_int_equal(progress.durable_step, 2);
    assert_int_equal(memo_stop(memo, &world.error), -EIO);
    faulty = (struct faulty){0};
    refer_free(reference, 6);
}

/* Recovery */

static void stored(const struct reference *reference, uint64_t steps, uint64_t committed,
                   uint64_t oldest) {
    struct memo *memo = memo_started(0);
    put_steps(memo, reference, 0, steps);
    put_committed(memo, committed, oldest);
    check(memo_stop(memo, &world.error));
}

static void a_fresh_store_starts_the_stream(void **state) {
    struct recovered recovered;
    (void)state;
    check(recover(world.store, world.schedule, &world.source, &recovered, &world.error));
    assert_int_equal(recovered.committed_step, 0);
    assert_int_equal(recovered.state->step, 0);
    assert_null(recovered_digest(&recovered, 0));
    recovered_deinit(&recovered);
}

static void recovery_stands_at_the_committed_step_with_the_state_it_had(void **state) {
    struct reference reference[12];
    struct recovered recovered;
    size_t bytes;
    (void)state;
    assert_int_equal(refer(reference, 12), 12);
    stored(reference, 10, 6, 2);
    check(recover(world.store, world.schedule, &world.source, &recovered, &world.error));
    assert_int_equal(recovered.committed_step, 6);
    assert_int_equal(recovered.steps_end, 10);
    uint8_t *encoded = ahead_encode(recovered.state, &bytes);
    assert_int_equal(bytes, reference[6].state_bytes);
    assert_memory_equal(encoded, reference[6].state, bytes);
    assert_memory_equal(recovered_digest(&recovered, 9), reference[9].digest, PLAN_DIGEST_BYTES);
    assert_null(recovered_digest(&recovered, 5));
    assert_null(recovered_digest(&recovered, 10));
    free(encoded);
    recovered_deinit(&recovered);
    refer_free(reference, 12);
}

static void recovery_plans_on_from_the_last_row_when_everything_is_committed(void **state) {
    struct reference reference[12];
    struct recovered recovered;
    (void)state;
    assert_int_equal(refer(reference, 12), 12);
    stored(reference, 8, 8, 0);
    check(recover(world.store, world.schedule, &world.source, &recovered, &world.error));
    assert_int_equal(recovered.state->step, 8);
    recovered_deinit(&recovered);
    refer_free(reference, 12);
}

static void a_stored_digest_that_is_not_reproduced_is_damage(void **state) {
    struct reference reference[12];
    struct recovered recovered;
    (void)state;
    assert_int_equal(refer(reference, 12), 12);
    reference[7].digest[3] ^= 1;
    stored(reference, 8, 8, 0);
    assert_int_equal(recover(world.store, world.schedule, &world.source, &recovered, &world.error),
                     -EBADMSG);
    assert_non_null(strstr(world.error.text, "step 7"));
    refer_free(reference, 12);
}

/* Plans in memory */

static void add_plan(struct plans *plans, uint64_t step) {
    struct step_plan *plan = step_plan_create(1, 1, 1, 1);
    plan->step = step;
    assert_int_equal(plans_add(plans, plan), 0);
}

static void plans_keep_what_is_ahead_in_use_or_stood_at(void **state) {
    const struct rank_place mesh = {.dp = 1, .pp = 1, .cp = 1, .tp = 1};
    const uint8_t local[] = {1};
    struct roster roster;
    struct plans plans = {0};
    (void)state;
    assert_int_equal(roster_init(&roster, &mesh, local, 1, 1, 0, 0), 0);
    for (uint64_t step = 40; step-- > 0;) {
        add_plan(&plans, step);
    }
    add_plan(&plans, 17);
    assert_int_equal(plans.count, 40);
    roster.members[0].streaming = true;
    roster.members[0].step = 5;
    plans_find(&plans, 9)->uses = 1;
    plans_trim(&plans, 30, &roster);
    assert_int_equal(plans.count, 12);
    assert_non_null(plans_find(&plans, 5));
    assert_non_null(plans_find(&plans, 9));
    assert_non_null(plans_find(&plans, 30));
    assert_null(plans_find(&plans, 29));
    assert_null(plans_find(&plans, 40));
    plans_find(&plans, 9)->uses = 0;
    plans_trim(&plans, 41, &roster);
    assert_int_equal(plans.count, 1);
    plans_deinit(&plans);
    roster_deinit(&roster);
}

static void how_many_plans_fit_follows_from_their_size(void **state) {
    struct roster roster = {0};
    struct plans plans = {0};
    (void)state;
    assert_int_equal(plans_fit(&plans, 1 << 20), 1);
    for (uint64_t step = 0; step < 9; step++) {
        add_plan(&plans, step);
        assert_int_equal(plans.bytes, (step + 1) * step_plan_bytes(plans.entries[0]->plan));
    }
    uint64_t bytes = plans.bytes / 9;
    assert_int_equal(plans_fit(&plans, 5 * bytes), 5);
    assert_int_equal(plans_fit(&plans, 5 * bytes - 1), 4);
    assert_int_equal(plans_fit(&plans, bytes - 1), 1);
    plans_trim(&plans, 7, &roster);
    assert_int_equal(plans.bytes, 2 * bytes);
    plans_trim(&plans, 9, &roster);
    assert_int_equal(plans.bytes, 0);
    plans_deinit(&plans);
}

static void percentiles_are_of_the_last_samples(void **state) {
    static struct samples samples;
    (void)state;
    assert_int_equal(samples_percentile(&samples, 99), 0);
    for (uint64_t i = 1; i <= 100; i++) {
        samples_add(&samples, i);
    }
    assert_int_equal(samples_percentile(&samples, 50), 50);
    assert_int_equal(samples_percentile(&samples, 99), 99);
    assert_int_equal(samples_percentile(&samples, 100), 100);
    for (uint64_t i = 0; i < SAMPLES_KEPT; i++) {
        samples_add(&samples, 7);
    }
    assert_int_equal(samples_percentile(&samples, 100), 7);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(steps_are_planned_up_to_the_limit_and_no_further),
        TEST(the_end_of_data_is_told_once),
        TEST(a_replayed_step_is_the_step_it_was),
        TEST(a_row_that_is_not_what_it_was_is_refused),
        TEST(what_is_put_becomes_durable_and_can_be_fetched),
        TEST(the_wal_stays_below_16_mb_whatever_is_put),
        TEST(a_generation_is_one_group_with_all_that_was_put_before),
        TEST(ranks_ahead_are_in_the_group_of_their_commit_until_a_generation_begins),
        TEST(a_step_that_comes_out_differently_the_second_time_ends_the_memo),
        TEST(a_restarted_planner_goes_on_from_the_other_state),
        TEST(a_far_step_is_reached_from_a_row_or_the_start_or_given_up),
        TEST(stopping_makes_everything_durable_first),
        TEST(a_full_disk_is_waited_for_and_nothing_is_lost),
        TEST(after_a_failed_sync_nothing_is_called_durable),
        TEST(a_fresh_store_starts_the_stream),
        TEST(recovery_stands_at_the_committed_step_with_the_state_it_had),
        TEST(recovery_plans_on_from_the_last_row_when_everything_is_committed),
        TEST(a_stored_digest_that_is_not_reproduced_is_damage),
        cmocka_unit_test(plans_keep_what_is_ahead_in_use_or_stood_at),
        cmocka_unit_test(how_many_plans_fit_follows_from_their_size),
        cmocka_unit_test(percentiles_are_of_the_last_samples),
    };
    faulty_vfs_install();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
