"""Micro-batches as torch tensors, a dataset that can be resumed, and the forms of attention libraries.

    from torch.utils.data import DataLoader
    from ballast.torch import IterableDataset

    dataset = IterableDataset(dp=0, cp=0, device="cuda")
    for batch in DataLoader(dataset, batch_size=None):
        loss = cross_entropy(model(batch.tokens, batch.positions), batch.labels, reduction="sum")
        (loss / batch.loss_denominator).backward()
        if batch.last:
            optimizer.step()

A rank is one process: the daemon reads ahead, so workers add nothing but a copy; one is allowed.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, fields, replace
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional

import numpy
import torch
from torch.utils.data import IterableDataset as _IterableDataset
from torch.utils.data import get_worker_info

from . import client as _client
from .batch import Batch, Exchange
from .client import Client, EndOfData, EndOfStep, Measured
from .errors import FailedPrecondition, InvalidArgument, Stale, Unsupported

STATE_VERSION = 1


@dataclass
class Tensors:
    """A micro-batch, copied: it does not hold the batch. `plan` knows everything else of it, and outlives
    its release in all but tokens."""

    step: int
    index: int
    micro_batches: int  # of the step, per data-parallel replica
    tokens: Optional[torch.Tensor]  # [rows]; None where this pipeline stage has no tokens
    labels: Optional[torch.Tensor]  # [rows], -100 where there is none; likewise
    positions: torch.Tensor  # [rows], from the start of the document part
    cu_seqlens_q: torch.Tensor  # int32 [fragments + 1]
    cu_seqlens_k: torch.Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    fragments: torch.Tensor  # int32 [fragments, 4]: document, start, length, row
    pad_rows: int  # the last rows
    loss_denominator: int  # of the whole step
    label_tokens: int  # likewise
    plan: Batch

    @property
    def rows(self) -> int:
        return self.positions.shape[0]

    @property
    def last(self) -> bool:
        """Whether the step ends with it."""
        return self.index + 1 == self.micro_batches

    def to(self, device: Any, non_blocking: bool = True) -> "Tensors":
        moved = {f.name: value.to(device, non_blocking=non_blocking) for f in fields(self)
                 if isinstance(value := getattr(self, f.name), torch.Tensor)}
        return replace(self, **moved)

    def pin_memory(self, device: Any = None) -> "Tensors":
        """What DataLoader(pin_memory=True) calls."""
        return replace(self, **{f.name: value.pin_memory() for f in fields(self)
                                if isinstance(value := getattr(self, f.name), torch.Tensor)})


def _column(values: Any, pin: bool) -> torch.Tensor:
    tensor = torch.from_numpy(numpy.ascontiguousarray(values, "int32"))
    return tensor.pin_memory() if pin else tensor


def _gathered(batch: Batch, column: str, dtype: torch.dtype, pin: bool) -> Optional[torch.Tensor]:
    if column != "positions" and column not in batch.parts:
        return None
    tensor = torch.empty(batch.rows, dtype=dtype, pin_memory=pin)
    batch.gather(column, out=tensor.numpy())
    return tensor


def tensors(batch: Batch, device: Any = "cpu", dtype: torch.dtype = torch.int64) -> Tensors:
    """Gathers a batch, which may be released afterwards. For a device of its own memory the copies go
    through pinned memory and are not waited for: later work of the current stream sees them."""
    pin = torch.device(device).type == "cuda"
    q, k = batch.cu_seqlens()
    table = numpy.stack([batch.fragments.columns[name] for name in ("document", "start", "length", "row")], 1)
    positions = _gathered(batch, "positions", dtype, pin)
    assert positions is not None
    result = Tensors(
        batch.step, batch.index, batch.micro_batches, _gathered(batch, "tokens", dtype, pin),
        _gathered(batch, "labels", dtype, pin), positions, _column(q, pin), _column(k, pin),
        *batch.max_seqlens(), _column(table, pin), batch.pad_rows, batch.loss_denominator, batch.label_tokens,
        batch)
    return result if torch.device(device).type == "cpu" else result.to(device)


def view(batch: Batch) -> torch.Tensor:
    """The tokens of the whole micro-batch where they lie, as `Batch.view` has them; not to be written to.
    Ids of two bytes come as int16, which is what torch has: ids from 32768 on look negative."""
    array = batch.view()
    signed = array.view("int16" if array.dtype.itemsize == 2 else "int32")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of memory that cannot be written to
        return torch.from_numpy(signed)


class IterableDataset(_IterableDataset):  # type: ignore[type-arg]
    """The micro-batches of one rank, step after step, to the end of the data. Takes Client's options.

    commit   "auto": a step is committed when a batch of the next one is asked for. "manual": the trainer
             calls `commit`, with the times that it measured if it has them; needs num_workers=0.
    device, dtype   of the tensors

    `state_dict` is a few KB: the next batch, and the daemon's state there. `load_state_dict`, on every rank
    of the job, makes the next iteration begin at exactly that batch, on this or another node. Both are what
    torchdata's StatefulDataLoader looks for; without it, call them where the model is saved and loaded.
    With a worker, only the worker knows where it is: StatefulDataLoader asks it, others are refused.
    """

    def __init__(self, socket: Optional[str] = None, *, device: Any = "cpu", dtype: torch.dtype = torch.int64,
                 commit: str = "auto", **options: Any):
        super().__init__()
        if commit not in ("auto", "manual"):
            raise InvalidArgument(f"commit is {commit}, neither auto nor manual")
        self.options = _client.make_options(socket, **options)
        self.device = device
        self.dtype = dtype
        self.auto_commit = commit == "auto"
        self._open: Optional[Client] = None
        self._process = 0  # that opened it
        self._next = self.options.start or (None, 0)  # the next batch to be given out
        self._loaded: Optional[Dict[str, Any]] = None
        self._in_worker = torch.zeros(1, dtype=torch.uint8).share_memory_()  # told by a worker that iterates

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_open": None}

    @property
    def client(self) -> Client:
        """Opened when first asked for, in the process that asks."""
        if self._open is None or self._process != os.getpid():
            self._open = _client._unpickle(self.options)
            self._process = os.getpid()
        return self._open

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def commit(self, step: int, measured: Iterable[Measured] = ()) -> None:
        """The optimizer step is done; durable when this returns."""
        if self._open is None:
            raise FailedPrecondition("the client is in a worker; take num_workers=0, or commit='auto'")
        self._open.commit(step, measured)

    def state_dict(self) -> Dict[str, Any]:
        """At any point between two batches."""
        if self._in_worker.item() and get_worker_info() is None:
            raise FailedPrecondition("a worker iterates, and only it knows how far: take num_workers=0, or torchdata's "
                                     "StatefulDataLoader, whose state_dict asks the worker")
        step, index = self._next
        if self._loaded is not None:
            return dict(self._loaded)
        if step is None:
            step = self.client.job.next_step
        state = torch.frombuffer(bytearray(self.client.export_state(step)), dtype=torch.uint8)
        return {"version": STATE_VERSION, "step": step, "index": index, "state": state,
                "job_digest": self.client.job.digest.hex()}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        if state.get("version") != STATE_VERSION:
            raise InvalidArgument(f"a dataset's state of version {state.get('version')}, not {STATE_VERSION}")
        self._loaded = dict(state)
        self._next = (state["step"], state["index"])
        if get_worker_info() is None:
            self._in_worker.zero_()

    def _go(self) -> None:
        """To where the loaded state says: every rank brings the state, the first opens a generation and the
        others join it."""
        if self._loaded is None:
            return
        loaded, self._loaded = self._loaded, None
        self.client.import_state(loaded["state"].numpy().tobytes())
        for index in range(loaded["index"]):
            event = self.client.next()
            if not isinstance(event, Batch):
                raise Stale(f"step {loaded['step']} has fewer than the {loaded['index']} micro-batches that were "
                            "taken of it; resume where a step begins when the mesh changes")
            event.release()

    def __iter__(self) -> Iterator[Tensors]:
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise InvalidArgument(f"num_workers is {worker.num_workers}, and a rank is one process: take 0 (the "
                                  "daemon reads ahead), or 1")
        if worker is not None and not self.auto_commit:
            raise InvalidArgument("commit='manual' needs num_workers=0: the client would be in the worker")
        if worker is not None:
            self._in_worker.fill_(1)
        self._go()
        while True:
            event = self.client.next()
            if isinstance(event, EndOfData):
                return
            if isinstance(event, EndOfStep):
                self._next = (event.step + 1, 0)
                if self.auto_commit:
                    self.client.commit(event.step)
            elif isinstance(event, Batch):
                with event:
                    result = tensors(event, self.device, self.dtype)
                self._next = (event.step + 1, 0) if result.last else (event.step, event.index + 1)
                yield result


def all_gather(group: Any = None, device: Any = "cpu") -> Callable[[bytes], List[bytes]]:
    """For Client.agree, over torch.distributed: client.agree(ballast.torch.all_gather())."""
    import torch.distributed as distributed

    def gather(mine: bytes) -> List[bytes]:
        own = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(device)
        everyone = [torch.empty_like(own) for _ in range(distributed.get_world_size(group))]
        distributed.all_gather(everyone, own, group=group)
        return [bytes(one.cpu().numpy().tobytes()) for one in everyone]

    return gather


# The forms of attention libraries. Positions are the batch's in all of them, never to be guessed from ranks.


def _plan(batch: Any) -> Batch:
    plan: Batch = batch.plan if isinstance(batch, Tensors) else batch
    return plan


def _refuse_pool(plan: Batch, form: str) -> None:
    if plan.pool is not None:
        raise Unsupported(f"{form} keeps attention within a context-parallel group, and this batch shares it in a "
                          "pool; set plan.policy without pool")


def _int32(values: Any, device: Any) -> torch.Tensor:
    return _column(values, False).to(device)


def _whole_documents(plan: Batch, form: str, device: Any) -> Dict[str, Any]:
    _refuse_pool(plan, form)
    cu_seqlens, longest = plan.thd()
    offsets = _int32(cu_seqlens, device)
    return {"qkv_format": "thd", "cu_seqlens_q": offsets, "cu_seqlens_kv": offsets, "cu_seqlens_q_padded": offsets,
            "cu_seqlens_kv_padded": offsets, "max_seqlen_q": longest, "max_seqlen_kv": longest}


def megatron(batch: Any, device: Any = "cpu") -> Dict[str, Any]:
    """Megatron-LM: PackedSeqParams(**megatron(batch)). Offsets of whole documents, the same on every rank of
    the group; documents are cut per document (sharding.layouts = per-document), each a multiple of
    2 * CP, without pad rows. Unsupported otherwise."""
    return _whole_documents(_plan(batch), "Megatron's THD form", device)


def transformer_engine(batch: Any, device: Any = "cpu", cp_comm_type: str = "p2p", heads: Optional[int] = None,
                       kv_heads: Optional[int] = None) -> Dict[str, Any]:
    """TransformerEngine: DotProductAttention's keywords for THD input with context parallelism. With
    cp_comm_type "a2a" heads are exchanged: both head counts must divide by CP."""
    plan = _plan(batch)
    if cp_comm_type not in ("p2p", "all_gather", "a2a"):
        raise InvalidArgument(f"cp_comm_type is {cp_comm_type}, none of p2p, all_gather, a2a")
    for name, count in (("heads", heads), ("kv_heads", kv_heads)) if cp_comm_type == "a2a" else ():
        if count is None or count % plan.group_ranks != 0:
            raise Unsupported(f"a2a deals heads to {plan.group_ranks} ranks, and {name} is {count}")
    return {**_whole_documents(plan, "TransformerEngine's THD form", device), "attn_mask_type": "padding_causal"}


def ring_zigzag(batch: Any, device: Any = "cpu") -> Dict[str, Any]:
    """ring-flash-attention: zigzag_ring_flash_attn_varlen_func's keywords, likewise of whole documents, with
    offsets of this rank's rows."""
    plan = _plan(batch)
    _refuse_pool(plan, "the zigzag form")
    cu_seqlens, longest = plan.zigzag()
    return {"cu_seqlens": _int32(cu_seqlens, device), "max_seqlen": longest, "causal": True}


