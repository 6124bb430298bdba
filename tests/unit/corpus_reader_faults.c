/* Faults by exhaustion: the 1st, 2nd, 3rd... call fails, once or from then on, until a run is
 * through without meeting the fault. The calls are wrapped at link time (CMakeLists.txt), so the
 * readers have no seam for this. Completions of io_uring are changed in its completion queue. */
#include "tests/unit/reader_world.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dirent.h>
#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum fault_kind { FAULT_NONE, FAULT_SHORT, FAULT_ERRNO, FAULT_END, FAULT_REFUSED };

/* Set while no reader is at work; counted by its threads. */
static struct {
    enum fault_kind kind;
    int error;
    bool sticky;
    unsigned nth;
    atomic_uint calls;
} read_fault;

static struct {
    unsigned nth;
    unsigned calls;
    bool armed;
    bool thread; /* that could not be had was it */
} open_fault;

static struct {
    unsigned flags; /* that io_uring_setup takes */
    unsigned features;
} kernel = {~0u, ~0u};

/* Reads that io_uring was told to hand to its workers at once, and those into registered memory. */
static atomic_uint reads_forced_async, reads_fixed;

/* What the kernel has of registered memory: none to spare, none that is added to later, all. */
enum registration { REGISTRATION_REFUSED, REGISTRATION_OLD, REGISTRATION_NEW };
static enum registration registration = REGISTRATION_NEW;

static _Thread_local bool drop_next_write; /* of this thread: the wake-up of a submit */

static bool read_fault_hits(void) {
    unsigned call = atomic_fetch_add(&read_fault.calls, 1) + 1;
    return read_fault.kind != FAULT_NONE &&
           (read_fault.sticky ? call >= read_fault.nth : call == read_fault.nth);
}

static void read_fault_set(enum fault_kind kind, int error, bool sticky, unsigned nth) {
    read_fault.kind = kind;
    read_fault.error = error;
    read_fault.sticky = sticky;
    read_fault.nth = nth;
    atomic_store(&read_fault.calls, 0);
}

static bool open_fault_hits(void) {
    return open_fault.armed && ++open_fault.calls == open_fault.nth;
}

ssize_t __real_preadv(int fd, const struct iovec *iovecs, int count, off_t offset);
ssize_t __wrap_preadv(int fd, const struct iovec *iovecs, int count, off_t offset);
ssize_t __wrap_preadv(int fd, const struct iovec *iovecs, int count, off_t offset) {
    if (!read_fault_hits()) {
        return __real_preadv(fd, iovecs, count, offset);
    }
    if (read_fault.kind == FAULT_ERRNO) {
        errno = read_fault.error;
        return -1;
    }
    if (read_fault.kind == FAULT_END) {
        return 0;
    }
    struct iovec half = {iovecs->iov_base, (iovecs->iov_len + 1) / 2};
    return __real_preadv(fd, &half, 1, offset);
}

static void spoil_completion(struct io_uring_cqe *cqe) {
    if (cqe->user_data == 0 || cqe->user_data == LIBURING_UDATA_TIMEOUT || cqe->res <= 0 ||
        !read_fault_hits()) {
        return;
    }
    switch (read_fault.kind) {
    case FAULT_SHORT:
        cqe->res = (cqe->res + 1) / 2;
        break;
    case FAULT_ERRNO:
        cqe->res = -read_fault.error;
        break;
    case FAULT_END:
        cqe->res = 0;
        break;
    case FAULT_NONE:
    case FAULT_REFUSED:
        break;
    }
}

int __real_io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe,
                                            unsigned wait, struct __kernel_timespec *ts,
                                            sigset_t *mask);
int __wrap_io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe,
                                            unsigned wait, struct __kernel_timespec *ts,
                                            sigset_t *mask);
int __wrap_io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe,
                                            unsigned wait, struct __kernel_timespec *ts,
                                            sigset_t *mask) {
    if (read_fault.kind == FAULT_REFUSED && read_fault_hits()) {
        return -read_fault.error;
    }
    for (unsigned i = ring->sq.sqe_head; i != ring->sq.sqe_tail; i++) {
        bool forced = ring->sq.sqes[i & ring->sq.ring_mask].flags & IOSQE_ASYNC;
        atomic_fetch_add(&reads_forced_async, forced);
        bool fixed = ring->sq.sqes[i & ring->sq.ring_mask].opcode == IORING_OP_READ_FIXED;
        atomic_fetch_add(&reads_fixed, fixed);
    }
    int rc = __real_io_uring_submit_and_wait_timeout(ring, cqe, wait, ts, mask);
    unsigned tail = io_uring_smp_load_acquire(ring->cq.ktail);
    for (unsigned head = *ring->cq.khead; head != tail; head++) {
        spoil_completion(&ring->cq.cqes[head & ring->cq.ring_mask]);
    }
    return rc;
}

