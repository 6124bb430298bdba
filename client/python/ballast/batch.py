"""A micro-batch as one rank sees it.

Everything that a caller will index with is checked once, here, against the slab and the job. A daemon
that sends nonsense is a ProtocolError.
"""

from __future__ import annotations

import ctypes
import enum
import struct
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple

from . import pool
from .columns import Table, numpy
from .errors import DataLoss, Error, InvalidArgument, ProtocolError, Released, Stale
from .gather import destination, new
from .native import ESTALE, ITEM_BYTES, first_byte
from .plan import Plan, Shard, impossible
from .slab import SLOT_HEADER_BYTES, Slab
from .varlen import Varlen

if TYPE_CHECKING:
    from .client import Client
    from .link import Job


ndarray = None if numpy is None else numpy.ndarray
_GENERATION = struct.Struct("<Q")
_HEAD = ("micro_batches", "slab_offset", "slab_bytes", "slot_generation", "payload_hash", "loss_denominator", "label_tokens",
         "plan_digest")


class Layout(enum.IntEnum):
    PER_SEQUENCE = 1
    PER_DOCUMENT = 2
    VARIABLE_DEGREE = 3
    HYBRID = 4
    ULYSSES = 5
    CONTIGUOUS = 6


class Exchange(enum.IntEnum):
    NONE = 0
    ALL_GATHER = 1
    NEEDED_ONLY = 2
    ALL_TO_ALL = 3


def _column(column: str, number: int) -> Callable[..., Any]:
    """Batch's method for it: one call of libballast, where that is there and takes the array."""
    free, c_number = column == "positions", ctypes.c_int(number)

    def gather(self: "Batch", dtype: Any = "int32", out: Any = None) -> Any:
        memory = self._slab, self._copy  # stay while C reads, whatever another thread releases
        if not self.held or not self._client._usable:
            self._check()
        if not free and column not in self.parts:
            raise InvalidArgument(f"{column} were not among parts")
        plan, rows = self._plan, self.rows
        result = new(rows, dtype) if out is None else out
        if plan.fill is None or type(result) is not ndarray or result.ndim != 1 or len(result) < rows:
            return self._gather(column, result, out)
        try:
            code = plan.fill(plan.pointer, c_number, ITEM_BYTES[result.dtype], first_byte(result))
        except (KeyError, TypeError, ValueError, BufferError):  # another type, strided, empty, or not to be written
            return self._gather(column, result, out)
        if code == 0:
            return result if len(result) == rows else result[:rows]
        if code == ESTALE:
            self._stale()
        return self._gather(column, result, out)

    gather.__name__, gather.__doc__ = column, f"gather(\"{column}\")"
    return gather


