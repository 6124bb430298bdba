"""libballast, where it is installed and numpy is there: the same plans and rows, as fast as in C.

Found by the name that the loader knows, or by $BALLAST_LIBRARY: a path, or `none` to do without. It
takes batches off the stream, gathers and sends releases (client/plan_columns.h), each in one call; connections and
whatever is not plain stay Python's.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import os
import select
import struct
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple, Union

from . import messages
from .columns import Table, each, ends, numpy
from .deadline import Deadline, passed, wait
from .errors import Disconnected, Error, InvalidArgument, ProtocolError, Released
from .gather import Gather
from .plan import Document, Fragment, Shard
from .version import __version__
from .wire import decode

if TYPE_CHECKING:
    from .call import Channel
    from .link import Job
    from .slab import Slab

VERSION = 2
NAME = f"libballast.so.{__version__.partition('.')[0]}"
WHY_BYTES = 256
COUNTS, RANK = 2, 3  # numbers before those of the ranks, and of each
NOTHING, BATCH, REFUSED, OTHER = range(4)  # enum ballast_plan_found
EPROTO, ESTALE = -71, -116
ITEM_BYTES = {} if numpy is None else {numpy.dtype(f"int{8 * size}"): ctypes.c_int(size) for size in (4, 8)}
_HEAD = struct.Struct("=10Q16s9Q")  # struct ballast_plan_head
_LEFT, _POOL = 11, slice(12, 14)
_unpack = _HEAD.unpack_from

Found = Tuple[Tuple[Any, ...], Any, Optional[Dict[str, Any]]]  # numbers, plan or why it is refused, pool


class _Stream(ctypes.Structure):
    """struct ballast_plan_stream."""

    _fields_ = [("tokens_max", ctypes.c_uint64), ("ranks", ctypes.c_uint32), ("rank", ctypes.c_uint32),
                ("slab", ctypes.c_void_p), ("slab_bytes", ctypes.c_uint64), ("token_bytes", ctypes.c_uint32),
                ("fd", ctypes.c_int32), ("id", ctypes.c_uint32), ("frame_bytes", ctypes.c_uint32),
                ("buffer", ctypes.c_void_p), ("capacity", ctypes.c_uint64), ("begin", ctypes.c_uint64),
                ("end", ctypes.c_uint64), ("waited_ns", ctypes.c_uint64), ("frame", ctypes.c_uint8 * 64)]


def _function(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype = result
    function.argtypes = arguments or None
    return function


first_byte = (ctypes.c_char * 1).from_buffer  # of what can be written; C takes it as a pointer


class Library:
    def __init__(self, path: str):
        self.path = path
        known, locked = ctypes.CDLL(path), ctypes.PyDLL(path)
        p, n = ctypes.c_void_p, ctypes.c_size_t
        version = _function(known.ballast_plan_version, ctypes.c_uint32)()
        if version != VERSION:
            raise AttributeError(f"its functions for Python are of version {version}, not {VERSION}")
        self.create = _function(known.ballast_plan_create, p)
        self.destroy = _function(known.ballast_plan_destroy, None, p)
        self.read = _function(known.ballast_plan_read, ctypes.c_int, p, p, ctypes.c_char_p, n)
        self.head = _function(known.ballast_plan_head, p, p)
        self.why = _function(known.ballast_plan_why, ctypes.c_int, p, p, n)
        self.columns = _function(known.ballast_plan_columns, ctypes.c_int64, p, p, p)
        self.place = _function(known.ballast_plan_place, None, p, p)
        self.hash = _function(known.ballast_plan_hash, ctypes.c_uint64, p)
        # called for every batch, with pointers that are ctypes' own already: nothing is converted
        self.fill = _function(known.ballast_plan_gather, ctypes.c_int)
        # these two wait for nothing and keep the interpreter, so that threads that share a client by mistake get errors
        # and not each other's buffers
        self.next = _function(locked.ballast_plan_next, ctypes.c_int)
        self.release = _function(locked.ballast_plan_release, ctypes.c_int)


class NativePlan:
    """What Plan is, in memory of the library that other batches had before. Tables are made when they are asked for."""

    def __init__(self, library: Library, free: "List[NativePlan]", rank: int, ranks: int):
        self.library = library
        pointer = library.create()
        if not pointer:
            raise MemoryError("libballast has no memory for a plan")
        self.pointer: Any = ctypes.c_void_p(pointer)
        self.head = (ctypes.c_char * _HEAD.size).from_address(library.head(pointer))
        self.fill = library.fill
        self.rank, self.ranks = rank, ranks
        self.free = free  # where it goes when no batch has it any more
        self.known: Optional[Tuple[Table, List[Shard]]] = None

    def __del__(self) -> None:
        """The garbage collector calls it also of a plan that a batch's __del__ then brings back, or has: nothing may be
        read of it any more."""
        pointer, self.pointer, self.fill = getattr(self, "pointer", None), None, None
        if pointer is not None:
            self.library.destroy(pointer)

    def copied(self) -> "ReadPlan":
        return ReadPlan(self.documents, self.shards, self.rank)

    def why(self) -> Error:
        text = ctypes.create_string_buffer(WHY_BYTES)
        code = self.library.why(self.pointer, text, WHY_BYTES)
        return (ProtocolError if code == EPROTO else Error)(text.value.decode("utf-8", "replace"))

    def _columns(self) -> Any:
        if self.pointer is None:
            raise Released("this batch was found by the garbage collector")
        room = ctypes.c_size_t()
        self.library.columns(self.pointer, None, ctypes.byref(room))
        numbers = numpy.empty(room.value, numpy.int64)
        self.library.columns(self.pointer, numbers.ctypes.data, ctypes.byref(room))
        return numbers

    @property
    def tables(self) -> Tuple[Table, List[Shard]]:
        if self.known is None:
            numbers = self._columns()
            documents, fragments = numbers[:COUNTS].tolist()
            first = COUNTS + RANK * self.ranks
            columns = numbers[first:first + len(Document._fields) * documents].reshape(len(Document._fields), documents)
            table = numbers[first + columns.size:].reshape(len(Fragment._fields), fragments)
            shards, at = [], 0
            for rows, pad_rows, count in numbers[COUNTS:first].reshape(-1, RANK).tolist():
                mine = dict(zip(Fragment._fields, table[:, at:at + count]))
                shards.append(Shard(rows, pad_rows, Table(Fragment, mine)))
                at += count
            self.known = Table(Document, dict(zip(Document._fields, columns))), shards
        return self.known

    @property
    def documents(self) -> Table:
        return self.tables[0]

    @property
    def shards(self) -> List[Shard]:
        return self.tables[1]

    @property
    def fragments(self) -> Table:
        return self.shards[self.rank].fragments

    def place(self, slot: bytearray) -> None:
        """The slot is here, its header first, for as long as the caller keeps it."""
        self.library.place(self.pointer, ctypes.addressof(first_byte(slot)))

    def hash(self, slot: Any) -> int:
        """XXH3 of the bytes of the slot."""
        found: int = self.library.hash(self.pointer)
        return found

    def gather(self, column: str, slot: Any, into: Any) -> None:
        """For arrays that C does not take."""
        documents, shard = self.documents, self.shards[self.rank]
        rest = each(operator.sub, documents.document_length, ends(documents.offset, documents.length))
        slowly = Gather(documents, shard.fragments, shard.rows, int(documents.length.sum()), rest)
        getattr(slowly, column)(*(() if column == "positions" else (slot,)), into)


class ReadPlan:
    """What a copied batch has of one."""

    free = None

    def __init__(self, documents: Table, shards: List[Shard], rank: int):
        self.documents, self.shards, self.fragments = documents, shards, shards[rank].fragments

    def copied(self) -> "ReadPlan":
        return self


class Reader:
    """Takes batches from one stream, and gives them back. It knows where the slab is, and does not keep it. It is
    channel.direct for as long as that stream is open and the socket has its bytes as they are."""

    def __init__(self, library: Library, channel: "Channel", job: "Job", rank: int, slab: Optional["Slab"]):
        self.library = library
        self.channel = channel
        self._rank, self._ranks = rank, job.cp
        base = None if slab is None else numpy.frombuffer(slab.memory, "u1").ctypes.data
        self.stream = _Stream(job.tokens_max, job.cp, rank, base, 0 if slab is None else slab.size, job.token_bytes,
                              channel.fileno(), channel.stream)
        self._pointer = ctypes.c_void_p(ctypes.addressof(self.stream))
        self._buffer: Any = None  # of the channel, as the library knows it
        self._left = False  # it has bytes there that were not looked at
        self._next, self._release = library.next, library.release
        self._free: List[NativePlan] = []  # that no batch has

    def _plan(self) -> NativePlan:
        while self._free:
            plan = self._free.pop()
            if plan.pointer is not None:
                plan.known = None
                return plan
        return NativePlan(self.library, self._free, self._rank, self._ranks)

    def _found(self, head: Tuple[Any, ...], plan: NativePlan, code: int, data: Any) -> Found:
        """A batch that is not as most."""
        begin, size = head[_POOL]
        pool = decode(messages.POOL_PART, bytes(memoryview(data)[begin:begin + size])) if begin else None
        if code == BATCH:
            return head, plan, pool
        self._free.append(plan)
        return head, plan.why(), pool

    def read(self, data: bytes) -> Optional[Found]:
        """A StreamEnvelope that is a batch; None for any other."""
        plan = self._plan()
        code = self.library.read(plan.pointer, self._pointer, data, len(data))
        if code == OTHER:
            self._free.append(plan)
            return None
        return self._found(_unpack(plan.head), plan, code, data)

    def next(self, deadline: Deadline) -> Union[Found, Tuple[()], None]:
        """What comes next on the channel, if it is a batch of this stream; () when the deadline passed. None for what
        the channel has to look at."""
        channel = self.channel
        if channel.direct is not self or channel.kept:
            return None
        try:
            plan = self._free.pop()
            plan.known = None
            if plan.pointer is None:
                plan = self._plan()
        except IndexError:  # as often as batches are alive
            plan = self._plan()
        if self._left or channel.begin != channel.end or channel.buffer is not self._buffer:
            self._look()
        code = self._next(plan.pointer, self._pointer)
        if code == NOTHING:
            self._free.append(plan)
            channel.begin = channel.end = 0
            if passed(deadline) or not wait(channel.fileno(), select.POLLIN, deadline):
                return ()
            return self.next(deadline)
        if code != BATCH and code != REFUSED:
            self._free.append(plan)
            return self._leave(code)
        head = _unpack(plan.head)
        if self._left or head[_LEFT]:
            self._leave(code)
        if code == BATCH and head[_POOL.start] == 0:
            return head, plan, None
        return self._found(head, plan, code, channel.buffer)

    def _look(self) -> None:
        """At what the channel has in its buffer."""
        channel, stream, buffer = self.channel, self.stream, self.channel.buffer
        if buffer is not self._buffer:
            stream.buffer = ctypes.addressof(first_byte(buffer))
            stream.capacity = len(buffer)
            self._buffer = buffer
        stream.begin, stream.end = channel.begin, channel.end
        self._left = channel.begin != channel.end

    def _leave(self, code: int) -> None:
        """To the channel, what is in its buffer."""
        channel, stream = self.channel, self.stream
        channel.begin, channel.end = stream.begin, stream.end
        self._left = channel.begin != channel.end
        if code < 0:
            raise channel.lose(Disconnected(f"connection to the daemon: {os.strerror(-code)}"))

    def release(self, plan: Any, waited_ns: int) -> bool:
        """Tells the daemon; False when nothing was sent."""
        if self.channel.direct is not self or plan.pointer is None:
            return False
        stream = self.stream
        if waited_ns:
            stream.waited_ns = waited_ns
        left = self._release(plan.pointer, self._pointer)
        if left > 0:
            self.channel.send_rest(bytes(stream.frame)[stream.frame_bytes - left:stream.frame_bytes])
        return bool(left >= 0)


@functools.lru_cache(maxsize=None)
def _find(path: str) -> Tuple[Optional[Library], str]:
    """The library, and why there is none."""
    if numpy is None:
        return None, "there is no numpy to give columns with"
    if path == "none":
        return None, "BALLAST_LIBRARY is none"
    try:
        return Library(path or NAME), ""
    except (OSError, AttributeError) as reason:
        if path:
            raise InvalidArgument(f"BALLAST_LIBRARY is {path}, which cannot be taken: {reason}; name the libballast of "
                                  f"ballast {__version__}, or none") from None
        return None, str(reason)


def find() -> Tuple[Optional[Library], str]:
    return _find(os.environ.get("BALLAST_LIBRARY", ""))
