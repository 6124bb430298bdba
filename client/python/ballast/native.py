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
from collections import deque
from sys import getrefcount
from typing import TYPE_CHECKING, Any, Deque, Dict, List, Optional, Tuple, Union

from . import messages
from .columns import UNUSED, Table, each, ends, numpy
from .deadline import Deadline, passed, wait
from .errors import Disconnected, Error, InvalidArgument, ProtocolError
from .gather import Gather
from .plan import Document, Fragment, Shard
from .version import __version__
from .wire import decode

if TYPE_CHECKING:
    from .batch import Origin
    from .call import Channel
    from .slab import Slab

VERSION = 3
NAME = f"libballast.so.{__version__.partition('.')[0]}"
WHY_BYTES = 256
COUNTS, RANK = 2, 3  # numbers before those of the ranks, and of each
NOTHING, BATCH, REFUSED, OTHER, PLAIN = range(5)  # enum ballast_plan_found
EPROTO, ESTALE = -71, -116
TYPES = {} if numpy is None else {name: numpy.dtype(name) for name in ("int32", "int64")}
ITEM_BYTES = {dtype: dtype.itemsize for dtype in TYPES.values()}
LOOKED_AT = 16  # plans, before there is one more
PARTS = {"plan": 1, "tokens": 2, "labels": 4}  # enum ballast_part
_HEAD = struct.Struct("=10Q16s8Q")  # struct ballast_plan_head
_POOL = slice(11, 13)
unpack_head = _HEAD.unpack_from

Found = Tuple[Tuple[Any, ...], Any, Optional[Dict[str, Any]]]  # numbers, plan or why it is refused, pool


class _Stream(ctypes.Structure):
    """struct ballast_plan_stream."""

    _fields_ = [("tokens_max", ctypes.c_uint64), ("ranks", ctypes.c_uint32), ("rank", ctypes.c_uint32),
                ("dp", ctypes.c_uint32), ("micro_batches", ctypes.c_uint32), ("parts", ctypes.c_uint32),
                ("token_bytes", ctypes.c_uint32), ("slab", ctypes.c_void_p), ("slab_bytes", ctypes.c_uint64),
                ("fd", ctypes.c_int32), ("id", ctypes.c_uint32), ("frame_bytes", ctypes.c_uint64),
                ("buffer", ctypes.c_void_p), ("capacity", ctypes.c_uint64), ("begin", ctypes.c_uint64),
                ("end", ctypes.c_uint64), ("waited_ns", ctypes.c_uint64), ("frame", ctypes.c_uint8 * 64),
                ("follows", ctypes.c_uint64), ("step", ctypes.c_uint64), ("index", ctypes.c_uint64),
                ("step_micro_batches", ctypes.c_uint64), ("plan_digest", ctypes.c_uint8 * 16)]


