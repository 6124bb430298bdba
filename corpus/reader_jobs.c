/* reader_jobs: see the header. Lists are linked through the jobs themselves, so nothing here
 * allocates. */
#include "corpus/reader_jobs.h"
#include "corpus/bulk.h"
#include "corpus/mapped.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* A read that only ever says "again" is given up after this many, rather than spinning for ever. */
#define TRIES_POSTPONED_MAX 1000u
#define TRIES_FAILED_MAX    3u
#define TRIES_STALE_MAX     2u

int reader_options_check(const struct reader_options *options, struct error *error) {
    if (options->queue_depth == 0 || options->queue_depth > READER_QUEUE_DEPTH_MAX) {
        return error_set(error, -EINVAL, "reader queue depth %u: must be 1 to %u",
                         options->queue_depth, READER_QUEUE_DEPTH_MAX);
    }
    if (options->threads == 0 || options->threads > READER_THREADS_MAX) {
        return error_set(error, -EINVAL, "reader threads %u: must be 1 to %u", options->threads,
                         READER_THREADS_MAX);
    }
    if (options->jobs_max == 0) {
        return error_set(error, -EINVAL, "reader jobs 0: must be at least 1");
    }
    return 0;
}

int reader_jobs_init(struct reader_jobs *jobs, uint32_t jobs_max, struct error *error) {
    int event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (event_fd < 0) {
        return error_set(error, -errno, "eventfd: %s", strerror(errno));
    }
    *jobs = (struct reader_jobs){.event_fd = event_fd, .jobs_max = jobs_max};
    pthread_mutex_init(&jobs->lock, NULL);
    pthread_mutex_init(&jobs->done_lock, NULL);
    pthread_cond_init(&jobs->arrived, NULL);
    return 0;
}

void reader_jobs_deinit(struct reader_jobs *jobs) {
    pthread_cond_destroy(&jobs->arrived);
    pthread_mutex_destroy(&jobs->done_lock);
    pthread_mutex_destroy(&jobs->lock);
    close(jobs->event_fd);
}

int reader_jobs_submit(struct reader_jobs *jobs, struct read_job *job) {
    assert(job->extent_count > 0 || job->prepare != NULL);
    if (jobs->in_flight == jobs->jobs_max) {
        return -ENOBUFS;
    }
    jobs->in_flight++;
    job->stage = job->prepare == NULL ? READ_PREPARED : READ_SUBMITTED;
    job->pending = job->extent_count;
    job->next = NULL;
    pthread_mutex_lock(&jobs->lock);
    if (jobs->queued == NULL) {
        jobs->queued = job;
        jobs->next_extent = 0;
    } else {
        jobs->queued_last->next = job;
    }
    jobs->queued_last = job;
    pthread_cond_broadcast(&jobs->arrived);
    pthread_mutex_unlock(&jobs->lock);
    return 0;
}

struct read_job *reader_jobs_reap(struct reader_jobs *jobs) {
    if (!atomic_load(&jobs->has_done)) {
        return NULL;
    }
    pthread_mutex_lock(&jobs->done_lock);
    struct read_job *job = jobs->done;
    jobs->done = job->next;
    atomic_store(&jobs->has_done, jobs->done != NULL);
    pthread_mutex_unlock(&jobs->done_lock);
    assert(jobs->in_flight > 0);
    jobs->in_flight--;
    job->next = NULL;
    return job;
}

/* The list comes before the eventfd: see the header. The one who is woken finds no lock held by a
 * thread that just lost its processor to him. */
static void jobs_put_done(struct reader_jobs *jobs, struct read_job *job) {
    job->next = NULL;
    pthread_mutex_lock(&jobs->done_lock);
    if (jobs->done == NULL) {
        jobs->done = job;
    } else {
        jobs->done_last->next = job;
    }
    jobs->done_last = job;
    atomic_store(&jobs->has_done, true);
    pthread_mutex_unlock(&jobs->done_lock);
    uint64_t one = 1;
    ssize_t written = write(jobs->event_fd, &one, sizeof one);
    assert(written == (ssize_t)sizeof one || errno == EAGAIN);
}

