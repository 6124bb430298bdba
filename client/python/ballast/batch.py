"""A micro-batch as one rank sees it.

Everything that a caller will index with is checked once, here, against the slab and the job. A daemon
that sends nonsense is a ProtocolError.
"""

from __future__ import annotations

import enum
import operator
import struct
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, NoReturn, Optional, Tuple

from . import pool
from .columns import Table, numpy
from .errors import DataLoss, Error, InvalidArgument, ProtocolError, Released, Stale
from .gather import destination, new, type_name
from .native import ESTALE, ITEM_BYTES, TYPES, Reader, byref, first_byte, py_object, unpack_head
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
_NOT_FOR_C = (KeyError, TypeError, ValueError, BufferError)  # another type, strided, empty, or not to be written
_SLOT_TOKENS = 14
create: Callable[..., "Batch"] = object.__new__


class Origin(NamedTuple):
    """What the batches of a stream have in common."""

    job: "Job"
    connection: int  # its number
    parts: Tuple[str, ...]
    rank: int  # in the context-parallel group


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
    """Batch's method for it: one call of libballast, where that is there and takes the array. The columns have emptied
    the caches by the time of the next one, so what counts is how much of the interpreter is needed for it."""
    kind, array, pointer = type, ndarray, py_object

    def gather(self: "Batch", dtype: Any = "int32", out: Any = None) -> Any:
        fill = self._fill
        if fill is not None and kind(out) is array:
            try:
                longer = fill(self._pointer, number, pointer(out))
                if longer == 0:
                    return out
                if longer == 1:
                    return out[:self.rows]
            except not_for_c:
                pass
        return self._gather(column, number, dtype, out)

    not_for_c = _NOT_FOR_C
    gather.__name__, gather.__doc__ = column, f"gather(\"{column}\")"
    return gather


def _number(at: int) -> Any:
    """Batch's property for a number of the head."""
    return property(lambda self: (self._head or self._read_head())[at])


