"""Attention over a plan's fragments on Hopper GPUs, as a torch function with gradients.

    from ballast.attention import Plan, attention

    plan = Plan(batch, q_heads=32, kv_heads=8, head_dim=128)     # once per micro-batch
    out = attention(q, k, v, plan)                               # per layer; q [rows, 32, 128] bf16

The module is the function too: `ballast.attention(q, k, v, plan)` after `import ballast.attention`.

Rows are the batch's, pad rows included: theirs come out as 0. libballast_attn does the work; it is looked
for as $BALLAST_ATTN_LIBRARY, or libballast_attn.so.0 where the loader finds it. Nothing has run on a GPU yet.

A batch whose context-parallel ranks share attention needs an exchange: an object whose `gather(k, v)` returns
K and V rows of all keys that the rank's fragments see, documents one after the other from key 0
(`Plan.key_rows` of them), and whose `scatter(dk, dv)` takes gradients of those rows, float, and returns the
gradients of the rank's own rows. `all_gathered` makes one from torch.distributed. Layout ulysses and pools
move queries too: ballast.exchange.ExchangePlan is their plan, and one of every other layout.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import types
from typing import Any, Callable, List, Optional, Tuple

import torch

from .batch import Batch, Layout
from .errors import Disagreement, InvalidArgument, TimedOut, Unavailable, Unsupported

DETERMINISTIC, ZERO_TAILS, FLOAT_DKDV = 1, 2, 4
ABI = 1
LIBRARY = "libballast_attn.so.0"


class _Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("text", ctypes.c_char * 256)]


class _Fragment(ctypes.Structure):
    _fields_ = [("q_row", ctypes.c_int32), ("q_length", ctypes.c_int32), ("kv_row", ctypes.c_int32),
                ("kv_length", ctypes.c_int32), ("q_position", ctypes.c_int32), ("head_begin", ctypes.c_uint16),
                ("head_count", ctypes.c_uint16), ("document", ctypes.c_uint32), ("flags", ctypes.c_uint32)]


class _Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("head_dim", "q_heads", "kv_heads", "q_rows", "kv_rows")]


class _Plan(ctypes.Structure):
    _fields_ = [("shape", _Shape), ("lists", ctypes.c_void_p), ("lists_bytes", ctypes.c_size_t),
                ("hash", ctypes.c_uint64), ("tiles", ctypes.c_uint32), ("steps", ctypes.c_uint32),
                ("key_tiles", ctypes.c_uint32), ("ranges", ctypes.c_uint32)]


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("row_stride", ctypes.c_int64), ("head_stride", ctypes.c_int64)]


class _Call(ctypes.Structure):
    _fields_ = ([("plan", ctypes.POINTER(_Plan)), ("lists", ctypes.c_void_p)]
                + [(name, _Tensor) for name in ("q", "k", "v", "o", "d_o", "dq", "dk", "dv")]
                + [("lse", ctypes.c_void_p), ("scale", ctypes.c_float), ("flags", ctypes.c_uint32),
                   ("sm_margin", ctypes.c_uint32), ("workspace", ctypes.c_void_p),
                   ("workspace_bytes", ctypes.c_size_t), ("stream", ctypes.c_void_p)])


_library: Optional[ctypes.CDLL] = None


def library() -> ctypes.CDLL:
    """libballast_attn; Unavailable where there is none."""
    global _library
    if _library is None:
        path = os.environ.get("BALLAST_ATTN_LIBRARY", LIBRARY)
        try:
            found = ctypes.CDLL(path)
            found.ballast_attn_plan_bytes.restype = ctypes.c_size_t
            found.ballast_attn_workspace_bytes.restype = ctypes.c_size_t
            found.ballast_attn_build.restype = ctypes.c_char_p
        except (OSError, AttributeError) as error:
            raise Unavailable(f"no attention kernels: {error}; install libballast_attn, or name its file in "
                              "BALLAST_ATTN_LIBRARY") from error
        _library = found
    return _library


_KINDS = {errno.EINVAL: InvalidArgument, errno.E2BIG: InvalidArgument, errno.ENOSPC: InvalidArgument,
          errno.EPROTO: Disagreement, errno.ETIMEDOUT: TimedOut}


def _check(code: int, error: _Error) -> None:
    if code != 0:
        raise _KINDS.get(-code, Unavailable)(error.text.decode(errors="replace"))


_opened: dict = {}  # of each device, for the life of the process


def _open(device: torch.device) -> ctypes.c_void_p:
    index = device.index if device.index is not None else 0
    if index not in _opened:
        handle, error = ctypes.c_void_p(), _Error()
        if library().ballast_attn_open(ctypes.byref(handle), ctypes.byref(error)) != 0:
            raise Unavailable(f"no attention kernels on {device}: {error.text.decode(errors='replace')}")
        _opened[index] = handle
    return _opened[index]


def _on_gpu(tensor: torch.Tensor) -> None:
    """Tests put a fake library, whose memory is the CPU's, under the same calls."""
    if tensor.device.type != "cuda" and os.environ.get("BALLAST_ATTN_ON_CPU") != "1":
        raise Unsupported(f"attention of tensors on {tensor.device}: the kernels are for CUDA devices of compute "
                          "capability 9.0; move them there")


