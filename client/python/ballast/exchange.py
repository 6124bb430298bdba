"""Attention whose rows move between ranks, as a torch function with gradients: every layout and pools.

    from ballast.attention import attention
    from ballast.exchange import ExchangePlan, nccl

    transport = nccl(group)                                               # once
    plan = ExchangePlan(batch, transport, q_heads=32, kv_heads=8, head_dim=128)   # once per micro-batch
    out = attention(q, k, v, plan)                                        # per layer

libballast_attn does the work, by ballast_exchange.h: rows of the batch go to the ranks that its plan names,
in `chunks` parts of the heads, one moving while another is computed; outputs and gradients come home. All
ranks of the group make the same calls. The group is the context-parallel one or, of a pool, all its workers
in their order. Nothing has run on a GPU yet.
"""

from __future__ import annotations

import ctypes
import errno
from typing import Any, Callable, List, Optional, Tuple

import torch

from . import attention as at
from .batch import Batch, Exchange, Layout
from .errors import InvalidArgument, Unsupported

DOCUMENT_BITS = 26  # documents of a pool's replicas have numbers of their own
KEPT = 1
ID_BYTES = 128


class _Home(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("document", "start", "rows", "rank")]


class _Work(ctypes.Structure):
    _fields_ = _Home._fields_ + [("head_begin", ctypes.c_uint16), ("head_count", ctypes.c_uint16)]


class _Options(ctypes.Structure):
    _fields_ = ([(name, ctypes.c_uint32) for name in ("rank", "ranks", "q_heads", "kv_heads", "head_dim",
                                                      "element_bytes", "chunks", "own_rows")]
                + [("keys", ctypes.c_int), ("homes", ctypes.POINTER(_Home)), ("home_count", ctypes.c_uint32),
                   ("works", ctypes.POINTER(_Work)), ("work_count", ctypes.c_uint32),
                   ("digest", ctypes.c_uint8 * 16)])


class _Sizes(ctypes.Structure):
    _fields_ = ([(name, ctypes.c_uint32) for name in ("q_rows", "kv_rows", "fragments", "keys_shared")]
                + [("staging_bytes", ctypes.c_size_t), ("bytes_in", ctypes.c_uint64), ("bytes_out", ctypes.c_uint64)])


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("row_bytes", ctypes.c_size_t)]


_Compute = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.POINTER(at._Error))


class _Call(ctypes.Structure):
    _fields_ = ([("transport", ctypes.c_void_p)]
                + [(name, _Tensor) for name in ("own_k", "own_v", "own_dk", "own_dv", "k", "v", "dk", "dv", "q", "o",
                                                "d_o", "dq", "lse")]
                + [("compute", _Compute), ("context", ctypes.c_void_p), ("staging", ctypes.c_void_p),
                   ("stream", ctypes.c_void_p), ("flags", ctypes.c_uint32)])


class Transport:
    """Moves bytes between the ranks of a group. `gather(object)` returns every rank's, in their order; it is asked
    only for the lists of a pool."""

    def __init__(self, handle: ctypes.c_void_p, rank: int, ranks: int, gather: Callable[[Any], List[Any]]):
        self.handle, self.rank, self.ranks, self.gather = handle, rank, ranks, gather

    def close(self) -> None:
        """A collective. Idempotent."""
        if self.handle:
            at.library().ballast_transport_close(self.handle)
            self.handle = ctypes.c_void_p()


