/* reader_uring: threads that own a ring each and together keep `queue_depth` extents in flight.
 *
 * Threads of its own, because a buffered read of a cold file can block inside the submitting call
 * (page lock, metadata of the file system), and the daemon's loop must not; two of them, because
 * what is in the page cache is copied inside that call. Each ring is made by the thread that uses
 * it, which SINGLE_ISSUER demands and without which wake-ups get lost (liburing #1029). A thread
 * has one place to wait, io_uring_enter: new jobs reach it through a poll request on `wake_fd` in
 * the ring itself. Entering the kernel runs what DEFER_TASKRUN put off, so nothing has to be
 * fetched by hand; should a wake-up be lost all the same, the wait ends after a second and
 * everything is looked at again.
 *
 * Warm reads complete inside the submitting call and are then taken from the completion queue
 * without another one. Memory that reads land in is registered where the kernel lets us: a read
 * into one piece of it, and every direct read, is then a fixed one (bounce memory is registered
 * with the first of those). Without (RLIMIT_MEMLOCK) all goes on a little slower. Not used: SQPOLL
 * (burns a core), IOSQE_ASYNC except after EAGAIN (2.5 times the CPU). Kernels: from 5.10 on; what
 * is newer is tried and done without. */
#include "corpus/reader_jobs.h"
#include "corpus/thread.h"

#include <assert.h>
#include <liburing.h>
#include <poll.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Kernel threads for reads that would block: each read in flight needs at most one. */
#define URING_WORKERS_MAX    64u
#define URING_SAFETY_SECONDS 1
#define URING_PAUSE_NS       1000000
#define URING_RINGS_MAX      16u
/* The kernel takes at most 1 GB as one buffer; extents that cross an edge are plain reads. */
#define URING_BUFFER_BYTES (UINT64_C(1) << 30)
#define URING_BUFFERS_MAX  1024u

struct uring_slot {
    struct read_job *job;
    uint32_t extent;
    struct landing landing;
};

/* What one thread has. */
struct uring_ring {
    struct uring_reader *uring;
    int wake_fd; /* readable: something was submitted, or stop */
    pthread_t thread;
    sem_t started;
    struct error start_error; /* written before `started` is posted, as is the next */
    struct error lacks;
    /* The thread's own: */
    struct io_uring ring;
    bool registered;       /* uring->memory */
    bool may_register;     /* bounces, behind it: not tried yet */
    bool bounces_fixed;    /* are registered */
    uint8_t *bounces;      /* of all slots, one after another */
    uint64_t bounce_bytes; /* of all */
    bool wake_armed;
    uint32_t slot_count;
    uint32_t free_count;
    uint32_t *free_slots; /* a stack of indices */
    struct uring_slot *slots;
};