static void jobs_dequeue(struct reader_jobs *jobs) {
    jobs->queued = jobs->queued->next;
    jobs->next_extent = 0;
}

/* One that cannot be read, from anywhere in the queue. */
static void jobs_drop(struct reader_jobs *jobs, struct read_job *job) {
    struct read_job *before = NULL, **at = &jobs->queued;
    while (*at != job) {
        before = *at;
        at = &before->next;
    }
    *at = job->next;
    jobs->queued_last = jobs->queued_last == job ? before : jobs->queued_last;
}

static struct read_job *jobs_unprepared(const struct reader_jobs *jobs) {
    struct read_job *job = jobs->queued;
    while (job != NULL && job->stage != READ_SUBMITTED) {
        job = job->next;
    }
    return job;
}

/* Under the lock, which is let go of meanwhile. */
static void jobs_prepare(struct reader_jobs *jobs, struct read_job *job) {
    job->stage = READ_PREPARING;
    pthread_mutex_unlock(&jobs->lock);
    bool is_prepared = read_job_prepare(job);
    pthread_mutex_lock(&jobs->lock);
    job->stage = READ_PREPARED;
    job->pending = job->extent_count;
    if (!is_prepared) {
        jobs_drop(jobs, job);
        jobs_put_done(jobs, job);
    }
    pthread_cond_broadcast(&jobs->arrived);
    if (jobs->prepared != NULL) {
        pthread_mutex_unlock(&jobs->lock);
        jobs->prepared(jobs);
        pthread_mutex_lock(&jobs->lock);
    }
}

static bool jobs_take_locked(struct reader_jobs *jobs, uint32_t extents_max, uint32_t share,
                             struct read_piece *piece) {
    struct read_job *job;
    while ((job = jobs->queued) != NULL && job->stage != READ_PREPARED && !jobs->stopping &&
           (job = jobs_unprepared(jobs)) != NULL) {
        jobs_prepare(jobs, job);
    }
    if (job == NULL || jobs->stopping) {
        return false;
    }
    uint32_t rest = job->extent_count - jobs->next_extent;
    uint32_t count = (uint32_t)(((uint64_t)rest + share - 1) / share);
    count = count < extents_max ? count : extents_max;
    *piece = (struct read_piece){job, jobs->next_extent, count};
    if (count == rest) {
        jobs_dequeue(jobs);
    } else {
        jobs->next_extent += count;
    }
    return true;
}

bool reader_jobs_take(struct reader_jobs *jobs, uint32_t extents_max, uint32_t share, bool wait,
                      struct read_piece *piece) {
    assert(extents_max > 0 && share > 0);
    pthread_mutex_lock(&jobs->lock);
    bool taken = jobs_take_locked(jobs, extents_max, share, piece);
    while (wait && !taken && !jobs->stopping) {
        pthread_cond_wait(&jobs->arrived, &jobs->lock);
        taken = jobs_take_locked(jobs, extents_max, share, piece);
    }
    pthread_mutex_unlock(&jobs->lock);
    return taken;
}

bool read_job_prepare(struct read_job *job) {
    int rc = job->prepare == NULL ? 0 : job->prepare(job);
    if (rc == 0) {
        assert(job->extent_count > 0);
        return true;
    }
    job->extent_count = 0;
    job->result = rc;
    job->failed_extent = 0;
    if (job->complete != NULL) {
        job->complete(job);
    }
    return false;
}

void read_job_conclude(struct read_job *job) {
    job->result = 0;
    job->failed_extent = 0;
    for (uint32_t i = 0; i < job->extent_count && job->result == 0; i++) {
        job->result = job->extents[i].result;
        job->failed_extent = job->result < 0 ? i : 0;
    }
    if (job->complete != NULL) {
        job->complete(job);
    }
}