def ring_llama3(batch: Any, device: Any = "cpu", heads_k_stride: int = 1,
                kv_heads: Optional[int] = None) -> Dict[str, Any]:
    """ring-flash-attention: llama3_flash_attn_varlen_func's keywords. Every rank has a contiguous slice
    (sharding.layouts = ulysses); any lengths."""
    plan = _plan(batch)
    _refuse_pool(plan, "the llama3 form")
    if kv_heads is not None and kv_heads % heads_k_stride != 0:
        raise Unsupported(f"the llama3 form gathers {heads_k_stride} K/V heads at a time, and there are {kv_heads}")
    form = plan.llama3()
    return {"cu_seqlens_q": _int32(form.cu_seqlens_q, device), "cu_seqlens_k": _int32(form.cu_seqlens_k, device),
            "max_seqlen_q": form.max_seqlen_q, "max_seqlen_k": form.max_seqlen_k, "heads_k_stride": heads_k_stride,
            "local_k_slice": slice(form.key_begin, form.key_end), "causal": True}


@dataclass
class Varlen:
    """Arguments of flash_attn_varlen_func and what belongs to them."""

    arguments: Dict[str, Any]  # its keywords
    rows: int  # of q that it covers; pad rows are behind, and their output is to be zero
    keys: Optional[torch.Tensor]  # rows of the gathered K and V to take, int64; None: those of this rank