int __real_io_uring_queue_init_params(unsigned entries, struct io_uring *ring,
                                      struct io_uring_params *params);
int __wrap_io_uring_queue_init_params(unsigned entries, struct io_uring *ring,
                                      struct io_uring_params *params);
int __wrap_io_uring_queue_init_params(unsigned entries, struct io_uring *ring,
                                      struct io_uring_params *params) {
    if (open_fault_hits()) {
        return -EPERM;
    }
    if (params->flags & ~kernel.flags) {
        return -EINVAL;
    }
    int rc = __real_io_uring_queue_init_params(entries, ring, params);
    ring->features &= kernel.features;
    return rc;
}

int __real_io_uring_register_buffers(struct io_uring *ring, const struct iovec *iovecs,
                                     unsigned count);
int __wrap_io_uring_register_buffers(struct io_uring *ring, const struct iovec *iovecs,
                                     unsigned count);
int __wrap_io_uring_register_buffers(struct io_uring *ring, const struct iovec *iovecs,
                                     unsigned count) {
    return registration == REGISTRATION_REFUSED
               ? -ENOMEM
               : __real_io_uring_register_buffers(ring, iovecs, count);
}

int __real_io_uring_register_buffers_sparse(struct io_uring *ring, unsigned count);
int __wrap_io_uring_register_buffers_sparse(struct io_uring *ring, unsigned count);
int __wrap_io_uring_register_buffers_sparse(struct io_uring *ring, unsigned count) {
    return registration == REGISTRATION_OLD ? -EINVAL
                                            : __real_io_uring_register_buffers_sparse(ring, count);
}

int __real_io_uring_register_buffers_update_tag(struct io_uring *ring, unsigned at,
                                                const struct iovec *iovecs, const __u64 *tags,
                                                unsigned count);
int __wrap_io_uring_register_buffers_update_tag(struct io_uring *ring, unsigned at,
                                                const struct iovec *iovecs, const __u64 *tags,
                                                unsigned count);
int __wrap_io_uring_register_buffers_update_tag(struct io_uring *ring, unsigned at,
                                                const struct iovec *iovecs, const __u64 *tags,
                                                unsigned count) {
    return registration == REGISTRATION_REFUSED
               ? -ENOMEM
               : __real_io_uring_register_buffers_update_tag(ring, at, iovecs, tags, count);
}

struct io_uring_probe *__real_io_uring_get_probe_ring(struct io_uring *ring);
struct io_uring_probe *__wrap_io_uring_get_probe_ring(struct io_uring *ring);
struct io_uring_probe *__wrap_io_uring_get_probe_ring(struct io_uring *ring) {
    return open_fault_hits() ? NULL : __real_io_uring_get_probe_ring(ring);
}

int __real_io_uring_submit_and_wait(struct io_uring *ring, unsigned wait);
int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned wait);
int __wrap_io_uring_submit_and_wait(struct io_uring *ring, unsigned wait) {
    return open_fault_hits() ? -EPERM : __real_io_uring_submit_and_wait(ring, wait);
}

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size) {
    return open_fault_hits() ? NULL : __real_calloc(count, size);
}

int __real_eventfd(unsigned value, int flags);
int __wrap_eventfd(unsigned value, int flags);
int __wrap_eventfd(unsigned value, int flags) {
    if (open_fault_hits()) {
        errno = EMFILE;
        return -1;
    }
    return __real_eventfd(value, flags);
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*body)(void *),
                          void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*body)(void *),
                          void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*body)(void *),
                          void *context) {
    open_fault.thread = open_fault_hits();
    return open_fault.thread ? EAGAIN : __real_pthread_create(thread, attr, body, context);
}

ssize_t __real_write(int fd, const void *bytes, size_t count);
ssize_t __wrap_write(int fd, const void *bytes, size_t count);
ssize_t __wrap_write(int fd, const void *bytes, size_t count) {
    if (drop_next_write) {
        drop_next_write = false;
        return (ssize_t)count;
    }
    return __real_write(fd, bytes, count);
}

static struct reader *open_reader(enum reader_backend backend) {
    struct reader *reader = NULL;
    struct error error = {0};
    if (reader_open(backend,
                    &(struct reader_options){.queue_depth = 4, .threads = 2, .jobs_max = 4},
                    &reader, NULL, &error) < 0) {
        fail_msg("%s", error.text);
    }
    return reader;
}

static int group_open(void **state) {
    struct reader_world *world = calloc(1, sizeof *world);
    assert_non_null(world);
    world_open(world, 3, 2u << 20);
    *state = world;
    return 0;
}

static int group_close(void **state) {
    world_close(*state);
    free(*state);
    return 0;
}