def _function(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype = result
    function.argtypes = arguments or None
    return function


def _at(address: int) -> Any:
    """A pointer that C takes without anything being made for the call."""
    return ctypes.byref(ctypes.c_char.from_address(address))


first_byte = ctypes.c_char.from_buffer  # of what can be written: byref of it is its pointer
byref, py_object = ctypes.byref, ctypes.py_object


class _Python(ctypes.Structure):
    """struct ballast_plan_python."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("PyObject_GetBuffer", "PyBuffer_Release")]


_python = _Python(*(ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p) for name, _ in _Python._fields_))


class Library:
    def __init__(self, path: str):
        self.path = path
        known, locked = ctypes.CDLL(path), ctypes.PyDLL(path)
        p, n = ctypes.c_void_p, ctypes.c_size_t
        version = _function(known.ballast_plan_version, ctypes.c_uint32)()
        if version != VERSION:
            raise AttributeError(f"its functions for Python are of version {version}, not {VERSION}")
        self.create = _function(known.ballast_plan_create, p, p, p)
        self.destroy = _function(known.ballast_plan_destroy, None, p)
        self.read = _function(known.ballast_plan_read, ctypes.c_int, p, p, ctypes.c_char_p, n)
        self.why = _function(known.ballast_plan_why, ctypes.c_int, p, p, n)
        self.columns = _function(known.ballast_plan_columns, ctypes.c_int64, p, p, p)
        self.place = _function(known.ballast_plan_place, None, p, p)
        self.hash = _function(known.ballast_plan_hash, ctypes.c_uint64, p)
        # called for every batch, with pointers that are ctypes' own already: nothing is converted
        self.gather = _function(known.ballast_plan_gather, ctypes.c_int)
        # these wait for nothing and keep the interpreter, which is cheaper, and threads that share a client by mistake
        # get errors and not each other's buffers
        self.fill = _function(locked.ballast_plan_fill, ctypes.c_int)
        self.next = _function(locked.ballast_plan_next, ctypes.c_int)
        self.release = _function(locked.ballast_plan_release, ctypes.c_int)


class _Memory(ctypes.c_char):
    """A plan of the library's, for as long as a pointer to it is anywhere: the garbage collector does not see those, so
    it never takes this before all that has one is gone."""

    @classmethod
    def of(cls, address: int, library: Library) -> "_Memory":
        self = cls.from_address(address)
        self.address, self.destroy = address, library.destroy
        return self

    def __del__(self) -> None:
        self.destroy(self.address)


class NativePlan:
    """What Plan is, in memory of the library that other batches had before. Tables are made when they are asked for."""

    def __init__(self, library: Library, rank: int, ranks: int):
        self.library = library
        self.head = bytearray(_HEAD.size)
        self._head = first_byte(self.head)  # it stays where it is for as long as this lives
        address = library.create(byref(self._head), byref(_python))
        if not address:
            raise MemoryError("libballast has no memory for a plan")
        self.pointer = byref(_Memory.of(address, library))
        self.fill_unlocked, self.fill = library.gather, library.fill
        self.rank, self.ranks = rank, ranks
        self.known: Optional[Tuple[Table, List[Shard]]] = None

    def copied(self) -> "ReadPlan":
        return ReadPlan(self.documents, self.shards, self.rank)

    def why(self) -> Error:
        text = ctypes.create_string_buffer(WHY_BYTES)
        code = self.library.why(self.pointer, text, WHY_BYTES)
        return (ProtocolError if code == EPROTO else Error)(text.value.decode("utf-8", "replace"))

    def _columns(self) -> Any:
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

    fill = fill_unlocked = None

    def __init__(self, documents: Table, shards: List[Shard], rank: int):
        self.documents, self.shards, self.fragments = documents, shards, shards[rank].fragments

    def copied(self) -> "ReadPlan":
        return self


class Reader:
    """Takes batches from one stream, and gives them back. It knows where the slab is, and does not keep it. It is
    channel.direct for as long as that stream is open and the socket has its bytes as they are. While it is `ready`, how
    far the channel's buffer was looked at is known to it alone, and nothing else of the stream is anywhere; `leave` is
    for whoever reads from the channel then."""

    def __init__(self, library: Library, channel: "Channel", origin: "Origin", dp: int, slab: Optional["Slab"]):
        self.library = library
        self.channel = channel
        self.origin = origin
        base = None if slab is None else numpy.frombuffer(slab.memory, "u1").ctypes.data
        job, parts = origin.job, sum(PARTS[part] for part in {*origin.parts})
        self.stream = _Stream(job.tokens_max, job.cp, origin.rank, dp, job.micro_batches, parts, job.token_bytes, base,
                              0 if slab is None else slab.size, channel.fileno(), channel.stream)
        self.pointer = _at(ctypes.addressof(self.stream))
        self.ready = False
        self.taken: Optional[Tuple[NativePlan, int]] = None  # what `take` found, for `next` to look at
        self._buffer: Any = None  # of the channel, as the library knows it
        self.take, self._release = library.next, library.release
        self._plans: Deque[NativePlan] = deque()  # those that nothing else has are free

    def plan(self) -> NativePlan:
        """One that no batch has. They are found by their references, the oldest first, which mostly is one: Python
        functions that are called when a batch dies cost more."""
        plans = self._plans
        for _ in range(min(len(plans), LOOKED_AT)):
            plan = plans.popleft()
            plans.append(plan)
            if getrefcount(plan) == UNUSED:
                plan.known = None
                return plan
        plan = NativePlan(self.library, self.origin.rank, self.origin.job.cp)
        plans.append(plan)
        return plan

    def _found(self, head: Tuple[Any, ...], plan: NativePlan, code: int, data: Any) -> Found:
        """A batch that is not as most."""
        begin, size = head[_POOL]
        pool = decode(messages.POOL_PART, bytes(memoryview(data)[begin:begin + size])) if begin else None
        return head, plan.why() if code == REFUSED else plan, pool

    def read(self, data: bytes) -> Optional[Found]:
        """A StreamEnvelope that is a batch; None for any other."""
        plan = self.plan()
        code = self.library.read(plan.pointer, self.pointer, data, len(data))
        return None if code == OTHER else self._found(unpack_head(plan.head), plan, code, data)

    def next(self, deadline: Deadline) -> Union[Found, Tuple[()], None]:
        """What comes next on the channel, if it is a batch of this stream; () when the deadline passed. None for what
        the channel has to look at."""
        channel = self.channel
        if channel.direct is not self or channel.kept:
            return None
        if self.taken is not None:
            (plan, code), self.taken = self.taken, None
        else:
            plan = self.plan()
            if not self.ready:
                self._look()
            code = self.take(plan.pointer, self.pointer)
        if code == NOTHING:
            del plan  # it is free for the next
            if passed(deadline) or not wait(channel.fileno(), select.POLLIN, deadline):
                return ()
            return self.next(deadline)
        if code < 0 or code == OTHER:
            self.leave()
            if code < 0:
                raise channel.lose(Disconnected(f"connection to the daemon: {os.strerror(-code)}"))
            return None
        return self._found(unpack_head(plan.head), plan, code, channel.buffer)

    def _look(self) -> None:
        """At what the channel has in its buffer."""
        channel, stream, buffer = self.channel, self.stream, self.channel.buffer
        if buffer is not self._buffer:
            stream.buffer = ctypes.addressof(first_byte(buffer))
            stream.capacity = len(buffer)
            self._buffer = buffer
        stream.begin, stream.end = channel.begin, channel.end
        self.ready = True

    def leave(self) -> None:
        """To the channel, what is in its buffer."""
        if self.ready:
            self.stream.follows = 0
            self.channel.begin, self.channel.end = self.stream.begin, self.stream.end
            self.ready = False

    def release(self, plan: Any, waited_ns: int) -> bool:
        """Tells the daemon; False when nothing was sent."""
        if self.channel.direct is not self:
            return False
        if waited_ns:
            self.stream.waited_ns = waited_ns
        left = self._release(plan.pointer, self.pointer)
        if left > 0:
            stream = self.stream
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
