"""What can go wrong, one class for each status of the wire; str(error) is the daemon's sentence."""

from __future__ import annotations

import errno as _errno


class Error(Exception):
    """Base of all. `status` is the wire's name, `errno` what the C client returns, `exit_code` the CLI's."""

    status = "UNKNOWN"
    wire = 2
    errno = _errno.EPROTO
    exit_code = 1
    sentence = "unknown failure"


class Cancelled(Error):
    status, wire, errno, exit_code = "CANCELLED", 1, _errno.ECANCELED, 1
    sentence = "cancelled by the caller"


class ProtocolError(Error):
    """The daemon sent what it must not send; the connection was closed, the next call connects anew."""

    status, wire, errno, exit_code = "UNKNOWN", 2, _errno.EPROTO, 1
    sentence = "unknown failure"


class InvalidArgument(Error, ValueError):
    status, wire, errno, exit_code = "INVALID_ARGUMENT", 3, _errno.EINVAL, 1
    sentence = "invalid argument"


class TimedOut(Error, TimeoutError):
    status, wire, errno, exit_code = "DEADLINE_EXCEEDED", 4, _errno.ETIMEDOUT, 5
    sentence = "timed out"


class NotFound(Error):
    status, wire, errno, exit_code = "NOT_FOUND", 5, _errno.ENOENT, 4
    sentence = "no such thing"


class AlreadyExists(Error):
    """Another process is this rank."""

    status, wire, errno, exit_code = "ALREADY_EXISTS", 6, _errno.EEXIST, 1
    sentence = "exists already"


class PermissionDenied(Error):
    status, wire, errno, exit_code = "PERMISSION_DENIED", 7, _errno.EACCES, 1
    sentence = "not allowed"


class LimitReached(Error):
    """A commit that is noted and not durable: the daemon's disk is full, or too many of this rank's are under
    way; durable once a later commit is."""

    status, wire, errno, exit_code = "RESOURCE_EXHAUSTED", 8, _errno.ENOBUFS, 1
    sentence = "a limit is reached"


class FailedPrecondition(Error):
    status, wire, errno, exit_code = "FAILED_PRECONDITION", 9, _errno.EBUSY, 1
    sentence = "not possible in this state"


class Stale(Error):
    """The job went elsewhere (seek there), or the slot of a batch was reused (it comes again)."""

    status, wire, errno, exit_code = "ABORTED", 10, _errno.ESTALE, 1
    sentence = "aborted: the stream has moved on"


class OutOfRange(Error):
    status, wire, errno, exit_code = "OUT_OF_RANGE", 11, _errno.ERANGE, 1
    sentence = "out of range"


class Unimplemented(Error):
    status, wire, errno, exit_code = "UNIMPLEMENTED", 12, _errno.ENOSYS, 1
    sentence = "not implemented"


class Internal(Error):
    status, wire, errno, exit_code = "INTERNAL", 13, _errno.EFAULT, 1
    sentence = "internal error"


class Unavailable(Error):
    status, wire, errno, exit_code = "UNAVAILABLE", 14, _errno.ECONNREFUSED, 3
    sentence = "the daemon is not running or not ready"


class DataLoss(Error):
    status, wire, errno, exit_code = "DATA_LOSS", 15, _errno.EIO, 1
    sentence = "data is lost or damaged"


class Unauthenticated(Error):
    status, wire, errno, exit_code = "UNAUTHENTICATED", 16, _errno.EPERM, 1
    sentence = "not authenticated"


class Disconnected(Unavailable):
    """The connection broke; a client reconnects by itself, so this shows only after it gave up."""

    errno = _errno.EPIPE


class NoSocket(Unavailable):
    """There is no socket at this path."""


class Busy(InvalidArgument):
    """A client was used by a thread while another was in a call of it."""


class Forked(InvalidArgument):
    """A client was used in a process that did not open it."""


class Released(InvalidArgument):
    """A batch was used after its release."""


class JobMismatch(InvalidArgument):
    """The daemon serves another job, mesh or token width than this client was opened for."""


class Disagreement(Error):
    """Ranks of one job stand at different steps, plans or generations."""

    status, wire, errno, exit_code = "DATA_LOSS", 15, _errno.EBADMSG, 1


class Unsupported(Error, ValueError):
    """A batch cannot be said in the form that was asked for."""

    status, wire, errno, exit_code = "UNIMPLEMENTED", 12, _errno.EOPNOTSUPP, 1
    sentence = "not supported"


STATUSES = {
    kind.wire: kind
    for kind in (Cancelled, ProtocolError, InvalidArgument, TimedOut, NotFound, AlreadyExists,
                 PermissionDenied, LimitReached, FailedPrecondition, Stale, OutOfRange, Unimplemented,
                 Internal, Unavailable, DataLoss, Unauthenticated)
}


def from_status(code: int, message: str) -> Error:
    """The error of a wire status that is not 0."""
    kind = STATUSES.get(code, ProtocolError)
    return kind(message or kind.sentence)
