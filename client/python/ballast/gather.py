"""One rank's rows out of a slot, as the columns a model takes.

A slot holds the tokens of all parts of a micro-batch in row order, unsigned, then a successor token for
each part that is not its document's last. A rank's rows are its fragments one after the other, then pad
rows. Fragments that follow each other in the slot are copied as one run; what differs at the ends of
parts is set afterwards, all at once.
"""

from __future__ import annotations

import array
import functools
import operator
from typing import Any, List, Tuple

from .columns import Table, each, ends, nonzero, numpy, sums, take
from .errors import InvalidArgument

LABEL_NONE = -100
LINE_BYTES = 64  # of the processor's caches
TYPES = {"int32": "i", "int64": "q"}


def type_name(dtype: Any) -> str:
    """"int32" or "int64", of a name or of numpy's or torch's type."""
    if type(dtype) is str and dtype in TYPES:
        return dtype
    name = getattr(dtype, "__name__", None) or str(dtype)
    name = name.rpartition(".")[2]
    if name not in TYPES:
        raise InvalidArgument(f"type {dtype} is neither int32 nor int64")
    return name


def new(rows: int, name: str) -> Any:
    """Without numpy."""
    return array.array(TYPES[name], bytes(rows * array.array(TYPES[name]).itemsize))


def destination(out: Any, rows: int) -> Any:
    """The first `rows` of the caller's array, to be written: numpy array or memoryview."""
    if numpy is not None:
        into = out if type(out) is numpy.ndarray else numpy.asarray(out)
        fits = into.dtype.kind == "i" and into.dtype.itemsize in (4, 8)
    else:
        into = memoryview(out)
        fits = into.format in TYPES.values()
    if not fits or into.ndim != 1:
        raise InvalidArgument("out is not a flat array of int32 or int64")
    if len(into) < rows:
        raise InvalidArgument(f"{rows} rows do not fit an array of {len(into)}")
    return into if len(into) == rows else into[:rows]


class _Counting:
    """0, 1, 2, ... of each type, grown as needed and shared by all."""

    def __init__(self) -> None:
        self.arrays: dict = {}

    def to(self, end: int, dtype: Any) -> Any:
        known = self.arrays.get(dtype)
        if known is None or len(known) < end:
            known = self.arrays[dtype] = numpy.arange(max(end, 1 << 16), dtype=dtype)
        return known


_counting = _Counting()