void reader_jobs_finish(struct reader_jobs *jobs, const struct read_piece *piece) {
    struct read_job *job = piece->job;
    pthread_mutex_lock(&jobs->lock);
    assert(job->pending >= piece->extent_count);
    job->pending -= piece->extent_count;
    bool last = job->pending == 0;
    pthread_mutex_unlock(&jobs->lock);
    if (last) {
        read_job_conclude(job);
        jobs_put_done(jobs, job);
    }
}

void reader_jobs_stop(struct reader_jobs *jobs) {
    pthread_mutex_lock(&jobs->lock);
    jobs->stopping = true;
    pthread_cond_broadcast(&jobs->arrived);
    pthread_mutex_unlock(&jobs->lock);
}

bool reader_jobs_stopping(struct reader_jobs *jobs) {
    pthread_mutex_lock(&jobs->lock);
    bool stopping = jobs->stopping;
    pthread_mutex_unlock(&jobs->lock);
    return stopping;
}

static struct iovec *extent_iovecs(const struct read_extent *extent) {
    return extent->iovecs + extent->next;
}

static void extent_cut(struct read_extent *extent, size_t bytes) {
    struct iovec *iovec = extent_iovecs(extent);
    iovec->iov_base = (char *)iovec->iov_base + bytes;
    iovec->iov_len -= bytes;
    extent->cut = bytes;
}

static void extent_uncut(struct read_extent *extent) {
    if (extent->cut > 0) {
        struct iovec *iovec = extent_iovecs(extent);
        iovec->iov_base = (char *)iovec->iov_base - extent->cut;
        iovec->iov_len += extent->cut;
        extent->cut = 0;
    }
}

/* True when something is left to read. */
static bool extent_consume(struct read_extent *extent, size_t bytes) {
    extent->done += bytes;
    bytes += extent->cut;
    extent_uncut(extent);
    while (extent->next < extent->iovec_count && extent_iovecs(extent)->iov_len <= bytes) {
        bytes -= extent_iovecs(extent)->iov_len;
        extent->next++;
    }
    if (bytes > 0) {
        assert(extent->next < extent->iovec_count);
        extent_cut(extent, bytes);
    }
    return extent->next < extent->iovec_count;
}

/* A stale handle is of a file that the server knows no more; the path may lead to it again. */
static int extent_reopen(struct read_extent *extent) {
    file_forget(extent->file);
    file_release(extent->file);
    int fd = file_acquire(extent->file);
    if (fd < 0) {
        extent->file = NULL;
        return fd;
    }
    extent->fd = fd;
    return 0;
}

static uint64_t extent_bytes(const struct read_extent *extent) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < extent->iovec_count; i++) {
        bytes += extent->iovecs[i].iov_len;
    }
    return bytes;
}

static bool landing_begin_bounced(struct landing *landing) {
    struct read_extent *extent = landing->extent;
    uint64_t end = extent->offset + extent_bytes(extent), align = landing->align;
    landing->block = extent->offset / align * align;
    landing->got = 0;
    if (landing->bounce == NULL) {
        landing->bounce = aligned_alloc(FILE_DIRECT_ALIGN_MAX, EXTENT_BOUNCE_BYTES);
    }
    if (landing->bounce == NULL) {
        extent->result = -ENOMEM;
        return false;
    }
    landing->whole = (struct iovec){landing->bounce,
                                    (end - landing->block + align - 1) / align * align};
    return true;
}

/* Whether the extent is whole already. */
static bool landing_is_mapped(struct read_extent *extent) {
    if (extent->mapping == NULL || !mapping_scatter(extent->mapping, extent->fd, extent->offset,
                                                    extent->iovecs, extent->iovec_count)) {
        return false;
    }
    extent->done = extent_bytes(extent);
    return true;
}

