/* reader_pool: preadv in threads, for where io_uring is not to be had.
 *
 * Threads take pieces of the oldest job: several extents at a time while plenty are left, so that
 * many small documents do not fight over the lock, single ones towards the end, so that all threads
 * finish together. Not faster than io_uring anywhere; the same bytes everywhere. */
#include "corpus/reader_jobs.h"
#include "corpus/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POOL_PIECE_EXTENTS_MAX 32u

struct pool_reader {
    struct reader reader; /* first: a reader is its pool_reader */
    struct reader_jobs jobs;
    uint32_t share;        /* see reader_jobs_take */
    uint32_t thread_count; /* running */
    pthread_t threads[];
};

static void pool_read_piece(struct reader_jobs *jobs, struct landing *landing,
                            const struct read_piece *piece) {
    for (uint32_t i = 0; i < piece->extent_count; i++) {
        landing_read(landing, &piece->job->extents[piece->first_extent + i]);
    }
    reader_jobs_finish(jobs, piece);
}

static void *pool_thread(void *context) {
    struct pool_reader *pool = context;
    struct landing landing = {0};
    struct read_piece piece;
    thread_begin("ballast-pread", THREAD_BACKGROUND);
    while (reader_jobs_take(&pool->jobs, POOL_PIECE_EXTENTS_MAX, pool->share, true, &piece)) {
        pool_read_piece(&pool->jobs, &landing, &piece);
    }
    free(landing.bounce);
    return NULL;
}

static int pool_submit(struct reader *reader, struct read_job *job) {
    return reader_jobs_submit(&((struct pool_reader *)reader)->jobs, job);
}

static struct read_job *pool_reap(struct reader *reader) {
    return reader_jobs_reap(&((struct pool_reader *)reader)->jobs);
}

static void pool_close(struct reader *reader) {
    struct pool_reader *pool = (struct pool_reader *)reader;
    reader_jobs_stop(&pool->jobs);
    for (uint32_t i = 0; i < pool->thread_count; i++) {
        pthread_join(pool->threads[i], NULL);
    }
    reader_jobs_deinit(&pool->jobs);
    free(pool);
}

static const struct reader_ops pool_ops = {pool_submit, pool_reap, pool_close};

int reader_pool_open(const struct reader_options *options, struct reader **out,
                     struct error *error) {
    int rc = reader_options_check(options, error);
    if (rc < 0) {
        return rc;
    }
    struct pool_reader *pool = calloc(1, sizeof *pool + options->threads * sizeof(pthread_t));
    if (pool == NULL) {
        return error_set(error, -ENOMEM, "reader: %s", strerror(ENOMEM));
    }
    rc = reader_jobs_init(&pool->jobs, options->jobs_max, error);
    if (rc < 0) {
        free(pool);
        return rc;
    }
    pool->reader = (struct reader){
        .ops = &pool_ops, .backend = "pread", .event_fd = pool->jobs.event_fd};
    pool->share = 2 * options->threads;
    while (pool->thread_count < options->threads) {
        char what[96];
        (void)snprintf(what, sizeof what, "thread %u of the %u that reader.threads asks for",
                       pool->thread_count + 1, options->threads);
        rc = thread_start(&pool->threads[pool->thread_count], pool_thread, pool, what, error);
        if (rc < 0) {
            pool_close(&pool->reader);
            return rc;
        }
        pool->thread_count++;
    }
    *out = &pool->reader;
    return 0;
}
