#!/usr/bin/python3
"""ballast.attention on the CPU: torch's autograd over libballast_attn, whose device is the emulator.

    torch_attention.py LIBCUDA LIBBALLAST_ATTN      both of them the tests' own"""

import ctypes
import os
import subprocess
import sys
import types

try:
    import torch
except ImportError:
    print("skip  no torch for this python: install python3-torch")
    sys.exit(77)

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "client", "python"))
os.environ.update(BALLAST_ATTN_LIBRARY=sys.argv[2], BALLAST_ATTN_ON_CPU="1")
emulator = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
emulator.fake_cuda_reset()
emulator.fake_cuda_last_stream.restype = ctypes.c_void_p

from ballast import attention as ba  # noqa: E402
from ballast import Layout  # noqa: E402
from ballast.plan import Fragment, Shard  # noqa: E402
from ballast.errors import InvalidArgument, Unavailable, Unsupported  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(1)
HEADS, KV_HEADS, WIDTH = 4, 2, 64


def batch_of(shards, rank=0, pad_rows=0, **others):
    """Shards: for each rank its (document, start, length)."""
    found = []
    for runs in shards:
        fragments, row = [], 0
        for document, start, length in runs:
            fragments.append(Fragment(document, start, length, row))
            row += length
        found.append(Shard(row + pad_rows, pad_rows, fragments))
    return types.SimpleNamespace(rows=found[rank].rows, pad_rows=pad_rows, fragments=found[rank].fragments, shards=found,
                                 group_rank=rank, group_ranks=len(shards), pool=None,
                                 **{"layout": Layout.PER_DOCUMENT, **others})


def drawn(rows, heads):
    return torch.randn(rows, heads, WIDTH).bfloat16()