def flash_attention(batch: Any, device: Any = "cpu") -> Varlen:
    """flash-attention: any layout. Alone (CP 1) q, k and v are the rank's own rows. In a group K and V are
    all-gathered one rank after the other and then taken by `keys`: k = gathered[keys]; gradients go back by
    index_add. Where heads are exchanged (ulysses) the call sees the whole sequence, so `rows` is its tokens
    and no keys are taken."""
    plan = _plan(batch)
    _refuse_pool(plan, "a varlen call")
    if plan.exchange == Exchange.ALL_TO_ALL:
        q = k = numpy.concatenate([[0], numpy.cumsum(plan.documents.length)])
        longest = (int(plan.documents.length.max(initial=0)),) * 2
        rows, keys = plan.tokens_total, None
    else:
        q, k = plan.cu_seqlens()
        longest = plan.max_seqlens()
        rows = plan.rows - plan.pad_rows
        keys = None
        if plan.group_ranks > 1:
            keys = torch.from_numpy(plan.key_index(plan.order()).astype("int64")).to(device)
    return Varlen({"cu_seqlens_q": _int32(q, device), "cu_seqlens_k": _int32(k, device), "max_seqlen_q": longest[0],
                   "max_seqlen_k": longest[1], "causal": True}, rows, keys)


