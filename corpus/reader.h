/* reader: byte extents from files, asynchronously; the seam where storage begins.
 *
 * A job is a list of extents (contiguous file ranges, at most 1 MB each, scattered into memory by
 * iovecs), which one of the reader's threads may have to find first. Jobs are begun in the order of
 * their submission, which is that of their deadlines, and completed in any order. Implementations
 * own their threads and rings and show an eventfd: reader_uring.c (io_uring), reader_pool.c (preadv
 * threads), and tests/ has one that lies. Short reads are continued, EINTR and EAGAIN re-issued,
 * EIO tried three times, ESTALE tried once more with the file opened anew; an end of file inside an
 * extent is -ENODATA. An extent that failed leaves the others alone. Threads: submit and reap from
 * one thread only; the eventfd may be polled by that thread's loop. */
#ifndef BALLAST_CORPUS_READER_H
#define BALLAST_CORPUS_READER_H

#include "planner/error.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#define READ_EXTENT_BYTES_MAX  (1u << 20)
#define READ_EXTENT_IOVECS_MAX 1024u
#define READER_QUEUE_DEPTH_MAX 4096u
#define READER_THREADS_MAX     256u

struct file;
struct mapping;

struct read_extent {
    struct file *file; /* opened for the read; NULL: `fd` is open */
    int fd;
    uint32_t iovec_count; /* 1..READ_EXTENT_IOVECS_MAX */
    uint64_t offset;      /* bytes */
    struct iovec *iovecs; /* the job's memory, no empty ones; as they were when it is reaped */
    bool dropped;         /* of several, those without a base are read and thrown away */
    /* Of the file; NULL: none. Then it has no check, and is copied from there if all of it can be.
     */
    const struct mapping *mapping;
    /* May be NULL, and is without `dropped` where there are several iovecs. Called by a thread of
     * the reader when all is read, with it in one piece and in the processor's cache, before it is
     * where it belongs: 0, or the extent fails with this errno, `done` moved to where. */
    int (*check)(struct read_extent *extent, const uint8_t *bytes);
    const void *check_context; /* the submitter's, for `check` */
    /* Set by the reader: */
    int result;    /* 0 or a negative errno */
    uint64_t done; /* bytes read: offset + done is where a read failed */
    /* The reader's while in flight: */
    uint32_t next; /* iovec that is read next */
    size_t cut;    /* bytes by which it was shortened, for they were read */
};

enum read_stage { READ_SUBMITTED = 0, READ_PREPARING, READ_PREPARED };

struct read_job {
    struct read_extent *extents; /* the submitter's, untouched until the job is reaped */
    uint32_t extent_count;       /* > 0 */
    /* May be NULL: the extents are there. Else one of the reader's threads calls it before anything
     * is read, to set the two above; it may block on storage. A negative errno becomes the job's
     * result, with no extents. */
    int (*prepare)(struct read_job *job);
    /* May be NULL. Called by one of the reader's threads when all extents were read or failed,
     * before the job can be reaped: for work that should not be the submitter's. */
    void (*complete)(struct read_job *job);
    /* Set by the reader before `complete`: */
    int result;             /* 0, or that of the first extent that failed */
    uint32_t failed_extent; /* which, when result < 0 */
    /* The reader's while in flight: */
    enum read_stage stage;
    uint32_t pending;
    struct read_job *next;
};

struct reader;

struct reader_ops {
    /* Takes the job; 0, or -ENOBUFS when the queue (reader_options.jobs_max) is full. */
    int (*submit)(struct reader *reader, struct read_job *job);
    /* Next finished job, NULL when there is none right now. Never blocks. */
    struct read_job *(*reap)(struct reader *reader);
    /* Waits for the reads that storage has in hand, starts no others, frees. Jobs not reaped by
     * then are the submitter's again, their memory holding whatever had arrived. */
    void (*close)(struct reader *reader);
};

struct reader {
    const struct reader_ops *ops;
    const char *backend; /* "io_uring" or "pread" */
    struct error lacks;  /* code < 0: what it does without, and why; for one line of the log */
    int event_fd;        /* readable when reap may have something; drain it with read(2) */
};

struct reader_options {
    uint32_t queue_depth; /* extents in flight in io_uring, 1..READER_QUEUE_DEPTH_MAX */
    uint32_t threads;     /* of the pread pool, each with one extent; 1..READER_THREADS_MAX */
    uint32_t jobs_max;    /* submitted and not yet reaped, > 0 */
    uint32_t rings;       /* of io_uring, each with a thread and its share of the depth; 0: one */
    /* Registered with the kernel, for reads straight into it; NULL: none. It outlives the reader.
     */
    void *memory;
    uint64_t memory_bytes;
};

enum reader_backend { READER_AUTO = 0, READER_URING = 1, READER_PREAD = 2 };

/* Opens by probing: AUTO tries io_uring (ring, opcodes, one round trip) and falls back to the pool;
 * `why` (may be NULL) then receives the reason for the fallback, to be logged once by the caller,
 * and else has code 0 and no text. -EINVAL for options out of range; otherwise the errno of what
 * could not be had, named in `error`. On success *out is the caller's until reader_close. */
int reader_open(enum reader_backend backend, const struct reader_options *options,
                struct reader **out, struct error *why, struct error *error);
int reader_uring_open(const struct reader_options *options, struct reader **out,
                      struct error *error);
int reader_pool_open(const struct reader_options *options, struct reader **out,
                     struct error *error);

/* Takes NULL. */
void reader_close(struct reader *reader);

/* How many threads are best for a pool that has cold files to read, whose threads wait, or files
 * that the page cache has, where more than there are processors are in one another's way. */
uint32_t reader_threads(bool cold);

static inline int reader_submit(struct reader *reader, struct read_job *job) {
    return reader->ops->submit(reader, job);
}

static inline struct read_job *reader_reap(struct reader *reader) {
    return reader->ops->reap(reader);
}

#endif
