"""One rank's rows out of a slot, as the columns a model takes.

A slot holds the tokens of all parts of a micro-batch in row order, unsigned, then a successor token for
each part that is not its document's last. A rank's rows are its fragments one after the other, then pad
rows. Fragments that follow each other in the slot are copied as one run; what differs at the ends of
parts is set afterwards, all at once.
"""

from __future__ import annotations

import array
import operator
from typing import Any, List, Tuple

from .columns import Table, each, ends, numpy, sums, take
from .errors import InvalidArgument

LABEL_NONE = -100
TYPES = {"int32": "i", "int64": "q"}


def type_name(dtype: Any) -> str:
    """"int32" or "int64", of a name or of numpy's or torch's type."""
    name = getattr(dtype, "__name__", None) or str(dtype)
    name = name.rpartition(".")[2]
    if name not in TYPES:
        raise InvalidArgument(f"type {dtype} is neither int32 nor int64")
    return name


def new(rows: int, dtype: Any) -> Any:
    name = type_name(dtype)
    if numpy is not None:
        return numpy.empty(rows, name)
    return array.array(TYPES[name], bytes(rows * array.array(TYPES[name]).itemsize))


def destination(out: Any, rows: int) -> Any:
    """The first `rows` of the caller's array, to be written: numpy array or memoryview."""
    if numpy is not None:
        into = numpy.asarray(out)
        fits = into.dtype.kind == "i" and into.dtype.itemsize in (4, 8)
    else:
        into = memoryview(out)
        fits = into.format in TYPES.values()
    if not fits or into.ndim != 1:
        raise InvalidArgument("out is not a flat array of int32 or int64")
    if len(into) < rows:
        raise InvalidArgument(f"{rows} rows do not fit an array of {len(into)}")
    return into[:rows]


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


class Gather:
    """Which rows of a slot a rank reads, worked out once per batch."""

    def __init__(self, documents: Table, fragments: Table, rows: int):
        self.rows = rows
        self.lengths = fragments.length
        self.starts = fragments.start
        self.row_ends = sums(self.lengths)
        self.owned = int(self.row_ends[-1])
        first_rows = sums(documents.length)
        self.tokens_end = int(first_rows[-1])
        more = each(operator.ne, ends(documents.offset, documents.length), documents.document_length)
        before = sums(more)
        self.slot_tokens = self.tokens_end + int(before[-1])  # with successors
        first = take(first_rows, fragments.document)
        self.runs = self._runs(each(operator.add, first, self.starts))
        last = each(operator.eq, ends(self.starts, self.lengths), take(documents.length, fragments.document))
        self._last(fragments, last, more, before)

    def _runs(self, first: Any) -> List[Tuple[int, int]]:
        """(begin, end) in the slot."""
        if len(first) == 0:
            return []
        behind = ends(first, self.lengths)
        if numpy is not None:
            cuts = numpy.flatnonzero(first[1:] != behind[:-1])
            begins = first[numpy.append(0, cuts + 1)].tolist()
            stops = behind[numpy.append(cuts, len(first) - 1)].tolist()
            return list(zip(begins, stops))
        cut = [i for i in range(1, len(first)) if first[i] != behind[i - 1]]
        return [(first[a], behind[b - 1]) for a, b in zip([0, *cut], [*cut, len(first)])]

    def _last(self, fragments: Table, last: Any, more: Any, before: Any) -> None:
        """Rows at the end of a part: those of a document's end, and (row, successor) of the others."""
        if numpy is not None:
            rows = self.row_ends[1:][last] - 1
            document = fragments.document[last]
            goes_on = more[document]
            self.end_rows = rows[~goes_on]
            self.next_rows = rows[goes_on]
            self.next_at = self.tokens_end + before[document[goes_on]]
            return
        at = [i for i, ending in enumerate(last) if ending]
        document = fragments.document
        self.end_rows = [self.row_ends[i + 1] - 1 for i in at if not more[document[i]]]
        self.next_rows = [self.row_ends[i + 1] - 1 for i in at if more[document[i]]]
        self.next_at = [self.tokens_end + before[document[i]] for i in at if more[document[i]]]

    def _copy(self, pieces: List[Any], out: Any) -> None:
        """The pieces one after the other, as many rows as they have."""
        if numpy is None:
            row = 0
            for piece in pieces:
                out[row:row + len(piece)] = array.array(out.format, piece)
                row += len(piece)
        elif len(pieces) == 1:
            out[:len(pieces[0])] = pieces[0]
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
        if numpy is not None:
            out[self.end_rows] = LABEL_NONE
            if len(self.next_rows):
                out[self.next_rows] = slot[self.next_at]
        else:
            for row in self.end_rows:
                out[row] = LABEL_NONE
            for row, at in zip(self.next_rows, self.next_at):
                out[row] = slot[at]
        self._pad(out, LABEL_NONE)

    def positions(self, out: Any) -> None:
        if numpy is not None:
            stops = ends(self.starts, self.lengths).tolist()
            counting = _counting.to(max(stops, default=0), out.dtype)
            self._copy([counting[start:stop] for start, stop in zip(self.starts.tolist(), stops)], out)
        else:
            self._copy([range(start, start + length) for start, length in zip(self.starts, self.lengths)], out)
        self._pad(out, 0)
