/* reader: chooses between the readers by trying. */
#include "corpus/reader.h"

#include <sched.h>
#include <stddef.h>

#define THREADS_WARM_MAX 4
#define THREADS_COLD     32

static int reader_open_auto(const struct reader_options *options, struct reader **out,
                            struct error *why, struct error *error) {
    struct error reason = {0};
    int rc = reader_uring_open(options, out, &reason);
    if (rc == 0) {
        return 0;
    }
    rc = reader_pool_open(options, out, error);
    if (rc == 0) {
        error_set(why, reason.code, "%s; using preadv threads", reason.text);
    }
    return rc;
}

int reader_open(enum reader_backend backend, const struct reader_options *options,
                struct reader **out, struct error *why, struct error *error) {
    if (why != NULL) {
        *why = (struct error){0};
    }
    switch (backend) {
    case READER_URING:
        return reader_uring_open(options, out, error);
    case READER_PREAD:
        return reader_pool_open(options, out, error);
    case READER_AUTO:
        return reader_open_auto(options, out, why, error);
    }
    return error_set(error, -EINVAL, "reader backend %d: no such thing", (int)backend);
}

uint32_t reader_threads(bool cold) {
    cpu_set_t processors;
    if (cold) {
        return THREADS_COLD;
    }
    int count = sched_getaffinity(0, sizeof processors, &processors) == 0 ? CPU_COUNT(&processors)
                                                                          : THREADS_WARM_MAX;
    return count < THREADS_WARM_MAX ? (uint32_t)count : THREADS_WARM_MAX;
}

void reader_close(struct reader *reader) {
    if (reader != NULL) {
        reader->ops->close(reader);
    }
}
