"""Columns of integers: int64 arrays where numpy is there, lists where not; and tables made of them."""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Sequence
from sys import getrefcount
from typing import Any, Callable, Deque, Dict, Type

try:
    import numpy
except ImportError:  # the standard library will do
    numpy = None  # type: ignore[assignment]


SPARE_BYTES_MIN = 1 << 17  # malloc asks the system for more than this


def each(operation: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """operation(a[i], b[i]) for every i; `b` may be one number."""
    if numpy is not None:
        return operation(a, b)
    return list(map(operation, a, itertools.repeat(b) if isinstance(b, int) else b))


def any_of(operation: Callable[[Any, Any], Any], a: Any, b: Any) -> bool:
    """Whether operation(a[i], b[i]) holds for some i."""
    found = each(operation, a, b)
    return bool(found.any()) if numpy is not None else any(found)


def take(column: Any, index: Any) -> Any:
    return column[index] if numpy is not None else [column[i] for i in index]


def total(column: Any) -> int:
    return int(column.sum()) if numpy is not None else sum(column)


def sums(column: Any) -> Any:
    """Prefix sums from 0; one more than the column has."""
    if numpy is None:
        return list(itertools.accumulate(column, initial=0))
    out = numpy.empty(len(column) + 1, numpy.int64)
    out[0] = 0
    numpy.add.accumulate(column, out=out[1:])
    return out


def negative(column: Any) -> bool:
    """Whether any number is."""
    if numpy is not None:
        return bool(numpy.bitwise_or.reduce(column) < 0)
    return min(column, default=0) < 0


def nonzero(column: Any) -> int:
    """How many numbers are not 0."""
    return int(numpy.count_nonzero(column)) if numpy is not None else sum(map(bool, column))


def most(column: Any) -> int:
    return int(max(column)) if len(column) else 0


def ends(column: Any, length: Any) -> Any:
    return each(operator.add, column, length)


def _references() -> int:
    one = deque([object()])
    taken = one.popleft()
    one.append(taken)
    return getrefcount(taken)


UNUSED = _references()  # what getrefcount says of what is taken from the left of a deque, put back and had by nobody else


class Spare:
    """Large arrays, to be given out again when nothing has them or a part of them any more: the system takes longer
    to clear new memory than a gather takes to fill it. Not more than `count` of a type are kept."""

    def __init__(self, count: int):
        self._count = count
        self._rows = 0  # of the longest that was asked for
        self._arrays: Dict[Any, Deque[Any]] = {}

    def take(self, rows: int, dtype: Any) -> Any:
        """An array of `rows` elements, whatever is in them."""
        if rows * dtype.itemsize < SPARE_BYTES_MIN:
            return numpy.empty(rows, dtype)
        arrays = self._arrays.setdefault(dtype, deque())
        for _ in range(len(arrays)):
            array = arrays.popleft()
            arrays.append(array)
            if getrefcount(array) == UNUSED and len(array) >= rows:
                return array[:rows]
        self._rows = max(self._rows, rows)
        array = numpy.empty(self._rows, dtype)
        if len(arrays) >= self._count:
            arrays.popleft()
        arrays.append(array)
        return array[:rows]


class Table(Sequence):  # type: ignore[type-arg]
    """Rows of one kind; each column is an attribute: table.length is the column, table[3].length one."""

    def __init__(self, kind: Type[Any], columns: Dict[str, Any]):
        self.kind = kind
        self.columns = {name: columns[name] for name in kind._fields}
        self.__dict__.update(self.columns)

    def __reduce__(self) -> Any:
        return Table, (self.kind, self.columns)

    def __getattr__(self, name: str) -> Any:  # only for what __init__ did not set
        raise AttributeError(f"a table of {self.kind.__name__} has no column {name}")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return Table(self.kind, {name: column[at] for name, column in self.columns.items()})
        return self.kind(*(int(column[at]) for column in self.columns.values()))
