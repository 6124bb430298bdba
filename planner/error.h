/* error: one domain of errors from kernel call to exit code.
 *
 * Every function that can fail returns 0 or a negative errno. Where a person will read the reason,
 * a `struct error` is filled once, where most is known, and prefixed outward:
 * "open corpus 'books': books.idx: 3 bytes short at offset 4096; copy the file again".
 * STATUS_TABLE is the only list of statuses: wire code, errno, CLI exit code and sentence. */
#ifndef BALLAST_PLANNER_ERROR_H
#define BALLAST_PLANNER_ERROR_H

#include <errno.h>

#define ERROR_TEXT_BYTES 512

struct error {
    int code; /* negative errno, 0 when nothing happened */
    char text[ERROR_TEXT_BYTES];
};

/*      name                 wire errno          exit sentence */
#define STATUS_TABLE(X)                                                                            \
    X(OK, 0, 0, 0, "ok")                                                                           \
    X(CANCELLED, 1, ECANCELED, 1, "cancelled by the caller")                                       \
    X(UNKNOWN, 2, EPROTO, 1, "unknown failure")                                                    \
    X(INVALID_ARGUMENT, 3, EINVAL, 1, "invalid argument")                                          \
    X(DEADLINE_EXCEEDED, 4, ETIMEDOUT, 5, "timed out")                                             \
    X(NOT_FOUND, 5, ENOENT, 4, "no such thing")                                                    \
    X(ALREADY_EXISTS, 6, EEXIST, 1, "exists already")                                              \
    X(PERMISSION_DENIED, 7, EACCES, 1, "not allowed")                                              \
    X(RESOURCE_EXHAUSTED, 8, ENOBUFS, 1, "a limit is reached")                                     \
    X(FAILED_PRECONDITION, 9, EBUSY, 1, "not possible in this state")                              \
    X(ABORTED, 10, ESTALE, 1, "aborted: the stream has moved on")                                  \
    X(OUT_OF_RANGE, 11, ERANGE, 1, "out of range")                                                 \
    X(UNIMPLEMENTED, 12, ENOSYS, 1, "not implemented")                                             \
    X(INTERNAL, 13, EFAULT, 1, "internal error")                                                   \
    X(UNAVAILABLE, 14, ECONNREFUSED, 3, "the daemon is not running or not ready")                  \
    X(DATA_LOSS, 15, EIO, 1, "data is lost or damaged")                                            \
    X(UNAUTHENTICATED, 16, EPERM, 1, "not authenticated")

enum status {
#define X(name, wire, err, exit_code, sentence) STATUS_##name = wire,
    STATUS_TABLE(X)
#undef X
};

/* Fills `error` (may be NULL) with `code` (negative errno) and a formatted text; returns `code`,
 * so that a failing function can `return error_set(...)`. Text that does not fit is cut. */
int error_set(struct error *error, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts a formatted prefix and ": " before the text; keeps and returns the code. */
int error_prefix(struct error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Status of a negative errno; STATUS_UNKNOWN when the table does not name it (ENOMEM and ENOSPC
 * count as RESOURCE_EXHAUSTED, EILSEQ and EBADMSG as DATA_LOSS). */
enum status status_from_error(int code);

/* Negative errno of a wire status; -EPROTO for a number the table does not have. */
int status_to_error(unsigned wire_code);

/* Name ("NOT_FOUND"), sentence and CLI exit code of a status. Static memory. */
const char *status_name(enum status status);
const char *status_sentence(enum status status);
int status_exit_code(enum status status);

#endif