/* Runs a job of 12 extents under the fault, checks what came of it, and says whether the fault was
 * met. `error` is what the job must fail with; 0: it must succeed. */
static bool survive(struct reader_world *world, enum reader_backend backend, int error) {
    struct reader *reader = open_reader(backend);
    struct world_job *job = world_job_create(world, 12, WORLD_MIXED);
    world_run(reader, job);
    reader_close(reader);
    bool met = atomic_load(&read_fault.calls) >= read_fault.nth;
    if (error == 0 || !met) {
        assert_true(world_job_is_right(job));
    } else {
        assert_int_equal(job->read.result, error);
    }
    world_job_destroy(job);
    return met;
}

static void exhaust(struct reader_world *world, enum reader_backend backend, enum fault_kind kind,
                    int fault_error, bool sticky, int error) {
    unsigned nth = 0;
    do {
        nth++;
        read_fault_set(kind, fault_error, sticky, nth);
    } while (survive(world, backend, error));
    assert_true(nth > 1);
    read_fault_set(FAULT_NONE, 0, false, 0);
}

static void exhaust_both(void **state, enum fault_kind kind, int fault_error, bool sticky,
                         int error) {
    exhaust(*state, READER_PREAD, kind, fault_error, sticky, error);
    exhaust(*state, READER_URING, kind, fault_error, sticky, error);
}

static void a_short_read_is_continued(void **state) {
    exhaust_both(state, FAULT_SHORT, 0, false, 0);
    exhaust_both(state, FAULT_SHORT, 0, true, 0);
}

static void an_interrupted_read_is_issued_again(void **state) {
    atomic_store(&reads_forced_async, 0);
    exhaust_both(state, FAULT_ERRNO, EINTR, false, 0);
    assert_int_equal(atomic_load(&reads_forced_async), 0);
}

/* io_uring says EAGAIN where it could not go on without blocking; asked the same way again it would
 * say so again. */
static void a_postponed_read_is_issued_again_where_it_may_block(void **state) {
    atomic_store(&reads_forced_async, 0);
    exhaust_both(state, FAULT_ERRNO, EAGAIN, false, 0);
    assert_true(atomic_load(&reads_forced_async) >= 12);
}

static void a_read_that_is_interrupted_for_ever_fails(void **state) {
    exhaust_both(state, FAULT_ERRNO, EINTR, true, -EINTR);
}

static void a_read_that_fails_once_is_tried_again(void **state) {
    exhaust_both(state, FAULT_ERRNO, EIO, false, 0);
}

static void a_read_that_goes_on_failing_fails_the_job(void **state) {
    exhaust_both(state, FAULT_ERRNO, EIO, true, -EIO);
}

static void another_error_is_not_tried_again(void **state) {
    exhaust_both(state, FAULT_ERRNO, ENODEV, false, -ENODEV);
}

static void an_end_of_file_fails_the_job_at_once(void **state) {
    exhaust_both(state, FAULT_END, 0, false, -ENODATA);
}

static void a_ring_that_takes_nothing_for_a_while_is_asked_again(void **state) {
    exhaust(*state, READER_URING, FAULT_REFUSED, EAGAIN, false, 0);
    exhaust(*state, READER_URING, FAULT_REFUSED, EBUSY, false, 0);
    exhaust(*state, READER_URING, FAULT_REFUSED, EINTR, false, 0);
}

static void a_lost_wake_up_costs_no_more_than_the_safety_wait(void **state) {
    struct reader *reader = open_reader(READER_URING);
    for (int round = 0; round < 2; round++) {
        struct world_job *job = world_job_create(*state, 12, WORLD_MIXED);
        drop_next_write = true;
        world_run(reader, job);
        assert_true(world_job_is_right(job));
        world_job_destroy(job);
    }
    reader_close(reader);
}

static void run_on_kernel(struct reader_world *world, unsigned flags, unsigned features) {
    kernel.flags = flags;
    kernel.features = features;
    struct reader *reader = open_reader(READER_URING);
    for (int round = 0; round < 30; round++) {
        struct world_job *job = world_job_create(world, 40, WORLD_MIXED);
        world_run(reader, job);
        assert_true(world_job_is_right(job));
        world_job_destroy(job);
    }
    reader_close(reader);
    kernel.flags = ~0u;
    kernel.features = ~0u;
}

static void the_ring_does_without_what_older_kernels_lack(void **state) {
    run_on_kernel(*state, IORING_SETUP_COOP_TASKRUN, ~0u);
    run_on_kernel(*state, 0, ~0u);
    run_on_kernel(*state, 0, ~IORING_FEAT_EXT_ARG);
}

/* RLIMIT_MEMLOCK, which binds no superuser, said in the kernel's place; and once it is not said,
 * the same reads into the same memory are fixed ones. */
