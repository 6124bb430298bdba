"""ballast: the client of a trainer rank, in Python.

    import ballast

    with ballast.Client(dp=0, cp=0) as client:
        for step in client:
            for batch in step:
                tokens, labels, positions = batch.tokens(), batch.labels(), batch.positions()
            step.commit()

The standard library is enough; with numpy, columns are arrays and several times faster, and where
libballast is installed too, it reads plans and gathers rows. `ballast.torch` has tensors, a dataset and
the forms of attention libraries; `python -m ballast.doctor` checks a setup.
"""

from .batch import Batch, Exchange, Layout
from .client import Client, EndOfData, EndOfStep, Measured, Step
from .errors import (AlreadyExists, Busy, Cancelled, DataLoss, Disagreement, Disconnected, Error, FailedPrecondition,
                     Forked, Internal, InvalidArgument, JobMismatch, LimitReached, NotFound, OutOfRange,
                     PermissionDenied, ProtocolError, Released, Stale, TimedOut, Unauthenticated, Unavailable,
                     Unimplemented, Unsupported)
from .link import Job
from .plan import Document, Fragment, Shard
from .pool import Payload, Pool, Replica, Tile, Transfer
from .varlen import KeyRun, Llama3, Thd
from .version import __version__

__all__ = [
    "AlreadyExists", "Batch", "Busy", "Cancelled", "Client", "DataLoss", "Disagreement", "Disconnected", "Document",
    "EndOfData", "EndOfStep", "Error", "Exchange", "FailedPrecondition", "Forked", "Fragment", "Internal",
    "InvalidArgument", "Job", "JobMismatch", "KeyRun", "Layout", "LimitReached", "Llama3", "Measured", "NotFound",
    "OutOfRange", "Payload", "PermissionDenied", "Pool", "ProtocolError", "Released", "Replica", "Shard", "Stale",
    "Step", "Thd", "Tile", "TimedOut", "Transfer", "Unauthenticated", "Unavailable", "Unimplemented",
    "Unsupported", "__version__",
]
