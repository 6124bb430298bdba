/* reader_uring: one thread that owns a ring and keeps `queue_depth` extents in flight.
 *
 * A thread of its own, because a buffered read of a cold file can block inside the submitting call
 * (page lock, metadata of the file system), and the daemon's loop must not. The ring is made by the
 * thread that uses it, which SINGLE_ISSUER demands and without which wake-ups get lost
 * (liburing #1029). The thread has one place to wait, io_uring_enter: new jobs reach it through a
 * poll request on `wake_fd` in the ring itself. Entering the kernel runs what DEFER_TASKRUN put
 * off, so nothing has to be fetched by hand; should a wake-up be lost all the same, the wait ends
 * after a second and everything is looked at again.
 *
 * Warm reads complete inside the submitting call and are then taken from the completion queue
 * without another one. Not used: SQPOLL (burns a core), registered buffers (5 to 10 % of CPU, at
 * the price of pinned memory), IOSQE_ASYNC except after EAGAIN (2.5 times the CPU).
 * Kernels: from 5.10 on; what is newer is tried and done without. */
#include "corpus/reader_jobs.h"

#include <assert.h>
#include <liburing.h>
#include <poll.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* Kernel threads for reads that would block: each read in flight needs at most one. */
#define URING_WORKERS_MAX    64u
#define URING_SAFETY_SECONDS 1
#define URING_PAUSE_NS       1000000

struct uring_slot {
    struct read_job *job;
    uint32_t extent;
    struct extent_tries tries;
};

struct uring_reader {
    struct reader reader; /* first: a reader is its uring_reader */
    struct reader_jobs jobs;
    int wake_fd; /* readable: something was submitted, or stop */
    pthread_t thread;
    sem_t started;
    struct error start_error; /* written before `started` is posted */
    /* The thread's own: */
    struct io_uring ring;
    bool wake_armed;
    uint32_t slot_count;
    uint32_t free_count;
    uint32_t *free_slots; /* a stack of indices */
    struct uring_slot *slots;
};

static const char *uring_setup_hint(int rc) {
    switch (-rc) {
    case EPERM:
    case EACCES:
        return " (seccomp or kernel.io_uring_disabled)";
    case ENOSYS:
        return " (no io_uring in this kernel, or seccomp)";
    case ENOMEM:
        return " (RLIMIT_MEMLOCK)";
    default:
        return "";
    }
}

/* Newest set of flags that this kernel takes: 6.1, 5.19, any. */
static int uring_setup(struct uring_reader *uring, struct error *error) {
    static const unsigned ladder[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                                      IORING_SETUP_COOP_TASKRUN, 0};
    int rc = -EINVAL;
    for (size_t i = 0; i < sizeof ladder / sizeof ladder[0] && rc == -EINVAL; i++) {
        struct io_uring_params params = {.flags = ladder[i]};
        rc = io_uring_queue_init_params(uring->slot_count + 1, &uring->ring, &params);
    }
    if (rc < 0) {
        return error_set(error, rc, "io_uring_setup: %s%s", strerror(-rc), uring_setup_hint(rc));
    }
    return 0;
}

static int uring_probe_opcodes(struct io_uring *ring, struct error *error) {
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    if (probe == NULL) {
        return error_set(error, -ENOSYS,
                         "io_uring_register: no list of opcodes (kernel before 5.6, or seccomp)");
    }
    bool has_all = io_uring_opcode_supported(probe, IORING_OP_READV) &&
                   io_uring_opcode_supported(probe, IORING_OP_POLL_ADD);
    io_uring_free_probe(probe);
    if (!has_all) {
        return error_set(error, -ENOSYS, "io_uring: the kernel has no READV or POLL_ADD");
    }
    return 0;
}

/* A filter may allow io_uring_setup and refuse io_uring_enter. */
static int uring_probe_enter(struct io_uring *ring, struct error *error) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    struct io_uring_cqe *cqe;
    io_uring_prep_nop(sqe);
    int rc = io_uring_submit_and_wait(ring, 1);
    if (rc >= 0) {
        rc = io_uring_peek_cqe(ring, &cqe);
    }
    if (rc < 0) {
        return error_set(error, rc, "io_uring_enter: %s%s", strerror(-rc), uring_setup_hint(rc));
    }
    io_uring_cqe_seen(ring, cqe);
    return 0;
}