static void memory_that_is_not_registered_is_read_into_all_the_same(void **state) {
    static uint8_t memory[4 * 65536];
    struct reader_world *world = *state;
    for (registration = REGISTRATION_REFUSED; registration <= REGISTRATION_NEW; registration++) {
        bool refused = registration == REGISTRATION_REFUSED;
        struct reader_options options = {.queue_depth = 4,
                                         .threads = 1,
                                         .jobs_max = 1,
                                         .rings = 2,
                                         .memory = memory,
                                         .memory_bytes = sizeof memory};
        struct iovec iovecs[4];
        struct read_extent extents[4];
        struct read_job job = {.extents = extents, .extent_count = 4};
        struct reader *reader = NULL;
        atomic_store(&reads_fixed, 0);
        assert_int_equal(reader_open(READER_URING, &options, &reader, NULL, NULL), 0);
        assert_int_equal(reader->lacks.code, refused ? -ENOMEM : 0);
        for (uint32_t i = 0; i < 4; i++) {
            iovecs[i] = (struct iovec){memory + i * 65536, 65536};
            extents[i] = (struct read_extent){
                .fd = world->fds[0], .offset = 100 * i, .iovecs = &iovecs[i], .iovec_count = 1};
        }
        memset(memory, 0, sizeof memory);
        world_run(reader, (struct world_job *)&job);
        assert_int_equal(job.result, 0);
        for (uint32_t i = 0; i < 4; i++) {
            assert_memory_equal(memory + i * 65536, world->bytes[0] + 100 * i, 65536);
        }
        assert_int_equal(atomic_load(&reads_fixed), refused ? 0 : 4);
        reader_close(reader);
    }
}

static unsigned open_descriptors(void) {
    unsigned count = 0;
    DIR *fds = opendir("/proc/self/fd");
    assert_non_null(fds);
    while (readdir(fds) != NULL) {
        count++;
    }
    closedir(fds);
    return count;
}

/* What can be done about a thread that the system denies. */
static bool names_limits(const char *text) {
    return strstr(text, "Resource temporarily unavailable") != NULL &&
           strstr(text, "TasksMax=") != NULL && strstr(text, "ulimit -u") != NULL &&
           strstr(text, "ulimit -v") != NULL;
}

static void exhaust_open(enum reader_backend backend, unsigned faults_min) {
    unsigned before = open_descriptors();
    int rc = -1;
    unsigned threads = 0;
    for (open_fault.nth = 1; rc < 0; open_fault.nth++) {
        struct reader *reader = NULL;
        struct error error = {0};
        open_fault.calls = 0;
        open_fault.thread = false;
        open_fault.armed = true;
        rc = reader_open(backend,
                         &(struct reader_options){.queue_depth = 4, .threads = 2, .jobs_max = 4},
                         &reader, NULL, &error);
        open_fault.armed = false;
        assert_true(rc == 0 || (error.code == rc && error.text[0] != '\0' && reader == NULL));
        assert_true(!open_fault.thread || names_limits(error.text));
        threads += open_fault.thread;
        reader_close(reader);
        assert_int_equal(open_descriptors(), before);
    }
    assert_true(open_fault.nth - 2 >= faults_min && threads > 0);
}

static void an_open_that_fails_anywhere_says_why_and_leaves_nothing(void **state) {
    (void)state;
    exhaust_open(READER_PREAD, 4);
    exhaust_open(READER_URING, 9);
}

int main(void) {
    struct reader *reader = NULL;
    struct error error = {0};
    if (reader_uring_open(&(struct reader_options){.queue_depth = 8, .threads = 1, .jobs_max = 1},
                          &reader, &error) < 0) {
        print_message("skipped: %s\n", error.text);
        return 77;
    }
    reader_close(reader);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_read_is_continued),
        cmocka_unit_test(an_interrupted_read_is_issued_again),
        cmocka_unit_test(a_postponed_read_is_issued_again_where_it_may_block),
        cmocka_unit_test(a_read_that_is_interrupted_for_ever_fails),
        cmocka_unit_test(a_read_that_fails_once_is_tried_again),
        cmocka_unit_test(a_read_that_goes_on_failing_fails_the_job),
        cmocka_unit_test(another_error_is_not_tried_again),
        cmocka_unit_test(an_end_of_file_fails_the_job_at_once),
        cmocka_unit_test(a_ring_that_takes_nothing_for_a_while_is_asked_again),
        cmocka_unit_test(a_lost_wake_up_costs_no_more_than_the_safety_wait),
        cmocka_unit_test(the_ring_does_without_what_older_kernels_lack),
        cmocka_unit_test(memory_that_is_not_registered_is_read_into_all_the_same),
        cmocka_unit_test(an_open_that_fails_anywhere_says_why_and_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, group_open, group_close);
}