struct uring_reader {
    struct reader reader; /* first: a reader is its uring_reader */
    struct reader_jobs jobs;
    uint8_t *memory; /* to be registered */
    uint64_t memory_bytes;
    uint32_t share;      /* see reader_jobs_take */
    uint32_t ring_count; /* started */
    struct uring_ring rings[URING_RINGS_MAX];
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
static int uring_setup(struct uring_ring *ring, struct error *error) {
    static const unsigned ladder[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                                      IORING_SETUP_COOP_TASKRUN, 0};
    int rc = -EINVAL;
    for (size_t i = 0; i < sizeof ladder / sizeof ladder[0] && rc == -EINVAL; i++) {
        struct io_uring_params params = {.flags = ladder[i]};
        rc = io_uring_queue_init_params(ring->slot_count + 1, &ring->ring, &params);
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

static void uring_limit_workers(struct uring_ring *ring) {
    uint32_t workers = ring->slot_count < URING_WORKERS_MAX ? ring->slot_count : URING_WORKERS_MAX;
    unsigned values[2] = {workers, 0};
    /* Kernels before 5.15 refuse; their bound is RLIMIT_NPROC. */
    (void)io_uring_register_iowq_max_workers(&ring->ring, values);
}

/* With room for the bounce memory behind, where the kernel has that (5.19). */
static int uring_register_buffers(struct uring_ring *ring, const struct iovec *buffers,
                                  unsigned count) {
    int rc = io_uring_register_buffers_sparse(&ring->ring, count + 1);
    if (rc == 0) {
        rc = io_uring_register_buffers_update_tag(&ring->ring, 0, buffers, NULL, count);
        ring->may_register = rc == (int)count;
        if (rc != (int)count) {
            (void)io_uring_unregister_buffers(&ring->ring);
        }
        return rc < 0 ? rc : rc == (int)count ? 0 : -ENOMEM;
    }
    return io_uring_register_buffers(&ring->ring, buffers, count);
}

static unsigned uring_buffer_count(const struct uring_reader *uring) {
    return (unsigned)((uring->memory_bytes + URING_BUFFER_BYTES - 1) / URING_BUFFER_BYTES);
}

static void uring_register_bounces(struct uring_ring *ring) {
    struct iovec bounces = {ring->bounces, ring->bounce_bytes};
    if (ring->may_register && ring->bounce_bytes <= URING_BUFFER_BYTES) {
        ring->bounces_fixed = io_uring_register_buffers_update_tag(&ring->ring,
                                                                   uring_buffer_count(ring->uring),
                                                                   &bounces, NULL, 1) == 1;
    }
    ring->may_register = false;
}

/* What fails here is done without. */
static void uring_register_memory(struct uring_ring *ring) {
    const struct uring_reader *uring = ring->uring;
    uint64_t count = uring_buffer_count(uring);
    struct iovec *buffers = count == 0 ? NULL : calloc(count, sizeof *buffers);
    int rc = buffers == NULL ? -ENOMEM : count > URING_BUFFERS_MAX ? -E2BIG : 0;
    if (count == 0) {
        return;
    }
    for (uint64_t i = 0; rc == 0 && i < count; i++) {
        uint64_t rest = uring->memory_bytes - i * URING_BUFFER_BYTES;
        buffers[i] = (struct iovec){uring->memory + i * URING_BUFFER_BYTES,
                                    rest < URING_BUFFER_BYTES ? rest : URING_BUFFER_BYTES};
    }
    if (rc == 0) {
        rc = uring_register_buffers(ring, buffers, (unsigned)count);
    }
    free(buffers);
    ring->registered = rc == 0;
    if (rc < 0) {
        error_set(&ring->lacks, rc, "without registered memory, which costs a little CPU: %s%s",
                  strerror(-rc), rc == -ENOMEM ? "; raise LimitMEMLOCK to use it" : "");
    }
}

static int uring_start(struct uring_ring *ring, struct error *error) {
    int rc = uring_setup(ring, error);
    if (rc < 0) {
        return rc;
    }
    rc = uring_probe_opcodes(&ring->ring, error);
    if (rc == 0) {
        rc = uring_probe_enter(&ring->ring, error);
    }
    if (rc < 0) {
        io_uring_queue_exit(&ring->ring);
        return rc;
    }
    uring_limit_workers(ring);
    uring_register_memory(ring);
    return 0;
}

static void uring_arm_wake(struct uring_ring *ring) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->ring);
    assert(sqe != NULL);
    io_uring_prep_poll_add(sqe, ring->wake_fd, POLLIN);
    io_uring_sqe_set_data(sqe, NULL);
    ring->wake_armed = true;
}

/* The registered buffer that holds all of an iovec; -1: none does. */
static int uring_buffer_of(const struct uring_ring *ring, const struct iovec *iovec) {
    const struct uring_reader *uring = ring->uring;
    uintptr_t from = (uintptr_t)iovec->iov_base - (uintptr_t)uring->memory;
    if (ring->bounces_fixed &&
        (uintptr_t)iovec->iov_base - (uintptr_t)ring->bounces < ring->bounce_bytes) {
        return (int)uring_buffer_count(uring);
    }
    if (!ring->registered || from >= uring->memory_bytes || iovec->iov_len == 0 ||
        iovec->iov_len > uring->memory_bytes - from) {
        return -1;
    }
    uint64_t buffer = from / URING_BUFFER_BYTES;
    return buffer == (from + iovec->iov_len - 1) / URING_BUFFER_BYTES ? (int)buffer : -1;
}

static void uring_issue(struct uring_ring *ring, struct uring_slot *slot, unsigned flags) {
    struct landing *landing = &slot->landing;
    struct iovec *iovecs = landing_iovecs(landing);
    uint32_t count = landing_iovec_count(landing);
    if (landing->align > 1 && ring->may_register) {
        uring_register_bounces(ring);
    }
    int buffer = count == 1 ? uring_buffer_of(ring, iovecs) : -1;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->ring);
    assert(sqe != NULL); /* one entry per slot and one for the wake-up */
    if (buffer >= 0) {
        io_uring_prep_read_fixed(sqe, landing->extent->fd, iovecs->iov_base,
                                 (unsigned)iovecs->iov_len, landing_offset(landing), buffer);
    } else {
        io_uring_prep_readv(sqe, landing->extent->fd, iovecs, count, landing_offset(landing));
    }
    io_uring_sqe_set_flags(sqe, flags);
    io_uring_sqe_set_data(sqe, slot);
}

static void uring_finish(struct uring_ring *ring, struct uring_slot *slot) {
    struct read_piece piece = {slot->job, slot->extent, 1};
    ring->free_slots[ring->free_count++] = (uint32_t)(slot - ring->slots);
    reader_jobs_finish(&ring->uring->jobs, &piece);
}