def _widen(piece: Any, out: Any) -> None:
    """out[:len(piece)] = piece. numpy takes twice as long where the vectors that it writes cross cache lines, which is
    where malloc puts large arrays: up to the next line first."""
    first = min(-out.__array_interface__["data"][0] % LINE_BYTES // out.itemsize, len(piece))
    out[:first] = piece[:first]
    out[first:len(piece)] = piece[first:]


class Gather:
    """Which rows of a slot a rank reads, worked out when they are first asked for. `rest` is what of each
    document comes after its part."""

    def __init__(self, documents: Table, fragments: Table, rows: int, tokens: int, rest: Any):
        self.rows = rows
        self.documents = documents
        self.fragments = fragments
        self.rest = rest
        self.tokens_end = tokens
        self.slot_tokens = tokens + nonzero(rest)  # with successors

    @functools.cached_property
    def firsts(self) -> Any:
        """Of each document in the slot."""
        return sums(self.documents.length)

    @functools.cached_property
    def row_ends(self) -> Any:
        return sums(self.fragments.length)

    @functools.cached_property
    def owned(self) -> int:
        return int(self.row_ends[-1])

    @functools.cached_property
    def runs(self) -> List[Tuple[int, int]]:
        """(begin, end) in the slot."""
        fragments = self.fragments
        if len(fragments) == 0:
            return []
        first = each(operator.add, take(self.firsts, fragments.document), fragments.start)
        behind = ends(first, fragments.length)
        if numpy is not None:
            cuts = (first[1:] != behind[:-1]).nonzero()[0]
            begins = first[[0, *(cuts + 1).tolist()]].tolist()
            stops = behind[[*cuts.tolist(), -1]].tolist()
            return list(zip(begins, stops))
        cut = [i for i in range(1, len(first)) if first[i] != behind[i - 1]]
        return [(first[a], behind[b - 1]) for a, b in zip([0, *cut], [*cut, len(first)])]

    @functools.cached_property
    def lasts(self) -> Tuple[Any, Any, Any]:
        """Rows at the end of a part: those of a document's end, and of the others (row, successor)."""
        fragments = self.fragments
        document = fragments.document
        rest = take(self.rest, document)
        inner = each(operator.sub, take(self.documents.length, document), ends(fragments.start, fragments.length))
        row_ends = self.row_ends
        if numpy is not None:
            last = inner == 0
            none = row_ends[1:][last & (rest == 0)] - 1
            if self.slot_tokens == self.tokens_end:
                return none, (), ()
            some = last & (rest != 0)
            before = sums(self.rest != 0)
            return none, row_ends[1:][some] - 1, self.tokens_end + before[document[some]]
        at = [i for i, left in enumerate(inner) if left == 0]
        before = sums(map(bool, self.rest))
        return ([row_ends[i + 1] - 1 for i in at if not rest[i]], [row_ends[i + 1] - 1 for i in at if rest[i]],
                [self.tokens_end + before[document[i]] for i in at if rest[i]])

    def _copy(self, pieces: List[Any], out: Any) -> None:
        """The pieces one after the other, as many rows as they have."""
        if numpy is None:
            row = 0
            for piece in pieces:
                out[row:row + len(piece)] = array.array(out.format, piece)
                row += len(piece)
        elif len(pieces) == 1:
            _widen(pieces[0], out)
        elif pieces:
            owned = sum(map(len, pieces))
            numpy.concatenate(pieces, out=out[:owned], casting="unsafe")

    def _pad(self, out: Any, value: int) -> None:
        if numpy is not None:
            if self.rows > self.owned:
                out[self.owned:] = value
        elif self.rows > self.owned:
            out[self.owned:] = array.array(out.format, [value]) * (self.rows - self.owned)

    def tokens(self, slot: Any, out: Any) -> None:
        self._copy([slot[begin:end] for begin, end in self.runs], out)
        self._pad(out, 0)

    def labels(self, slot: Any, out: Any) -> None:
        """The tokens one further on; where a part ends, what comes there is set after."""
        pieces = []
        for begin, end in self.runs:
            pieces.append(slot[begin + 1:end + 1])
            if end == len(slot) and end != self.runs[-1][1]:  # nothing follows: a row to be set after
                pieces.append(slot[:1])
        self._copy(pieces, out)
        end_rows, next_rows, next_at = self.lasts
        if numpy is not None:
            out[end_rows] = LABEL_NONE
            if len(next_rows):
                out[next_rows] = slot[next_at]
        else:
            for row in end_rows:
                out[row] = LABEL_NONE
            for row, at in zip(next_rows, next_at):
                out[row] = slot[at]
        self._pad(out, LABEL_NONE)

    def positions(self, out: Any) -> None:
        starts, lengths = self.fragments.start, self.fragments.length
        if numpy is not None:
            stops = ends(starts, lengths).tolist()
            counting = _counting.to(max(stops, default=0), out.dtype)
            rows = self.row_ends.tolist()
            into = out
            if out.dtype.isnative and out.flags.writeable:  # slices of a memoryview are made faster
                counting, into = memoryview(counting), memoryview(out)
            for row, row_end, start, stop in zip(rows, rows[1:], starts.tolist(), stops):
                into[row:row_end] = counting[start:stop]
        else:
            self._copy([range(start, start + length) for start, length in zip(starts, lengths)], out)
        self._pad(out, 0)
