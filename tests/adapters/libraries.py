"""Batches in the forms of attention libraries, taken by the libraries themselves. See tests/adapters/run.

What of them is CUDA only is put in their place here: flash-attention's two functions, in plain torch, under
ring-flash-attention, and TransformerEngine's thd_get_partitioned_indices under megatron-core.
"""

import ast
import enum
import importlib
import inspect
import os
import sys
import tempfile
import types

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from world import Skip, main, write_corpus  # noqa: E402

import torch  # noqa: E402
import torch.distributed as distributed  # noqa: E402
from python_client import world_of  # noqa: E402
from python_torch import (HEADS, KV_HEADS, WIDTH, group, one_by_one, qkv, same, scattered, te_partition,  # noqa: E402
                          test_torchdatas_stateful_loader_saves_and_resumes_it)  # noqa: F401

import ballast  # noqa: E402
import ballast.torch as bt  # noqa: E402

DIVISIBLE = [list(range(1, 1 + n)) for n in [256, 64, 512, 32] * 20]


def library(name):
    """A module, or Skip with what importing it said."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever a library's dependencies raise
        raise Skip(f"{name}: {error!r}"[:200]) from error


# flash-attention, as ring-flash-attention calls it: rows of log-sum-exp are [heads, rows], and what is masked by
# `causal` is aligned to the last row of q and of k.


def scores_of(q, k, scale, causal):
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    if causal:
        late = torch.arange(len(k))[None, :] > torch.arange(len(q))[:, None] + len(k) - len(q)
        scores = scores.masked_fill(late, -torch.inf)
    return scores


def spans(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, q, k):
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32 and len(cu_seqlens_q) == len(cu_seqlens_k)
    assert cu_seqlens_q[-1] == len(q) and cu_seqlens_k[-1] == len(k)
    assert cu_seqlens_q.diff().max() == max_seqlen_q and cu_seqlens_k.diff().max() == max_seqlen_k
    cuts = [cuts.tolist() for cuts in (cu_seqlens_q, cu_seqlens_k)]
    return [(slice(a, b), slice(c, d)) for a, b, c, d in zip(cuts[0], cuts[0][1:], cuts[1], cuts[1][1:])]


def _flash_attn_varlen_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
                               window_size_left=-1, window_size_right=-1, softcap=0.0, alibi_slopes=None,
                               return_softmax=False, block_table=None):
    assert (dropout_p, window_size_left, window_size_right, softcap) == (0, -1, -1, 0) and alibi_slopes is block_table is None
    out, lse = torch.empty_like(q), torch.empty(q.shape[1], len(q), dtype=max(torch.float32, q.dtype, key=lambda d: d.itemsize))
    q, k, v = (x.double() for x in (q, k, v))
    for rows, keys in spans(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, q, k):
        scores = scores_of(q[rows], k[keys], softmax_scale, causal)
        lse[:, rows] = scores.logsumexp(-1)
        values = v[keys].repeat_interleave(q.shape[1] // v.shape[1], 1)
        out[rows] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).to(out.dtype)
    return out, lse, None, None


def _flash_attn_varlen_backward(dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                                max_seqlen_k, dropout_p, softmax_scale, causal, window_size_left=-1, window_size_right=-1,
                                softcap=0.0, alibi_slopes=None, deterministic=False):
    """With the log-sum-exp and output of all keys of a row, of which these may be some."""
    groups = q.shape[1] // k.shape[1]
    dout, q, k, v, out, softmax_lse = (x.double() for x in (dout, q, k, v, out, softmax_lse))
    for rows, keys in spans(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, q, k):
        share = (scores_of(q[rows], k[keys], softmax_scale, causal) - softmax_lse[:, rows, None]).exp()
        whole_k, whole_v = (x[keys].repeat_interleave(groups, 1) for x in (k, v))
        delta = (dout[rows] * out[rows]).sum(-1).T
        d_scores = share * (torch.einsum("qhd,khd->hqk", dout[rows], whole_v) - delta[:, :, None]) * softmax_scale
        dq[rows] = torch.einsum("hqk,khd->qhd", d_scores, whole_k).to(dq.dtype)
        for into, whole in ((dk, torch.einsum("hqk,qhd->khd", d_scores, q[rows])),
                            (dv, torch.einsum("hqk,qhd->khd", share, dout[rows]))):
            into[keys] = whole.unflatten(1, (-1, groups)).sum(2).to(into.dtype)


def ring_flash_attention(module):
    """A module of it, upon these functions and without its adapter to transformers."""
    flash = types.ModuleType("flash_attn.flash_attn_interface")
    for function in (_flash_attn_varlen_forward, _flash_attn_varlen_backward):
        setattr(flash, function.__name__, function)
    flash._flash_attn_forward = flash._flash_attn_backward = None  # not of varlen calls
    adapters = types.ModuleType("ring_flash_attn.adapters")
    adapters.substitute_hf_flash_attn = adapters.update_ring_flash_attn_params = None
    sys.modules.update({"flash_attn": types.ModuleType("flash_attn"), flash.__name__: flash, adapters.__name__: adapters})
    return library(f"ring_flash_attn.{module}")


def attends_as_a_document_at_a_time(rank, ranks, folder, socket, form, call, dtype, tolerance):
    """One rank: output and gradients of the library's call for its own rows."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=ranks)
    torch.set_num_threads(1)
    with ballast.Client(socket, cp=rank, start=(0, 0)) as client:
        for _ in range(2):
            with client.next() as batch:
                whole = [x.requires_grad_() for x in qkv(batch, torch.Generator().manual_seed(3))]
                out = one_by_one(batch, *whole)
                d_out = torch.randn(out.shape, generator=torch.Generator().manual_seed(4), dtype=out.dtype)
                out.backward(d_out)
                expected = [scattered(batch, x.detach())[rank] for x in (out, *(x.grad for x in whole))]
                own = [scattered(batch, x.detach())[rank].to(dtype).requires_grad_() for x in whole]
                found = call(*own, **form(batch))
                found.backward(scattered(batch, d_out)[rank].to(dtype))
                rows = batch.rows - batch.pad_rows
                for one, other in zip((found.detach(), *(x.grad for x in own)), expected):
                    off = float((one.double() - other)[:rows].norm() / other.norm())
                    assert off <= tolerance, (batch.index, off)
    distributed.barrier()
    distributed.destroy_process_group()


