/* reader_jobs: see the header. Lists are linked through the jobs themselves, so nothing here
 * allocates. */
#include "corpus/reader_jobs.h"
#include "corpus/files.h"

#include <assert.h>
#include <signal.h>
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
    pthread_cond_init(&jobs->arrived, NULL);
    return 0;
}

void reader_jobs_deinit(struct reader_jobs *jobs) {
    pthread_cond_destroy(&jobs->arrived);
    pthread_mutex_destroy(&jobs->lock);
    close(jobs->event_fd);
}

int reader_jobs_submit(struct reader_jobs *jobs, struct read_job *job) {
    assert(job->extent_count > 0);
    if (jobs->in_flight == jobs->jobs_max) {
        return -ENOBUFS;
    }
    jobs->in_flight++;
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
    pthread_mutex_lock(&jobs->lock);
    struct read_job *job = jobs->done;
    if (job != NULL) {
        jobs->done = job->next;
    }
    pthread_mutex_unlock(&jobs->lock);
    if (job != NULL) {
        assert(jobs->in_flight > 0);
        jobs->in_flight--;
        job->next = NULL;
    }
    return job;
}

/* Under the lock. The list comes before the eventfd: see the header. */
static void jobs_put_done(struct reader_jobs *jobs, struct read_job *job) {
    job->next = NULL;
    if (jobs->done == NULL) {
        jobs->done = job;
    } else {
        jobs->done_last->next = job;
    }
    jobs->done_last = job;
    uint64_t one = 1;
    ssize_t written = write(jobs->event_fd, &one, sizeof one);
    assert(written == (ssize_t)sizeof one || errno == EAGAIN);
}

static void jobs_dequeue(struct reader_jobs *jobs) {
    jobs->queued = jobs->queued->next;
    jobs->next_extent = 0;
}

static bool jobs_take_locked(struct reader_jobs *jobs, uint32_t extents_max, uint32_t share,
                             struct read_piece *piece) {
    struct read_job *job = jobs->queued;
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
        pthread_mutex_lock(&jobs->lock);
        jobs_put_done(jobs, job);
        pthread_mutex_unlock(&jobs->lock);
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

int extent_begin(struct read_extent *extent) {
    extent->result = 0;
    extent->done = 0;
    extent->next = 0;
    extent->cut = 0;
    if (extent->file != NULL) {
        int fd = file_acquire(extent->file);
        extent->result = fd < 0 ? fd : 0;
        extent->fd = fd;
    }
    return extent->result;
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

/* 1: read on; 0 or a negative errno: that is the result. */
static int extent_judge(struct read_extent *extent, ssize_t result, struct extent_tries *tries) {
    if (result == -EINTR || result == -EAGAIN) {
        return ++tries->postponed < TRIES_POSTPONED_MAX ? 1 : (int)result;
    }
    if (result == -EIO) {
        return ++tries->failed < TRIES_FAILED_MAX ? 1 : -EIO;
    }
    if (result == -ESTALE && extent->file != NULL && ++tries->failed < TRIES_STALE_MAX) {
        int rc = extent_reopen(extent);
        return rc < 0 ? rc : 1;
    }
    if (result <= 0) {
        return result == 0 ? -ENODATA : (int)result;
    }
    *tries = (struct extent_tries){0};
    return extent_consume(extent, (size_t)result);
}

bool extent_advance(struct read_extent *extent, ssize_t result, struct extent_tries *tries) {
    struct file *file = extent->file;
    int rc = extent_judge(extent, result, tries);
    if (rc > 0) {
        return true;
    }
    extent_uncut(extent);
    extent->result = rc;
    if (extent->file != NULL) {
        file_release(extent->file);
    }
    extent->file = file;
    return false;
}

void extent_read(struct read_extent *extent) {
    struct extent_tries tries = {0};
    if (extent_begin(extent) < 0) {
        return;
    }
    ssize_t bytes;
    do {
        bytes = preadv(extent->fd, extent_iovecs(extent), (int)extent_iovecs_left(extent),
                       (off_t)(extent->offset + extent->done));
    } while (extent_advance(extent, bytes < 0 ? -errno : bytes, &tries));
}

int reader_thread_start(pthread_t *thread, const char *name, void *(*body)(void *), void *context) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(thread, NULL, body, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == 0) {
        pthread_setname_np(*thread, name);
    }
    return -rc;
}