class Batch(Varlen):
    """One micro-batch, held until `release` (or the end of a `with`, or the next turn of a loop).

    step, dp, index       which one
    rows, pad_rows        of this rank, padding included; pad rows are the last
    documents, fragments  tables: documents.length is a column, documents[0].length one
    group_rank, group_ranks, shards   the context-parallel group, shards[group_rank] is this rank
    layout, exchange      how rows are dealt to the group, and what attention exchanges
    loss_denominator, label_tokens    of the whole step: divide the sum of losses by the first
    micro_batches         of the step, per data-parallel replica
    plan_digest           of the whole step, equal on every rank
    parts                 which of "tokens" and "labels" this rank has
    pool                  this rank's part of pooled attention, or None
    waited                seconds that `next` waited for it
    """

    waited = 0.0
    pool: Optional[pool.Pool] = None
    held = True
    _plan: Any = None
    _views: Sequence[Any] = ()
    _slab: Optional[Slab] = None  # where the slot is: its header at _offset, then _slot_bytes
    _copy: Optional[bytearray] = None  # the same of a slot that is fetched
    _missing = 0  # bytes of it still to come
    _seen: Any = None  # as an array, once it was asked for

    def __init__(self, client: "Client", head: Tuple[Any, ...], plan: Any, part: Optional[Dict[str, Any]], job: "Job",
                 slab: Optional[Slab], fetches: bool = False):
        """`head` are the numbers of `read` or of native.Reader."""
        (self.step, self.dp, self.index, self.micro_batches, self._offset, self._slot_bytes, self._slot_generation,
         self._payload_hash, self.loss_denominator, self.label_tokens, self.plan_digest, _, _, _, self.tokens_total,
         slot_tokens, self.layout, self.exchange, self.rows, self.pad_rows) = head
        options = client.options
        self._client = client
        self._plan = plan
        self._job = job
        self.parts = options.parts
        self.group_rank = options.cp
        self.group_ranks = job.cp
        self.connection = client._link.connections
        self.generation = job.generation
        if self.micro_batches == 0:
            self.micro_batches = job.micro_batches
        if part is not None:
            self.pool = pool.read(part, self.dp, self.index, self.tokens_total, options.cp, job.cp, job)
        size, offset = self._slot_bytes, self._offset
        if (slab is not None and 0 < size == slot_tokens * job.token_bytes and offset % SLOT_HEADER_BYTES == 0
                and offset + SLOT_HEADER_BYTES + size <= slab.size):
            self._slab = slab
        else:
            self._place(slot_tokens * job.token_bytes, slab, options.wants_slots, fetches)

    def __del__(self) -> None:
        plan = self._plan
        if plan is not None and plan.free is not None:
            plan.free.append(plan)

    @property
    def documents(self) -> Table:  # type: ignore[override]
        return self._plan.documents

    @property
    def shards(self) -> List[Shard]:  # type: ignore[override]
        return self._plan.shards

    @property
    def fragments(self) -> Table:  # type: ignore[override]
        return self._plan.fragments

    def _place(self, expected: int, slab: Optional[Slab], wanted: bool, fetches: bool) -> None:
        """Judges a slot that is not in the slab; what is to be fetched gets its memory here."""
        size = self._slot_bytes
        if size == 0:
            if wanted and self.tokens_total > 0:
                raise impossible("no slot, though tokens were asked for")
        elif slab is None and not (fetches and wanted):
            if wanted:
                raise impossible("a slot without a slab")
        elif size != expected:
            raise impossible("its slot is not as long as its documents")
        elif slab is None:
            self._copy = bytearray(SLOT_HEADER_BYTES + size)
            _GENERATION.pack_into(self._copy, 0, self._slot_generation)
            self._offset, self._missing = 0, size
            self._plan.place(self._copy)
        else:
            raise impossible("its slot is not within the slab")

    @property
    def _slot(self) -> Any:
        """Its tokens with successors; None without one."""
        memory = self._slab.view if self._slab is not None else self._copy
        if self._seen is None and memory is not None:
            begin = self._offset + SLOT_HEADER_BYTES
            bytes_ = memoryview(memory)[begin:begin + self._slot_bytes].toreadonly()
            if numpy is not None:
                self._seen = numpy.frombuffer(bytes_, f"<u{self._job.token_bytes}")
            else:
                self._seen = bytes_.cast("H" if self._job.token_bytes == 2 else "I")
        return self._seen

    def _fetched(self, payload: bytes) -> None:
        """The next bytes of a slot that comes over the connection."""
        assert self._copy is not None
        if len(payload) > self._missing:
            raise ProtocolError(f"the daemon sent more than the {self._slot_bytes} bytes of its batch")
        at = len(self._copy) - self._missing
        self._copy[at:at + len(payload)] = payload
        self._missing -= len(payload)

    def _verify(self) -> None:
        """Compares the bytes of the slot with their hash, where the daemon told one."""
        if self._payload_hash == 0 or self._slot is None or self._reused():
            return
        found = self._plan.hash(self._slot)
        if found is not None and found != self._payload_hash and not self._reused():
            raise DataLoss(f"the bytes of step {self.step}, index {self.index} hash to {found:016x}, not to "
                           f"{self._payload_hash:016x} as when they were read: they were damaged on the way, by "
                           "memory or a connection; the next call asks for them again")

    def _reused(self) -> bool:
        return self._slab is not None and self._slab.generation(self._offset) != self._slot_generation

    def _check(self) -> None:
        if not self.held:
            raise Released(f"step {self.step}, index {self.index} was released already; read a batch before "
                           "that, or keep what gather gave")
        self._client._enter()

    def gather(self, column: str, dtype: Any = "int32", out: Any = None) -> Any:
        """One column of this rank's rows, a copy: "tokens"; "labels" (the next token of the same document,
        -100 at its end and on pad rows); "positions" (from the start of the part, 0 on pad rows). Into
        `out` where it is given: a flat array of int32 or int64 with room for the rows. Stale when the slot
        was reused under a client that was silent for longer than its lease; then the batch comes again."""
        gather = _GATHERS.get(column)
        if gather is None:
            raise InvalidArgument(f"column {column} is none of tokens, labels, positions")
        return gather(self, dtype, out)

    def _gather(self, column: str, result: Any, out: Any) -> Any:
        """The same in Python."""
        into = destination(result, self.rows)
        if column == "positions":
            self._plan.gather(column, None, into)
        elif self._slot is None:  # an empty micro-batch: all padding
            self._plan.gather(column, numpy.empty(0, "<u2") if numpy is not None else (), into)
        else:
            self._check_slot()
            self._plan.gather(column, self._slot, into)
            self._check_slot()
        return result if out is None or numpy is None else into

    tokens = _column("tokens", 1)
    labels = _column("labels", 2)
    positions = _column("positions", 3)

    def check(self) -> None:
        """Raises Stale if the slot was reused; call it after reading a view. The batch then comes again,
        and all that came after it; release the ones held."""
        self._check()
        self._check_slot()

    def _check_slot(self) -> None:
        if self._reused():
            self._stale()

    def _stale(self) -> NoReturn:
        self._client._rewind(self)
        raise Stale(f"the slot of step {self.step}, index {self.index} was reused, as this rank was too slow; "
                    "release it, it comes again")

    def view(self) -> Any:
        """The tokens of the whole micro-batch where they lie, in document order, without a copy: a
        read-only array of uint16 or uint32 (a memoryview without numpy). It holds the slot: after
        `release` the slot goes back when the array and everything made of it is gone; a memoryview is
        invalid from then on. `check` after reading says whether it was this batch's all the time."""
        self._check()
        if self._slot is None:
            raise InvalidArgument("this batch has no tokens here: none were among parts, or it is empty")
        view = self._slot[:self.tokens_total]
        if numpy is None:
            self._views = [*self._views, view]
        else:
            view = numpy.frombuffer(memoryview(view), view.dtype)  # the base of all that is sliced from it
            self._views = [*self._views, weakref.ref(view)]
        return view

    @property
    def viewed(self) -> bool:
        """Whether a view of it is alive."""
        return numpy is not None and any(view() is not None for view in self._views)

    def release(self) -> None:
        """The batch is no longer needed: its credit brings another."""
        client = self._client
        if not self.held or not client._usable:
            self._check()
        try:
            self.held = False
            if self._views and self.viewed:
                client._lingering = True
            else:
                client._give_back(self)
        except Error:
            raise
        except BaseException:
            client._drop_released()
            raise

    def _let_go(self) -> None:
        """Its slot is not this batch's any more."""
        if self._views:
            for view in self._views if numpy is None else ():
                view.release()
            self._views = ()
        self._slab = self._copy = self._seen = None

    def __getstate__(self) -> Dict[str, Any]:
        """What is pickled or copied knows its plan, and is released."""
        return {**self.__dict__, "_client": None, "_plan": self._plan.copied(), "_slab": None, "_copy": None, "_seen": None,
                "_views": (), "held": False}

    def __enter__(self) -> "Batch":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.held:
            self.release()

    def __repr__(self) -> str:
        return (f"<ballast.Batch step {self.step} dp {self.dp} index {self.index}: {self.rows} rows, "
                f"{len(self.documents)} documents{'' if self.held else ', released'}>")


_GATHERS = {"tokens": Batch.tokens, "labels": Batch.labels, "positions": Batch.positions}


def read(message: Dict[str, Any], job: "Job", rank: int) -> Tuple[Tuple[Any, ...], Any]:
    """Head and plan of a BatchEnvelope, by Python alone."""
    identity = message["id"]
    if identity is None or len(message["plan_digest"]) != 16:
        raise impossible("id, plan, sharding or digest is missing")
    plan = Plan(message["plan"], job.tokens_max, job.cp, rank)
    return (identity["step"], identity["dp"], identity["index"], *(message[name] for name in _HEAD), 0, 0, 0, plan.tokens,
            plan.slot_tokens, plan.layout, plan.exchange, plan.rows, plan.pad_rows), plan
