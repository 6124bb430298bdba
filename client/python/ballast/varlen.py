"""What stock attention implementations want to know of a batch, derived from its fragments.

A form that cannot say what the plan does is refused: dropping the rows that do not divide is how such
code goes wrong silently.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Tuple

from .columns import Table, ends, most, numpy, sums
from .errors import InvalidArgument, OutOfRange, ProtocolError, Unsupported

PER_DOCUMENT, ULYSSES, CONTIGUOUS = 2, 5, 6
ALL_GATHER, NEEDED_ONLY, ALL_TO_ALL = 1, 2, 3
INT32_MAX = 0x7FFFFFFF


class KeyRun(NamedTuple):
    """Rows of one document, both K and V, that one rank of the group sends another."""

    document: int
    start: int  # first key, from the start of the document part
    length: int
    row: int  # first row in the sender's arrays


class Thd(NamedTuple):
    """Prefix sums over documents, and the longest of them."""

    cu_seqlens: Any
    max_seqlen: int


class Llama3(NamedTuple):
    """A contiguous slice of rows against keys [key_begin, key_end) of the all-gathered sequence."""

    cu_seqlens_q: Any
    cu_seqlens_k: Any
    max_seqlen_q: int
    max_seqlen_k: int
    key_begin: int
    key_end: int


def int32(values: Any) -> Any:
    """A column of 32 bits; OutOfRange beyond."""
    if most(values) > INT32_MAX:
        raise OutOfRange("a sum of lengths is beyond 32 bits")
    return numpy.asarray(values, "int32") if numpy is not None else list(values)


class Varlen:
    """Mixed into Batch."""

    rows: int
    pad_rows: int
    group_rank: int
    group_ranks: int
    layout: int
    exchange: int
    tokens_total: int
    documents: Table
    fragments: Table
    shards: List[Any]

    def cu_seqlens(self) -> Tuple[Any, Any]:
        """Of this rank's fragments: query side (prefix sums of lengths) and key side (prefix sums of
        start + length), pad rows not included."""
        fragments = self.fragments
        return int32(sums(fragments.length)), int32(sums(ends(fragments.start, fragments.length)))

    def max_seqlens(self) -> Tuple[int, int]:
        """The longest query and key side of this rank's fragments."""
        return most(self.fragments.length), most(ends(self.fragments.start, self.fragments.length))

    def order(self) -> Any:
        """order[g] is where row g of the packed sequence (documents one after the other, then pad rows)
        lies among the ranks' rows one rank after the other, as an all-gather leaves them. Its inverse is
        the order in which ranks own rows."""
        rows = self.rows * self.group_ranks
        if sum(shard.rows - shard.pad_rows for shard in self.shards) != self.tokens_total:
            raise ProtocolError("the ranks of this batch do not own every row of it")
        if rows > INT32_MAX:
            raise OutOfRange("a sequence of more than 2^31 rows")
        order = numpy.empty(rows, "int32") if numpy is not None else [0] * rows
        first_rows = sums(self.documents.length)
        pads = self.tokens_total
        for rank, shard in enumerate(self.shards):
            first = rank * shard.rows
            for document, start, length, row in shard.fragments:
                begin, row = int(first_rows[document]) + start, first + row
                order[begin:begin + length] = _run(row, length)
            order[pads:pads + shard.pad_rows] = _run(first + shard.rows - shard.pad_rows, shard.pad_rows)
            pads += shard.pad_rows
        return order

    def key_index(self, order: Any) -> Any:
        """The K/V rows that the key side of `cu_seqlens` counts, for kernels that want them packed: one
        index into the all-gathered rows for every key of every fragment, out of `order`."""
        keys = sum(int(end) for end in ends(self.fragments.start, self.fragments.length))
        if keys > INT32_MAX:
            raise OutOfRange("more than 2^31 keys")
        first_rows = sums(self.documents.length)
        pieces = []
        for document, start, length, _ in self.fragments:
            begin = int(first_rows[document])
            pieces.append(order[begin:begin + start + length])
        if numpy is None:
            return [row for piece in pieces for row in piece]
        return numpy.concatenate(pieces) if pieces else numpy.empty(0, "int32")

    def key_runs(self, reader: int, owner: int) -> List[KeyRun]:
        """What rank `reader` of the group needs of rank `owner`'s keys, in the order of the owner's rows,
        where only needed keys are exchanged. Both compute the same list."""
        if reader == owner or not (0 <= reader < self.group_ranks and 0 <= owner < self.group_ranks):
            raise InvalidArgument(f"ranks {reader} and {owner} are not two of {self.group_ranks}")
        sees: dict = {}
        for document, start, length, _ in self.shards[reader].fragments:
            sees[document] = max(sees.get(document, 0), start + length)
        return [KeyRun(document, start, min(length, sees[document] - start), row)
                for document, start, length, row in self.shards[owner].fragments
                if start < sees.get(document, 0)]

    def exchange_counts(self) -> Tuple[List[int], List[int]]:
        """(sent, received) rows per rank of the group, as a collective with counts takes them: K/V rows
        for all-gather and needed-only; for all-to-all the rows of Q, K and V of a share of the heads."""
        me, ranks = self.group_rank, range(self.group_ranks)
        if self.exchange == NEEDED_ONLY:
            sent = [0 if r == me else sum(run.length for run in self.key_runs(r, me)) for r in ranks]
            received = [0 if r == me else sum(run.length for run in self.key_runs(me, r)) for r in ranks]
            return sent, received
        rows = self.rows if self.exchange in (ALL_GATHER, ALL_TO_ALL) else 0
        counts = [0 if r == me else rows for r in ranks]
        return counts, list(counts)

    def _check_divided(self, form: str) -> None:
        chunks = 2 * self.group_ranks
        if self.layout != PER_DOCUMENT and self.group_ranks > 1:
            raise Unsupported(f"{form} cuts every document for every rank, and this batch has layout "
                              f"{self.layout}; set sharding.layouts = per-document")
        for i, length in enumerate(self.documents.length if self.group_ranks > 1 else ()):
            if length % chunks != 0:
                raise Unsupported(f"{form} needs documents of a multiple of {chunks} tokens, and document {i} "
                                  f"of this batch has {length}; take cu_seqlens")
        if self.rows * self.group_ranks != self.tokens_total:
            raise Unsupported(f"{form} has no pad rows, and this batch has "
                              f"{self.rows * self.group_ranks - self.tokens_total}; take cu_seqlens")

    def thd(self) -> Thd:
        """What Megatron and TransformerEngine take for THD input with context parallelism: prefix sums
        over whole documents, the same on every rank. Layout per-document (or one rank), every document a
        multiple of 2 * group_ranks, no pad rows; Unsupported otherwise."""
        self._check_divided("the THD form")
        return Thd(int32(sums(self.documents.length)), most(self.documents.length))

    def zigzag(self) -> Thd:
        """ring-flash-attention's zigzag varlen: likewise, of this rank's rows."""
        self._check_divided("the zigzag form")
        lengths = [int(length) // self.group_ranks for length in self.documents.length]
        return Thd(int32(sums(lengths)), most(lengths))

    def llama3(self) -> Llama3:
        """ring-flash-attention's llama3 varlen. Layouts of contiguous shards (ulysses) or one rank; pad
        rows are one more document at the end."""
        if self.layout not in (ULYSSES, CONTIGUOUS) and self.group_ranks > 1:
            raise Unsupported(f"the llama3 form takes contiguous slices, and this batch has layout "
                              f"{self.layout}; set sharding.layouts = ulysses")
        rows = self.rows * self.group_ranks
        if rows > INT32_MAX:
            raise OutOfRange("a sequence of more than 2^31 rows")
        first = self.group_rank * self.rows
        last = first + self.rows
        cuts = [int(row) for row in sums(self.documents.length)]
        spans = [*zip(cuts, cuts[1:]), (cuts[-1], rows)]
        parts = [(begin, max(begin, first), min(end, last)) for begin, end in spans]
        parts = [part for part in parts if part[1] < part[2]]
        q = [end - start for _, start, end in parts]
        k = [end - begin for begin, _, end in parts]
        return Llama3(int32(sums(q)), int32(sums(k)), most(q), most(k), parts[0][0] if parts else last, last)


def _run(first: int, length: int) -> Any:
    if numpy is not None:
        return numpy.arange(first, first + length, dtype="int32")
    return range(first, first + length)
