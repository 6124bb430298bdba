/* reader_jobs: what both readers share: jobs on their way, and how an extent is consumed.
 *
 * A job passes submit -> prepare -> take (piece by piece, in order) -> finish (in any order) ->
 * reap. Whoever comes to take and finds the first job unprepared prepares it, or the next one while
 * another thread is at it, so that the jobs behind are ready when the first is read. One mutex
 * guards the queue, another the finished jobs, and who reaps needs this one alone; each finished
 * job is announced on the eventfd after it was put on the list, so a poller that drains the eventfd
 * first and then reaps until NULL never misses one. All extents are tried, so the one reported is
 * the lowest that failed, whatever the timing. Internal to the readers: nobody else includes this.
 */
#ifndef BALLAST_CORPUS_READER_JOBS_H
#define BALLAST_CORPUS_READER_JOBS_H

#include "corpus/files.h"
#include "corpus/reader.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

struct reader_jobs {
    int event_fd;
    uint32_t jobs_max;
    /* May be NULL: takers wait in reader_jobs_take. Else told, without the lock, by the thread that
     * has prepared a job: others may have something to take. */
    void (*prepared)(struct reader_jobs *jobs);
    void *owner;            /* for `prepared` */
    uint32_t in_flight;     /* submitted and not reaped; the submitting thread's alone */
    pthread_mutex_t lock;   /* guards what follows, but for the finished jobs */
    pthread_cond_t arrived; /* something to take, or stopping */
    bool stopping;
    struct read_job *queued, *queued_last; /* extents of theirs are still to be taken */
    uint32_t next_extent;                  /* of `queued` */
    pthread_mutex_t done_lock;             /* guards the list; nothing else is done under it */
    struct read_job *done, *done_last;
    atomic_bool has_done; /* written with the list; reap looks without the lock */
};

/* Consecutive extents of one job, for one taker. */
struct read_piece {
    struct read_job *job;
    uint32_t first_extent;
    uint32_t extent_count;
};

/* -EINVAL, with the option and its range, when one is out of range. */
int reader_options_check(const struct reader_options *options, struct error *error);

int reader_jobs_init(struct reader_jobs *jobs, uint32_t jobs_max, struct error *error);
void reader_jobs_deinit(struct reader_jobs *jobs);

/* The two ends that the submitting thread sees: reader_ops.submit and reap. */
int reader_jobs_submit(struct reader_jobs *jobs, struct read_job *job);
struct read_job *reader_jobs_reap(struct reader_jobs *jobs);

/* Takes the next extents of the oldest job, preparing jobs if need be: at most `extents_max`, and
 * about one `share`-th of what is left, so that several takers all get some. False when there is
 * nothing to take, and always once stopped. With `wait` it blocks until there is something or the
 * queue is stopped. */
bool reader_jobs_take(struct reader_jobs *jobs, uint32_t extents_max, uint32_t share, bool wait,
                      struct read_piece *piece);

/* Gives a piece back, the results of its extents set. A piece may be given back in parts. */
void reader_jobs_finish(struct reader_jobs *jobs, const struct read_piece *piece);

/* From now on nothing is taken any more. */
void reader_jobs_stop(struct reader_jobs *jobs);
bool reader_jobs_stopping(struct reader_jobs *jobs);

/* Failures of one extent since its last progress. Zero at first. */
struct extent_tries {
    uint32_t postponed; /* EINTR, EAGAIN */
    uint32_t failed;    /* EIO, ESTALE */
};

#define EXTENT_BOUNCE_BYTES (READ_EXTENT_BYTES_MAX + 2 * FILE_DIRECT_ALIGN_MAX)

/* An extent on its way. What is to be checked or partly thrown away, and of a direct file whole
 * blocks, is read into bounce memory first and dealt out from there. */
struct landing {
    struct read_extent *extent;
    struct extent_tries tries;
    bool bounced;
    uint8_t *bounce; /* EXTENT_BOUNCE_BYTES, aligned; the taker's, kept from extent to extent */
    uint32_t align;  /* bounced: of what is read */
    uint64_t block;  /* bounced: offset in the file of the first block */
    uint64_t got;    /* bounced: bytes in the bounce memory */
    struct iovec whole;
};

/* Opens the extent's file; false: it failed already. Bounce memory is allocated when it is needed
 * first. */
bool landing_begin(struct landing *landing, struct read_extent *extent);

/* What is to be read next. */
struct iovec *landing_iovecs(struct landing *landing);
uint32_t landing_iovec_count(const struct landing *landing);
uint64_t landing_offset(const struct landing *landing);

/* What the read led to: `result` is what preadv returned, or a negative errno. True: read the rest.
 * False: the extent is whole or failed, its result is set and its file let go. */
bool landing_advance(struct landing *landing, ssize_t result);

/* Reads an extent on this thread; the landing is zero at first and its bounce memory the caller's.
 */
void landing_read(struct landing *landing, struct read_extent *extent);

/* Calls `prepare`, if there is one, so that the extents are there; false: the job has failed and is
 * concluded. */
bool read_job_prepare(struct read_job *job);

/* All extents have their results: sets the job's and calls `complete`. */
void read_job_conclude(struct read_job *job);

#endif