static void uring_limit_workers(struct uring_reader *uring) {
    uint32_t workers = uring->slot_count < URING_WORKERS_MAX ? uring->slot_count
                                                             : URING_WORKERS_MAX;
    unsigned values[2] = {workers, 0};
    /* Kernels before 5.15 refuse; their bound is RLIMIT_NPROC. */
    (void)io_uring_register_iowq_max_workers(&uring->ring, values);
}

static int uring_start(struct uring_reader *uring, struct error *error) {
    int rc = uring_setup(uring, error);
    if (rc < 0) {
        return rc;
    }
    rc = uring_probe_opcodes(&uring->ring, error);
    if (rc == 0) {
        rc = uring_probe_enter(&uring->ring, error);
    }
    if (rc < 0) {
        io_uring_queue_exit(&uring->ring);
        return rc;
    }
    uring_limit_workers(uring);
    return 0;
}

static void uring_arm_wake(struct uring_reader *uring) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);
    assert(sqe != NULL);
    io_uring_prep_poll_add(sqe, uring->wake_fd, POLLIN);
    io_uring_sqe_set_data(sqe, NULL);
    uring->wake_armed = true;
}

static void uring_issue(struct uring_reader *uring, struct uring_slot *slot, unsigned flags) {
    struct read_extent *extent = &slot->job->extents[slot->extent];
    struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);
    assert(sqe != NULL); /* one entry per slot and one for the wake-up */
    io_uring_prep_readv(sqe, extent->fd, extent_iovecs(extent), extent_iovecs_left(extent),
                        extent->offset + extent->done);
    io_uring_sqe_set_flags(sqe, flags);
    io_uring_sqe_set_data(sqe, slot);
}

static void uring_finish(struct uring_reader *uring, struct uring_slot *slot) {
    struct read_piece piece = {slot->job, slot->extent, 1};
    uring->free_slots[uring->free_count++] = (uint32_t)(slot - uring->slots);
    reader_jobs_finish(&uring->jobs, &piece);
}

static void uring_begin(struct uring_reader *uring, struct read_job *job, uint32_t extent) {
    struct uring_slot *slot = &uring->slots[uring->free_slots[--uring->free_count]];
    *slot = (struct uring_slot){.job = job, .extent = extent};
    if (extent_begin(&job->extents[extent]) < 0) {
        uring_finish(uring, slot);
    } else {
        uring_issue(uring, slot, 0);
    }
}

static void uring_fill(struct uring_reader *uring) {
    struct read_piece piece;
    while (uring->free_count > 0 &&
           reader_jobs_take(&uring->jobs, uring->free_count, 1, false, &piece)) {
        for (uint32_t i = 0; i < piece.extent_count; i++) {
            uring_begin(uring, piece.job, piece.first_extent + i);
        }
    }
}

static void uring_complete(struct uring_reader *uring, struct uring_slot *slot, int result) {
    if (extent_advance(&slot->job->extents[slot->extent], result, &slot->tries)) {
        uring_issue(uring, slot, result == -EAGAIN ? IOSQE_ASYNC : 0);
    } else {
        uring_finish(uring, slot);
    }
}

static void uring_woken(struct uring_reader *uring) {
    uint64_t count;
    uring->wake_armed = false;
    ssize_t bytes = read(uring->wake_fd, &count, sizeof count);
    assert(bytes == (ssize_t)sizeof count || errno == EAGAIN);
}

static void uring_drain(struct uring_reader *uring) {
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&uring->ring, &cqe) == 0) {
        struct uring_slot *slot = io_uring_cqe_get_data(cqe);
        int result = cqe->res;
        io_uring_cqe_seen(&uring->ring, cqe);
        if (slot == NULL) {
            uring_woken(uring);
        } else {
            uring_complete(uring, slot, result);
        }
    }
}

/* Hands over what was issued and sleeps until something completes. What the kernel did not take,
 * for want of memory, stays in the ring for the next call. */
static void uring_wait(struct uring_reader *uring) {
    struct io_uring_cqe *cqe;
    struct __kernel_timespec safety = {.tv_sec = URING_SAFETY_SECONDS};
    int rc = io_uring_submit_and_wait_timeout(&uring->ring, &cqe, 1, &safety, NULL);
    if (rc == -EAGAIN || rc == -EBUSY || rc == -ENOMEM) {
        nanosleep(&(struct timespec){.tv_nsec = URING_PAUSE_NS}, NULL);
        return;
    }
    assert(rc >= 0 || rc == -ETIME || rc == -EINTR);
}

