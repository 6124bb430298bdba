"""The plan of a micro-batch: its documents, and which rows of them every rank has.

Everything that a caller will index with is checked once, here, against the job. A daemon that sends
nonsense is a ProtocolError. `native` reads the same from the same bytes with libballast.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any, Dict, List, NamedTuple, Optional

from . import messages
from .columns import Table, each, ends, negative, sums, take, total
from .errors import ProtocolError
from .gather import Gather
from .wire import decode, tables

try:
    import xxhash
except ImportError:  # then payload hashes are not compared
    xxhash = None


class Document(NamedTuple):
    """A part of a document; `offset` is not 0 where a long one was split."""

    dataset: int
    document: int
    offset: int
    length: int
    document_length: int
    nominal_step: int
    epoch: int


class Fragment(NamedTuple):
    """Query rows [start, start + length) of one document part, from `row` on in this rank's arrays; they
    see its keys [0, start + length)."""

    document: int
    start: int
    length: int
    row: int


class Shard(NamedTuple):
    """What a rank of the context-parallel group owns."""

    rows: int
    pad_rows: int
    fragments: Table


def impossible(what: str) -> ProtocolError:
    return ProtocolError(f"the daemon sent an impossible batch: {what}")


def _check_documents(documents: Dict[str, Any], tokens: int, tokens_max: int) -> Any:
    """What of each document comes after its part."""
    length = documents["length"]
    rest = each(operator.sub, documents["document_length"], ends(documents["offset"], length))
    if negative(rest) or negative(each(operator.sub, length, 1)):
        raise impossible("a part that is not within its document")
    if total(length) != tokens or tokens > tokens_max:
        raise impossible("its documents are not as long as it says")
    return rest


def _check_fragments(fragments: Dict[str, Any], lengths: Any, borders: List[int]) -> None:
    """Of all ranks; `borders` are their first ones."""
    document, length = fragments["document"], fragments["length"]
    try:
        rest = each(operator.sub, take(lengths, document), ends(fragments["start"], length))
    except IndexError:
        raise impossible("a fragment that is not within its part") from None
    if negative(rest) or negative(each(operator.sub, length, 1)):
        raise impossible("a fragment that is not within its part")
    back = each(operator.sub, document[1:], document[:-1])
    for first in borders:
        if 0 < first <= len(back):
            back[first - 1] = 0
    if negative(back):
        raise impossible("fragments out of the order of documents")


def _read_shards(ranks: List[Dict[str, Any]], fragments: Dict[str, Any], lengths: Any) -> List[Shard]:
    """Of all ranks, in one go."""
    borders = list(itertools.accumulate((rank["fragments"].count for rank in ranks), initial=0))
    _check_fragments(fragments, lengths, borders)
    before = sums(fragments["length"])
    shards = []
    for rank, first, last in zip(ranks, borders, borders[1:]):
        begin = int(before[first])
        if rank["rows"] != ranks[0]["rows"]:
            raise impossible("ranks with unequal rows")
        if rank["pad_rows"] != rank["rows"] - (int(before[last]) - begin):
            raise impossible("its fragments and pad rows are not its rows")
        mine = {name: column[first:last] for name, column in fragments.items()}
        mine["row"] = each(operator.sub, before[first:last], begin) if begin else before[first:last]
        shards.append(Shard(rank["rows"], rank["pad_rows"], Table(Fragment, mine)))
    return shards


class Plan:
    """documents, shards; tokens, and slot_tokens with successors; layout, exchange."""

    pointer = fill = fill_unlocked = None  # of libballast, which does not know it

    def __init__(self, message: bytes, tokens_max: int, group_ranks: int, rank: int):
        plan = decode(messages.MICRO_BATCH, message)
        if plan["sharding"] is None:
            raise impossible("id, plan, sharding or digest is missing")
        ranks = plan["sharding"]["ranks"]
        if len(ranks) != group_ranks:
            raise impossible("not one shard per context-parallel rank")
        if ranks[rank]["rows"] > tokens_max:
            raise impossible("more rows than tokens_max")
        self.layout: int = plan["sharding"]["layout"]
        self.exchange: int = plan["sharding"]["exchange"]
        self.tokens: int = plan["tokens"]
        documents, fragments = tables([(messages.DOCUMENT, [plan["documents"]]),
                                       (messages.FRAGMENT, [one["fragments"] for one in ranks])])
        rest = _check_documents(documents, self.tokens, tokens_max)
        self.documents = Table(Document, documents)
        self.shards = _read_shards(ranks, fragments, documents["length"])
        self.rows, self.pad_rows, self.fragments = self.shards[rank]
        self._gather = Gather(self.documents, self.fragments, self.rows, self.tokens, rest)
        self.slot_tokens = self._gather.slot_tokens

    def place(self, slot: bytearray) -> None:
        """It is given with each gather."""

    def copied(self) -> "Plan":
        return self

    def hash(self, slot: Any) -> Optional[int]:
        """XXH3 of the bytes of the slot; None where there is no xxhash."""
        return None if xxhash is None else xxhash.xxh3_64_intdigest(memoryview(slot).cast("B"))

    def gather(self, column: str, slot: Any, into: Any) -> None:
        """Fills `into`, which is as long as this rank has rows; positions need no slot."""
        if column == "positions":
            self._gather.positions(into)
        else:
            getattr(self._gather, column)(slot, into)