def nccl(group: Any = None, deadline: float = 60.0) -> Transport:
    """Over NCCL, for the ranks of a torch.distributed group; each has its CUDA device current. A collective."""
    distributed, error = torch.distributed, at._Error()
    rank, ranks = distributed.get_rank(group), distributed.get_world_size(group)
    torch.empty(1, device="cuda")  # makes the device's context current
    identity, handle = (ctypes.c_uint8 * ID_BYTES)(), ctypes.c_void_p()
    if rank == 0:
        at._check(at.library().ballast_nccl_id(identity, ctypes.byref(error)), error)

    def gather(mine: Any) -> List[Any]:
        found: List[Any] = [None] * ranks
        distributed.all_gather_object(found, mine, group=group)
        return found

    identity = (ctypes.c_uint8 * ID_BYTES)(*gather(bytes(identity))[0])
    at._check(at.library().ballast_transport_nccl(ctypes.byref(handle), identity, rank, ranks, int(deadline * 1000),
                                               ctypes.byref(error)), error)
    return Transport(handle, rank, ranks, gather)


def _place(batch: Batch) -> Tuple[int, int, int]:
    """The rank in its group, ranks of the group, and the number of the batch's first document."""
    if batch.pool is None:
        return batch.group_rank, batch.group_ranks, 0
    return batch.pool.worker, batch.pool.workers, batch.pool.worker // batch.group_ranks << DOCUMENT_BITS


def _fragments_of(shard: Any, first: int, rank: int) -> List[Tuple[int, int, int, int]]:
    return [(first + int(f.document), int(f.start), int(f.length), rank) for f in shard.fragments]


def _works_of_pool(pool: Any) -> List[Tuple[int, ...]]:
    """A tile is the rows of its piece in every document there, for its share of the heads."""
    heads, works = pool.heads // pool.head_shards, []
    places = {replica.dp: (number, replica.lengths) for number, replica in enumerate(pool.replicas)}
    for tile in pool.tiles:
        if int(tile.worker) != pool.worker:
            continue
        number, lengths = places[int(tile.dp)]
        begin, first, last = 0, int(tile.row), int(tile.row) + int(tile.rows)
        for i, length in enumerate(lengths):
            start, end = max(begin, first), min(begin + length, last)
            if start < end:
                works.append(((number << DOCUMENT_BITS) + i, start - begin, end - start, pool.worker,
                              int(tile.head_shard) * heads, heads))
            begin += length
    return works


def _lists(batch: Batch, q_heads: int, gather: Callable[[Any], List[Any]]) -> Tuple[List[Any], List[Any]]:
    """Where all rows of the group live and who computes which, as ballast_homes and ballast_works say."""
    rank, ranks, first = _place(batch)
    if batch.pool is not None:
        if q_heads != batch.pool.heads:
            raise InvalidArgument(f"{q_heads} query heads; the pool was planned for {batch.pool.heads}")
        found = gather((_fragments_of(batch.shards[batch.group_rank], first, rank), _works_of_pool(batch.pool)))
        return [home for homes, _ in found for home in homes], [work for _, works in found for work in works]
    homes = [home for number, shard in enumerate(batch.shards) for home in _fragments_of(shard, 0, number)]
    if batch.layout != Layout.ULYSSES:
        return homes, [home + (0, q_heads) for home in homes]
    if q_heads % ranks != 0:
        raise Unsupported(f"layout ulysses on {ranks} ranks shares {q_heads} query heads unevenly")
    heads = q_heads // ranks
    return homes, [(i, 0, int(document.length), number, number * heads, heads)
                   for number in range(ranks) for i, document in enumerate(batch.documents)]


def _rows(tensor: torch.Tensor) -> _Tensor:
    return _Tensor(tensor.data_ptr(), tensor.stride(0) * tensor.element_size())