static void uring_serve(struct uring_reader *uring) {
    for (;;) {
        uring_fill(uring);
        if (uring->free_count == uring->slot_count && reader_jobs_stopping(&uring->jobs)) {
            return;
        }
        if (!uring->wake_armed) {
            uring_arm_wake(uring);
        }
        uring_wait(uring);
        uring_drain(uring);
    }
}

static void *uring_thread(void *context) {
    struct uring_reader *uring = context;
    int rc = uring_start(uring, &uring->start_error);
    sem_post(&uring->started);
    if (rc == 0) {
        uring_serve(uring);
        io_uring_queue_exit(&uring->ring);
    }
    return NULL;
}

static void uring_wake(struct uring_reader *uring) {
    uint64_t one = 1;
    ssize_t bytes = write(uring->wake_fd, &one, sizeof one);
    assert(bytes == (ssize_t)sizeof one || errno == EAGAIN);
}

static int uring_submit(struct reader *reader, struct read_job *job) {
    struct uring_reader *uring = (struct uring_reader *)reader;
    int rc = reader_jobs_submit(&uring->jobs, job);
    if (rc == 0) {
        uring_wake(uring);
    }
    return rc;
}

static struct read_job *uring_reap(struct reader *reader) {
    return reader_jobs_reap(&((struct uring_reader *)reader)->jobs);
}

static void uring_free(struct uring_reader *uring) {
    sem_destroy(&uring->started);
    close(uring->wake_fd);
    reader_jobs_deinit(&uring->jobs);
    free(uring->free_slots);
    free(uring->slots);
    free(uring);
}

static void uring_close(struct reader *reader) {
    struct uring_reader *uring = (struct uring_reader *)reader;
    reader_jobs_stop(&uring->jobs);
    uring_wake(uring);
    pthread_join(uring->thread, NULL);
    uring_free(uring);
}

static const struct reader_ops uring_ops = {uring_submit, uring_reap, uring_close};

static int uring_reserve(struct uring_reader *uring, uint32_t slot_count, struct error *error) {
    uring->slots = calloc(slot_count, sizeof *uring->slots);
    uring->free_slots = calloc(slot_count, sizeof *uring->free_slots);
    if (uring->slots == NULL || uring->free_slots == NULL) {
        free(uring->free_slots);
        free(uring->slots);
        return error_set(error, -ENOMEM, "reader: %s", strerror(ENOMEM));
    }
    uring->slot_count = slot_count;
    uring->free_count = slot_count;
    for (uint32_t i = 0; i < slot_count; i++) {
        uring->free_slots[i] = slot_count - 1 - i;
    }
    return 0;
}

static int uring_init(struct uring_reader *uring, const struct reader_options *options,
                      struct error *error) {
    int rc = reader_jobs_init(&uring->jobs, options->jobs_max, error);
    if (rc < 0) {
        return rc;
    }
    rc = uring_reserve(uring, options->queue_depth, error);
    if (rc < 0) {
        goto deinit_jobs;
    }
    uring->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (uring->wake_fd < 0) {
        rc = error_set(error, -errno, "eventfd: %s", strerror(errno));
        goto free_slots;
    }
    sem_init(&uring->started, 0, 0);
    uring->reader = (struct reader){&uring_ops, "io_uring", uring->jobs.event_fd};
    return 0;
free_slots:
    free(uring->free_slots);
    free(uring->slots);
deinit_jobs:
    reader_jobs_deinit(&uring->jobs);
    return rc;
}

int reader_uring_open(const struct reader_options *options, struct reader **out,
                      struct error *error) {
    int rc = reader_options_check(options, error);
    if (rc < 0) {
        return rc;
    }
    struct uring_reader *uring = calloc(1, sizeof *uring);
    if (uring == NULL) {
        return error_set(error, -ENOMEM, "reader: %s", strerror(ENOMEM));
    }
    rc = uring_init(uring, options, error);
    if (rc < 0) {
        free(uring);
        return rc;
    }
    rc = reader_thread_start(&uring->thread, "ballast-uring", uring_thread, uring);
    if (rc < 0) {
        error_set(error, rc, "thread of the reader: %s", strerror(-rc));
        goto fail;
    }
    while (sem_wait(&uring->started) < 0) {
        assert(errno == EINTR);
    }
    if (uring->start_error.code < 0) {
        pthread_join(uring->thread, NULL);
        rc = uring->start_error.code;
        if (error != NULL) {
            *error = uring->start_error;
        }
        goto fail;
    }
    *out = &uring->reader;
    return 0;
fail:
    uring_free(uring);
    return rc;
}
