/* faulty_ring: reads by io_uring that fail or hang, as faulty_machine.c says.
 *
 * A ring belongs to one thread, and with DEFER_TASKRUN its completions come only inside the calls
 * that are replaced here: what is about to be submitted is looked at before, and the results of
 * those that are to fail are changed behind it. */
#include "faulty_machine.h"

#include <dlfcn.h>
#include <liburing.h>
#include <stdint.h>

#define FAULTS_MAX 4096u

static _Thread_local struct {
    uint64_t user_data;
    int code;
} faults[FAULTS_MAX];
static _Thread_local unsigned fault_count;
static _Thread_local unsigned seen; /* entries of the submission queue before it were looked at */

static void ring_look(struct io_uring *ring) {
    struct io_uring_sq *sq = &ring->sq;
    if ((int)(seen - sq->sqe_head) < 0) {
        seen = sq->sqe_head;
    }
    for (; seen != sq->sqe_tail; seen++) {
        const struct io_uring_sqe *sqe = &sq->sqes[seen & *sq->kring_mask];
        if (sqe->opcode != IORING_OP_READV && sqe->opcode != IORING_OP_READ_FIXED &&
            sqe->opcode != IORING_OP_READ) {
            continue;
        }
        int code = machine_read_fault(sqe->fd, (off_t)sqe->off);
        if (code != 0 && fault_count < FAULTS_MAX) {
            faults[fault_count].user_data = sqe->user_data;
            faults[fault_count++].code = code;
        }
    }
}

static void ring_fail(struct io_uring_cqe *cqe) {
    for (unsigned i = 0; i < fault_count; i++) {
        if (faults[i].user_data == cqe->user_data) {
            cqe->res = -faults[i].code;
            faults[i] = faults[--fault_count];
            return;
        }
    }
}

static void ring_change(struct io_uring *ring) {
    struct io_uring_cq *cq = &ring->cq;
    unsigned tail = io_uring_smp_load_acquire(cq->ktail);
    for (unsigned head = *cq->khead; fault_count > 0 && head != tail; head++) {
        ring_fail(&cq->cqes[head & *cq->kring_mask]);
    }
}

int io_uring_submit(struct io_uring *ring) {
    __typeof__(&io_uring_submit) next = dlsym(RTLD_NEXT, __func__);
    ring_look(ring);
    int code = next(ring);
    ring_change(ring);
    return code;
}

int io_uring_submit_and_wait(struct io_uring *ring, unsigned wait) {
    __typeof__(&io_uring_submit_and_wait) next = dlsym(RTLD_NEXT, __func__);
    ring_look(ring);
    int code = next(ring, wait);
    ring_change(ring);
    return code;
}

int io_uring_submit_and_wait_timeout(struct io_uring *ring, struct io_uring_cqe **cqe,
                                     unsigned wait, struct __kernel_timespec *timeout,
                                     sigset_t *mask) {
    __typeof__(&io_uring_submit_and_wait_timeout) next = dlsym(RTLD_NEXT, __func__);
    ring_look(ring);
    int code = next(ring, cqe, wait, timeout, mask);
    ring_change(ring);
    return code;
}

int __io_uring_get_cqe(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned submit,
                       unsigned wait, sigset_t *mask) {
    __typeof__(&__io_uring_get_cqe) next = dlsym(RTLD_NEXT, __func__);
    int code = next(ring, cqe, submit, wait, mask);
    ring_change(ring);
    return code;
}