def on_ranks(world, ranks, form, call, dtype, tolerance):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(
            attends_as_a_document_at_a_time, (ranks, folder, world.socket, form, call, dtype, tolerance), ranks,
            start_method="fork")


def test_ring_flash_attentions_llama3_form():
    module = ring_flash_attention("llama3_flash_attn_varlen")
    for cp in (2, 4):
        with world_of(cp=cp, sharding={"layouts": "ulysses"}, plan={"window": 512}) as world:
            world.start()
            clients, batches, _ = group(world, cp)
            for rank, batch in enumerate(batches):
                lengths = [*batch.documents.length, batch.rows * cp - batch.tokens_total]
                cuts = torch.from_numpy(numpy.cumsum([0, *(n for n in lengths if n > 0)], dtype="int32"))
                theirs = module.llama3_flash_attn_prepare_cu_seqlens(cuts, True, rank, cp)
                ours = bt.ring_llama3(batch)
                names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "local_k_slice")
                for name, value in zip(names, theirs):
                    assert (ours[name] == value if isinstance(value, (int, slice)) else torch.equal(ours[name], value)), name
            for client in clients:
                client.close()
            for stride in (1, 2):
                on_ranks(world, cp, lambda batch: bt.ring_llama3(batch, heads_k_stride=stride, kv_heads=KV_HEADS),
                         module.llama3_flash_attn_varlen_func, torch.float64, 1e-12)