@dataclass
class Flex:
    """What torch's FlexAttention wants of a batch:
    flex_attention(q, k, v, block_mask=create_block_mask(mask_mod, None, None, rows, keys, device))."""

    mask_mod: Callable[..., torch.Tensor]  # (batch, head, row of q, row of k): whether they meet
    rows: int  # of q
    keys: int  # rows of k and v


def flex_attention(batch: Any, device: Any = "cpu") -> Flex:
    """torch.nn.attention.flex_attention: any layout. Alone (CP 1) q, k and v are the rank's own rows; in a
    group K and V are all-gathered one rank after the other and stay in that order. Where heads are exchanged
    (ulysses) all three are the whole sequence, documents one after the other, then pad rows. Pad rows meet nothing:
    their output is zero."""
    plan = _plan(batch)
    _refuse_pool(plan, "a mask")
    rows = plan.rows * plan.group_ranks
    lengths = numpy.asarray(plan.documents.length, "int64")
    found = numpy.full((2, rows), -1)  # document and position of each row, as they lie in a document's order
    found[0, :plan.tokens_total] = numpy.repeat(numpy.arange(len(lengths)), lengths)
    found[1, :plan.tokens_total] = numpy.arange(plan.tokens_total) - numpy.repeat(numpy.cumsum(lengths) - lengths, lengths)
    own = slice(None)
    if plan.exchange != Exchange.ALL_TO_ALL:
        gathered = numpy.empty_like(found)
        gathered[:, numpy.asarray(plan.order())] = found
        found, own = gathered, slice(plan.group_rank * plan.rows, (plan.group_rank + 1) * plan.rows)
    document, position = (torch.from_numpy(numpy.ascontiguousarray(column)).to(device) for column in found)
    q_document, q_position = document[own], position[own]

    def mask_mod(_: Any, __: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        met: torch.Tensor = (q_document[q] == document[k]) & (q_position[q] >= position[k]) & (q_document[q] >= 0)
        return met

    return Flex(mask_mod, len(q_document), rows)
