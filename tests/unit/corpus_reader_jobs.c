/* The queue that both readers share, step by step in one thread: what timing decides elsewhere is
 * decided here by the test. */
#include "corpus/reader_jobs.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <poll.h>
#include <stdlib.h>

static int open_queue(void **state) {
    struct reader_jobs *jobs = calloc(1, sizeof *jobs);
    struct error error;
    assert_non_null(jobs);
    assert_int_equal(reader_jobs_init(jobs, 4, &error), 0);
    *state = jobs;
    return 0;
}

static int close_queue(void **state) {
    reader_jobs_deinit(*state);
    free(*state);
    return 0;
}

static void take(struct reader_jobs *jobs, uint32_t max, uint32_t share, struct read_piece *piece) {
    assert_true(reader_jobs_take(jobs, max, share, false, piece));
}

static void assert_piece(const struct read_piece *piece, const struct read_job *job, uint32_t first,
                         uint32_t count) {
    assert_ptr_equal(piece->job, job);
    assert_int_equal(piece->first_extent, first);
    assert_int_equal(piece->extent_count, count);
}

static bool readable(const struct reader_jobs *jobs) {
    struct pollfd poll_fd = {.fd = jobs->event_fd, .events = POLLIN};
    return poll(&poll_fd, 1, 0) == 1;
}

static void extents_are_taken_in_order_and_each_once(void **state) {
    struct reader_jobs *jobs = *state;
    struct read_extent extents[5] = {{0}};
    struct read_job first = {.extents = extents, .extent_count = 5};
    struct read_job second = {.extents = extents, .extent_count = 2};
    struct read_piece piece;
    reader_jobs_submit(jobs, &first);
    reader_jobs_submit(jobs, &second);
    take(jobs, 3, 1, &piece);
    assert_piece(&piece, &first, 0, 3);
    take(jobs, 3, 1, &piece);
    assert_piece(&piece, &first, 3, 2);
    take(jobs, 3, 1, &piece);
    assert_piece(&piece, &second, 0, 2);
    assert_false(reader_jobs_take(jobs, 3, 1, false, &piece));
}

static void pieces_get_smaller_towards_the_end_of_a_job(void **state) {
    struct reader_jobs *jobs = *state;
    struct read_extent extents[100] = {{0}};
    struct read_job job = {.extents = extents, .extent_count = 100};
    struct read_piece piece;
    uint32_t before = 100, taken = 0;
    reader_jobs_submit(jobs, &job);
    while (reader_jobs_take(jobs, 32, 4, false, &piece)) {
        assert_int_equal(piece.first_extent, taken);
        assert_true(piece.extent_count > 0 && piece.extent_count <= before);
        before = piece.extent_count;
        taken += piece.extent_count;
    }
    assert_int_equal(taken, 100);
    assert_int_equal(before, 1);
}

static void a_job_is_done_with_its_last_extent_and_announced_then(void **state) {
    struct reader_jobs *jobs = *state;
    struct read_extent extents[2] = {{0}};
    struct read_job job = {.extents = extents, .extent_count = 2};
    struct read_piece pieces[2];
    reader_jobs_submit(jobs, &job);
    take(jobs, 1, 1, &pieces[0]);
    take(jobs, 1, 1, &pieces[1]);
    reader_jobs_finish(jobs, &pieces[1]);
    assert_null(reader_jobs_reap(jobs));
    assert_false(readable(jobs));
    reader_jobs_finish(jobs, &pieces[0]);
    assert_true(readable(jobs));
    assert_ptr_equal(reader_jobs_reap(jobs), &job);
    assert_int_equal(job.result, 0);
    assert_null(reader_jobs_reap(jobs));
}

static void jobs_come_back_in_the_order_they_were_done(void **state) {
    struct reader_jobs *jobs = *state;
    struct read_extent extents[2] = {{0}};
    struct read_job first = {.extents = &extents[0], .extent_count = 1};
    struct read_job second = {.extents = &extents[1], .extent_count = 1};
    struct read_piece pieces[2];
    reader_jobs_submit(jobs, &first);
    reader_jobs_submit(jobs, &second);
    take(jobs, 1, 1, &pieces[0]);
    take(jobs, 1, 1, &pieces[1]);
    reader_jobs_finish(jobs, &pieces[1]);
    reader_jobs_finish(jobs, &pieces[0]);
    assert_ptr_equal(reader_jobs_reap(jobs), &second);
    assert_ptr_equal(reader_jobs_reap(jobs), &first);
}

