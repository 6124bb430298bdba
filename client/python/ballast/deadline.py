"""Points in time on the monotonic clock; `None` is never, in seconds like everything of Python's."""

from __future__ import annotations

import select
import time
from typing import Optional

Deadline = Optional[float]


def after(seconds: Optional[float]) -> Deadline:
    return None if seconds is None else time.monotonic() + seconds


def earlier(a: Deadline, b: Deadline) -> Deadline:
    return b if a is None else a if b is None else min(a, b)


def passed(deadline: Deadline) -> bool:
    return deadline is not None and time.monotonic() >= deadline


def left(deadline: Deadline) -> Optional[float]:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def wait(fd: int, events: int, deadline: Deadline) -> bool:
    """Polls one descriptor (-1: only time passes); whether it is ready."""
    poll = select.poll()
    if fd >= 0:
        poll.register(fd, events)
    seconds = left(deadline)
    return bool(poll.poll(None if seconds is None else int(seconds * 1000 + 0.999)))