def test_ring_flash_attentions_zigzag_form():
    """In the types that flash-attention has: it adds up in float32, in place where rows are float32 already."""
    module = ring_flash_attention("zigzag_ring_flash_attn_varlen")
    for cp in (2, 4):
        with world_of(cp=cp, sharding={"layouts": "per-document"}) as world:
            write_corpus(os.path.join(world.dir, "d"), DIVISIBLE)
            world.start()
            on_ranks(world, cp, bt.ring_zigzag, module.zigzag_ring_flash_attn_varlen_func, torch.float16, 1e-3)


class Group(types.SimpleNamespace):
    """As much of a process group as megatron-core asks."""

    def size(self):
        return self.ranks

    def rank(self):
        return self.number


def whole_columns(batches):
    """tokens, labels and positions of the whole packed sequence, with its pad rows."""
    order = torch.from_numpy(batches[0].order().astype("int64"))
    columns = {name: torch.cat([torch.from_numpy(b.gather(name, "int64")) for b in batches])[order][None]
               for name in ("tokens", "labels", "positions")}
    return {"tokens": columns["tokens"], "labels": columns["labels"], "position_ids": columns["positions"]}


def equal_columns(batch, found):
    for name, column in (("tokens", "tokens"), ("labels", "labels"), ("position_ids", "positions")):
        assert found[name][0].tolist() == batch.gather(column).tolist(), column


def test_megatron_cores_packed_sequences():
    """PackedSeqParams as megatron-core makes them, its cut of a THD batch, and its rotary embedding, which goes by
    ranks where ours goes by positions."""
    utils, rope = library("megatron.core.utils"), library("megatron.core.models.common.embeddings.rope_utils")
    params = library("megatron.core.packed_seq_params").PackedSeqParams
    utils.tex = types.SimpleNamespace(thd_get_partitioned_indices=lambda cuts, total, ranks, rank: torch.tensor(
        te_partition(cuts, rank, ranks)))
    utils.is_te_min_version = lambda *_, **__: True
    for cp in (1, 2, 4):
        with world_of(cp=cp, sharding={"layouts": "per-document"}) as world:
            write_corpus(os.path.join(world.dir, "d"), DIVISIBLE)
            world.start()
            clients, batches, _ = group(world, cp)
            for rank, batch in enumerate(batches):
                ours = params(**bt.megatron(batch))
                cuts = ours.cu_seqlens_q_padded
                theirs, packed = utils.get_thd_batch_on_this_cp_rank(
                    whole_columns(batches), cuts, cuts, torch.tensor([ours.max_seqlen_q]), cp, rank)
                equal_columns(batch, theirs)
                for name, value in vars(packed).items():
                    mine = getattr(ours, name)
                    assert torch.equal(mine, value) if isinstance(value, torch.Tensor) else mine == value, name
                t = torch.randn(batch.rows, HEADS, WIDTH, dtype=torch.float64)
                freqs = torch.randn(len(t) * cp + 1, 1, 1, WIDTH, dtype=torch.float64)
                found = rope._apply_rotary_pos_emb_thd(t, ours.cu_seqlens_q, freqs, cp_group=Group(ranks=cp, number=rank))
                at = freqs[torch.from_numpy(batch.positions("int64"))]
                same(found, rope._apply_rotary_pos_emb_bshd(t[:, None], at, rotary_interleaved=False)[:, 0])
            for client in clients:
                client.close()


def transformer_engine(module, name):
    """A function or class of it as written: importing it takes its CUDA library, so it lies where nobody imports it."""
    folder = os.path.join(sys.prefix, "sources", "transformer_engine", "pytorch", "attention", "dot_product_attention")
    path = os.path.join(folder, module + ".py")
    if not os.path.exists(path):
        raise Skip(f"no {path}")
    with open(path) as file:
        tree = ast.parse(file.read())
    return next(node for node in tree.body if getattr(node, "name", None) == name)


