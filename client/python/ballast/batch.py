"""A micro-batch as one rank sees it.

Everything that a caller will index with is checked once, here, against the slab and the job. A daemon
that sends nonsense is a ProtocolError.
"""

from __future__ import annotations

import enum
import weakref
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from . import pool
from .columns import Table, numpy
from .errors import DataLoss, InvalidArgument, ProtocolError, Released, Stale
from .gather import destination, new
from .plan import Shard, impossible
from .plan import read as read_plan
from .slab import SLOT_HEADER_BYTES, Slab
from .varlen import Varlen

try:
    import xxhash
except ImportError:  # then payload hashes are not compared
    xxhash = None

if TYPE_CHECKING:
    from .client import Client
    from .link import Job


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

    def __init__(self, client: "Client", message: Dict[str, Any], job: "Job", slab: Optional[Slab], cp: int,
                 slot_wanted: bool, fetches: bool = False):
        if message["id"] is None or len(message["plan_digest"]) != 16:
            raise impossible("id, plan, sharding or digest is missing")
        plan = read_plan(message["plan"], job.tokens_max, job.cp, cp, client.library)
        self._client = client
        self.parts = client.options.parts
        self.step: int = message["id"]["step"]
        self.dp: int = message["id"]["dp"]
        self.index: int = message["id"]["index"]
        self.plan_digest: bytes = message["plan_digest"]
        self.layout: int = plan.layout
        self.exchange: int = plan.exchange
        self.loss_denominator: int = message["loss_denominator"]
        self.label_tokens: int = message["label_tokens"]
        self.micro_batches: int = message["micro_batches"] or job.micro_batches
        self.waited = 0.0
        self.tokens_total: int = plan.tokens
        self.group_rank = cp
        self.group_ranks = job.cp
        self.rows: int = plan.rows
        self.pad_rows: int = plan.pad_rows
        self.pool = pool.read(message["pool"], self.dp, self.index, plan.tokens, cp, job.cp, job)
        self._plan = plan
        self._views: List[Any] = []
        self._place(message, slab, job.token_bytes, slot_wanted, fetches)
        self.held = True
        self.connection = 0
        self.generation = 0

    @property
    def documents(self) -> Table:  # type: ignore[override]
        return self._plan.documents

    @property
    def shards(self) -> List[Shard]:  # type: ignore[override]
        return self._plan.shards

    @property
    def fragments(self) -> Table:  # type: ignore[override]
        return self._plan.fragments

    def _place(self, message: Dict[str, Any], slab: Optional[Slab], token_bytes: int, wanted: bool,
               fetches: bool) -> None:
        """Finds the slot, if there is one; what is to be fetched gets its memory here."""
        size, offset = message["slab_bytes"], message["slab_offset"]
        self._slab: Optional[Slab] = None
        self._slot: Any = None
        self._offset = offset
        self._slot_generation = message["slot_generation"]
        self._payload_hash = message["payload_hash"]
        self._missing = 0  # bytes still to be fetched
        if size == 0:
            if wanted and self.tokens_total > 0:
                raise impossible("no slot, though tokens were asked for")
            return
        if slab is None and not (fetches and wanted):
            if wanted:
                raise impossible("a slot without a slab")
            return
        if size != self._plan.slot_tokens * token_bytes:
            raise impossible("its slot is not as long as its documents")
        if slab is None:
            self._copy = bytearray(size)
            self._missing = size
            bytes_ = memoryview(self._copy).toreadonly()
        elif offset % SLOT_HEADER_BYTES != 0 or offset + SLOT_HEADER_BYTES + size > slab.size:
            raise impossible("its slot is not within the slab")
        else:
            self._slab = slab
            bytes_ = slab.view[offset + SLOT_HEADER_BYTES:offset + SLOT_HEADER_BYTES + size]
        if numpy is not None:
            self._slot = numpy.frombuffer(bytes_, "<u2" if token_bytes == 2 else "<u4")
        else:
            self._slot = bytes_.cast("H" if token_bytes == 2 else "I")

    def _fetched(self, payload: bytes) -> None:
        """The next bytes of a slot that comes over the connection."""
        if len(payload) > self._missing:
            raise ProtocolError(f"the daemon sent more than the {len(self._copy)} bytes of its batch")
        at = len(self._copy) - self._missing
        self._copy[at:at + len(payload)] = payload
        self._missing -= len(payload)

    def _verify(self) -> None:
        """Compares the bytes of the slot with their hash, where the daemon told one."""
        if self._slot is None or self._payload_hash == 0 or xxhash is None or self._reused():
            return
        found = xxhash.xxh3_64_intdigest(memoryview(self._slot).cast("B"))
        if found != self._payload_hash and not self._reused():
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
        self._check()
        if column not in ("tokens", "labels", "positions"):
            raise InvalidArgument(f"column {column} is none of tokens, labels, positions")
        if column != "positions" and column not in self.parts:
            raise InvalidArgument(f"{column} were not among parts")
        result = new(self.rows, dtype) if out is None else out
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

    def tokens(self, dtype: Any = "int32", out: Any = None) -> Any:
        return self.gather("tokens", dtype, out)

    def labels(self, dtype: Any = "int32", out: Any = None) -> Any:
        return self.gather("labels", dtype, out)

    def positions(self, dtype: Any = "int32", out: Any = None) -> Any:
        return self.gather("positions", dtype, out)

    def check(self) -> None:
        """Raises Stale if the slot was reused; call it after reading a view. The batch then comes again,
        and all that came after it; release the ones held."""
        self._check()
        self._check_slot()

    def _check_slot(self) -> None:
        if self._reused():
            self._client._rewind(self)
            raise Stale(f"the slot of step {self.step}, index {self.index} was reused, as this rank was too "
                        "slow; release it, it comes again")

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
            self._views.append(view)
        else:
            view = numpy.frombuffer(memoryview(view), view.dtype)  # the base of all that is sliced from it
            self._views.append(weakref.ref(view))
        return view

    @property
    def viewed(self) -> bool:
        """Whether a view of it is alive."""
        return numpy is not None and any(view() is not None for view in self._views)

    def release(self) -> None:
        """The batch is no longer needed: its credit brings another."""
        self._check()
        self._client._release(self)

    def _let_go(self) -> None:
        """Its slot is not this batch's any more."""
        for view in self._views if numpy is None else ():
            view.release()
        self._views = []
        self._slab = self._slot = None
        self._plan.let_go()

    def __getstate__(self) -> Dict[str, Any]:
        """What is pickled knows its plan, and is released."""
        return {**self.__dict__, "_client": None, "_slab": None, "_slot": None, "_views": [], "held": False}

    def __enter__(self) -> "Batch":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.held:
            self.release()

    def __repr__(self) -> str:
        return (f"<ballast.Batch step {self.step} dp {self.dp} index {self.index}: {self.rows} rows, "
                f"{len(self.documents)} documents{'' if self.held else ', released'}>")