def exact(q, k, v, documents):
    """One document at a time, in double."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    for begin, length in documents:
        rows = slice(begin, begin + length)
        scores = torch.einsum("qhd,khd->hqk", q[rows], k[rows].repeat_interleave(HEADS // KV_HEADS, 1)) / WIDTH ** 0.5
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
        out[rows] = torch.einsum("hqk,khd->qhd", scores.softmax(-1),
                                 v[rows].repeat_interleave(HEADS // KV_HEADS, 1))
    return out


def near(got, want):
    error = (got.double() - want).norm() / want.norm()
    assert error < 6e-3, float(error)


def exact_gradients(q, k, v, d_o, documents):
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v)]
    out = exact(*leaves, documents)
    out.backward(d_o.double())
    return [out.detach()] + [leaf.grad for leaf in leaves]


def raises(kind, text, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        assert text in str(error), error
        return
    raise AssertionError(f"no {kind.__name__}")


def plan_of(batch, **options):
    return ba.Plan(batch, q_heads=HEADS, kv_heads=KV_HEADS, head_dim=WIDTH, **options)


def test_gradients_are_those_of_documents_one_at_a_time():
    documents = [(0, 150), (150, 1), (151, 40)]
    batch = batch_of([[(i, 0, length) for i, (_, length) in enumerate(documents)]], pad_rows=5)
    q, k, v, d_o = (drawn(batch.rows, heads) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS))
    want = exact_gradients(q, k, v, d_o, documents)
    for deterministic in (False, True):
        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        out = ba.attention(*leaves, plan_of(batch, deterministic=deterministic))
        out.backward(d_o)
        for got, right in zip([out.detach()] + [leaf.grad for leaf in leaves], want):
            near(got, right)
            assert got[191:].abs().max() == 0, "pad rows"


def test_views_are_read_where_they_lie_or_copied():
    batch = batch_of([[(0, 0, 70)]])
    packed = torch.randn(70, HEADS + 2 * KV_HEADS, WIDTH).bfloat16()
    views = packed.split([HEADS, KV_HEADS, KV_HEADS], 1)
    assert all(ba._aligned(view).data_ptr() == view.data_ptr() for view in views)
    plan = plan_of(batch)
    out = ba.attention(*views, plan)
    assert torch.equal(ba(*views, plan), out), "the module is the function"
    near(out, exact(*(view.double() for view in views), [(0, 70)]))
    heads_first = views[0].transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(ba.attention(heads_first, views[1], views[2], plan), out)
    odd = torch.empty(70, HEADS, WIDTH + 1, dtype=torch.bfloat16)[:, :, :WIDTH].copy_(views[0])
    assert ba._aligned(odd).data_ptr() != odd.data_ptr()
    assert torch.equal(ba.attention(odd, views[1], views[2], plan), out)


def test_gradients_that_come_expanded_are_taken():
    q, k, v = (drawn(30, heads).requires_grad_() for heads in (HEADS, KV_HEADS, KV_HEADS))
    ba.attention(q, k, v, plan_of(batch_of([[(0, 0, 30)]]))).sum().backward()
    want = exact_gradients(q, k, v, torch.ones(30, HEADS, WIDTH), [(0, 30)])
    near(v.grad, want[3])


def test_work_goes_on_the_stream_that_is_current():
    plan, none = plan_of(batch_of([[(0, 0, 10)]])), ba._stream
    q, k, v = (drawn(10, heads).requires_grad_() for heads in (HEADS, KV_HEADS, KV_HEADS))
    out = ba.attention(q, k, v, plan)
    assert emulator.fake_cuda_last_stream() is None
    ba._stream = lambda device: 0x5EA
    ba.attention(q, k, v, plan)
    assert emulator.fake_cuda_last_stream() == 0x5EA
    ba._stream = lambda device: 0x5EB
    out.sum().backward()
    assert emulator.fake_cuda_last_stream() == 0x5EB
    ba._stream = none


def test_two_ranks_end_as_one():
    shards = [[(0, 0, 40), (0, 120, 40), (1, 0, 6)], [(0, 40, 80), (1, 6, 6)]]
    whole = [(0, 160), (160, 12)]
    q, k, v, d_o = (drawn(172, heads) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS))
    out, dq, dk, dv = exact_gradients(q, k, v, d_o, whole)
    place = [torch.tensor([whole[d][0] + row for d, start, length in runs for row in range(start, start + length)])
             for runs in shards]
    sums = {"k": torch.zeros(172, KV_HEADS, WIDTH), "v": torch.zeros(172, KV_HEADS, WIDTH)}
    for rank in range(2):
        batch = batch_of(shards, rank)
        names, seen = iter(["k", "v"]), iter(["k", "v"])
        exchange = ba.all_gathered(batch, all_gather=lambda t: [{"k": k, "v": v}[which][rows]
                                                                for which in [next(names)] for rows in place],
                                   reduce=lambda t: sums[next(seen)].index_add_(0, torch.cat(place), t) * 0)
        plan = plan_of(batch, exchange=exchange)
        own = [t[place[rank]].requires_grad_() for t in (q, k, v)]
        got = ba.attention(*own, plan)
        got.backward(d_o[place[rank]])
        near(got.detach(), out[place[rank]])
        near(own[0].grad, dq[place[rank]])
    near(sums["k"], dk)
    near(sums["v"], dv)


def test_refusals_say_what_to_do():
    batch = batch_of([[(0, 0, 8)]])
    plan = plan_of(batch)
    q, k = drawn(8, HEADS), drawn(8, KV_HEADS)
    raises(InvalidArgument, "use q.bfloat16()", ba.attention, q.float(), k, k, plan)
    raises(InvalidArgument, "[rows, heads, head_dim]", ba.attention, q[:7], k, k, plan)
    raises(InvalidArgument, "must not be negative", ba.attention, q, k, k, plan, -1.0)
    raises(InvalidArgument, "2 ranks share", plan_of, batch_of([[(0, 0, 8)], [(0, 8, 8)]]))
    raises(Unsupported, "ballast.exchange.ExchangePlan", plan_of, batch_of([[(0, 0, 8)]] * 2, layout=Layout.ULYSSES))
    raises(InvalidArgument, "head_dim 96", ba.Plan, batch, q_heads=4, kv_heads=2, head_dim=96)
    os.environ["BALLAST_ATTN_ON_CPU"] = ""
    raises(Unsupported, "CUDA devices", ba.attention, q, k, k, plan)
    os.environ["BALLAST_ATTN_ON_CPU"] = "1"
    ba._library, os.environ["BALLAST_ATTN_LIBRARY"] = None, "/nowhere/lib.so"
    raises(Unavailable, "BALLAST_ATTN_LIBRARY", plan_of, batch)


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
        print("ok", name)