def _stream(device: torch.device) -> Optional[int]:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None


class Lists:
    """ballast_attn_plan of fragments, and its lists on each device that asked for them."""

    def __init__(self, shape: _Shape, fragments: Any):
        found, error = library(), _Error()
        count = ctypes.c_uint32(len(fragments))
        size = found.ballast_attn_plan_bytes(ctypes.byref(shape), fragments, count)
        self._memory = (ctypes.c_uint64 * (size // 8 + 1))()
        self._on: dict = {}
        self.c = _Plan()
        _check(found.ballast_attn_plan_init(ctypes.byref(self.c), ctypes.byref(shape), fragments, count, self._memory,
                                            ctypes.c_size_t(size), ctypes.byref(error)), error)

    def on(self, device: torch.device) -> torch.Tensor:
        """Copied there once."""
        if device not in self._on:
            host = (ctypes.c_uint8 * self.c.lists_bytes).from_address(self.c.lists) if self.c.lists_bytes else b""
            self._on[device] = torch.frombuffer(bytearray(host) + bytes(16), dtype=torch.uint8).clone().to(device)
        return self._on[device]


class Plan:
    """Work lists of one micro-batch for one shape, built once and launched by all layers.

    exchange   where ranks share attention (see above); None otherwise
    deterministic   dQ the same bits in every run, for two products more
    sm_margin   processors left to an exchange that overlaps"""

    def __init__(self, batch: Batch, *, q_heads: int, kv_heads: int, head_dim: int, exchange: Any = None,
                 deterministic: bool = False, sm_margin: int = 0):
        if batch.pool is not None or (batch.layout == Layout.ULYSSES and batch.group_ranks > 1):
            raise Unsupported("pools and layout ulysses move queries between ranks; use ballast.exchange.ExchangePlan")
        if exchange is None and batch.group_ranks > 1:
            raise InvalidArgument(f"{batch.group_ranks} ranks share the attention of this batch; give exchange=, as "
                                  "ballast.attention.all_gathered(batch, group) makes one")
        self.exchange = exchange
        self.flags = ZERO_TAILS | (DETERMINISTIC if deterministic else 0) | (FLOAT_DKDV if exchange else 0)
        self.sm_margin = sm_margin
        self.rows, self.pad_rows = batch.rows, batch.pad_rows
        fragments = [(int(f.document), int(f.start), int(f.length), int(f.row)) for f in batch.fragments]
        ends = _key_ends(fragments)
        self.keys: List[Tuple[int, int, int]] = []  # document, first row of its keys, how many
        self.key_rows = 0
        for document in sorted(ends):
            self.keys.append((document, self.key_rows, ends[document]))
            self.key_rows += ends[document]
        if exchange is None:
            self.key_rows = self.rows
        self.shape = _Shape(head_dim, q_heads, kv_heads, self.rows, self.key_rows)
        self._lists = Lists(self.shape, self._fragments(fragments, exchange is None))
        self.c = self._lists.c

    def _fragments(self, fragments: Any, own: bool) -> Any:
        """Keys lie where queries do, or one document after the other."""
        firsts = {document: row for document, row, _ in self.keys}
        if own:
            firsts = {document: row - start for document, start, _, row in fragments}
        out = (_Fragment * max(1, len(fragments)))()
        for i, (document, start, length, row) in enumerate(fragments):
            out[i] = _Fragment(row, length, firsts[document], start + length, start, 0, self.shape.q_heads, document, 0)
        return out if fragments else (_Fragment * 0)()

    @property
    def hash(self) -> int:
        """Equal on every rank that built the same."""
        return self.c.hash

    def lists(self, device: torch.device) -> torch.Tensor:
        """On the device; copied there once."""
        return self._lists.on(device)

    def run(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> Any:
        return _Attention.apply(q, k, v, self, scale)


def _key_ends(fragments: Any) -> dict:
    ends: dict = {}
    for document, start, length, _ in fragments:
        ends[document] = max(ends.get(document, 0), start + length)
    return ends


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """As the kernels address it: copied only where they cannot."""
    row, head, element = tensor.stride()
    right = element == 1 and row > 0 and row % 8 == 0 and head >= tensor.shape[2] and head % 8 == 0
    return tensor if right and tensor.data_ptr() % 16 == 0 else tensor.contiguous()


def _tensor(tensor: torch.Tensor) -> _Tensor:
    return _Tensor(tensor.data_ptr(), tensor.stride(0), tensor.stride(1))


def _expect(name: str, tensor: torch.Tensor, rows: int, heads: int, plan: Any) -> None:
    _on_gpu(tensor)
    want = (rows, heads, plan.shape.head_dim)
    if tuple(tensor.shape) != want:
        raise InvalidArgument(f"{name} is {tuple(tensor.shape)}; the plan is for {want}, [rows, heads, head_dim]")
    if tensor.dtype != torch.bfloat16:
        raise InvalidArgument(f"{name} is {tensor.dtype}; the kernels take bfloat16: use {name}.bfloat16()")


def _call(plan: Plan, lists: torch.Tensor, scale: float, device: torch.device) -> _Call:
    call = _Call(plan=ctypes.pointer(plan.c), lists=lists.data_ptr(), scale=scale, flags=plan.flags,
                 sm_margin=plan.sm_margin, stream=_stream(device))
    return call


def _launch(name: str, device: torch.device, call: _Call) -> None:
    error = _Error()
    _check(getattr(library(), name)(_open(device), ctypes.byref(call), ctypes.byref(error)), error)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, plan: Plan, scale: float) -> Any:
        heads, kv_heads = plan.shape.q_heads, plan.shape.kv_heads
        _expect("q", q, plan.rows, heads, plan)
        _expect("k", k, plan.rows, kv_heads, plan)
        _expect("v", v, plan.rows, kv_heads, plan)
        if plan.exchange is not None:
            k, v = plan.exchange.gather(k, v)
            _expect("gathered k", k, plan.key_rows, kv_heads, plan)
            _expect("gathered v", v, plan.key_rows, kv_heads, plan)
        q, k, v = _aligned(q), _aligned(k), _aligned(v)
        o = torch.zeros(q.shape, dtype=q.dtype, device=q.device)  # rows that nobody owns are not written
        lse = torch.zeros(q.shape[:2], dtype=torch.float32, device=q.device)
        lists = plan.lists(q.device)
        call = _call(plan, lists, scale, q.device)
        call.q, call.k, call.v, call.o, call.lse = _tensor(q), _tensor(k), _tensor(v), _tensor(o), lse.data_ptr()
        _launch("ballast_attn_forward", q.device, call)
        ctx.plan, ctx.scale = plan, scale
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx: Any, d_o: Any) -> Any:
        plan, (q, k, v, o, lse) = ctx.plan, ctx.saved_tensors
        d_o = _aligned(d_o.to(torch.bfloat16))
        dq = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
        of_keys = torch.float32 if plan.exchange is not None else k.dtype
        dk, dv = (torch.zeros(k.shape, dtype=of_keys, device=k.device) for _ in range(2))
        lists = plan.lists(q.device)
        call = _call(plan, lists, ctx.scale, q.device)
        size = library().ballast_attn_workspace_bytes(ctypes.byref(plan.c), ctypes.c_uint32(plan.flags))
        workspace = torch.empty(max(16, size), dtype=torch.uint8, device=q.device)
        for name, tensor in (("q", q), ("k", k), ("v", v), ("o", o), ("d_o", d_o), ("dq", dq), ("dk", dk), ("dv", dv)):
            setattr(call, name, _tensor(tensor))
        call.lse, call.workspace, call.workspace_bytes = lse.data_ptr(), workspace.data_ptr(), size
        _launch("ballast_attn_backward", q.device, call)
        if plan.exchange is not None:
            dk, dv = plan.exchange.scatter(dk, dv)
        return dq, dk.to(k.dtype), dv.to(v.dtype), None, None


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Any, scale: float = 0.0) -> torch.Tensor:
    """softmax(scale q k^T) v over the fragments of a Plan or ExchangePlan, causal in each document; scale 0 is
    1 / sqrt(head_dim).
    q [rows, q_heads, head_dim], k and v [rows, kv_heads, head_dim], bf16. Strided views are taken as they are
    where rows and heads lie a multiple of 8 elements apart."""
    if scale < 0:
        raise InvalidArgument(f"scale is {scale}; it must not be negative")
    return plan.run(q, k, v, scale)