class ExchangePlan:
    """Transfers and work lists of one micro-batch for one shape, built once and used by all layers. A collective:
    ranks first agree that they hold the same plan (Disagreement names the one that does not).

    chunks   parts of the heads in flight; each rank's share of the heads divides by it
    deterministic, sm_margin   as ballast.attention.Plan's"""

    def __init__(self, batch: Batch, transport: Transport, *, q_heads: int, kv_heads: int, head_dim: int,
                 chunks: int = 1, deterministic: bool = False, sm_margin: int = 0):
        rank, ranks, _ = _place(batch)
        if (transport.rank, transport.ranks) != (rank, ranks):
            raise InvalidArgument(f"the transport is of rank {transport.rank} of {transport.ranks}, the batch of rank "
                                  f"{rank} of {ranks} of its {'pool' if batch.pool is not None else 'group'}")
        self.transport = transport
        self.rows, self.pad_rows, self.chunks = batch.rows, batch.pad_rows, chunks
        self.flags = at.ZERO_TAILS | at.FLOAT_DKDV | (at.DETERMINISTIC if deterministic else 0)
        self.sm_margin = sm_margin
        self.exchange = ctypes.c_void_p()
        library, error = at.library(), at._Error()
        library.ballast_exchange_sizes.restype = _Sizes
        homes, works = _lists(batch, q_heads, transport.gather)
        keys = Exchange.ALL_GATHER if batch.exchange == Exchange.ALL_GATHER else Exchange.NEEDED_ONLY
        options = _Options(rank, ranks, q_heads, kv_heads, head_dim, 2, chunks, batch.rows, keys,
                           (_Home * len(homes))(*homes), len(homes), (_Work * len(works))(*works), len(works),
                           (ctypes.c_uint8 * 16)(*batch.plan_digest))
        at._check(library.ballast_exchange_create(ctypes.byref(self.exchange), ctypes.byref(options),
                                               ctypes.byref(error)), error)
        self.sizes = library.ballast_exchange_sizes(self.exchange)
        at._check(library.ballast_exchange_agree(self.exchange, transport.handle, ctypes.byref(error)), error)
        shape = at._Shape(head_dim, q_heads, kv_heads, self.sizes.q_rows, self.sizes.kv_rows)
        self.shape = shape
        self.parts = [at.Lists(shape, self._fragments(chunk)) for chunk in range(chunks)]

    def __del__(self) -> None:
        if getattr(self, "exchange", None):
            at.library().ballast_exchange_destroy(self.exchange)

    def _fragments(self, chunk: int) -> Any:
        found = (at._Fragment * self.sizes.fragments)()
        at.library().ballast_exchange_fragments(self.exchange, ctypes.c_uint32(chunk), found)
        return found

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> Any:
        return _Exchanged.apply(q, k, v, self, scale)

    def queries(self, device: torch.device, dtype: torch.dtype = torch.bfloat16, own: Any = None) -> torch.Tensor:
        """A work buffer of queries: own rows first, the others zero."""
        work = torch.zeros((self.sizes.q_rows, self.shape.q_heads, self.shape.head_dim), dtype=dtype, device=device)
        if own is not None:
            work[:self.rows] = own
        return work

    def keys(self, device: torch.device, dtype: torch.dtype, rows: int) -> torch.Tensor:
        return torch.zeros((rows, self.shape.kv_heads, self.shape.head_dim), dtype=dtype, device=device)


