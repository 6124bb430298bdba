"""A rank's part of a pool's plan: what it computes for others, and what they send each other for it.

What is here can be indexed with: workers, replicas, rows and heads are within their bounds.
"""

from __future__ import annotations

import enum
import operator
from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import messages
from .columns import Table, any_of, each, numpy
from .errors import ProtocolError
from .wire import columns

TOKENS_MAX = 1 << 26
HEADS_MAX = 65536
ELEMENT_BYTES_MAX = 16


class Payload(enum.IntEnum):
    Q = 1
    KV = 2
    O = 3  # noqa: E741


class Tile(NamedTuple):
    """Attention of rows [row, row + rows) of a replica for one shard of the query heads."""

    dp: int
    block: int
    head_shard: int
    home: int
    worker: int
    pairs: int
    row: int
    rows: int


class Transfer(NamedTuple):
    """What `source` sends and `worker` receives before (Q, KV) or after (O) the tiles of a layer's
    forward pass; the backward pass is the mirror."""

    payload: int
    source: int
    worker: int
    dp: int
    row: int
    rows: int
    head_begin: int
    head_count: int
    bytes: int


class Replica(NamedTuple):
    dp: int
    tokens: int  # its rows, without padding
    lengths: Tuple[int, ...]  # of its documents, if this rank computes tiles of it


@dataclass
class Pool:
    """Worker w is context-parallel rank w % group_ranks of replica w // group_ranks. Rows count in the
    packed sequence of their replica's micro-batch, documents one after the other, without pad rows."""

    ga_index: int
    worker: int
    workers: int
    replicas: Tuple[Replica, ...]
    block_tokens: int
    head_shards: int
    heads: int
    kv_heads: int
    head_dim: int
    element_bytes: int
    tiles: Table
    transfers: Table


def _impossible(what: str) -> ProtocolError:
    return ProtocolError(f"the daemon sent an impossible pool: {what}")


def _check_shape(part: Dict[str, Any]) -> None:
    shards, heads, kv_heads = part["head_shards"], part["heads"], part["kv_heads"]
    holds = (part["block_tokens"] > 0 and shards > 0 and kv_heads > 0 and 0 < heads <= HEADS_MAX
             and 0 < part["head_dim"] <= HEADS_MAX and 0 < part["element_bytes"] <= ELEMENT_BYTES_MAX
             and heads % shards == 0 and heads % kv_heads == 0
             and (shards % kv_heads == 0 or kv_heads % shards == 0))
    if not holds:
        raise _impossible("its shape")


def _replicas(part: Dict[str, Any], job: Any) -> Tuple[Replica, ...]:
    found: List[Replica] = []
    for replica in part["replicas"]:
        dp, tokens = replica["dp"], replica["tokens"]
        lengths = tuple(length & 0xFFFFFFFF for length in replica["lengths"])
        if dp >= job.dp or (found and dp <= found[-1].dp):
            raise _impossible("replicas that are not of the mesh, or not in order")
        if tokens > job.tokens_max or tokens > TOKENS_MAX:
            raise _impossible("a micro-batch longer than tokens_max")
        if 0 in lengths or (lengths and sum(lengths) != tokens):
            raise _impossible("documents that are not their micro-batch")
        found.append(Replica(dp, tokens, lengths))
    return tuple(found)


def _rows_of(replicas: Tuple[Replica, ...], dp: Any) -> Any:
    """Of each dp of a column, the rows of its replica; 0 for none of the pool's."""
    known = {replica.dp: replica.tokens for replica in replicas}
    found = [known.get(int(one), 0) for one in dp]
    return numpy.asarray(found, numpy.int64) if numpy is not None else found


def _check_rows(replicas: Tuple[Replica, ...], table: Dict[str, Any], what: str) -> None:
    behind = each(operator.add, table["row"], table["rows"])
    if (any_of(operator.eq, table["rows"], 0) or any_of(operator.gt, table["rows"], TOKENS_MAX)
            or any_of(operator.gt, table["row"], TOKENS_MAX)
            or any_of(operator.gt, behind, _rows_of(replicas, table["dp"]))):
        raise _impossible(f"a {what} that is not within its micro-batch")


def _check_meets(worker: int, workers: int, a: Any, b: Any, what: str) -> None:
    """Both are workers, and one of them is this rank."""
    stranger = each(operator.and_, each(operator.ne, a, worker), each(operator.ne, b, worker))
    if any_of(operator.ge, a, workers) or any_of(operator.ge, b, workers) or any_of(operator.ne, stranger, 0):
        raise _impossible(f"a {what} that is not this rank's")


def _check_transfers(part: Dict[str, Any], table: Dict[str, Any]) -> None:
    heads, kv_heads, size = part["heads"], part["kv_heads"], part["head_dim"] * part["element_bytes"]
    if any_of(operator.eq, table["source"], table["worker"]):
        raise _impossible("a transfer that is not this rank's")
    for payload, rows, begin, count, size_said in zip(*(
            map(int, table[name]) for name in ("payload", "rows", "head_begin", "head_count", "bytes"))):
        if payload not in (Payload.Q, Payload.KV, Payload.O):
            raise _impossible("a transfer of nothing known")
        keys = payload == Payload.KV
        if count == 0 or begin + count > (kv_heads if keys else heads):
            raise _impossible("a transfer that is not within its micro-batch")
        if size_said != (2 if keys else 1) * rows * count * size:
            raise _impossible("a transfer that is not as long as its rows")


def read(part: Optional[Dict[str, Any]], dp: int, index: int, tokens: int, group_rank: int, group_ranks: int,
         job: Any) -> Optional[Pool]:
    """The pool of a batch; None without pooled attention, or from a daemon too old to say."""
    if part is None or not part["replicas"]:
        return None
    _check_shape(part)
    replicas = _replicas(part, job)
    place = [replica.dp for replica in replicas].index(dp) if any(r.dp == dp for r in replicas) else -1
    if place < 0 or replicas[place].tokens != tokens or part["ga_index"] != index:
        raise _impossible("it is not of this micro-batch")
    workers, worker = len(replicas) * group_ranks, part["worker"]
    if worker != place * group_ranks + group_rank:
        raise _impossible("its worker is not this rank")
    tiles = columns(messages.TILE, [part["tiles"]])
    _check_rows(replicas, tiles, "tile")
    if any_of(operator.gt, tiles["rows"], part["block_tokens"]):
        raise _impossible("a tile that is not within its micro-batch")
    _check_meets(worker, workers, tiles["home"], tiles["worker"], "tile")
    if any_of(operator.ge, tiles["head_shard"], part["head_shards"]):
        raise _impossible("a tile that is not this rank's")
    transfers = columns(messages.TRANSFER, [part["transfers"]])
    _check_rows(replicas, transfers, "transfer")
    _check_meets(worker, workers, transfers["source"], transfers["worker"], "transfer")
    _check_transfers(part, transfers)
    return Pool(index, worker, workers, replicas, part["block_tokens"], part["head_shards"], part["heads"],
                part["kv_heads"], part["head_dim"], part["element_bytes"], Table(Tile, tiles),
                Table(Transfer, transfers))