/* Whether the processor has work with what was read. */
static bool uring_begin(struct uring_ring *ring, struct read_job *job, uint32_t extent) {
    struct uring_slot *slot = &ring->slots[ring->free_slots[--ring->free_count]];
    slot->job = job;
    slot->extent = extent;
    if (!landing_begin(&slot->landing, &job->extents[extent])) {
        uring_finish(ring, slot);
        return true;
    }
    uring_issue(ring, slot, 0);
    return job->extents[extent].check != NULL;
}

static void uring_complete(struct uring_ring *ring, struct uring_slot *slot, int result) {
    if (landing_advance(&slot->landing, result)) {
        uring_issue(ring, slot, result == -EAGAIN ? IOSQE_ASYNC : 0);
    } else {
        uring_finish(ring, slot);
    }
}

static void uring_woken(struct uring_ring *ring) {
    uint64_t count;
    ring->wake_armed = false;
    ssize_t bytes = read(ring->wake_fd, &count, sizeof count);
    assert(bytes == (ssize_t)sizeof count || errno == EAGAIN);
}

static void uring_drain(struct uring_ring *ring) {
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&ring->ring, &cqe) == 0) {
        struct uring_slot *slot = io_uring_cqe_get_data(cqe);
        int result = cqe->res;
        io_uring_cqe_seen(&ring->ring, cqe);
        if (slot == NULL) {
            uring_woken(ring);
        } else {
            uring_complete(ring, slot, result);
        }
    }
}

/* Extents that are checked are handed over one by one: what the page cache has is then
 * worked on while it is in the processor's cache. */
static void uring_fill(struct uring_ring *ring) {
    uint32_t share = ring->uring->share;
    struct read_piece piece;
    while (ring->free_count > 0 &&
           reader_jobs_take(&ring->uring->jobs, ring->free_count, share, false, &piece)) {
        for (uint32_t i = 0; i < piece.extent_count; i++) {
            if (uring_begin(ring, piece.job, piece.first_extent + i)) {
                (void)io_uring_submit(&ring->ring); /* what it did not take, the next call does */
                uring_drain(ring);
            }
        }
    }
}

/* Hands over what was issued and sleeps until something completes. What the kernel did not take,
 * for want of memory, stays in the ring for the next call. */
static void uring_wait(struct uring_ring *ring) {
    struct io_uring_cqe *cqe;
    struct __kernel_timespec safety = {.tv_sec = URING_SAFETY_SECONDS};
    int rc = io_uring_submit_and_wait_timeout(&ring->ring, &cqe, 1, &safety, NULL);
    if (rc == -EAGAIN || rc == -EBUSY || rc == -ENOMEM) {
        nanosleep(&(struct timespec){.tv_nsec = URING_PAUSE_NS}, NULL);
        return;
    }
    assert(rc >= 0 || rc == -ETIME || rc == -EINTR);
}

static void uring_serve(struct uring_ring *ring) {
    for (;;) {
        uring_fill(ring);
        if (ring->free_count == ring->slot_count && reader_jobs_stopping(&ring->uring->jobs)) {
            return;
        }
        if (!ring->wake_armed) {
            uring_arm_wake(ring);
        }
        uring_wait(ring);
        uring_drain(ring);
    }
}

static void *uring_thread(void *context) {
    struct uring_ring *ring = context;
    thread_begin("ballast-uring", THREAD_BACKGROUND);
    int rc = uring_start(ring, &ring->start_error);
    sem_post(&ring->started);
    if (rc == 0) {
        uring_serve(ring);
        io_uring_queue_exit(&ring->ring);
    }
    return NULL;
}

static void uring_wake(struct uring_ring *ring) {
    uint64_t one = 1;
    ssize_t bytes = write(ring->wake_fd, &one, sizeof one);
    assert(bytes == (ssize_t)sizeof one || errno == EAGAIN);
}

static int uring_submit(struct reader *reader, struct read_job *job) {
    struct uring_reader *uring = (struct uring_reader *)reader;
    uint32_t wanted = job->prepare == NULL ? job->extent_count : UINT32_MAX;
    int rc = reader_jobs_submit(&uring->jobs, job);
    for (uint32_t i = 0; rc == 0 && i < uring->ring_count && i < wanted; i++) {
        uring_wake(&uring->rings[i]);
    }
    return rc;
}

static void uring_prepared(struct reader_jobs *jobs) {
    struct uring_reader *uring = jobs->owner;
    for (uint32_t i = 0; i < uring->ring_count; i++) {
        uring_wake(&uring->rings[i]);
    }
}

static struct read_job *uring_reap(struct reader *reader) {
    return reader_jobs_reap(&((struct uring_reader *)reader)->jobs);
}