class _Pass:
    """One call of the exchange. What the library's calls raise in the middle comes out of `run`."""

    def __init__(self, plan: ExchangePlan, device: torch.device, scale: float, **tensors: torch.Tensor):
        self.plan, self.device, self.scale, self.tensors = plan, device, scale, tensors
        self.raised: Optional[BaseException] = None

    def run(self, name: str, compute: Callable[[int], None], flags: int = 0) -> None:
        def guarded(_context: Any, chunk: int, _stream: Any, error: Any) -> int:
            try:
                compute(chunk)
                return 0
            except BaseException as raised:  # noqa: B036: carried over C's frames
                self.raised = raised
                error.contents.text = str(raised).encode()[:255]
                return -errno.EIO
        staging = torch.empty(max(16, self.plan.sizes.staging_bytes), dtype=torch.uint8, device=self.device)
        call = _Call(transport=self.plan.transport.handle.value, compute=_Compute(guarded), staging=staging.data_ptr(),
                     stream=at._stream(self.device), flags=flags,
                     **{key: _rows(tensor) for key, tensor in self.tensors.items()})
        error = at._Error()
        code = getattr(at.library(), name)(self.plan.exchange, ctypes.byref(call), ctypes.byref(error))
        if self.raised is not None:
            raise self.raised
        at._check(code, error)

    def attend(self, name: str, chunk: int, workspace: Any = None, **others: torch.Tensor) -> None:
        """The kernels over a chunk's fragments of the work buffers; `others` instead of the call's own."""
        part = self.plan.parts[chunk]
        lists = part.on(self.device)
        call = at._Call(plan=ctypes.pointer(part.c), lists=lists.data_ptr(), scale=self.scale, flags=self.plan.flags,
                        sm_margin=self.plan.sm_margin, stream=at._stream(self.device))
        for key in ("q", "k", "v", "o", "d_o", "dq", "dk", "dv"):
            tensor = others.get(key, self.tensors.get(key))
            if tensor is not None:
                setattr(call, key, at._tensor(tensor))
        call.lse = self.tensors["lse"].data_ptr()
        if workspace is not None:
            call.workspace, call.workspace_bytes = workspace.data_ptr(), workspace.numel()
        at._launch(name, self.device, call)


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, plan: ExchangePlan, scale: float) -> Any:
        at._expect("q", q, plan.rows, plan.shape.q_heads, plan)
        at._expect("k", k, plan.rows, plan.shape.kv_heads, plan)
        at._expect("v", v, plan.rows, plan.shape.kv_heads, plan)
        device, own_k, own_v = q.device, k.contiguous(), v.contiguous()
        q_work, o = plan.queries(device, own=q), plan.queries(device)
        lse = torch.zeros(q_work.shape[:2], dtype=torch.float32, device=device)
        k_work, v_work = (plan.keys(device, k.dtype, plan.sizes.kv_rows) for _ in range(2))
        call = _Pass(plan, device, scale, own_k=own_k, own_v=own_v, q=q_work, o=o, lse=lse, k=k_work, v=v_work)
        call.run("ballast_exchange_forward", lambda chunk: call.attend("ballast_attn_forward", chunk))
        ctx.plan, ctx.scale = plan, scale
        ctx.save_for_backward(own_k, own_v, q_work, o, lse, k_work, v_work)
        return o[:plan.rows].clone()

    @staticmethod
    def backward(ctx: Any, d_o: Any) -> Any:
        plan, (own_k, own_v, q, o, lse, k, v) = ctx.plan, ctx.saved_tensors
        device = q.device
        tensors = {name: plan.keys(device, torch.float32, plan.rows if name.startswith("own") else plan.sizes.kv_rows)
                   for name in ("own_dk", "own_dv", "dk", "dv")}
        tensors.update(d_o=plan.queries(device, own=d_o), dq=plan.queries(device))
        call = _Pass(plan, device, ctx.scale, own_k=own_k, own_v=own_v, q=q, o=o, lse=lse, k=k, v=v, **tensors)

        def compute(chunk: int) -> None:
            part, flags = plan.parts[chunk], ctypes.c_uint32(plan.flags)
            size = at.library().ballast_attn_workspace_bytes(ctypes.byref(part.c), flags)
            workspace = torch.empty(max(16, size), dtype=torch.uint8, device=device)
            if not plan.sizes.keys_shared:
                call.attend("ballast_attn_backward", chunk, workspace)
                return
            aside = {name: torch.zeros_like(tensors[name]) for name in ("dk", "dv")}  # several chunks see these heads
            call.attend("ballast_attn_backward", chunk, workspace, **aside)
            for name, tensor in aside.items():
                tensors[name].add_(tensor)

        call.run("ballast_exchange_backward", compute, KEPT)
        dq, dk, dv = tensors["dq"][:plan.rows].clone(), tensors["own_dk"], tensors["own_dv"]
        return dq, dk.to(own_k.dtype), dv.to(own_v.dtype), None, None