/* All orders of giving back five extents of which three failed. */
static void the_lowest_failed_extent_is_reported_whatever_the_order(void **state) {
    static const int results[5] = {0, -ENODEV, 0, -EIO, -EBADF};
    struct reader_jobs *jobs = *state;
    for (uint32_t code = 0; code < 5 * 5 * 5 * 5 * 5; code++) {
        uint32_t order[5], seen = 0;
        for (uint32_t i = 0, rest = code; i < 5; i++, rest /= 5) {
            order[i] = rest % 5;
            seen |= 1u << order[i];
        }
        if (seen != 31) {
            continue;
        }
        struct read_extent extents[5] = {{0}};
        struct read_job job = {.extents = extents, .extent_count = 5};
        struct read_piece pieces[5];
        reader_jobs_submit(jobs, &job);
        for (uint32_t i = 0; i < 5; i++) {
            take(jobs, 1, 1, &pieces[i]);
        }
        for (uint32_t i = 0; i < 5; i++) {
            extents[order[i]].result = results[order[i]];
            reader_jobs_finish(jobs, &pieces[order[i]]);
        }
        assert_ptr_equal(reader_jobs_reap(jobs), &job);
        assert_int_equal(job.result, -ENODEV);
        assert_int_equal(job.failed_extent, 1);
    }
}

static void the_extents_behind_a_failure_are_read_all_the_same(void **state) {
    struct reader_jobs *jobs = *state;
    struct read_extent extents[9] = {{0}};
    struct read_job bad = {.extents = extents, .extent_count = 9};
    struct read_piece first, rest;
    reader_jobs_submit(jobs, &bad);
    take(jobs, 2, 1, &first);
    extents[1].result = -EIO;
    reader_jobs_finish(jobs, &first);
    take(jobs, 9, 1, &rest);
    assert_piece(&rest, &bad, 2, 7);
    assert_null(reader_jobs_reap(jobs));
    reader_jobs_finish(jobs, &rest);
    assert_ptr_equal(reader_jobs_reap(jobs), &bad);
    assert_int_equal(bad.result, -EIO);
    assert_int_equal(bad.failed_extent, 1);
}

static unsigned completed;

static void note_completion(struct read_job *job) {
    assert_int_equal(job->result, -EIO);
    completed++;
}

static void a_job_is_completed_once_before_it_is_reaped(void **state) {
    struct reader_jobs *jobs = *state;
    struct read_extent extents[2] = {{.result = -EIO}, {0}};
    struct read_job job = {.extents = extents, .extent_count = 2, .complete = note_completion};
    struct read_piece pieces[2];
    completed = 0;
    reader_jobs_submit(jobs, &job);
    take(jobs, 1, 1, &pieces[0]);
    take(jobs, 1, 1, &pieces[1]);
    reader_jobs_finish(jobs, &pieces[1]);
    assert_int_equal(completed, 0);
    reader_jobs_finish(jobs, &pieces[0]);
    assert_int_equal(completed, 1);
    assert_ptr_equal(reader_jobs_reap(jobs), &job);
}

static void the_bound_counts_jobs_until_they_are_reaped(void **state) {
    struct reader_jobs *jobs = *state;
    struct read_extent extents[5] = {{0}};
    struct read_job job[5];
    for (int i = 0; i < 5; i++) {
        job[i] = (struct read_job){.extents = &extents[i], .extent_count = 1};
    }
    struct read_piece piece;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(reader_jobs_submit(jobs, &job[i]), 0);
    }
    assert_int_equal(reader_jobs_submit(jobs, &job[4]), -ENOBUFS);
    take(jobs, 1, 1, &piece);
    reader_jobs_finish(jobs, &piece);
    assert_int_equal(reader_jobs_submit(jobs, &job[4]), -ENOBUFS);
    assert_non_null(reader_jobs_reap(jobs));
    assert_int_equal(reader_jobs_submit(jobs, &job[4]), 0);
}

static void a_stopped_queue_gives_nothing_out_and_does_not_wait(void **state) {
    struct reader_jobs *jobs = *state;
    struct read_extent extents[3] = {{0}};
    struct read_job job = {.extents = extents, .extent_count = 3};
    struct read_piece piece;
    reader_jobs_submit(jobs, &job);
    reader_jobs_stop(jobs);
    assert_true(reader_jobs_stopping(jobs));
    assert_false(reader_jobs_take(jobs, 1, 1, true, &piece));
}

/* A job whose extents are found by the taker; `busy`: what another taker gets meanwhile. */
struct unprepared {
    struct read_job job;
    struct reader_jobs *jobs;
    struct read_extent extents[2];
    int code;
    bool busy_takes;
    struct read_piece busy;
    uint32_t prepared, completed;
};

static int prepare(struct read_job *job) {
    struct unprepared *unprepared = (struct unprepared *)(void *)job;
    unprepared->prepared++;
    unprepared->busy_takes = reader_jobs_take(unprepared->jobs, 1, 1, false, &unprepared->busy);
    job->extents = unprepared->extents;
    job->extent_count = 2;
    return unprepared->code;
}

static void complete(struct read_job *job) {
    ((struct unprepared *)(void *)job)->completed++;
}