static void ring_free(struct uring_ring *ring) {
    if (ring->bounces != NULL) {
        (void)munmap(ring->bounces, ring->bounce_bytes);
    }
    free(ring->slots);
    free(ring->free_slots);
    if (ring->wake_fd >= 0) {
        close(ring->wake_fd);
    }
    sem_destroy(&ring->started);
}

static void uring_close(struct reader *reader) {
    struct uring_reader *uring = (struct uring_reader *)reader;
    reader_jobs_stop(&uring->jobs);
    for (uint32_t i = 0; i < uring->ring_count; i++) {
        uring_wake(&uring->rings[i]);
        pthread_join(uring->rings[i].thread, NULL);
        ring_free(&uring->rings[i]);
    }
    reader_jobs_deinit(&uring->jobs);
    free(uring);
}

static const struct reader_ops uring_ops = {uring_submit, uring_reap, uring_close};

/* Addresses only: pages come when they are used, huge ones where there are any. */
static uint8_t *uring_map_bounces(uint32_t count, uint64_t *bytes) {
    *bytes = (uint64_t)count * EXTENT_BOUNCE_BYTES;
    void *bounces = mmap(NULL, *bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bounces == MAP_FAILED) {
        return NULL;
    }
    (void)madvise(bounces, *bytes, MADV_HUGEPAGE);
    return bounces;
}

static int ring_reserve(struct uring_ring *ring, struct error *error) {
    ring->slots = calloc(ring->slot_count, sizeof *ring->slots);
    ring->free_slots = calloc(ring->slot_count, sizeof *ring->free_slots);
    ring->bounces = uring_map_bounces(ring->slot_count, &ring->bounce_bytes);
    if (ring->slots == NULL || ring->free_slots == NULL || ring->bounces == NULL) {
        return error_set(error, -ENOMEM, "reader: %s", strerror(ENOMEM));
    }
    ring->free_count = ring->slot_count;
    for (uint32_t i = 0; i < ring->slot_count; i++) {
        ring->free_slots[i] = ring->slot_count - 1 - i;
        ring->slots[i].landing.bounce = ring->bounces + i * EXTENT_BOUNCE_BYTES;
    }
    ring->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (ring->wake_fd < 0) {
        return error_set(error, -errno, "eventfd: %s", strerror(errno));
    }
    return 0;
}

static int ring_launch(struct uring_ring *ring, struct error *error) {
    int rc = thread_start(&ring->thread, uring_thread, ring, "the reader's thread", error);
    if (rc < 0) {
        return rc;
    }
    while (sem_wait(&ring->started) < 0) {
        assert(errno == EINTR);
    }
    if (ring->start_error.code < 0) {
        pthread_join(ring->thread, NULL);
        if (error != NULL) {
            *error = ring->start_error;
        }
        return ring->start_error.code;
    }
    return 0;
}

static int ring_open(struct uring_reader *uring, struct uring_ring *ring, uint32_t slot_count,
                     struct error *error) {
    *ring = (struct uring_ring){.uring = uring, .slot_count = slot_count, .wake_fd = -1};
    sem_init(&ring->started, 0, 0);
    int rc = ring_reserve(ring, error);
    if (rc == 0) {
        rc = ring_launch(ring, error);
    }
    if (rc < 0) {
        ring_free(ring);
    }
    return rc;
}

static uint32_t uring_ring_count(const struct reader_options *options) {
    uint32_t count = options->rings == 0 ? 1 : options->rings;
    count = count < URING_RINGS_MAX ? count : URING_RINGS_MAX;
    return count < options->queue_depth ? count : options->queue_depth;
}

static int uring_open_rings(struct uring_reader *uring, const struct reader_options *options,
                            struct error *error) {
    uint32_t rings = uring_ring_count(options);
    uring->share = rings;
    for (uint32_t i = 0; i < rings; i++) {
        uint32_t depth = options->queue_depth / rings + (i < options->queue_depth % rings);
        int rc = ring_open(uring, &uring->rings[i], depth, error);
        if (rc < 0) {
            return rc;
        }
        uring->ring_count++;
        if (uring->reader.lacks.code == 0) {
            uring->reader.lacks = uring->rings[i].lacks;
        }
    }
    return 0;
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
    rc = reader_jobs_init(&uring->jobs, options->jobs_max, error);
    if (rc < 0) {
        free(uring);
        return rc;
    }
    uring->jobs.owner = uring;
    uring->jobs.prepared = uring_prepared;
    uring->memory = options->memory;
    uring->memory_bytes = options->memory == NULL ? 0 : options->memory_bytes;
    uring->reader = (struct reader){
        .ops = &uring_ops, .backend = "io_uring", .event_fd = uring->jobs.event_fd};
    rc = uring_open_rings(uring, options, error);
    if (rc < 0) {
        uring_close(&uring->reader);
        return rc;
    }
    *out = &uring->reader;
    return 0;
}
