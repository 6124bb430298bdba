"""The daemon's slab as a client sees it: a sealed memfd, mapped for reading only.

The seals say that nobody can shrink it (no SIGBUS) and that only the daemon writes; what does not carry
them is not mapped. A mapping lives for as long as anything points into it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct
import threading
import weakref
from typing import Callable, Optional

from .dial import dial_unix
from .errors import Disconnected, Error, ProtocolError, Unavailable

SLOT_HEADER_BYTES = 64
TOKEN_BYTES = 16
_F_GET_SEALS = 1034
_SEALS = 0x1 | 0x2 | 0x4 | 0x10  # SEAL, SHRINK, GROW, FUTURE_WRITE
_GENERATION = struct.Struct("<Q")
_fence = threading.Lock()  # taking it orders loads on machines that reorder them


Told = Callable[[memoryview], None]


def _untell(untold: Told, view: memoryview, pid: int) -> None:
    if os.getpid() == pid:
        untold(view)


def ask(path: str, token: bytes) -> socket.socket:
    """Connects to the data socket and sends the token; the answer is awaited there."""
    connection = dial_unix(path)
    try:
        if connection.send(token) != len(token):
            raise Unavailable(f"data socket {path}: it takes no token")
    except OSError as reason:
        connection.close()
        if isinstance(reason, Error):
            raise
        raise Disconnected(f"data socket {path}: {reason.strerror}") from None
    return connection


class Slab:
    """`view` is all of it."""

    def __init__(self, fd: int, size: int):
        try:
            seals = fcntl.fcntl(fd, _F_GET_SEALS)
        except OSError:
            seals = 0
        if seals & _SEALS != _SEALS:
            raise ProtocolError("the daemon's memory is not sealed; it is not mapped")
        if size == 0 or os.fstat(fd).st_size < size:
            raise ProtocolError("the daemon's memory is shorter than the slab it promised")
        try:
            self.memory = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        except (OSError, ValueError, OverflowError) as reason:
            raise Error(f"map a slab of {size} bytes: {reason}") from None
        self.size = size
        self.view = memoryview(self.memory)

    def generation(self, offset: int) -> int:
        """Of the slot whose header is at `offset`: read it before and after the slot's bytes; equal
        values mean that none of them was overwritten meanwhile."""
        with _fence:
            value: int = _GENERATION.unpack_from(self.memory, offset)[0]
        with _fence:
            return value


def receive(connection: socket.socket, size: int, told: Optional[Told] = None,
            untold: Optional[Told] = None) -> Optional[Slab]:
    """The answer of the data socket: None when it is not there yet. `told` is called with its view, and what it
    raises ends this; `untold` once nothing points into it any more, or at the end of the process."""
    try:
        data, fds, _, _ = socket.recv_fds(connection, 1, 4, socket.MSG_CMSG_CLOEXEC)
    except BlockingIOError:
        return None
    except OSError as reason:
        raise Disconnected(f"data socket: {reason.strerror}") from None
    try:
        if not data:
            raise Disconnected("the daemon closed the data socket")
        if len(fds) != 1:
            raise ProtocolError("the data socket answered without one descriptor")
        slab = Slab(fds[0], size)
        if told is not None:
            told(slab.view)
        if untold is not None:
            weakref.finalize(slab, _untell, untold, slab.view, os.getpid())
        return slab
    finally:
        for fd in fds:
            os.close(fd)