bool landing_begin(struct landing *landing, struct read_extent *extent) {
    landing->extent = extent;
    landing->tries = (struct extent_tries){0};
    landing->bounced = extent->dropped && extent->iovec_count > 1;
    landing->align = 1;
    extent->result = 0;
    extent->done = 0;
    extent->next = 0;
    extent->cut = 0;
    if (extent->file != NULL) {
        int fd = file_acquire(extent->file);
        if (fd < 0) {
            extent->result = fd;
            return false;
        }
        extent->fd = fd;
        landing->bounced = landing->bounced || file_is_direct(extent->file);
        landing->align = file_align(extent->file);
    }
    if (landing_is_mapped(extent) || (landing->bounced && !landing_begin_bounced(landing))) {
        if (extent->file != NULL) {
            file_release(extent->file);
        }
        return false;
    }
    return true;
}

struct iovec *landing_iovecs(struct landing *landing) {
    return landing->bounced ? &landing->whole : extent_iovecs(landing->extent);
}

uint32_t landing_iovec_count(const struct landing *landing) {
    return landing->bounced ? 1 : landing->extent->iovec_count - landing->extent->next;
}

uint64_t landing_offset(const struct landing *landing) {
    return landing->bounced ? landing->block + landing->got
                            : landing->extent->offset + landing->extent->done;
}

/* Of an extent that is read. */
static int landing_check(const struct landing *landing) {
    struct read_extent *extent = landing->extent;
    const uint8_t *bytes = landing->bounced ? landing->bounce + (extent->offset - landing->block)
                                            : extent->iovecs->iov_base;
    int rc = extent->check == NULL ? 0 : extent->check(extent, bytes);
    if (rc == 0 && landing->bounced) {
        bulk_scatter(extent->iovecs, extent->iovec_count, bytes);
    }
    return rc;
}

/* Reads go on at whole blocks only, so what came of a torn one is read again; the end of the file
 * need not be at the end of a block. 1: read on, 0: whole. */
static int landing_consume_bounced(struct landing *landing, size_t bytes) {
    struct read_extent *extent = landing->extent;
    uint64_t before = landing->extent->offset - landing->block;
    uint64_t wanted = extent_bytes(extent);
    uint64_t got = landing->got + bytes;
    extent->done = got <= before ? 0 : got - before < wanted ? got - before : wanted;
    if (extent->done == wanted) {
        return 0;
    }
    got -= got % landing->align;
    if (got == landing->got) {
        return -ENODATA;
    }
    landing->whole.iov_base = landing->bounce + got;
    landing->whole.iov_len -= got - landing->got;
    landing->got = got;
    return 1;
}

/* 1: read on; 0 or a negative errno: that is the result. */
static int landing_judge(struct landing *landing, ssize_t result) {
    struct extent_tries *tries = &landing->tries;
    if (result == -EINTR || result == -EAGAIN) {
        return ++tries->postponed < TRIES_POSTPONED_MAX ? 1 : (int)result;
    }
    if (result == -EIO) {
        return ++tries->failed < TRIES_FAILED_MAX ? 1 : -EIO;
    }
    if (result == -ESTALE && landing->extent->file != NULL && ++tries->failed < TRIES_STALE_MAX) {
        int rc = extent_reopen(landing->extent);
        return rc < 0 ? rc : 1;
    }
    if (result <= 0) {
        return result == 0 ? -ENODATA : (int)result;
    }
    *tries = (struct extent_tries){0};
    return landing->bounced ? landing_consume_bounced(landing, (size_t)result)
                            : extent_consume(landing->extent, (size_t)result);
}

bool landing_advance(struct landing *landing, ssize_t result) {
    struct read_extent *extent = landing->extent;
    struct file *file = extent->file;
    int rc = landing_judge(landing, result);
    if (rc > 0) {
        return true;
    }
    extent_uncut(extent);
    if (extent->file != NULL) {
        file_release(extent->file);
    }
    extent->file = file;
    extent->result = rc == 0 ? landing_check(landing) : rc;
    return false;
}

void landing_read(struct landing *landing, struct read_extent *extent) {
    if (!landing_begin(landing, extent)) {
        return;
    }
    ssize_t bytes;
    do {
        bytes = preadv(extent->fd, landing_iovecs(landing), (int)landing_iovec_count(landing),
                       (off_t)landing_offset(landing));
    } while (landing_advance(landing, bytes < 0 ? -errno : bytes));
}