class _Function(types.ModuleType):
    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Any,
                 scale: float = 0.0) -> torch.Tensor:
        return attention(q, k, v, plan, scale)


sys.modules[__name__].__class__ = _Function


class all_gathered:
    """An exchange by torch.distributed: K and V of all ranks are gathered, and their gradients reduced in float.
    `all_gather` and `reduce` replace its collectives: lists of one tensor a rank, equal shapes."""

    def __init__(self, batch: Batch, group: Any = None, *, all_gather: Optional[Callable[..., Any]] = None,
                 reduce: Optional[Callable[..., Any]] = None):
        self.rows, self.rank, self.ranks = batch.rows, batch.group_rank, batch.group_ranks
        self.group = group
        self._all_gather = all_gather or self._gather_by_torch
        self._reduce = reduce or self._reduce_by_torch
        starts, keys = {}, {}
        for number, shard in enumerate(batch.shards):
            for f in shard.fragments:
                starts.setdefault(int(f.document), []).append((int(f.start), int(f.length),
                                                               number * self.rows + int(f.row)))
        for document, end in sorted(_key_ends([(int(f.document), int(f.start), int(f.length), 0)
                                               for f in batch.fragments]).items()):
            keys[document] = self._rows_of(sorted(starts[document]), end)
        self.index = torch.tensor([row for rows in keys.values() for row in rows], dtype=torch.int64)

    @staticmethod
    def _rows_of(runs: Any, end: int) -> List[int]:
        rows: List[int] = []
        for start, length, row in runs:
            rows += range(row, row + max(0, min(length, end - start)))
        return rows

    def _gather_by_torch(self, tensor: torch.Tensor) -> List[torch.Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self.ranks)]
        torch.distributed.all_gather(parts, tensor, group=self.group)
        return parts

    def _reduce_by_torch(self, tensor: torch.Tensor) -> torch.Tensor:
        torch.distributed.all_reduce(tensor, group=self.group)
        return tensor

    def gather(self, k: torch.Tensor, v: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        index = self.index.to(k.device)
        k, v = (torch.cat(list(self._all_gather(t.contiguous()))).index_select(0, index) for t in (k, v))
        return k, v

    def scatter(self, dk: torch.Tensor, dv: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        own = slice(self.rank * self.rows, (self.rank + 1) * self.rows)
        return tuple(self._reduce(self._spread(t))[own] for t in (dk, dv))  # type: ignore[return-value]

    def _spread(self, gradient: torch.Tensor) -> torch.Tensor:
        all_rows = torch.zeros((self.rows * self.ranks,) + tuple(gradient.shape[1:]), dtype=gradient.dtype,
                               device=gradient.device)
        return all_rows.index_add_(0, self.index.to(gradient.device), gradient)