def _common(name: str) -> Any:
    get = operator.attrgetter("_origin." + name)
    return property(lambda self: get(self))


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
    _head: Optional[Tuple[Any, ...]] = None
    _copy: Optional[bytearray] = None  # of a slot that is fetched: what the slab would have
    _missing = 0  # bytes of it still to come
    _seen: Any = None  # the slot as an array, once it was asked for
    _views: Optional[List[Any]]  # that it was looked at by, None: it was not looked at where it lies

    if TYPE_CHECKING:
        dp: int
        plan_digest: bytes
        loss_denominator: int
        label_tokens: int
        parts: Tuple[str, ...]
        connection: int
        _slab_offset: int
        _slot_bytes: int
        _slot_generation: int
        _payload_hash: int
        _job: Job
    else:
        dp, _slab_offset, _slot_bytes, _slot_generation, _payload_hash = map(_number, (1, 4, 5, 6, 7))
        loss_denominator, label_tokens, plan_digest, tokens_total = map(_number, (8, 9, 10, 13))
        layout, exchange, rows, pad_rows = map(_number, (15, 16, 17, 18))
        _job, connection, parts, group_rank = map(_common, Origin._fields)

    def _begin(self, client: "Client", origin: Origin, plan: Any, step: int, index: int, slab: Optional[Slab],
               reader: Optional[Reader]) -> "Batch":
        """What few look at stays with the plan until then. Nothing that is looked at for each batch may be a default of
        the class, or come later: what all batches have first is found faster. It is no __init__, which only C can call."""
        self.step, self.index, self.held, self._views = step, index, True, None
        self._client, self._origin, self._plan, self._pointer = client, origin, plan, plan.pointer
        self._reader = reader  # that took it
        self._fill = plan.fill  # libballast's, while the batch can be read
        self._slab = slab  # where the slot is: its header at _offset, then _slot_bytes
        return self

    @classmethod
    def judged(cls, client: "Client", origin: Origin, head: Tuple[Any, ...], plan: Any, part: Optional[Dict[str, Any]],
               slab: Optional[Slab], fetches: bool = False) -> "Batch":
        """`head` are the numbers of `read` or of native.Reader, `part` its pool's."""
        step, _, index = head[:3]
        self = create(cls)._begin(client, origin, plan, step, index, None, client._reader)
        self._head, job = head, origin.job
        if part is not None:
            self.pool = pool.read(part, self.dp, self.index, self.tokens_total, origin.rank, job.cp, job)
        size, offset, expected = self._slot_bytes, self._offset, head[_SLOT_TOKENS] * job.token_bytes
        if (slab is not None and 0 < size == expected and offset % SLOT_HEADER_BYTES == 0
                and offset + SLOT_HEADER_BYTES + size <= slab.size):
            self._slab = slab
        else:
            self._place(expected, slab, client.options.wants_slots, fetches)
        return self

    @property
    def _offset(self) -> int:
        return self._slab_offset if self._copy is None else 0

    def _read_head(self) -> Tuple[Any, ...]:
        self._head = unpack_head(self._plan.head)
        return self._head

    @property
    def micro_batches(self) -> int:
        count: int = (self._head or self._read_head())[3]
        return count or self._origin.job.micro_batches

    @property
    def group_ranks(self) -> int:  # type: ignore[override]
        return self._origin.job.cp

    @property
    def generation(self) -> int:
        return self._origin.job.generation

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
            self._copy, self._views = bytearray(SLOT_HEADER_BYTES + size), []
            _GENERATION.pack_into(self._copy, 0, self._slot_generation)
            self._missing = size
            self._plan.place(self._copy)
        else:
            raise impossible("its slot is not within the slab")

    @property
    def _slot(self) -> Any:
        """Its tokens with successors; None without one."""
        memory = self._slab.view if self._slab is not None else self._copy
        if self._seen is None and memory is not None:
            self._views = self._views or []
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

    def _gather(self, column: str, number: int, dtype: Any, out: Any) -> Any:
        """The same to a new array, of a large batch, without libballast, and where there is something to refuse."""
        fill, name = self._fill, type_name(dtype) if out is None else ""
        if fill is not None and out is None:
            result = self._client._spare.take(self.rows, TYPES[name])
            if fill(self._pointer, number, py_object(result)) == 0:
                return result
        memory = self._slab, self._copy  # stay while C reads, whatever another thread releases
        self._check()
        if column != "positions" and column not in self.parts:
            raise InvalidArgument(f"{column} were not among parts")
        plan, rows, result = self._plan, self.rows, out
        if out is None:
            result = new(rows, name) if numpy is None else self._client._spare.take(rows, TYPES[name])
        if plan.fill_unlocked is not None and type(result) is ndarray and result.ndim == 1 and len(result) >= rows:
            try:
                code = plan.fill_unlocked(plan.pointer, number, ITEM_BYTES[result.dtype], byref(first_byte(result)))
            except _NOT_FOR_C:
                code = None
            if code == 0:
                return result if len(result) == rows else result[:rows]
            if code == ESTALE:
                self._stale()
        del memory
        return self._gather_python(column, result, out)

    def _gather_python(self, column: str, result: Any, out: Any) -> Any:
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
            self._views = [*(self._views or ()), view]
        else:
            view = numpy.frombuffer(memoryview(view), view.dtype)  # the base of all that is sliced from it
            self._views = [*(self._views or ()), weakref.ref(view)]
        return view

    @property
    def viewed(self) -> bool:
        """Whether a view of it is alive."""
        return numpy is not None and any(view() is not None for view in self._views or ())

    def release(self) -> None:
        """The batch is no longer needed: its credit brings another."""
        client = self._client
        if not self.held or not client._usable:
            self._check()
        try:
            self.held, self._fill = False, None
            if self._views and self.viewed:
                client._lingering = True
            else:
                client._give_back(self)
        except Error:
            raise
        except BaseException:
            client._drop_released()
            raise

    def _end(self) -> None:
        """It is nobody's any more."""
        self.held, self._fill = False, None

    def _let_go(self) -> None:
        """Its slot is not this batch's any more."""
        self._slab = None
        if self._views is not None:
            for view in self._views if numpy is None else ():
                view.release()
            self._views = self._copy = self._seen = None

    def __getstate__(self) -> Dict[str, Any]:
        """What is pickled or copied knows its plan, and is released."""
        self._head = self._head or self._read_head()
        gone = dict.fromkeys(("_client", "_reader", "_fill", "_pointer", "_slab", "_copy", "_seen", "_views"))
        return {**self.__dict__, **gone, "_plan": self._plan.copied(), "held": False}

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
    return (identity["step"], identity["dp"], identity["index"], *(message[name] for name in _HEAD), 0, 0, plan.tokens,
            plan.slot_tokens, plan.layout, plan.exchange, plan.rows, plan.pad_rows), plan