def test_transformer_engines_cut_of_a_batch_and_keywords():
    function = transformer_engine("context_parallel", "get_batch_on_this_cp_rank")
    names = {"torch": torch, "CPLoadBalancingStrategy": enum.Enum("Strategy", ("DUAL_CHUNK_SWAP", "NO_LOAD_BALANCE"))}
    exec(compile(ast.Module([function], []), "context_parallel.py", "exec"), names)
    forward = next(node for node in transformer_engine("dot_product_attention", "DotProductAttention").body
                   if getattr(node, "name", None) == "forward")
    keywords = {argument.arg for argument in forward.args.args}
    names["torch"] = types.SimpleNamespace(**{**vars(torch), "distributed": types.SimpleNamespace(
        get_world_size=lambda group: group.size(), get_rank=lambda group: group.rank())})
    for cp in (1, 2, 4):
        with world_of(cp=cp, sharding={"layouts": "per-document"}) as world:
            write_corpus(os.path.join(world.dir, "d"), DIVISIBLE)
            world.start()
            clients, batches, _ = group(world, cp)
            for rank, batch in enumerate(batches):
                ours = bt.transformer_engine(batch)
                assert ours.keys() <= keywords, ours.keys() - keywords
                whole = whole_columns(batches)
                found = names["get_batch_on_this_cp_rank"](ours["cu_seqlens_q_padded"], *whole.values(),
                                                           cp_group=Group(ranks=cp, number=rank))
                equal_columns(batch, dict(zip(whole, found)))
            for client in clients:
                client.close()


def test_megatron_cores_cut_of_a_sequence_is_layout_per_sequence():
    utils = library("megatron.core.utils")
    utils.get_pg_size, utils.get_pg_rank = Group.size, Group.rank  # 1 and 0 where torch.distributed is not initialized
    for cp in (2, 4):
        with world_of(cp=cp, sharding={"layouts": "per-sequence"}, plan={"policy": "plain", "window": 1024}) as world:
            world.start()
            clients, batches, _ = group(world, cp)
            assert batches[0].pad_rows == 0
            for rank, batch in enumerate(batches):
                theirs = utils.get_batch_on_this_cp_rank(whole_columns(batches), cp_group=Group(ranks=cp, number=rank))
                equal_columns(batch, theirs)
            for client in clients:
                client.close()


def test_flex_attention():
    flex = library("torch.nn.attention.flex_attention")
    generator = torch.Generator().manual_seed(1)
    for cp, layouts in ((1, "per-sequence"), (4, "per-document"), (2, "variable-degree"), (2, "ulysses")):
        with world_of(cp=cp, sharding={"layouts": layouts}, plan={"window": 512}) as world:
            world.start()
            clients, batches, _ = group(world, cp)
            q, k, v = qkv(batches[0], generator)
            expected = scattered(batches[0], one_by_one(batches[0], q, k, v))
            q, k, v = (scattered(batches[0], x) for x in (q, k, v))
            for rank, batch in enumerate(batches):
                form = bt.flex_attention(batch)
                mask = flex.create_block_mask(form.mask_mod, None, None, form.rows, form.keys, device="cpu")
                one = (q if layouts == "ulysses" else q[rank:rank + 1]).flatten(0, 1)
                out = flex.flex_attention(*(x.transpose(0, 1)[None] for x in (one, k.flatten(0, 1), v.flatten(0, 1))),
                                          block_mask=mask, enable_gqa=True)[0].transpose(0, 1)
                same(out, (expected if layouts == "ulysses" else expected[rank:rank + 1]).flatten(0, 1))
            for client in clients:
                client.close()


def test_torchs_varlen_attention_takes_flash_attentions_arguments():
    """It runs on CUDA only: its names are what can be held against ours here."""
    signature = inspect.signature(library("torch.nn.attention.varlen").varlen_attn)
    with world_of() as world:
        world.start()
        with ballast.Client(world.socket) as client:
            form = bt.flash_attention(client.next()).arguments
            form.pop("causal")
            signature.bind(None, None, None, *form.values(), window_size=(-1, 0))
            assert list(signature.parameters)[3:7] == ["cu_seq_q", "cu_seq_k", "max_q", "max_k"]
            assert list(form) == ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"]


if __name__ == "__main__":
    main(globals())