static struct unprepared unprepared(struct reader_jobs *jobs, int code) {
    return (struct unprepared){
        .job = {.prepare = prepare, .complete = complete}, .jobs = jobs, .code = code};
}

static void who_takes_from_a_job_prepares_it_first_and_once(void **state) {
    struct unprepared one = unprepared(*state, 0);
    struct read_piece piece;
    reader_jobs_submit(*state, &one.job);
    assert_int_equal(one.prepared, 0);
    take(*state, 1, 1, &piece);
    assert_piece(&piece, &one.job, 0, 1);
    take(*state, 1, 1, &piece);
    assert_piece(&piece, &one.job, 1, 1);
    assert_int_equal(one.prepared, 1);
    assert_false(one.busy_takes);
}

static void while_one_job_is_prepared_others_are_and_nothing_overtakes_it(void **state) {
    struct unprepared first = unprepared(*state, 0), second = unprepared(*state, 0);
    struct read_piece piece;
    reader_jobs_submit(*state, &first.job);
    reader_jobs_submit(*state, &second.job);
    take(*state, 2, 1, &piece);
    assert_piece(&piece, &first.job, 0, 2);
    assert_int_equal(second.prepared, 1); /* by who came while the first was prepared */
    assert_false(first.busy_takes);
    take(*state, 2, 1, &piece);
    assert_piece(&piece, &second.job, 0, 2);
}

static void a_job_that_cannot_be_prepared_fails_and_holds_nobody_up(void **state) {
    struct unprepared jobs[3];
    for (uint32_t bad = 0; bad < 3; bad++) {
        struct read_piece piece;
        for (uint32_t i = 0; i < 3; i++) {
            jobs[i] = unprepared(*state, i == bad ? -ENOMEM : 0);
            reader_jobs_submit(*state, &jobs[i].job);
        }
        for (uint32_t taken = 0; taken < 2; taken++) {
            take(*state, 2, 1, &piece);
            reader_jobs_finish(*state, &piece);
        }
        assert_false(reader_jobs_take(*state, 2, 1, false, &piece));
        assert_true(readable(*state));
        for (uint32_t i = 0; i < 3; i++) {
            assert_non_null(reader_jobs_reap(*state));
            assert_int_equal(jobs[i].completed, 1);
            assert_int_equal(jobs[i].job.result, jobs[i].code);
            assert_int_equal(jobs[i].job.extent_count, i == bad ? 0 : 2);
        }
    }
}

/* Every cut of an extent of three iovecs (3, 1 and 4 bytes) into two reads. */
static void an_extent_is_consumed_by_any_two_reads(void **state) {
    (void)state;
    for (ssize_t cut = 1; cut <= 8; cut++) {
        char memory[8];
        struct iovec iovecs[3] = {{memory, 3}, {memory + 3, 1}, {memory + 4, 4}};
        struct read_extent extent = {.iovec_count = 3, .offset = 100, .iovecs = iovecs};
        struct landing landing = {0};
        assert_true(landing_begin(&landing, &extent));
        assert_int_equal(landing_advance(&landing, cut), cut < 8);
        assert_int_equal(extent.done, cut);
        if (cut < 8) {
            size_t left = 0;
            assert_int_equal(landing_offset(&landing), 100 + cut);
            assert_ptr_equal(landing_iovecs(&landing)->iov_base, memory + cut);
            for (uint32_t i = 0; i < landing_iovec_count(&landing); i++) {
                left += landing_iovecs(&landing)[i].iov_len;
            }
            assert_int_equal(left, 8 - cut);
            assert_false(landing_advance(&landing, 8 - cut));
        }
        assert_int_equal(extent.result, 0);
        assert_true(iovecs[0].iov_base == memory && iovecs[0].iov_len == 3);
        assert_true(iovecs[1].iov_base == memory + 3 && iovecs[1].iov_len == 1);
        assert_true(iovecs[2].iov_base == memory + 4 && iovecs[2].iov_len == 4);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_queue, close_queue)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(extents_are_taken_in_order_and_each_once),
        TEST(pieces_get_smaller_towards_the_end_of_a_job),
        TEST(a_job_is_done_with_its_last_extent_and_announced_then),
        TEST(jobs_come_back_in_the_order_they_were_done),
        TEST(the_lowest_failed_extent_is_reported_whatever_the_order),
        TEST(the_extents_behind_a_failure_are_read_all_the_same),
        TEST(a_job_is_completed_once_before_it_is_reaped),
        TEST(the_bound_counts_jobs_until_they_are_reaped),
        TEST(a_stopped_queue_gives_nothing_out_and_does_not_wait),
        TEST(who_takes_from_a_job_prepares_it_first_and_once),
        TEST(while_one_job_is_prepared_others_are_and_nothing_overtakes_it),
        TEST(a_job_that_cannot_be_prepared_fails_and_holds_nobody_up),
        cmocka_unit_test(an_extent_is_consumed_by_any_two_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
