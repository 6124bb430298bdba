"""Protocol buffers, as far as the wire of ballastd needs them: schemas as tables, bytes in and out.

A message is a dictionary of its fields; absent ones have their defaults, absent sub-messages are None.
Repeated sub-messages that hold nothing but numbers (documents, fragments, tiles, transfers) come as a
`Rows` of bytes, turned into columns by `columns()`: all varints at once where numpy is there. Unknown
fields, and known ones of another wire type, are passed over, as protocol buffers want it.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple, Union

from .errors import ProtocolError

try:
    import numpy
except ImportError:  # the standard library will do
    numpy = None  # type: ignore[assignment]

U32, U64, BYTES, STRING, MESSAGE, ROWS, NUMBERS, MESSAGES, BOOL, I64 = range(10)
FEW_NUMBERS = 100  # from here on numpy is faster
_KEPT = None if numpy is None else numpy.array([(1 << 8 * n) - 1 for n in range(1, 8)] + [-1])  # by bytes of a varint
_VARINTS = (U32, U64, BOOL, I64)
_DEFAULTS = {U32: 0, U64: 0, I64: 0, BOOL: False, BYTES: b"", STRING: "", MESSAGE: None}


class Schema:
    """name -> (number, kind[, schema of the sub-message])."""

    def __init__(self, name: str, **fields: Tuple[Any, ...]):
        self.name = name
        self.fields = fields
        self.by_tag: Dict[int, Tuple[str, int, Any]] = {}
        for field, (number, kind, *sub) in fields.items():
            entry = (field, kind, sub[0] if sub else None)
            self.by_tag[number << 3 | (0 if kind in _VARINTS else 2)] = entry
            if kind == NUMBERS:  # packed or one by one
                self.by_tag[number << 3] = entry
        self.defaults = {f: _DEFAULTS[s[1]] for f, s in fields.items() if s[1] in _DEFAULTS}
        self.lists = [f for f, s in fields.items() if s[1] in (NUMBERS, MESSAGES)]
        self.rows = [(f, s[2], s[0] << 3 | 2) for f, s in fields.items() if s[1] == ROWS]
        self.order = sorted(fields, key=lambda field: fields[field][0])
        self.most = max([number for number, *_ in fields.values()], default=0)


class Rows:
    """Repeated sub-messages of numbers, still encoded: each with its tag and length."""

    __slots__ = ("schema", "tag", "parts", "count")

    def __init__(self, schema: Schema, tag: int):
        self.schema = schema
        self.tag = tag
        self.parts: List[bytes] = []
        self.count = 0


Group = Tuple[Schema, Sequence[Rows]]


def _broken(what: str) -> ProtocolError:
    return ProtocolError(f"the daemon sent a message that does not unpack: {what}")


def varint(data: bytes, at: int, end: int) -> Tuple[int, int]:
    """(value, where the next byte is); at most 64 bits."""
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:
            raise _broken("a number of more than 64 bits")
    raise _broken("it ends within a number")


def _skip(data: bytes, at: int, end: int, tag: int) -> int:
    """Where the field of an unknown tag ends."""
    kind = tag & 7
    if tag >> 3 == 0:
        raise _broken("field 0")
    if kind == 0:
        return varint(data, at, end)[1]
    if kind == 2:
        size, at = varint(data, at, end)
    elif kind in (1, 5):
        size = 8 if kind == 1 else 4
    else:
        raise _broken(f"wire type {kind}")
    if size > end - at:
        raise _broken("a field beyond its end")
    return at + size


def _take_rows(rows: Rows, data: bytes, begin: int, at: int, end: int, tag: int) -> int:
    """From the tag at `begin`: this sub-message and all of its kind that follow directly."""
    while True:
        size, at = varint(data, at, end)
        if size > end - at:
            raise _broken("a field beyond its end")
        at += size
        rows.count += 1
        while at + 1 < end and data[at] == tag and data[at + 1] < 0x80:  # as nearly always
            at += 2 + data[at + 1]
            rows.count += 1
        if at > end:
            raise _broken("a field beyond its end")
        if at == end or data[at] != tag:
            rows.parts.append(data[begin:at])
            return at
        at += 1


def _take(record: Dict[str, Any], field: Tuple[str, int, Any], data: bytes, at: int, end: int) -> None:
    name, kind, sub = field
    if kind == MESSAGE:
        before = record[name]
        record[name] = decode(sub, data, at, end, before)
    elif kind == MESSAGES:
        record[name].append(decode(sub, data, at, end))
    elif kind == BYTES:
        record[name] = data[at:end]
    elif kind == STRING:
        record[name] = data[at:end].decode("utf-8", "replace")
    else:  # packed numbers
        numbers = record[name]
        while at < end:
            value, at = varint(data, at, end)
            numbers.append(value)


def _empty(schema: Schema) -> Dict[str, Any]:
    record = dict(schema.defaults)
    for name in schema.lists:
        record[name] = []
    for name, sub, tag in schema.rows:
        record[name] = Rows(sub, tag)
    return record


def decode(schema: Schema, data: bytes, at: int = 0, end: int = -1,
           into: Union[Dict[str, Any], None] = None) -> Dict[str, Any]:
    """The fields of a message; ProtocolError for bytes that are none."""
    if into is None:
        into = _empty(schema)
    end = len(data) if end < 0 else end
    by_tag = schema.by_tag
    while at < end:
        begin = at
        tag = data[at]
        at += 1
        if tag >= 0x80:
            tag, at = varint(data, begin, end)
        field = by_tag.get(tag)
        if field is None:
            at = _skip(data, at, end, tag)
            continue
        kind = field[1]
        if kind == ROWS:
            at = _take_rows(into[field[0]], data, begin, at, end, tag)
            continue
        value = data[at] if at < end else 0x80
        at += 1
        if value >= 0x80:
            value, at = varint(data, at - 1, end)
        if tag & 7 == 2:
            if value > end - at:
                raise _broken("a field beyond its end")
            _take(into, field, data, at, at + value)
            at += value
        elif kind == NUMBERS:
            into[field[0]].append(value)
        else:
            into[field[0]] = value & 0xFFFFFFFF if kind == U32 else bool(value) if kind == BOOL else value
    return into


def _columns_slow(schema: Schema, rows: Sequence[Rows], count: int) -> Dict[str, List[int]]:
    """One number after the other, which for few is as fast."""
    columns = {name: [0] * count for name in schema.fields}
    by_tag = {tag: (columns[name], 0xFFFFFFFF if kind == U32 else -1) for tag, (name, kind, _) in schema.by_tag.items()}
    row = 0
    for part in (part for some in rows for part in some.parts):
        at, end = 0, len(part)
        while at < end:
            _, at = varint(part, at, end)
            size, at = varint(part, at, end)
            stop = at + size
            while at < stop:
                tag = part[at]
                at += 1
                if tag >= 0x80:
                    tag, at = varint(part, at - 1, stop)
                field = by_tag.get(tag)
                if field is None:
                    at = _skip(part, at, stop, tag)
                    continue
                value = part[at] if at < stop else 0x80
                at += 1
                if value >= 0x80:
                    value, at = varint(part, at - 1, stop)
                field[0][row] = value & field[1]
            row += 1
    if any(value >> 63 for column in columns.values() for value in column):
        raise _broken("a number of 64 bits where none is that large")
    return columns


def _varints(data: bytes) -> Any:
    """(values, where each ends), of bytes that are varints of at most 8 bytes without a gap; None if they
    are not."""
    ends = (numpy.frombuffer(data, numpy.uint8) < 0x80).nonzero()[0]
    if len(ends) == 0 or ends[-1] != len(data) - 1:
        return None
    starts = numpy.empty_like(ends)
    starts[0] = 0
    numpy.add(ends[:-1], 1, out=starts[1:])
    more = ends - starts
    longest = int(more.max())
    if longest > 7:
        return None
    windows = numpy.ndarray(len(data), "<i8", data + bytes(8), strides=(1,))[starts] & _KEPT[more]
    values = windows & 0x7F
    for k in range(1, longest + 1):
        values |= windows >> k & 0x7F << 7 * k
    return values, ends


def _tables_fast(groups: Sequence[Group], counts: Sequence[int]) -> Any:
    """All rows of all groups at once: tag, value, tag, value, ..., where a header is (tag, size). None if
    anything in the bytes is not that simple."""
    data = b"".join([part for _, rows in groups for some in rows for part in some.parts])
    numbers = _varints(data)
    if numbers is None or len(numbers[0]) % 2 != 0:
        return None
    tags, values, ends, count = numbers[0][0::2], numbers[0][1::2], numbers[1], sum(counts)
    kinds = tags & 7
    heads = kinds.nonzero()[0]
    if (kinds & 5).any() or len(heads) != count or heads[0] != 0 or tags.min() < 8:
        return None
    # each message is as long as its header says, so that none of them holds another's rows
    stops = ends[1::2][heads] + values[heads]
    if stops[-1] != len(data) - 1 or (stops[:-1] != ends[0::2][heads[1:]] - 1).any():
        return None
    most = max([schema.most for schema, _ in groups])
    number = numpy.minimum(tags >> 3, most + 1)
    number[heads] = 0
    table = numpy.zeros((most + 2, count + 1), numpy.int64)
    table[number, (kinds >> 1).cumsum()] = values  # the last of a field counts
    wide = int(values.max()) >> 32
    found, first = [], 1
    for (schema, _), rows in zip(groups, counts):
        mine = table[:, first:first + rows]
        found.append({name: mine[spec[0]] & 0xFFFFFFFF if wide and spec[1] == U32 else mine[spec[0]]
                      for name, spec in schema.fields.items()})
        first += rows
    return found


def tables(groups: Sequence[Group]) -> List[Dict[str, Any]]:
    """For each (schema, rows): name -> values of all messages of `rows` (of one tag), as int64 arrays or
    lists, never negative. Numbers beyond 63 bits make no sense in any of these columns and are refused."""
    counts = [sum([some.count for some in rows]) for _, rows in groups]
    if numpy is not None and sum([n * len(group[0].fields) for n, group in zip(counts, groups)]) > FEW_NUMBERS:
        found = _tables_fast(groups, counts)
        if found is not None:
            return found
    found = [_columns_slow(schema, rows, count) for (schema, rows), count in zip(groups, counts)]
    if numpy is None:
        return found
    return [{name: numpy.array(column, numpy.int64) for name, column in columns.items()} for columns in found]


def columns(schema: Schema, rows: Sequence[Rows]) -> Dict[str, Any]:
    """The same of one schema."""
    return tables([(schema, rows)])[0]


_SHORT = [bytes([value]) for value in range(0x80)]


def varint_bytes(value: int) -> bytes:
    """The bytes of a number of at most 64 bits."""
    if value < 0x80:
        return _SHORT[value]
    out = bytearray()
    _put_varint(out, value)
    return bytes(out)


def _put_varint(out: bytearray, value: int) -> None:
    value &= 0xFFFFFFFFFFFFFFFF
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _put_bytes(out: bytearray, number: int, data: Union[bytes, bytearray]) -> None:
    _put_varint(out, number << 3 | 2)
    _put_varint(out, len(data))
    out += data


def encode(schema: Schema, fields: Dict[str, Any]) -> bytes:
    """The canonical bytes: fields in the order of their numbers, defaults left out."""
    assert fields.keys() <= schema.fields.keys()
    out = bytearray()
    for name in schema.order:
        value = fields.get(name)
        if value is None:
            continue
        number, kind, *sub = schema.fields[name]
        if kind == MESSAGE:
            _put_bytes(out, number, encode(sub[0], value))
        elif kind in (MESSAGES, ROWS):
            for one in value:
                _put_bytes(out, number, encode(sub[0], one))
        elif kind == NUMBERS:
            packed = bytearray()
            for one in value:
                _put_varint(packed, one)
            if packed:
                _put_bytes(out, number, packed)
        elif kind in (BYTES, STRING):
            if value:
                _put_bytes(out, number, value.encode() if kind == STRING else bytes(value))
        elif value:
            _put_varint(out, number << 3)
            _put_varint(out, int(value))
    return bytes(out)
