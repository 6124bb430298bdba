"""libballast, where it is installed and numpy is there: the same plans and rows, as fast as in C.

Found by the name that the loader knows, or by $BALLAST_LIBRARY: a path, or `none` to do without. Only
what depends on bytes alone is asked of it (client/plan_columns.h); connections stay Python's.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import os
from typing import Any, Dict, List, Optional, Tuple

from .columns import Table, each, ends, numpy
from .errors import Error, InvalidArgument, ProtocolError
from .gather import Gather
from .plan import Document, Fragment, Shard
from .version import __version__

VERSION = 1
NAME = f"libballast.so.{__version__.partition('.')[0]}"
COLUMNS = {"tokens": 1, "labels": 2, "positions": 3}
WHY_BYTES = 256
HEAD, RANK = 6, 3  # numbers before those of the ranks, and of each


class _Job(ctypes.Structure):
    _fields_ = [("tokens_max", ctypes.c_uint64), ("ranks", ctypes.c_uint32), ("rank", ctypes.c_uint32)]


class _Memory:
    """Of the library for one plan, and for its numbers."""

    def __init__(self, library: "Library"):
        self.library = library
        self.pointer: int = library.create()
        if not self.pointer:
            raise MemoryError("libballast has no memory for a plan")
        self.why = ctypes.create_string_buffer(WHY_BYTES)
        self.reserve(4096)

    def reserve(self, numbers: int) -> None:
        self.numbers = numpy.empty(numbers, numpy.int64)
        self.address: int = self.numbers.ctypes.data

    def __del__(self) -> None:
        if getattr(self, "pointer", 0):
            self.library.destroy(self.pointer)


class Library:
    def __init__(self, path: str):
        self.path = path
        known = ctypes.CDLL(path)
        p, n = ctypes.c_void_p, ctypes.c_size_t
        known.ballast_plan_version.restype = ctypes.c_uint32
        version = known.ballast_plan_version()
        if version != VERSION:
            raise AttributeError(f"its functions for Python are of version {version}, not {VERSION}")
        self.create = _function(known.ballast_plan_create, p)
        self.destroy = _function(known.ballast_plan_destroy, None, p)
        self.read = _function(known.ballast_plan_read, ctypes.c_int64, p, ctypes.c_char_p, n, p, p, n, p, n)
        self.fill = _function(known.ballast_plan_gather, ctypes.c_int, p, ctypes.c_int, ctypes.c_int, p,
                              ctypes.c_uint32, p)
        self.free: List[_Memory] = []
        self.jobs: Dict[Tuple[int, int, int], Any] = {}

    def job(self, *key: int) -> Any:
        known = self.jobs.get(key)
        if known is None:
            known = self.jobs[key] = ctypes.pointer(_Job(*key))
        return known

    def plan(self, message: bytes, tokens_max: int, group_ranks: int, rank: int) -> "NativePlan":
        memory = self.free.pop() if self.free else _Memory(self)
        room = 4 * len(message) + 64
        if len(memory.numbers) < room:
            memory.reserve(2 * room)
        used = self.read(memory.pointer, message, len(message), self.job(tokens_max, group_ranks, rank),
                         memory.address, len(memory.numbers), memory.why, WHY_BYTES)
        if used < 0:
            self.free.append(memory)
            text = memory.why.value.decode("utf-8", "replace")
            raise ProtocolError(text) if used == -71 else Error(text)  # EPROTO
        return NativePlan(memory, memory.numbers[:used].copy(), group_ranks, rank)


def _function(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype = result
    function.argtypes = arguments
    return function


class NativePlan:
    """What Plan is; tables are made when they are asked for."""

    def __init__(self, memory: _Memory, numbers: Any, group_ranks: int, rank: int):
        self._memory: Optional[_Memory] = memory
        self._numbers = numbers
        self._ranks, self._rank = group_ranks, rank
        (self.tokens, self.slot_tokens, self.layout, self.exchange, self._document_count,
         self._fragment_count, *shards) = numbers[:HEAD + RANK * group_ranks].tolist()
        self._shards = shards
        self._slot: Any = None  # that was gathered from last, the bytes of its tokens, and where it is
        self._slot_bytes, self._slot_at = 2, None
        self.rows, self.pad_rows = shards[RANK * rank:RANK * rank + 2]

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_memory": None, "_slot": None}

    def let_go(self) -> None:
        if self._memory is not None:
            self._memory.library.free.append(self._memory)
            self._memory = self._slot = None

    @functools.cached_property
    def documents(self) -> Table:
        n = self._document_count
        first = HEAD + RANK * self._ranks
        table = self._numbers[first:first + len(Document._fields) * n].reshape(-1, n)
        return Table(Document, dict(zip(Document._fields, table)))

    @functools.cached_property
    def shards(self) -> List[Shard]:
        n = self._fragment_count
        table = self._numbers[len(self._numbers) - len(Fragment._fields) * n:].reshape(-1, n)
        found, first = [], 0
        for at in range(0, RANK * self._ranks, RANK):
            rows, pad_rows, count = self._shards[at:at + RANK]
            mine = dict(zip(Fragment._fields, table[:, first:first + count]))
            found.append(Shard(rows, pad_rows, Table(Fragment, mine)))
            first += count
        return found

    @property
    def fragments(self) -> Table:
        return self.shards[self._rank].fragments

    def _slowly(self) -> Gather:
        """For arrays that C does not take."""
        documents = self.documents
        rest = each(operator.sub, documents.document_length, ends(documents.offset, documents.length))
        return Gather(documents, self.fragments, self.rows, self.tokens, rest)

    def gather(self, column: str, slot: Any, into: Any) -> None:
        flags = into.flags
        if not (flags.c_contiguous and flags.writeable and into.dtype.isnative):
            getattr(self._slowly(), column)(*(() if column == "positions" else (slot,)), into)
            return
        memory = self._memory
        assert memory is not None
        if slot is not None and slot is not self._slot:
            self._slot, self._slot_bytes, self._slot_at = slot, slot.itemsize, slot.__array_interface__["data"][0]
        memory.library.fill(memory.pointer, COLUMNS[column], into.itemsize, self._slot_at, self._slot_bytes,
                            into.__array_interface__["data"][0])


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
